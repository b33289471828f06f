"""Take one consistent sample of the machine, without blocking on a process, disk or driver."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.machine.sensors.machine import Machine


def open_machine(platform: str = sys.platform, *, patience_s: float | None = None) -> Machine:
    """
    Open the sensors of this machine: /proc, /sys and the GPUs on Linux, psutil elsewhere.

    Args:
        platform: as `sys.platform`.
        patience_s: see `LinuxMachine`.
    """
    if platform != "linux":
        from watchdog_app.machine.sensors.portable import PortableMachine

        return PortableMachine()
    from watchdog_app.machine.gpu import Gpus
    from watchdog_app.machine.sensors.devices import HardwareWatch
    from watchdog_app.machine.sensors.machine import LinuxMachine

    return LinuxMachine(hardware=HardwareWatch(gpu=Gpus()), patience_s=patience_s)
