"""What is known about an end, and what is made of it: plain frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watchdog_app.core.model.agent import RescueRecord


class CauseKind(StrEnum):
    """What ended it."""

    GROUP_LIMIT = "group_limit"  # the kernel, because a memory group was full
    HOST_MEMORY = "host_memory"  # the kernel, because the machine was full
    OOM_DAEMON = "oom_daemon"  # earlyoom, nohang, systemd-oomd: before the kernel had to
    GPU_LOST = "gpu_lost"  # a fault of the card that it was on
    GPU_MEMORY = "gpu_memory"  # an error of its own, with the card or its allocator full
    ADDRESS_SPACE = "address_space"  # an error of its own, with its address space used up
    PROGRAM_MEMORY = "program_memory"  # an error of its own that says that memory ran out
    GUARD = "guard"  # its guard, at its limit: as somebody chose, or as nothing else was left
    CPU_LIMIT = "cpu_limit"  # the kernel, because its processor time was used up
    HARDWARE = "hardware"  # the kernel, because memory of the machine is broken
    MACHINE_DOWN = "machine_down"  # it was alive when the machine went down
    CLOSED = "closed"  # somebody closed the kernel, or the terminal that it ran in
    KILLED = "killed"  # SIGKILL from somebody, with no sign of a lack of memory
    SIGNAL = "signal"  # another signal: a crash, a Ctrl-C
    FAILED = "failed"  # it ended with a status other than 0
    ENDED = "ended"  # it ended by itself
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CauseSpec:
    """What is made of one kind of cause."""

    title: str = "Ended"  # of a notification
    out_of_memory: bool = False  # RAM, address space or the memory of a card
    by_kernel: bool = False  # which killed it for a lack of memory
    by_error: bool = False  # a lack of memory that ended it with an error of its own
    of_card: bool = False
    of_group: bool = False  # at the limit of its memory group
    own: bool = False  # an error of the program's own
    card_may_explain: bool = False  # so a program ends too whose card's fault is not read yet
    # True: always; False: never, as its guard has told of it; None: if it was in a training.
    # What is not None is a death in the journal, however short it ran.
    notify: bool | None = None
    by_itself: bool = False  # it ended by itself, or somebody closed it


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
        "Out of GPU memory",
        out_of_memory=True,
        by_error=True,
        of_card=True,
        own=True,
        card_may_explain=True,
    ),
    CauseKind.ADDRESS_SPACE: CauseSpec(
        "Out of memory", out_of_memory=True, by_error=True, own=True, notify=True
    ),
    CauseKind.PROGRAM_MEMORY: CauseSpec(
        "Out of memory", out_of_memory=True, by_error=True, own=True, notify=True
    ),
    CauseKind.GUARD: CauseSpec(of_group=True, notify=False),
    CauseKind.CPU_LIMIT: CauseSpec("Out of processor time", notify=True),
    CauseKind.HARDWARE: CauseSpec(notify=True),
    CauseKind.MACHINE_DOWN: CauseSpec("The machine went down", notify=True),
    CauseKind.CLOSED: CauseSpec(by_itself=True),
    CauseKind.SIGNAL: CauseSpec(card_may_explain=True),
    CauseKind.FAILED: CauseSpec(own=True, card_may_explain=True),
    CauseKind.ENDED: CauseSpec(by_itself=True),
    CauseKind.UNKNOWN: CauseSpec(card_may_explain=True),
}
_OTHER = CauseSpec()


def cause_spec(kind: object) -> CauseSpec:
    """The row of a cause, also as the journal has it; one without anything where there is none."""
    return CAUSES.get(kind, _OTHER)  # type: ignore[call-overload, no-any-return]


class Certainty(StrEnum):
    """How far something can be relied on."""

    EXACT = "exact"  # the kernel or the program itself said so
    LIKELY = "most_likely"  # all that is known points to it; the reasons stand beside it
    UNKNOWN = "unknown"  # it could not be read, or it is only that nothing else was found


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that is known, or could not be learned, about an end."""

    source: str  # "status", "kernel", "count", "level", "python", "jupyter", "pressure", ...
    text: str  # untrusted in parts
    certainty: Certainty = Certainty.EXACT


class KernelEvent(StrEnum):
    """What a line of the kernel log says."""

    OOM_REPORT = "oom_report"  # why and where somebody has to die
    OOM_TASK = "oom_task"  # a line of the table of who holds how much
    OOM_KILL = "oom_kill"  # who was chosen
    OOM_REAPED = "oom_reaped"
    CRASH = "crash"  # a segmentation fault, an illegal instruction, and in which library
    HUNG = "hung"
    BAD_MEMORY = "bad_memory"  # a page of broken memory was in use
    HOT = "hot"  # critical temperature: the machine is about to be switched off
    XID = "xid"


@dataclass(frozen=True, slots=True)
class KernelLogLine:
    """One line of the kernel log about an end. Texts are untrusted."""

    kind: KernelEvent
    mono_s: float  # since boot, as the kernel counts
    text: str
    pid: int | None = None
    name: str | None = None  # of the process: 15 characters at most
    constraint: str | None = None  # "CONSTRAINT_MEMCG": whose memory was short
    group: str | None = None  # of whose limit, as a path below the root of the groups
    rss_bytes: int | None = None
    library: str | None = None  # that it crashed in, "libcudnn.so.9"
    address: str | None = None  # what could not be had there


@dataclass(frozen=True, slots=True)
class LastError:
    """What a Python left behind in its last moment. Texts are untrusted."""

    error: str | None = None  # "MemoryError", of an exception that nobody caught
    message: str | None = None  # first line of its text
    fatal: str | None = None  # "Segmentation fault": what Python's own handler met
    frames: tuple[str, ...] = ()  # "train.py:42 in step", innermost first

    @property
    def place(self) -> str | None:
        """Where it was: the innermost place that is the program's own, else the innermost."""
        own = next((each for each in self.frames if not each.startswith("<")), None)
        return own or (self.frames[0] if self.frames else None)


@dataclass(frozen=True, slots=True)
class GuardEnd:
    """What its guard wrote down. Texts are untrusted."""

    limit_bytes: int
    next_limit: str  # that is worth a try, "1.25G"
    limit: str = ""  # as somebody would type it; empty: nobody set one
    refused: bool = False  # further memory, just before
    ended: str | None = None  # by it: goes after "train.py was ..."
    held: str | None = None  # how it stood there, if it did: goes after "train.py ended ..."
    last_message: str = ""  # what it said at last, where anything had happened
    rescue: RescueRecord | None = None  # that was copied from outside


@dataclass(frozen=True, slots=True)
class UnitEnd:
    """
    What systemd, and daemons that it runs, say of the unit of a process that has ended.

    Of the time of that end alone. Texts are untrusted.
    """

    name: str  # "train.service"
    user: bool  # of the user's own manager, not of the system's
    oomd_kills: int | None = None  # processes that systemd-oomd killed in it; 0: number unknown
    kernel_kill: bool = False  # systemd noted that the kernel killed one of them for memory
    result: str | None = None  # "oom-kill", "signal", "success"
    main_status: int | None = None  # as wait(2) gives it, where the process was its main process
    lines: tuple[str, ...] = ()  # of the journal, as they stand there
    guard: str | None = None  # "earlyoom", which wrote that it ended this process


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """What could be learned about an end. None: not known."""

    wait_status: int | None = None  # as wait(2) gives it
    said_bye: bool = False  # the agent had announced the end
    failed: bool = False  # ... and that an exception was the reason
    group_label: str | None = None  # "memory limit of the group jupyter"
    group_limit_bytes: float | None = None
    group_used_bytes: float | None = None  # as last seen
    # Its limit is memory.high, or memory.high lies below it: the kernel kills nobody there.
    group_high: bool = False
    group: str | None = None  # folder of its memory group, as last seen
    # The kernel's counts of its kills for memory, from when it was last seen alive to its end.
    group_kills_before: int | None = None
    group_kills_after: int | None = None
    host_total_bytes: int | None = None
    host_available_bytes: int | None = None  # as last seen
    host_kills_before: int | None = None
    host_kills_after: int | None = None
    # Of these kills, those whose victims are known to be others.
    group_kills_elsewhere: int = 0
    host_kills_elsewhere: int = 0
    counted: str | None = None  # the time that the counts cover: "between 10:03:01 and 10:03:05"
    card_fault: str | None = None  # what befell a card that it was on, shortly before
    device_full: str | None = None  # "memory of GPU 0: 23.8 GiB of 24.0 GiB", as last seen
    address_space_full: str | None = None  # "1.39 of 1.43 GiB", as last seen
    address_space: str | None = None  # the same however full, where it is limited
    device_ooms: int = 0  # out-of-memory errors that its framework has counted
    pid: int | None = None
    kernel: tuple[KernelLogLine, ...] = ()  # lines of the kernel log about it, of just now
    kernel_log_readable: bool | None = None
    words: LastError | None = None
    notebook: bool = False  # it was a Jupyter kernel
    parent: str | None = None  # what started it and lives on: "jupyter-lab"
    oom_daemons: tuple[str, ...] = ()  # of those that kill for memory: which run here
    oomd_kills: int | None = None  # that systemd-oomd has noted on its group
    unit: UnitEnd | None = None  # None: it was in none, or systemd was not asked
    cpu_limit_s: float | None = None  # RLIMIT_CPU
    cpu_used_s: float | None = None  # as last seen, by it alone
    stalled_percent: float | None = None  # of the last 10 s: everybody waited for memory
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    was_paused: bool = False
    stall: str | None = None  # why its training made no steps, as last seen; untrusted in parts
    guard: GuardEnd | None = None  # that it was in


@dataclass(frozen=True, slots=True)
class Cause:
    """What ended a task."""

    kind: CauseKind
    text: str  # goes after "train.ipynb was ..." or stands alone
    certainty: Certainty = Certainty.UNKNOWN
    news: bool = False  # people want to hear of it, whatever it is
    worker: int | None = None  # it is the end of this worker alone: the task lives on

    @property
    def spec(self) -> CauseSpec:
        """What is made of it."""
        return cause_spec(self.kind)

    @property
    def memory(self) -> bool:
        """The kernel killed it for a lack of memory."""
        return self.spec.by_kernel
