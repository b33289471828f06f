"""A real memory group with a real limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog_app.base.errors import ActionError
from watchdog_app.guard.backends import create

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
    """The kernel kills inside the group, and the group says so."""
    eat = "held = [bytearray(b'x' * 1000000) for _ in range(500)]"

    ended = subprocess.run(group.command([sys.executable, "-c", eat]), check=False)

    assert -9 == ended.returncode
    if group.path:
        assert 1 == group.oom_kills()


@pytest.mark.cgroup
def test_the_command_keeps_its_arguments_and_its_exit_status(group):
    """Quotes, dollars and spaces arrive as they were."""
    odd = "a 'b' \"$HOME\" `x`"
    code = "import sys; sys.exit(7 if sys.argv[1] == " + repr(odd) + " else 1)"

    ended = subprocess.run(group.command([sys.executable, "-c", code, odd]), check=False)

    assert 7 == ended.returncode


@pytest.mark.cgroup
def test_closing_ends_what_still_runs_and_removes_the_group(group):
    """Nothing is left behind."""
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
    """No cgroup file system and no systemd: one clear error."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ActionError, match="root"):
        create("x", MIB, root=str(tmp_path))
