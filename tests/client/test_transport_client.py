"""The transport and the blocking client, with real sockets."""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time

import pytest
from support.finished import finished

from watchdog_app.base.errors import (
    NOT_FOUND,
    SEVERAL_FIT,
    DaemonFull,
    DaemonNotRunning,
    ProtocolError,
    RequestError,
    TaskNotFound,
)
from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.client import Client
from watchdog_app.client.jsonrpc import LineDecoder, encode

HELLO = {"protocol": 2, "version": "9.9", "pid": 42}


class Script:
    """A scripted daemon: a function from each message to the reply."""

    def __init__(self, path, answer):
        self.received = []
        self._listener = transport.listen(str(path))
        self._listener.setblocking(True)
        self._answer = answer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        connection, _ = self._listener.accept()
        decoder = LineDecoder()
        with connection:
            while data := connection.recv(65536):
                for message in decoder.feed(data):
                    self.received.append(message)
                    back = self._answer(message)
                    if back is None:
                        return
                    connection.sendall(back)

    def close(self):
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def play(tmp_path):
    """Start a scripted daemon; return the path of its socket."""
    scripts = []

    def start(answer, name="daemon.sock"):
        def with_hello(message):
            if message["method"] == "hello":
                return encode(jsonrpc.result(message["id"], HELLO))
            return answer(message)

        scripts.append(Script(tmp_path / name, with_hello))
        return str(tmp_path / name)

    yield start
    for script in scripts:
        script.close()


def test_the_socket_is_open_to_its_user_alone(tmp_path):
    """Its mode is 0600 from the start, and the umask is restored."""
    before = os.umask(0o022)
    os.umask(before)

    listener = transport.listen(str(tmp_path / "s"))

    assert 0o600 == stat.S_IMODE(os.stat(tmp_path / "s").st_mode)
    after = os.umask(before)
    assert before == after
    listener.close()


def test_the_kernel_says_who_is_at_the_other_end(tmp_path):
    """The user and pid of the peer are this process's own here, and trusted."""
    listener = transport.listen(str(tmp_path / "s"))
    client = transport.connect(str(tmp_path / "s"), 5)
    server, _ = listener.accept()

    peer = transport.peer(server)

    assert (os.getuid(), os.getpid()) == (peer.uid, peer.pid)
    assert peer.trusted
    for each in (client, server, listener):
        each.close()


def test_another_user_is_not_trusted():
    """Neither this user nor root: the daemon must not serve it, the client must not trust it."""
    assert not transport.Peer(os.getuid() + 12345, 1).trusted


def test_a_path_longer_than_an_address_works(tmp_path):
    """Folders of tests and of some homes are longer than the 107 bytes of sun_path."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    listener = transport.listen(str(folder / "daemon.sock"))
    client = transport.connect(str(folder / "daemon.sock"), 5)

    assert listener.accept()[0].close() is None
    client.close()
    listener.close()


def test_a_call_returns_the_result(play):
    """`call` returns the daemon's answer; the hello data are available."""
    path = play(lambda m: encode(jsonrpc.result(m["id"], m["params"])))

    with Client.connect(path) as client:
        assert {"task": "a", "wait": True} == client.call("task.checkpoint", task="a", wait=True)
        assert (42, "9.9") == (client.daemon_pid, client.daemon_version)


def test_notifications_in_between_are_kept_in_order(play):
    """Notifications before the answer are not lost."""

    def answer(message):
        notes = b"".join(encode(jsonrpc.notification("status", {"n": n})) for n in (1, 2))
        return notes + encode(jsonrpc.result(message["id"], "yes"))

    with Client.connect(play(answer)) as client:
        assert "yes" == client.call("status")
        found = [note["params"]["n"] for note in client.notifications(0.05)]
    assert [1, 2] == found


def test_notifications_that_nobody_reads_are_bounded(play):
    """A client that only calls does not grow."""

    def answer(message):
        notes = b"".join(encode(jsonrpc.notification("status", {"n": n})) for n in range(1500))
        return notes + encode(jsonrpc.result(message["id"], "yes"))

    with Client.connect(play(answer)) as client:
        client.call("status")
        found = [note["params"]["n"] for note in client.notifications(0.05)]
    assert list(range(500, 1500)) == found


@pytest.mark.parametrize("code", [NOT_FOUND, SEVERAL_FIT])
def test_a_task_that_is_not_found_brings_its_candidates(play, code):
    """The error has a separate type and lists the candidates."""
    data = {"candidates": [{"pid": 7, "name": "train.py"}]}
    path = play(lambda m: encode(jsonrpc.error(m["id"], code, "which?", data)))

    with Client.connect(path) as client, pytest.raises(TaskNotFound, match="which") as caught:
        client.call("task.pause", task="x")

    assert code == caught.value.code
    assert ({"pid": 7, "name": "train.py"},) == caught.value.candidates


def test_a_refusal_is_raised_with_the_daemons_words(play):
    """Message and code of the error are the daemon's."""
    path = play(lambda m: encode(jsonrpc.error(m["id"], jsonrpc.REFUSED, "not now")))

    with Client.connect(path) as client, pytest.raises(RequestError, match="not now") as caught:
        client.call("stop")
    assert jsonrpc.REFUSED == caught.value.code


@pytest.mark.parametrize("body", [None, 5, "no", {}, {"code": "x"}, {"code": -32002, "data": 3}])
def test_a_refusal_without_sense_is_a_refusal_all_the_same(play, body):
    """The client raises no other exception type."""
    path = play(lambda m: encode({"jsonrpc": "2.0", "id": m["id"], "error": body}))

    with Client.connect(path) as client, pytest.raises(RequestError):
        client.call("status")


@pytest.mark.parametrize("first", ["the daemon", "the client"])
def test_a_daemon_without_room_is_told_from_one_that_is_gone(tmp_path, monkeypatch, first):
    """It reports that it is full and closes the connection, before or after the client's hello."""
    path = str(tmp_path / "full.sock")
    listener = transport.listen(path)
    listener.setblocking(True)

    def refuse():
        connection, _ = listener.accept()
        connection.sendall(encode(jsonrpc.error(None, jsonrpc.REFUSED, "500 already")))
        connection.close()

    greet = Client._greet
    refusing = threading.Thread(target=refuse, daemon=True)

    def greet_late(self, role):
        refusing.join(5)
        return greet(self, role)

    if first == "the daemon":
        monkeypatch.setattr(Client, "_greet", greet_late)
    refusing.start()
    with pytest.raises(DaemonFull, match=r"runs but .*500 already"):
        Client.connect(path)
    refusing.join(5)
    listener.close()


def test_nobody_listening_says_how_to_start(tmp_path):
    """Neither a missing socket nor one of a dead daemon causes a traceback."""
    with pytest.raises(DaemonNotRunning, match="watchdog start"):
        Client.connect(str(tmp_path / "daemon.sock"))
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left.sock"))
    left.close()
    with pytest.raises(DaemonNotRunning, match="watchdog start"):
        Client.connect(str(tmp_path / "left.sock"))


def test_a_daemon_that_does_not_answer_is_told_in_time(play):
    """The call ends after its timeout, with an error."""
    path = play(lambda _: b"")
    with Client.connect(path) as client:
        began = time.monotonic()
        with pytest.raises(ProtocolError, match="did not answer status within"):
            client.call("status", reply_timeout_s=0.2)
    assert 0.15 < time.monotonic() - began


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(play):
    """After a timeout, the next call gets its own answer."""
    late = []

    def answer(message):
        late.append(encode(jsonrpc.result(message["id"], message["method"])))
        return b"" if len(late) == 1 else late[0] + late[1]

    with Client.connect(play(answer)) as client:
        with pytest.raises(ProtocolError):
            client.call("first", reply_timeout_s=0.1)
        assert "second" == client.call("second")


def test_the_end_of_the_daemon_is_told(play):
    """The client raises it during a call, and while it waits for notifications."""
    with Client.connect(play(lambda _: None)) as client:
        with pytest.raises(DaemonNotRunning, match="ended the connection"):
            client.call("status")
        with pytest.raises(DaemonNotRunning):
            list(client.notifications(1))


def test_nonsense_from_the_daemon_is_a_protocol_error(play):
    """The JSON library's error does not escape."""
    with Client.connect(play(lambda _: b"nonsense\n")) as client, pytest.raises(ProtocolError):
        client.call("status")


def test_importing_the_client_costs_no_more_than_it_must():
    """`watchdog status` must not load asyncio, logging, dataclasses or typing."""
    code = "import watchdog_app.client.client, sys; print(*sys.modules)"
    loaded = finished(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"], check=True
    ).stdout.split()
    heavy = {"asyncio", "logging", "dataclasses", "typing", "tempfile", "subprocess", "inspect"}
    assert set() == heavy & set(loaded)
