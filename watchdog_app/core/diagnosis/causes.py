"""
Find the cause of a task's death from the evidence, in plain words. Pure.

A cause is exact if the kernel or the program itself reported it. That is a line of the kernel log
about this process, a kill count of its own group, or an exit status. If the evidence is a memory
level and not a count, the text says "probably" or "most likely". A cause without any evidence is
not given.

After a unit has ended, systemd writes what killed its processes into the journal of the unit's
manager. The lines are "systemd-oomd killed 2 process(es) in this unit." and "A process of this unit
has been killed by the OOM killer.". The unit's property Result is "oom-kill" in both cases, as long
as the failed unit is loaded.

Source: systemd, src/core/unit.c (unit_check_oomd_kill, unit_check_oom); systemd.service(5),
OOMPolicy.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace

from watchdog_app.base.oom_text import out_of_memory
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis.evidence import CRASHES, kill_count, signal_name, signal_of
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, KernelEvent
from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind, Scope

OOMD = "systemd-oomd"
_DEVICE_FULL = 0.9  # frameworks allocate large blocks, so a failed allocation leaves room
_FULL = 0.97  # share of a limit; the rest would not have lasted until the next sample
_NEAR = 0.8  # share of a limit that the kernel reports as reached
_PRESSED = 0.9  # share of a group's limit at which the kernel or systemd-oomd may kill
_GUARDED = 0.12  # earlyoom and nohang act when less than a tenth is left
_OOM_KILL = "oom-kill"
_MEANINGS = {
    "SIGHUP": ": most likely its terminal or its ssh connection was closed",
    "SIGINT": ": most likely Ctrl-C",
    "SIGTERM": ": somebody asked it to end (kill, a service manager, a batch system, a logout)",
}
# Signals that end a program after a failed allocation or a GPU fault.
_BREAKS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


def diagnose(facts: ExitFacts) -> Cause:
    """Return the most likely cause and its certainty."""
    if facts.wait_status is None and facts.unit is not None:
        facts = replace(facts, wait_status=facts.unit.main_status)
    number = signal_of(facts.wait_status)
    for rule in _RULES:
        found = rule(facts, number)
        if found is not None:
            return found
    return Cause(CauseKind.UNKNOWN, "ended, and nothing is known about the cause")


def device_full(task: Task, readings: Iterable[Reading]) -> str | None:
    """
    Return the last level of the fullest GPU or allocator of this task. None: none was full.

    Args:
        task: the task that ended.
        readings: readings of its last sample.
    """
    of_task = (
        reading
        for reading in readings
        if SPECS[reading.key.kind].scope is Scope.CARD and task.key in reading.tasks
    )
    fullest = max(of_task, key=lambda each: _ratio(each.used, each.limit), default=None)
    if fullest is None or _ratio(fullest.used, fullest.limit) < _DEVICE_FULL:
        return None
    return f"{fullest.label}: {format_level(fullest)}"


def address_space_full(reading: Reading) -> str | None:
    """Return the level of an exhausted address space. None: not exhausted, or another resource."""
    full = _ratio(reading.used, reading.limit) >= _DEVICE_FULL
    return format_level(reading) if full and reading.key.kind is ResourceKind.RLIMIT_AS else None


def format_level(reading: Reading) -> str:
    """Return text such as `1.2 GiB of 2.4 GiB`."""
    return _part(reading.used, reading.limit)


def _exact(kind: CauseKind, text: str, news: bool = False) -> Cause:
    return Cause(kind, text, Certainty.EXACT, news)


def _likely(kind: CauseKind, text: str) -> Cause:
    return Cause(kind, text, Certainty.LIKELY)


# Evidence from the kernel log


def _by_kernel_log(facts: ExitFacts, number: int | None) -> Cause | None:
    """A kernel log line about this very process."""
    if number not in (None, signal.SIGKILL, signal.SIGBUS) or _exited_without_signal(facts):
        return None
    own = [each for each in facts.kernel if each.pid is not None and each.pid == facts.pid]
    if any(each.kind is KernelEvent.BAD_MEMORY for each in own):
        text = "ended by the kernel: a page of its memory lay in a broken part of the RAM"
        return _exact(CauseKind.HARDWARE, text)
    kills = [each for each in own if each.kind is KernelEvent.OOM_KILL]
    if not kills or number == signal.SIGBUS:
        return None
    reports = [
        each.constraint
        for each in facts.kernel
        if each.kind is KernelEvent.OOM_REPORT and each.pid in (None, facts.pid)
    ]
    if "cgroup" not in kills[0].text and reports[:1] != ["CONSTRAINT_MEMCG"]:
        text = "killed by the kernel: the machine was out of memory (kernel log)"
        return _exact(CauseKind.HOST_MEMORY, text)
    # Memory groups are nested. Name the limit only if the last level is near it. Otherwise the
    # limit of another group may have been reached.
    near = _group_level(facts) >= _NEAR
    full = f" of {format_bytes(facts.group_limit_bytes)}" if near else ""
    text = f"killed by the kernel: its memory group reached its limit{full} (kernel log)"
    return _exact(CauseKind.GROUP_LIMIT, text)


# Evidence from the guard: it ended the program, paused it, or refused it memory


def _ended_by_guard(facts: ExitFacts, _: int | None) -> Cause | None:
    """The guard ended the program. Any exit status fits: a SIGTERM handler can set one."""
    ended = None if facts.guard is None else facts.guard.ended
    return None if ended is None else _exact(CauseKind.GUARD, clean(ended, 300))


def _refused_by_guard(facts: ExitFacts, number: int | None) -> Cause | None:
    """An unknown error of the program, right after its guard refused it more memory."""
    if (
        facts.guard is None
        or not facts.guard.refused
        or facts.announced_end
        or _raised_error(facts)
    ):
        return None
    if facts.wait_status in (None, 0) or number not in (None, signal.SIGABRT, signal.SIGSEGV):
        return None
    limit, how = format_bytes(facts.guard.limit_bytes), _failed_allocation(facts, number)
    text = f"{how}: its guard refused it further memory at its limit of {limit}"
    return _likely(CauseKind.PROGRAM_MEMORY, text)


def _paused_by_guard(facts: ExitFacts, number: int | None) -> Cause | None:
    """The user ended the program while its guard had paused it: Ctrl-C, closed terminal, kill."""
    stopped = None if facts.guard is None else facts.guard.stopped
    if stopped is None or _exited_without_signal(facts) or number in CRASHES:
        return None
    how = "" if number is None else f" by {signal_name(number)}"
    if number is None and "interrupted" in stopped:
        how = " by a signal (Ctrl-C, a closed terminal, or a kill)"
    return _exact(CauseKind.GUARD, f"ended{how} {clean(stopped, 200)}")


# Evidence from the program itself


def _by_error(facts: ExitFacts, number: int | None) -> Cause | None:
    """An uncaught exception that reports a lack of memory."""
    words = facts.words
    found = None if words is None else out_of_memory(words.error, words.message)
    if found is None or words is None or number is not None or facts.wait_status == 0:
        return None
    at = "" if words.place is None else f" at {clean(words.place, 100)}"
    wanted = found.wanted_bytes
    asked = f", which asked for {format_bytes(wanted)}" if wanted else ""
    how = f"in the program: ended by {clean(words.error or '', 60)}{at}{asked}"
    if found.gpu:
        full = "" if facts.device_full is None else f" ({facts.device_full} when last seen)"
        return _exact(CauseKind.GPU_MEMORY, f"out of GPU memory {how}{full}")
    if facts.address_space_full is not None:
        return _likely(
            CauseKind.ADDRESS_SPACE,
            f"out of memory {how}; most likely because its address space (ulimit -v) held "
            f"{facts.address_space_full} when it was last seen",
        )
    limit = ""
    if facts.guard is not None:
        limit = format_bytes(facts.guard.limit_bytes)
        limit = f"; its guard refuses what does not fit into its limit of {limit}"
    return _exact(CauseKind.PROGRAM_MEMORY, f"out of memory {how}{limit}")


# Evidence from systemd and from daemons that kill when memory is short


def _by_unit(facts: ExitFacts, number: int | None) -> Cause | None:
    """Evidence from the systemd unit of the process. None: the unit does not explain its end."""
    unit = facts.unit
    if unit is None or number not in (None, signal.SIGKILL, signal.SIGTERM):
        return None
    if facts.wait_status == 0 or (number is None and facts.announced_end and not facts.wait_status):
        return None  # the program exited normally
    where = f"its unit {clean(unit.name, 80)}"
    excluded = _is_not_kernel_kill(facts)
    if unit.guard is not None and not _exited_without_signal(facts):
        text = f"ended by {clean(unit.guard)}, as its own log line says"
        return _by_daemon(number is not None, text)
    oomd = unit.oomd_kills is not None or (
        unit.result == _OOM_KILL and excluded and not unit.kernel_kill
    )
    if oomd and number != signal.SIGTERM and not _exited_without_signal(facts):
        plural = "" if unit.oomd_kills == 1 else "es"
        count = f" {unit.oomd_kills} process{plural} of" if unit.oomd_kills else ""
        sure = number == signal.SIGKILL and unit.oomd_kills is not None
        return _by_daemon(sure, f"killed by systemd-oomd, which killed{count} {where}")
    if not (unit.kernel_kill or unit.result == _OOM_KILL):
        return None
    # not the unit's main process, whose status would be known
    rest = number is None and unit.name.endswith(".service")
    if number == signal.SIGTERM or rest or (excluded and unit.kernel_kill):
        return _by_daemon(
            number == signal.SIGTERM,
            f"ended by systemd (OOMPolicy=stop): the kernel had killed a process of {where} for "
            "memory, and systemd then ended the rest",
        )
    if excluded or facts.group_kills_after is not None:
        return None  # the kill count is better evidence
    # The group and its kill count have disappeared, so use systemd's record.
    what, kind = "", CauseKind.GROUP_LIMIT
    if _group_level(facts) >= _PRESSED:
        what = f"its memory group reached its limit of {format_bytes(facts.group_limit_bytes)}; "
    elif _host_left(facts) <= _GUARDED:
        kind = CauseKind.HOST_MEMORY
    return _likely(
        kind,
        f"most likely killed by the kernel: {what}systemd says that its out-of-memory killer "
        f"killed a process of {where}",
    )


def _by_oom_daemon(facts: ExitFacts, number: int | None) -> Cause | None:
    """
    A kill by earlyoom, nohang or systemd-oomd.

    Such a daemon must run here and use this signal, and the memory level must fit.
    """
    # systemd-oomd never sends SIGTERM first.
    able = [each for each in facts.oom_daemons if number != signal.SIGTERM or each != OOMD]
    full = _ratio(facts.group_used_bytes, facts.group_limit_bytes) >= _PRESSED
    swap_left = _ratio(facts.swap_free_bytes, facts.swap_total_bytes)
    if facts.oomd_kills and number != signal.SIGTERM:
        how = (
            "killed by systemd-oomd, which has noted on its group that it killed "
            f"{facts.oomd_kills} processes there"
        )
    elif full and number == signal.SIGKILL and OOMD in able and _is_not_kernel_kill(facts):
        how = (
            "killed by systemd-oomd, which runs here: the kernel killed no process for memory, and "
            f"its memory group held {_format_group_memory(facts)} when it was last seen"
        )
    elif able and _host_left(facts) <= _GUARDED and swap_left <= _GUARDED:
        how = (
            f"ended by {able[0]}, which runs here: the machine had {_format_host_memory(facts)} "
            "left when it was last seen"
        )
    else:
        return None
    return _by_daemon(False, how)


def _by_daemon(sure: bool, how: str) -> Cause:
    if sure:
        return _exact(CauseKind.OOM_DAEMON, how)
    return _likely(CauseKind.OOM_DAEMON, f"most likely {how}")


# Evidence from kill counts and memory levels


def _by_memory(facts: ExitFacts, number: int | None) -> Cause | None:
    """A kill for memory: by the kernel's kill counts, an OOM daemon, or the last level."""
    if number not in (None, signal.SIGKILL, signal.SIGTERM) or _exited_without_signal(facts):
        return None
    if number is None and (facts.announced_end or facts.failed or _raised_error(facts)):
        return None
    by_daemon = _by_oom_daemon(facts, number)
    if number == signal.SIGTERM or _is_not_kernel_kill(facts):
        return by_daemon
    return _by_kill_count(facts, number) or by_daemon or _by_last_level(facts)


def _by_kill_count(facts: ExitFacts, number: int | None) -> Cause | None:
    """The kernel's kill count rose. Exact for the process's own group and an end by SIGKILL."""
    count = kill_count(facts)
    if count is None:
        return None
    rose, limit = f"oom_kill rose from {count.before} to {count.after}", facts.group_limit_bytes
    if count.of_group:
        known = limit is not None and not facts.group_high
        full = f" of {format_bytes(limit)}" if known else ""
        text = f"killed by the kernel: its memory group reached its limit{full} ({rose})"
        sure = Certainty.EXACT if number == signal.SIGKILL else Certainty.LIKELY
        return Cause(CauseKind.GROUP_LIMIT, text, sure)
    if _group_level(facts) >= _FULL:
        text = f"its memory group was at its limit of {format_bytes(limit)}"
    elif _group_room(facts) < (facts.host_available_bytes or 0):
        text = f"most likely its memory group reached its limit of {format_bytes(limit)}"
    else:
        text = f"killed by the kernel: the machine was out of memory ({rose})"
        return _likely(CauseKind.HOST_MEMORY, text)
    text = f"killed by the kernel: {text} (the machine's {rose})"
    return _likely(CauseKind.GROUP_LIMIT, text)


def _by_last_level(facts: ExitFacts) -> Cause | None:
    # The kernel kills no process at a guard's limit, so a full group is not evidence there.
    what = "probably killed by the kernel"
    if facts.guard is None and _group_level(facts) >= _FULL:
        text = f"{what}: its memory group held {_format_group_memory(facts)} when it was last seen"
        return _likely(CauseKind.GROUP_LIMIT, text)
    if _host_left(facts) <= 1 - _FULL:
        text = f"{what}: the machine had {_format_host_memory(facts)} left when it was last seen"
        return _likely(CauseKind.HOST_MEMORY, text)
    return None


def _is_not_kernel_kill(facts: ExitFacts) -> bool:
    """Whether the kernel's counters or its log say that it did not kill this process."""
    if facts.pid is not None and any(line.kind is KernelEvent.OOM_KILL for line in facts.kernel):
        # the log names the killed processes, and `_by_kernel_log` did not find this one
        return True
    count = kill_count(facts)
    return count is not None and count.excludes


def _by_cpu_limit(_: ExitFacts, number: int | None) -> Cause | None:
    """The program used up its CPU time (ulimit -t)."""
    if number is None or number != getattr(signal, "SIGXCPU", None):
        return None
    text = "ended by the kernel: its limit of processor time (ulimit -t) was reached"
    return _exact(CauseKind.CPU_LIMIT, text)


def _by_device(facts: ExitFacts, number: int | None) -> Cause | None:
    """An error of the program or a crash that its GPU explains."""
    failed = bool(facts.wait_status) and number is None
    unknown = facts.wait_status is None and not facts.announced_end
    if facts.card_fault is not None and (failed or unknown or number in _BREAKS):
        text = f"ended by a fault of its card: {facts.card_fault}"
        return _likely(CauseKind.GPU_LOST, text)
    if not failed or _raised_error(facts):
        return None
    how = "ended by an error of its own"
    if facts.device_ooms:
        times = "once" if facts.device_ooms == 1 else f"{facts.device_ooms} times"
        full = "" if facts.device_full is None else f" ({facts.device_full})"
        text = f"{how}: its framework ran out of GPU memory {times}{full}"
        return _likely(CauseKind.GPU_MEMORY, text)
    if facts.device_full is not None:
        text = f"{how}, probably out of GPU memory: when it was last seen, {facts.device_full}"
        return _likely(CauseKind.GPU_MEMORY, text)
    return None


def _by_address_space(facts: ExitFacts, number: int | None) -> Cause | None:
    """An error of the program after its address space (RLIMIT_AS) was used up."""
    if facts.address_space_full is None or facts.announced_end or facts.wait_status == 0:
        return None
    if number not in (None, *_BREAKS) or _raised_error(facts):
        return None
    held = f"held {facts.address_space_full} when it was last seen"
    text = f"{_failed_allocation(facts, number)}: its address space (ulimit -v) {held}"
    return _likely(CauseKind.ADDRESS_SPACE, text)


def _failed_allocation(facts: ExitFacts, number: int | None) -> str:
    """Describe an end by lack of memory that no recorded error names."""
    # Python exits with a status. A C library that does not check the result of malloc crashes.
    if number is not None:
        return f"{_crash(facts, number)}, most likely because an allocation failed"
    if facts.wait_status is None:
        return "ended, probably by a MemoryError"
    return "ended by an error of its own, most likely a MemoryError"


# Evidence from the exit status


def _by_shutdown(facts: ExitFacts, number: int | None) -> Cause | None:
    unknown = facts.wait_status is None and not facts.announced_end
    ended = unknown or number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
    if not facts.shutdown or not ended:
        return None
    return _likely(CauseKind.MACHINE_DOWN, "ended: the machine was shut down")


def _by_signal(facts: ExitFacts, number: int | None) -> Cause | None:
    if number is None:
        return None
    if number == signal.SIGKILL:
        how = ", with no sign of a lack of memory: "
        if _by_last_level(facts) is not None:
            how = "; memory was short, but the kernel did not kill it for that: "
        text = f"killed by SIGKILL{how}somebody, or a restarted kernel, ended it"
        return Cause(CauseKind.KILLED, text)
    if number in CRASHES:
        return _exact(CauseKind.SIGNAL, _crash(facts, number), news=facts.notebook)
    name = signal_name(number)
    if name in _MEANINGS:
        return _likely(CauseKind.SIGNAL, f"ended by {name}{_MEANINGS[name]}")
    return _exact(CauseKind.SIGNAL, f"ended by {name}")


def _crash(facts: ExitFacts, number: int) -> str:
    """Describe a crash: its signal, its library, its line."""
    text = f"crashed: ended by {signal_name(number)}"
    lines = [e for e in facts.kernel if e.kind is KernelEvent.CRASH and e.pid == facts.pid]
    if lines and lines[0].library is not None:
        text += f" in {clean(lines[0].library, 60)}"
    if facts.words is not None and facts.words.fatal is not None and facts.words.place is not None:
        text += f", at {clean(facts.words.place, 100)}"
    return text


def _by_status(facts: ExitFacts, _: int | None) -> Cause | None:
    """An uncaught exception, or a status other than 0."""
    words = facts.words
    status = None if facts.wait_status is None else facts.wait_status >> 8
    if words is not None and words.error is not None and status != 0:
        at = "" if words.place is None else f" at {clean(words.place, 100)}"
        text = f"ended by {clean(words.error, 60)}{at}"
    elif status is None and facts.failed:
        text = "ended by an uncaught exception"
    elif status:
        text = f"exited with status {status}: an error of its own, or sys.exit({status})"
    else:
        return None
    return _exact(CauseKind.FAILED, text, news=facts.notebook)


def _by_normal_exit(facts: ExitFacts, _: int | None) -> Cause | None:
    if not facts.announced_end and facts.wait_status != 0:
        return None
    if not facts.notebook:
        certainty = Certainty.LIKELY if facts.wait_status is None else Certainty.EXACT
        return Cause(CauseKind.ENDED, "exited", certainty)
    text = "ended normally: most likely closed or restarted in Jupyter, or by exit in a cell"
    return _likely(CauseKind.CLOSED, text)


# The most certain rules first.
_RULES: tuple[Callable[[ExitFacts, int | None], Cause | None], ...] = (
    _by_kernel_log,
    _ended_by_guard,
    _by_error,
    _by_unit,
    _refused_by_guard,
    _by_memory,
    _by_cpu_limit,
    _by_device,
    _by_address_space,
    _paused_by_guard,
    _by_shutdown,
    _by_signal,
    _by_status,
    _by_normal_exit,
)


def _exited_without_signal(facts: ExitFacts) -> bool:
    """Whether it is known that the process ended without a signal."""
    return facts.wait_status is not None and signal_of(facts.wait_status) is None


def _raised_error(facts: ExitFacts) -> bool:
    """Whether an uncaught exception was recorded. It gives the cause, and excludes a signal."""
    return facts.words is not None and facts.words.error is not None


def _group_level(facts: ExitFacts) -> float:
    """Return how full the memory group was. 0 with memory.high, which throttles and never kills."""
    return 0.0 if facts.group_high else _ratio(facts.group_used_bytes, facts.group_limit_bytes)


def _group_room(facts: ExitFacts) -> float:
    """Return how many bytes the memory group had left. Infinite if unknown or with memory.high."""
    used, limit = facts.group_used_bytes, facts.group_limit_bytes
    unknown = used is None or limit is None or facts.group_high
    return float("inf") if unknown else (limit or 0) - (used or 0)


def _host_left(facts: ExitFacts) -> float:
    """Return the share of the RAM that was left. 1 if unknown."""
    available = facts.host_available_bytes
    return 1.0 if available is None else _ratio(available, facts.host_total_bytes or available)


def _format_group_memory(facts: ExitFacts) -> str:
    return _part(facts.group_used_bytes, facts.group_limit_bytes)


def _format_host_memory(facts: ExitFacts) -> str:
    return _part(facts.host_available_bytes, facts.host_total_bytes)


def _part(used: float | None, limit: float | None) -> str:
    return f"{format_bytes(used)} of {format_bytes(limit)}"


def _ratio(used: float | None, limit: float | None) -> float:
    return 0.0 if used is None or not limit else used / limit
