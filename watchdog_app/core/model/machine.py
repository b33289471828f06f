"""What one look at the machine holds: processes, tasks, host, groups, disks, faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from watchdog_app.core.model.hardware import Hardware


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """
    Identity of a process over pid reuse.

    `start_time` is only ever compared for equality: clock ticks since boot on
    Linux (/proc/PID/stat field 22, proc(5)), microseconds of the epoch elsewhere.
    """

    pid: int
    start_time: int


class TaskKind(StrEnum):
    """What a user would call the thing that runs."""

    NOTEBOOK = "notebook"  # a Jupyter kernel with a known notebook
    KERNEL = "kernel"  # a Jupyter kernel whose notebook nobody names
    CONSOLE = "console"  # IPython or a Jupyter console
    SCRIPT = "script"
    MODULE = "module"  # python -m something
    SERVER = "server"  # a Jupyter server itself
    PYTHON = "python"  # an interpreter with neither script nor module


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """What hardly changes while a process lives: read in full once, when its pid is new."""

    key: ProcessKey
    ppid: int  # stays that of the parent which has ended, when pid 1 inherits the process
    uid: int
    user: str | None
    exe: str | None
    argv: tuple[str, ...]
    cwd: str | None
    kind: TaskKind
    name: str  # notebook or script as the user knows it, e.g. "train.ipynb"; untrusted text
    notebook: str | None = None  # absolute path where known
    other_notebooks: tuple[str, ...] = ()  # further ones that share the kernel
    script: str | None = None  # absolute path where known
    kernel_id: str | None = None
    cgroup: str | None = None  # folder of its memory group in the cgroup file system
    started_unix_s: float | None = None
    rlimit_as_bytes: int | None = None  # None: unlimited or unknown
    # It was given a session of its own, apart from its parent's, and no terminal.
    leads_session: bool = False
    runtime_dir: str | None = None  # WATCHDOG_RUNTIME_DIR in its environment: whose daemon it has
    ancestor: ProcessKey | None = None  # nearest watched process above it, through shells


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """What changes from tick to tick."""

    key: ProcessKey
    ppid: int
    state: str  # one letter as in /proc/PID/stat: R S D T Z ...
    rss_bytes: int
    shared_bytes: int | None  # file-backed and shared pages within rss_bytes
    swap_bytes: int | None
    vsize_bytes: int | None
    cpu_s: float  # user + system since the process began
    # Pages that a fork shares with its parent until one of them writes; None: no fork.
    cow_bytes: int | None = None
    shmem_bytes: int | None = None  # shared memory within shared_bytes; the rest is of files


_NEAR_THROTTLE = 0.9  # of the limit


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure stall information of one resource (kernel, Documentation/accounting/psi.rst)."""

    some_avg10: float  # percent of time
    full_avg10: float
    some_total_s: float


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the whole machine."""

    total_bytes: int
    available_bytes: int  # MemAvailable: what can be had without swapping
    swap_total_bytes: int
    swap_free_bytes: int
    swap_in_bytes: int | None  # since boot
    swap_out_bytes: int | None
    shm_used_bytes: int | None  # /dev/shm
    shm_limit_bytes: int | None
    pressure: Pressure | None
    zram_total_bytes: int = 0  # of the swap: what is kept compressed in RAM
    zram_used_bytes: int = 0  # before compression
    zram_ram_bytes: int = 0  # after it


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """One memory control group, v1 or v2; limits are None where there is none."""

    path: str
    version: int
    usage_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    limit_bytes: int | None
    high_bytes: int | None  # v2 memory.high: throttled above it
    swap_usage_bytes: int | None
    swap_limit_bytes: int | None  # swap alone; v1's memory+swap limit less the memory limit
    oom_kills: int | None
    unwatched_bytes: int | None = None  # RAM of its processes that are not watched
    swap_high_bytes: int | None = None  # v2 memory.swap.high: throttled above it
    stalled_percent: float | None = None  # v2 memory.pressure, full avg10; near a throttle alone

    @property
    def unreclaimable_bytes(self) -> int:
        """Usage less all file pages: what the kernel cannot reclaim."""
        return max(0, self.usage_bytes - self.inactive_file_bytes - self.active_file_bytes)

    @property
    def near_throttle(self) -> bool:
        """Whether memory.high or memory.swap.high is all but reached by what stays."""
        pairs = (
            (self.unreclaimable_bytes, self.high_bytes),
            (self.swap_usage_bytes, self.swap_high_bytes),
        )
        return any(
            used is not None and limit is not None and used >= _NEAR_THROTTLE * limit
            for used, limit in pairs
        )


@dataclass(frozen=True, slots=True)
class Gauge:
    """
    A figure with a limit, as a sensor has measured it: a reading is made of it as it is.

    A new kind that needs no more than this has a row in `resource.SPECS` and a sensor.
    """

    kind: str  # a `resource.ResourceKind`
    subject: str  # which one of that kind
    label: str  # as a person reads it
    used: float  # in the unit of its kind
    limit: float  # 0: there is none
    fatal: bool = False  # reaching it kills
    everyone: bool = False  # it can hit every task
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not being watched, said once: what, what it means, what to do."""

    source: str  # "host.pressure", "gpu", ...
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent look at the machine. `processes` holds the watched ones alone."""

    mono_s: float
    unix_s: float
    host: HostMemory
    processes: tuple[ProcessSample, ...]
    cgroups: tuple[CgroupMemory, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    faults: tuple[Fault, ...] = ()
    infos: Mapping[ProcessKey, ProcessInfo] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)


@dataclass(frozen=True, slots=True)
class Task:
    """A process tree that the user thinks of as one thing; identity of its root."""

    key: ProcessKey
    name: str
    kind: TaskKind
    uid: int
    members: tuple[ProcessSample, ...]  # root first, then children, parents before children
    rss_bytes: int  # shared pages counted once where that is cheap to know
    swap_bytes: int | None
    cpu_s: float
    info: ProcessInfo  # of the root

    @property
    def paused(self) -> bool:
        """Every member is stopped."""
        return all(member.state in "TtZ" for member in self.members) and any(
            member.state in "Tt" for member in self.members
        )
