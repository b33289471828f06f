"""
The machine goes to sleep and wakes, but for the last instruction.

The kernel freezes all programs, suspends devices, takes processors offline and stops its clocks;
where it would call the firmware it waits, and takes everything up again. An emulated machine does
not wake from more than that.

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
    """Seconds that this machine has slept since it booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


def sleep(seconds: int) -> float:
    """Send the machine to sleep; by how much its clocks say that it slept."""
    before = asleep_s()
    # The share of the host is the one device whose driver knows nothing of sleep.
    subprocess.run(["umount", "/share"], check=True)
    devices = [each.name for each in _SHARES.glob("virtio*")]
    for device in devices:
        (_SHARES / "unbind").write_text(device)
    try:
        _DELAY.write_text(str(seconds))
        (_POWER / "pm_test").write_text("core")
        (_POWER / "state").write_text("mem")
    finally:
        (_POWER / "pm_test").write_text("none")
        for device in devices:
            (_SHARES / "bind").write_text(device)
        subprocess.run(["mount", "/share"], check=True)
    return asleep_s() - before
