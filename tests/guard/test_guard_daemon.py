"""The daemon and guards: shown, reported, changed on request, and never paused by the policy."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog_app.base.errors import DaemonNotRunning, RequestError
from watchdog_app.cli.history import describe
from watchdog_app.client import jsonrpc, transport
from watchdog_app.client.client import Client
from watchdog_app.client.jsonrpc import encode

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs"


@contextlib.contextmanager
def running(desk, config: str = "") -> Iterator[Client]:
    """A daemon for the programs of the desk; `config` is appended to [notify]."""
    (desk.folder / "config.toml").write_text(
        "[actions]\npause = false\n[notify]\ndesktop = false\n" + config
    )
    with open(desk.folder / "daemon.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "run"], env=desk.env, stdout=log, stderr=log
        )

    def connect():
        try:
            return Client.connect(str(desk.folder / "run" / "daemon.sock"), timeout_s=20)
        except DaemonNotRunning:
            return None

    try:
        client = desk.until(connect, "no daemon")
        yield client
        client.close()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@pytest.fixture
def daemon(desk) -> Iterator[Client]:
    """One daemon for the whole test."""
    with running(desk) as client:
        yield client


def shown(client, process):
    found = client.call("status")["tasks"]
    # The tests' own process is the task, and the program a part of it.
    return next((one for one in found if (one["guard"] or {}).get("pid") == process.pid), None)


def test_a_held_task_is_shown_told_of_and_let_go_through_the_daemon(desk, daemon):
    """
    The daemon shows state, guard, explanation and history; `guard.limit` reaches the supervisor.
    """
    hog = desk.hog(200, 0, options=("--no-refuse",))
    desk.stage(hog, "stopped")
    task = desk.until(
        lambda: (found := shown(daemon, hog)) and found["state"] == "stopped" and found, "not shown"
    )
    text = daemon.call("explain", task=str(task["pid"]))["text"]
    history = desk.until(
        lambda: [
            entry
            for entry in daemon.call("history", kinds=["decision"], limit=50)["entries"]
            if entry["decision_kind"] == "hold"
        ],
        "not in the history",
    )
    refused = []
    for method in ("task.pause", "task.resume"):
        with pytest.raises(RequestError) as error:
            daemon.call(method, task=str(task["pid"]))
        refused.append(str(error.value))
    (asked,) = daemon.call("task.checkpoint", task=str(task["pid"]), wait=False)["requests"]
    answer = daemon.call("guard.limit", task=str(task["pid"]), limit_bytes=400 << 20)

    assert (True, "cgroup v1", 100 << 20) == tuple(
        task["guard"][key] for key in ("stopped", "kind", "limit_bytes")
    )
    assert ": stopped at its memory limit by its guard" in text
    assert "At that limit it is stopped and not killed" in text
    assert str(hog.pid) in history[0]["text"]
    # It is neither paused nor resumed, because it would take that signal much later.
    for said in (*refused, asked["detail"]):
        assert "was stopped there" in said
        assert f"watchdog limit {hog.pid}" in said
    assert "is 400 MiB now" in answer["text"]
    assert 0 == desk.end(hog)


def outcome_entries(client, of: str) -> list[dict]:
    """The outcomes of notifications of this kind."""
    found = client.call("history", kinds=["outcome"], limit=50)["entries"]
    return [entry for entry in found if entry["decision_kind"] == of]


def outcomes(client, of: str) -> list[str]:
    """The details of the outcomes of notifications of this kind."""
    return [entry["detail"] for entry in outcome_entries(client, of)]


@pytest.mark.parametrize(
    ("config", "held", "calm"),
    [
        ('quiet_hours = "00:00-23:59"\n', False, "it is quiet from"),
        ('[[rule]]\ntask = "*"\nnotify = false\n', True, "a [[rule]]"),
    ],
)
def test_notifications_of_a_guard_obey_quiet_hours_and_rules(desk, config, held, calm):
    """A critical notice passes quiet hours. Each notice has an outcome in the history."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    with running(desk, config) as client:
        desk.stage(hog, "stopped")
        desk.until(lambda: outcomes(client, "hold"), "no outcome of the hold")
        task = desk.until(lambda: shown(client, hog), "not shown")
        client.call("guard.limit", task=str(task["pid"]), limit_bytes=400 << 20)
        desk.until(lambda: outcomes(client, "guard running"), "no outcome of its end")

        assert held == any("Suppressed" in detail for detail in outcomes(client, "hold"))
        assert any(calm in detail for detail in outcomes(client, "guard running"))
        texts = [describe(each) for each in outcome_entries(client, "guard running")]
        assert any('" was not shown: Suppressed' in text for text in texts)
    desk.end(hog)


NONSENSE = (
    {}, {"limit_bytes": 0}, {"limit_bytes": "12G"}, {"end": True, "more": True},
    {"limit_bytes": 2**50}, {"limit_bytes": 1000},
)  # fmt: skip


def test_what_makes_no_sense_is_refused_and_changes_nothing(desk, daemon):
    """The daemon or the supervisor refuses it."""
    program = desk.start(sys.executable, "-c", "input()", options=("--limit", "200M"), stdin=-1)
    task = desk.until(lambda: shown(daemon, program), "not shown")

    for params in NONSENSE:
        with pytest.raises(RequestError):
            daemon.call("guard.limit", task=str(task["pid"]), **params)

    assert 200 << 20 == desk.record(program)["limit_bytes"]


def test_the_daemon_starts_a_supervisor_when_both_processes_are_killed_at_one_blow(desk, daemon):
    """The program stays stopped at its limit; a higher limit resumes it, and nothing kills it."""
    hog = desk.hog(300, 0, options=("--no-refuse",))
    record = desk.stage(hog, "stopped")
    desk.until(lambda: shown(daemon, hog), "not shown")
    record = desk.record(hog)
    os.kill(record["standby_pid"], signal.SIGSTOP)  # so that the standby cannot take over
    os.kill(record["supervisor_pid"], signal.SIGKILL)
    os.kill(record["standby_pid"], signal.SIGKILL)

    desk.until(
        lambda: desk.record(hog)["supervisor_pid"] != record["supervisor_pid"],
        "no supervisor again",
    )
    assert "stopped" == desk.record(hog)["state"]
    assert 0 == desk.run("limit", str(hog.pid), "500M").returncode
    assert 0 == desk.end(hog)


def test_a_daemon_that_is_killed_leaves_held_what_is_held(desk, daemon):
    """The supervisor keeps running; the next daemon shows the guard, and can raise its limit."""
    hog = desk.hog(200, 0, options=("--no-refuse",))
    held = desk.stage(hog, "stopped")
    desk.until(lambda: (shown(daemon, hog) or {}).get("state") == "stopped", "not shown")

    os.kill(daemon.daemon_pid, signal.SIGKILL)
    with running(desk) as another:
        task = desk.until(
            lambda: (found := shown(another, hog)) and found["state"] == "stopped" and found,
            "not shown by the next one",
        )
        assert desk.record(hog)["supervisor_pid"] == held["supervisor_pid"]
        assert task["guard"]["stopped"]
        assert another.daemon_pid != daemon.daemon_pid
        another.call("guard.limit", task=str(task["pid"]), limit_bytes=400 << 20)
        assert 0 == desk.end(hog)


def test_a_supervisor_that_stands_still_holds_up_nobody_but_who_asked_it(desk, daemon):
    """The daemon answers other clients meanwhile, and this one when the supervisor continues."""
    program = desk.start(sys.executable, "-c", "input()", options=("--limit", "200M"), stdin=-1)
    task = desk.until(lambda: shown(daemon, program), "not shown")
    record = desk.record(program)
    supervisors = [record["standby_pid"], record["supervisor_pid"]]  # neither takes over
    for pid in supervisors:
        os.kill(pid, signal.SIGSTOP)
    try:
        with transport.connect(str(desk.folder / "run" / "daemon.sock"), 60) as asked:
            request = {"task": str(task["pid"]), "limit_bytes": 300 << 20}
            asked.sendall(encode(jsonrpc.request(1, "hello", {"protocol": 2, "role": "cli"})))
            asked.recv(65536)
            asked.sendall(encode(jsonrpc.request(2, "guard.limit", request)))
            for _ in range(3):  # it has read the request by the second of these at the latest
                daemon.call("status", reply_timeout_s=60)

            waits = not select.select([asked], [], [], 0)[0]
            for pid in supervisors:
                os.kill(pid, signal.SIGCONT)
            answer = json.loads(asked.recv(65536))
    finally:
        for pid in supervisors:
            os.kill(pid, signal.SIGCONT)

    assert waits
    assert "is 300 MiB now" in answer["result"]["text"]


@pytest.mark.tensorflow
def test_a_loop_that_nobody_can_copy_saves_itself_at_the_limit(desk, daemon):
    """
    The agent finds the loop; the reserve takes it to its next boundary, where the agent saves.
    """
    pytest.importorskip("tensorflow")
    shutil.copytree(PROGRAMS, desk.folder / "programs")
    out = desk.folder / "out.csv"
    loop = desk.start(
        sys.executable, "programs/loop.py", "--no-agent", "--out", str(out),
        "--epochs", "300", "--leak-from", "5", "--leak-mb-s", "120",
        options=("--limit", "600M", "--at-limit", "hold"), cwd=desk.folder,
    )  # fmt: skip

    def held():
        return (guard := desk.record(loop)) and guard["state"] == "stopped" and guard

    guard = desk.until(held, "never held", patience_s=90)

    last = int(out.read_text().split()[-1].split(",")[0])
    assert (1, 1) == (guard["agents"], guard["saved"]), loop.output()
    assert last - guard["rescues"][-1]["step"] <= 5
    loop.kill()
