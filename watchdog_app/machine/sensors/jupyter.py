"""
Which documents the kernels of this user's Jupyter servers serve, as the servers say.

The loop never waits for a server: a thread asks, and a later look picks up the answer. A server
is asked every 3 s at most, more seldom while it does not answer or takes its time.

A request is HTTP/1.0 by hand: http.client would cost the daemon 3 MB. It goes to this machine
alone, and does not count as activity, so that a server which ends itself when idle still does. A
port is free for anyone once its server has ended: the token is sent only to those who own it.

Sources: jupyter_server, `serverapp.py` (server_info), `services/sessions`; proc_net_tcp.rst of the
kernel's documentation.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from watchdog_app.base.errors import Denied, SensorError, Unsupported
from watchdog_app.base.jupyter import VSCODE_SUFFIX
from watchdog_app.base.linux.files import read_regular
from watchdog_app.base.threads import Worker
from watchdog_app.machine.sensors.notebooks import (
    KernelFacts,
    Session,
    make_session,
    read_json,
    valid_name,
)

_EVERY_S = 3.0
_COST_FACTOR = 300.0  # an answer that took 20 ms is asked for again after 6 s
_SLOW_EVERY_S = 30.0  # at most, however long an answer takes
_SILENT_S = 10.0  # ... and twice as long after each further silence
_SILENT_EVERY_S = 300.0  # at most, once a server does not answer
_TIMEOUT_S = 2.0
# Thousands of sessions. JSON is taken apart in one turn, and looks wait: 16 ms, with 4 MiB 60 ms.
_ANSWER_LIMIT = 1 << 20
# More than anybody has open; a server that says so is broken, and each of them costs at every look.
_MAX_KERNELS = 500
_MAX_SESSIONS = 100  # of one kernel
# A shared document of JupyterLab: the drive stands before the path.
_DRIVE = re.compile(r"^[A-Za-z]{2,}:(?!/)")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LISTENING = b"0A"  # of /proc/net/tcp

_SessionsByKernel = dict[str, tuple[Session, ...]]


@dataclass(slots=True)
class _Server:
    """One server as we know it."""

    path: str
    due_mono_s: float = 0.0
    asked: bool = False  # and the answer is still out
    failures: int = 0
    sessions: _SessionsByKernel = field(default_factory=dict)


class JupyterServers:
    """
    Who serves which kernel, as the servers themselves said last.

    Args:
        is_alive: whether a pid is in use, asked before a server's token is used.
    """

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive
        self._servers: dict[int, _Server] = {}  # by pid
        self._worker = Worker()
        self._now_mono_s = 0.0
        self._changed = False  # by what came in at this look

    def find_sessions(self, kernel_id: str | None) -> Sequence[Session]:
        """Documents of a kernel, as its server said last; empty: nothing is known."""
        for server in self._servers.values():
            if kernel_id is not None and kernel_id in server.sessions:
                return server.sessions[kernel_id]
        return ()

    def poll(self, kernels: Iterable[KernelFacts], now_mono_s: float) -> bool:
        """
        Pick up what came in, ask what is due; whether a name may have changed. Never waits.

        Args:
            kernels: all there are.
            now_mono_s: of this look.
        """
        self._changed, self._now_mono_s = False, now_mono_s
        self._worker.collect()
        wanted = set()
        for kernel in kernels:
            for pid in kernel.server_pids:
                if pid in self._servers or self._find_server(pid, kernel.connection_file):
                    wanted.add(pid)
                    break
        for pid in self._servers.keys() - wanted:
            del self._servers[pid]  # its kernels are gone
        for pid, server in self._servers.items():
            if not server.asked and now_mono_s >= server.due_mono_s:
                server.asked = True
                question = partial(_timed_request, self._is_alive, pid, server.path)
                self._worker.submit(question, partial(self._store_answer, pid))
        return self._changed

    def close(self) -> None:
        """End the thread, once its question has run out; that is not waited for."""
        self._worker.close()

    def _store_answer(
        self, pid: int, answer: tuple[_SessionsByKernel | None, float] | None, _: Exception | None
    ) -> None:
        server = self._servers.get(pid)
        if server is None:
            return
        sessions, took_s = answer or (None, 0.0)
        server.asked = False
        if sessions is None:  # refused or silent: what was known stays
            server.failures += 1
            pause_s = min(_SILENT_S * (1 << min(server.failures, 8)), _SILENT_EVERY_S)
        else:
            server.failures = 0
            pause_s = min(max(_EVERY_S, _COST_FACTOR * took_s), _SLOW_EVERY_S)
            self._changed |= sessions != server.sessions
            server.sessions = sessions
        server.due_mono_s = self._now_mono_s + pause_s

    def _find_server(self, pid: int, connection_file: str | None) -> bool:
        """Whether this process has described itself as a server."""
        if connection_file is None:
            return False
        # A server writes both into the runtime folder of its user.
        folder = os.path.dirname(connection_file)
        for name in (f"jpserver-{pid}.json", f"nbserver-{pid}.json"):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                self._servers[pid] = _Server(path)
                return True
        return False


def _timed_request(
    is_alive: Callable[[int], bool], pid: int, path: str
) -> tuple[_SessionsByKernel | None, float]:
    """In the thread: what a server says, None: nothing to us; and how long that took."""
    began_s = time.monotonic()
    sessions = None
    # The file of a server that was killed stays behind, and its port is free for anyone.
    if is_alive(pid):
        with suppress(SensorError):  # the other sources have to do
            sessions = request_sessions(path, _TIMEOUT_S)
    return sessions, time.monotonic() - began_s


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a Jupyter server wrote into its runtime folder."""

    url: str
    root_dir: str
    token: str = field(repr=False)  # never shown, never logged


def parse_server_info(data: bytes) -> ServerInfo | None:
    """A jpserver-PID.json or nbserver-PID.json; None: not such a file."""
    content = read_json(data)
    if not isinstance(content, dict) or not isinstance(content.get("url"), str):
        return None

    texts = {name: value for name, value in content.items() if isinstance(value, str)}
    return ServerInfo(
        url=texts["url"],
        root_dir=texts.get("root_dir", texts.get("notebook_dir", "")),
        token=texts.get("token", ""),
    )


def parse_sessions(data: bytes, root_dir: str) -> dict[str, tuple[Session, ...]]:
    """
    Sessions by kernel id, of GET /api/sessions; entries that make no sense are left out.

    So are those of more kernels, and more of one kernel, than anybody has.

    Args:
        data: the body.
        root_dir: folder that the paths are relative to; '' when it is not known.
    """
    content = read_json(data)
    found: dict[str, list[Session]] = {}
    for entry in content if isinstance(content, list) else []:
        kernel = _parse_kernel_id(entry) if isinstance(entry, dict) else None
        if kernel is None:
            continue
        before = found.get(kernel, ())
        if len(before) >= _MAX_SESSIONS or (not before and len(found) >= _MAX_KERNELS):
            continue
        document = _parse_session(entry, root_dir)
        if document is not None:
            found.setdefault(kernel, []).append(document)
    return {kernel: tuple(documents) for kernel, documents in found.items()}


def _parse_kernel_id(entry: dict[str, Any]) -> str | None:
    kernel = entry.get("kernel")
    return valid_name(kernel.get("id")) if isinstance(kernel, dict) else None


def _parse_session(entry: dict[str, Any], root_dir: str) -> Session | None:
    path = valid_name(entry.get("path"))
    if path is None and isinstance(entry.get("notebook"), dict):
        path = valid_name(entry["notebook"].get("path"))
    if path is None:
        return None
    kind = entry.get("type") if isinstance(entry.get("type"), str) else None
    if kind == "console":
        return make_session(valid_name(entry.get("name")) or path, kind)
    path = VSCODE_SUFFIX.sub("", _DRIVE.sub("", path))
    return make_session(os.path.join(root_dir, path), kind)


def request_sessions(info_path: str, timeout_s: float) -> dict[str, tuple[Session, ...]]:
    """
    Sessions by kernel id, from the server that wrote this file. Blocks, so call it off the loop.

    Args:
        info_path: jpserver-PID.json.
        timeout_s: for all of it.

    Raises:
        SensorError: the file is unreadable, or the server does not answer in time or refuses us;
            the message never holds the token.
    """
    info = parse_server_info(read_regular(info_path))
    if info is None:
        raise Unsupported(f"{info_path} is no description of a Jupyter server")
    if not (info.token.isascii() and info.token.isprintable()):
        raise Unsupported(f"{info_path} holds a token that fits into no header")
    try:
        # Root may read the token anyway; whoever has the port of a server that has ended may not.
        answer = _request_sessions(info, timeout_s, frozenset((os.stat(info_path).st_uid, 0)))
    except (OSError, ValueError) as error:
        raise Unsupported(f"the Jupyter server of {info_path} does not answer: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if status is None:
        raise Unsupported(f"the Jupyter server of {info_path} does not speak HTTP")
    if status[1] in (b"401", b"403"):
        raise Denied(f"the Jupyter server of {info_path} lets nobody in by token")
    if status[1] != b"200":
        raise Unsupported(f"the Jupyter server of {info_path} answers {status[1].decode()}")
    return parse_sessions(body, info.root_dir)


def _request_sessions(info: ServerInfo, timeout_s: float, uids: frozenset[int]) -> bytes:
    """The whole answer to GET /api/sessions, of a server of these users alone."""
    from urllib.parse import urlsplit

    deadline = time.monotonic() + timeout_s
    url = urlsplit(info.url)
    if url.scheme not in ("http", "https"):
        raise ValueError(f"it is reached by {url.scheme}")
    path = url.path if url.path.endswith("/") else f"{url.path}/"
    connection = _connect(
        url.hostname or "", url.port or (443 if url.scheme == "https" else 80), timeout_s
    )
    try:
        if _is_owned_by(connection, uids) is False:
            raise OSError("another user has its port by now")
        if url.scheme == "https":
            connection = _wrap_tls(connection)
        connection.sendall(
            f"GET {path}api/sessions?no_track_activity=1 HTTP/1.0\r\n"
            "Host: localhost\r\n"
            f"Authorization: token {info.token}\r\n"
            "Accept: application/json\r\n\r\n".encode("ascii")
        )
        data = bytearray()
        while len(data) < _ANSWER_LIMIT:
            # A server that sends a byte a second must not hold us for ever.
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer within {timeout_s:g} s")
            connection.settimeout(left_s)
            chunk = connection.recv(1 << 16)
            if not chunk:
                return bytes(data)
            data += chunk
        raise ValueError("the answer is too long")
    finally:
        connection.close()


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """
    Connect to a server of this machine.

    Args:
        host: name or address that it gives itself.
        port: of TCP.
        timeout_s: to connect.
    """
    # One that listens on all addresses names its host. The token goes to this machine alone.
    own = host in ("::1", "localhost") or host.startswith("127.") or _is_local(host)
    return socket.create_connection((host if own else "127.0.0.1", port), timeout=timeout_s)


def _is_local(address: str) -> bool:
    """Whether a numeric address belongs to this machine: nothing is sent, no name is looked up."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.inet_pton(family, address)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return address not in ("0.0.0.0", "::")  # noqa: S104 - compared, never bound


def _wrap_tls(connection: socket.socket) -> socket.socket:
    import ssl

    # Jupyter's certificates are mostly signed by their owner; the peer is this very machine.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def _is_owned_by(connection: socket.socket, uids: frozenset[int]) -> bool | None:
    """
    Whether all who listen behind a connection are these users; None: this system does not say.

    Args:
        connection: it is established, within this machine.
        uids: the users who may listen.
    """
    owners = _listener_uids(int(connection.getpeername()[1]))
    # Nobody: it was led on by the kernel, to another network namespace or out of this machine.
    return None if owners is None else bool(owners) and owners <= uids


def _listener_uids(port: int) -> set[int] | None:
    """Users whose sockets listen on a TCP port, at whatever address; None: it is not listed."""
    found: set[int] | None = None
    ending = b":%04X" % port
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{table}", "rb") as file:
                next(file, None)  # its heading
                found = set() if found is None else found
                for line in file:
                    fields = line.split(None, 8)
                    if fields[3] != _LISTENING:
                        break  # those that listen come first: a busy server has thousands more
                    if fields[1].endswith(ending):
                        found.add(int(fields[7]))
        except (OSError, LookupError, ValueError):
            continue
    return found
