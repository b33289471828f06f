"""The supervisor's request socket: a silent client delays neither the others nor the supervisor."""

from __future__ import annotations

import json
import select
import socket
import sys
import threading

import pytest

from watchdog_app.base.errors import ActionError
from watchdog_app.client import transport
from watchdog_app.guard import control

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a socket with a path")


class Loop:
    """A stand-in for the supervisor's loop: waits for descriptors in the test's thread."""

    def __init__(self):
        self.handlers = {}
        self._poll = select.poll()

    def watch(self, fd, then):
        self.handlers[fd] = then
        self._poll.register(fd, select.POLLIN)

    def forget(self, fd):
        if self.handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def turn(self, wait_s=0.0):
        """Handle what is ready; return whether anything was."""
        ready = self._poll.poll(wait_s * 1000)
        for fd, _ in ready:
            if fd in self.handlers:
                self.handlers[fd]()
        return bool(ready)

    def settle(self):
        while self.turn():
            pass


@pytest.fixture
def desk(tmp_path):
    """A loop, the socket's path, and the requests that were carried out."""

    def carry_out(request):
        if request.get("refuse"):
            raise ActionError("It cannot be.")
        carried.append(request)
        return "It is done."

    loop, carried, path = Loop(), [], str(tmp_path / "supervisor.sock")
    listener = control.Listener(path, carry_out, loop.watch, loop.forget)
    yield loop, path, carried
    listener.close()
    assert {} == loop.handlers


def ask(loop, path, request):
    """The supervisor's answer, or its error."""
    said = []

    def asks():
        try:
            said.append(control.send_request(path, request))
        except ActionError as error:
            said.append(error)

    asking = threading.Thread(target=asks)
    asking.start()
    while asking.is_alive():
        loop.turn(0.01)
    return said[0]


def test_a_request_is_answered_beside_clients_that_say_nothing(desk):
    """Neither eight silent clients nor one that stops in mid-line block the listener."""
    loop, path, carried = desk
    silent = [transport.connect(path, 10) for _ in range(8)]
    silent[0].sendall(b'{"limit')
    loop.settle()

    answers = [ask(loop, path, {"limit_bytes": 5}), str(ask(loop, path, {"refuse": True}))]
    silent[0].sendall(b'_bytes": 6}\n')
    loop.settle()

    assert ["It is done.", "It cannot be."] == answers
    assert {"ok": True, "text": "It is done."} == json.loads(silent[0].recv(4096))
    assert [{"limit_bytes": 5}, {"limit_bytes": 6}] == carried
    for each in silent:
        each.close()


def test_the_silent_ones_are_few_and_give_way(desk):
    """The oldest silent client is dropped, and a client that disconnects is removed at once."""
    loop, path, _ = desk
    crowd = []
    for _ in range(40):
        crowd.append(transport.connect(path, 10))
        loop.settle()
    held = len(loop.handlers) - 1
    oldest = crowd[0].recv(1)

    answer = ask(loop, path, {"unlimited": True})
    for each in crowd:
        each.close()
    loop.settle()

    assert (16, b"", "It is done.") == (held, oldest, answer)
    assert 1 == len(loop.handlers)


def test_what_is_no_wish_is_told_so(desk):
    """Not JSON, not an object, too long, truncated."""
    loop, path, carried = desk
    for line in (b"x\n", b"[1]\n", b"[" * 5000, b'{"end": tr', b"\xff\n"):
        with transport.connect(path, 10) as client:
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            loop.settle()
            assert {"ok": False, "text": "That is no request."} == json.loads(client.recv(4096))
    assert [] == carried
