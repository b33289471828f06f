"""
Which notifications go out, and their way to people: the tray shows them, or the channels do.

People switch protection off for a while, or snooze notifications. Wall clocks are set and machines
are suspended. So what ends after a time ends when the wall clock or the running time comes to it,
whichever is first: the mistake to avoid is to stay quiet for longer than was asked for.

The daemon itself never talks to a desktop: that takes libraries larger than
the daemon, and a bus that hangs would hang it. Each channel has a thread of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.threads import Worker
from watchdog_app.core.model import status as records
from watchdog_app.core.model.decisions import Notification
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault, Task
from watchdog_app.core.model.settings import NotifySettings, Settings, parse_span_of_day
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify import Channel, Delivery, open_channels
from watchdog_app.daemon.rpc import RpcServer

_ACKNOWLEDGE_S = 2.0  # a tray is given this long to acknowledge
_LINGER_S = 1.0

OnOutcome = Callable[[bool, str], None]  # delivered, detail

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


@dataclass(frozen=True, slots=True)
class Until:
    """A moment after which something is over."""

    mono_s: float
    unix_s: float

    def over(self, mono_s: float, unix_s: float) -> bool:
        """
        Whether either clock has come to it.

        Args:
            mono_s: running time.
            unix_s: seconds of the epoch.
        """
        return mono_s >= self.mono_s or unix_s >= self.unix_s


@dataclass(frozen=True, slots=True)
class Snooze:
    """Notifications that are suppressed: of one incident, of one task, or with neither all."""

    incident: str | None
    task: int | None  # pid of its root
    name: str | None
    until: Until

    def covers(self, notification: Notification) -> bool:
        """Whether this notification is meant."""
        if self.incident is not None:
            return notification.incident == self.incident
        return self.task is None or notification.task == self.task


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the next daemon goes on with."""

    mono_s: float  # when it was written down
    protecting: bool
    until: Until | None
    snoozes: tuple[Snooze, ...]
    pending: tuple[str, ...]


class NotificationFilter:
    """
    Whether anything is done at all, and which notifications go out.

    `suppressed` counts those that did not; `pending` are their incidents, whose danger is told anew
    when the quiet is over.

    Args:
        settings: with the quiet hours.
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
        self._notified: deque[str] = deque(maxlen=_MOST_REMEMBERED)  # incidents
        self._was_quiet = False
        self._ended = False  # somebody wants to be told again
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Other settings from now on."""
        self._hours = settings.notify.quiet_hours

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
        Why this notification is suppressed now; None: it goes out.

        What is critical comes through everything but protection that is switched off.
        """
        why = self._why(notification)
        if why is not None:
            self.suppressed += 1
        elif notification.incident:
            self.pending.discard(notification.incident)
            self._notified.append(notification.incident)
        return why

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
        time.tzset()  # a laptop travels
        now = time.localtime(self._wall())
        return quiet_at(self._hours, now.tm_hour, now.tm_min)

    @property
    def protection(self) -> records.Protection:
        """As the status object has it."""
        until_unix_s = None if self._until is None else self._until.unix_s
        return records.Protection(on=self.protecting, until_unix_s=until_unix_s)

    @property
    def snoozed(self) -> tuple[records.Snooze, ...]:
        """As the status object has it."""
        standing = (one for one in self._snoozes if not one.until.over(*self._now()))
        return tuple(
            records.Snooze.from_object(one, until_unix_s=one.until.unix_s) for one in standing
        )

    def dump(self) -> Any:
        """Plain values from which another daemon goes on."""
        snoozes, pending = tuple(self._snoozes), tuple(sorted(self.pending))
        return codec.encode(_Kept(self._mono(), self.protecting, self._until, snoozes, pending))

    def knows(self, incident: str) -> bool:
        """Whether a notification of this incident went out or was suppressed, lately."""
        return incident in self.pending or incident in self._notified

    def load(self, value: Any, same_boot: bool) -> None:
        """
        Go on where `dump` left off; what has ended meanwhile is over.

        Args:
            value: from `dump`.
            same_boot: the machine has not been started anew: its tasks and incidents are the same.

        Raises:
            ValueError: these are not its values. Nothing was changed.
        """
        kept: _Kept = codec.decode(_Kept, value)
        # The running time goes on from what was left: the wall clock may have been set since.
        shift_s = self._mono() - kept.mono_s

        def later(until: Until) -> Until:
            return replace(until, mono_s=until.mono_s + shift_s)

        self.protecting, self._until = kept.protecting, kept.until and later(kept.until)
        self._snoozes = [
            replace(one, until=later(one.until))
            for one in kept.snoozes
            if same_boot or (one.incident is None and one.task is None)
        ]
        self.pending = set(kept.pending) if same_boot else set()

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
        return None

    def _now(self) -> tuple[float, float]:
        return self._mono(), self._wall()

    def _after(self, for_s: float) -> Until:
        mono_s, unix_s = self._now()
        return Until(mono_s + for_s, unix_s + for_s)

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
        begin, end = parse_span_of_day(text)
        if begin <= now < end if begin < end else (now >= begin or now < end):
            return text
    return None


@dataclass(slots=True)
class _Waiting:
    """A notification that trays have and have not acknowledged."""

    notification: Notification
    on_outcome: OnOutcome
    until_mono_s: float
    trays: int  # that have not said that they could not show it
    written: str = ""  # by a follower in a terminal, which counts where nothing else works


class Dispatcher:
    """
    Brings each notification to somebody, and says whether that worked.

    Args:
        server: whose clients may show it.
        settings: which channels there are.
        wake: ends the loop's wait: `look` has something to do.
        log: of the daemon.
        opened: makes the channels.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        server: RpcServer,
        settings: NotifySettings,
        wake: Callable[[], None],
        log: Log,
        *,
        opened: Callable[[NotifySettings], Sequence[Channel]] = open_channels,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shown = 0
        self.undelivered = 0
        self.last_failure: str | None = None
        self.fault: Fault | None = None  # one of several ways does not work
        self._server = server
        self._wake = wake
        self._log = log
        self._opened = opened
        self._clock = clock
        self._workers: dict[str, Worker] = {}  # by channel
        self._waiting: dict[str, _Waiting] = {}
        self.apply(settings)

    def apply(self, settings: NotifySettings) -> None:
        """Where notifications go from now on."""
        self._channels = self._opened(settings)

    def show(
        self, notification: Notification, on_outcome: OnOutcome, task: Task | None = None
    ) -> None:
        """
        Bring a notification to somebody; `on_outcome` is called once, now or later.

        Args:
            task: whom it concerns; None: nobody, or it has ended.
        """
        record = records.Notification.from_object(
            notification,
            level=Level.from_stage(notification.stage),
            start_time=task.key.start_time if task else None,
            name=task.name if task else None,
            actions=tuple(records.Button.from_object(each) for each in notification.actions),
        )
        trays = self._server.publish("notifications", "notification", record.to_json())
        if trays:
            until = self._clock() + _ACKNOWLEDGE_S
            self._waiting[notification.id] = _Waiting(notification, on_outcome, until, trays)
        else:
            self._send(self._channels, notification, on_outcome)

    def acknowledge(self, id_: str, delivered: bool, detail: str, follower: bool = False) -> None:
        """
        A tray says what became of a notification; of several, the first that showed it counts.

        Args:
            id_: of the notification.
            delivered: it was shown.
            detail: how, or why not.
            follower: not a tray on a desktop but lines in a terminal, which nobody may be
                looking at: the other ways are tried as well.
        """
        waiting = self._waiting.get(id_)
        if waiting is None:
            return
        if delivered and follower:
            waiting.written = detail or "written to a terminal"
        if not delivered or follower:
            waiting.trays -= 1
            if waiting.trays <= 0:
                self._give_up(id_)
            return
        del self._waiting[id_]
        detail = detail or "shown by the tray"
        # A page to a phone is sent all the same, and it is written down if that fails.
        others = [channel for channel in self._channels if channel.beside_tray]
        if others:
            self._send(others, waiting.notification, waiting.on_outcome, detail)
        else:
            self._end(waiting.on_outcome, True, detail)

    def look(self, now_mono_s: float) -> None:
        """Call back what has finished; give up waiting where that has been long enough."""
        for worker in self._workers.values():
            worker.collect()
        for id_, waiting in list(self._waiting.items()):
            if now_mono_s >= waiting.until_mono_s:
                self._give_up(id_)

    def next_deadline_mono_s(self) -> float | None:
        """When `look` has something to do."""
        return min((waiting.until_mono_s for waiting in self._waiting.values()), default=None)

    def close(self, timeout_s: float) -> None:
        """Show what is waiting, as far as that takes no longer than `timeout_s`."""
        end_mono_s = self._clock() + timeout_s
        for id_ in list(self._waiting):
            self._give_up(id_)
        for worker in self._workers.values():
            worker.close(max(0.0, end_mono_s - self._clock()))

    def _give_up(self, id_: str) -> None:
        waiting = self._waiting.pop(id_)
        self._send(self._channels, waiting.notification, waiting.on_outcome, waiting.written)

    def _send(
        self,
        channels: Sequence[Channel],
        notification: Notification,
        on_outcome: OnOutcome,
        written: str = "",
    ) -> None:
        """
        Send it by these channels at once; it is shown when one of them worked.

        Args:
            channels: all that it goes by.
            notification: what is sent.
            on_outcome: called once all have answered.
            written: how it was shown already; "": not at all.
        """
        if not channels:
            detail = "Notifications are switched off: see [notify] in the configuration."
            self._end(on_outcome, bool(written), "; ".join(filter(None, (written, detail))))
            return
        found: dict[str, Delivery] = {}

        def done(name: str, delivery: Delivery | None, error: Exception | None) -> None:
            found[name] = delivery or Delivery(False, f"It could not be shown: {error!r}")
            if len(found) == len(channels):
                self._sent(channels, found, on_outcome, written)

        for channel in channels:
            worker = self._workers.setdefault(channel.name, Worker(self._wake, _LINGER_S))
            worker.submit(partial(channel.send, notification), partial(done, channel.name))

    def _sent(
        self,
        channels: Sequence[Channel],
        found: dict[str, Delivery],
        on_outcome: OnOutcome,
        written: str,
    ) -> None:
        """All channels have answered."""
        worked = [channel.name for channel in channels if found[channel.name].delivered]
        broken = [channel for channel in channels if not found[channel.name].delivered]
        failures = "; ".join(f"{each.name}: {found[each.name].detail}" for each in broken)
        by = f"shown by {'+'.join(worked)}" if worked else ""
        shown = bool(worked or written)
        self._note_failure(failures if shown and any(each.needed for each in broken) else "")
        self._end(on_outcome, shown, "; ".join(filter(None, (written, by, failures))))

    def _note_failure(self, detail: str) -> None:
        """Shown, and not in every way that was asked for: who relies on that one has to know."""
        if not detail:
            self.fault = None
            return
        self._log.warning("a notification did not reach all channels", detail=detail)
        self.fault = Fault(
            "notifications",
            f"A notification did not reach all channels: {detail}",
            "Fix it, or remove it from [notify]: watchdog config edit",
        )

    def _end(self, on_outcome: OnOutcome, delivered: bool, detail: str) -> None:
        if delivered:
            self.shown += 1
            self.last_failure = None
        else:
            self.undelivered += 1
            self.last_failure = detail
            self._log.warning("a notification could not be shown", detail=detail)
        on_outcome(delivered, detail)
