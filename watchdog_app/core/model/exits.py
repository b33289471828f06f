"""Facts about the end of a task and the cause derived from them: frozen records."""

from __future__ import annotations

from enum import StrEnum

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.agent import RescueRecord


class CauseKind(StrEnum):
    """What ended a task."""

    GROUP_LIMIT = "group_limit"  # the kernel killed it: its memory cgroup was full
    HOST_MEMORY = "host_memory"  # the kernel killed it: the machine's memory was full
    OOM_DAEMON = "oom_daemon"  # earlyoom, nohang or systemd-oomd killed it before the kernel had to
    GPU_LOST = "gpu_lost"  # its GPU had a fault
    GPU_MEMORY = "gpu_memory"  # it failed while the card or its allocator was full
    ADDRESS_SPACE = "address_space"  # it failed while its address space was full
    PROGRAM_MEMORY = "program_memory"  # it failed with an out-of-memory error
    GUARD = "guard"  # its guard ended it at the limit, on request or as the last resort
    CPU_LIMIT = "cpu_limit"  # the kernel killed it at RLIMIT_CPU
    HARDWARE = "hardware"  # the kernel killed it: a memory module is faulty
    MACHINE_DOWN = "machine_down"  # it ran until the machine went down
    CLOSED = "closed"  # the user closed its Jupyter kernel or terminal
    KILLED = "killed"  # SIGKILL from another process, without a sign of a memory shortage
    SIGNAL = "signal"  # another signal: a crash or Ctrl-C
    FAILED = "failed"  # exit status other than 0
    ENDED = "ended"  # exit status 0
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CauseSpec:
    """How watchdog treats one kind of cause."""

    title: str = "Ended"  # title of the notification
    out_of_memory: bool = False  # RAM, address space or GPU memory ran out
    by_kernel: bool = False  # the kernel killed it because memory ran out
    of_card: bool = False  # a GPU or its memory is the cause
    of_group: bool = False  # the limit of its memory cgroup is the cause
    own: bool = False  # the program itself failed; out of memory: with an error of its own
    # True: always. False: never, because the guard already notified the user. None: only if a
    # training ran. If not None, the journal records a death, however short the task ran.
    notify: bool | None = None
    by_itself: bool = False  # a normal end, or the user closed it


CAUSES = {
    CauseKind.GROUP_LIMIT: CauseSpec(
        "Out of memory", out_of_memory=True, by_kernel=True, of_group=True, notify=True
    ),
    CauseKind.HOST_MEMORY: CauseSpec(
        "Out of memory", out_of_memory=True, by_kernel=True, notify=True
    ),
    CauseKind.OOM_DAEMON: CauseSpec("Out of memory", out_of_memory=True, notify=True),
    CauseKind.GPU_LOST: CauseSpec("Ended by a GPU fault", of_card=True, own=True, notify=True),
    CauseKind.GPU_MEMORY: CauseSpec(
        "Out of GPU memory", out_of_memory=True, of_card=True, own=True
    ),
    CauseKind.ADDRESS_SPACE: CauseSpec("Out of memory", out_of_memory=True, own=True, notify=True),
    CauseKind.PROGRAM_MEMORY: CauseSpec("Out of memory", out_of_memory=True, own=True, notify=True),
    CauseKind.GUARD: CauseSpec(of_group=True, notify=False),
    CauseKind.CPU_LIMIT: CauseSpec("Out of processor time", notify=True),
    CauseKind.HARDWARE: CauseSpec(notify=True),
    CauseKind.MACHINE_DOWN: CauseSpec("The machine went down", notify=True),
    CauseKind.CLOSED: CauseSpec(by_itself=True),
    CauseKind.SIGNAL: CauseSpec(),
    CauseKind.FAILED: CauseSpec(own=True),
    CauseKind.ENDED: CauseSpec(by_itself=True),
    CauseKind.UNKNOWN: CauseSpec(),
}
_OTHER = CauseSpec()


def cause_spec(kind: object) -> CauseSpec:
    """The row of a cause (a `CauseKind` or its name in the journal); unknown: an empty row."""
    return CAUSES.get(kind, _OTHER)  # type: ignore[call-overload, no-any-return]


class Certainty(StrEnum):
    """How reliable a statement is."""

    EXACT = "exact"  # reported by the kernel or the program
    LIKELY = "most_likely"  # all known facts point to it; the evidence lists them
    UNKNOWN = "unknown"  # it could not be read, or no other cause was found


@dataclass(frozen=True, slots=True)
class Evidence:
    """One known fact about an end, or one that could not be read."""

    source: str  # "status", "kernel", "count", "level", "python", "jupyter", "pressure", ...
    text: str  # description, partly untrusted
    certainty: Certainty = Certainty.EXACT


class KernelEvent(StrEnum):
    """The kind of a line in the kernel log."""

    OOM_REPORT = "oom_report"  # start of an OOM report: reason and place
    OOM_TASK = "oom_task"  # one line of the table of processes and their memory
    OOM_KILL = "oom_kill"  # the victim
    CRASH = "crash"  # segmentation fault or illegal instruction, with the library
    HUNG = "hung"
    BAD_MEMORY = "bad_memory"  # a process used a page of faulty memory
    HOT = "hot"  # critical temperature: the machine is about to power off
    XID = "xid"


@dataclass(frozen=True, slots=True)
class KernelLogLine:
    """One line of the kernel log about the end of a task. Texts are untrusted."""

    kind: KernelEvent
    mono_s: float  # kernel time stamp, since boot
    text: str
    pid: int | None = None
    name: str | None = None  # process name, at most 15 characters
    constraint: str | None = None  # "CONSTRAINT_MEMCG": the kind of limit that was hit
    group: str | None = None  # cgroup that hit its limit, as a path below the cgroup root
    rss_bytes: int | None = None
    library: str | None = None  # library of the crash, "libcudnn.so.9"
    address: str | None = None  # address that could not be accessed


@dataclass(frozen=True, slots=True)
class LastError:
    """The last error that a Python process wrote. Texts are untrusted."""

    error: str | None = None  # type of the uncaught exception, "MemoryError"
    message: str | None = None  # first line of the exception's text
    fatal: str | None = None  # error that faulthandler reported, "Segmentation fault"
    frames: tuple[str, ...] = ()  # "train.py:42 in step", innermost first

    @property
    def place(self) -> str | None:
        """Where it failed: the innermost frame of the program, else the innermost frame."""
        own = next((each for each in self.frames if not each.startswith("<")), None)
        return own or (self.frames[0] if self.frames else None)


@dataclass(frozen=True, slots=True)
class GuardEnd:
    """The record that the guard of a task left. Texts are untrusted."""

    limit_bytes: int
    next_limit: str  # limit to try in the next run, "1.25G"
    limit: str = ""  # limit as the user typed it; empty: automatic
    refused: bool = False  # the guard refused more memory just before the end
    ended: str | None = None  # how the guard ended it: goes after "train.py was ..."
    stopped: str | None = None  # how it was stopped at the limit: goes after "train.py ended ..."
    last_message: str = ""  # last message of the guard, if it had one
    rescue: RescueRecord | None = None  # rescue that the guard copied


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """
    What systemd and OOM daemons report about the unit of a process that ended.

    Covers only the time of that end. Texts are untrusted.
    """

    name: str  # "train.service"
    user: bool  # unit of the user manager, not of the system manager
    oomd_kills: int | None = None  # processes that systemd-oomd killed in it; 0: number unknown
    kernel_kill: bool = False  # systemd logged an OOM kill by the kernel in the unit
    result: str | None = None  # "oom-kill", "signal", "success"
    main_status: int | None = None  # wait(2) status, if the process was the unit's main process
    lines: tuple[str, ...] = ()  # lines of the journal, unchanged
    guard: str | None = None  # daemon that logged the kill of this process: "earlyoom"


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """Facts about the end of a task. None: unknown."""

    wait_status: int | None = None  # status from wait(2)
    announced_end: bool = False  # the agent announced the end
    failed: bool = False  # the agent announced an exception as the reason
    group_label: str | None = None  # "memory limit of the group jupyter"
    group_limit_bytes: float | None = None
    group_used_bytes: float | None = None  # last measured value
    # The limit is memory.high, or memory.high is below it: the kernel does not kill there.
    group_high: bool = False
    group: str | None = None  # folder of its last known memory cgroup
    # The kernel's OOM kill counters when the task was last seen alive, and after its end.
    group_kills_before: int | None = None
    group_kills_after: int | None = None
    host_total_bytes: int | None = None
    host_available_bytes: int | None = None  # last measured value
    host_kills_before: int | None = None
    host_kills_after: int | None = None
    # Those of these kills that are known to have hit other processes.
    group_kills_elsewhere: int = 0
    host_kills_elsewhere: int = 0
    counted: str | None = None  # time that the counters cover: "between 10:03:01 and 10:03:05"
    card_fault: str | None = None  # fault of a card that it used, shortly before the end
    device_full: str | None = None  # last level: "memory of GPU 0: 23.8 GiB of 24.0 GiB"
    address_space_full: str | None = None  # last level if almost full: "1.39 of 1.43 GiB"
    address_space: str | None = None  # last level at any fill, if a limit is set
    device_ooms: int = 0  # out-of-memory errors that its framework counted
    pid: int | None = None
    kernel: tuple[KernelLogLine, ...] = ()  # recent lines of the kernel log about it
    kernel_log_readable: bool | None = None
    words: LastError | None = None
    notebook: bool = False  # the task was a Jupyter kernel
    parent: str | None = None  # parent process that still runs: "jupyter-lab"
    oom_daemons: tuple[str, ...] = ()  # OOM daemons that run on this machine
    oomd_kills: int | None = None  # kills that systemd-oomd recorded on its cgroup
    unit: UnitEnd | None = None  # None: it had no unit, or systemd was not asked
    stalled_percent: float | None = None  # time in which all tasks waited for memory (PSI, 10 s)
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    was_paused: bool = False
    stall: str | None = None  # last reason why its training made no steps; partly untrusted
    guard: GuardEnd | None = None  # record of its guard, if it had one
    shutdown: bool = False  # logind had announced that the machine is shut down


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a task's end."""

    kind: CauseKind
    text: str  # goes after "train.ipynb was ..." or stands alone
    certainty: Certainty = Certainty.UNKNOWN
    news: bool = False  # notify the user, whatever the kind
    worker: int | None = None  # pid of the worker that ended while the task runs on

    @property
    def spec(self) -> CauseSpec:
        """How watchdog treats this cause."""
        return cause_spec(self.kind)
