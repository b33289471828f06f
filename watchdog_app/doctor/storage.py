"""Space for checkpoints, shared memory for DataLoader workers, files kept in RAM."""

from __future__ import annotations

import os
from collections.abc import Iterator

from watchdog_app.base import paths
from watchdog_app.base.linux.files import Mount, parse_mounts
from watchdog_app.base.text.plain import capitalize_first
from watchdog_app.base.text.quantities import GIB, MIB
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.doctor.machine import Machine

_SHM = "/dev/shm"  # noqa: S108 - read, never written
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "ceph", "fuse.sshfs",
            "gpfs", "beegfs", "glusterfs", "fuse.glusterfs", "9p"}  # fmt: skip
_IN_RAM = {"tmpfs", "ramfs"}
_SMALL_FILES_BYTES = 256 * MIB  # temporary files and the journal; some systems give /tmp only a GiB
_DOCKERS_BYTES = 64 * MIB  # Docker's default size of shared memory


def check(facts: Facts) -> Iterator[Finding]:
    """Check shared memory, then the disks, then RAM disks."""
    machine = facts.machine
    mounts = parse_mounts((machine.read("/proc/self/mountinfo") or "").encode())
    yield _shared_memory(facts)
    # First the folder where the training writes: there a full disk matters most to the user.
    roles = (
        ("the current folder", machine.cwd),
        ("the home folder", machine.env.get("HOME") or os.path.expanduser("~")),
        ("temporary files", machine.env.get("TMPDIR") or "/tmp"),  # noqa: S108 - read only
        ("watchdog's journal", machine.nearest(paths.state_dir(machine.env))),
    )
    seen: dict[str, list[str]] = {}
    for role, path in roles:
        seen.setdefault(path, []).append(role)
    for path, names in seen.items():
        yield _folder(facts, " and ".join(names), path)
        mount = _mount_of(machine, path, mounts)
        if mount and mount.kind in _NETWORK and "watchdog's journal" in names:
            yield facts.finding("storage.journal-network", kind=mount.kind)
    yield from _ram_disks(facts, mounts)
    mount = _mount_of(machine, machine.cwd, mounts)
    if mount and mount.kind in _IN_RAM:
        words = {"kind": mount.kind, "point": mount.point, "path": machine.cwd}
        yield facts.finding("storage.cwd-in-ram", **words)


def _mount_of(machine: Machine, path: str, mounts: list[Mount]) -> Mount | None:
    path = machine.real_path(path)
    best = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        inside = path == point or path.startswith(f"{point}/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _shared_memory(facts: Facts) -> Finding:
    try:
        space = facts.machine.space(facts.machine.path(_SHM))
    except OSError as error:
        return facts.finding("storage.shared-memory", reason=error.strerror or str(error))
    room = {"free": space.free_bytes, "total": space.total_bytes}
    if not space.total_bytes:
        return facts.fine("storage.shared-memory.unlimited")
    if space.total_bytes < GIB:
        tiny = space.total_bytes <= _DOCKERS_BYTES
        severity = Severity.ERROR if tiny else Severity.WARNING
        return facts.finding("storage.shared-memory.small", severity=severity, **room)
    if space.free_bytes < 0.1 * space.total_bytes:
        return facts.finding("storage.shared-memory.full", **room)
    return facts.fine("storage.shared-memory", **room)


def _folder(facts: Facts, role: str, path: str) -> Finding:
    """Check whether a folder is writable and has space for its files."""
    machine = facts.machine
    at = machine.path(path) if path != machine.cwd else path
    try:
        space = machine.space(at)
    except OSError as error:
        reason = error.strerror or str(error)
        return facts.finding("storage.disk", role=role, path=path, reason=reason)
    room = {"free": space.free_bytes, "total": space.total_bytes}
    words = {"title": capitalize_first(role), "path": path} | room
    if space.read_only:
        return facts.finding("storage.read-only.disk", **words)
    if not machine.access(at, os.W_OK):
        # The user may have started the command in / or in another user's folder by accident.
        severity = Severity.ERROR if "temporary" in role else Severity.WARNING
        return facts.finding("storage.read-only.user", severity=severity, **words)
    if space.inodes_total and space.inodes_free < 0.01 * space.inodes_total:
        return facts.finding("storage.inodes", **words)
    few = min(10 * GIB, space.total_bytes // 20)
    levels = [("storage.disk.full", GIB), ("storage.disk.low", few)]
    if "folder" not in role:  # checkpoints are not written there
        levels = [("storage.disk.small-files", _SMALL_FILES_BYTES)]
    for entry, least in levels:
        if space.total_bytes and space.free_bytes < least:
            return facts.finding(entry, **words)
    return facts.fine("storage.disk", **words)


def _ram_disks(facts: Facts, mounts: list[Mount]) -> Iterator[Finding]:
    memory = facts.memory()
    seen: set[tuple[int, int]] = set()
    for mount in mounts if memory else ():
        if mount.kind not in _IN_RAM or mount.point == _SHM:
            continue
        try:
            space = facts.machine.space(facts.machine.path(mount.point))
        except OSError:
            continue
        used = space.total_bytes - space.free_bytes
        large = memory is not None and used >= max(GIB, 0.05 * memory.total_bytes)
        if large and (space.total_bytes, used) not in seen:
            seen.add((space.total_bytes, used))
            words = {"point": mount.point, "used": used, "kind": mount.kind}
            yield facts.finding("storage.ram-disk", **words)
