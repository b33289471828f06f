"""The daemon locks its memory as far as the system allows, and says how far."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from watchdog_app.base import own_process

LOCK = """
import resource, sys
import watchdog_app.daemon.app
from watchdog_app.base import own_process

def figure(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
before = figure("VmRSS")
said = own_process.lock_memory()
print(figure("VmLck"), figure("VmRSS") - before)
print(said)
kept = bytearray(2**22)  # what is taken afterwards can still be had
"""


def locked(limit: int, *, allowed: bool = False) -> tuple[int, int, str]:
    """Lock a process's memory under this limit: (kB locked, kB grown, its message)."""
    argv = [sys.executable, "-c", LOCK, str(limit)]
    if not allowed:
        if os.getuid() == 0 and not shutil.which("setpriv"):
            pytest.skip("setpriv (util-linux) takes the right to lock without limit from root")
        if os.getuid() == 0:
            argv = ["setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", *argv]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    figures, said = done.stdout.strip().split("\n", 1)
    count, grown = figures.split()
    return int(count), int(grown), said


@pytest.mark.parametrize("limit_kb", [0, 64, 4096])
def test_a_low_limit_is_used_up_and_said(limit_kb):
    """It locks up to the limit; the message names the rest, its effect and how to allow it."""
    count, grown, said = locked(limit_kb * 1024)

    assert limit_kb == count
    assert grown < 2048
    assert "may be swapped out" in said
    assert "memlock unlimited" in said


def test_what_is_locked_is_said_with_the_limit_and_both_ways_to_raise_it():
    """The limit of a user's service is that of the user's manager: limits.conf would not help."""
    said = own_process.lock_limit_warning(120 * 2**20, 25 * 2**20)

    assert said.startswith("25.0 MiB")
    assert "120 MiB" in said
    assert "systemctl edit user@.service" in said
    assert "memlock unlimited" in said


def test_locking_all_of_it_does_not_make_it_grow():
    """Untouched pages stay unmapped: the budget of resident memory holds."""
    if os.getuid() != 0:
        pytest.skip("locking without limit takes root")

    count, grown, said = locked(0, allowed=True)

    assert "None" == said
    assert 10_000 < count
    assert grown < 2048


@pytest.mark.parametrize(("score", "told"), [(None, False), (-900, False), (0, True), (100, True)])
def test_the_order_of_killing_is_told_where_it_is_not_in_our_favour(score, told):
    """A user may not lower it; the log explains the effect."""
    said = own_process.oom_score_warning(score)

    assert told == (said is not None)
    assert said is None or f"oom_score_adj {score}" in said
