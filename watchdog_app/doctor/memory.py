"""RAM, swap, and what limits a training below them."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.base.linux.cgroups import Layout, parse_membership
from watchdog_app.base.text.quantities import GIB, format_bytes
from watchdog_app.core.model.machine import CgroupMemory
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked
from watchdog_app.doctor.machine import Machine
from watchdog_app.machine.sensors.groups import GroupSensor
from watchdog_app.machine.sensors.host import parse_meminfo

_MAKE_SWAP = (
    "sudo fallocate -l 8G /swapfile && sudo chmod 600 /swapfile",
    "sudo mkswap /swapfile && sudo swapon /swapfile",
    "echo '/swapfile none swap sw 0 0' | sudo tee -a /etc/fstab",
)


def check(facts: Facts) -> Iterator[Finding]:
    """The machine as a whole, then its groups."""
    memory = facts.memory()
    if memory is None:
        yield unchecked("memory.ram", "RAM", "/proc/meminfo cannot be read")
    else:
        yield _ram(facts, memory.available_bytes, memory.total_bytes)
        yield from _swap(
            facts.machine, memory.swap_total_bytes, memory.swap_free_bytes, memory.total_bytes
        )
    yield from _overcommit(facts.machine)
    yield from _swappiness(facts.machine, bool(memory and memory.swap_total_bytes))
    yield from _groups(facts, memory.total_bytes if memory else None)
    pages = facts.machine.read("/sys/kernel/mm/transparent_hugepage/enabled")
    if pages:
        yield fine("memory.huge-pages", f"Transparent huge pages: {pages}.")


def _ram(facts: Facts, available: int, total: int) -> Finding:
    shown = f"{format_bytes(available)} of {format_bytes(total)} of RAM is available"
    if available >= 0.15 * total:
        return fine("memory.ram", f"{shown}.")
    largest = sorted(facts.processes(), key=lambda one: one.rss_bytes or 0, reverse=True)[:5]
    return Finding(
        "memory.ram",
        Severity.ERROR if available < 0.05 * total else Severity.WARNING,
        f"Only {shown} now.",
        "A training that starts here fills the rest within minutes; the kernel kills the largest "
        "process then, which is the training.",
        "End what is no longer needed, idle notebook kernels first.",
        ("watchdog status --all",),
        tuple(f"pid {one.pid} {one.name}: {format_bytes(one.rss_bytes)}" for one in largest),
    )


def _swap(machine: Machine, total: int, free: int, ram: int) -> Iterator[Finding]:
    if not total:
        yield Finding(
            "memory.swap",
            Severity.WARNING,
            "This machine has no swap.",
            "When RAM is full, nothing slows the fall: from 'getting tight' to the kernel's kill "
            "it can take under a second, too short for a checkpoint.",
            _more_swap(machine, "Some GiB of swap give watchdog the seconds that a save takes."),
            _make_swap(machine),
        )
        return
    entries = [line.split() for line in (machine.read("/proc/swaps") or "").splitlines()[1:]]
    names = [words[0] for words in entries if words]
    slow = [name for name in names if _rotational(machine, name)]
    details = tuple(f"swap on {name}" for name in names)
    if free < 0.1 * total:
        yield Finding(
            "memory.swap-full",
            Severity.WARNING,
            f"Swap is nearly full: {format_bytes(free)} of {format_bytes(total)} is free.",
            "There is no room left to slow a growing training down.",
            "End what is no longer needed, then empty the swap while there is RAM for it.",
            ("watchdog status --all", "sudo swapoff -a && sudo swapon -a"),
            details,
        )
    elif total < min(GIB, ram // 16):
        yield Finding(
            "memory.swap",
            Severity.WARNING,
            f"Swap is only {format_bytes(total)} beside {format_bytes(ram)} of RAM.",
            "It is full within a second of a growing training: too short for a checkpoint.",
            _more_swap(machine, "Make it some GiB large."),
            _make_swap(machine),
            details,
        )
    elif slow:
        yield Finding(
            "memory.swap-slow",
            Severity.INFO,
            f"Swap is on a spinning disk ({', '.join(slow)}).",
            "Once a training is swapped out, the whole machine waits for that disk.",
            "Swap on an SSD, or compressed in RAM (zram), is 10 to 100 times faster.",
            (
                "sudo apt install zram-tools"
                if machine.distribution() in ("debian", "ubuntu")
                else "zramctl",
            ),
            details,
        )
    else:
        compressed = any("zram" in name for name in names)
        yield fine(
            "memory.swap",
            f"Swap: {format_bytes(total)}" + (" compressed in RAM (zram)." if compressed else "."),
            *details,
        )


def _more_swap(machine: Machine, else_: str) -> str:
    if machine.container:
        return "Ask whoever runs the host for swap."
    if machine.is_wsl:
        return (
            "WSL makes its own: write swap=8GB below [wsl2] in the file .wslconfig of your Windows "
            "home folder (memory= there limits the RAM), then in Windows:"
        )
    return else_


def _make_swap(machine: Machine) -> tuple[str, ...]:
    if machine.container:
        return ()
    return ("wsl --shutdown",) if machine.is_wsl else _MAKE_SWAP


def _rotational(machine: Machine, name: str) -> bool:
    """Whether a swap device is on a disk that turns."""
    device = name.removeprefix("/dev/")
    if device == name or not device or "zram" in device:
        return False
    link = machine.link("/sys/class/block", device)
    if link and machine.number("/sys/class/block", device, "partition"):
        device = link.rstrip("/").split("/")[-2]
    return machine.number("/sys/block", device, "queue/rotational") == 1


def _overcommit(machine: Machine) -> Iterator[Finding]:
    mode = machine.number("/proc/sys/vm/overcommit_memory")
    if mode is None:
        yield unchecked("memory.overcommit", "vm.overcommit_memory", "it cannot be read")
        return
    if mode != 2:
        yield fine(
            "memory.overcommit",
            f"vm.overcommit_memory is {mode}: memory may be promised beyond what there is.",
        )
        return
    values = parse_meminfo((machine.read("/proc/meminfo") or "").encode())
    limit, used = values.get(b"CommitLimit"), values.get(b"Committed_AS")
    ratio = machine.number("/proc/sys/vm/overcommit_ratio")
    left = f"{format_bytes(limit - used)} of {format_bytes(limit)}" if limit and used else "N/A"
    yield Finding(
        "memory.overcommit",
        Severity.ERROR,
        f"vm.overcommit_memory is 2 (ratio {ratio} %): the kernel refuses memory that it could "
        f"not back; {left} is left to be promised.",
        "Python, CUDA and TensorFlow reserve far more than they use, and a fork for a "
        "DataLoader counts twice: 'Cannot allocate memory' while RAM is still free.",
        "Let the kernel use its judgement.",
        (
            "sudo sysctl vm.overcommit_memory=0",
            "echo vm.overcommit_memory=0 | sudo tee /etc/sysctl.d/90-overcommit.conf",
        ),
    )


def _swappiness(machine: Machine, has_swap: bool) -> Iterator[Finding]:
    value = machine.number("/proc/sys/vm/swappiness")
    if value is None or not has_swap:
        return
    if value == 0:
        yield Finding(
            "memory.swappiness",
            Severity.INFO,
            "vm.swappiness is 0: swap is used only when it is nearly too late.",
            "Swap then hardly slows a training down before the kernel kills it.",
            "Let it begin earlier.",
            ("sudo sysctl vm.swappiness=10",),
        )
    else:
        yield fine("memory.swappiness", f"vm.swappiness is {value}.")


def _groups(facts: Facts, ram: int | None) -> Iterator[Finding]:
    """Limits of the control groups above this shell and above the user's Python programs."""
    machine = facts.machine
    members: dict[str, list[str]] = {}
    layout = Layout.discover(
        (machine.read("/proc/self/mountinfo") or "").encode(), machine.path("/sys/fs/cgroup")
    )
    mine = [
        one
        for one in facts.processes()
        if one.uid == machine.uid and one.argv and "python" in one.argv[0]
    ]
    for pid, name in (("self", "this shell"), *((str(one.pid), f"pid {one.pid}") for one in mine)):
        membership = machine.read("/proc", pid, "cgroup")
        group = layout.locate(membership.encode()) if membership else None
        if group is not None:
            members.setdefault(group, []).append(name)
    reader = GroupSensor(layout)
    try:
        limited = reader.read(members, 0.0)
    finally:
        reader.close()
    found = False
    for each in limited:
        limits = [one for one in (each.limit_bytes, each.high_bytes) if one is not None]
        if not limits or (ram is not None and min(limits) >= ram):
            continue
        limit = min(limits)
        found = True
        inside = [
            name
            for leaf, names in members.items()
            if leaf == each.path or leaf.startswith(f"{each.path}/")
            for name in names
        ]
        yield _limited(each, limit, inside)
    if not found:
        trees = layout.hierarchies
        where = f"control group v{trees[0].version}" if trees else "no control groups"
        yield fine("memory.group", f"No group limits the memory of this shell ({where}).")
    yield from _pids(machine)


def _limited(group: CgroupMemory, limit: int, inside: list[str]) -> Finding:
    used = max(0, group.usage_bytes - group.inactive_file_bytes)
    name = group.path.rstrip("/").rpartition("/")[2] or "/"
    shown = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
    details = [f"group: {group.path}", f"holds: {shown}"]
    if group.oom_kills:
        details.append(f"the kernel has killed {group.oom_kills} processes in it")
    throttled = group.limit_bytes is None or (
        group.high_bytes is not None and group.high_bytes < group.limit_bytes
    )
    tight = limit - used < 0.15 * limit
    # Kills of long ago in a group that is nearly empty by now are told, and warn of nothing.
    deadly = group.oom_kills and used >= 0.25 * limit
    return Finding(
        "memory.group",
        Severity.WARNING if tight or deadly or limit < 2 * GIB else Severity.INFO,
        f"The control group {name} limits {shown} to {format_bytes(limit)}; "
        f"{format_bytes(used)} is used.",
        "Beyond it the group is slowed until it hardly moves (memory.high)."
        if throttled
        else "The kernel kills a process in it at that limit, while the machine still has RAM. "
        "watchdog watches this limit.",
        "Raise the limit where it was set: docker run --memory, the pod's resources, the batch "
        "job's request, or the systemd unit.",
        (f"systemctl show --property=MemoryMax,MemoryHigh {name}",)
        if name.endswith((".service", ".scope", ".slice"))
        else ("docker update --memory 16g --memory-swap 16g CONTAINER",)
        if "docker" in group.path
        else (),
        tuple(details),
    )


def _pids(machine: Machine) -> Iterator[Finding]:
    paths = parse_membership((machine.read("/proc/self/cgroup") or "").encode())
    for controller, folder in (("pids", "/sys/fs/cgroup/pids"), ("", "/sys/fs/cgroup")):
        path = paths.get(controller)
        if path is None:
            continue
        most = machine.number(folder, path, "pids.max")
        now = machine.number(folder, path, "pids.current")
        if most is not None and most < 512:
            yield Finding(
                "memory.pids",
                Severity.WARNING,
                f"This group may hold {most} threads and processes; it holds "
                f"{now if now is not None else 'N/A'}.",
                "TensorFlow starts some hundreds of threads, and each DataLoader worker as many: "
                "'Resource temporarily unavailable' ends the training.",
                "Raise the limit.",
                ("docker run --pids-limit 4096 IMAGE",),
            )
