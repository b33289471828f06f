"""A real server of ntfy, and an HTTP server that answers as a test says."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.finished import finished
from support.prometheus import free_port, tool
from support.waiting import until

CONFIG = """
base-url: {url}
listen-http: {address}
auth-file: {folder}/auth.db
cache-file: {folder}/cache.db
auth-default-access: deny-all
visitor-request-limit-burst: 100000
"""
TOPIC = "alerts"


class Ntfy:
    """A server with a user whose token may read the topic, and the answers that everyone sends."""

    def __init__(self, folder: Path) -> None:
        self._program = tool("ntfy")
        self._folder = folder
        folder.mkdir(exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self._config = folder / "server.yml"
        self._config.write_text(CONFIG.format(url=self.url, address=address, folder=folder))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._admin("user", "add", "--role=user", "me")
        self._admin("access", "me", TOPIC, "rw")
        self._admin("access", "me", f"{TOPIC}-answers", "ro")
        self._admin("access", "everyone", f"{TOPIC}-answers", "wo")
        added = self._admin("token", "add", "me")
        self.token = re.search(r"tk_\w+", added)[0]  # type: ignore[index]

    def start(self) -> None:
        with open(self._folder / "log", "ab") as log:
            argv = [self._program, "serve", "-c", str(self._config)]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log)
        until(self._healthy, "the ntfy server answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def messages(self) -> list[dict[str, Any]]:
        """All notifications that the phone has got."""
        request = urllib.request.Request(f"{self.url}/{TOPIC}/json?poll=1")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=20) as response:
            lines = [json.loads(line) for line in response]
        return [each for each in lines if each["event"] == "message"]

    def wait_for(self, title: str) -> dict[str, Any]:
        """The first notification whose title contains these words."""
        return until(
            lambda: next((each for each in self.messages() if title in each["title"]), None),
            lambda: f"{title!r} is not in {[each['title'] for each in self.messages()]}",
            timeout_s=120,
            step_s=0.2,
        )

    @staticmethod
    def press(message: dict[str, Any], label: str) -> None:
        """Do what the app does when a person presses a button."""
        action = next(each for each in message["actions"] if each["label"] == label)
        assert "headers" not in action
        send(action["url"], action["body"])

    def _admin(self, *words: str) -> str:
        command, verb = words[0], words[1:]
        argv = [self._program, command, "-c", str(self._config), *verb]
        done = finished(argv, check=True, env={"NTFY_PASSWORD": "secret word"})
        return done.stdout + done.stderr

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False


def send(url: str, body: str) -> None:
    """Post a text without a token, as a button does."""
    with urllib.request.urlopen(url, body.encode(), timeout=20):
        pass


class Server:
    """
    An HTTP server that records requests.

    Args:
        answer: called with the handler after a request was read.
    """

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []  # path, headers, body
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.requests.append((self.path, dict(self.headers), body))
                answer(self)

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def answering(status: int, body: str, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer of `Server`."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body.encode())))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer
