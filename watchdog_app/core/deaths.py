"""Of what a task died: evidence to a cause in plain words. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from watchdog_app.core.outlook import (
    CeilingKey,
    CeilingKind,
    CeilingReading,
    Decision,
    DecisionKind,
    Stage,
)
from watchdog_app.core.records import AgentView, Snapshot, Task
from watchdog_app.core.telling import Topic
from watchdog_app.units import format_bytes

_DEVICE_FULL = 0.9  # frameworks ask for large pieces: the one that did not fit never shows
_FULL = 0.97  # of a limit: what was left would not have lasted to the next look


class CauseKind(StrEnum):
    """What ended it."""

    GROUP_LIMIT = "group_limit"  # the kernel, because a memory group was full
    HOST_MEMORY = "host_memory"  # the kernel, because the machine was full
    GPU_LOST = "gpu_lost"  # a fault of the card that it was on
    GPU_MEMORY = "gpu_memory"  # an error of its own, with the card or its allocator full
    ADDRESS_SPACE = "address_space"  # an error of its own, with its address space used up
    KILLED = "killed"  # SIGKILL from somebody, with no sign of a lack of memory
    SIGNAL = "signal"  # another signal: a crash, a Ctrl-C
    FAILED = "failed"  # it ended with a status other than 0
    ENDED = "ended"  # it ended by itself
    UNKNOWN = "unknown"


# What a program that its card has failed ends with, as long as nobody has read the fault.
CARD_MAY_EXPLAIN = frozenset(
    (CauseKind.FAILED, CauseKind.SIGNAL, CauseKind.UNKNOWN, CauseKind.GPU_MEMORY)
)


@dataclass(frozen=True, slots=True)
class DeathFacts:
    """What could be learned about an end. None: not known."""

    wait_status: int | None = None  # as wait(2) gives it
    said_bye: bool = False  # the agent had announced the end
    group_label: str | None = None  # "memory limit of the group jupyter"
    group_limit_bytes: float | None = None
    group_used_bytes: float | None = None  # as last seen
    group_kills_before: int | None = None
    group_kills_after: int | None = None
    host_total_bytes: int | None = None
    host_available_bytes: int | None = None  # as last seen
    host_kills_before: int | None = None
    host_kills_after: int | None = None
    card_fault: str | None = None  # what befell a card that it was on, shortly before
    device_full: str | None = None  # "memory of GPU 0: 23.8 GiB of 24.0 GiB", as last seen
    address_space_full: str | None = None  # "1.39 of 1.43 GiB", as last seen
    device_ooms: int = 0  # out-of-memory errors that its framework has counted


@dataclass(frozen=True, slots=True)
class Cause:
    """What ended a task."""

    kind: CauseKind
    text: str  # goes after "train.ipynb was ..." or stands alone

    @property
    def memory(self) -> bool:
        """The kernel killed it for a lack of memory."""
        return self.kind in (CauseKind.GROUP_LIMIT, CauseKind.HOST_MEMORY)

    @property
    def device(self) -> bool:
        """It died of its graphics card: of a fault, or of a lack of its memory."""
        return self.kind in (CauseKind.GPU_LOST, CauseKind.GPU_MEMORY)


def diagnose(facts: DeathFacts) -> Cause:
    """
    The most likely cause. Says "probably" where the evidence is a level and not a count.

    The kernel counts its own kills in each memory group and for the machine: a count that rose
    is proof. Without one, SIGKILL from a full group or machine is still most likely its work.
    """
    number = _signal(facts.wait_status)
    killed = facts.wait_status is None or number == signal.SIGKILL
    if killed and not (facts.said_bye and facts.wait_status is None):
        found = _counted(facts) or _full(facts)
        if found is not None:
            return found
    found = _by_device(facts, number) or _by_address_space(facts, number)
    if found is not None:
        return found
    if number == signal.SIGKILL:
        return Cause(
            CauseKind.KILLED,
            "killed by SIGKILL, with no sign of a lack of memory: somebody, or a restarted "
            "kernel, ended it",
        )
    if number is not None:
        return Cause(CauseKind.SIGNAL, f"ended by {_signal_name(number)}")
    if facts.wait_status is not None and facts.wait_status != 0:
        status = facts.wait_status >> 8
        return Cause(CauseKind.FAILED, f"ended with status {status}, by an error of its own")
    if facts.said_bye or facts.wait_status == 0:
        return Cause(CauseKind.ENDED, "ended by itself")
    return Cause(CauseKind.UNKNOWN, "ended, and nothing is known about the cause")


def explained_late(cause: Cause, card_fault: str) -> Cause:
    """The cause of an end in the light of a card's fault that was read only after it."""
    return Cause(
        CauseKind.GPU_LOST,
        f"{cause.text}; as it shows now, ended by a fault of its card: {card_fault}",
    )


def device_full(task: Task, readings: Iterable[CeilingReading]) -> str | None:
    """What a full card or allocator of this task looked like; None: none was full."""
    for reading in readings:
        if (
            reading.key.kind in (CeilingKind.GPU_MEMORY, CeilingKind.GPU_ALLOCATOR)
            and task.key in reading.tasks
            and _ratio(reading.used, reading.limit) >= _DEVICE_FULL
        ):
            level = f"{format_bytes(reading.used)} of {format_bytes(reading.limit)}"
            return f"{reading.label}: {level}"
    return None


def address_space_full(reading: CeilingReading) -> str | None:
    """How full a used-up address space is; None: it is not, or the ceiling is another."""
    if reading.key.kind is not CeilingKind.RLIMIT_AS:
        return None
    if _ratio(reading.used, reading.limit) < _DEVICE_FULL:
        return None
    return f"{format_bytes(reading.used)} of {format_bytes(reading.limit)}"


def death_notice(
    ident: str,
    task: Task,
    agent: AgentView | None,
    cause: Cause,
    *,
    snapshot: Snapshot,
    incident: tuple[str, CeilingKey, Stage] | None,
) -> Decision:
    """The decision to tell of a death; `incident` is the one that it ended, if any."""
    rescue = None if agent is None else agent.rescue
    return Decision(
        id=ident,
        kind=DecisionKind.NOTIFY,
        incident="" if incident is None else incident[0],
        ceiling=CeilingKey(CeilingKind.RAM) if incident is None else incident[1],
        stage=Stage.OK if incident is None else incident[2],
        task=task.key,
        at_mono_s=snapshot.mono_s,
        at_unix_s=snapshot.unix_s,
        reason=cause.text,
        evidence={
            "topic": Topic.DIED.value,
            "cause": cause.kind.value,
            "name": task.name,
            "rss_bytes": task.rss_bytes,
            "step": None if agent is None else agent.step,
            "path": None if rescue is None else rescue.path,
            "rescue_step": None if rescue is None else rescue.step,
            "rescue_age_s": None
            if rescue is None
            else max(0.0, snapshot.unix_s - rescue.saved_unix_s),
        },
    )


def worth_telling(cause: Cause, agent: AgentView | None) -> bool:
    """
    Whether people want to hear of it.

    They end their own programs all day: without a sign of memory only a training that was
    under way, and neither ended by itself nor by Ctrl-C or a plain kill, is news.
    """
    if cause.memory or cause.kind in (CauseKind.GPU_LOST, CauseKind.ADDRESS_SPACE):
        return True
    return (
        agent is not None
        and agent.training
        and cause.kind is not CauseKind.ENDED
        and not any(name in cause.text for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    )


def _by_device(facts: DeathFacts, number: int | None) -> Cause | None:
    """An end by an error of its own or a crash, where its card explains it."""
    failed = bool(facts.wait_status) and number is None
    crashed = number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
    unknown = facts.wait_status is None and not facts.said_bye
    if facts.card_fault is not None and (failed or crashed or unknown):
        return Cause(CauseKind.GPU_LOST, f"ended by a fault of its card: {facts.card_fault}")
    if not failed:
        return None
    if facts.device_ooms:
        times = "once" if facts.device_ooms == 1 else f"{facts.device_ooms} times"
        return Cause(
            CauseKind.GPU_MEMORY,
            f"ended by an error of its own: its framework ran out of GPU memory {times}"
            + ("" if facts.device_full is None else f" ({facts.device_full})"),
        )
    if facts.device_full is not None:
        return Cause(
            CauseKind.GPU_MEMORY,
            "ended by an error of its own, probably out of GPU memory: when it was last seen, "
            + facts.device_full,
        )
    return None


def _by_address_space(facts: DeathFacts, number: int | None) -> Cause | None:
    """An end by an error of its own, where nothing more could be had under RLIMIT_AS."""
    if facts.address_space_full is None or facts.said_bye or facts.wait_status == 0:
        return None
    # Python ends with a status; a library in C that does not look at what malloc gave it crashes.
    if number not in (None, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        return None
    how = "ended by an error of its own, most likely"
    if facts.wait_status is None:
        how = "ended, probably by"
    return Cause(
        CauseKind.ADDRESS_SPACE,
        f"{how} a MemoryError: its address space (ulimit -v) held {facts.address_space_full} "
        "when it was last seen",
    )


def _counted(facts: DeathFacts) -> Cause | None:
    before, after = facts.group_kills_before, facts.group_kills_after
    if before is not None and after is not None and after > before:
        limit = facts.group_limit_bytes
        full = "its limit" if limit is None else f"its limit of {format_bytes(limit)}"
        return Cause(
            CauseKind.GROUP_LIMIT,
            f"killed by the kernel: its memory group reached {full} "
            f"(oom_kill rose from {before} to {after})",
        )
    before, after = facts.host_kills_before, facts.host_kills_after
    if before is not None and after is not None and after > before:
        if _ratio(facts.group_used_bytes, facts.group_limit_bytes) >= _FULL:
            return Cause(
                CauseKind.GROUP_LIMIT,
                f"killed by the kernel: its memory group was at its limit of "
                f"{format_bytes(facts.group_limit_bytes)} (the machine's oom_kill rose from "
                f"{before} to {after})",
            )
        return Cause(
            CauseKind.HOST_MEMORY,
            f"killed by the kernel: the machine was out of memory "
            f"(oom_kill rose from {before} to {after})",
        )
    return None


def _full(facts: DeathFacts) -> Cause | None:
    if _ratio(facts.group_used_bytes, facts.group_limit_bytes) >= _FULL:
        return Cause(
            CauseKind.GROUP_LIMIT,
            f"probably killed by the kernel: its memory group held "
            f"{format_bytes(facts.group_used_bytes)} of {format_bytes(facts.group_limit_bytes)} "
            f"when it was last seen",
        )
    total, available = facts.host_total_bytes, facts.host_available_bytes
    if total and available is not None and total - available >= _FULL * total:
        return Cause(
            CauseKind.HOST_MEMORY,
            f"probably killed by the kernel: the machine had {format_bytes(available)} of "
            f"{format_bytes(total)} left when it was last seen",
        )
    return None


def _ratio(used: float | None, limit: float | None) -> float:
    return 0.0 if used is None or not limit else used / limit


def _signal(wait_status: int | None) -> int | None:
    if wait_status is None:
        return None
    return wait_status & 0x7F or None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
