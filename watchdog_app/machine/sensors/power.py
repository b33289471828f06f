"""
Power of the CPU packages from the kernel's power capping tree (Intel RAPL, AMD too).

Since Linux 5.10 only root may read the energy counters (CVE-2020-8694). That is no
fault: the limit can still be read, and the watts are not known.

Source: kernel, Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import re

from watchdog_app.base.linux.files import sysfs_int, sysfs_names, sysfs_text
from watchdog_app.core.model.hardware import CpuPower

_EVERY_S = 5.0
_DISCOVER_S = 60.0
_LONGEST_S = 180.0  # over more than that the counter may have begun anew more than once
_MOST_W = 2000.0  # a package
# A package, and not its parts (intel-rapl:0:0) nor the second way to the same (intel-rapl-mmio).
_ZONE = re.compile(r"(?:intel|amd)-rapl:\d+")


class _Package:
    """One counter of energy."""

    __slots__ = ("energy_uj", "path", "range_uj", "read_mono_s")

    def __init__(self, path: str) -> None:
        self.path = path
        self.range_uj = sysfs_int(f"{path}/max_energy_range_uj")
        self.energy_uj: int | None = None
        self.read_mono_s = 0.0

    def watts(self, now_mono_s: float) -> float | None:
        """Average since the last call; None at the first, and when the counter makes no sense."""
        before, then = self.energy_uj, self.read_mono_s
        self.energy_uj = energy = sysfs_int(f"{self.path}/energy_uj")
        self.read_mono_s = now_mono_s
        passed = now_mono_s - then
        if energy is None or before is None or min(energy, before) < 0:
            return None
        if not 0.0 < passed <= _LONGEST_S:
            return None
        used = energy - before
        if used < 0:
            if self.range_uj is None:
                return None
            used += self.range_uj
        watts = used / 1e6 / passed
        return watts if 0.0 <= watts <= _MOST_W else None


class PowerReader:
    """
    The packages below one /sys, together.

    Counters are read every 5 s: less than that is mostly noise, and no decision hangs on it.
    """

    def __init__(self, sys_root: str = "/sys") -> None:
        self._base = f"{sys_root}/class/powercap"
        self._packages: dict[str, _Package] = {}
        self._limit_w: float | None = None
        self._power: CpuPower | None = None
        self._due_mono_s = self._discover_mono_s = float("-inf")

    def read(self, now_mono_s: float) -> CpuPower | None:
        """As of some seconds ago at most; None where there is no such tree."""
        if now_mono_s < self._due_mono_s:
            return self._power
        self._due_mono_s = now_mono_s + _EVERY_S
        if now_mono_s >= self._discover_mono_s:
            self._discover_mono_s = now_mono_s + _DISCOVER_S
            self._discover()
        if not self._packages:
            self._power = None
            return None
        parts = [package.watts(now_mono_s) for package in self._packages.values()]
        watts = None if None in parts else sum(part for part in parts if part is not None)
        self._power = CpuPower(watts, self._limit_w)
        return self._power

    def _discover(self) -> None:
        paths = {}
        for folder in sysfs_names(self._base):
            path = f"{self._base}/{folder}"
            if _ZONE.fullmatch(folder) and (sysfs_text(f"{path}/name") or "").startswith("package"):
                paths[path] = self._packages.get(path) or _Package(path)
        self._packages = paths
        limits = [_sustained_limit(path) for path in paths]
        self._limit_w = None if None in limits else sum(x for x in limits if x is not None) or None


def _sustained_limit(path: str) -> float | None:
    """The long-term limit of a package; None where there is none, or one beyond all sense."""
    for index in range(4):
        name = sysfs_text(f"{path}/constraint_{index}_name")
        if name == "long_term":
            limit = sysfs_int(f"{path}/constraint_{index}_power_limit_uw")
            # Firmware without a limit sets the largest that fits the register.
            return limit / 1e6 if limit is not None and 0 < limit <= _MOST_W * 1e6 else None
    return None
