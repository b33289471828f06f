"""
When a notice is shown, in place of which other one, and when it has to wait. Pure.

The daemon is seldom by itself; this is the last line before a person's screen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from watchdog_app.tray import labels
from watchdog_app.tray.state import stage_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]
    Place = tuple[str, int | None]

QUIET_S = 60.0  # between two notices of one incident, unless its stage rises
_MOST_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a notice."""

    wait_s: float = 0.0  # above 0: not now, and then the newest of its incident alone
    replaces: int = 0  # number of the notice on the screen that it takes the place of


@dataclass(slots=True)
class _Shown:
    notice: Json
    number: int
    on_screen: bool = True


@dataclass(slots=True)
class _Incident:
    at_mono_s: float
    stage: int


class NoticeGate:
    """Remembers what is on the screen; one for each notification service."""

    def __init__(self) -> None:
        self._shown: OrderedDict[Place, _Shown] = OrderedDict()
        self._incidents: OrderedDict[str, _Incident] = OrderedDict()

    def decide(self, notice: Json, now_mono_s: float) -> Verdict:
        """Whether a notice may be shown now, and in place of which one."""
        before = self._shown.get(_place(notice))
        replaces = 0 if before is None else before.number
        incident = self._incidents.get(str(notice.get("incident") or ""))
        if incident is None or not notice.get("incident"):
            return Verdict(replaces=replaces)
        quiet_s = QUIET_S - (now_mono_s - incident.at_mono_s)
        if quiet_s <= 0 or stage_rank(notice.get("stage")) > incident.stage:
            return Verdict(replaces=replaces)
        if before is not None and before.on_screen:
            return Verdict(replaces=replaces)  # its text changes: nothing new pops up
        same = before is not None and before.notice.get("title") == notice.get("title")
        if notice.get("urgency") == "critical" and not same:
            return Verdict(replaces=replaces)  # a pause or a death is never kept back
        return Verdict(wait_s=quiet_s)

    def shown(self, notice: Json, number: int, now_mono_s: float) -> None:
        """It stands on the screen under `number`."""
        place = _place(notice)
        self._shown[place] = _Shown(notice, number)
        self._shown.move_to_end(place)
        while len(self._shown) > _MOST_REMEMBERED:
            self._shown.popitem(last=False)
        key = str(notice.get("incident") or "")
        if key:
            self._incidents[key] = _Incident(now_mono_s, stage_rank(notice.get("stage")))
            self._incidents.move_to_end(key)
            while len(self._incidents) > _MOST_REMEMBERED:
                self._incidents.popitem(last=False)

    def closed(self, number: int) -> None:
        """It has left the screen; a button of it can no longer be pressed."""
        for shown in self._shown.values():
            if shown.number == number:
                shown.on_screen = False

    def behind(self, number: int) -> Json | None:
        """The notice that a button belongs to; None: not one of ours."""
        for shown in self._shown.values():
            if shown.number == number:
                return shown.notice
        return None

    def forget_numbers(self) -> None:
        """The service was started anew and counts from 1: our numbers are others' now."""
        self._shown.clear()


def _place(notice: Json) -> Place:
    """Notices with the same place take each other's."""
    incident = str(notice.get("incident") or "")
    if not incident:
        return f"\0{notice.get('id')}", None
    return incident, labels.whole(notice.get("task"))
