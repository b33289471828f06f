"""Real ends with a real daemon: what it records, how soon, and what `explain` says later."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from watchdog_app.base.errors import WatchdogError
from watchdog_app.history import past_exits
from watchdog_app.history.journal import Entry, Journal

WAIT = "import os, time\nwhile not os.path.exists('{flag}'): time.sleep(0.01)\n"
SOON_S = 2.0  # the documented time


@pytest.fixture
def ended(world):
    """Run scripts that wait, release them one after the other; return their entries by name."""
    world.start()

    def run(**codes):
        pids = {
            name: world.script(WAIT.format(flag=f"{name}.go") + code, f"{name}.py")
            for name, code in codes.items()
        }
        for pid in pids.values():
            world.seen(pid)
        found = {}
        for name, pid in pids.items():
            (world.folder / f"{name}.go").touch()
            found[name] = world.ended(pid)
        return found

    return run


def test_every_end_is_written_down_with_how_that_is_known(world, ended):
    """Signals, statuses, crashes, exceptions; exact if the kernel or Python said it."""
    hook = "from watchdog_app.agent.runtime import crash_report; crash_report.install()\n"
    found = ended(
        status="raise SystemExit(3)",
        term="os.kill(os.getpid(), 15)",
        hangup="os.kill(os.getpid(), 1)",
        segv="import ctypes; ctypes.string_at(0)",
        abort=hook + "def step(): os.abort()\nstep()",
        error=hook + "def step(): raise ValueError('bad')\nstep()",
    )

    def seen(name):
        return found[name]["cause"], found[name]["certainty"], found[name]["reason"]

    assert ("failed", "exact") == seen("status")[:2]
    assert "status 3" in seen("status")[2]
    assert ("signal", "most_likely") == seen("term")[:2]
    assert "SIGTERM" in seen("term")[2]
    assert "terminal" in seen("hangup")[2]
    assert ("signal", "exact") == seen("segv")[:2]
    assert "SIGSEGV" in seen("segv")[2]
    assert "SIGABRT, at abort.py:4 in step" in seen("abort")[2]
    assert "ended by ValueError at error.py:4 in step" == seen("error")[2]
    assert all(each["evidence"] for each in found.values())
    assert [] == list((world.folder / "state" / "crash-reports").iterdir())


def test_how_a_large_program_ended_is_known_though_its_memory_goes_first(world):
    """
    While its memory is freed it has no command line, and its exit status is not known yet.

    Freeing takes about 0.2 s per GB, so ten samples a second hit that time.
    """
    world.config.write_text(world.config.read_text() + "[watch]\ninterval_s = 0.1\n")
    world.start()
    code = (
        "held = bytearray(b'x') * 2**30\nopen('grown', 'w').close()\nimport time; time.sleep(600)"
    )
    pid = world.script(code, "large.py")
    world.seen(pid)
    world.until((world.folder / "grown").exists, "it has its memory")

    os.kill(pid, signal.SIGTERM)

    (end,) = world.until(lambda: world.ends(pid), "its end is written down")
    assert ("signal", "most_likely") == (end["cause"], end["certainty"])
    assert "SIGTERM" in end["reason"]


def test_a_death_is_written_down_within_seconds_and_explained_by_every_name(world):
    """
    `explain` finds it by pid, name and path, as text and as data, with the points of its plot.
    """
    client = world.start()
    pid = world.sleeper("odd_name_42.py")
    first = client.call("status")["daemon"]["samples"]
    # A plot needs some samples, which come late on a busy machine.
    world.until(lambda: client.call("status")["daemon"]["samples"] >= first + 3, "it looks")
    time.sleep(1.2)
    os.kill(pid, signal.SIGKILL)
    gone = time.monotonic()
    world.until(lambda: world.ends(pid), "its end is written down")
    assert time.monotonic() - gone < 10 * SOON_S  # the machine may be busy

    for name in (str(pid), "odd_name_42.py", "ODD_NAME", str(world.folder / "odd_name_42.py")):
        answer = client.call("explain", task=name)
        assert answer["text"] == answer["death_text"]
        assert pid == answer["death"]["pid"]
        assert "SIGKILL" in answer["text"]
    assert answer["plot"]["points"]
    assert "death" == answer["plot"]["marks"][-1]["kind"]
    assert pid == client.call("explain", task=None)["death"]["pid"]
    with pytest.raises(WatchdogError, match="No task answers"):
        client.call("explain", task="nobody.py")


def test_a_task_that_lives_again_is_told_with_the_death_before_it(world):
    """The name belongs to the living task; `explain` also gives the death before it."""
    client = world.start()
    first = world.sleeper("again.py")
    os.kill(first, signal.SIGKILL)
    world.until(lambda: world.ends(first), "its end is written down")
    second = world.sleeper("again.py")

    answer = client.call("explain", task="again.py")

    assert first == answer["death"]["pid"]
    assert f"pid {second}" in answer["text"]
    assert f"runs again, with pid {second}" in answer["death_text"]
    assert "To start it again" not in answer["death_text"]
    # A pid means only that process: an earlier run of the script is not its death.
    assert client.call("explain", task=str(second))["death"] is None


def test_secrets_on_a_command_line_are_not_written_down(world):
    """The command to start it again is kept, but its secrets are not."""
    world.start()
    path = world.folder / "job.py"
    path.write_text("import time\ntime.sleep(600)\n")
    words = [sys.executable, str(path), "--token", "hunter2", "--api-key=hunter2", "--lr", "1"]
    with subprocess.Popen(words, env=world.env, start_new_session=True) as process:
        world.seen(process.pid)
        process.kill()
    (death,) = world.until(lambda: world.ends(process.pid), "its end is written down")

    assert ["--token", "***", "--api-key=***", "--lr", "1"] == death["argv"][2:]
    world.end()
    assert b"hunter2" not in b"".join(
        each.read_bytes() for each in (world.folder / "state").glob("journal.db*")
    )


def test_without_a_daemon_the_journal_explains(world):
    """Long after the daemon: the last death, a death by name, and an unknown name."""
    world.start()
    world.end()
    calm = world.command("explain")
    assert (0, "") == (calm.returncode, calm.stderr)
    assert "The journal knows of no death." in calm.stdout
    world.start()
    pid = world.sleeper("night.py")
    time.sleep(2.2)
    os.kill(pid, signal.SIGKILL)
    world.until(lambda: world.ends(pid), "its end is written down")
    world.end()

    for words in ((), ("night.py",), (str(pid),)):
        done = world.command("explain", *words)
        assert 0 == done.returncode, done.stderr
        assert "night.py (script, pid" in done.stdout
        assert "How we know:" in done.stdout
        assert "No daemon runs" in done.stdout
        assert max(len(line) for line in done.stdout.splitlines()) <= 80
    missing = world.command("explain", "nobody.py")
    assert 1 == missing.returncode
    assert "knows of no death of 'nobody.py'" in missing.stderr
    assert "night.py" in world.command("history", "--kind", "exit").stdout
    answer = json.loads(world.command("explain", "--json").stdout)
    assert pid == answer["death"]["pid"]


def test_a_death_is_found_by_incident_kernel_and_the_most_exact_name(tmp_path):
    """The newest of several matches counts; a pid never matches part of a name."""
    with closing(Journal(str(tmp_path), 1e9, 10**8)) as journal:
        contributor = [{"pid": 7, "name": "a.ipynb"}]
        journal.add([Entry(5.0, "incident", {"id": "i-1", "opened_unix_s": 5.0,
                                             "contributors": contributor})])  # fmt: skip
        for at, pid, name, cause, kernel in (
            (1.0, 7, "a.ipynb", "killed", "0001-old"),
            (9.0, 7, "a.ipynb", "group_limit", "abcd-1234"),
            (10.0, 8, "data.ipynb", "failed", None),
            (11.0, 9, "run7.py", "ended", None),
        ):
            data = {"pid": pid, "name": name, "cause": cause, "kernel_id": kernel}
            data["notable"] = cause != "ended"
            journal.add([Entry(at, "exit", data, pid, name)])

        found = {
            wanted: (past_exits.find_death(journal, wanted) or {}).get("unix_s")
            for wanted in ("i-1", "abcd", "abcd-1234", "A.ipynb", "a.ip", "7", "run7", "nobody")
        }
        assert {
            "i-1": 9.0, "abcd": 9.0, "abcd-1234": 9.0, "A.ipynb": 9.0, "a.ip": 9.0, "7": 9.0,
            "run7": 11.0, "nobody": None,
        } == found  # fmt: skip
        assert 10.0 == past_exits.last_death(journal, 12.0)["unix_s"]
        assert past_exits.last_death(journal, 10.0**6, within_s=5.0) is None


def death_text(folder, advice: list[str], **death) -> str:
    """The account of train.py's death after an incident with this advice."""
    who = {"pid": 7, "name": "train.py"}
    incident = {"id": "i-1", "opened_unix_s": 5.0, "contributors": [who], "advice": advice}
    with closing(Journal(str(folder), 1e9, 10**8)) as journal:
        journal.add(
            [
                Entry(5.0, "incident", incident),
                Entry(9.0, "exit", {**who, **death, "notable": True}, 7, "train.py"),
            ]
        )
        found = past_exits.find_death(journal, "7")
        return past_exits.describe_entry(journal, found, now_unix_s=10.0)["death_text"]


@pytest.mark.parametrize(
    ("cause", "memory", "shown"),
    [
        ("group_limit", True, True),
        ("oom_daemon", False, True),
        ("guard", False, True),
        ("killed", False, True),
        ("ended", False, False),
    ],
)
def test_what_grew_while_it_lived_is_told_after_its_end(tmp_path, cause, memory, shown):
    """The incident was recorded before its agent had found the line."""
    line = "Look at train.py:42: it holds 300 MiB more each minute."

    text = death_text(tmp_path, ["It grows."], cause=cause, memory=memory, grew=[line])

    assert shown is (line in text)
    assert 1 >= text.count(line)
    # The incident's advice counts if the task died of that danger.
    assert (shown and cause != "killed") is ("It grows." in text)


@pytest.mark.parametrize(
    ("advice", "expected"),
    [
        (["While it runs or is stopped, give it more: watchdog limit 7 2G", "It grows."], False),
        (["While it runs or is stopped, give it more: watchdog limit 7 2G"], True),
        ([], True),
    ],
)
def test_a_smaller_batch_is_no_cure_for_a_leak_that_was_seen_coming(tmp_path, advice, expected):
    """A smaller batch helps only if one step needed too much at once."""
    text = death_text(tmp_path, advice, cause="program_memory", agent={"step": 3})

    assert expected is ("Make the batch smaller" in text)
    assert ("It grows." in advice) is ("It grows." in text)


GROWS = """
import os, time
from watchdog_app.agent.runtime.link import Link
link = Link("test", os.getcwd())
link.start()
kept = []
for step in range(1, 10**6):
    kept.append([str(step)] * 30_000)
    time.sleep(0.02)
    link.report(training=True, step=step, step_s=0.02)
"""


def test_the_growing_line_that_was_known_is_in_explain_after_a_kill(world):
    """A trace found the line while the program lived."""
    client = world.start()
    pid = world.script(GROWS, "grows.py")
    world.until(lambda: ((world.task(pid) or {}).get("agent") or {}).get("step"), "it trains")
    traced = client.call("task.leaks", task=str(pid), seconds=2)
    ticks = client.call("status")["daemon"]["samples"]
    world.until(lambda: client.call("status")["daemon"]["samples"] >= ticks + 2, "it is looked at")

    os.kill(pid, signal.SIGKILL)

    (death,) = world.until(lambda: world.ends(pid), "its end is written down")
    assert traced["advice"]
    assert any("grows.py:8" in line for line in death["grew"])
    assert "grows.py:8" in client.call("explain", task=str(pid))["death_text"]


def alive_list(world, **changes):
    """Change fields of the last daemon's list of living tasks; return it."""
    db = sqlite3.connect(world.folder / "state" / "journal.db")
    (text,) = db.execute("SELECT data FROM state WHERE key = 'alive'").fetchone()
    state = {**json.loads(text), **changes}
    db.execute("UPDATE state SET data = ? WHERE key = 'alive'", (json.dumps(state),))
    db.commit()
    db.close()
    return state


def test_what_ended_while_nobody_watched_is_written_down_by_the_next_daemon(world):
    """In the same boot: the entry says between which times, and that the cause is unknown."""
    world.start()
    world.until((world.folder / "state" / "journal.db").exists, "a journal")
    world.end()
    gone = {"pid": 2**22 + 1, "start_time": 7, "name": "gone.ipynb", "rescue": None, "about": {}}
    alive_list(world, tasks=[gone])

    world.start()

    (entry,) = world.until(lambda: world.ends(gone["pid"]), "it is written down")
    assert (False, "unknown", "unknown") == (entry["notable"], entry["cause"], entry["certainty"])
    assert "while no watchdog ran" in entry["reason"]
    world.end()
    world.start()
    assert 1 == len(world.ends(gone["pid"]))  # only once


def test_a_training_that_is_killed_after_a_stop_is_known_to_the_next_daemon(world):
    """This includes a training that began just before: the stop records who lives."""
    world.start()
    pid = world.script(GROWS, "late.py")
    world.until(lambda: ((world.task(pid) or {}).get("agent") or {}).get("step"), "it trains")
    world.end()
    os.kill(pid, signal.SIGKILL)

    client = world.start()

    (entry,) = world.until(lambda: world.ends(pid), "it is written down")
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    span = rf"ended between {moment} and [\d: -]+:\d\d, while no watchdog ran"
    assert re.fullmatch(span, entry["reason"])
    text = client.call("explain", task="late.py")["death_text"]
    assert 1 == text.partition("How we know")[0].count("not known")


@pytest.mark.parametrize(
    ("heat", "certainty", "words"),
    [
        (101.0, "most_likely", "most likely heat, 101 °C of 105 °C"),
        (60.0, "unknown", "went down at about"),
    ],
)
def test_what_died_with_the_machine_is_told_with_the_last_readings(world, heat, certainty, words):
    """The machine went down without a shutdown: heat is the cause only if it was near its limit."""
    world.start()
    world.until((world.folder / "state" / "journal.db").exists, "a journal")
    world.kill()
    now_ms = round(time.time() * 1000)
    db = sqlite3.connect(world.folder / "state" / "journal.db", timeout=20)
    db.execute(
        "INSERT INTO series (id, ident, kind, name, unit, last_unix_ms)"
        " VALUES (9999, 'temperature:x', 'temperature', 'CPU package', 'celsius', ?)",
        (now_ms,),
    )
    db.execute("INSERT INTO points VALUES (9999, ?, ?, 105.0, NULL)", (now_ms, heat))
    state = {
        "boot": "another", "unix_s": now_ms / 1000,
        "tasks": [{"pid": 4242, "start_time": 7, "name": "night.ipynb", "rescue": None,
                   "about": {"task_kind": "notebook"}}],
    }  # fmt: skip
    db.execute("INSERT OR REPLACE INTO state VALUES ('alive', ?)", (json.dumps(state),))
    db.commit()
    db.close()

    client = world.start()

    (death,) = world.until(lambda: world.ends(4242), "it is written down")
    assert (True, "machine_down", certainty) == (
        death["notable"], death["cause"], death["certainty"],
    )  # fmt: skip
    assert words in death["reason"]
    assert "night.ipynb" in client.call("explain", task="night.ipynb")["death_text"]


@pytest.fixture
def kernel(world, monkeypatch):
    """Start a real kernel through jupyter_client: its manager, its client and its pid."""
    from jupyter_client.manager import KernelManager

    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(world.folder / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(world.folder / "ipython"))
    managers = []

    def start():
        manager = KernelManager()
        manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        managers.append((manager, client))
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return manager, client, manager.provisioner.pid

    yield start
    for manager, client in managers:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.destroy(linger=0)


def test_a_kernel_that_was_closed_and_one_that_crashed_are_told_apart(world, kernel):
    """A shutdown most likely came from the user; a crash is a death, with the kernel's evidence."""
    client = world.start()
    closed, _, closed_pid = kernel()
    _, crashing, crashed_pid = kernel()
    world.seen(closed_pid)
    world.seen(crashed_pid)

    closed.shutdown_kernel()
    crashing.execute("import ctypes; ctypes.string_at(0)")

    (end,) = world.until(lambda: world.ends(closed_pid), "the closed one is written down")
    (death,) = world.until(lambda: world.ends(crashed_pid), "the crashed one is written down")
    assert (False, "closed", "most_likely") == (end["notable"], end["cause"], end["certainty"])
    assert (True, "signal", "exact") == (death["notable"], death["cause"], death["certainty"])
    assert "SIGSEGV" in death["reason"]
    told = client.call("explain", task=str(crashed_pid))
    assert crashed_pid == told["death"]["pid"]
    assert "%load_ext watchdog_app.agent" in told["death_text"]


def test_a_report_of_a_death_is_one_file_that_replay_plays(world, ended):
    found = ended(
        leak="held = bytearray(b'x' * 50_000_000); time.sleep(3); os.kill(os.getpid(), 9)"
    )
    path = world.folder / "death.html"

    written = world.command("report", str(found["leak"]["pid"]), "-o", str(path))
    shared = world.command("report", "leak.py", "--share")
    refused = world.command("report", "no-such-program")

    assert written.stdout == f"Written: {path}\n"
    content = path.read_text()
    assert content.startswith("<!doctype html>")
    assert "leak.py: " in content
    assert "<svg" in content
    assert "leak.py" not in shared.stdout
    assert str(world.folder) not in shared.stdout
    assert world.command("replay", str(path)).returncode == 0
    assert refused.returncode == 1
    assert "no-such-program" in refused.stderr
    assert not refused.stdout
