"""Pausing a process that waits in the kernel: it stops when the wait ends, unless it is resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.pauses import standing_pauses
from support.waiting import until

from watchdog_app.base.linux.process import read_stat
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.daemon.pauses import Pause
from watchdog_app.machine import process_control

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="states of Linux")

# vfork(2): the parent sleeps uninterruptibly (D) until its child ends, as with a dead disk.
WAIT = """
#include <unistd.h>
void wait_in_kernel(void)
{
    if (vfork() == 0) {
        sleep(600);
        _exit(0);
    }
}
"""


def state(pid: int) -> str:
    now = read_stat(pid)
    return "" if now is None else now.state


def child_of(pid: int) -> int:
    """The child that it waits for; 0 before there is one, because reading a file also waits."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


@pytest.fixture
def waiting(tmp_path):
    """A Python that waits in the kernel: returns its key."""
    assert shutil.which("gcc"), "needs gcc: sudo apt-get install gcc libc6-dev"
    library = tmp_path / "wait.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(library), "-x", "c", "-"],
        input=WAIT, text=True, check=True,
    )  # fmt: skip
    code = f"import ctypes, time; ctypes.CDLL({str(library)!r}).wait_in_kernel(); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until(lambda: child_of(process.pid) and state(process.pid) == "D", "it waits in the kernel")
    now = read_stat(process.pid)
    assert now is not None
    yield ProcessKey(*now.key)
    for pid in (process.pid, *_session(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait(20)


def _session(pid: int) -> list[int]:
    """Every process of the session that a process leads."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid:
            found.append(int(name))
    return found


def test_a_resume_before_the_stop_has_taken_effect_takes_it_back(waiting: ProcessKey):
    """Otherwise it would stop hours later, after the pause was forgotten."""
    paused = process_control.pause([waiting])
    assert "D" == state(waiting.pid), "a signal cannot reach it yet"

    resumed = process_control.resume(paused)

    assert waiting in resumed
    os.kill(child_of(waiting.pid), signal.SIGKILL)
    until(lambda: state(waiting.pid) != "D", "the wait ends")
    time.sleep(0.1)
    assert state(waiting.pid) in "RS"


def test_a_pause_of_what_waits_stands_until_it_has_stopped_or_run(waiting: ProcessKey, tmp_path):
    """The pause stays known during the wait, and while the process is stopped."""
    paused = process_control.pause([waiting])
    pauses = standing_pauses(tmp_path, lambda key: state(key.pid) or None)
    pauses.add(Pause(waiting, "train.py", "asked for", paused))
    ended = pauses.remove_ended
    child = child_of(waiting.pid)
    assert [] == ended(), "it waits"
    os.kill(child, signal.SIGKILL)
    until(lambda: state(waiting.pid) == "T", "the wait ends, and it stops")
    assert [] == ended(), "it is paused"
    process_control.resume(paused)
    until(lambda: state(waiting.pid) in "RS", "it runs")
    assert [waiting] == [pause.task for pause in ended()]
