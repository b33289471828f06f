"""A daemon that is killed while a task is paused: the next one knows every stopped process."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from crash.crash_disk import compiled

from watchdog_app.base.errors import WatchdogError
from watchdog_app.cli import offline_status
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon import offline, pauses
from watchdog_app.daemon.instance import boot_id
from watchdog_app.daemon.pauses import Pause
from watchdog_app.history.journal import Journal
from watchdog_app.machine.process_control import Paused
from watchdog_app.rescue.checkpoint.owner import start_time

SLEEPER = "import time\nwhile True: time.sleep(0.1)\n"


def stopped(world, name: str) -> int:
    """A script that has received SIGSTOP; returns its pid."""
    ready = world.folder / f"{name}.ready"
    pid = world.script(f"open({str(ready)!r}, 'w')\n{SLEEPER}", name)
    world.until(ready.exists, "it runs")  # before that the process may still be a shell
    os.kill(pid, signal.SIGSTOP)
    world.until(lambda: world.state_letter(pid) == "T", "it is stopped")
    return pid


class Standing:
    """A paused task, and both copies as a killed daemon left them."""

    def __init__(self, world) -> None:
        self.pid = stopped(world, "held.py")
        self.run, self.state = world.folder / "run", world.folder / "state"
        self.run.mkdir(0o700)
        Journal(str(self.state), 86400.0, 1 << 24).close()
        self.copies = (self.run / "paused.json", self.state / "paused.json")
        self.key = ProcessKey(self.pid, start_time(self.pid))
        self.write(self.key)

    def write(self, key: ProcessKey, *, cut_short: bool = False) -> None:
        """Write to both copies that this process was paused, or was about to be."""
        boot = boot_id()
        pause = Pause(key, "held.py", "memory is nearly used up")
        if cut_short:
            pause = replace(pause, intended=(key,))
        else:
            pause = replace(pause, paused=Paused((key,), "sigstop", 5.0))
        for folder in (self.state, self.run):
            pauses.write(str(folder), pauses.encode_file(boot, [pause]))

    def spoil_journal(self) -> None:
        """Overwrite the journal with random bytes."""
        (self.state / "journal.db").write_bytes(random.Random(1).randbytes(20_000))


@pytest.fixture
def standing(world):
    """A paused task and the copies of a killed daemon."""
    return Standing(world)


@pytest.fixture
def in_process(world, monkeypatch):
    """Make commands without a daemon run in the test's process."""
    for name in ("WATCHDOG_RUNTIME_DIR", "WATCHDOG_STATE_DIR"):
        monkeypatch.setenv(name, world.env[name])


def test_a_damaged_journal_loses_no_pause(world, in_process, standing):
    """The next daemon knows the pause, reports it, and rewrites a copy that was removed."""
    standing.write(standing.key, cut_short=True)
    standing.spoil_journal()

    client = world.start()

    assert world.seen(standing.pid)["paused_by_watchdog"]
    assert "was damaged and is kept as" in world.log()
    said = [entry["what"] for entry in client.call("history", kinds=["daemon"])["entries"]]
    assert any("the journal was damaged and is kept as" in what for what in said)
    # The user did not ask for it, and the engine does not know it.
    assert "Still paused: held.py" in world.log()
    for copy in standing.copies:
        copy.unlink()
    for copy in standing.copies:
        world.until(copy.exists, "it is written again where somebody cleaned")
        assert str(standing.pid) in copy.read_text()
    client.close()
    ended = world.command("stop").stdout
    assert f"Still paused by watchdog: held.py (pid {standing.pid})" in ended
    assert offline.resume(None)["resumed"]
    assert "T" != world.state_letter(standing.pid)


def test_a_pid_that_passed_to_another_process_is_not_signalled(world, in_process, standing):
    """The paused process ended while no daemon ran; the user stopped the one with its pid now."""
    standing.write(ProcessKey(standing.pid, standing.key.start_time - 5))

    assert [] == offline.paused()
    assert [] == offline.resume(None)["resumed"]
    standing.write(ProcessKey(standing.pid, standing.key.start_time - 5))
    client = world.start()
    assert [] == client.call("task.resume", task=None)["resumed"]
    assert not world.seen(standing.pid)["paused_by_watchdog"]
    assert "T" == world.state_letter(standing.pid)


def test_without_a_daemon_status_tells_and_resume_lets_go(world, standing):
    """It resumes nothing that the user stopped: neither with --all, nor by its pid."""
    theirs = stopped(world, "theirs.py")

    shown = world.command("status")
    assert 3 == shown.returncode
    assert f"Still paused by watchdog: held.py (pid {standing.pid})" in shown.stderr
    assert "watchdog resume --all" in shown.stderr
    errors = json.loads(world.command("status", "--json").stdout)["problems"]
    assert ["daemon", "pauses"] == [each["source"] for each in errors]
    assert "Still paused" in world.command("status", "--check").stdout
    done = world.command("resume", "--all")
    refused = world.command("resume", str(theirs))

    assert (0, "held.py") == (done.returncode, done.stdout.split()[0])
    assert "T" != world.state_letter(standing.pid)
    assert "T" == world.state_letter(theirs)
    assert 1 == refused.returncode
    assert f"kill -CONT {theirs}" in refused.stderr
    assert "Still paused" not in world.command("status").stderr
    told = world.command("history", "--json").stdout
    for kind, more in (("decision", "while no daemon answered"), ("outcome", "run again")):
        (entry,) = (each for each in json.loads(told)["entries"] if each["kind"] == kind)
        assert ("resume", standing.pid) == (entry["decision_kind"], entry["pid"])
        assert more in json.dumps(entry)


@pytest.mark.parametrize("lost", ["state", "runtime", "folder of the socket"])
def test_one_of_both_copies_is_enough(world, in_process, standing, lost):
    """Random bytes, a truncated file, a cleaned /tmp."""
    runtime, state = standing.copies
    if lost == "state":
        state.write_bytes(random.Random(1).randbytes(20_000))
    elif lost == "runtime":
        runtime.write_text(runtime.read_text()[:50])
    else:
        shutil.rmtree(standing.run)

    resumed = offline.resume("held.py")["resumed"]

    assert [standing.pid] == [each["task"] for each in resumed]
    assert "T" != world.state_letter(standing.pid)
    assert [] == offline.paused()


def test_what_runs_again_is_not_paused_by_watchdog_when_a_person_stops_it(
    world, in_process, standing
):
    """The state folder could not be written at the resume: the newer copy counts."""
    old = standing.copies[1].read_bytes()
    offline.resume(None)
    standing.copies[1].write_bytes(old)
    os.kill(standing.pid, signal.SIGSTOP)
    world.until(lambda: world.state_letter(standing.pid) == "T", "it is stopped")

    assert [] == offline.resume(None)["resumed"]

    assert "T" == world.state_letter(standing.pid)


def test_without_both_copies_it_is_said_who_stands_still(world, in_process, standing):
    """
    It is unknown who stopped them: the error names them with `kill -CONT`, and they stay stopped.
    """
    standing.copies[0].unlink()
    standing.copies[1].write_text("{bad")

    with pytest.raises(WatchdogError, match=rf"held\.py \(pid {standing.pid}\).*kill -CONT"):
        offline.resume(None)
    (line,) = offline_status.paused_task_lines()
    assert f"held.py (pid {standing.pid})" in line
    standing.copies[1].unlink()
    gone = world.command("resume", "--all")

    assert 3 == gone.returncode
    assert "watchdog start" in gone.stderr
    assert re.search(rf"held\.py \(pid {standing.pid}\).*kill -CONT", gone.stderr)
    assert "T" == world.state_letter(standing.pid)


def test_a_daemon_that_cannot_read_either_copy_shows_it_as_a_problem(world, standing):
    """What an earlier daemon paused is unknown; the status says so until it ends."""
    for copy in standing.copies:
        copy.write_text("{bad")

    client = world.start()

    (problem,) = [
        each for each in client.call("status")["problems"] if each["source"] == "pauses.unread"
    ]
    assert "What is paused is not known" in problem["message"]
    assert "kill -CONT PID" in problem["remedy"]
    assert "T" == world.state_letter(standing.pid)


@pytest.mark.parametrize(("usual", "rule"), [("true", "false"), ("false", "true")])
def test_a_rule_decides_whether_a_pause_of_before_is_told(world, standing, usual, rule):
    """As for every other notification about the task."""
    switches = f"[actions]\nnotify = {usual}\npause = false\n[notify]\ndesktop = false\n"
    world.config.write_text(f'{switches}[[rule]]\ntask = "held.py"\nnotify = {rule}\n')

    client = world.start()

    def told() -> list[str]:
        entries = client.call("history", kinds=["outcome"])["entries"]
        return [each["detail"] for each in entries if each["pid"] == standing.pid]

    (detail,) = world.until(told, "the notification has an outcome")
    assert (rule == "false") == ("Suppressed: a [[rule]]" in detail), detail


@pytest.mark.parametrize("place", ["before it is written", "after the signals"])
def test_a_daemon_killed_in_a_pause_leaves_nobody_unknown(world, in_process, place):
    """SIGKILL at the time of a write: every stopped process is known, and can be resumed."""
    disk = Disk(world, "run")
    client = world.start(**disk.env)
    pid = world.sleeper("held.py")
    # Opening, truncating, writing and renaming the copy; once before the signals, once after them.
    disk.kill(3 if place.startswith("before") else 5)

    with pytest.raises(WatchdogError):
        client.call("task.pause", task=str(pid))

    assert -signal.SIGKILL == world.process.wait(20)
    was_stopped = world.state_letter(pid) == "T"
    assert was_stopped == (place == "after the signals")
    assert was_stopped == bool(offline.paused())
    assert was_stopped == bool(offline.resume(None))
    assert "T" != world.state_letter(pid)


def test_with_full_disks_it_goes_on_watching_and_acting(world):
    """Neither copy can be written: the daemon says so, and writes them when there is room."""
    disk = Disk(world, "")
    client = world.start(**disk.env)
    pid = world.sleeper("held.py")
    disk.refuse(errno.ENOSPC)

    client.call("task.pause", task=str(pid))

    assert "T" == world.state_letter(pid)
    assert f"kill -CONT {pid}" in world.log()
    found = world.problems()
    assert "continues to watch and act" in found["journal"]
    assert "What is paused cannot be written" in found["pauses"]
    disk.works()
    world.until(lambda: {"journal", "pauses"}.isdisjoint(world.problems()), "it recovers", 40)
    assert str(pid) in (world.folder / "run" / "paused.json").read_text()
    assert str(pid) in (world.folder / "state" / "paused.json").read_text()
    # A stopped daemon does not prevent a resume.
    os.kill(world.process.pid, signal.SIGSTOP)
    try:
        done = world.command("resume", "--all")
    finally:
        os.kill(world.process.pid, signal.SIGCONT)
    assert 0 == done.returncode, done.stderr
    assert "T" != world.state_letter(pid)


def test_a_slow_disk_delays_no_pause(world):
    """The task stops before the decision is on the disk; the decision follows."""
    disk = Disk(world, "state")
    client = world.start(**disk.env)
    pid = world.sleeper("held.py")

    def decided() -> int:
        found = client.call("history", kinds=["decision"], limit=100)["entries"]
        return len([each for each in found if each["pid"] == pid])

    sync_s, shortest_s = 1.2, float("inf")
    for turn in range(1, 6):  # the machine may be busy
        disk.slow(sync_s)
        began = time.monotonic()
        client.call("task.pause", task=str(pid))
        shortest_s = min(shortest_s, time.monotonic() - began)
        assert "T" == world.state_letter(pid)
        assert str(pid) in (world.folder / "run" / "paused.json").read_text()
        disk.works()
        world.until(lambda count=2 * turn - 1: decided() >= count, "it is written down", 30)
        client.call("task.resume", task=str(pid))
        world.until(lambda count=2 * turn: decided() >= count, "that too", 30)
        if shortest_s < 0.4 * sync_s:
            break

    assert shortest_s < 0.4 * sync_s


def test_many_daemons_at_once_are_one(world):
    """
    systemd, a login and the user start it at the same moment, with an old socket in the folder.
    """
    (world.folder / "run").mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(world.socket)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "watchdog_app", "run"],
            env=world.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(3)
    ]
    try:
        world.until(lambda: [p.poll() for p in started].count(None) == 1, "one is left", 40)
        only = next(process for process in started if process.poll() is None)

        def answers() -> bool:
            try:
                return world.connect().daemon_pid == only.pid
            except WatchdogError:
                return False

        world.until(answers, "it answers")
        assert [1, 1] == [process.poll() for process in started if process is not only]
    finally:
        for process in started:
            process.kill()
            process.wait()


class Disk:
    """A folder of the daemon whose disk fails for a while, through a shim under its C library."""

    def __init__(self, world, folder: str) -> None:
        self._switch = world.folder.parent / "refuses"
        self._switch.unlink(missing_ok=True)
        self.env = {
            "LD_PRELOAD": compiled(),
            "CRASH_ROOT": str(world.folder / folder),
            "CRASH_REFUSE": str(self._switch),
        }

    def refuse(self, number: int) -> None:
        """Every write fails with this errno."""
        made = self._switch.with_suffix(".new")
        made.write_text(str(number))
        made.rename(self._switch)

    def slow(self, sync_s: float) -> None:
        """Every sync takes this long, and succeeds."""
        self.refuse(1000 + int(1000 * sync_s))

    def kill(self, place: int) -> None:
        """Send SIGKILL at the `place`-th operation from now."""
        self.refuse(-place)

    def works(self) -> None:
        self._switch.unlink()
