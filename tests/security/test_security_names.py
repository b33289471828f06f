"""Hostile names and users' secrets on every output of watchdog."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from watchdog_app.base.errors import WatchdogError
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify.command import CommandChannel
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.machine.sensors.jupyter import parse_server_info, request_sessions

SECRET = "s3cr3t0123456789abcdefs3cr3t"
# Colours, a window title, a line break, right-to-left text, markup, SQL and a shell command.
NAME = "--a\x1b[31m\x1b]0;x\x07\n\u202egnp<b>&'\";%_$(touch pwned)`.py"


def test_a_hostile_name_changes_nothing_on_any_way_out(world):
    """The test reads status, text, history and log of a real process with that name."""
    client = world.start()
    pid = world.script("import time\ntime.sleep(60)\n", NAME)
    task = world.seen(pid)
    client.call("task.pause", task=str(pid))

    done = [
        world.command(*words, columns=200)
        for words in (["status"], ["history"], ["explain", str(pid)])
    ]
    text = "".join(each.stdout for each in done)

    assert [0, 0, 0] == [each.returncode for each in done]
    assert NAME == os.path.basename(task["script"])  # programs get the name unchanged
    assert "--a?[31m?]0;x?" in text
    for shown in (text, world.log()):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert not list(Path(world.folder).rglob("pwned"))
    assert [] == client.call("history", task="%%%")["entries"]


def test_a_name_with_a_line_end_makes_no_line(world):
    """The test reads tables, sentences, errors, candidate lists and the history."""
    world.start()
    pid = str(world.sleeper("a\nFORGED 4711 all is well\n.py"))

    done = [
        world.command(*words, columns=300)
        for words in (
            ("pause", "nobody"), ("leaks", pid), ("stacks", pid), ("pause", pid), ("pause", pid),
            ("status", "--all"), ("explain", pid), ("history",),
        )
    ]  # fmt: skip
    lines = [line.strip() for each in done for line in (each.stdout + each.stderr).splitlines()]

    assert not any("Traceback" in line for line in lines)
    assert any("FORGED" in line for line in lines)
    assert not any(line.startswith("FORGED") for line in lines)


@pytest.mark.parametrize("wanted", ["%", "_", "a%", "' OR 1=1 --", "\x00", "\ud800"])
def test_signs_that_sql_knows_are_letters(tmp_path, wanted):
    """A search takes the name literally: no wildcard, no closing quote."""
    with closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        journal.add([Entry(1.0, "exit", {"n": 1}, 7, "plain.py", "/x/plain.py")])
        journal.add([Entry(2.0, "exit", {"n": 2}, 8, f"b{wanted}.py", f"/x/b{wanted}.py")])

        found = [entry["n"] for entry in journal.history(task=f"b{wanted}")]

        assert found in ([2], [] if "\x00" in wanted else [2])
        assert [] == journal.history(task=f"c{wanted}")


def test_the_users_command_gets_names_as_data_alone(tmp_path):
    """
    They arrive on standard input and in variables.

    The configuration alone defines the arguments.
    """
    out = tmp_path / "out"
    code = "import json,os,sys;json.dump([sys.argv[2:],sys.stdin.read(),os.environ['WATCHDOG_TITLE']],open(sys.argv[1],'w'))"  # noqa: E501
    hostile = Notification(id="n", incident="i", stage="warn", urgency="low", title=NAME,
                     body=NAME, task=1, unix_s=1.0)  # fmt: skip

    told = CommandChannel([sys.executable, "-c", code, str(out), "$WATCHDOG_TITLE"]).send(hostile)

    assert told.delivered, told.detail
    argv, stdin, title = json.loads(out.read_text())
    assert ["$WATCHDOG_TITLE"] == argv
    assert (NAME, NAME) == (json.loads(stdin)["title"], title)


# Jupyter's tokens


def test_a_token_is_in_no_text_of_a_description():
    """A description must not show or log it by accident."""
    found = parse_server_info(json.dumps({"url": "http://localhost:1/", "token": SECRET}).encode())
    assert SECRET == found.token
    assert SECRET not in f"{found!r} {found!s}"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 403 no", b"nonsense", b"HTTP/1.1 500 x"])
def test_a_token_is_in_no_error(tmp_path, answer):
    """
    The server refuses, answers nonsense or does not answer; the causes of the error count too.
    """
    with Server(tmp_path, answer) as server, pytest.raises(WatchdogError) as caught:
        request_sessions(server.info, 5)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!s} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_token_is_neither_stored_nor_logged_nor_told(world, tmp_path):
    """A daemon uses the token with a server and sees its kernel die; no output has the token."""
    kernel = "11111111-2222-3333-4444-555555555555"
    sessions = [{"path": "train.ipynb", "type": "notebook", "kernel": {"id": kernel}}]
    body = json.dumps(sessions).encode()
    runtime = tmp_path / "jupyter"
    runtime.mkdir()
    (runtime / f"kernel-{kernel}.json").write_text(json.dumps({"key": SECRET}))
    (tmp_path / "ipykernel_launcher.py").write_text("import time\ntime.sleep(60)\n")
    with Server(runtime, b"HTTP/1.1 200 OK\r\n\r\n" + body) as server:
        client = world.start(JUPYTER_RUNTIME_DIR=str(runtime))
        process = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", "-f",
             str(runtime / f"kernel-{kernel}.json"), f"--ServerApp.token={SECRET}"],
            cwd=tmp_path, env=world.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            world.until(
                lambda: (world.task(process.pid) or {}).get("name") == "train.ipynb", "it is named"
            )
            assert SECRET.encode() in server.heard
        finally:
            process.kill()
            process.wait()
        world.until(
            lambda: any(e["kind"] == "exit" for e in client.call("history")["entries"]),
            "it is told",
        )
        told = json.dumps([client.call("status"), client.call("history"), client.call("explain")])
        world.end()

    stored = b"".join(p.read_bytes() for p in Path(world.folder, "state").rglob("*") if p.is_file())
    assert SECRET not in told
    assert SECRET.encode() not in stored
    assert SECRET not in world.log()


class Server:
    """A Jupyter server in this process: its description in `folder`, one answer to all requests."""

    def __init__(self, folder: Path, answer: bytes) -> None:
        self.info = str(folder / f"jpserver-{os.getpid()}.json")
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        Path(self.info).write_text(
            json.dumps({"url": f"http://127.0.0.1:{port}/", "token": SECRET, "pid": os.getpid(),
                        "root_dir": str(folder), "hostname": "127.0.0.1", "port": port})
        )  # fmt: skip
        self._answer = answer
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    self.heard += connection.recv(65536)
                    connection.sendall(self._answer)
                except OSError:
                    time.sleep(0.01)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
