"""
What people have asked for: protection switched off for a while, notifications suppressed.

Wall clocks are set and machines are suspended. So what ends after a time ends
when the wall clock or the running time comes to it, whichever is first: the
mistake to avoid is to stay quiet for longer than was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.core.model.decisions import Notification, Stage
from watchdog_app.core.model.settings import Settings, span_of_day

_MOST_SNOOZES = 64
_MOST_REMEMBERED = 256
# What is told also while protection is off: what has happened, and not what may.
_FACTS = frozenset(
    (
        "exited",
        "stopped",
        "restarted",
        "paused",
        "pause_failed",
        "resumed",
        "rescued",
        "rescue_failed",
        "gpu_lost",
    )
)
_STAGES = {stage.name.lower(): stage for stage in Stage}


@dataclass(frozen=True, slots=True)
class Until:
    """A moment after which something is over."""

    mono_s: float
    unix_s: float

    def over(self, mono_s: float, unix_s: float) -> bool:
        """Whether either clock has come to it."""
        return mono_s >= self.mono_s or unix_s >= self.unix_s

    def left_s(self, mono_s: float, unix_s: float) -> float:
        """Seconds until `over`."""
        return max(0.0, min(self.mono_s - mono_s, self.unix_s - unix_s))


@dataclass(frozen=True, slots=True)
class Snooze:
    """Notices that are suppressed: of one incident, of one task, or with neither all."""

    incident: str | None
    task: int | None  # pid of its root
    name: str | None
    until: Until

    def covers(self, notification: Notification) -> bool:
        """Whether this notification is meant."""
        if self.incident is not None:
            return notification.incident == self.incident
        return self.task is None or notification.task == self.task

    def to_json(self) -> dict[str, Any]:
        """As the status object has it."""
        return {
            "incident": self.incident,
            "task": self.task,
            "name": self.name,
            "until_unix_s": self.until.unix_s,
        }


@dataclass(slots=True)
class _Shown:
    """The last notification that went out for one incident and task."""

    mono_s: float
    topic: str
    stage: Stage


class NotificationFilter:
    """
    Whether anything is done at all, and which notifications go out.

    `suppressed` counts those that did not; `pending` are their incidents, whose danger is told anew
    when the quiet is over.

    Args:
        settings: quiet hours, and the quiet time between two notifications.
        mono: running time in seconds.
        wall: seconds of the epoch.
    """

    def __init__(
        self,
        settings: Settings,
        mono: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._mono = mono
        self._wall = wall
        self.protecting = True
        self.suppressed = 0
        self.pending: set[str] = set()
        self._until: Until | None = None  # when protection comes on by itself
        self._snoozes: list[Snooze] = []
        self._shown: dict[tuple[str, int | None], _Shown] = {}
        self._was_quiet = False
        self._ended = False  # somebody wants to be told again
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Other settings from now on."""
        self._hours = settings.notify.quiet_hours
        self._cooldown_s = settings.stages.cooldown_s

    def protect(self, on: bool, for_s: float | None = None) -> None:
        """
        Switch protection on, or off for so many seconds, or off until it is switched on.

        Args:
            on: whether watchdog acts.
            for_s: how long it does not; None: until it is switched on.
        """
        self.protecting = on
        self._until = None if on or for_s is None else self._after(for_s)

    def snooze(
        self, incident: str | None, task: int | None, name: str | None, for_s: float
    ) -> Snooze | None:
        """
        Hold these notifications back from now on; 0 s: no longer. Replaces an earlier one.

        Args:
            incident: the id of one; None: of any.
            task: pid of the root of one; None: of any.
            name: of the task, for people.
            for_s: how long; 0: no longer.
        """
        meant = (incident, task)
        self._snoozes = [one for one in self._snoozes if (one.incident, one.task) != meant]
        if for_s <= 0:
            self._ended = True
            return None
        found = Snooze(incident, task, name, self._after(for_s))
        self._snoozes = [*self._snoozes[-_MOST_SNOOZES + 1 :], found]
        return found

    def follow(self, before: int, now: int) -> bool:
        """
        A task goes on under another pid: its snoozes too. Whether there are any.

        Args:
            before: pid of the root until now.
            now: pid of the root from now on.
        """
        found = [one for one in self._snoozes if one.task == before]
        self._snoozes = [replace(one, task=now) if one in found else one for one in self._snoozes]
        return bool(found)

    def reason(self, notification: Notification) -> str | None:
        """
        Why this notification is suppressed now; None: it goes out, and is remembered as the last.

        What is critical comes through everything but protection that is switched off.
        """
        why = self._why(notification)
        place = (notification.incident, notification.task)
        if why is not None:
            self.suppressed += 1
            return why
        if notification.incident:
            self.pending.discard(notification.incident)
            self._shown.pop(place, None)
            while len(self._shown) >= _MOST_REMEMBERED:
                del self._shown[next(iter(self._shown))]
            self._shown[place] = _Shown(self._mono(), notification.topic, _stage(notification))
        return None

    def look(self) -> tuple[bool, frozenset[str]]:
        """
        What has ended since the last call.

        Returns:
            Whether protection has come on by itself, and incidents to be told anew.
        """
        back_on = self._until is not None and self._until.over(*self._now())
        if back_on:
            self.protect(True)
        over = [one for one in self._snoozes if one.until.over(*self._now())]
        self._snoozes = [one for one in self._snoozes if one not in over]
        quiet = self.hours() is not None
        ended = bool(over) or self._ended or (self._was_quiet and not quiet)
        self._was_quiet, self._ended = quiet, False
        if not ended or quiet:
            return back_on, frozenset()
        due, self.pending = self.pending, set()
        return back_on, frozenset(due)

    def hours(self) -> str | None:
        """The quiet hours that it is now; None: none."""
        if not self._hours:
            return None
        if hasattr(time, "tzset"):
            time.tzset()  # a laptop travels
        now = time.localtime(self._wall())
        return quiet_at(self._hours, now.tm_hour, now.tm_min)

    @property
    def protection(self) -> dict[str, Any]:
        """As the status object has it."""
        return {
            "on": self.protecting,
            "until_unix_s": None if self._until is None else self._until.unix_s,
        }

    @property
    def snoozed(self) -> list[dict[str, Any]]:
        """As the status object has it."""
        return [one.to_json() for one in self._snoozes if not one.until.over(*self._now())]

    def dump(self) -> dict[str, Any]:
        """Plain values from which another daemon goes on."""
        return {
            "protecting": self.protecting,
            "until": self._dumped(self._until),
            "snoozes": [
                [one.incident, one.task, one.name, self._dumped(one.until)] for one in self._snoozes
            ],
            "pending": sorted(self.pending),
        }

    def knows(self, incident: str) -> bool:
        """Whether a notification of this incident went out or was suppressed, lately."""
        return incident in self.pending or any(place[0] == incident for place in self._shown)

    def load(self, value: Mapping[str, Any], same_boot: bool) -> None:
        """
        Go on where `dump` left off; what has ended meanwhile is over.

        Args:
            value: from `dump`.
            same_boot: the machine has not been started anew: its tasks and incidents are the same.

        Raises:
            KeyError, TypeError, ValueError: these are not its values. Nothing was changed.
        """
        protecting, until = bool(value["protecting"]), self._loaded(value["until"])
        snoozes = []
        for incident, task, name, end in value["snoozes"]:
            ends = self._loaded(end)
            if ends is not None and (same_boot or (incident is None and task is None)):
                snoozes.append(Snooze(_text(incident), _pid(task), _text(name), ends))
        found = value.get("pending", ())  # not in the state of an earlier version
        pending = {str(one) for one in found} if same_boot else set()
        self.protecting, self._until = protecting, until
        self._snoozes, self.pending = snoozes, pending

    def _why(self, notification: Notification) -> str | None:
        if not self.protecting and notification.topic not in _FACTS:
            self._keep_pending(notification)
            return "Suppressed: protection is switched off."
        if notification.urgency == "critical":
            return None
        hours = self.hours()
        if hours is not None:
            self._keep_pending(notification)
            return f"Suppressed: it is quiet from {hours.replace('-', ' to ')}."
        for one in self._snoozes:
            if one.covers(notification) and not one.until.over(*self._now()):
                self._keep_pending(notification)
                at = time.strftime("%H:%M", time.localtime(one.until.unix_s))
                return f"Suppressed: snoozed until {at}."
        before = self._shown.get((notification.incident, notification.task))
        if (
            notification.incident
            and before is not None
            and before.topic == notification.topic
            and before.stage >= _stage(notification)
            and self._mono() - before.mono_s < self._cooldown_s
        ):
            return "Suppressed: the same was told a moment ago, and it has not become worse."
        return None

    def _now(self) -> tuple[float, float]:
        return self._mono(), self._wall()

    def _after(self, for_s: float) -> Until:
        mono_s, unix_s = self._now()
        return Until(mono_s + for_s, unix_s + for_s)

    def _dumped(self, until: Until | None) -> list[float] | None:
        return None if until is None else [until.unix_s, until.left_s(*self._now())]

    def _loaded(self, value: Sequence[Any] | None) -> Until | None:
        """The running time goes on from what was left: the wall clock may have been set since."""
        if value is None:
            return None
        unix_s, left_s = value
        return Until(self._mono() + float(left_s), float(unix_s))

    def _keep_pending(self, notification: Notification) -> None:
        if (
            notification.incident
            and notification.topic == "warning"
            and len(self.pending) < _MOST_REMEMBERED
        ):
            self.pending.add(notification.incident)


def quiet_at(spans: Sequence[str], hour: int, minute: int) -> str | None:
    """
    The first of these hours that this time of day falls into; None: it is not quiet.

    Local time: where clocks change for daylight saving, that night is an hour shorter or longer.

    Args:
        spans: such as "22:00-07:00"; the begin is included, the end is not.
        hour: local, 0 to 23.
        minute: 0 to 59.
    """
    now = hour * 60 + minute
    for text in spans:
        begin, end = span_of_day(text)
        if begin <= now < end if begin < end else (now >= begin or now < end):
            return text
    return None


def _stage(notification: Notification) -> Stage:
    return _STAGES.get(notification.stage, Stage.OK)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _pid(value: Any) -> int | None:
    return None if value is None else int(value)
