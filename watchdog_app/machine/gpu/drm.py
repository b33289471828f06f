"""
AMD and Intel GPUs through files of the kernel's drivers. Runs only in the reader process.

Tables list the files of each figure, best first, as names differ between drivers and kernels. A
read may block as long as the driver does: the daemon then ends this process.

Sources: kernel, Documentation/gpu/drm-usage-stats.rst (6.19), Documentation/gpu/amdgpu/thermal.rst
and driver-misc.rst, Documentation/gpu/xe/xe-drm-usage-stats.rst, Documentation/ABI/testing/
sysfs-driver-intel-{i915,xe}-hwmon, drivers/gpu/drm/amd/amdkfd/kfd_{process,topology}.c; issues of
nvtop (#399, #428, #492) and amdgpu_top (#7, #16).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base.linux.cgroups import available_memory
from watchdog_app.base.linux.files import parse_number, read_or_empty, sysfs_names, sysfs_text
from watchdog_app.base.threads import Background, Question
from watchdog_app.core.model.hardware import FIGURES, GpuState
from watchdog_app.machine.gpu.backend import DeviceError, DeviceRow
from watchdog_app.machine.gpu.pci import (
    DEVICES,
    DRM,
    DRM_DRIVERS,
    INTEL,
    VENDORS,
    drm_devices,
    link_name,
)

SLOW_S = 10.0  # interval for figures that hardly change
PROCESSES_S = 5.0
_PROCESSES_MIN_S = 1.0
# Memory change that suggests a process started or ended: list processes before the list is due.
_CHANGED_BYTES = 256 * 1024**2
_PATIENCE_S = 2.0  # less than the daemon's
# A GPU unused for so long is left alone for so long, if the kernel may suspend it.
_UNUSED_S, _REST_S = 30.0, 15.0
_RESCAN_S = 30.0  # longest interval between searches of a process for open GPUs
_MAX_BYTES = 1 << 14  # of a file
_MAX_FDS = 4096  # of a process
_PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
_MAX_IDS_BYTES = 4 << 20

# Field, factor to its unit, files, best first. Places: the device's own folder, the driver's
# sensors, the sensor of the hottest part, drm/cardN, and the device in the slot.
_Files = tuple[tuple[str, float, tuple[str, ...]], ...]
_Paths = Iterable[tuple[str, str, float]]  # field, path, factor
_FAST: _Files = (
    ("utilization_percent", 1, ("{device}/gpu_busy_percent",)),
    ("memory_utilization_percent", 1, ("{device}/mem_busy_percent",)),
    ("memory_used_bytes", 1, ("{device}/mem_info_vram_used",)),
    ("temperature_c", 1e-3, ("{heat}_input",)),
    ("power_w", 1e-6, ("{hwmon}/power1_average", "{hwmon}/power1_input")),
    ("graphics_clock_mhz", 1e-6, ("{hwmon}/freq1_input",)),
    ("graphics_clock_mhz", 1, ("{drm}/gt_act_freq_mhz", "{device}/tile0/gt0/freq0/act_freq")),
    ("memory_clock_mhz", 1e-6, ("{hwmon}/freq2_input",)),
    ("fan_percent", 100 / 255, ("{hwmon}/pwm1",)),
    ("energy_j", 1e-6, ("{hwmon}/energy1_input", "{hwmon}/energy2_input")),
)
_VRAM = ("{device}/mem_info_vram_total", "{device}/tile0/physical_vram_size_bytes")
_SLOW: _Files = (
    ("memory_total_bytes", 1, (*_VRAM, "{drm}/lmem_total_bytes")),
    ("gtt_total_bytes", 1, ("{device}/mem_info_gtt_total",)),
    ("slowdown_c", 1e-3, ("{heat}_crit",)),
    ("shutdown_c", 1e-3, ("{heat}_emergency",)),
    ("power_limit_w", 1e-6, ("{hwmon}/power1_cap", "{hwmon}/power1_max", "{hwmon}/power2_max")),
    ("graphics_clock_max_mhz", 1, ("{drm}/gt_RP0_freq_mhz", "{device}/tile0/gt0/freq0/rp0_freq")),
    ("pcie_width", 1, ("{slot}/current_link_width",)),
    ("pcie_width_max", 1, ("{slot}/max_link_width",)),
    ("pcie_generation", 1, ("{slot}/current_link_speed",)),
    ("pcie_generation_max", 1, ("{slot}/max_link_speed",)),
)
# Without one, a note says so.
_EXPECTED = ("memory_used_bytes", "utilization_percent", "temperature_c", "power_w")
_HOTTEST = ("junction", "pkg", "edge")  # labels, best first
# PCIe generations by GT/s.
_GENERATIONS = {b"2.5": 1, b"5.0": 2, b"8.0": 3, b"16.0": 4, b"32.0": 5, b"64.0": 6}
_UNITS = {b"": 1, b"kB": 1 << 10, b"KiB": 1 << 10, b"MiB": 1 << 20, b"GiB": 1 << 30}
# Keys of amdgpu in Linux 5.14 to 5.18 (amdgpu_fdinfo.c), and their later names without "drm-".
_OLD_KEYS = {b"pasid": b"client-id", b"vram mem": b"memory-vram", b"gtt mem": b"memory-gtt"}
# Kinds of memory figures, best first: drm-memory-* is the older name of drm-resident-*.
_KINDS = (b"resident", b"memory", b"total")
_ON_DEVICE = (b"vram", b"local")  # regions: amdgpu vram, i915 local0, xe vram0
_ON_HOST = (b"gtt", b"system")
_INTEGRATED = "0000:00:02.0"  # place of the graphics in Intel's processors
_NODES = ("renderD", "card")  # in /dev/dri
_COMPUTE = (b"compute", b"ccs")  # engines; a desktop uses the others


class DrmBackend:
    """
    The kernel's drivers amdgpu, i915 and xe: GPUs by PCI address.

    Args:
        trace: not used; there is no library to call.
        everything: not used; `watchdog doctor` does not ask this backend.
        root: prefix of /sys, /proc and /usr.
    """

    def __init__(self, trace: Any = None, everything: bool = False, root: str = "") -> None:  # noqa: ARG002
        self._root = root
        self._cards: dict[int, _Card] = {}
        self._processes = _Processes(root)

    def open(self) -> dict[str, Any]:
        """Return no version: these drivers are parts of the kernel."""
        return {"driver": None, "cuda": None}

    def devices(self, now_mono_s: float, awake: Sequence[tuple[int, str]] | None) -> Sequence[int]:
        """
        List the GPUs, as `GpuBackend.devices` describes.

        Args:
            now_mono_s: monotonic time of the request.
            awake: index and PCI address of the GPUs that are not suspended; None: all are awake.
        """
        if awake is None:
            awake = list(enumerate(drm_devices(self._root)))
        self._processes.awake = {address for _, address in awake}
        known = {(index, card.address): card for index, card in self._cards.items()}
        self._cards = {
            index: known.get((index, address)) or _Card(self._root, address, now_mono_s)
            for index, address in awake
        }
        return list(self._cards)

    def read(self, index: int, now_mono_s: float) -> Iterable[DeviceRow]:
        """
        Read one GPU, as `GpuBackend.read` describes.

        Args:
            index: one of `devices`.
            now_mono_s: monotonic time of the request.
        """
        return [{**self._cards[index].read(now_mono_s, self._processes), "index": index}]

    def events(self) -> Iterable[tuple[str, int]]:
        """Return nothing: these drivers report faults in the kernel's log only."""
        return ()


class _Card:
    """One GPU, by its folder in sysfs."""

    def __init__(self, root: str, address: str, now_mono_s: float) -> None:
        self.address = address
        self._root = root
        self._folder = f"{root}{DEVICES}/{address}"
        self._bus_id = f"0000{address}"
        self._vendor = ""
        self._identity: dict[str, Any] = {}
        self._slow: dict[str, Any] = {}
        self._slow_due_mono_s = now_mono_s
        self._fast_files: _Paths = ()
        self._energy: tuple[float, Any] = (0.0, None)  # time and joules of the last reading
        self._listed_bytes = 0.0
        self._row: DeviceRow = {}
        self._used_mono_s = now_mono_s  # in the future: it rests until then

    def read(self, now_mono_s: float, processes: _Processes) -> DeviceRow:
        """
        Read every figure.

        Raises:
            DeviceError: the GPU is gone from sysfs.
        """
        vendor = sysfs_text(f"{self._folder}/vendor")
        if vendor is None:
            raise DeviceError(GpuState.LOST, "The kernel no longer lists this GPU.", self._bus_id)
        self._vendor = vendor
        self._identity = self._identity or _identify(self._root, self._folder, vendor)
        if self._row and self._rests(now_mono_s, processes):
            return self._row
        if now_mono_s >= self._slow_due_mono_s:
            self._slow_due_mono_s = now_mono_s + SLOW_S
            self._slow = self._read_slow()
        found = {**self._slow, **_read_figures(self._fast_files), "notes": []}
        self._add_power(found, now_mono_s)
        self._add_memory(found, processes, now_mono_s)
        missing = [FIGURES[name].label for name in _EXPECTED if name not in found]
        found["notes"] += [f"{label}: this driver does not report it." for label in missing]
        if found["computing"] or found.get("utilization_percent"):
            self._used_mono_s = now_mono_s
        self._row = {**found, **self._identity, "bus_id": self._bus_id}
        return self._row

    def _rests(self, now_mono_s: float, processes: _Processes) -> bool:
        """
        Whether the GPU is left alone for a while, so that the kernel can suspend it.

        Each read of its sensors delays that by up to 10 s, also where other GPUs are in use.
        """
        unused = now_mono_s - self._used_mono_s >= _UNUSED_S
        if unused and _read(f"{self._folder}/power/control") == b"auto":
            self._used_mono_s = now_mono_s + _REST_S
        rests = now_mono_s < self._used_mono_s
        (processes.resting.add if rests else processes.resting.discard)(self.address)
        return rests

    def _read_slow(self) -> dict[str, Any]:
        """Find the files of this driver; read what hardly changes."""
        folder = self._folder
        folders = _folders(f"{folder}/hwmon")
        # A tile of an Intel card has sensors of its own, under another name.
        hwmon = next((each for each in folders if sysfs_text(f"{each}/name") in DRM_DRIVERS), "")
        heat = _hottest_sensor(hwmon)
        # Many cards have a switch; the GPU's own link ends there.
        port = f"{folder}/../.."
        places = {
            "device": folder,
            "hwmon": hwmon,
            "heat": f"{hwmon}/{heat}",
            "drm": next(iter(_folders(f"{folder}/drm", "card")), ""),
            "slot": port if sysfs_text(f"{port}/vendor") == self._vendor else folder,
        }
        self._fast_files = [each for each in _find_files(_FAST, places) if os.path.exists(each[1])]
        found = _read_figures(_find_files(_SLOW, places), zero_is_none=True)
        errors = _pairs(f"{folder}/ras/umc_err_count", b":")  # "ue: 0"
        for name, key in (("ecc_uncorrected", b"ue"), ("ecc_corrected", b"ce")):
            if (count := _int(errors.get(key))) is not None:
                found[name] = count
        # Kernel, amdgpu_pm.c: an APU has neither a fan, nor a critical temperature, nor "junction".
        # A card that is given to a virtual machine may have no sensor at all.
        has_fan = os.path.exists(f"{hwmon}/pwm1")
        if self._is_unified(found, has_fan or heat != "temp1" or "slowdown_c" in found):
            found["unified_memory"] = True
        return found

    def _is_unified(self, found: DeviceRow, is_card: bool) -> bool:
        """
        Whether the GPU works in the host's RAM.

        An APU has a small part of the RAM as "VRAM" and gets the rest as GTT. The kernel's own
        rule, whether it prefers GTT, is which of them is larger (amdgpu_ttm.c, 6.10). An MI300A has
        all of the RAM as "VRAM", and its use is not counted.
        """
        if self._vendor == INTEL:
            return self.address == _INTEGRATED and "memory_total_bytes" not in found
        small = found.get("memory_total_bytes", 0) < found.pop("gtt_total_bytes", 0)
        return (small and not is_card) or "MI300A" in self._identity["name"]

    def _add_power(self, found: DeviceRow, now_mono_s: float) -> None:
        """Derive the power from the energy counter of Intel's cards."""
        joules, (mono_s, before_j) = found.pop("energy_j", None), self._energy
        self._energy = (now_mono_s, joules)
        known = joules is not None and before_j is not None and now_mono_s > mono_s
        if known and joules >= before_j:  # less: the counter has begun again
            found.setdefault("power_w", (joules - before_j) / (now_mono_s - mono_s))

    def _add_memory(self, found: DeviceRow, processes: _Processes, now_mono_s: float) -> None:
        """Add memory, processes, and what only processes show: the use of Intel's engines."""
        notes, unified = found["notes"], "unified_memory" in found
        summed = self._vendor == INTEL and not unified
        used = found.get("memory_used_bytes", 0)
        moved = abs(used - self._listed_bytes) >= _CHANGED_BYTES
        if processes.read(now_mono_s, soon=moved or summed):
            self._listed_bytes = used
        use = (processes.uses or {}).get(self.address) or _Use()
        if processes.uses is None:
            notes.append("Processes: the kernel does not answer about them.")
        if use.engines and "utilization_percent" not in found:
            found["utilization_percent"] = min(100.0, 100 * max(use.engines.values()))
            notes.append("Utilisation: of the processes that this user may see.")
        if unified:
            host = available_memory(None, f"{self._root}/proc")
            found["memory_used_bytes"] = host.total_bytes - host.free_bytes
            found["memory_total_bytes"] = host.total_bytes
            notes.append("Memory: this GPU shares the host's RAM, which is shown here.")
        most = found.get("memory_total_bytes", FIGURES["memory_total_bytes"].most)
        held = use.on_host if unified else use.on_device
        believed = {pid: size for pid, size in held.items() if size <= most}
        if summed:
            if believed:
                found["memory_used_bytes"] = sum(believed.values())
            notes.append("Memory: of the processes that this user may see.")
            if "memory_total_bytes" not in found:
                notes.append("Memory: this driver does not report how much the card has.")
        pids = sorted(use.pids)
        found["processes"] = [(pid, believed.get(pid), use.percents.get(pid)) for pid in pids]
        found["computing"] = len(use.computing)
        found["processes_mono_s"] = processes.read_mono_s


@dataclass(slots=True)
class _Use:
    """The processes on one GPU."""

    pids: set[int] = field(default_factory=set)
    on_device: Counter[int] = field(default_factory=Counter)  # bytes by pid; missing: unknown
    on_host: Counter[int] = field(default_factory=Counter)
    computing: set[int] = field(default_factory=set)
    percents: dict[int, float] = field(default_factory=dict)  # by pid: of the busiest engine
    # How busy all processes together keep each engine, from 0 to 1; empty: unknown.
    engines: dict[bytes, float] = field(default_factory=dict)


_FdInfo = dict[bytes, bytes]  # fdinfo of a DRM client: values by key without "drm-"


class _Processes:
    """
    The processes on all GPUs: from their DRM clients, and from KFD, which ROCm uses.

    Only DRM clients of processes whose descriptors this user may list are seen. KFD shows all.
    """

    def __init__(self, root: str) -> None:
        self._proc = f"{root}/proc"
        self._kfd = f"{root}/sys/class/kfd/kfd"
        self._drm = root + DRM
        # By pid: nodes of GPUs by descriptor; when to search again; the interval.
        self._opened: dict[str, tuple[dict[str, str], float, float]] = {}
        self._clients: dict[tuple[str, bytes], _FdInfo] = {}  # by PCI address and client
        self.awake: set[str] = set()  # PCI addresses
        self.resting: set[str] = set()  # PCI addresses
        # A read that hangs must not take the cards' own figures with it.
        self._background = Background(_PATIENCE_S, linger_s=None)
        self.read_mono_s: float | None = None
        # By PCI address; None: the kernel does not answer.
        self.uses: dict[str, _Use] | None = {}

    def read(self, now_mono_s: float, soon: bool) -> bool:
        """
        List the processes if that is due; return whether it was.

        Args:
            now_mono_s: monotonic time of the request.
            soon: list them every second.
        """
        since = None if self.read_mono_s is None else now_mono_s - self.read_mono_s
        if since is not None and since < (_PROCESSES_MIN_S if soon else PROCESSES_S):
            return False
        question = Question(0, "processes")
        self.uses = self._background.ask(question, lambda: self._list(now_mono_s, since or 0.0))
        if self.uses is not None:
            self.read_mono_s = now_mono_s
        return self.uses is not None

    def _list(self, now_mono_s: float, seconds: float) -> dict[str, _Use]:
        uses: dict[str, _Use] = {}
        self._find_open(now_mono_s)
        self._read_clients(uses, seconds)
        self._read_kfd(uses)
        return uses

    def _find_open(self, now_mono_s: float) -> None:
        """Search processes for open GPUs: new ones often, others every 30 s."""
        before, self._opened = self._opened, {}
        for pid in filter(str.isdigit, sysfs_names(self._proc)):
            fds, due_mono_s, every_s = before.get(pid, ({}, 0.0, PROCESSES_S))
            if now_mono_s >= due_mono_s:
                folder = f"{self._proc}/{pid}/fd"
                names = sysfs_names(folder)[:_MAX_FDS]
                nodes = {fd: str(link_name(f"{folder}/{fd}")) for fd in names}
                fds = {fd: node for fd, node in nodes.items() if node.startswith(_NODES)}
                due_mono_s, every_s = now_mono_s + every_s, min(_RESCAN_S, every_s * 1.5)
            self._opened[pid] = fds, due_mono_s, every_s

    def _read_clients(self, uses: dict[str, _Use], seconds: float) -> None:
        """Read each DRM client once: several descriptors and processes may share it."""
        before, self._clients = self._clients, {}
        for pid, (fds, _, _) in self._opened.items():
            for fd, node in fds.items():
                if self._sleeps(node):  # xe wakes the card to answer
                    continue
                info = _pairs(f"{self._proc}/{pid}/fdinfo/{fd}", b":")
                info = {new: info[old] for old, new in _OLD_KEYS.items() if old in info} | info
                address = info.get(b"pdev", b"").decode("ascii", "replace")
                client = (address, info.get(b"client-id", f"{pid}/{fd}".encode()))
                if not address or client in self._clients:
                    continue
                self._clients[client] = info
                use = uses.setdefault(address, _Use())
                use.pids.add(int(pid))
                for held, regions in ((use.on_device, _ON_DEVICE), (use.on_host, _ON_HOST)):
                    if (size := _memory(info, regions)) is not None:
                        held[int(pid)] += size
                for name, share in _shares(info, before.get(client, {}), seconds):
                    use.engines[name] = use.engines.get(name, 0.0) + share
                    percent = min(100.0, 100 * share)
                    use.percents[int(pid)] = max(percent, use.percents.get(int(pid), 0.0))
                    if name in _COMPUTE and share > 0:
                        use.computing.add(int(pid))

    def _sleeps(self, node: str) -> bool:
        """Whether a node's GPU must not be woken. A partition has no PCI address."""
        address = link_name(f"{self._drm}/{node}/device") or ""
        return address in self.resting or (":" in address and address not in self.awake)

    def _read_kfd(self, uses: dict[str, _Use]) -> None:
        """Add ROCm's processes; one with a DRM client counts once, with the larger figure."""
        pids = list(filter(str.isdigit, sysfs_names(f"{self._kfd}/proc")))
        nodes = self._kfd_nodes() if pids else {}
        held: Counter[tuple[str, int]] = Counter()  # a GPU in several partitions has several nodes
        for pid in pids:
            for gpu_id, address in nodes.items():
                held[address, int(pid)] += _int(_read(f"{self._kfd}/proc/{pid}/vram_{gpu_id}")) or 0
        for (address, number), size in held.items():
            if size > 0:
                use = uses.setdefault(address, _Use())
                use.pids.add(number)
                use.computing.add(number)
                use.on_device[number] = max(size, use.on_device[number])
                use.percents.pop(number, None)  # engine times leave out ROCm's work
                use.engines.clear()

    def _kfd_nodes(self) -> dict[int, str]:
        """List the PCI address of each GPU of KFD, by its id there."""
        found = {}
        for folder in _folders(f"{self._kfd}/topology/nodes"):
            gpu_id, known = _int(_read(f"{folder}/gpu_id")), _pairs(f"{folder}/properties", b" ")
            place, domain = _int(known.get(b"location_id")), _int(known.get(b"domain")) or 0
            if gpu_id and place is not None:
                bus, device = place >> 8 & 0xFF, place >> 3 & 0x1F
                found[gpu_id] = f"{domain:04x}:{bus:02x}:{device:02x}.{place & 7}"
        return found


def _memory(info: _FdInfo, regions: tuple[bytes, ...]) -> int | None:
    """Add up a client's memory in regions with these names; None: the driver does not report it."""
    sizes: Counter[int] = Counter()  # by rank of the kind
    for key, value in info.items():
        kind, _, region = key.partition(b"-")
        if kind in _KINDS and region.startswith(regions):
            size, unit = _int(value), value.partition(b" ")[2]
            if size is not None and unit in _UNITS:
                sizes[_KINDS.index(kind)] += size * _UNITS[unit]
    return sizes[min(sizes)] if sizes else None


def _shares(now: _FdInfo, before: _FdInfo, seconds: float) -> Iterator[tuple[bytes, float]]:
    """Yield each engine, and how busy a client kept it since the last list, from 0 to 1."""
    for key in now.keys() & before.keys():
        kind, _, name = key.partition(b"-")
        if kind in (b"engine", b"cycles") and not name.startswith(b"capacity-"):
            total = _gained(b"total-cycles-" + name, now, before)
            passed = total if kind == b"cycles" else seconds * 1e9  # nanoseconds
            capacity = _int(now.get(b"engine-capacity-" + name)) or 1
            gained = _gained(key, now, before)
            if passed > 0 and gained >= 0:
                yield name, gained / passed / capacity


def _gained(key: bytes, now: _FdInfo, before: _FdInfo) -> int:
    return (_int(now.get(key)) or 0) - (_int(before.get(key)) or 0)


# Files


def _identify(root: str, folder: str, vendor: str) -> dict[str, Any]:
    """Name a GPU: as its own memory does, else as the list of PCI devices does, else by number."""
    maker = VENDORS.get(vendor, "AMD or Intel")
    number, device = vendor[2:], (sysfs_text(f"{folder}/device") or "0x?")[2:]
    name = sysfs_text(f"{folder}/product_name") or _listed_name(root, number, device)
    text = (name or f"GPU [{number}:{device}]").removeprefix(maker).strip()
    unique = sysfs_text(f"{folder}/unique_id")
    return {"name": f"{maker} {text}"} | ({"uuid": f"GPU-{unique}"} if unique else {})


def _listed_name(root: str, vendor: str, device: str) -> str:
    """Find a device's name in the distribution's pci.ids: "744c  Navi 31 [Radeon RX 7900 XT]"."""
    files = (read_or_empty(root + path, _MAX_IDS_BYTES) for path in _PCI_IDS)
    section = b"".join(files).decode("utf-8", "replace").partition(f"\n{vendor}  ")[2]
    own = re.split(r"\n(?=[0-9a-f])", section, maxsplit=1)[0]  # up to the next vendor
    name = own.partition(f"\n\t{device}  ")[2].partition("\n")[0]
    return name.partition("[")[2].partition("]")[0] or name


def _hottest_sensor(hwmon: str) -> str:
    """Find the sensor of the hottest part: "temp2"; empty: there is none."""
    sensors = re.findall(r"\b(temp\d+)_input\b", " ".join(sysfs_names(hwmon)))
    found = {sysfs_text(f"{hwmon}/{sensor}_label"): sensor for sensor in sensors}
    return next((found[label] for label in (*_HOTTEST, *found) if label in found), "")


def _find_files(table: _Files, places: dict[str, str]) -> _Paths:
    for name, factor, files in table:
        yield from ((name, file.format_map(places), factor) for file in files)


def _read_figures(files: _Paths, zero_is_none: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, path, factor in files:
        word = b"" if name in found else _read(path).partition(b" ")[0]
        number = _GENERATIONS.get(word, parse_number(word))
        if number or (number is not None and not zero_is_none):
            found[name] = number * factor
    return found


def _read(path: str) -> bytes:
    """Return a file without blanks around it; empty: missing, or not readable now."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read(_MAX_BYTES).strip()
    return b""


def _int(text: bytes | None) -> int | None:
    """Return the number at the beginning, before a unit; None: there is none, or it is negative."""
    return parse_number((text or b"").partition(b" ")[0])


def _pairs(path: str, separator: bytes) -> dict[bytes, bytes]:
    """Return the lines of a file as values by key; keys lose their "drm-"."""
    lines = (line.partition(separator) for line in _read(path).split(b"\n"))
    return {key.removeprefix(b"drm-"): value.strip() for key, _, value in lines}


def _folders(folder: str, prefix: str = "") -> list[str]:
    return [f"{folder}/{name}" for name in sysfs_names(folder) if name.startswith(prefix)]
