"""
Filters notifications and delivers them: trays show them, or the channels do.

People turn protection off for a while, or snooze notifications. Wall clocks can be set and machines
suspended. So such a period ends when either the wall clock or the running time reaches its end:
staying quiet for longer than requested is the worse mistake.

The daemon itself never talks to a desktop: that takes libraries larger than the daemon, and a
hanging bus would block it. Each channel has a thread of its own.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

from watchdog_app.base import codec
from watchdog_app.base.errors import NOT_FOUND, RequestError
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import moment
from watchdog_app.base.text.terminal import counted
from watchdog_app.base.threads import Worker
from watchdog_app.core.model import status as records
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault, Task
from watchdog_app.core.model.settings import NotifySettings, Settings, parse_span_of_day
from watchdog_app.core.model.status import Button, Notification, Status
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify import TEST, URGENCIES, Channel, Delivery, Offer, open_channels
from watchdog_app.daemon.notify.cells import Cells
from watchdog_app.daemon.rpc import RpcServer

_ACKNOWLEDGE_TIMEOUT_S = 2.0  # for a tray to acknowledge
_LINGER_S = 1.0

OnOutcome = Callable[[bool, str], None]  # delivered, detail

_MOST_SNOOZES = 64
_MOST_REMEMBERED = 256
_MOST_LINES = 8  # suppressed notifications listed in their summary
# Topics that are not sent while protection is off: they report forecasts and faults. Others report
# what has happened.
_PROTECTION_TOPICS = frozenset(("warning", "resolved", "stalled", "fault", "slowed", "unsaved"))


@dataclass(frozen=True, slots=True)
class Until:
    """A deadline on two clocks."""

    mono_s: float
    unix_s: float

    def has_passed(self, mono_s: float, unix_s: float) -> bool:
        """
        Whether either clock has reached the deadline.

        Args:
            mono_s: running time.
            unix_s: seconds since 1970.
        """
        return mono_s >= self.mono_s or unix_s >= self.unix_s


@dataclass(frozen=True, slots=True)
class Snooze:
    """Suppressed notifications: of one incident, of one task, or with neither all."""

    incident: str | None
    task: int | None  # pid of its root
    name: str | None
    until: Until

    def matches(self, notification: Notification) -> bool:
        """Whether this snooze suppresses the notification."""
        if self.incident is not None:
            return notification.incident == self.incident
        return self.task is None or notification.task == self.task


@dataclass(frozen=True, slots=True)
class _SavedState:
    """The saved state for the next daemon."""

    mono_s: float  # running time when it was saved
    protecting: bool
    until: Until | None
    snoozes: tuple[Snooze, ...]
    pending: tuple[str, ...]  # notifications as JSON


class NotificationFilter:
    """
    Decides whether watchdog acts at all, and which notifications are sent.

    `suppressed` counts the others. `expire` returns them when the quiet time ends.

    Args:
        settings: the settings, which have the quiet hours.
        mono: running time in seconds.
        wall: seconds since 1970.
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
        self.changed = False  # whether a notification was suppressed since the last `dump`
        # The suppressed ones that people do not know yet, by incident and topic.
        self._pending: dict[tuple[str, str], Notification] = {}
        self._until: Until | None = None  # when protection turns on again
        self._snoozes: list[Snooze] = []
        self._notified: deque[str] = deque(maxlen=_MOST_REMEMBERED)  # incidents
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._hours = settings.notify.quiet_hours

    def protect(self, on: bool, for_s: float | None = None) -> None:
        """
        Turn protection on, or off for some seconds, or off until a user turns it on.

        Args:
            on: True: watchdog acts.
            for_s: seconds until it turns on again; None: until a user turns it on.
        """
        self.protecting = on
        self._until = None if on or for_s is None else self._until_after(for_s)

    def snooze(
        self, incident: str | None, task: int | None, name: str | None, for_s: float
    ) -> Snooze | None:
        """
        Suppress these notifications from now on; 0 s ends that. Replaces an earlier snooze.

        Args:
            incident: id of an incident; None: any.
            task: pid of a task's root; None: any.
            name: name of the task, for people.
            for_s: duration; 0: end it.
        """
        key = (incident, task)
        self._snoozes = [
            snooze for snooze in self._snoozes if (snooze.incident, snooze.task) != key
        ]
        if for_s <= 0:
            return None
        found = Snooze(incident, task, name, self._until_after(for_s))
        self._snoozes = [*self._snoozes[-_MOST_SNOOZES + 1 :], found]
        return found

    def move_snoozes(self, before: int, now: int) -> bool:
        """
        Move the snoozes of a task to another pid; return whether there are any.

        Args:
            before: the earlier pid of the root.
            now: the new pid of the root.
        """
        found = [snooze for snooze in self._snoozes if snooze.task == before]
        self._snoozes = [
            replace(snooze, task=now) if snooze in found else snooze for snooze in self._snoozes
        ]
        return bool(found)

    def reason(self, notification: Notification) -> str | None:
        """
        Why this notification is suppressed now; None: it is sent.

        Protection that is off suppresses critical ones, too, if their topic is in
        `_PROTECTION_TOPICS`. Snoozes and quiet hours never suppress critical ones.
        """
        why = self._suppression_reason(notification)
        if why is not None:
            self.suppressed += 1
            about = (notification.incident or str(notification.id), notification.topic)
            self._pending.pop(about, None)  # keep the last one, in its order
            if notification.topic != "resolved" and len(self._pending) < _MOST_REMEMBERED:
                self._pending[about] = notification
                self.changed = True
        elif notification.incident:
            self._pending.pop((notification.incident, notification.topic), None)
            self._notified.append(notification.incident)
        return why

    def expire(self) -> tuple[bool, list[Notification]]:
        """
        End protection pauses and snoozes whose time has passed since the last call.

        Returns:
            Whether protection has turned on again, and the suppressed notifications of a time that
            has ended, oldest first.
        """
        back_on = self._until is not None and self._until.has_passed(*self._clock_times())
        if back_on:
            self.protect(True)
        self._snoozes = self._standing_snoozes()
        due = [
            about for about, each in self._pending.items() if self._suppression_reason(each) is None
        ]
        return back_on, [self._pending.pop(about) for about in due]

    def quiet_hours(self) -> str | None:
        """The quiet hours that apply now; None: no quiet hours."""
        if not self._hours:
            return None
        time.tzset()  # a laptop travels across time zones
        now = time.localtime(self._wall())
        return quiet_span_at(self._hours, now.tm_hour, now.tm_min)

    @property
    def protection(self) -> records.Protection:
        """The protection as a record of the status."""
        until_unix_s = None if self._until is None else self._until.unix_s
        return records.Protection(on=self.protecting, until_unix_s=until_unix_s)

    @property
    def snoozed(self) -> tuple[records.Snooze, ...]:
        """The snoozes as records of the status."""
        return tuple(
            records.Snooze.from_object(snooze, until_unix_s=snooze.until.unix_s)
            for snooze in self._standing_snoozes()
        )

    def dump(self) -> Any:
        """The state as JSON values, for the next daemon."""
        self.changed = False
        snoozes = tuple(self._snoozes)
        pending = tuple(json.dumps(each.to_json()) for each in self._pending.values())
        return codec.encode(
            _SavedState(self._mono(), self.protecting, self._until, snoozes, pending)
        )

    def knows_incident(self, incident: str) -> bool:
        """Whether a notification of this incident was sent or suppressed recently."""
        pending = any(each.incident == incident for each in self._pending.values())
        return pending or incident in self._notified

    def load(self, value: Any, same_boot: bool) -> None:
        """
        Restore the state of `dump`, without snoozes that no longer apply.

        Args:
            value: from `dump`.
            same_boot: the machine has not been rebooted, so its tasks and incidents are the same.

        Raises:
            ValueError: the value is not from `dump`. Nothing was changed.
        """
        kept: _SavedState = codec.decode(_SavedState, value)
        pending = [Notification.read(json.loads(each)) for each in kept.pending]
        # Continue on the running time: the wall clock may have been set since.
        shift_s = self._mono() - kept.mono_s

        def later(until: Until) -> Until:
            return replace(until, mono_s=until.mono_s + shift_s)

        self.protecting, self._until = kept.protecting, kept.until and later(kept.until)
        self._snoozes = [
            replace(snooze, until=later(snooze.until))
            for snooze in kept.snoozes
            if same_boot or (snooze.incident is None and snooze.task is None)
        ]
        self._pending = {(each.incident or str(each.id), each.topic): each for each in pending}

    def _suppression_reason(self, notification: Notification) -> str | None:
        if not self.protecting and notification.topic in _PROTECTION_TOPICS:
            return "Suppressed: protection is switched off."
        if notification.urgency == "critical":
            return None
        hours = self.quiet_hours()
        if hours is not None:
            return f"Suppressed: it is quiet from {hours.replace('-', ' to ')}."
        for snooze in self._standing_snoozes():
            if snooze.matches(notification):
                at = time.strftime("%H:%M", time.localtime(snooze.until.unix_s))
                return f"Suppressed: snoozed until {at}."
        return None

    def _standing_snoozes(self) -> list[Snooze]:
        now = self._clock_times()
        return [snooze for snooze in self._snoozes if not snooze.until.has_passed(*now)]

    def _clock_times(self) -> tuple[float, float]:
        return self._mono(), self._wall()

    def _until_after(self, for_s: float) -> Until:
        mono_s, unix_s = self._clock_times()
        return Until(mono_s + for_s, unix_s + for_s)


def summary(suppressed: Sequence[Notification], status: Status, unix_s: float) -> Notification:
    """
    One notification about those that were suppressed, with the time of each.

    Args:
        suppressed: at least one, oldest first.
        status: which of them are still true.
        unix_s: the current time.
    """
    lines, holds = [], False
    for each in suppressed[-_MOST_LINES:]:
        state = ""
        if each.is_transient:
            over = each.is_over(status)
            state, holds = (" (over)", holds) if over else (" (still true)", True)
        lines.append(f"{moment(each.unix_s)} {each.title}{state}")
    if len(suppressed) > _MOST_LINES:
        lines.append(f"{len(suppressed) - _MOST_LINES} earlier ones: watchdog history")
    warnings = all(each.topic == "warning" for each in suppressed)
    count = counted(len(suppressed), "warning" if warnings else "message")
    return Notification(
        id=f"suppressed-{unix_s:.0f}",
        incident="",
        topic="summary",
        stage="warn" if holds else "ok",
        urgency="normal" if holds else "low",
        title=f"{count} while notifications were off",
        body="\n".join(lines),
        task=None,
        unix_s=unix_s,
        actions=(ACTIONS["show"].button(""),),
    )


def quiet_span_at(spans: Sequence[str], hour: int, minute: int) -> str | None:
    """
    The first of these quiet spans that includes a time of day; None: no span does.

    Local time: in a night in which daylight saving changes, a span is an hour shorter or longer.

    Args:
        spans: such as "22:00-07:00"; the start is included, the end is not.
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
class _Delivery:
    """A notification on its way to people."""

    notification: Notification
    on_outcome: OnOutcome
    until_mono_s: float  # then it no longer waits for trays
    trays: int  # trays that may still show it
    shown: str = ""  # how a tray, or a follower in a terminal, has shown it; "": not at all
    channels: list[Channel] = field(default_factory=list)  # those that it was handed to
    answers: dict[str, Delivery] = field(default_factory=dict)  # by channel


@dataclass(eq=False)
class Dispatcher:
    """
    Delivers each notification to people, and reports whether that worked.

    Args:
        server: its clients may show notifications.
        settings: the configured channels.
        wake: ends the loop's wait, as `poll` has something to do.
        log: the daemon's log.
        cells: shows notifications below notebook cells, in addition.
        opened: creates the channels.
        clock: monotonic seconds.
    """

    server: RpcServer
    settings: NotifySettings
    wake: Callable[[], None]
    log: Log
    cells: Cells
    opened: Callable[[NotifySettings], Sequence[Channel]] = field(
        default=open_channels, kw_only=True
    )
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    shown: int = field(default=0, init=False)
    undelivered: int = field(default=0, init=False)
    last_failure: str | None = field(default=None, init=False)
    fault: Fault | None = field(default=None, init=False)  # while one of several channels is broken
    _workers: dict[str, Worker] = field(default_factory=dict, init=False)  # by channel
    _waiting: dict[str, _Delivery] = field(default_factory=dict, init=False)  # for trays, by id
    _channels: Sequence[Channel] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Open the channels."""
        self._channels = self.opened(self.settings)

    def apply(self, settings: NotifySettings) -> None:
        """
        Open the channels of other settings.

        Raises:
            ConfigError: a channel refuses its table; the present channels stay in force.
        """
        if settings == self.settings:  # the buttons that were offered stay valid
            return
        channels = self.opened(settings)
        for channel in self._channels:
            channel.close()
        self._channels, self.settings = channels, settings

    def show(
        self, notification: Notification, on_outcome: OnOutcome, task: Task | None = None
    ) -> None:
        """
        Deliver a notification; `on_outcome` is called once, now or later.

        Args:
            task: the task that it concerns; None: no task, or the task has ended.
        """
        notification.level = Level.from_stage(notification.stage)
        if task is not None:
            notification.start_time, notification.name = task.key.start_time, task.name
        self.cells.show(notification, task)
        trays = 0
        if notification.id is not None:
            trays = self.server.publish("notifications", "notification", notification.to_json())
        until_mono_s = self.clock() + _ACKNOWLEDGE_TIMEOUT_S
        delivery = _Delivery(notification, on_outcome, until_mono_s, trays)
        if trays and notification.id is not None:
            self._waiting[notification.id] = delivery
        # Some channels, such as a message to a phone, do not wait for a tray.
        self._send(delivery, [each for each in self._channels if each.also_with_tray or not trays])

    def acknowledge(self, id_: str, delivered: bool, detail: str, follower: bool = False) -> None:
        """
        Record the answer of a tray; of several trays the first that showed it counts.

        Args:
            id_: the notification.
            delivered: whether it was shown.
            detail: the way, or the reason for the failure.
            follower: the client prints lines in a terminal, which its user may not see. So the
                other channels are tried as well.
        """
        delivery = self._waiting.get(id_)
        if delivery is None:
            return
        if delivered:
            delivery.shown = detail or (
                "written to a terminal" if follower else "shown by the tray"
            )
        delivery.trays -= 1
        if delivered and not follower:
            del self._waiting[id_]
            delivery.trays = 0
            self._finish(delivery)
        elif delivery.trays <= 0:
            self._send_unacknowledged(id_)

    def poll(self, now_mono_s: float) -> None:
        """
        Collect results of channels; use the channels for notifications that no tray acknowledged.
        """
        for worker in self._workers.values():
            worker.collect()
        for id_, delivery in list(self._waiting.items()):
            if now_mono_s >= delivery.until_mono_s:
                self._send_unacknowledged(id_)

    def close_over(self, status: Callable[[], Status]) -> None:
        """
        Remove notifications from screens that are no longer true.

        Args:
            status: makes the status, which is needed only while a warning is shown.
        """
        self.cells.close_over(status)
        standing = [channel for channel in self._channels if channel.standing]
        if standing:
            now = status()
            for channel in standing:
                self._worker(channel).submit(partial(channel.close_over, now))

    def faults(self) -> list[Fault | None]:
        """What does not work, for the status; None: nothing."""
        return [self.fault, *(channel.fault for channel in self._channels)]

    def follow(self) -> None:
        """Look after the processes of channels, every few seconds."""
        for channel in self._channels:
            channel.follow(self.clock())

    def redeem(self, token: str) -> Offer:
        """
        What was offered to a person with this one-time token.

        Raises:
            RequestError: nothing, or it was answered before, or too long ago.
        """
        for offer in filter(None, (channel.redeem(token) for channel in self._channels)):
            return offer
        raise RequestError("no button waits for it.", NOT_FOUND)

    def test(self, done: Callable[[dict[str, Delivery]], None], names: Sequence[str] = ()) -> None:
        """
        Send a notification through each channel, or those named.

        Args:
            done: gets the answers by channel.
            names: of channels; empty: all.

        Raises:
            RequestError: a channel of this name is not turned on.
        """
        on = [each.name for each in self._channels]
        for name in set(names) - set(on):
            those = ", ".join(on) or "none"
            raise RequestError(f"The channel {clean(name)} is not turned on. These are: {those}.")
        test = Notification(
            topic=TEST,
            urgency="critical",  # so every channel takes it
            title="Test of watchdog",
            body="Notifications of this machine arrive here.",
            unix_s=time.time(),
            actions=(Button(key=TEST, label="It has arrived", command=""),),
        )
        delivery = _Delivery(test, lambda *_: done(delivery.answers), 0.0, 0)
        self._send(delivery, [each for each in self._channels if not names or each.name in names])

    def next_deadline_mono_s(self) -> float | None:
        """The time at which `poll` must be called next; None: no notification waits."""
        return min((each.until_mono_s for each in self._waiting.values()), default=None)

    def close(self, timeout_s: float, status: Callable[[], Status] = Status) -> None:
        """
        Send the waiting notifications and remove warnings from screens, within `timeout_s`.

        Args:
            status: what stays true without a daemon; its notifications stay on the screens.
        """
        for channel in self._channels:
            channel.close()
        end_mono_s = self.clock() + timeout_s
        for id_ in list(self._waiting):
            self._send_unacknowledged(id_)
        self.close_over(status)
        for worker in self._workers.values():
            worker.close(max(0.0, end_mono_s - self.clock()))

    def _send_unacknowledged(self, id_: str) -> None:
        """Use the other channels, as no tray shows the notification."""
        delivery = self._waiting.pop(id_)
        delivery.trays = 0
        used = {channel.name for channel in delivery.channels}
        self._send(delivery, [each for each in self._channels if each.name not in used])

    def _send(self, delivery: _Delivery, channels: Sequence[Channel]) -> None:
        """Hand a notification to these channels; it counts as shown when one has worked."""
        urgency = URGENCIES.index(delivery.notification.urgency)
        channels = [each for each in channels if urgency >= URGENCIES.index(each.least)]
        delivery.channels += channels

        def done(name: str, answer: Delivery | None, error: Exception | None) -> None:
            delivery.answers[name] = answer or Delivery(False, f"It could not be shown: {error!r}")
            self._finish(delivery)

        for channel in channels:
            job = partial(channel.send, delivery.notification)
            self._worker(channel).submit(job, partial(done, channel.name))
        if not channels:
            self._finish(delivery)

    def _worker(self, channel: Channel) -> Worker:
        return self._workers.setdefault(channel.name, Worker(self.wake, _LINGER_S))

    def _finish(self, delivery: _Delivery) -> None:
        """Report the outcome if all trays and channels have answered."""
        answers = delivery.answers
        if delivery.trays > 0 or len(answers) < len(delivery.channels):
            return
        worked = [each.name for each in delivery.channels if answers[each.name].delivered]
        broken = [each for each in delivery.channels if not answers[each.name].delivered]
        failures = "; ".join(f"{each.name}: {answers[each.name].detail}" for each in broken)
        if not delivery.channels and not delivery.shown:
            failures = "Notifications are switched off: see [notify] in the configuration."
        by = f"shown by {'+'.join(worked)}" if worked else ""
        shown = bool(worked or delivery.shown)
        self._note_failure(failures if shown and any(each.needed for each in broken) else "")
        detail = "; ".join(filter(None, (delivery.shown, by, failures)))
        if shown:
            self.shown += 1
            self.last_failure = None
        elif delivery.notification.topic != "unsaved":  # the status says the same
            self.undelivered += 1
            self.last_failure = detail
            self.log.warning("a notification could not be shown", detail=detail)
        delivery.on_outcome(shown, detail)

    def _note_failure(self, detail: str) -> None:
        """Set or clear the fault that a notification did not reach all channels."""
        if not detail:
            self.fault = None
            return
        self.log.warning("a notification did not reach all channels", detail=detail)
        self.fault = Fault(
            "notifications",
            f"A notification did not reach all channels: {detail}",
            "Fix it, or remove it from [notify]: watchdog config edit",
        )
