"""
Which documents the kernels of this user's Jupyter servers serve, according to the servers.

The sampling loop never waits for a server: a thread sends the request, and a later sample collects
the answer. Each server gets a request every 3 s at most, and fewer if it is slow or silent.

The request is hand-written HTTP/1.0, because http.client would cost the daemon 3 MB. It goes to
this machine only. It does not count as activity, so a server that ends itself when idle still does.
After a server has ended, any program may take its port. So the token is sent only if the server's
user or root owns the port.

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
from dataclasses import field, replace
from functools import partial
from typing import Any

from watchdog_app.base.errors import Denied, SensorError, Unsupported
from watchdog_app.base.jupyter import VSCODE_SUFFIX
from watchdog_app.base.linux.files import read_regular
from watchdog_app.base.records import dataclass
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.machine import ProcessInfo
from watchdog_app.machine.sensors.notebooks import (
    KernelFacts,
    Session,
    make_session,
    name_kernel,
    read_json,
    valid_name,
)

_EVERY_S = 3.0
_COST_FACTOR = 300.0  # after an answer that took 20 ms, the next request follows 6 s later
_SLOW_EVERY_S = 30.0  # upper limit of the interval, however long an answer takes
_SILENT_S = 10.0  # pause after a missing answer; doubles with each further one
_SILENT_EVERY_S = 300.0  # upper limit of the pause while a server does not answer
_TIMEOUT_S = 2.0
# Enough for thousands of sessions. Python parses JSON without releasing the GIL, so the sampling
# loop waits: 16 ms for 1 MiB, 60 ms for 4 MiB.
_ANSWER_LIMIT = 1 << 20
# More than any user has open. A server that lists more is broken, and each kernel costs time at
# every sample.
_MAX_KERNELS = 500
_MAX_SESSIONS = 100  # of one kernel
# JupyterLab writes a shared document as DRIVE:PATH.
_DRIVE = re.compile(r"^[A-Za-z]{2,}:(?!/)")
# urllib.parse would cost the daemon 0.3 MB.
_URL = re.compile(
    r"(?P<scheme>https?)://(?:[^/?#@]*@)?(?P<host>\[[^]/]+\]|[^]/?#@:\[]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#\s]*)?(?:[?#].*)?"
)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LISTENING = b"0A"  # state of a listening socket in /proc/net/tcp

_SessionsByKernel = dict[str, tuple[Session, ...]]


@dataclass(slots=True)
class _Server:
    """What watchdog knows of one server."""

    path: str
    due_mono_s: float = 0.0
    asked: bool = False  # a request is running
    failures: int = 0
    sessions: _SessionsByKernel = field(default_factory=dict)


class JupyterServers:
    """
    The sessions of each kernel, as the Jupyter servers last listed them.

    Args:
        is_alive: whether a pid is in use; checked before a server's token is used.
    """

    def __init__(self, is_alive: Callable[[int], bool]) -> None:
        self._is_alive = is_alive
        self._servers: dict[int, _Server] = {}  # by pid
        self._worker = Worker()
        self._now_mono_s = 0.0
        self._changed = False  # whether an answer collected at this sample changed a session

    def find_sessions(self, kernel_id: str | None) -> Sequence[Session]:
        """Return the documents of a kernel, as its server last said; empty: unknown."""
        for server in self._servers.values():
            if kernel_id is not None and kernel_id in server.sessions:
                return server.sessions[kernel_id]
        return ()

    def with_current_name(self, info: ProcessInfo, facts: KernelFacts | None) -> ProcessInfo:
        """
        Return a process under its current name; only names of kernels change.

        Args:
            info: of the process.
            facts: facts about its name; None: not a kernel.
        """
        if facts is None:
            return info
        found = name_kernel(
            self.find_sessions(info.kernel_id),
            # A kernel that papermill starts inside a notebook inherits that notebook's environment.
            # The command line that started it is more reliable.
            None if facts.parent_notebooks or facts.console else facts.session_name,
            facts.parent_notebooks,
            info.cwd,
            facts.console,
        )
        return replace(
            info,
            kind=found.kind,
            name=found.name,
            notebook=found.notebook,
            other_notebooks=found.others,
        )

    def poll(self, kernels: Iterable[KernelFacts], now_mono_s: float) -> bool:
        """
        Collect the answers and send the requests that are due. Never waits.

        Args:
            kernels: all kernels on this machine.
            now_mono_s: monotonic time of the sample.

        Returns:
            Whether the name of a kernel may have changed.
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
            del self._servers[pid]  # its kernels have ended
        for pid, server in self._servers.items():
            if not server.asked and now_mono_s >= server.due_mono_s:
                server.asked = True
                question = partial(_timed_request, self._is_alive, pid, server.path)
                self._worker.submit(question, partial(self._store_answer, pid))
        return self._changed

    def close(self) -> None:
        """End the thread after its current request, without waiting for it."""
        self._worker.close()

    def _store_answer(
        self, pid: int, answer: tuple[_SessionsByKernel | None, float] | None, _: Exception | None
    ) -> None:
        server = self._servers.get(pid)
        if server is None:
            return
        sessions, took_s = answer or (None, 0.0)
        server.asked = False
        if sessions is None:  # refused or silent: keep the known sessions
            server.failures += 1
            pause_s = min(_SILENT_S * (1 << min(server.failures, 8)), _SILENT_EVERY_S)
        else:
            server.failures = 0
            pause_s = min(max(_EVERY_S, _COST_FACTOR * took_s), _SLOW_EVERY_S)
            self._changed |= sessions != server.sessions
            server.sessions = sessions
        server.due_mono_s = self._now_mono_s + pause_s

    def _find_server(self, pid: int, connection_file: str | None) -> bool:
        """
        Register a process as a server if it wrote a server description; return whether it did.
        """
        if connection_file is None:
            return False
        # A server writes its own description and the connection files into its user's runtime
        # folder.
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
    """
    Ask a server for its sessions, in the thread; None: refused or silent. Also return seconds.
    """
    began_s = time.monotonic()
    sessions = None
    # The description of a killed server stays behind, and any program may take its port.
    if is_alive(pid):
        with suppress(SensorError):  # the other sources of a kernel's name remain
            sessions = request_sessions(path, _TIMEOUT_S)
    return sessions, time.monotonic() - began_s


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The description that a Jupyter server wrote into its runtime folder."""

    url: str
    root_dir: str
    token: str = field(repr=False)  # never shown or logged


def parse_server_info(data: bytes) -> ServerInfo | None:
    """Parse a jpserver-PID.json or nbserver-PID.json; None: not such a file."""
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
    Parse the sessions by kernel id from GET /api/sessions, without malformed entries.

    Entries beyond 500 kernels, or beyond 100 sessions of one kernel, are dropped too.

    Args:
        data: the body.
        root_dir: folder that the paths are relative to; '' if unknown.
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
    Request the sessions by kernel id from the server that wrote this file. Blocks: call in a
    thread.

    Args:
        info_path: path of jpserver-PID.json.
        timeout_s: for the whole request.

    Raises:
        SensorError: the file is unreadable, or the server refuses or does not answer in time. The
            message never holds the token.
    """
    info = parse_server_info(read_regular(info_path))
    if info is None:
        raise Unsupported(f"{info_path} is no description of a Jupyter server")
    if not (info.token.isascii() and info.token.isprintable()):
        raise Unsupported(f"{info_path} holds a token that fits into no header")
    try:
        # Root may read the token anyway. Another user who took the port of an ended server may not.
        answer = _request_sessions(info, timeout_s, frozenset((os.stat(info_path).st_uid, 0)))
    except (OSError, ValueError, OverflowError) as error:  # a port above 65535 overflows
        raise Unsupported(f"the Jupyter server of {info_path} does not answer: {error}") from error
    head, _, body = answer.partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if status is None:
        raise Unsupported(f"the Jupyter server of {info_path} does not speak HTTP")
    if status[1] in (b"401", b"403"):
        raise Denied(f"the Jupyter server of {info_path} does not accept its token")
    if status[1] != b"200":
        raise Unsupported(f"the Jupyter server of {info_path} answers {status[1].decode()}")
    return parse_sessions(body, info.root_dir)


def _request_sessions(info: ServerInfo, timeout_s: float, uids: frozenset[int]) -> bytes:
    """Read the whole answer to GET /api/sessions, only from a server that one of `uids` owns."""
    deadline = time.monotonic() + timeout_s
    url = _URL.fullmatch(info.url)
    if url is None:
        raise ValueError("its description has no HTTP address")
    path = f"{(url['path'] or '').removesuffix('/')}/"
    encrypted = url["scheme"] == "https"
    port = int(url["port"] or (443 if encrypted else 80))
    connection = _connect(url["host"].strip("[]"), port, timeout_s)
    try:
        if _is_owned_by(connection, uids) is False:
            raise OSError("another user has its port by now")
        if encrypted:
            connection = _wrap_tls(connection)
        connection.sendall(
            f"GET {path}api/sessions?no_track_activity=1 HTTP/1.0\r\n"
            "Host: localhost\r\n"
            f"Authorization: token {info.token}\r\n"
            "Accept: application/json\r\n\r\n".encode("ascii")
        )
        data = bytearray()
        while len(data) < _ANSWER_LIMIT:
            # A server that sends one byte a second must not block this thread for ever.
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
    Connect to a server on this machine.

    Args:
        host: name or address in the server's own description.
        port: TCP port.
        timeout_s: to connect.
    """
    # A server that listens on all addresses gives its host name. Connect to loopback then: the
    # token goes to this machine only.
    own = host in ("::1", "localhost") or host.startswith("127.") or _is_local(host)
    return socket.create_connection((host if own else "127.0.0.1", port), timeout=timeout_s)


def _is_local(address: str) -> bool:
    """Return whether a numeric address belongs to this machine, without sending or resolving."""
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

    # Jupyter's certificates are mostly self-signed, and the peer is this machine.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)


def _is_owned_by(connection: socket.socket, uids: frozenset[int]) -> bool | None:
    """
    Return whether only these users listen on the port of a connection; None: unknown here.

    Args:
        connection: established, within this machine.
        uids: users that may listen.
    """
    owners = _listener_uids(int(connection.getpeername()[1]))
    # An empty set means that the kernel forwards the port to another network namespace or machine.
    return None if owners is None else bool(owners) and owners <= uids


def _listener_uids(port: int) -> set[int] | None:
    """List the users whose sockets listen on a TCP port, at any address; None: not readable."""
    found: set[int] | None = None
    ending = b":%04X" % port
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{table}", "rb") as file:
                next(file, None)  # skip the heading
                found = set() if found is None else found
                for line in file:
                    fields = line.split(None, 8)
                    if fields[3] != _LISTENING:
                        break  # listening sockets come first: a busy server has thousands of others
                    if fields[1].endswith(ending):
                        found.add(int(fields[7]))
        except (OSError, LookupError, ValueError):
            continue
    return found
