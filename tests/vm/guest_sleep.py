"""
Suspend and resume the machine, except for the last instruction.

The kernel freezes all programs, suspends devices, takes processors offline and stops its clocks. It
waits instead of the firmware call, and then resumes everything. An emulated machine does not wake
from a deeper sleep.

Source: kernel, Documentation/power/basic-pm-debugging.rst (pm_test, "core").
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

_POWER = Path("/sys/power")
_DELAY = Path("/sys/module/suspend/parameters/pm_test_delay")
_SHARES = Path("/sys/bus/virtio/drivers/9pnet_virtio")


def asleep_s() -> float:
    """Seconds that this machine has slept since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def sleep(seconds: int, *, announced: bool = False) -> float:
    """
    Suspend the machine; return the sleep time by its clocks.

    Args:
        seconds: how long.
        announced: by `systemctl suspend`, so that logind announces it and waits for its locks.
    """
    before = asleep_s()
    # The driver of the host's share is the only one that does not support suspend.
    subprocess.run(["umount", "/share"], check=True)
    devices = [each.name for each in _SHARES.glob("virtio*")]
    for device in devices:
        (_SHARES / "unbind").write_text(device)
    try:
        _DELAY.write_text(str(seconds))
        (_POWER / "pm_test").write_text("core")
        if announced:
            subprocess.run(["systemctl", "suspend"], check=True)
            wait_s = time.monotonic() + 300.0
            while asleep_s() - before < seconds / 2 and time.monotonic() < wait_s:
                time.sleep(0.2)
        else:
            (_POWER / "state").write_text("mem")
    finally:
        (_POWER / "pm_test").write_text("none")
        for device in devices:
            (_SHARES / "bind").write_text(device)
        subprocess.run(["mount", "/share"], check=True)
    return asleep_s() - before
