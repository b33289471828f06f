"""Room for checkpoints, shared memory for DataLoader workers, files that sit in RAM."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from watchdog_app.base import paths
from watchdog_app.base.linux.files import Mount, parse_mounts
from watchdog_app.base.text.quantities import GIB, MIB, format_bytes
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked
from watchdog_app.doctor.machine import Machine, Space

_SHM = "/dev/shm"  # noqa: S108 - looked at, never written
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "ceph", "fuse.sshfs",
            "gpfs", "beegfs", "glusterfs", "fuse.glusterfs", "9p"}  # fmt: skip
_IN_RAM = {"tmpfs", "ramfs"}
_SMALL_FILES_BYTES = 256 * MIB  # temporary files and the journal; some give /tmp no more than a GiB


def check(facts: Facts) -> Iterator[Finding]:
    """Shared memory, then the disks, then RAM disks."""
    machine = facts.machine
    mounts = parse_mounts((machine.read("/proc/self/mountinfo") or "").encode())
    yield _shared_memory(machine)
    home = machine.env.get("HOME") or os.path.expanduser("~")
    # What a person would find in the wrong place first: where the training writes.
    roles = (
        ("the current folder", machine.cwd),
        ("the home folder", home),
        ("temporary files", machine.env.get("TMPDIR") or "/tmp"),  # noqa: S108 - looked at
        ("watchdog's journal", _existing(machine, paths.state_dir(machine.env))),
    )
    seen: dict[str, list[str]] = {}
    for role, path in roles:
        seen.setdefault(path, []).append(role)
    for path, names in seen.items():
        yield from _folder(machine, " and ".join(names), path, mounts)
    yield from _ram_disks(facts, mounts)


def _mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    best = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        inside = path == point or path.startswith(f"{point}/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _existing(machine: Machine, path: str) -> str:
    while not machine.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _shared_memory(machine: Machine) -> Finding:
    id_ = "storage.shared-memory"
    try:
        space = machine.space(machine.path(_SHM))
    except OSError as error:
        return unchecked(id_, f"{_SHM} (shared memory)", error.strerror or str(error))
    if not space.total_bytes:
        return fine(id_, f"{_SHM} has no limit but RAM.")
    shown = f"{format_bytes(space.free_bytes)} of {format_bytes(space.total_bytes)} free"
    in_container = machine.container is not None
    if space.total_bytes < GIB:
        return Finding(
            id_,
            # 64 MiB is what Docker gives unless it is told otherwise.
            Severity.ERROR if space.total_bytes <= 64 * MIB else Severity.WARNING,
            f"Shared memory ({_SHM}) is only {format_bytes(space.total_bytes)}"
            + (f": what a {machine.container} container gets by itself." if in_container else "."),
            "PyTorch's DataLoader workers hand their batches over there: 'Bus error', 'DataLoader "
            "worker is killed by signal', or NCCL failing at its start.",
            "Start the container with more; in Kubernetes mount an emptyDir with medium: Memory "
            "at /dev/shm."
            if in_container
            else "Mount it larger.",
            ("docker run --shm-size=8g IMAGE",)
            if in_container
            else (f"sudo mount -o remount,size=8G {_SHM}",),
        )
    if space.free_bytes < 0.1 * space.total_bytes:
        return Finding(
            id_,
            Severity.WARNING,
            f"Shared memory ({_SHM}) is nearly full: {shown}.",
            "DataLoader workers die of 'Bus error'. What lies there takes RAM, too: killed "
            "programs leave their files behind.",
            "Look whose they are, and remove those of programs that have ended.",
            (f"ls -lhS {_SHM} | head", f"fuser -v {_SHM}/*"),
        )
    return fine(id_, f"Shared memory ({_SHM}): {shown}.")


def _folder(machine: Machine, role: str, path: str, mounts: list[Mount]) -> Iterator[Finding]:
    where = f"{role} ({path})"
    at = machine.path(path) if path != machine.cwd else path
    mount = _mount_of(path, mounts)
    try:
        space = machine.space(at)
    except OSError as error:
        yield unchecked("storage.disk", f"The disk of {where}", error.strerror or str(error))
        return
    title = f"{where[:1].upper()}{where[1:]}"
    if space.read_only or not machine.access(at, os.W_OK):
        yield Finding(
            "storage.read-only",
            # Somebody may just stand in / or in a folder of another user.
            Severity.ERROR if space.read_only or "temporary" in role else Severity.WARNING,
            f"{title} cannot be written to"
            + (": its file system is read-only." if space.read_only else " by this user."),
            "A checkpoint ends in an error there"
            + (
                ", and a disk that has become read-only has mostly failed."
                if space.read_only
                else "."
            ),
            "Start trainings elsewhere, or name another folder for checkpoints; look into the "
            "kernel log if it should be writable.",
            (f"findmnt -T {shlex.quote(path)}", "sudo dmesg | tail"),
        )
        return
    yield _room(title, path, space, keeps_work="folder" in role)
    if mount and mount.kind in _NETWORK and "journal" in role:
        yield Finding(
            "storage.journal-network",
            Severity.INFO,
            f"watchdog's journal is on a network disk ({mount.kind}).",
            "SQLite's write-ahead log needs a local disk to be safe.",
            "Put it on one.",
            ("export WATCHDOG_STATE_DIR=/var/tmp/watchdog-$USER",),
        )


def _room(title: str, path: str, space: Space, keeps_work: bool) -> Finding:
    """Room where checkpoints come to lie, or where only small files do."""
    shown = f"{format_bytes(space.free_bytes)} of {format_bytes(space.total_bytes)} free"
    name = shlex.quote(path)
    find = (f"df -h {name}", f"du -xh --max-depth=2 {name} | sort -h | tail")
    if space.inodes_total and space.inodes_free < 0.01 * space.inodes_total:
        return Finding(
            "storage.inodes",
            Severity.ERROR,
            f"{title}: no more files can be made there (inodes are used up), though there are "
            f"{shown}.",
            "Every save ends in 'No space left on device'.",
            "Remove folders of many small files, such as old caches.",
            (f"df -i {name}", f"du -x --inodes --max-depth=2 {name} | sort -n | tail"),
        )
    if not keeps_work:
        if space.total_bytes and space.free_bytes < _SMALL_FILES_BYTES:
            return Finding(
                "storage.disk",
                Severity.WARNING,
                f"{title}: only {shown}.",
                "Programs that find no room there end with 'No space left on device'.",
                "Make room.",
                find,
            )
        return fine("storage.disk", f"{title}: {shown}.")
    if space.total_bytes and space.free_bytes < GIB:
        return Finding(
            "storage.disk",
            Severity.ERROR,
            f"{title}: only {shown}.",
            "A checkpoint that does not fit is lost, and with it the work since the last one.",
            "Make room, or keep checkpoints elsewhere.",
            find,
        )
    if space.total_bytes and space.free_bytes < min(10 * GIB, 0.05 * space.total_bytes):
        return Finding(
            "storage.disk",
            Severity.WARNING,
            f"{title}: only {shown}.",
            "A few checkpoints of a large model fill that.",
            "Make room before a long training.",
            find,
        )
    return fine("storage.disk", f"{title}: {shown}.")


def _ram_disks(facts: Facts, mounts: list[Mount]) -> Iterator[Finding]:
    memory = facts.memory()
    if memory is None:
        return
    seen: set[tuple[int, int]] = set()
    for mount in mounts:
        if mount.kind not in _IN_RAM or mount.point == _SHM:
            continue
        try:
            space = facts.machine.space(facts.machine.path(mount.point))
        except OSError:
            continue
        used = space.total_bytes - space.free_bytes
        if used < max(GIB, 0.05 * memory.total_bytes) or (space.total_bytes, used) in seen:
            continue
        seen.add((space.total_bytes, used))
        yield Finding(
            "storage.ram-disk",
            Severity.WARNING,
            f"Files in {mount.point} take {format_bytes(used)} of RAM: it is a {mount.kind}.",
            "They count as used memory and cannot be given back; data sets and checkpoints there "
            "bring the kernel's kill nearer.",
            "Move them to a disk.",
            (f"du -xh --max-depth=2 {shlex.quote(mount.point)} | sort -h | tail",),
        )
    tmp = _mount_of(facts.machine.cwd, mounts)
    if tmp and tmp.kind in _IN_RAM:
        yield Finding(
            "storage.cwd-in-ram",
            Severity.WARNING,
            f"The current folder is in RAM ({tmp.kind} at {tmp.point}).",
            "Checkpoints written here take the memory that they are to save you from losing, and "
            "are gone at the next start.",
            "Keep checkpoints on a disk.",
            (f"findmnt -T {shlex.quote(facts.machine.cwd)}",),
        )
