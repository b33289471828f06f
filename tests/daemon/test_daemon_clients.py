"""What clients may do to the daemon, and what they receive."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from watchdog_app.base.errors import SEVERAL_FIT, RequestError, TaskNotFound, WatchdogError
from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.jsonrpc import MAX_LINE_BYTES

SLEEP = "import time\nwhile True:\n    time.sleep(0.1)\n"
DOCS = Path(__file__).parents[2] / "docs"


def answers(world) -> bool:
    """Whether a new client is served."""
    with world.connect() as client:
        return bool(client.call("status")["daemon"]["pid"])


def is_served(world) -> bool:
    """The same, if the daemon may refuse the client."""
    try:
        return answers(world)
    except WatchdogError:
        return False


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense\n", jsonrpc.PARSE_ERROR),
        (b"\xff\xfe\xfd\n", jsonrpc.PARSE_ERROR),
        (b"[" * 100_000 + b"\n", jsonrpc.PARSE_ERROR),
        (b"[]\n", jsonrpc.INVALID_REQUEST),
        (b'{"jsonrpc": "2.0"}\n', jsonrpc.INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "method": 5, "id": 1}\n', jsonrpc.INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "method": "status", "id": {}}\n', jsonrpc.INVALID_REQUEST),
        (b'{"jsonrpc": "2.0", "method": "no.such", "id": 1}\n', jsonrpc.METHOD_NOT_FOUND),
        (b'{"jsonrpc": "2.0", "method": "task.pause", "id": 1}\n', jsonrpc.INVALID_PARAMS),
    ],
    ids=lambda value: str(value)[:30],
)
def test_nonsense_is_answered_and_the_connection_lives(raw_standing, line, code):
    """Each has its error code, and the client's next request is served."""
    client = raw_standing()

    client.send(line)

    assert code == client.read()["error"]["code"]
    assert "result" in client.ask("status")


def test_a_line_of_ten_megabytes_ends_the_connection(world, raw):
    """The client receives the reason if it can; other clients are served."""
    world.start()
    client = raw()

    def send_and_read():
        for _ in range(20):
            client.send(b"x" * (MAX_LINE_BYTES // 2))
        while True:
            assert jsonrpc.INVALID_REQUEST == client.read()["error"]["code"]

    with pytest.raises((BrokenPipeError, ConnectionResetError, EOFError)):
        send_and_read()
    assert answers(world)


def test_a_client_that_reads_nothing_is_dropped(world, raw):
    """It sends requests and never reads; the daemon's memory stays bounded."""
    world.start()
    client = raw()
    client.socket.settimeout(5)
    request = b'{"jsonrpc": "2.0", "method": "config", "id": 1}\n' * 100
    before = world.connect().call("status")["daemon"]["rss_bytes"]

    def send():
        for _ in range(2000):
            client.send(request)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send()

    after = world.connect().call("status")["daemon"]["rss_bytes"]
    assert after - before < 30_000_000


def test_one_process_cannot_keep_others_out(world):
    """It still answers another process; there is room again when the others leave."""
    world.start()
    crowd = [transport.connect(world.socket, 10) for _ in range(600)]

    found = world.command("status")
    said = crowd[-1].recv(1000)
    for each in crowd:
        each.close()

    assert (0, "") == (found.returncode, found.stderr)
    assert b"holds 250 connections already" in said
    assert world.until(lambda: is_served(world), "there is room again")


FILL = """
import socket, sys, time
held = []
while True:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(20)
    line.connect(sys.argv[1])
    try:  # it may have been refused before it has said a word
        line.sendall(b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":2,"role":"cli"}}\\n')
        if b"result" not in line.recv(4096):
            break
    except OSError:
        break
    held.append(line)
print(len(held), flush=True)
time.sleep(600)
"""


def test_a_daemon_without_room_can_be_done_without(world):
    """Several processes take all connections: status says so, resume and stop still work."""
    pid = world.script(SLEEP)
    client = world.start(limit_files=80)
    world.seen(pid)
    client.call("task.pause", task=str(pid))
    crowd = []
    try:
        while not crowd or int(crowd[-1].stdout.readline()):
            crowd.append(subprocess.Popen(
                [sys.executable, "-c", FILL, world.socket], stdout=subprocess.PIPE,
            ))  # fmt: skip

        status = world.command("status")
        resumed = world.command("resume", "--all")
        world.until(lambda: world.state_letter(pid) in "SR", "it runs again")
        stopped = world.command("stop")
    finally:
        for each in crowd:
            each.kill()
            each.communicate()

    assert 1 == status.returncode
    assert "runs but does not serve this command" in status.stderr
    assert "watchdog start" not in status.stderr
    assert (0, "") == (resumed.returncode, resumed.stderr)
    assert "resumed" in resumed.stdout
    assert "served too many others and was ended" in stopped.stdout
    assert 0 == world.process.wait(30)


def test_a_daemon_without_descriptors_left_goes_on(world):
    """With few open files and many processes and clients it keeps sampling and does not spin."""
    for index in range(40):
        world.script(SLEEP, f"job-{index}.py")
    client = world.start(limit_files=80)
    crowd = [transport.connect(world.socket, 10) for _ in range(120)]
    before = client.call("status")

    assert "machine" not in {each["source"] for each in before["problems"]}
    ticks = before["daemon"]["samples"]
    world.until(lambda: client.call("status")["daemon"]["samples"] > ticks + 1, "it still looks")

    began = cpu_s(world.process.pid)
    time.sleep(1)
    assert 0.5 > cpu_s(world.process.pid) - began
    for each in crowd:
        each.close()
    assert world.until(lambda: is_served(world), "there is room again")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_whoever_does_not_greet_is_told_to_and_later_dropped(world, raw):
    """The daemon serves no request before hello, and closes a silent connection after a while."""
    world.start()
    client = raw(greet=False)

    assert jsonrpc.REFUSED == client.ask("status")["error"]["code"]

    client.socket.settimeout(30)
    assert b"" == client.socket.recv(10)


@pytest.mark.parametrize(
    ("protocol", "role", "remedy"),
    [
        (3, "cli", "watchdog stop; watchdog start"),
        (1, "cli", "Start the cli of the newer version."),
        (1, "tray", "Start the tray of the newer version."),
    ],
)
def test_another_protocol_is_refused_with_what_to_do(raw_standing, protocol, role, remedy):
    """The client prints the message unchanged, and reads nothing that it would misunderstand."""
    client = raw_standing(greet=False)

    error = client.ask("hello", protocol=protocol, role=role, version="99.0")["error"]

    assert jsonrpc.VERSIONS_DIFFER == error["code"]
    assert "99.0" in error["message"]
    assert remedy in error["message"]
    assert jsonrpc.REFUSED == client.ask("status")["error"]["code"]


def test_every_key_of_the_status_is_documented(world):
    """docs/status-json.md names each key of a status."""
    client = world.start()
    world.seen(world.script(SLEEP))
    text = (DOCS / "status-json.md").read_text()

    status = client.call("status")

    for part in (status, status["host"], status["daemon"], status["resources"][0],
                 status["tasks"][0]):  # fmt: skip
        for key in part:
            assert f"| `{key}` |" in text, f"{key} is not documented"


@pytest.fixture
def job(world):
    """A daemon and a script that it has seen; returns client and pid."""
    client = world.start()
    pid = world.sleeper("job-of-this-test.py")
    return client, pid


def test_a_name_that_several_have_is_acted_on_for_none(world, job):
    """Two scripts with one name: both are listed, neither is paused."""
    client, first = job
    (world.folder / "other").mkdir()
    second = world.sleeper("other/job-of-this-test.py")

    with pytest.raises(TaskNotFound) as caught:
        client.call("task.pause", task="job-of-this-test.py")

    assert SEVERAL_FIT == caught.value.code
    assert {first, second} <= {each["pid"] for each in caught.value.candidates}
    assert "T" not in world.state_letter(first) + world.state_letter(second)


def test_a_pause_is_shown_written_down_and_undone(world, job):
    """The state, the flag and the journal show the pause; then the task runs again."""
    client, pid = job

    answer = client.call("task.pause", task=str(pid))

    assert ("script", [pid]) == (answer["kind"], answer["pids"])
    task = world.until(lambda: (t := world.task(pid)) and t["state"] == "paused" and t, "shown")
    assert task["paused_by_watchdog"]
    resumed = {"task": pid, "name": "job-of-this-test.py", "kind": "script", "pids": [pid]}
    assert {"resumed": [resumed], "failures": []} == client.call("task.resume", task=None)
    world.until(lambda: world.state_letter(pid) in "SR", "it runs again")
    entries = client.call("history", task=str(pid))["entries"]
    assert ["resume", "resume", "pause", "pause"] == [e["decision_kind"] for e in entries]
    assert ["outcome", "decision"] == [e["kind"] for e in entries[2:]]
    assert f"the cli (pid {os.getpid()})" == entries[3]["by"]


def test_a_pause_of_somebody_else_is_theirs_to_end(world, job):
    """A task stopped with kill -STOP shows as paused, and watchdog does not resume it."""
    client, pid = job
    os.kill(pid, 19)
    world.until(lambda: world.task(pid)["state"] == "paused", "it is seen")

    with pytest.raises(RequestError, match="kill -CONT"):
        client.call("task.resume", task=str(pid))

    assert not world.task(pid)["paused_by_watchdog"]
    assert "T" == world.state_letter(pid)


LAUNCHER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "launched-below.py"], start_new_session=True)
time.sleep(600)
"""


def test_a_pause_leaves_other_tasks_running(world):
    """A launcher is paused; the separate task that it started keeps running."""
    client = world.start()
    (world.folder / "launched-below.py").write_text(SLEEP)
    pid = world.script(LAUNCHER, "launcher.py")
    world.seen(pid)

    def worker():
        found = client.call("status")["tasks"]
        return next((t["pid"] for t in found if t["name"] == "launched-below.py"), None)

    other = world.until(worker, "two tasks are seen")
    try:
        assert [pid] == client.call("task.pause", task=str(pid))["pids"]

        assert "T" == world.state_letter(pid)
        assert world.state_letter(other) in "SR"
        with pytest.raises(RequestError, match="is not paused"):
            client.call("task.resume", task=str(other))
    finally:
        os.kill(other, 9)


def test_workers_that_outlive_a_paused_task_are_shown_as_paused(world):
    """Their task was killed; now each is a task of its own, which `resume` continues."""
    client = world.start()
    pid = world.script("import os, time\nos.fork()\nwhile True: time.sleep(0.1)\n")
    world.seen(pid)
    worker = int(world.until(Path(f"/proc/{pid}/task/{pid}/children").read_text, "it forks"))
    client.call("task.pause", task=str(pid))
    try:
        os.kill(pid, signal.SIGKILL)

        assert world.seen(worker)["paused_by_watchdog"]
        client.call("task.resume", task=str(worker))
        assert world.state_letter(worker) in "RS"
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_second_pause_is_refused_and_forgets_nothing(world, job):
    """Two pauses before the next sample: the pause is still known after kill -9."""
    client, pid = job
    client.call("task.pause", task=str(pid))

    with pytest.raises(RequestError, match="already paused"):
        client.call("task.pause", task=str(pid))

    world.kill()
    client = world.start()
    assert [pid] == client.call("task.resume", task=None)["resumed"][0]["pids"]


def test_a_pause_that_somebody_ends_is_forgotten(world, job):
    """The daemon notices a kill -CONT by hand."""
    client, pid = job
    client.call("task.pause", task=str(pid))

    os.kill(pid, 18)

    world.until(lambda: not world.task(pid)["paused_by_watchdog"], "it is noticed")
    assert [] == client.call("task.resume", task=None)["resumed"]


@pytest.mark.parametrize("end", ["kill", "end"])
def test_a_pause_outlives_the_daemon(world, job, end):
    """A daemon that is killed or stopped resumes nothing; the next one shows and can resume it."""
    client, pid = job
    client.call("task.pause", task=str(pid))

    getattr(world, end)()
    assert "T" == world.state_letter(pid)
    client = world.start()

    assert world.seen(pid)["paused_by_watchdog"]
    assert [pid] == client.call("task.resume", task=None)["resumed"][0]["pids"]
    world.until(lambda: world.state_letter(pid) in "SR", "it runs again")


def test_what_is_paused_is_resumed_without_a_daemon_from_a_disk_that_takes_nothing(world, job):
    """The daemon was killed, and SQLite cannot create its index: a copy of the journal is read."""
    client, pid = job
    client.call("task.pause", task=str(pid))
    world.kill()
    index = world.folder / "state" / "journal.db-shm"
    index.unlink()
    index.mkdir()

    found = world.command("resume", "--all")

    assert "resumed" in found.stdout
    world.until(lambda: world.state_letter(pid) in "SR", "it runs again")


def test_the_forecast_is_written_down_with_a_pause(world, job):
    """Killed right after a pause, the next daemon knows which task to resume when there is room."""
    client, pid = job

    def written() -> str | None:
        path = world.folder / "state" / "journal.db"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            row = db.execute("SELECT data FROM state WHERE key = 'engine'").fetchone()
        return row and row[0]

    before = world.until(written, "it is written at the start")
    client.call("task.pause", task=str(pid))

    after = world.until(lambda: written() != before and written(), "it is written with it", 4)
    assert json.loads(after)["dump"]["mono_s"] > json.loads(before)["dump"]["mono_s"]


def test_a_task_without_an_agent_cannot_be_saved(job):
    """The answer says what is missing and how to add it."""
    client, pid = job

    answer = client.call("task.checkpoint", task=str(pid), wait=True)

    assert "refused" == answer["requests"][0]["status"]
    detail = answer["requests"][0]["detail"]  # for a program with an unknown framework
    assert "TensorFlow" not in detail
    assert "watchdog help saving" in detail


def test_a_client_that_asks_hundreds_of_things_at_once_keeps_nobody_waiting(world, raw):
    """It gets every answer in order; another client's request is served in between."""
    pid = world.start().call("status")["daemon"]["pid"]
    many, other = raw(), raw()

    os.kill(pid, signal.SIGSTOP)
    try:  # the daemon finds all requests at once, those of `many` first
        many.send(b"".join(jsonrpc.encode(jsonrpc.request(n, "status", {})) for n in range(250)))
        other.send(jsonrpc.encode(jsonrpc.request(1, "protection.set", {"on": False})))
    finally:
        os.kill(pid, signal.SIGCONT)
    answers_to_many = [many.read() for _ in range(250)]

    assert list(range(250)) == [each["id"] for each in answers_to_many]
    assert not answers_to_many[-1]["result"]["daemon"]["protection"]["on"]
    assert not other.read()["result"]["on"]
