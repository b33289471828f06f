"""Jupyter servers: their answers, the requests to them, and that they never block."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sensor_trees import FIXTURES
from support.waiting import until

from watchdog_app.base.errors import Denied, SensorError, Unsupported
from watchdog_app.core.model.machine import TaskKind
from watchdog_app.machine.sensors.jupyter import (
    JupyterServers,
    parse_server_info,
    parse_sessions,
    request_sessions,
)
from watchdog_app.machine.sensors.notebooks import KernelFacts, Session

TOKEN = "not-a-token"
KERNEL = {"id": "k1", "name": "python3"}
SESSIONS = [
    {"id": "s", "path": "sub/a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": KERNEL}
]


class StubServer:
    """Answers each request with the test's bytes, and records the requests."""

    def __init__(self, answer: bytes, *, pause_s: float = 0.0) -> None:
        self.answer = answer
        self.pause_s = pause_s
        self.requests: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            try:
                self.requests.append(connection.recv(65536))
                if not self.pause_s:  # otherwise it never answers
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client has disconnected

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which close alone does not
        self._thread.join()
        self._listener.close()
        for connection in self.connections:
            connection.close()


def http(body: object, status: str = "200 OK") -> bytes:
    """A complete answer."""
    return f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(body)}".encode()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[StubServer, str]]]:
    """Start a stub and write its description; returns both."""
    started = []

    def start(answer: bytes, *, pause_s: float = 0.0, **fields: object):
        server = StubServer(answer, pause_s=pause_s)
        started.append(server)
        info = {
            "url": f"http://localhost:{server.port}/",
            "hostname": "localhost",
            "token": TOKEN,
            "root_dir": "/home/user",
            "pid": 410,
            **fields,
        }
        description = tmp_path / "jpserver-410.json"
        description.write_text(json.dumps(info).replace("PORT", str(server.port)))
        return server, str(description)

    yield start
    for server in started:
        server.close()


@pytest.mark.parametrize("name", ["jpserver-410.json", "nbserver-77.json"])
def test_captured_descriptions_are_read(name: str):
    """From jupyter_server 2 and the classic notebook; the token never shows."""
    info = parse_server_info((FIXTURES / "jupyter_runtime" / name).read_bytes())

    assert "/home/user" == info.root_dir
    assert TOKEN not in repr(info)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"url": 3}', b"\xff", b'{"token": "x"}', b"[" * 60_000]
)
def test_what_is_no_description_is_none(data: bytes):
    """It may be incomplete or belong to another program."""
    assert parse_server_info(data) is None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (SESSIONS, {"k1": (Session("/r/sub/a.ipynb", TaskKind.NOTEBOOK),)}),
        (
            [{"path": "RTC:sub/a.ipynb", "type": "notebook", "kernel": KERNEL}],
            {"k1": (Session("/r/sub/a.ipynb", TaskKind.NOTEBOOK),)},
        ),
        (
            [{"path": "a-jvsc-0f21e5a4-86a8-4d52-9c1c-7a0a3ce1b111.ipynb", "kernel": KERNEL}],
            {"k1": (Session("/r/a.ipynb", TaskKind.NOTEBOOK),)},
        ),
        (
            [{"path": "console-1-x", "name": "Console 1", "type": "console", "kernel": KERNEL}],
            {"k1": (Session("Console 1", TaskKind.CONSOLE),)},
        ),
        (
            [{"notebook": {"path": "old.ipynb"}, "kernel": KERNEL}],
            {"k1": (Session("/r/old.ipynb", TaskKind.NOTEBOOK),)},
        ),
        (
            [
                {"path": "a.ipynb", "type": "notebook", "kernel": KERNEL},
                {"path": "b.ipynb", "type": "notebook", "kernel": KERNEL},
            ],
            {
                "k1": (
                    Session("/r/a.ipynb", TaskKind.NOTEBOOK),
                    Session("/r/b.ipynb", TaskKind.NOTEBOOK),
                )
            },
        ),
        ([3, None, {}, {"path": "x", "kernel": None}, {"path": 3, "kernel": KERNEL}], {}),
        ({"message": "no"}, {}),
        ("text", {}),
    ],
)
def test_sessions_by_kernel(entries, expected):
    """Invalid entries are ignored."""
    assert expected == parse_sessions(json.dumps(entries).encode(), "/r")


@pytest.mark.parametrize("path", ["", "a\0.ipynb", "x" * 5000, 3, None])
def test_path_that_no_file_can_have_names_nothing(path: object):
    """The server may be broken or hostile."""
    data = json.dumps([{"path": path, "kernel": KERNEL}]).encode()

    assert {} == parse_sessions(data, "/home/user")


def test_halves_of_characters_can_be_written_down():
    """JSON can hold lone surrogates, which UTF-8 cannot encode."""
    data = b'[{"path": "\\ud800.ipynb", "kernel": {"id": "k1"}}]'

    assert "/r/?.ipynb" == parse_sessions(data, "/r")["k1"][0].path


def test_more_sessions_than_anybody_has_are_left_out():
    """The server may be broken or hostile: the result stays bounded."""
    of_one = [{"path": f"{number}.ipynb", "kernel": KERNEL} for number in range(20_000)]
    of_many = [{"path": "a.ipynb", "kernel": {"id": f"k{number}"}} for number in range(20_000)]

    found = parse_sessions(json.dumps([*of_one, *of_many]).encode(), "/r")

    assert 100 == len(found["k1"])
    assert "/r/0.ipynb" == found["k1"][0].path
    assert 500 == len(found)


def test_broken_answer_holds_no_sessions():
    """The answer is not JSON at all."""
    assert {} == parse_sessions(b"<html>", "/r")


def test_server_is_asked_with_its_token_and_not_as_activity(serve):
    """Otherwise the request would keep an idle server from ending itself."""
    server, path = serve(http(SESSIONS), url="http://localhost:PORT/user/x/")

    found = request_sessions(path, 2.0)

    head = server.requests[0].decode().split("\r\n")
    assert {"k1": (Session("/home/user/sub/a.ipynb", TaskKind.NOTEBOOK),)} == found
    assert "GET /user/x/api/sessions?no_track_activity=1 HTTP/1.0" == head[0]
    assert f"Authorization: token {TOKEN}" in head


def test_server_on_a_unix_socket_is_not_asked(serve):
    """`jupyter server --sock`: a kernel keeps the name that it started with."""
    server, path = serve(http(SESSIONS), url="http+unix://%2Ftmp%2Fs.sock/")

    with pytest.raises(Unsupported):
        request_sessions(path, 2.0)

    assert [] == server.requests


@pytest.mark.parametrize("host", ["0.0.0.0", "myhost.example", "203.0.113.9", "[::]"])
def test_token_never_leaves_this_machine(serve, host: str):
    """Whatever host the description names, only this machine gets a request."""
    server, path = serve(http(SESSIONS), url=f"http://{host}:PORT/", hostname=host)

    request_sessions(path, 2.0)

    assert 1 == len(server.requests)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http({}, "403 Forbidden"), Denied),
        (http({}, "401 Unauthorized"), Denied),
        (http({}, "302 Found"), Unsupported),
        (http({}, "500 Oops"), Unsupported),
        (b"SSH-2.0-OpenSSH\r\n", Unsupported),
        (b"", Unsupported),
    ],
)
def test_refusal_is_an_error_without_the_token(serve, answer: bytes, error: type[SensorError]):
    """Redirects are not followed either."""
    _, path = serve(answer)

    with pytest.raises(error) as caught:
        request_sessions(path, 2.0)

    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["a\r\nHost: evil", "a\nb", "tök"])
def test_token_that_is_no_header_is_not_sent(serve, token: str):
    """A forged description cannot write its own request."""
    server, path = serve(http(SESSIONS), token=token)

    with pytest.raises(Unsupported):
        request_sessions(path, 2.0)

    assert [] == [request for request in server.requests if request]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as somebody else")
def test_token_is_not_sent_to_another_user_who_has_the_port_by_now(serve):
    """The server was killed: its description remains, and its port is free for any user."""
    _, description = serve(http(SESSIONS))
    os.chown(description, 4242, -1)
    os.seteuid(65534)
    try:
        server = StubServer(http(SESSIONS))
    finally:
        os.seteuid(0)
    info = json.loads(Path(description).read_text())
    info["url"] = f"http://localhost:{server.port}/"
    Path(description).write_text(json.dumps(info))

    with pytest.raises(Unsupported, match="another user"):
        request_sessions(description, 5.0)

    server.close()
    assert not any(TOKEN.encode() in request for request in server.requests)


def test_silent_server_is_left_after_the_timeout(serve):
    """One deadline covers the whole request."""
    _, path = serve(b"", pause_s=60.0)

    with pytest.raises(Unsupported, match="does not answer"):
        request_sessions(path, 0.2)


def test_description_that_is_gone_is_an_error(tmp_path: Path):
    """The server ended in between."""
    with pytest.raises(SensorError):
        request_sessions(str(tmp_path / "jpserver-1.json"), 0.2)


def _facts(folder: Path, pid: int = 410) -> KernelFacts:
    return KernelFacts(str(folder / "kernel-k1.json"), None, (), (pid,))


def test_rename_is_seen_by_the_next_question(serve, tmp_path: Path):
    """Three seconds later, and not before: a server is not asked at every tick."""
    server, _ = serve(http(SESSIONS))
    servers = JupyterServers(lambda _: True)
    kernels = [_facts(tmp_path)]
    servers.poll(kernels, 0.0)
    until(lambda: servers.poll(kernels, 0.1))
    first = servers.find_sessions("k1")

    server.answer = http([{**SESSIONS[0], "path": "new.ipynb"}])
    for tick in range(2, 30):
        servers.poll(kernels, tick / 10)
    asked = len(server.requests)
    changed = until(lambda: servers.poll(kernels, 33.2))  # an answer may take some time

    assert "/home/user/sub/a.ipynb" == first[0].path
    assert (1, True) == (asked, changed)
    assert "/home/user/new.ipynb" == servers.find_sessions("k1")[0].path
    assert () == servers.find_sessions("k2")
    servers.close()


def test_hung_server_stalls_no_tick(serve, tmp_path: Path):
    """A sample returns at once, without a growing queue of requests."""
    server, _ = serve(b"", pause_s=60.0)
    servers = JupyterServers(lambda _: True)
    kernels = [_facts(tmp_path)]
    begun = time.monotonic()

    for tick in range(200):
        servers.poll(kernels, float(tick))

    assert time.monotonic() - begun < 1.0  # two hundred samples; a single wait would take 2 s
    until(lambda: len(server.requests) == 1)
    servers.close()


def test_token_of_a_dead_server_is_not_used(serve, tmp_path: Path):
    """Its port is free for any user."""
    server, _ = serve(http(SESSIONS))
    servers = JupyterServers(lambda _: False)
    kernels = [_facts(tmp_path)]

    for tick in range(20):
        servers.poll(kernels, tick * 100.0)
        time.sleep(0.005)

    assert [] == server.requests
    servers.close()


def test_kernels_without_a_server_start_no_thread(tmp_path: Path, started_threads):
    servers = JupyterServers(lambda _: True)

    assert not servers.poll([_facts(tmp_path)], 0.0)
    assert 0 == started_threads.count
