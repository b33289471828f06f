"""Of what a task died: evidence to a cause in plain words. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis import guard_ends
from watchdog_app.core.diagnosis.exits import (
    CRASHES,
    signal_name,
    signal_of,
)
from watchdog_app.core.diagnosis.oom_daemons import by_guard, by_unit
from watchdog_app.core.diagnosis.out_of_memory import cause_by_words
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, KernelEvent
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind, Scope

_DEVICE_FULL = 0.9  # frameworks ask for large pieces: the one that did not fit never shows
_FULL = 0.97  # of a limit: what was left would not have lasted to the next look
_NEAR = 0.8  # of a limit that the kernel says was met
_MOST_OF_TIME = 0.8  # of the processor time: the last look may be seconds of many threads old
_ALMOST_S = 3.0
_MEANINGS = {
    "SIGHUP": ": most likely its terminal or its ssh connection was closed",
    "SIGINT": ": most likely Ctrl-C",
    "SIGTERM": ": somebody asked it to end (kill, a service manager, a batch system, a logout)",
}


# What a program that its card has failed ends with, as long as nobody has read the fault.
CARD_MAY_EXPLAIN = frozenset(
    (CauseKind.FAILED, CauseKind.SIGNAL, CauseKind.UNKNOWN, CauseKind.GPU_MEMORY)
)


def diagnose(facts: ExitFacts) -> Cause:
    """
    The most likely cause, with how far it can be relied on.

    Exact is what the kernel or the program said itself: a line of the kernel log about this
    process, the kernel's count of its kills in the process's own group, an exit status. Where the
    evidence is a level and not a count it says "probably" or "most likely"; a cause that nothing
    points to is not given.
    """
    if facts.wait_status is None and facts.unit is not None:
        facts = replace(facts, wait_status=facts.unit.main_status)
    number = signal_of(facts.wait_status)
    for found in (
        _by_kernel_log(facts, number),
        guard_ends.ended_by_it(facts),
        cause_by_words(facts, number),
        by_unit(facts, number, excluded=_excluded(facts)),
        guard_ends.refused(facts),
        _by_memory(facts, number),
        _by_time(facts, number),
        _by_device(facts, number),
        _by_address_space(facts, number),
        guard_ends.while_held(facts),
        _by_signal(facts, number),
        _by_status(facts),
    ):
        if found is not None:
            return found
    if facts.said_bye or facts.wait_status == 0:
        return _good_end(facts)
    return Cause(CauseKind.UNKNOWN, "ended, and nothing is known about the cause")


def explained_late(cause: Cause, card_fault: str) -> Cause:
    """
    The cause of an end in the light of a card's fault that was read only after it.

    Args:
        cause: found before.
        card_fault: in words; None if there was none.
    """
    return Cause(
        CauseKind.GPU_LOST,
        f"{cause.text}; as it shows now, ended by a fault of its card: {card_fault}",
        Certainty.LIKELY,
    )


def device_full(task: Task, readings: Iterable[Reading]) -> str | None:
    """
    What a full card or allocator of this task looked like; None: none was full.

    Args:
        task: that has ended.
        readings: of its last sample.
    """
    for reading in readings:
        if (
            SPECS[reading.key.kind].scope is Scope.CARD
            and task.key in reading.tasks
            and _ratio(reading.used, reading.limit) >= _DEVICE_FULL
        ):
            level = f"{format_bytes(reading.used)} of {format_bytes(reading.limit)}"
            return f"{reading.label}: {level}"
    return None


def address_space_full(reading: Reading) -> str | None:
    """How full a used-up address space is; None: it is not, or the resource is another."""
    if reading.key.kind is not ResourceKind.RLIMIT_AS:
        return None
    if _ratio(reading.used, reading.limit) < _DEVICE_FULL:
        return None
    return level_of(reading)


def level_of(reading: Reading) -> str:
    """`1.2 GiB of 2.4 GiB`."""
    return f"{format_bytes(reading.used)} of {format_bytes(reading.limit)}"


def _by_device(facts: ExitFacts, number: int | None) -> Cause | None:
    """An end by an error of its own or a crash, where its card explains it."""
    failed = bool(facts.wait_status) and number is None
    broke = number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
    unknown = facts.wait_status is None and not facts.said_bye
    if facts.card_fault is not None and (failed or broke or unknown):
        text = f"ended by a fault of its card: {facts.card_fault}"
        return Cause(CauseKind.GPU_LOST, text, Certainty.LIKELY)
    if not failed or (facts.words is not None and facts.words.error is not None):
        return None  # it said itself what it was
    if facts.device_ooms:
        times = "once" if facts.device_ooms == 1 else f"{facts.device_ooms} times"
        return Cause(
            CauseKind.GPU_MEMORY,
            f"ended by an error of its own: its framework ran out of GPU memory {times}"
            + ("" if facts.device_full is None else f" ({facts.device_full})"),
            Certainty.LIKELY,
        )
    if facts.device_full is not None:
        return Cause(
            CauseKind.GPU_MEMORY,
            "ended by an error of its own, probably out of GPU memory: when it was last seen, "
            + facts.device_full,
            Certainty.LIKELY,
        )
    return None


def _by_address_space(facts: ExitFacts, number: int | None) -> Cause | None:
    """An end by an error of its own, where nothing more could be had under RLIMIT_AS."""
    if facts.address_space_full is None or facts.said_bye or facts.wait_status == 0:
        return None
    # Python ends with a status; a library in C that does not look at what malloc gave it crashes.
    if number not in (None, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS):
        return None
    if facts.words is not None and facts.words.error is not None:
        return None  # it said itself what it was
    how = "ended by an error of its own, most likely a MemoryError"
    if number is not None:
        how = f"{_crash(facts, number)}, most likely because an allocation failed"
    elif facts.wait_status is None:
        how = "ended, probably by a MemoryError"
    return Cause(
        CauseKind.ADDRESS_SPACE,
        f"{how}: its address space (ulimit -v) held {facts.address_space_full} "
        "when it was last seen",
        Certainty.LIKELY,
    )


def _crash(facts: ExitFacts, number: int) -> str:
    """By which signal, in which library, at which line."""
    word = next(
        (w for w in facts.kernel if w.kind is KernelEvent.CRASH and w.pid == facts.pid), None
    )
    text = f"crashed: ended by {signal_name(number)}"
    if word is not None and word.library is not None:
        text += f" in {plain(word.library, 60)}"
    if facts.words is not None and facts.words.fatal is not None and facts.words.place is not None:
        text += f", at {plain(facts.words.place, 100)}"
    return text


def _by_kernel_log(facts: ExitFacts, number: int | None) -> Cause | None:
    """What the kernel has written about this very process."""
    if number not in (None, signal.SIGKILL, signal.SIGBUS) or _by_itself(facts):
        return None
    for word in facts.kernel:
        if word.pid != facts.pid or word.pid is None:
            continue
        if word.kind is KernelEvent.BAD_MEMORY:
            text = "ended by the kernel: a page of its memory lay in a broken part of the RAM"
            return Cause(CauseKind.HARDWARE, text, Certainty.EXACT, news=True)
        if word.kind is KernelEvent.OOM_KILL and number in (None, signal.SIGKILL):
            report = next(
                (
                    each
                    for each in facts.kernel
                    if each.kind is KernelEvent.OOM_REPORT and each.pid in (None, facts.pid)
                ),
                None,
            )
            grouped = "cgroup" in word.text or (
                report is not None and report.constraint == "CONSTRAINT_MEMCG"
            )
            if not grouped:
                text = "killed by the kernel: the machine was out of memory"
                return Cause(CauseKind.HOST_MEMORY, f"{text} (kernel log)", Certainty.EXACT)
            full = "its limit"
            # Limits nest: which of them was met, only the kernel knows where the levels disagree.
            if _level(facts) >= _NEAR:
                full = f"its limit of {format_bytes(facts.group_limit_bytes)}"
            text = f"killed by the kernel: its memory group reached {full} (kernel log)"
            return Cause(CauseKind.GROUP_LIMIT, text, Certainty.EXACT)
    return None


def _by_memory(facts: ExitFacts, number: int | None) -> Cause | None:
    """A kill for memory, by the kernel's counts, by another guard, or by how full it was."""
    if number not in (None, signal.SIGKILL, signal.SIGTERM) or _by_itself(facts):
        return None
    if number is None and (facts.said_bye or facts.failed or _spoke(facts)):
        return None
    if number == signal.SIGTERM:
        return by_guard(facts, number)
    excluded = _excluded(facts)
    killed = Certainty.EXACT if number == signal.SIGKILL else Certainty.LIKELY
    found = None if excluded else _counted(facts)
    if found is not None:
        own = "(oom_kill rose" in found.text and found.kind is CauseKind.GROUP_LIMIT
        return replace(found, certainty=killed if own else Certainty.LIKELY)
    return by_guard(facts, number, excluded=excluded) or (None if excluded else _full(facts))


def _by_itself(facts: ExitFacts) -> bool:
    """It is known that no signal ended it."""
    return facts.wait_status is not None and signal_of(facts.wait_status) is None


def _spoke(facts: ExitFacts) -> bool:
    """An uncaught exception was recorded: no signal ended it."""
    return facts.words is not None and facts.words.error is not None


def _excluded(facts: ExitFacts) -> bool:
    """The kernel's counters or its log say that it did not kill this process."""
    others = [word for word in facts.kernel if word.kind is KernelEvent.OOM_KILL]
    if others and facts.pid is not None:
        return True  # the log names whom it has killed, and `_by_kernel_log` did not find this one
    for before, after, elsewhere in (
        (facts.group_kills_before, facts.group_kills_after, facts.group_kills_elsewhere),
        (facts.host_kills_before, facts.host_kills_after, facts.host_kills_elsewhere),
    ):
        if before is not None and after is not None:
            return after - before <= elsewhere
    return False


def _by_time(facts: ExitFacts, number: int | None) -> Cause | None:
    """Its processor time was used up (ulimit -t)."""
    limit, used = facts.cpu_limit_s, facts.cpu_used_s
    of_limit = "" if limit is None else f" of {limit:.0f} s"
    if number == getattr(signal, "SIGXCPU", None) and number is not None:
        text = f"ended by the kernel: its limit of processor time (ulimit -t){of_limit} was reached"
        return Cause(CauseKind.CPU_LIMIT, text, Certainty.EXACT, news=True)
    if number != signal.SIGKILL or limit is None or used is None:
        return None
    if used < _MOST_OF_TIME * limit and limit - used > _ALMOST_S:
        return None
    text = (
        f"most likely killed by the kernel: it had used {used:.0f} s of its limit of processor "
        f"time (ulimit -t){of_limit} when it was last seen"
    )
    return Cause(CauseKind.CPU_LIMIT, text, Certainty.LIKELY, news=True)


def _by_signal(facts: ExitFacts, number: int | None) -> Cause | None:
    if number is None:
        return None
    if number == signal.SIGKILL:
        how = ", with no sign of a lack of memory: "
        if _full(facts) is not None:
            how = "; memory was short, but the kernel did not kill it for that: "
        return Cause(
            CauseKind.KILLED, f"killed by SIGKILL{how}somebody, or a restarted kernel, ended it"
        )
    name = signal_name(number)
    if number not in CRASHES:
        why = _MEANINGS.get(name, "")
        return Cause(
            CauseKind.SIGNAL,
            f"ended by {name}{why}",
            Certainty.LIKELY if why else Certainty.EXACT,
        )
    return Cause(CauseKind.SIGNAL, _crash(facts, number), Certainty.EXACT, news=facts.notebook)


def _by_status(facts: ExitFacts) -> Cause | None:
    """An uncaught exception, or a status other than 0."""
    words = facts.words
    status = None if facts.wait_status is None else facts.wait_status >> 8
    if words is not None and words.error is not None and status != 0:
        at = "" if words.place is None else f" at {plain(words.place, 100)}"
        text = f"ended by {plain(words.error, 60)}{at}"
        return Cause(CauseKind.FAILED, text, Certainty.EXACT, news=facts.notebook)
    if status is None and facts.failed:
        text = "ended by an exception that nobody caught"
        return Cause(CauseKind.FAILED, text, Certainty.EXACT, news=facts.notebook)
    if not status:
        return None
    return Cause(
        CauseKind.FAILED,
        f"ended by itself with status {status}: an error of its own, or sys.exit({status})",
        Certainty.EXACT,
        news=facts.notebook,
    )


def _good_end(facts: ExitFacts) -> Cause:
    if not facts.notebook:
        certainty = Certainty.LIKELY if facts.wait_status is None else Certainty.EXACT
        return Cause(CauseKind.ENDED, "ended by itself", certainty)
    text = "ended in good order: most likely closed or restarted in Jupyter, or by exit in a cell"
    return Cause(CauseKind.CLOSED, text, Certainty.LIKELY)


def _counted(facts: ExitFacts) -> Cause | None:
    before, after = facts.group_kills_before, facts.group_kills_after
    if before is not None and after is not None and after > before:
        limit = facts.group_limit_bytes
        known = limit is not None and not facts.group_high
        full = f"its limit of {format_bytes(limit)}" if known else "its limit"
        return Cause(
            CauseKind.GROUP_LIMIT,
            f"killed by the kernel: its memory group reached {full} "
            f"(oom_kill rose from {before} to {after})",
        )
    before, after = facts.host_kills_before, facts.host_kills_after
    if before is not None and after is not None and after > before:
        if _level(facts) >= _FULL:
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


def _full(facts: ExitFacts) -> Cause | None:
    # At the limit of an airbag the kernel kills nobody: being full says nothing there.
    if facts.airbag is None and _level(facts) >= _FULL:
        return Cause(
            CauseKind.GROUP_LIMIT,
            f"probably killed by the kernel: its memory group held "
            f"{format_bytes(facts.group_used_bytes)} of {format_bytes(facts.group_limit_bytes)} "
            f"when it was last seen",
            Certainty.LIKELY,
        )
    total, available = facts.host_total_bytes, facts.host_available_bytes
    if total and available is not None and total - available >= _FULL * total:
        return Cause(
            CauseKind.HOST_MEMORY,
            f"probably killed by the kernel: the machine had {format_bytes(available)} of "
            f"{format_bytes(total)} left when it was last seen",
            Certainty.LIKELY,
        )
    return None


def _level(facts: ExitFacts) -> float:
    """How full its memory group was, where being full kills: memory.high only slows down."""
    if facts.group_high:
        return 0.0
    return _ratio(facts.group_used_bytes, facts.group_limit_bytes)


def _ratio(used: float | None, limit: float | None) -> float:
    return 0.0 if used is None or not limit else used / limit
