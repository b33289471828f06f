"""
Memory of the whole machine: level, swap, swap traffic, pressure, shared memory.

Sources: proc(5); kernel, Documentation/filesystems/proc.rst and Documentation/accounting/psi.rst.
"""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.base.errors import Denied, SensorError, Unsupported
from watchdog_app.base.linux.cgroups import flat_value
from watchdog_app.base.linux.files import KeptFile, parse_number, read_or_empty
from watchdog_app.core.model.machine import Fault, HostMemory, Pressure

_PRESSURE = "host.pressure"
_ZRAM = b"/dev/zram"
_SHM = "host.shm"
_PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096


def parse_meminfo(data: bytes) -> dict[bytes, int]:
    """
    Return the bytes by label (`MemTotal`, ...) of /proc/meminfo, without lines that lack a number.
    """
    values = {}
    for line in data.splitlines():
        label, colon, rest = line.partition(b":")
        words = rest.split()
        value = parse_number(words[0]) if colon and words else None
        if value is not None:
            # HugePages_* are counts, not kB; no caller uses them.
            values[label] = value * 1024
    return values


def parse_swap_traffic(vmstat: bytes) -> tuple[int, int] | None:
    """Return the pages swapped in and out since boot, from /proc/vmstat; None: not in it."""
    swapped_in, swapped_out = flat_value(vmstat, b"pswpin"), flat_value(vmstat, b"pswpout")
    return None if swapped_in is None or swapped_out is None else (swapped_in, swapped_out)


def parse_zram_swap(swaps: bytes) -> dict[str, tuple[int, int]]:
    """Return size and use in bytes of each zram swap device, by name, from /proc/swaps."""
    found = {}
    for line in swaps.splitlines():
        words = line.split()
        if len(words) < 4 or not words[0].startswith(_ZRAM):
            continue
        size, used = parse_number(words[2]), parse_number(words[3])
        if size is not None and used is not None:
            found[os.path.basename(words[0]).decode("ascii", "replace")] = size * 1024, used * 1024
    return found


def parse_pressure(data: bytes) -> Pressure | None:
    """Parse one of the /proc/pressure files; None: not such a file."""
    lines: dict[bytes, dict[bytes, float]] = {}
    try:
        for line in data.splitlines():
            kind, *pairs = line.split()
            lines[kind] = {}
            for pair in pairs:
                name, _, value = pair.partition(b"=")
                lines[kind][name] = float(value)
        some, full = lines[b"some"], lines[b"full"]
        return Pressure(
            some_avg10=some[b"avg10"], full_avg10=full[b"avg10"], some_total_s=some[b"total"] / 1e6
        )
    except (KeyError, ValueError):
        return None


def parse_arc(arcstats: bytes) -> int | None:
    """
    Return the bytes of the ZFS cache that the kernel can reclaim; None: not such a file.

    Linux does not count them in MemAvailable (OpenZFS issue 10255). Without them, a machine whose
    ZFS cache has filled its RAM would seem close to an out-of-memory kill.
    """
    values = {}
    for line in arcstats.splitlines():
        words = line.split()
        value = parse_number(words[2]) if len(words) == 3 else None
        if value is not None:
            values[words[0]] = value
    if b"size" not in values or b"c_min" not in values:
        return None
    return max(0, values[b"size"] - values[b"c_min"])


class HostReader:
    """
    Reads the machine's memory at each sample, from files that it keeps open.

    Args:
        proc: where the proc file system is mounted.
        shm: the shared memory file system.
        sys_root: path to use as /sys.
    """

    def __init__(self, proc: str, shm: str, sys_root: str = "/sys") -> None:
        self._meminfo = KeptFile(f"{proc}/meminfo")
        self._vmstat = KeptFile(f"{proc}/vmstat")
        self._pressure = KeptFile(f"{proc}/pressure/memory")
        self._arc = f"{proc}/spl/kstat/zfs/arcstats"
        self._shm = shm
        self._swaps = f"{proc}/swaps"
        self._block = f"{sys_root}/block"
        self._zram_of: int | None = None  # the SwapTotal at which there was no zram device
        self._traffic: tuple[int, int] | None = None
        self.faults: dict[str, Fault] = {}

    def read(self) -> HostMemory:
        """
        Read the machine's memory. A missing value is None, and `faults` says so.

        Raises:
            SensorError: the level itself cannot be read, so memory cannot be watched.
        """
        values = parse_meminfo(self._meminfo.read())
        total = values.get(b"MemTotal")
        if not total:
            raise Unsupported(f"{self._meminfo.path} names no MemTotal: is /proc mounted?")
        available = values.get(b"MemAvailable", 0)
        swap_total = values.get(b"SwapTotal", 0)
        shm_used, shm_limit = self._read_shm()
        traffic = self._read_traffic(has_swap=swap_total > 0)
        return HostMemory(
            total_bytes=total,
            available_bytes=min(total, available + (parse_arc(read_or_empty(self._arc)) or 0)),
            swap_total_bytes=swap_total,
            swap_free_bytes=min(values.get(b"SwapFree", 0), swap_total),
            swap_in_bytes=traffic[0] * _PAGE if traffic else None,
            swap_out_bytes=traffic[1] * _PAGE if traffic else None,
            shm_used_bytes=shm_used,
            shm_limit_bytes=shm_limit,
            pressure=self._read_pressure(),
            **self._read_zram(swap_total),
        )

    def _read_traffic(self, *, has_swap: bool) -> tuple[int, int] | None:
        # Without swap the counters do not change, and vmstat is 4 KB that the kernel sums over all
        # CPUs. So read it once, then only while there is swap.
        if has_swap or self._traffic is None:
            self._traffic = None
            with suppress(SensorError):
                self._traffic = parse_swap_traffic(self._vmstat.read(16384))
        return self._traffic

    def _read_zram(self, swap_total: int) -> dict[str, int]:
        """
        Read the part of the swap that is in RAM.

        Source: kernel, Documentation/admin-guide/blockdev/zram.rst (mm_stat: orig_data_size,
        compr_data_size, mem_used_total, ... in bytes).
        """
        if not swap_total or self._zram_of == swap_total:
            return {}
        devices = parse_zram_swap(read_or_empty(self._swaps))
        if not devices:
            self._zram_of = swap_total
            return {}
        ram = 0
        for name, (_, used) in devices.items():
            words = read_or_empty(f"{self._block}/{name}/mm_stat").split()
            found = parse_number(words[2]) if len(words) > 2 else None
            ram += used if found is None else found  # unknown: assume that nothing is compressed
        return {
            "zram_total_bytes": sum(size for size, _ in devices.values()),
            "zram_used_bytes": sum(used for _, used in devices.values()),
            "zram_ram_bytes": ram,
        }

    def _read_pressure(self) -> Pressure | None:
        try:
            pressure = parse_pressure(self._pressure.read(512))
        except SensorError as error:
            remedy = (
                "Ask the administrator for the right to read it."
                if isinstance(error, Denied)
                else "Start the kernel with psi=1 (it needs CONFIG_PSI) to have it."
            )
            self.faults[_PRESSURE] = Fault(
                _PRESSURE,
                "Memory pressure (PSI) is not watched: this kernel does not offer it. "
                "Levels and trends are still watched.",
                remedy,
            )
            return None
        self.faults.pop(_PRESSURE, None)
        return pressure

    def _read_shm(self) -> tuple[int | None, int | None]:
        try:
            found = os.statvfs(self._shm)
        except OSError as error:
            self.faults[_SHM] = Fault(
                _SHM,
                f"Shared memory is not watched: {self._shm} cannot be read ({error.strerror}). "
                "Everything else is.",
                "Nothing to do unless programs here use shared memory; then mount a tmpfs there.",
            )
            return None, None
        self.faults.pop(_SHM, None)
        if not found.f_blocks:  # a tmpfs without a size limit: RAM is its limit
            return None, None
        return (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize

    def close(self) -> None:
        """Close the file descriptors."""
        for file in (self._meminfo, self._vmstat, self._pressure):
            file.close()
