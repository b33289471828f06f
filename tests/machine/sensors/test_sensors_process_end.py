"""The exit status of a process with another parent."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from watchdog_app.base.linux import process
from watchdog_app.daemon.exit_monitor import is_ending
from watchdog_app.machine.sensors.exits import exit_status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds are Linux's")
# Linux 6.15 and later keep the status in a pidfd; earlier it is unknown after the reaping.
_KEPT = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)


def _start_time(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_status_is_known_when_the_parent_collects_it_in_between(tmp_path: Path) -> None:
    """Its parent may reap it between the read of the descriptor and that of /proc."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    handle = process.open_pidfd(child.pid)
    assert handle is not None
    start_time = _start_time(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended; it is not reaped yet
    stat = tmp_path / str(child.pid) / "stat"
    stat.parent.mkdir()
    os.mkfifo(stat)

    def reap() -> None:
        with stat.open("wb"):  # opens when the reader opens it, and then the file has no content
            child.wait()

    parent = threading.Thread(target=reap)
    parent.start()

    status = exit_status(child.pid, start_time, handle, str(tmp_path))

    parent.join()
    os.close(handle)
    assert (int(signal.SIGKILL) if _KEPT else None) == status


@pytest.mark.parametrize(
    ("letter", "flags", "ticks", "ending"),
    [
        ("R", 0x40000C, 42, True),  # its memory is being freed
        ("D", 0x40000C, 42, True),
        ("R", 0x400000, 42, False),
        ("Z", 0x40000C, 42, False),  # it has ended, and the entry has its status
        ("R", 0x40000C, 43, False),  # the pid belongs to another process now
    ],
)
def test_a_process_on_its_way_out_is_known(
    tmp_path: Path, letter: str, flags: int, ticks: int, ending: bool
) -> None:
    """The kernel's flags show it, from before its memory is freed to its end."""
    (tmp_path / "7").mkdir()
    stat = f"7 (a) Z (b) {letter} 1 7 7 0 -1 {flags} 0 0 0 0 1 1 0 0 20 0 1 0 42" + " 0" * 7
    (tmp_path / "7" / "stat").write_text(stat)

    assert ending == is_ending(7, ticks, str(tmp_path))
    assert not is_ending(8, ticks, str(tmp_path))
