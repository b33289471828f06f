"""Records of one sample: processes, tasks, host, cgroups, gauges, faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.hardware import Hardware


@dataclass(frozen=True, slots=True, order=True)
class ProcessKey:
    """
    Identity of a process, safe against pid reuse.

    Compare `start_time` only for equality: its unit is clock ticks since boot on Linux
    (/proc/PID/stat field 22, proc(5)) and microseconds since the epoch elsewhere.
    """

    pid: int
    start_time: int


class TaskKind(StrEnum):
    """The kind of a program, in the user's terms."""

    NOTEBOOK = "notebook"  # a Jupyter kernel with a known notebook
    KERNEL = "kernel"  # a Jupyter kernel with an unknown notebook
    CONSOLE = "console"  # IPython or a Jupyter console
    SCRIPT = "script"
    MODULE = "module"  # python -m something
    SERVER = "server"  # a Jupyter server
    PYTHON = "python"  # an interpreter without a script or module


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Properties of a process that hardly change; read once, for a new pid."""

    key: ProcessKey
    ppid: int  # original parent, also after it ends and pid 1 adopts the process
    uid: int
    user: str | None
    exe: str | None
    argv: tuple[str, ...]
    cwd: str | None
    kind: TaskKind
    name: str  # name of the notebook or script, e.g. "train.ipynb"; untrusted text
    notebook: str | None = None  # absolute path if known
    other_notebooks: tuple[str, ...] = ()  # other notebooks that share the kernel
    script: str | None = None  # absolute path if known
    kernel_id: str | None = None
    cgroup: str | None = None  # folder of its memory cgroup in the cgroup file system
    started_unix_s: float | None = None
    rlimit_as_bytes: int | None = None  # None: unlimited or unknown
    # The process leads a new session, without a terminal.
    leads_session: bool = False
    runtime_dir: str | None = None  # WATCHDOG_RUNTIME_DIR in its environment: selects its daemon
    ends_unix_s: float | None = None  # when its batch system or `watchdog exec` ends it
    ancestor: ProcessKey | None = None  # nearest watched ancestor, through shells
    python: str | None = None  # folder of its Python environment; None: not read yet
    framework: str | None = None  # "torch", "tensorflow", "jax"; None: none, or not read yet
    agent_waits: bool = False  # the agent's hook was loaded at its start and finds trainings


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Figures of a process that change from sample to sample."""

    key: ProcessKey
    ppid: int
    state: str  # one letter as in /proc/PID/stat: R S D T Z ...
    rss_bytes: int
    shared_bytes: int | None  # file-backed and shared pages within rss_bytes
    swap_bytes: int | None
    vsize_bytes: int | None
    cpu_s: float  # user + system since the process began
    # Pages that a fork shares with its parent until one of them writes; None: not a fork.
    cow_bytes: int | None = None
    shmem_bytes: int | None = None  # shared memory within shared_bytes; the rest is file pages


_NEAR_THROTTLE = 0.9  # share of the limit from which a group is near its throttle


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure stall information of one resource (kernel, Documentation/accounting/psi.rst)."""

    some_avg10: float  # percent of the last 10 s in which some task waited
    full_avg10: float  # percent of the last 10 s in which all tasks waited
    some_total_s: float


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory of the whole machine."""

    total_bytes: int
    available_bytes: int  # MemAvailable: memory that programs can get without swapping
    swap_total_bytes: int
    swap_free_bytes: int
    swap_in_bytes: int | None  # traffic from swap since boot
    swap_out_bytes: int | None  # traffic to swap since boot
    shm_used_bytes: int | None  # size of the files in /dev/shm
    shm_limit_bytes: int | None
    pressure: Pressure | None
    zram_total_bytes: int = 0  # size of the swap on zram, which is compressed RAM
    zram_used_bytes: int = 0  # content of the zram swap before compression
    zram_ram_bytes: int = 0  # RAM that this content takes after compression


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """One memory control group, v1 or v2; a limit that is not set is None."""

    path: str
    version: int
    usage_bytes: int
    inactive_file_bytes: int
    active_file_bytes: int
    limit_bytes: int | None
    high_bytes: int | None  # v2 memory.high: the kernel throttles above it
    swap_usage_bytes: int | None
    swap_limit_bytes: int | None  # limit of swap; v1: memory+swap limit less memory limit
    oom_kills: int | None
    unwatched_bytes: int | None = None  # RAM of the group's unwatched processes
    stalled_percent: float | None = None  # v2 memory.pressure full avg10; read near a throttle

    @property
    def unreclaimable_bytes(self) -> int:
        """Usage less all file pages: memory that the kernel cannot reclaim."""
        return max(0, self.usage_bytes - self.inactive_file_bytes - self.active_file_bytes)

    @property
    def near_throttle(self) -> bool:
        """Whether unreclaimable memory is at 90 % of memory.high."""
        high = self.high_bytes
        return high is not None and self.unreclaimable_bytes >= _NEAR_THROTTLE * high


@dataclass(frozen=True, slots=True)
class Gauge:
    """
    A figure with a limit, as a sensor measured it; it becomes a reading without changes.

    A new kind of resource needs only a sensor that returns gauges and a row in `resource.SPECS`.
    """

    kind: str  # value of `resource.ResourceKind`
    subject: str  # identifies the resource among those of its kind
    label: str  # name for the user
    used: float  # amount in the unit of the kind
    limit: float  # 0: no limit


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that watchdog cannot watch: what it is, what that means, what to do."""

    source: str  # "host.pressure", "gpu", ...
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent sample of the machine. `processes` holds only watched processes."""

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
    """A process tree that is one program to the user; its root identifies it."""

    key: ProcessKey
    name: str
    kind: TaskKind
    uid: int
    members: tuple[ProcessSample, ...]  # root first, parents before their children
    rss_bytes: int  # resident memory, shared pages counted once (see `resident_bytes`)
    swap_bytes: int | None
    cpu_s: float
    info: ProcessInfo  # properties of the root process
    framework: str | None = None  # loaded by any member; None: none, or not read yet
    agent_waits: bool = False  # the agent's hook was loaded into a member at its start

    @property
    def paused(self) -> bool:
        """Every member is stopped or a zombie, and at least one is stopped."""
        return all(member.state in "TtZ" for member in self.members) and any(
            member.state in "Tt" for member in self.members
        )
