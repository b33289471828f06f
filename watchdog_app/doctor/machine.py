"""
The machine that the doctor examines: files below one root, the environment, the time limits.

Everything that differs between a real machine and a tree on disk is an argument. So a test can
build any unusual setup as a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from watchdog_app.base.errors import SensorError
from watchdog_app.base.linux import files, process
from watchdog_app.base.linux.files import KernelLog
from watchdog_app.doctor import versions
from watchdog_app.doctor.versions import Version
from watchdog_app.machine.gpu.nvml_driver import find_copies

_MAX_BYTES = 1 << 22  # modules.dep of a distribution's kernel takes a MiB
_MAX_RECORDS = 1 << 14  # of the kernel log
_MODULE_VERSION = re.compile(
    r"(?:Kernel Module|Module for \S+)\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)"
)
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


@dataclass(frozen=True, slots=True)
class Space:
    """Free space of a file system."""

    total_bytes: int
    free_bytes: int  # for this user
    inodes_total: int = 0  # 0: the file system does not count them
    inodes_free: int = 0
    read_only: bool = False


def disk_space(path: str) -> Space:
    """
    Read the space of a path's file system. Blocks as long as its disk does.

    Raises:
        OSError: it cannot be read.
    """
    found = os.statvfs(path)
    return Space(
        found.f_blocks * found.f_frsize,
        found.f_bavail * found.f_frsize,
        found.f_files,
        found.f_favail,
        bool(found.f_flag & os.ST_RDONLY),
    )


def process_limits() -> dict[str, int | None]:
    """
    Read the soft limits of this process, which a training inherits from the shell; None: unlimited.
    """
    import resource

    names = {
        "address_space": resource.RLIMIT_AS,
        "data": resource.RLIMIT_DATA,
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "file_size": resource.RLIMIT_FSIZE,
        "cpu_s": resource.RLIMIT_CPU,
    }
    found = {name: resource.getrlimit(number)[0] for name, number in names.items()}
    return {name: None if at == resource.RLIM_INFINITY else at for name, at in found.items()}


def current_folder() -> str:
    """Return the current folder; the home folder if the current one was removed."""
    try:
        return os.getcwd()
    except OSError:
        return os.path.expanduser("~")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to examine, and the user to act as."""

    root: str = ""  # "" is this machine; else a folder with proc, sys, dev, etc below it
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: str = field(default_factory=current_folder)
    uid: int = field(default_factory=os.getuid)
    python: str | None = None  # value of --python
    fast: bool = False  # import no framework
    timeout_s: float = 60.0  # for the slowest steps: an import, a driver
    space: Callable[[str], Space] = disk_space
    limits: Callable[[], Mapping[str, int | None]] = process_limits
    access: Callable[[str, int], bool] = os.access

    def path(self, *parts: str) -> str:
        """Return a path below the root; the parts start at `/`."""
        return "/".join((self.root.rstrip("/"), *(part.strip("/") for part in parts)))

    def read(self, *parts: str) -> str | None:
        """Read a small text file, stripped of blanks; None: missing, or not permitted."""
        try:
            return os.fsdecode(files.read_bytes(self.path(*parts), _MAX_BYTES)).strip()
        except SensorError:
            return None

    def number(self, *parts: str) -> int | None:
        """Read a file that contains one integer; None: it does not."""
        text = self.read(*parts)
        try:
            return int(text, 0) if text else None
        except ValueError:
            return None

    def names(self, *parts: str) -> list[str]:
        """List the names in a folder, sorted; empty: empty, missing, or not permitted."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError:
            return []

    def exists(self, *parts: str) -> bool:
        """Return whether a path exists, dangling links included."""
        return os.path.lexists(self.path(*parts))

    def nearest(self, path: str) -> str:
        """Return the path itself, or its nearest existing parent folder."""
        while not self.exists(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        return path

    def link(self, *parts: str) -> str | None:
        """Return the target of a symbolic link as written; None: not a link."""
        try:
            return os.readlink(self.path(*parts))
        except OSError:
            return None

    def real_path(self, path: str) -> str:
        """Return a path with its symbolic links resolved, without the root."""
        root = os.path.realpath(self.root) if self.root else ""
        return os.path.realpath(self.path(path)).removeprefix(root)

    def command(self, name: str) -> str | None:
        """Find a command on the PATH; return its path without the root; None: not installed."""
        for folder in (*self.search_path(), "/usr/sbin", "/sbin", "/usr/lib/wsl/lib"):
            where = f"{folder}/{name}"
            if os.access(self.path(where), os.X_OK) and not os.path.isdir(self.path(where)):
                return where
        return None

    def search_path(self) -> Sequence[str]:
        """Return the absolute folders of PATH, in order."""
        given = self.env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep)
        return [folder.rstrip("/") for folder in given if folder.startswith("/")]

    @property
    def is_real(self) -> bool:
        """Whether this is the machine that we run on."""
        return not self.root

    @property
    def is_wsl(self) -> bool:
        """Whether this is the Windows Subsystem for Linux."""
        release = (self.read("/proc/sys/kernel/osrelease") or "").lower()
        return "microsoft" in release or self.exists("/dev/dxg")

    @property
    def container(self) -> str | None:
        """The kind of container that we run in; None: none was detected."""
        if self.exists("/.dockerenv"):
            return "Docker"
        if self.exists("/run/.containerenv"):
            return "Podman"
        if self.env.get("KUBERNETES_SERVICE_HOST"):
            return "Kubernetes"
        if self.env.get("APPTAINER_CONTAINER") or self.env.get("SINGULARITY_CONTAINER"):
            return "Apptainer"
        text = self.env.get("container") or self.read("/run/systemd/container")
        if text:
            return text
        groups = self.read("/proc/1/cgroup") or ""
        for word, name in (("kubepods", "Kubernetes"), ("docker", "Docker"), ("lxc", "LXC")):
            if f"/{word}" in groups:
                return name
        return None

    def kernel_log(self) -> list[str] | None:
        """Read the lines of the kernel log since boot; None: not permitted."""
        log = KernelLog(self.path("/dev/kmsg"), _MAX_RECORDS)
        if not log.readable:
            return None
        text = os.fsdecode(b"".join(log.read()))
        log.close()
        return [line.partition(";")[2] or line for line in text.splitlines() if line[:1] != " "]

    def distribution(self) -> str:
        """Return `debian`, `ubuntu`, `fedora`, `arch`, `suse`, or "" for others."""
        words = ""
        for line in (self.read("/etc/os-release") or "").splitlines():
            key, _, value = line.partition("=")
            if key in ("ID", "ID_LIKE"):
                words += " " + value.strip("\"'").lower()
        known = words.split()
        for name in ("ubuntu", "debian", "fedora", "rhel", "arch", "suse", "opensuse"):
            if name in known:
                return {"rhel": "fedora", "opensuse": "suse"}.get(name, name)
        return ""

    def places(self) -> tuple[str, ...]:
        """Return the kinds of this machine that select a remedy; the last has priority."""
        kinds = ("wsl" if self.is_wsl else "", "container" if self.container else "")
        return tuple(filter(None, (self.distribution(), *kinds)))


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as far as this user may read it."""

    pid: int
    name: str
    argv: tuple[str, ...]
    rss_bytes: int | None
    uid: int | None


def processes(machine: Machine) -> list[Process]:
    """List all processes that /proc shows, without those that end during the read."""
    found = []
    proc = machine.path("/proc")
    for pid in sorted(process.pids(proc)):
        try:
            uid = os.stat(f"{proc}/{pid}").st_uid
        except OSError:
            continue
        name, argv = process.read_comm(pid, proc) or "", process.read_argv(pid, proc)
        statm = process.read_statm(pid, proc)
        rss = None if statm is None else statm.resident_bytes
        found.append(Process(pid, name, argv, rss, uid))
    return found


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library of the driver."""

    path: str  # without the root
    version: Version  # from its file name; empty: unknown
    stub: bool  # a placeholder of the CUDA toolkit for linking, without any driver code

    @property
    def forward(self) -> bool:
        """
        Whether it is CUDA's forward compatibility package, which is newer than the module by
        design.
        """
        return "/compat/" in f"{self.path}/"


def module_version(machine: Machine) -> Version:
    """Read the version of the loaded kernel module; empty: not loaded, or unknown."""
    text = machine.read("/proc/driver/nvidia/version") or ""
    found = _MODULE_VERSION.search(text)
    return versions.parse(found[1] if found else machine.read("/sys/module/nvidia/version"))


def module_loaded(machine: Machine) -> bool:
    """Return whether NVIDIA's kernel module is loaded."""
    return machine.exists("/sys/module/nvidia") or machine.exists("/proc/driver/nvidia/version")


def libraries(machine: Machine, name: str) -> list[Library]:
    """
    List every copy of a library that the loader may find, the preferred one first.

    Args:
        machine: machine to search.
        name: as programs load it: "libcuda.so.1".
    """
    found: dict[str, Library] = {}
    listed = filter(os.path.isabs, machine.env.get("LD_LIBRARY_PATH", "").split(":"))
    root = machine.root.rstrip("/")
    for path, _ in find_copies(name, map(machine.path, listed), root):
        real = os.path.realpath(path)
        version = _LIBRARY_VERSION.search(real)
        parsed = versions.parse(version[1]) if version else ()
        stub = "/stubs" in os.path.dirname(path)
        found.setdefault(real, Library(path.removeprefix(root), parsed, stub))
    return list(found.values())


def kernel(machine: Machine) -> str:
    """Return the running kernel's release, as the folders below /lib/modules are named."""
    return machine.read("/proc/sys/kernel/osrelease") or ""


def built_modules(machine: Machine) -> tuple[bool, list[str]]:
    """Return whether a module was built for the running kernel, and other kernels that have one."""
    own, others = False, []
    for name in machine.names("/lib/modules"):
        listed = machine.read("/lib/modules", name, "modules.dep") or ""
        if "/nvidia.ko" in listed or "/nvidia-current.ko" in listed:
            if name == kernel(machine):
                own = True
            else:
                others.append(name)
    return own, others


def secure_boot(machine: Machine) -> bool | None:
    """Return whether the firmware requires signed modules; None: unknown."""
    for name in machine.names("/sys/firmware/efi/efivars"):
        if name.startswith("SecureBoot-"):
            try:
                with open(machine.path("/sys/firmware/efi/efivars", name), "rb") as file:
                    data = file.read(16)  # four bytes of attributes, then the value
            except OSError:
                return None
            return data[-1:] == b"\x01" if len(data) > 4 else None
    return None
