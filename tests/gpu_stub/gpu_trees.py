"""Machines with AMD and Intel GPUs, laid out as trees of /sys and /proc."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

GIB = 1 << 30
MIB = 1 << 20
VENDORS = {
    "amdgpu": "0x1002",
    "i915": "0x8086",
    "xe": "0x8086",
    "intel_vpu": "0x8086",
    "nvidia": "0x10de",
}
AMD_CARD = {
    "mem_info_vram_total": 24 * GIB,
    "mem_info_vram_used": 4 * GIB,
    "mem_info_gtt_total": 32 * GIB,
    "mem_info_gtt_used": GIB,
    "gpu_busy_percent": 87,
    "mem_busy_percent": 34,
    "product_name": "Radeon RX 7900 XTX",
    "unique_id": "d4a5f0c1b2e39876",
    "current_link_width": 16,
    "max_link_width": 16,
    "current_link_speed": "16.0 GT/s PCIe",
    "max_link_speed": "16.0 GT/s PCIe",
    "ras/umc_err_count": "ue: 2\nce: 5",
}
AMD_SENSORS = {
    "temp1_input": 51000,
    "temp1_label": "edge",
    "temp1_crit": 100000,
    "temp2_input": 68000,
    "temp2_label": "junction",
    "temp2_crit": 110000,
    "temp2_emergency": 115000,
    "temp3_input": 70000,
    "temp3_label": "mem",
    "power1_average": 251_000_000,
    "power1_cap": 327_000_000,
    "pwm1": 102,
    "freq1_input": 2_400_000_000,
    "freq2_input": 1_249_000_000,
}
APU = {
    "mem_info_vram_total": 512 * MIB,
    "mem_info_vram_used": 148 * MIB,
    "mem_info_gtt_total": 14 * GIB,
    "mem_info_gtt_used": 6 * GIB,
    "gpu_busy_percent": 12,
}
APU_SENSORS = {
    "temp1_input": 44000,
    "temp1_label": "edge",
    "power1_input": 9_000_000,
    "freq1_input": 800_000_000,
}
PCI_IDS = """#
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t1681  Rembrandt [Radeon 680M]
\t74a1  Aqua Vanjaram [Instinct MI300X]
\t\t1002 0001  Some board
1106  VIA Technologies, Inc.
\t744c  A device of another maker
8086  Intel Corporation
\t46a6  Alder Lake-P GT2 [Iris Xe Graphics]
\t56a0  DG2 [Arc A770]
\te20b  Battlemage G21 [Arc B580]
"""


class Tree:
    """One machine below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cards = 0
        self.write("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB")
        self.write("usr/share/misc/pci.ids", PCI_IDS)

    def write(self, path: str, text: object) -> Path:
        """Write a file with a line end, as the kernel does."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, whose target need not exist."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, file)

    def card(
        self,
        address: str,
        driver: str,
        device: str,
        files: Mapping[str, object] = {},
        sensors: Mapping[str, object] = {},
        *,
        kind: str = "0x030000",
        port: str = "",
    ) -> str:
        """
        Put a GPU on the bus; return its folder in /sys.

        Args:
            address: PCI address.
            driver: kernel driver.
            device: PCI device id, without 0x.
            files: of its folder.
            sensors: of its folder in hwmon.
            kind: PCI class.
            port: folders of the bridges above it.
        """
        number, self._cards = self._cards, self._cards + 1
        above = f"sys/devices/pci0000:00/{port}".rstrip("/")
        base = f"{above}/{address}"
        start = {"vendor": VENDORS[driver], "device": f"0x{device}", "class": kind}
        power = {"power/runtime_status": "active", "power/control": "on"}
        named = {"name": driver, **sensors} if sensors else {}
        for name, text in (start | power | dict(files)).items():
            self.write(f"{base}/{name}", text)
        for name, text in named.items():
            self.write(f"{base}/hwmon/hwmon{number + 2}/{name}", text)
        self.link(f"{base}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/devices/{address}", str(self.folder / base))
        for node in (f"card{number}", f"renderD{128 + number}"):
            self.write(f"{base}/drm/{node}/dev", f"226:{number}")
            self.link(f"{base}/drm/{node}/device", str(self.folder / base))
            self.link(f"sys/class/drm/{node}", str(self.folder / base / "drm" / node))
        return base

    def process(self, pid: int, *clients: Mapping[str, object], node: int = 128) -> None:
        """Let a process have these DRM clients open, and a few files that are none."""
        for number, target in enumerate(("/dev/null", "socket:[4711]", "/dev/dri/by-path")):
            self.link(f"proc/{pid}/fd/{number}", target)
        for number, client in enumerate(clients, 10):
            self.link(f"proc/{pid}/fd/{number}", f"/dev/dri/renderD{node}")
            self.client(pid, number, client)

    def client(self, pid: int, fd: int, client: Mapping[str, object]) -> None:
        """Write what the kernel says about one descriptor."""
        lines = [
            "pos:\t0",
            "flags:\t02100002",
            *(f"{key}:\t{text}" for key, text in client.items()),
        ]
        self.write(f"proc/{pid}/fdinfo/{fd}", "\n".join(lines))

    def kfd(self, addresses: Iterable[str], held: Mapping[int, Mapping[str, int]]) -> None:
        """
        Let ROCm know these GPUs.

        Args:
            addresses: PCI addresses.
            held: by pid, the bytes on each address.
        """
        ids = {address: 1000 + number for number, address in enumerate(addresses)}
        nodes = "sys/class/kfd/kfd/topology/nodes"
        self.write(f"{nodes}/0/gpu_id", 0)  # the processor
        self.write(f"{nodes}/0/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0")
        for number, (address, gpu_id) in enumerate(ids.items(), 1):
            domain, bus, rest = address.split(":")
            device, function = rest.split(".")
            place = int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
            self.write(f"{nodes}/{number}/gpu_id", gpu_id)
            lines = f"simd_count 304\nlocation_id {place}\ndomain {int(domain, 16)}"
            self.write(f"{nodes}/{number}/properties", f"{lines}\ndrm_render_minor {127 + number}")
        for pid, sizes in held.items():
            for address, gpu_id in ids.items():
                self.write(f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", sizes.get(address, 0))


def amd_client(address: str, client: int, vram: int, gtt: int = 0, **more: object) -> dict:
    """What amdgpu of Linux 6.13 and later says about a client, bytes in KiB."""
    return {
        "drm-driver": "amdgpu",
        "drm-client-id": client,
        "drm-pdev": address,
        "pasid": 32771,
        "drm-total-cpu": 0,
        "drm-total-gtt": f"{gtt >> 10} KiB",
        "drm-resident-gtt": f"{gtt >> 10} KiB",
        "drm-total-vram": f"{(vram >> 10) + 4096} KiB",
        "drm-shared-vram": "4096 KiB",
        "drm-resident-vram": f"{vram >> 10} KiB",
        "drm-memory-vram": f"{(vram >> 10) + 8} KiB",
        "amd-evicted-vram": "0 KiB",
        "drm-engine-gfx": "8000000 ns",
        **{f"drm-engine-{name}": f"{ticks} ns" for name, ticks in more.items()},
    }


def old_amd_client(address: str, client: int, vram: int, gtt: int = 0) -> dict:
    """What amdgpu of Linux 5.19 to 6.12 says."""
    return {
        "drm-driver": "amdgpu",
        "drm-pdev": address,
        "drm-client-id": client,
        "drm-memory-vram": f"{vram >> 10} KiB",
        "drm-memory-gtt": f"{gtt >> 10} KiB",
        "drm-memory-cpu": "0 KiB",
    }


def i915_client(address: str, client: int, device: int, host: int, compute_ns: int = 0) -> dict:
    """What i915 of Linux 6.5 and later says; an integrated GPU has no region `local0`."""
    local = {"drm-total-local0": f"{device + MIB}", "drm-resident-local0": f"{device >> 20} MiB"}
    return {
        "drm-driver": "i915",
        "drm-client-id": client,
        "drm-pdev": address,
        "drm-total-system0": f"{host >> 20} MiB",
        "drm-resident-system0": f"{host >> 20} MiB",
        "drm-resident-stolen-system0": "7 MiB",
        **(local if device else {}),
        "drm-engine-render": "9288864723 ns",
        "drm-engine-copy": "2035071108 ns",
        "drm-engine-video": "0 ns",
        "drm-engine-capacity-video": 2,
        "drm-engine-compute": f"{compute_ns} ns",
    }


def xe_client(address: str, client: int, vram: int, busy: int = 0, total: int = 0) -> dict:
    """What xe says."""
    return {
        "drm-driver": "xe",
        "drm-client-id": client,
        "drm-pdev": address,
        "drm-total-system": 0,
        "drm-resident-gtt": "192 KiB",
        "drm-total-vram0": f"{(vram >> 10) + 100} KiB",
        "drm-resident-vram0": f"{vram >> 10} KiB",
        "drm-resident-stolen": 0,
        "drm-cycles-rcs": 28257900,
        "drm-total-cycles-rcs": total,
        "drm-cycles-ccs": busy,
        "drm-total-cycles-ccs": total,
        "drm-engine-capacity-ccs": 1,
    }


A, B, HOST = "0000:03:00.0", "0000:43:00.0", "0000:00:02.0"
SWITCH = "0000:00:01.0/0000:01:00.0/0000:02:00.0"
ARC_SENSORS = {
    "temp1_input": 55000,
    "energy1_input": 1_000_000_000,
    "power1_max": 190_000_000,
    "fan1_input": 1200,
}
XE_SENSORS = {
    "temp2_input": 61000,
    "temp2_label": "pkg",
    "temp2_crit": 100000,
    "temp2_emergency": 105000,
    "temp3_input": 70000,
    "temp3_label": "vram",
    "energy1_input": 5_000_000,
    "energy1_label": "card",
    "power1_max": 0,
    "power2_max": 190_000_000,
}
ARC_FREQUENCIES = {"drm/card0/gt_act_freq_mhz": 2100, "drm/card0/gt_RP0_freq_mhz": 2400}


def amd_new(tree: Tree) -> None:
    """One card behind its own switch, Linux 6.13 or later."""
    base = tree.card(A, "amdgpu", "744c", AMD_CARD, AMD_SENSORS, port=SWITCH)
    port = base.rsplit("/", 2)[0]
    slot = {"vendor": "0x1002", "current_link_width": 8, "max_link_width": 16}
    speed = {"current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe"}
    for name, text in (slot | speed).items():
        tree.write(f"{port}/{name}", text)
    shared = amd_client(A, 7, 3 * GIB, 2 * GIB, compute=1000)
    tree.process(100, shared, shared)
    tree.process(101, shared, amd_client(A, 8, GIB // 2))
    tree.process(102)


def amd_old(tree: Tree) -> None:
    """One card, Linux 6.1: no resident memory, no mem_busy_percent, no name."""
    files = {
        key: AMD_CARD[key] for key in AMD_CARD if not key.startswith(("product", "mem_busy", "ras"))
    }
    tree.card(A, "amdgpu", "687f", files, AMD_SENSORS)
    tree.process(100, old_amd_client(A, 7, 3 * GIB, 2 * GIB))


def apu(tree: Tree) -> None:
    """A notebook's processor with graphics: little VRAM, much GTT."""
    tree.card("0000:e3:00.0", "amdgpu", "1681", APU, APU_SENSORS)
    tree.process(100, amd_client("0000:e3:00.0", 3, 100 * MIB, 5 * GIB))


def amd_two(tree: Tree) -> None:
    """Two cards; one process uses both, and the client ids of the cards are the same."""
    for address in (A, B):
        tree.card(address, "amdgpu", "744c", AMD_CARD, AMD_SENSORS)
    tree.process(100, amd_client(A, 7, 2 * GIB), amd_client(B, 7, 3 * GIB))


def arc(tree: Tree) -> None:
    """Arc A770 with i915."""
    tree.card(A, "i915", "56a0", ARC_FREQUENCIES, ARC_SENSORS)
    tree.write(f"sys/devices/pci0000:00/{A}/hwmon/hwmon1/name", "i915_gt0")
    tree.process(100, i915_client(A, 7, 6 * GIB, GIB))
    tree.process(101, i915_client(A, 8, GIB, GIB))


def integrated(tree: Tree) -> None:
    """A notebook with i915."""
    tree.card(HOST, "i915", "46a6", {"drm/card0/gt_act_freq_mhz": 1300})
    tree.card("0000:00:0b.0", "intel_vpu", "643e", kind="0x120000")  # Intel's AI engine is no GPU
    tree.process(100, i915_client(HOST, 7, 0, GIB))


def battlemage(tree: Tree) -> None:
    """Arc B580 with xe."""
    files = {
        "tile0/physical_vram_size_bytes": 12 * GIB,
        "tile0/gt0/freq0/act_freq": 2850,
        "tile0/gt0/freq0/rp0_freq": 2900,
    }
    tree.card(A, "xe", "e20b", files, XE_SENSORS)
    tree.process(100, xe_client(A, 7, 5 * GIB, 1_000, 100_000))


def mixed(tree: Tree) -> None:
    """Two cards of NVIDIA's, and one of AMD's between them on the bus."""
    for address in ("0000:05:00.0", "0000:65:00.0"):
        tree.card(address, "nvidia", "2204")
    tree.card("0000:43:00.0", "amdgpu", "744c", AMD_CARD, AMD_SENSORS)


def instinct(tree: Tree) -> None:
    """Two MI300X whose processes are another user's: only KFD shows them."""
    files = AMD_CARD | {
        "mem_info_vram_total": 192 * GIB,
        "mem_info_gtt_total": 1024 * GIB,
        "mem_info_vram_used": 100 * GIB,
    }
    del files["product_name"]
    sensors = {"temp2_input": 60000, "temp2_label": "junction", "power1_input": 700_000_000}
    for address in (A, B):
        tree.card(address, "amdgpu", "74a1", files, sensors, kind="0x120000")
    tree.kfd((A, B), {100: {A: 90 * GIB, B: 80 * GIB}, 101: {B: 10 * GIB}})
    for pid in (100, 101):
        tree.process(pid)


def first_fdinfo(tree: Tree) -> None:
    """Linux 5.14 to 5.18 with amdgpu: other keys, and no client id."""
    tree.card(A, "amdgpu", "744c", AMD_CARD, AMD_SENSORS)
    sizes = {"vram mem": f"{3 * MIB} kB", "gtt mem": "1024 kB", "cpu mem": "0 kB"}
    client = {"pdev": A, "pasid": 32771, **sizes, "gfx0": "12.34%"}
    tree.process(100, client, client)


def partitions(tree: Tree) -> None:
    """MI300X in mode CPX: each partition has a node of its own, below no PCI device."""
    files = AMD_CARD | {"mem_info_vram_total": 192 * GIB, "product_name": "AMD Instinct MI300X"}
    sensors = {"temp2_input": 60000, "temp2_label": "junction"}
    tree.card(A, "amdgpu", "74a1", files, sensors, kind="0x120000")
    for number in range(1, 8):
        device = f"sys/devices/platform/amdgpu_xcp.{number}"
        for node in (f"card{number}", f"renderD{128 + number}"):
            tree.write(f"{device}/drm/{node}/dev", f"226:{number}")
            tree.link(f"{device}/drm/{node}/device", str(tree.folder / device))
            tree.link(f"sys/class/drm/{node}", str(tree.folder / device / "drm" / node))
    tree.process(100, amd_client(A, 7, 10 * GIB), node=130)
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for number in range(8):  # Linux 6.9: the number of the partition is in the highest bits
        tree.write(f"{nodes}/{number}/gpu_id", 1000 + number)
        tree.write(f"{nodes}/{number}/properties", f"location_id {number << 28 | 0x300}\ndomain 0")
        tree.write(f"sys/class/kfd/kfd/proc/200/vram_{1000 + number}", GIB)


def virtual_function(tree: Tree) -> None:
    """A part of a Radeon Pro V710 in a virtual machine with much RAM: no sensors."""
    files = {"mem_info_vram_total": 24 * GIB, "mem_info_vram_used": GIB}
    tree.card(A, "amdgpu", "7461", files | {"mem_info_gtt_total": 55 * GIB})


def mi300a(tree: Tree) -> None:
    """A processor whose RAM is the VRAM; the driver counts no use of it."""
    files = {"mem_info_vram_total": 128 * GIB, "mem_info_vram_used": 0}
    sensors = {"temp2_input": 60000, "temp2_label": "junction"}
    files |= {"mem_info_gtt_total": 64 * GIB, "product_name": "AMD Instinct MI300A"}
    tree.card(A, "amdgpu", "74a0", files, sensors, kind="0x120000")


def carve_out(tree: Tree) -> None:
    """Strix Halo, whose firmware gives 96 GiB to the graphics: those are not the system's RAM."""
    files = {"mem_info_vram_total": 96 * GIB, "mem_info_vram_used": 50 * GIB}
    tree.card(A, "amdgpu", "1586", APU | files, APU_SENSORS)


def arc_with_xe(tree: Tree) -> None:
    """Arc A770 with xe: sensors of the package only."""
    sensors = {"temp2_input": 50000, "temp2_label": "pkg", "energy2_label": "pkg"}
    tree.card(A, "xe", "56a0", {}, sensors | {"energy2_input": 1_000_000_000})


def hybrid(tree: Tree) -> None:
    """A notebook: an APU that draws the screen, and an idle card that the kernel may suspend."""
    tree.card(A, "amdgpu", "1681", APU, APU_SENSORS)
    files = AMD_CARD | {"gpu_busy_percent": 0, "power/control": "auto"}
    tree.card(B, "amdgpu", "744c", files, AMD_SENSORS)
    tree.process(100, amd_client(B, 7, 20 * MIB), node=129)  # a desktop opens every card


MACHINES: dict[str, Callable[[Tree], None]] = {
    each.__name__: each
    for each in (
        amd_new, amd_old, apu, amd_two, arc, integrated, battlemage, mixed, instinct, first_fdinfo,
        partitions, virtual_function, mi300a, carve_out, arc_with_xe, hybrid,
    )
}  # fmt: skip


def crowded(tree: Tree, driver: str, cards: int, processes: int) -> None:
    """Put many cards with many processes each on a machine, for measurements."""
    addresses = [f"0000:{0x20 + number:02x}:00.0" for number in range(cards)]
    held: dict[int, dict[str, int]] = {}
    for number, address in enumerate(addresses):
        if driver == "amdgpu":
            tree.card(address, driver, "74a1", AMD_CARD, AMD_SENSORS)
        else:
            tree.card(address, driver, "e20b", {}, XE_SENSORS)
        for place in range(processes):
            pid = 1000 + number * processes + place
            if driver == "amdgpu":
                tree.process(pid, *(amd_client(address, pid, GIB) for _ in range(2)))
                held[pid] = {address: GIB}
            else:
                tree.process(pid, *(xe_client(address, pid, GIB // 2) for _ in range(2)))
    if held:
        tree.kfd(addresses, held)
