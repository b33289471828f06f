"""
List the evidence for the cause of an exit, one sentence each, and which exits to report. Pure.

Sources that could not be read are listed as well. An unreadable source does not speak against a
cause. A source that was read without a finding does.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

from watchdog_app.base.oom_text import out_of_memory
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.exits import (
    Cause,
    CauseKind,
    Certainty,
    Evidence,
    ExitFacts,
    KernelEvent,
    KernelLogLine,
)

_LONGEST = 240
_STALLED_PERCENT = 5.0  # percent of the time; lower values are normal
_MOST_FRAMES = 3
_MOST_ROWS = 5
_SAME_MOMENT_S = 1.0
_JUST_NOW_S = 10.0
_DRIFT_S = 2.0  # the kernel log has its own clock
NO_KILL = "no_kill"  # source: the count of kills for memory did not rise
_MOUNTS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")

# Fields of `Evidence`: its source, its text, and its certainty if it is not exact.
_Fact = tuple[str, str] | tuple[str, str, Certainty]
_NOTED_S = 10.0  # a normal exit after a shorter run is not even recorded
# a failure after a shorter run needs no notification: its user still watches the program
_NEWS_S = 60.0
# Messages of PyTorch, concurrent.futures and joblib about a lost worker.
_LOST_WORKER = re.compile(
    r"DataLoader worker .*(?:killed by signal: Killed|exited unexpectedly)"
    r"|BrokenProcessPool|TerminatedWorkerError"
)
CRASHES = frozenset(
    number
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS")
    if (number := getattr(signal, name, None)) is not None
)


def collect_evidence(facts: ExitFacts) -> tuple[Evidence, ...]:
    """Return all evidence about an exit, most certain first."""
    found = [Evidence(*each) for section in _SECTIONS for each in section(facts)]
    order = tuple(Certainty)
    return tuple(sorted(found, key=lambda each: order.index(each.certainty)))


def lines_about_exit(
    words: tuple[KernelLogLine, ...],
    pid: int,
    now_mono_s: float,
    *,
    alive_mono_s: float | None = None,
    counted_mono_s: float | None = None,
    group: str | None = None,
) -> tuple[KernelLogLine, ...]:
    """
    Return the kernel log lines that concern the end of `pid`: its own, and lines of that time.

    If the kernel killed `pid` for memory, the result includes the report and the table of this
    kill. Otherwise lines since the process was last seen alive may explain its end. Examples are a
    machine that is too hot, or another process killed at a memory limit that applied to both.

    Args:
        words: lines of the kernel log.
        pid: the process that ended.
        now_mono_s: monotonic seconds.
        alive_mono_s: when the process was last seen alive; None: some seconds ago.
        counted_mono_s: since when the kernel's kill count is shown with the lines; None: unknown.
            Earlier kills of other processes are left out.
        group: folder of its memory group. Kills at limits of other groups are left out.
    """
    own = next((w for w in words if w.kind is KernelEvent.OOM_KILL and w.pid == pid), None)
    if own is not None:
        return tuple(
            word
            for word in words
            if abs(word.mono_s - own.mono_s) <= _SAME_MOMENT_S
            and (word.pid in (None, pid) or word.kind is KernelEvent.OOM_TASK)
        )
    since = now_mono_s - _JUST_NOW_S if alive_mono_s is None else alive_mono_s - _DRIFT_S
    since = max(since, float("-inf") if counted_mono_s is None else counted_mono_s)
    return tuple(
        word
        for word in words
        if (word.pid == pid and word.kind is not KernelEvent.OOM_TASK)
        or (word.kind is KernelEvent.HOT and now_mono_s - word.mono_s <= _JUST_NOW_S)
        or (
            word.kind is KernelEvent.OOM_KILL
            and word.mono_s >= since
            and _is_under_limit(_limited_group(word, words), group)
        )
    )


def kills_elsewhere(words: tuple[KernelLogLine, ...], pid: int, since_mono_s: float) -> int:
    """
    Count other processes that the kernel log reports as killed for memory since then.

    Args:
        words: lines of the kernel log.
        pid: the process that ended.
        since_mono_s: when it was last seen alive.
    """
    return sum(
        word.kind is KernelEvent.OOM_KILL and word.pid != pid and word.mono_s >= since_mono_s
        for word in words
    )


def _limited_group(kill: KernelLogLine, words: tuple[KernelLogLine, ...]) -> str | None:
    """Return the group whose limit caused a kill. "": the machine's memory. None: unknown."""
    for word in words:
        near = abs(word.mono_s - kill.mono_s) <= _SAME_MOMENT_S
        if word.kind is KernelEvent.OOM_REPORT and near and word.pid in (None, kill.pid):
            return word.group if word.constraint == "CONSTRAINT_MEMCG" else ""
    return None if "cgroup" in kill.text else ""


def _is_under_limit(limit: str | None, group: str | None) -> bool:
    """Whether the limit also applied to a process in `group`."""
    if not limit or group is None:
        return limit == ""
    return f"{_kernel_group_name(group)}/".startswith(f"{limit.rstrip('/')}/")


def largest_processes(words: tuple[KernelLogLine, ...]) -> tuple[tuple[int, str, int], ...]:
    """
    Return the largest processes when the kernel chose its victim.

    The rows are (pid, name, bytes), largest first. Names are untrusted kernel names of at most 15
    characters. Empty if the log has no table.
    """
    rows = {
        word.pid: (word.pid, word.name or "?", word.rss_bytes)
        for word in words
        if word.kind is KernelEvent.OOM_TASK and word.pid is not None and word.rss_bytes
    }
    return tuple(sorted(rows.values(), key=lambda row: -row[2])[:_MOST_ROWS])


def _status(facts: ExitFacts) -> Iterator[_Fact]:
    status, number = facts.wait_status, signal_of(facts.wait_status)
    if status is None:
        text = "Its exit status could not be read: its parent process had collected it before."
        yield "status", text, Certainty.UNKNOWN
    elif number is None:
        yield "status", f"It exited with status {status >> 8}."
    else:
        core = ", and left a core file" if status & 0x80 else ""
        yield "status", f"It was ended by signal {number} ({signal_name(number)}){core}."


def _guard(facts: ExitFacts) -> Iterator[_Fact]:
    if facts.guard is not None and facts.guard.last_message:
        yield "guard", f"Its guard says: {clean(facts.guard.last_message, _LONGEST)}"
    elif facts.guard is not None:
        limit = format_bytes(facts.guard.limit_bytes)
        yield "guard", f"It ran under a guard with a limit of {limit}."


def _kernel(facts: ExitFacts) -> Iterator[_Fact]:
    # A line without a pid concerns all processes: a hot machine, a full group. The rows of the
    # table are shown elsewhere.
    own = [
        line
        for line in facts.kernel
        if line.kind is not KernelEvent.OOM_TASK and line.pid in (None, facts.pid)
    ]
    for line in own:
        # The report of a kill is long and hard to read, so show only its meaning.
        yield "kernel", f"The kernel log says: {_report(line)}"
    killed = _may_be_memory_kill(facts)
    kills = [each for each in facts.kernel if each.kind is KernelEvent.OOM_KILL]
    others = {each.pid: each for each in kills if each.pid != facts.pid}
    for pid, line in others.items() if killed else ():
        name = clean(line.name or "?")
        whose = ", at a limit that was this one's too" if "cgroup" in line.text else ""
        text = f"Since it was last seen the kernel killed {name} (process {pid}) for memory{whose}."
        yield "kernel", text
    if own or not (killed or crashed(facts.wait_status)):
        return
    if facts.kernel_log_readable:
        yield "kernel", "The kernel log says nothing about it."
    elif facts.kernel_log_readable is False:
        text = (
            "The kernel log could not be read by this user (kernel.dmesg_restrict). An "
            "administrator can look: sudo dmesg -T | grep -i -e oom -e segfault -e Xid"
        )
        yield "kernel", text, Certainty.UNKNOWN


def _report(line: KernelLogLine) -> str:
    """Return the line as it is. For the report of a kill, say which memory was short."""
    if line.kind is not KernelEvent.OOM_REPORT or line.constraint is None:
        return clean(line.text, _LONGEST)
    if line.constraint == "CONSTRAINT_MEMCG":
        where = "" if line.group is None else f" {clean(line.group, 120)}"
        return f"the limit that was met is that of the memory group{where}."
    if line.constraint == "CONSTRAINT_NONE":
        return "the whole machine was out of memory, no group's limit was met."
    return "the memory that it was bound to (a NUMA node) was used up."


def _python(facts: ExitFacts) -> Iterator[_Fact]:
    words = facts.words
    if words is None:
        return
    if words.fatal is not None:
        yield "python", f"Python wrote in the end: {clean(words.fatal, 120)}."
    elif words.error is not None:
        message = f": {clean(words.message, 160)}" if words.message else ""
        yield "python", f"An uncaught exception ended it: {clean(words.error, 60)}{message}"
    if words.frames:
        shown = list(words.frames[:_MOST_FRAMES])
        if words.place is not None and words.place not in shown:
            shown[-1] = words.place  # people look for the line of their own program
        path = ", called from ".join(clean(each, 100) for each in shown)
        yield "python", f"It was at {path}."


def _counts(facts: ExitFacts) -> Iterator[_Fact]:
    """Yield the kernel's kill counts: for the process's group and for the time that they cover."""
    killed = facts.wait_status is None or signal_of(facts.wait_status) == signal.SIGKILL
    words, count = facts.words, kill_count(facts)
    lost = words is not None and lost_worker(f"{words.error}: {words.message}")
    own = any(w.kind is KernelEvent.OOM_KILL and w.pid == facts.pid for w in facts.kernel)
    if not (killed or lost):
        return
    if count is None:
        if not own and facts.pid is not None:
            text = "The kernel's counts of its kills for memory could not be read."
            yield "count", text, Certainty.UNKNOWN
        return
    where = "on this machine"
    if count.of_group:
        where = "its memory group"
        if facts.group is not None:
            where = f"in the memory group {clean(_kernel_group_name(facts.group), 160)}"
    when = "" if facts.counted is None else f", {facts.counted}"
    if count.after > count.before:
        others = ", for other processes" if count.excludes else ""
        rose = f"rose from {count.before} to {count.after}{when}{others}"
        yield "count", f"The kernel's count of kills for memory {where} {rose}."
    elif not own:  # if the log names this process, it had moved to another group
        text = f"The kernel killed nothing for memory {where}{when}"
        yield NO_KILL, f"{text} (its count stayed at {count.after})."


def _unit(facts: ExitFacts) -> Iterator[_Fact]:
    unit = facts.unit
    if unit is None:
        return
    for line in unit.lines:
        yield "systemd", f"The system's journal says: {clean(line, _LONGEST)}"
    if unit.result not in (None, "success"):
        command = f"systemctl{' --user' * unit.user} show -p Result {clean(unit.name, 80)}"
        yield "systemd", f"{command} says: {clean(unit.result or '')}."


def _limits(facts: ExitFacts) -> Iterator[_Fact]:
    space, words = facts.address_space_full, facts.words
    if space is None and words is not None and out_of_memory(words.error, words.message):
        # a large block fails to fit long before the address space is full
        space = facts.address_space
    if space is not None:
        yield "limit", f"Its address space (ulimit -v) held {space} when last seen."


def _cards(facts: ExitFacts) -> Iterator[_Fact]:
    if facts.card_fault is not None:
        yield "gpu", f"The card that it was on: {clean(facts.card_fault, _LONGEST)}."
    if facts.device_ooms:
        text = f"Its framework counted {facts.device_ooms} failed allocations of GPU memory."
        yield "gpu", text
    if facts.device_full is not None:
        yield "gpu", f"When last seen: {clean(facts.device_full, 120)}."


def _levels(facts: ExitFacts) -> Iterator[_Fact]:
    """Yield the last memory levels. The levels are exact, conclusions from them are not."""
    crash = signal_of(facts.wait_status) is not None and not _may_be_memory_kill(facts)
    if crash or facts.wait_status == 0:
        return  # the free memory does not matter for a crash or a Ctrl-C
    used, limit = facts.group_used_bytes, facts.group_limit_bytes
    if used is not None and limit:
        held, most = format_bytes(used), format_bytes(limit)
        text = f"{held} of {most}"
        if facts.guard is not None and used > limit:
            text = f"{held}: its guard had given it the reserve besides its limit of {most}"
        elif facts.group_high:
            text += ", where memory.high slows down and kills no process"
        yield "level", f"When last seen its memory group held {text}."
    total, available = facts.host_total_bytes, facts.host_available_bytes
    if total and available is not None:
        text = f"{format_bytes(available)} of {format_bytes(total)} RAM left"
        if facts.swap_total_bytes:
            free = format_bytes(facts.swap_free_bytes)
            text += f", and {free} of {format_bytes(facts.swap_total_bytes)} swap"
        yield "level", f"When last seen the machine had {text}."
    stalled = facts.stalled_percent or 0.0
    if stalled >= _STALLED_PERCENT:
        text = f"In the 10 s before, programs waited for memory {stalled:.0f} % of the time."
        yield "pressure", text


def _other_evidence(facts: ExitFacts) -> Iterator[_Fact]:
    if facts.stall is not None:
        text = f"When last seen it made no progress: {clean(facts.stall, _LONGEST)}."
        yield "stall", text, Certainty.LIKELY
    if facts.oomd_kills:
        yield "guard", f"systemd-oomd has noted {facts.oomd_kills} kills on its group."
    if facts.oom_daemons and (signal_of(facts.wait_status) is None or _may_be_memory_kill(facts)):
        names = " and ".join(facts.oom_daemons)
        yield "guard", f"Running here: {names}, which ends programs when memory is short."
    if facts.was_paused:
        text = "It was paused then. Jupyter kills a paused kernel on Restart and on Shutdown."
        yield "jupyter", text
    if facts.notebook and facts.parent is not None:
        yield "jupyter", f"What had started it, {clean(facts.parent, 60)}, lives on."
    elif facts.notebook:
        text = "What had started it, the Jupyter server or application, has ended as well."
        yield "jupyter", text
    if facts.announced_end and not (facts.words is not None and facts.words.error is not None):
        yield "agent", "Its agent had announced the end: Python exited normally."


_SECTIONS: tuple[Callable[[ExitFacts], Iterator[_Fact]], ...] = (
    _status,
    _guard,
    _kernel,
    _python,
    _counts,
    _unit,
    _limits,
    _cards,
    _levels,
    _other_evidence,
)


def _may_be_memory_kill(facts: ExitFacts) -> bool:
    """Whether a signal that OOM killers use may have ended the process."""
    number = signal_of(facts.wait_status)
    return facts.wait_status is None or number in (signal.SIGKILL, signal.SIGTERM)


def _kernel_group_name(group: str) -> str:
    """Return the group's name in the kernel, without the mount point."""
    for mount in _MOUNTS:
        if group == mount or group.startswith(f"{mount}/"):
            return group[len(mount) :] or "/"
    return group


def lost_worker(error: str) -> bool:
    """Whether an uncaught exception ("Class: message") says that a worker process was killed."""
    return _LOST_WORKER.search(error) is not None


def should_notify(cause: Cause, agent: AgentState | None) -> bool:
    """
    Whether this exit deserves a notification.

    People end their own programs all day. Without a sign of a memory problem, only the end of a
    running training is news. It is not news after Ctrl-C, a plain kill or a normal exit.

    Args:
        cause: cause of the exit.
        agent: the last state of its agent; None without an agent.
    """
    if cause.spec.notify is False:
        return False  # the guard has already reported what it did
    if cause.news or cause.spec.notify:
        return True
    return (
        agent is not None
        and agent.training
        and not cause.spec.by_itself
        and not any(name in cause.text for name in ("SIGINT", "SIGTERM", "SIGHUP"))
    )


def journal_level(
    facts: ExitFacts, cause: Cause, *, seen: bool, kernel: bool, age_s: float, cared_for: bool
) -> bool | None:
    """
    Return how the journal records an exit.

    Args:
        facts: facts about the exit.
        cause: cause of the exit.
        seen: whether a sample contained the process.
        kernel: whether it was a Jupyter kernel.
        age_s: how long it ran; 0 if unknown.
        cared_for: whether it had an agent that had not reported the end of its training.

    Returns:
        True: a death. False: an exit that is recorded for later questions. None: not recorded.
    """
    if (cared_for and not cause.spec.by_itself) or cause.news or cause.spec.notify is not None:
        return True
    if not seen:
        return None
    failed = crashed(facts.wait_status) or cause.kind in (CauseKind.FAILED, CauseKind.KILLED)
    if failed and (kernel or age_s >= _NEWS_S):
        return True
    odd = cause.kind is not CauseKind.ENDED
    return False if odd or kernel or age_s >= _NOTED_S else None


class KillCount(NamedTuple):
    """The kernel's count of kills for memory, from a process's last sample to its end."""

    of_group: bool  # count of its memory group; False: count of the machine
    before: int
    after: int
    elsewhere: int  # kills whose victims are known to be other processes

    @property
    def excludes(self) -> bool:
        """Whether the count shows that the kernel did not kill this process."""
        return self.after - self.before <= self.elsewhere


def kill_count(facts: ExitFacts) -> KillCount | None:
    """Return the count of the group, otherwise of the machine. None: neither could be read."""
    for of_group, before, after, elsewhere in (
        (True, facts.group_kills_before, facts.group_kills_after, facts.group_kills_elsewhere),
        (False, facts.host_kills_before, facts.host_kills_after, facts.host_kills_elsewhere),
    ):
        if before is not None and after is not None:
            return KillCount(of_group, before, after, elsewhere)
    return None


def signal_of(wait_status: int | None) -> int | None:
    """Return the signal that ended the process. None: no signal, or unknown."""
    if wait_status is None:
        return None
    return wait_status & 0x7F or None


def signal_name(number: int) -> str:
    """Return `SIGKILL`, or `signal 35` for a signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crashed(wait_status: int | None) -> bool:
    """Whether this is the status of a crash."""
    return signal_of(wait_status) in CRASHES
