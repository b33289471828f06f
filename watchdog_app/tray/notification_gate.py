"""
When a notification is shown, in place of which other one, and when it has to wait. Pure.

Limits how often a notification reaches the screen, whatever the daemon sends.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Notification, Status

    SlotKey = tuple[str, int | None]

QUIET_S = 60.0  # between two notifications of one incident, unless its stage rises
ANSWER = "answer"  # topic of the tray's own: what became of a click
_MIN_SHOWN_S = 5.0
_MAX_REMEMBERED = 64
# Topics of docs/protocol.md that replace any notification of their task.
_SUPERSEDING_TOPICS = frozenset(("exited", "paused", "stopped", "resumed", "resolved"))
# Closed once their task or incident has ended; the rest stays on the screen.
_TRANSIENT_TOPICS = frozenset(
    ("warning", "paused", "stopped", "pause_failed", "stalled", "rescue_failed")
)
_STAGES = ("ok", "watch", "warn", "save", "pause")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do with a notification."""

    wait_s: float = 0.0  # above 0: not now, and then the newest of its incident alone
    replaces: int = 0  # number of the notification on the screen that it takes the place of


@dataclass(slots=True)
class _ShownNotification:
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
        self._shown: OrderedDict[SlotKey, _ShownNotification] = OrderedDict()
        self._incidents: OrderedDict[str, _Incident] = OrderedDict()

    def decide(self, notification: Notification, now_mono_s: float) -> Verdict:
        """Whether a notification may be shown now, and in place of which one."""
        before = self._shown.get(_slot_key(notification)) or self._shown_for_task(notification)
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

    def mark_shown(self, notification: Notification, number: int, now_mono_s: float) -> None:
        """Record that the service shows it under `number`."""
        place = _slot_key(notification)
        for other in [at for at, each in self._shown.items() if each.number == number]:
            del self._shown[other]  # it has taken that one's place
        self._shown[place] = _ShownNotification(notification, number, now_mono_s)
        self._shown.move_to_end(place)
        while len(self._shown) > _MAX_REMEMBERED:
            self._shown.popitem(last=False)
        key = notification.incident
        if key:
            self._incidents[key] = _Incident(now_mono_s, _stage_rank(notification.stage))
            self._incidents.move_to_end(key)
            while len(self._incidents) > _MAX_REMEMBERED:
                self._incidents.popitem(last=False)

    def _shown_for_task(self, notification: Notification) -> _ShownNotification | None:
        """The notification on the screen that the end or a pause of its task replaces."""
        task = notification.task
        if task is None or notification.topic not in _SUPERSEDING_TOPICS:
            return None
        for place in reversed(self._shown):
            shown = self._shown[place]
            if (
                place[1] == task
                and shown.on_screen
                and not _is_pid_reused(shown.notification, notification)
            ):
                return shown
        return None

    def outdated(self, status: Status, now_mono_s: float) -> list[int]:
        """
        Numbers of the notifications on the screen that are no longer true.

        Warnings whose incident is over, and notifications whose task has ended. A death stays.
        """
        open_ = {one.id for one in status.incidents}
        tasks = {one.pid: one.start_time for one in status.tasks}
        found = []
        for shown in self._shown.values():
            notification, topic = shown.notification, shown.notification.topic
            # A status may be older than a notification that has just come.
            young = now_mono_s - shown.at_mono_s < _MIN_SHOWN_S
            if young or not shown.on_screen or topic not in _TRANSIENT_TOPICS:
                continue
            task, begun = notification.task, notification.start_time
            gone = task is not None and (task not in tasks or begun not in (None, tasks[task]))
            over = topic == "warning" and notification.incident not in open_
            if gone or over:
                found.append(shown.number)
        return found

    def mark_closed(self, number: int) -> None:
        """Record that it was closed."""
        for shown in self._shown.values():
            if shown.number == number:
                shown.on_screen = False

    def find(self, number: int) -> Notification | None:
        """The notification that was shown under this number; None: it is not ours."""
        for shown in self._shown.values():
            if shown.number == number:
                return shown.notification
        return None

    def forget_numbers(self) -> None:
        """The service was restarted and counts from 1: our numbers are others' now."""
        self._shown.clear()


def _is_pid_reused(notification: Notification, later: Notification) -> bool:
    """Whether a pid was given again between two notifications."""
    begun = notification.start_time, later.start_time
    return None not in begun and begun[0] != begun[1]


def _slot_key(notification: Notification) -> SlotKey:
    """A notification replaces an earlier one with the same key."""
    if not notification.incident:
        return f"\0{notification.id}", None
    return notification.incident, notification.task


def _stage_rank(stage: str) -> int:
    """0 for ok up to 4 for hold; one that this version does not know counts as warn."""
    if not stage:
        return 0
    return _STAGES.index(stage) if stage in _STAGES else 2
