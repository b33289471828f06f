"""
A real Jupyter server with real kernels, driven over REST and websockets as a browser does.

It writes all files into one folder; `close` ends it and its kernels.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import websocket
from support.waiting import until

PATIENCE_S = 120.0
EMPTY = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


class JupyterServer:
    """
    One server in a folder: `root` holds the notebooks, `runtime` the server's description.

    Args:
        folder: for this server alone.
        options: extra command line options; the defaults separate it from the user's servers.
        runtime: a folder that several servers share; None: inside `folder`.
        env: of the server and its kernels.
        password: required for access; None: the token in the description, if any.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        runtime: Path | None = None,
        env: Mapping[str, str] | None = None,
        password: str | None = None,
    ) -> None:
        self.root = folder / "root"
        self.runtime = runtime or folder / "runtime"
        for path in (self.root, self.runtime):
            path.mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            **(env or {}),
        }
        self.env.pop("JPY_SESSION_NAME", None)
        self._password = password
        self._headers: dict[str, str] = {}
        self.kernels: list[Kernel] = []
        self._log_path = folder / "server.log"
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "jupyter_server", "--no-browser", "--allow-root"),
                    "--port=0",
                    f"--ServerApp.root_dir={self.root}",
                    *options,
                ],
                env=self.env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.about: dict[str, Any] = {}

    @property
    def token(self) -> str:
        """Return the access token; '' if the server has none or needs none."""
        return str(self.about["token"])

    def log(self) -> str:
        """Return the server's log."""
        return self._log_path.read_text(errors="replace")

    def wait(self) -> JupyterServer:
        """Wait until the server answers."""
        description = self.runtime / f"jpserver-{self.process.pid}.json"
        try:
            until(
                lambda: description.exists() and description.read_text(),
                "it is described",
                PATIENCE_S,
            )
            self.about = json.loads(description.read_text())
            until(self._answers, "it answers", PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-3000:]}") from None
        if self._password is not None:
            self._log_in(self._password)
        elif self.token:
            self._headers = {"Authorization": f"token {self.token}"}
        return self

    def notebook(self, name: str, cells: tuple[str, ...] = ()) -> Path:
        """Create a notebook file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        code = [
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {},
                "outputs": [],
                "execution_count": None,
                "source": source,
            }
            for number, source in enumerate(cells)
        ]
        path.write_text(json.dumps({**EMPTY, "cells": code}))
        return path

    def open(self, name: str, kernel: str = "python3") -> Kernel:
        """Open a notebook as JupyterLab does: a session with its own kernel."""
        if not (self.root / name).exists():
            self.notebook(name)
        session = self.rest(
            "POST",
            "api/sessions",
            {"path": name, "name": name, "type": "notebook", "kernel": {"name": kernel}},
        )
        found = Kernel(self, session["kernel"]["id"], session["id"])
        self.kernels.append(found)
        return found

    def rename(self, kernel: Kernel, old: str, new: str) -> None:
        """Rename a notebook as JupyterLab does: the file, and then the session."""
        self.rest("PATCH", f"api/contents/{old}", {"path": new})
        self.rest(
            "PATCH",
            f"api/sessions/{kernel.session}",
            {"path": new, "name": new, "type": "notebook"},
        )

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """Send one request; return the answer."""
        status, _, data = self._request(
            method, path, None if body is None else json.dumps(body), {}
        )
        if status >= 300:
            raise AssertionError(f"{method} {path}: {status} {data[:500]!r}")
        return json.loads(data) if data else None

    def socket(self, path: str) -> websocket.WebSocket:
        """Open a websocket to the server."""
        url = urlsplit(self.about["url"])
        return websocket.create_connection(
            f"ws://{self._host}:{self.about['port']}{url.path}{path}",
            header=[f"{name}: {value}" for name, value in self._headers.items()],
            timeout=90,
        )

    @property
    def _host(self) -> str:
        host = urlsplit(self.about["url"]).hostname or ""
        return host if host.replace(".", "").isdigit() else "127.0.0.1"

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError("it has ended")
        try:
            return self._request("GET", "api", None, {})[0] < 500
        except OSError:
            return False

    def _request(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> tuple[int, list[str], bytes]:
        url = urlsplit(self.about["url"])
        connection = http.client.HTTPConnection(self._host, self.about["port"], timeout=90)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request(
                method, f"{url.path.rstrip('/')}/{path}", body, {**kind, **self._headers, **headers}
            )
            answer = connection.getresponse()
            cookies = answer.headers.get_all("Set-Cookie") or []
            return answer.status, [one.split(";")[0] for one in cookies], answer.read()
        finally:
            connection.close()

    def _log_in(self, password: str) -> None:
        _, cookies, _ = self._request("GET", "login", None, {})
        xsrf = next(one.split("=", 1)[1] for one in cookies if one.startswith("_xsrf="))
        form = urlencode({"password": password, "_xsrf": xsrf})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        _, granted, _ = self._request("POST", "login", form, {**kind, "Cookie": "; ".join(cookies)})
        self._headers = {"Cookie": "; ".join([*cookies, *granted]), "X-XSRFToken": xsrf}

    def end(self) -> None:
        """Ask the server to end; `close` waits for it. Several servers can end in parallel."""
        for kernel in self.kernels:
            kernel.close()
        if self.process.poll() is None:
            self.process.terminate()

    def close(self) -> None:
        """End the server and its kernels."""
        self.end()
        if self.process.poll() is None:
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Kernel:
    """One kernel of a server over its websocket, as an open notebook uses it."""

    def __init__(self, server: JupyterServer, id_: str, session: str) -> None:
        self.id = id_
        self.session = session
        self._server = server
        self._socket: websocket.WebSocket | None = None
        self._seen: list[dict[str, Any]] = []

    @property
    def connection_file(self) -> Path:
        """Return the connection file, which holds the key of the kernel's sockets."""
        return self._server.runtime / f"kernel-{self.id}.json"

    @property
    def state(self) -> str:
        """Return the server's view: idle, busy, starting, restarting or dead."""
        return str(self._server.rest("GET", f"api/kernels/{self.id}")["execution_state"])

    def pid(self) -> int:
        """Run a cell that returns the PID of the current process."""
        return int(self.run("import os; print(os.getpid())"))

    def begin(self, code: str) -> str:
        """Start a cell; return the id that `finish` waits for."""
        message = uuid.uuid4().hex
        header = {
            "msg_id": message,
            "msg_type": "execute_request",
            "session": self.session,
            "username": "",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        self._send(
            {
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": content,
                "channel": "shell",
                "buffers": [],
            }
        )
        return message

    def finish(self, message: str, timeout_s: float = PATIENCE_S) -> str:
        """Return the cell's output, its error included."""
        text = ""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            found = self._receive(end - time.monotonic())
            if found is None or found.get("parent_header", {}).get("msg_id") != message:
                continue
            kind, content = found["msg_type"], found["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                text += "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return text
        raise AssertionError(f"the cell did not end within {timeout_s} s:\n{text[-2000:]}")

    def run(self, code: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a cell to its end."""
        return self.finish(self.begin(code), timeout_s)

    def restart(self) -> None:
        """Restart the kernel as the button does."""
        self.close()
        self._server.rest("POST", f"api/kernels/{self.id}/restart")

    def reconnect(self) -> None:
        """Reconnect after a restart, without waiting for requests to the old process."""
        self.close()

    def close(self) -> None:
        """Disconnect from the kernel, as a closed tab does."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> websocket.WebSocket:
        if self._socket is None:
            path = f"api/kernels/{self.id}/channels?session_id={self.session}"
            self._socket = self._server.socket(path)
        return self._socket

    def _send(self, message: dict[str, Any]) -> None:
        self._open().send(json.dumps(message))

    def listen(self) -> None:
        """Store messages for `finish`. A server closes a connection that answers no pings."""
        while (found := self._read(0.05)) is not None:
            self._seen.append(found)

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        return self._seen.pop(0) if self._seen else self._read(timeout_s)

    def _read(self, timeout_s: float) -> dict[str, Any] | None:
        connection = self._open()
        connection.settimeout(max(0.05, min(timeout_s, 1.0)))
        try:
            return dict(json.loads(connection.recv()))
        except websocket.WebSocketTimeoutException:
            return None
