"""
When a notification is shown, in place of which other one, and when it has to wait. Pure.

The daemon is seldom by itself; this is the last line before a person's screen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Notification, Status

    Place = tuple[str, int | None]

QUIET_S = 60.0  # between two notifications of one incident, unless its stage rises
ANSWER = "answer"  # topic of the tray's own: what became of a click
_YOUNG_S = 5.0
_MOST_REMEMBERED = 64
# Topics of docs/protocol.md. These make whatever stood of their task old.
_OVERTAKES = frozenset(("exited", "paused", "stopped", "resumed", "resolved"))
# True while their task lives; the rest stays to be read.
_PASSING = frozenset(("warning", "paused", "stopped", "pause_failed", "stalled", "rescue_failed"))
_STAGES = ("ok", "watch", "warn", "save", "pause")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a notification."""

    wait_s: float = 0.0  # above 0: not now, and then the newest of its incident alone
    replaces: int = 0  # number of the notification on the screen that it takes the place of


@dataclass(slots=True)
class _Shown:
    notification: Notification
    number: int
    at_mono_s: float
    on_screen: bool = True


@dataclass(slots=True)
class _Incident:
    at_mono_s: float
    stage: int


class NotificationGate:
    """Remembers what is on the screen; one for each notification service."""

    def __init__(self) -> None:
        self._shown: OrderedDict[Place, _Shown] = OrderedDict()
        self._incidents: OrderedDict[str, _Incident] = OrderedDict()

    def decide(self, notification: Notification, now_mono_s: float) -> Verdict:
        """Whether a notification may be shown now, and in place of which one."""
        before = self._shown.get(_place(notification)) or self._of_task(notification)
        replaces = 0 if before is None else before.number
        if notification.topic == ANSWER:
            return Verdict(replaces=replaces)  # somebody has pressed a button and waits for it
        incident = self._incidents.get(notification.incident)
        if incident is None or not notification.incident:
            return Verdict(replaces=replaces)
        quiet_s = QUIET_S - (now_mono_s - incident.at_mono_s)
        if quiet_s <= 0 or _stage_rank(notification.stage) > incident.stage:
            return Verdict(replaces=replaces)
        if before is not None and before.on_screen:
            return Verdict(replaces=replaces)  # its text changes: nothing new pops up
        same = before is not None and before.notification.title == notification.title
        if notification.urgency == "critical" and not same:
            return Verdict(replaces=replaces)  # a pause or a death is never kept back
        return Verdict(wait_s=quiet_s)

    def shown(self, notification: Notification, number: int, now_mono_s: float) -> None:
        """It stands on the screen under `number`."""
        place = _place(notification)
        for other in [at for at, each in self._shown.items() if each.number == number]:
            del self._shown[other]  # it has taken that one's place
        self._shown[place] = _Shown(notification, number, now_mono_s)
        self._shown.move_to_end(place)
        while len(self._shown) > _MOST_REMEMBERED:
            self._shown.popitem(last=False)
        key = notification.incident
        if key:
            self._incidents[key] = _Incident(now_mono_s, _stage_rank(notification.stage))
            self._incidents.move_to_end(key)
            while len(self._incidents) > _MOST_REMEMBERED:
                self._incidents.popitem(last=False)

    def _of_task(self, notification: Notification) -> _Shown | None:
        """What still stands of the same task: its end and its pause make that old."""
        task = notification.task
        if task is None or notification.topic not in _OVERTAKES:
            return None
        for place in reversed(self._shown):
            shown = self._shown[place]
            if (
                place[1] == task
                and shown.on_screen
                and not _another(shown.notification, notification)
            ):
                return shown
        return None

    def outdated(self, status: Status, now_mono_s: float) -> list[int]:
        """
        Numbers of those on the screen that say what is no longer so.

        A warning, once its incident is over; what is about a task, once that is gone: but its
        death itself stays to be read.
        """
        open_ = {one.id for one in status.incidents}
        tasks = {one.pid: one.start_time for one in status.tasks}
        found = []
        for shown in self._shown.values():
            notification, topic = shown.notification, shown.notification.topic
            # A status may be older than a notification that has just come.
            young = now_mono_s - shown.at_mono_s < _YOUNG_S
            if young or not shown.on_screen or topic not in _PASSING:
                continue
            task, begun = notification.task, notification.start_time
            gone = task is not None and (task not in tasks or begun not in (None, tasks[task]))
            over = topic == "warning" and notification.incident not in open_
            if gone or over:
                found.append(shown.number)
        return found

    def closed(self, number: int) -> None:
        """It has left the screen; a button of it can no longer be pressed."""
        for shown in self._shown.values():
            if shown.number == number:
                shown.on_screen = False

    def behind(self, number: int) -> Notification | None:
        """The notification that a button belongs to; None: not one of ours."""
        for shown in self._shown.values():
            if shown.number == number:
                return shown.notification
        return None

    def forget_numbers(self) -> None:
        """The service was restarted and counts from 1: our numbers are others' now."""
        self._shown.clear()


def _another(notification: Notification, later: Notification) -> bool:
    """Whether a pid was given again between two notifications."""
    begun = notification.start_time, later.start_time
    return None not in begun and begun[0] != begun[1]


def _place(notification: Notification) -> Place:
    """Notifications with the same place take each other's."""
    if not notification.incident:
        return f"\0{notification.id}", None
    return notification.incident, notification.task


def _stage_rank(stage: str) -> int:
    """0 for ok up to 4 for hold; one that this version does not know counts as warn."""
    if not stage:
        return 0
    return _STAGES.index(stage) if stage in _STAGES else 2
