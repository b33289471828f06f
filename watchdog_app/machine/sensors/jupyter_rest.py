"""
One question to a Jupyter server: which documents do your kernels serve?

A small HTTP/1.0 request by hand: http.client would cost the daemon 3 MB. The
server is asked only on this machine, and not to count the question as activity,
so that a server which ends itself when idle still does.

Sources: jupyter_server, `serverapp.py` (server_info), `services/sessions`.
"""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.errors import Denied, Unsupported
from watchdog_app.base.linux.files import read_regular
from watchdog_app.machine.sensors import listeners
from watchdog_app.machine.sensors.notebooks import Session, read_json, session_of, text_of

# Thousands of sessions. JSON is taken apart in one turn, and looks wait: 16 ms, with 4 MiB 60 ms.
_ANSWER_LIMIT = 1 << 20
# More than anybody has open; a server that says so is broken, and each of them costs at every look.
_MOST_KERNELS = 500
_MOST_SESSIONS = 100  # of one kernel
# VS Code, connected to a Jupyter server, names its sessions after the notebook and a number.
_VSCODE_SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{32,}(?=\.ipynb$)")
# A shared document of JupyterLab: the drive stands before the path.
_DRIVE = re.compile(r"^[A-Za-z]{2,}:(?!/)")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a Jupyter server wrote into its runtime folder."""

    url: str
    hostname: str
    sock: str  # path of its Unix socket, or ''
    root_dir: str
    token: str = field(repr=False)  # never shown, never logged


def parse_server_info(data: bytes) -> ServerInfo | None:
    """A jpserver-PID.json or nbserver-PID.json; None: not such a file."""
    content = read_json(data)
    if not isinstance(content, dict) or not isinstance(content.get("url"), str):
        return None

    def text(*names: str) -> str:
        found = next((content[name] for name in names if isinstance(content.get(name), str)), "")
        return str(found)

    return ServerInfo(
        url=content["url"],
        hostname=text("hostname"),
        sock=text("sock"),
        root_dir=text("root_dir", "notebook_dir"),
        token=text("token"),
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
        kernel = _kernel(entry) if isinstance(entry, dict) else None
        if kernel is None:
            continue
        before = found.get(kernel, ())
        if len(before) >= _MOST_SESSIONS or (not before and len(found) >= _MOST_KERNELS):
            continue
        document = _document(entry, root_dir)
        if document is not None:
            found.setdefault(kernel, []).append(document)
    return {kernel: tuple(documents) for kernel, documents in found.items()}


def _kernel(entry: dict[str, Any]) -> str | None:
    kernel = entry.get("kernel")
    return text_of(kernel.get("id")) if isinstance(kernel, dict) else None


def _document(entry: dict[str, Any], root_dir: str) -> Session | None:
    path = text_of(entry.get("path"))
    if path is None and isinstance(entry.get("notebook"), dict):
        path = text_of(entry["notebook"].get("path"))
    if path is None:
        return None
    kind = entry.get("type") if isinstance(entry.get("type"), str) else None
    if kind == "console":
        return session_of(text_of(entry.get("name")) or path, kind)
    path = _VSCODE_SUFFIX.sub("", _DRIVE.sub("", path))
    return session_of(os.path.join(root_dir, path), kind)


def ask(info_path: str, timeout_s: float) -> dict[str, tuple[Session, ...]]:
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
        answer = _get(info, timeout_s, frozenset((os.stat(info_path).st_uid, 0)))
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


def _get(info: ServerInfo, timeout_s: float, uids: frozenset[int]) -> bytes:
    """The whole answer to GET /api/sessions, of a server of these users alone."""
    from urllib.parse import unquote, urlsplit

    deadline = time.monotonic() + timeout_s
    url = urlsplit(info.url)
    path = url.path if url.path.endswith("/") else f"{url.path}/"
    secure = url.scheme == "https"
    connection = _connect(
        info.sock or _socket_path(unquote(url.netloc), url.scheme), info, timeout_s
    )
    try:
        if listeners.is_of(connection, uids) is False:
            raise OSError("another user has its port by now")
        if secure:
            connection = _encrypted(connection)
        connection.sendall(
            f"GET {path}api/sessions?no_track_activity=1 HTTP/1.0\r\n"
            "Host: localhost\r\n"
            f"Authorization: token {info.token}\r\n"
            "Accept: application/json\r\n\r\n".encode("ascii")
        )
        chunks: list[bytes] = []
        size = 0
        while size < _ANSWER_LIMIT:
            # A server that sends a byte a second must not hold us for ever.
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer within {timeout_s:g} s")
            connection.settimeout(left_s)
            chunk = connection.recv(1 << 16)
            if not chunk:
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
        raise ValueError("the answer is too long")
    finally:
        connection.close()


def _socket_path(netloc: str, scheme: str) -> str:
    return netloc if scheme == "http+unix" else ""


def _connect(path: str, info: ServerInfo, timeout_s: float) -> socket.socket:
    from urllib.parse import urlsplit

    if path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(path)
        except OSError:
            connection.close()
            raise
        return connection
    url = urlsplit(info.url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    addresses = [host]
    if host not in ("::1", "localhost") and not host.startswith("127."):
        # One that listens on all addresses names its host; one that listens on a single address
        # is asked there, if the address is this machine's: the token goes nowhere else.
        addresses = [host] if _is_local(host) else ["127.0.0.1", *_own_addresses(host)]
    for number, address in enumerate(addresses, start=1):
        try:
            return socket.create_connection((address, port), timeout=timeout_s)
        except ConnectionRefusedError:
            if number == len(addresses):
                raise
    raise AssertionError("unreachable")  # there is always an address


def _own_addresses(host: str) -> list[str]:
    """Addresses of this machine under its own name (`--ip=$(hostname)`); no other is looked up."""
    if not host or host.lower() != socket.gethostname().lower():
        return []
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [
        address
        for address in dict.fromkeys(str(each[4][0]) for each in found)
        if address != "127.0.0.1" and _is_local(address)
    ]


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


def _encrypted(connection: socket.socket) -> socket.socket:
    import ssl

    # Jupyter's certificates are mostly signed by their owner; the peer is this very machine.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)
