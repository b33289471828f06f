"""A real memory group with a real limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import until

from watchdog_app.base.errors import ActionError
from watchdog_app.base.linux.process import read_stat
from watchdog_app.guard import backends
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup_v1 import CgroupV1

MIB = 2**20


@pytest.fixture
def group():
    try:
        group = create(f"watchdog-test-{os.getpid()}", 100 * MIB)
    except ActionError as error:
        pytest.skip(str(error))
    yield group
    group.close()


@pytest.mark.cgroup
def test_a_process_that_outgrows_the_group_is_killed_and_counted(group):
    """The kernel kills inside the group, and the group counts it."""
    eat = "held = [bytearray(b'x' * 1000000) for _ in range(500)]"

    ended = subprocess.run(group.command([sys.executable, "-c", eat]), check=False)

    assert -9 == ended.returncode
    if group.path:
        assert 1 == group.oom_kills()


@pytest.mark.cgroup
def test_the_command_keeps_its_arguments_and_its_exit_status(group):
    """Quotes, dollars and spaces arrive unchanged."""
    odd = "a 'b' \"$HOME\" `x`"
    code = "import sys; sys.exit(7 if sys.argv[1] == " + repr(odd) + " else 1)"

    ended = subprocess.run(group.command([sys.executable, "-c", code, odd]), check=False)

    assert 7 == ended.returncode


@pytest.mark.cgroup
def test_closing_ends_what_still_runs_and_removes_the_group(group):
    child = subprocess.Popen(
        group.command([sys.executable, "-c", "print(1, flush=True); import time; time.sleep(99)"]),
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.read(1)

    group.close()

    assert -9 == child.wait(10)
    child.stdout.close()
    if group.path:
        assert not Path(group.path).exists()


def test_a_machine_without_groups_is_told_what_to_do(tmp_path, monkeypatch):
    """Without a cgroup file system and systemd there is one clear error."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ActionError, match="root"):
        create("x", MIB, root=str(tmp_path))


@pytest.mark.cgroup
@pytest.mark.parametrize("by_signals", [False, True])
def test_who_waits_at_the_limit_is_frozen_and_stopped_and_runs_on(by_signals):
    """This works without the freezer hierarchy; a process that was stopped before stays stopped."""
    group = CgroupV1.create(backends.ROOT, f"watchdog-test-v1-{os.getpid()}", 60 * MIB, 0)
    if group is None:
        pytest.skip("no cgroup v1 memory hierarchy that can be written")
    if by_signals and group.freezer is not None:
        os.rmdir(group.freezer)
        group.freezer = None
    grows = "held = [bytearray(b'x') * (1 << 20) for _ in range(120)]; print('all', flush=True)"
    argv = [sys.executable, "-S", "-c"]
    hog = subprocess.Popen([*argv, "input();" + grows], stdin=-1, stdout=-1, text=True)
    other = subprocess.Popen([*argv, "input()"], stdin=-1, text=True)
    try:
        for each in (hog, other):
            group.enter(each.pid)
        group.enforce_limit()
        os.kill(other.pid, signal.SIGSTOP)
        hog.stdin.write("\n")
        hog.stdin.flush()
        until(group.at_limit, lambda: "never at its limit", 30)
        frozen = group.freeze()
        stopped = group.stop(), read_stat(hog.pid).state
        group.set_limit(200 * MIB)
        group.resume()
        said = hog.stdout.read()
        still = read_stat(other.pid).state
    finally:
        group.lift_limit()
        group.close()
        for each in (hog, other):
            each.communicate()

    assert (True, (True, "T"), "all\n", "T") == (frozen, stopped, said, still)
