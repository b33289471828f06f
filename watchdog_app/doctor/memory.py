"""RAM, swap, lower limits for a training, and programs that end it when memory is short."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchdog_app.base.linux.cgroups import Layout, parse_membership
from watchdog_app.base.text.quantities import GIB, format_bytes
from watchdog_app.core.model.machine import CgroupMemory, HostMemory
from watchdog_app.core.model.readings import is_guard
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.machine import Machine, Process
from watchdog_app.machine.sensors.groups import GroupSensor
from watchdog_app.machine.sensors.host import parse_meminfo

_FEW_THREADS = 512
_OPTION = re.compile(r"(?<!\S)(--?[a-z-]+)[ =](?=(\S+))")  # `-m 5`, `--prefer=python`
# Limits of the shell: the key of `Machine.limits()`, the entry, and the value from which the limit
# is harmless; None: any limit is a problem.
_LIMITS = (
    ("address_space", "memory.address-space", None),
    ("data", "memory.data-segment", None),
    ("file_size", "memory.file-size", None),
    ("cpu_s", "memory.cpu-time", None),
    ("open_files", "memory.open-files", 1024),
    ("processes", "memory.processes", 1024),
)
# Folders of systemd's settings, highest priority first. Source: man logind.conf.
_SYSTEMD = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")


def check(facts: Facts) -> Iterator[Finding]:
    """Check the machine as a whole, then its control groups."""
    memory = facts.memory()
    if memory is None:
        yield facts.finding("memory.ram")
    else:
        yield _ram(facts, memory)
        yield _swap(facts, memory)
    yield _overcommit(facts)
    swappiness = facts.machine.number("/proc/sys/vm/swappiness")
    if swappiness is not None and memory and memory.swap_total_bytes:
        tell = facts.fine if swappiness else facts.finding
        yield tell("memory.swappiness", value=swappiness)
    yield from _groups(facts, memory.total_bytes if memory else None)
    yield from _threads(facts)
    if pages := facts.machine.read("/sys/kernel/mm/transparent_hugepage/enabled"):
        yield facts.fine("memory.huge-pages", value=pages)


def _ram(facts: Facts, memory: HostMemory) -> Finding:
    available, total = memory.available_bytes, memory.total_bytes
    if available >= 0.15 * total:
        return facts.fine("memory.ram", available=available, total=total)
    largest = sorted(facts.processes(), key=lambda one: one.rss_bytes or 0, reverse=True)[:5]
    return facts.finding(
        "memory.ram.short",
        *(f"pid {one.pid} {one.name}: {format_bytes(one.rss_bytes)}" for one in largest),
        severity=Severity.ERROR if available < 0.05 * total else Severity.WARNING,
        available=available,
        total=total,
    )


def _swap(facts: Facts, memory: HostMemory) -> Finding:
    total, free = memory.swap_total_bytes, memory.swap_free_bytes
    if not total:
        return facts.finding("memory.swap.none")
    lines = (facts.machine.read("/proc/swaps") or "").splitlines()[1:]
    names = [line.split()[0] for line in lines if line.split()]
    details = [f"swap on {name}" for name in names]
    if free < 0.1 * total:
        return facts.finding("memory.swap-full", *details, free=free, total=total)
    if total < min(GIB, memory.total_bytes // 16):
        return facts.finding("memory.swap.little", *details, total=total, ram=memory.total_bytes)
    if slow := [name for name in names if _rotates(facts.machine, name)]:
        return facts.finding("memory.swap-slow", *details, disks=slow)
    compressed = " compressed in RAM (zram)" if any("zram" in name for name in names) else ""
    return facts.fine("memory.swap", *details, total=total, compressed=compressed)


def _rotates(machine: Machine, name: str) -> bool:
    """Return whether a swap device is on a spinning disk."""
    device = name.removeprefix("/dev/")
    link = machine.link("/sys/class/block", device)
    if link and machine.number("/sys/class/block", device, "partition"):
        device = link.rstrip("/").split("/")[-2]
    return machine.number("/sys/block", device, "queue/rotational") == 1 and "zram" not in device


def _overcommit(facts: Facts) -> Finding:
    machine = facts.machine
    mode = machine.number("/proc/sys/vm/overcommit_memory")
    if mode is None:
        return facts.finding("memory.overcommit")
    if mode != 2:
        return facts.fine("memory.overcommit", mode=mode)
    values = parse_meminfo((machine.read("/proc/meminfo") or "").encode())
    limit, used = values.get(b"CommitLimit"), values.get(b"Committed_AS")
    left = limit - used if limit and used else None
    ratio = machine.number("/proc/sys/vm/overcommit_ratio")
    return facts.finding("memory.overcommit.strict", ratio=ratio, left=left, limit=limit)


def _groups(facts: Facts, ram: int | None) -> Iterator[Finding]:
    """Check the limits of the control groups above this shell and the user's Python programs."""
    machine = facts.machine
    layout = Layout.discover(
        (machine.read("/proc/self/mountinfo") or "").encode(), machine.path("/sys/fs/cgroup")
    )
    processes = {"self": "this shell"} | {
        str(one.pid): f"pid {one.pid}"
        for one in facts.processes()
        if one.uid == machine.uid and one.argv and "python" in one.argv[0]
    }
    members: dict[str, list[str]] = {}
    for pid, name in processes.items():
        membership = machine.read("/proc", pid, "cgroup")
        group = layout.locate(membership.encode()) if membership else None
        if group is not None:
            members.setdefault(group, []).append(name)
    reader = GroupSensor(layout)
    try:
        groups = reader.read(members, 0.0)
    finally:
        reader.close()
    found = False
    for each in groups:
        limits = [one for one in (each.limit_bytes, each.high_bytes) if one is not None]
        # A guard does not let the kernel kill at its limit; `watchdog limit` shows it.
        if limits and not is_guard(each.path) and (ram is None or min(limits) < ram):
            found = True
            yield _limited(facts, each, min(limits), members)
    if not found:
        trees = layout.hierarchies
        kind = f"control group v{trees[0].version}" if trees else "no control groups"
        yield facts.fine("memory.group", kind=kind)


def _limited(
    facts: Facts, group: CgroupMemory, limit: int, members: dict[str, list[str]]
) -> Finding:
    inside = [
        name
        for leaf, names in members.items()
        if f"{leaf}/".startswith(f"{group.path}/")
        for name in names
    ]
    shown = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
    used = max(0, group.usage_bytes - group.inactive_file_bytes)
    name = group.path.rstrip("/").rpartition("/")[2] or "/"
    slows = group.limit_bytes is None or (
        group.high_bytes is not None and group.high_bytes < group.limit_bytes
    )
    kills = f"the kernel has killed {group.oom_kills} processes in it"
    tight = limit - used < 0.15 * limit
    # Report kills of long ago in a group that is now nearly empty, but do not warn about them.
    deadly = group.oom_kills and used >= 0.25 * limit
    command = ""
    if name.endswith((".service", ".scope", ".slice")):
        command = f"systemctl show --property=MemoryMax,MemoryHigh {name}"
    elif "docker" in group.path:
        command = "docker update --memory 16g --memory-swap 16g CONTAINER"
    return facts.finding(
        f"memory.group.{'slows' if slows else 'kills'}",
        f"group: {group.path}",
        f"holds: {shown}",
        *((kills,) if group.oom_kills else ()),
        severity=Severity.WARNING if tight or deadly or limit < 2 * GIB else Severity.INFO,
        name=name,
        members=shown,
        limit=limit,
        used=used,
        command=command,
    )


def _threads(facts: Facts) -> Iterator[Finding]:
    """Check how many threads this shell's group may have."""
    machine = facts.machine
    paths = parse_membership((machine.read("/proc/self/cgroup") or "").encode())
    for controller, folder in (("pids", "/sys/fs/cgroup/pids"), ("", "/sys/fs/cgroup")):
        path = paths.get(controller)
        most = None if path is None else machine.number(folder, path, "pids.max")
        if path is not None and most is not None and most < _FEW_THREADS:
            now = machine.number(folder, path, "pids.current")
            yield facts.finding("memory.pids", most=most, now="N/A" if now is None else now)


def shell_limits(facts: Facts) -> Iterator[Finding]:
    """Check the limits that a training inherits from the shell (ulimit)."""
    limits = facts.machine.limits()
    found = False
    for key, entry, enough in _LIMITS:
        limit = limits.get(key)
        if limit is not None and (enough is None or limit < enough):
            found = True
            # A checkpoint often exceeds a GiB, so a larger limit is only a warning.
            mild = key == "file_size" and limit >= GIB
            yield facts.finding(entry, severity=Severity.WARNING if mild else None, limit=limit)
    if not found:
        files, count = limits.get("open_files"), limits.get("processes")
        details = (f"open files: {files or 'unlimited'}", f"processes: {count or 'unlimited'}")
        yield facts.fine("memory.limits", *details)


def killers(facts: Facts) -> Iterator[Finding]:
    """Report daemons that end processes when memory is short, and logind, which can at log-out."""
    found = False
    for process in facts.processes():
        known = {"nohang": "memory.nohang", "systemd-oomd": "memory.systemd-oomd"}
        entry = known.get(process.name.partition("-desktop")[0])
        if process.name == "earlyoom":
            yield _earlyoom(facts, process)
        elif entry:
            yield facts.finding(entry)
        found = found or process.name == "earlyoom" or bool(entry)
    if not found:
        yield facts.fine("memory.killers")
    if _kills_at_log_out(facts.machine):
        yield facts.finding("memory.log-out")


def _earlyoom(facts: Facts, process: Process) -> Finding:
    line = " ".join(process.argv)
    options = dict(_OPTION.findall(line))
    prefers = _names_python(options.get("--prefer", ""))
    spares = _names_python(options.get("--avoid", ""))
    return facts.finding(
        "memory.earlyoom.prefers-python" if prefers else "memory.earlyoom",
        f"command line: {line}",
        memory=options.get("-m", "10").partition(",")[0],
        swap=options.get("-s", "10").partition(",")[0],
        spared=", Python last (--avoid)" if spares else "",
    )


def _names_python(pattern: str) -> bool:
    try:
        return bool(pattern) and re.search(pattern, "python3") is not None
    except re.error:
        return False


def _kills_at_log_out(machine: Machine) -> bool:
    value = ""
    for path in _logind_files(machine):
        for line in (machine.read(path) or "").splitlines():
            key, _, word = line.partition("=")
            if key.strip() == "KillUserProcesses":
                value = word.strip().lower()
    return value in ("yes", "true", "1", "on")


def _logind_files(machine: Machine) -> list[str]:
    """Return logind's files in the order in which it reads them: a later value wins."""
    mains = [f"{folder}/logind.conf" for folder in _SYSTEMD]
    drop_ins: dict[str, str] = {}
    for folder in _SYSTEMD:
        for name in machine.names(folder, "logind.conf.d"):
            if name.endswith(".conf"):
                drop_ins.setdefault(name, f"{folder}/logind.conf.d/{name}")
    main = [path for path in mains if machine.exists(path)][:1]
    return [*main, *(drop_ins[name] for name in sorted(drop_ins))]
