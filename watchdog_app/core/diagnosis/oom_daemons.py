"""
Ends by others who kill for memory: systemd, systemd-oomd, earlyoom, nohang. Pure.

systemd writes into the journal of the unit's own manager, after the end, what has killed in a
unit: "systemd-oomd killed 2 process(es) in this unit.", "A process of this unit has been killed
by the OOM killer.". The unit's property Result is "oom-kill" in both cases, as long as the failed
unit is loaded. Source: systemd, src/core/unit.c (unit_check_oomd_kill, unit_check_oom);
systemd.service(5), OOMPolicy.
"""

from __future__ import annotations

import signal

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.model.exits import Cause, CauseKind, Certainty, ExitFacts, UnitEnd

OOMD = "systemd-oomd"
_GUARDED = 0.12  # earlyoom and nohang act when less than a tenth is left
_PRESSED = 0.9  # of a group's limit: there the kernel or systemd-oomd may have killed
_OOM_KILL = "oom-kill"


def by_unit(facts: ExitFacts, number: int | None, *, excluded: bool) -> Cause | None:
    """
    What systemd says of the unit that it ran in; None: nothing that concerns its end.

    Args:
        number: the signal that ended it, if one did.
        excluded: the kernel's counters say that the kernel has not killed it for memory.
    """
    unit = facts.unit
    if unit is None or number not in (None, signal.SIGKILL, signal.SIGTERM):
        return None
    if facts.wait_status == 0 or (number is None and facts.said_bye and not facts.wait_status):
        return None  # it came to an end of its own
    by_itself = facts.wait_status is not None and number is None
    if unit.guard is not None and not by_itself:
        name = plain(unit.guard)
        return _ended(number is not None, f"ended by {name}, as its own log line says")
    where = f"its unit {plain(unit.name, 80)}"
    oomd = unit.oomd_kills is not None or (
        unit.result == _OOM_KILL and excluded and not unit.kernel_kill and not by_itself
    )
    if oomd and number != signal.SIGTERM and not by_itself:
        count = f" {unit.oomd_kills} process{'es' * (unit.oomd_kills != 1)} of" if (
            unit.oomd_kills
        ) else ""  # fmt: skip
        sure = number == signal.SIGKILL and unit.oomd_kills is not None
        return _ended(sure, f"killed by systemd-oomd, which killed{count} {where}")
    if not (unit.kernel_kill or unit.result == _OOM_KILL):
        return None
    rest = number is None and unit.name.endswith(".service")  # not its main process: that is known
    if number == signal.SIGTERM or rest or (excluded and unit.kernel_kill):
        return _ended(
            number == signal.SIGTERM,
            f"ended by systemd (OOMPolicy=stop): the kernel had killed a process of {where} for "
            "memory, and systemd then ended the rest",
        )
    return None if excluded else _kernel(facts, unit)


def by_guard(facts: ExitFacts, number: int | None, *, excluded: bool = False) -> Cause | None:
    """earlyoom and its like: one runs here, it uses this signal, and the level fits."""
    if facts.oomd_kills and number != signal.SIGTERM:
        return _ended(
            False,
            "killed by systemd-oomd, which has noted on its group that it killed "
            f"{facts.oomd_kills} processes there",
        )
    pressed = facts.group_used_bytes is not None and bool(facts.group_limit_bytes)
    if (
        pressed
        and excluded
        and number == signal.SIGKILL
        and OOMD in facts.oom_daemons
        and (facts.group_used_bytes or 0.0) >= _PRESSED * (facts.group_limit_bytes or 0.0)
    ):
        return _ended(
            False,
            "killed by systemd-oomd, which runs here: the kernel killed nobody for memory, and "
            f"its memory group held {format_bytes(facts.group_used_bytes)} of "
            f"{format_bytes(facts.group_limit_bytes)} when it was last seen",
        )
    # systemd-oomd never asks first.
    able = [each for each in facts.oom_daemons if number != signal.SIGTERM or each != OOMD]
    total, available = facts.host_total_bytes, facts.host_available_bytes
    if not able or not total or available is None:
        return None
    swap_left = 0.0
    if facts.swap_total_bytes:
        swap_left = (facts.swap_free_bytes or 0) / facts.swap_total_bytes
    if available > _GUARDED * total or swap_left > _GUARDED:
        return None
    return _ended(
        False,
        f"ended by {able[0]}, which runs here: the machine had {format_bytes(available)} of "
        f"{format_bytes(total)} left when it was last seen",
    )


def _kernel(facts: ExitFacts, unit: UnitEnd) -> Cause | None:
    """The group is gone and its count with it: systemd has read it before."""
    if facts.group_kills_after is not None:
        return None  # the count itself says more
    total, available = facts.host_total_bytes, facts.host_available_bytes
    machine = total and available is not None and available <= _GUARDED * total
    used, limit = facts.group_used_bytes, facts.group_limit_bytes
    group = used is not None and limit and not facts.group_high and used >= _PRESSED * limit
    what = f"its memory group reached its limit of {format_bytes(limit)}; " if group else ""
    return Cause(
        CauseKind.HOST_MEMORY if machine and not group else CauseKind.GROUP_LIMIT,
        f"most likely killed by the kernel: {what}systemd says that its out-of-memory killer "
        f"killed a process of its unit {plain(unit.name, 80)}",
        Certainty.LIKELY,
    )


def _ended(sure: bool, how: str) -> Cause:
    text = how if sure else f"most likely {how}"
    certainty = Certainty.EXACT if sure else Certainty.LIKELY
    return Cause(CauseKind.OOM_DAEMON, text, certainty, news=True)
