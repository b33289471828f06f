"""
Brings notifications to people: the tray shows them on the desktop, or the channels do.

The daemon itself never talks to a desktop: that takes libraries larger than
the daemon, and a bus that hangs would hang it. Each channel has a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from watchdog_app.base.threads import Worker
from watchdog_app.core.model import status as records
from watchdog_app.core.model.decisions import Notification
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import Fault, Task
from watchdog_app.core.model.settings import NotifySettings
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify import Channel, Delivery, open_channels
from watchdog_app.daemon.rpc import RpcServer

_ACKNOWLEDGE_S = 2.0  # a tray is given this long to acknowledge
_LINGER_S = 1.0

OnOutcome = Callable[[bool, str], None]  # delivered, detail


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
        record = records.Notification.of(
            notification,
            level=Level.of_stage(notification.stage),
            start_time=task.key.start_time if task else None,
            name=task.name if task else None,
            actions=tuple(records.Button.of(each) for each in notification.actions),
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
            found[name] = delivery or Delivery(False, name, f"It could not be shown: {error!r}")
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
        self._log.warning("a notification was not shown in every way", detail=detail)
        self.fault = Fault(
            "notifications",
            f"A notification could not be shown in every way: {detail}",
            "Mend it, or take it out of [notify]: watchdog config edit",
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
