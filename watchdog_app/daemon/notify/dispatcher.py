"""
Dispatcher to people: a companion shows them on the desktop, or a one-shot helper does.

The daemon itself never talks to a desktop: that takes libraries larger than
the daemon, and a bus that hangs would hang it. What blocks runs in a thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from watchdog_app.base.threads import Worker
from watchdog_app.core.model.decisions import Notification
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.settings import NotifySettings
from watchdog_app.daemon.log import Log
from watchdog_app.daemon.notify.channels import Delivery, Fanout, Notifier
from watchdog_app.daemon.rpc import RpcServer

COMPANION_S = 2.0  # a companion is given this long to acknowledge

Told = Callable[[bool, str], None]  # delivered, detail


@dataclass(slots=True)
class _Waiting:
    """A notice that companions have and have not acknowledged."""

    notice: Notification
    told: Told
    until_mono_s: float
    companions: int  # that have not said that they could not show it
    written: str = ""  # by a follower in a terminal, which counts where nothing else works


class Dispatcher:
    """
    Brings each notice to somebody, and says whether that worked.

    Args:
        wake: ends the loop's wait: `collect` has something to do.
    """

    def __init__(
        self, server: RpcServer, settings: NotifySettings, wake: Callable[[], None], log: Log
    ) -> None:
        self.shown = 0
        self.undelivered = 0
        self.last_failure: str | None = None
        self.fault: Fault | None = None  # one of several ways does not work
        self._server = server
        self._log = log
        self._worker = Worker(wake)
        self._waiting: dict[str, _Waiting] = {}
        self.apply(settings)

    def apply(self, settings: NotifySettings) -> None:
        """Where notices go from now on."""
        others = _others(settings)
        self._all = Fanout([*_desktop(settings), *others])
        self._others = Fanout(others) if others else None

    def show(self, notice: Notification, told: Told) -> None:
        """Bring a notice to somebody; `told` is called once, now or later."""
        companions = self._server.publish("notices", "notice", notice.to_json())
        if companions:
            until = time.monotonic() + COMPANION_S
            self._waiting[notice.id] = _Waiting(notice, told, until, companions)
        else:
            self._fan_out(self._all, notice, told)

    def acknowledge(self, id_: str, delivered: bool, detail: str, follower: bool = False) -> None:
        """
        A companion says what became of a notice; of several, the first that showed it counts.

        Args:
            id_: of the notice.
            delivered: it was shown.
            detail: how, or why not.
            follower: not a companion on a desktop but lines in a terminal, which nobody may be
                looking at: the other ways are tried as well.
        """
        waiting = self._waiting.get(id_)
        if waiting is None:
            return
        if delivered and follower:
            waiting.written = detail or "written to a terminal"
        if not delivered or follower:
            waiting.companions -= 1
            if waiting.companions <= 0:
                self._give_up(id_)
            return
        del self._waiting[id_]
        detail = detail or "shown by the companion"
        if self._others is None:
            self._end(waiting.told, True, detail)
        else:  # a page to a phone is sent all the same, and it is written down if that fails
            self._fan_out(self._others, waiting.notice, waiting.told, detail)

    def look(self, now_mono_s: float) -> None:
        """Call back what has finished; give up waiting where that has been long enough."""
        self._worker.collect()
        for id_, waiting in list(self._waiting.items()):
            if now_mono_s >= waiting.until_mono_s:
                self._give_up(id_)

    def next_deadline_mono_s(self) -> float | None:
        """When `look` has something to do."""
        return min((waiting.until_mono_s for waiting in self._waiting.values()), default=None)

    def close(self, timeout_s: float) -> None:
        """Show what is waiting, as far as that takes no longer than `timeout_s`."""
        for id_ in list(self._waiting):
            self._give_up(id_)
        self._worker.close(timeout_s)

    def _give_up(self, id_: str) -> None:
        waiting = self._waiting.pop(id_)
        self._fan_out(self._all, waiting.notice, waiting.told, waiting.written)

    def _fan_out(self, fanout: Fanout, notice: Notification, told: Told, written: str = "") -> None:
        def done(value: Any, error: Exception | None) -> None:
            found: Delivery | None = value
            if found is None:
                found = Delivery(False, "", f"It could not be shown: {error!r}")
            via = f"shown by {found.via}" if found.delivered else ""
            detail = "; ".join(part for part in (written, via, found.detail) if part)
            shown = found.delivered or bool(written)
            # A machine without a desktop lacks nothing; a command was asked for.
            missed = shown and any(via != "desktop" for via in found.failed)
            self._note_failure(found.detail if missed else "")
            self._end(told, shown, detail)

        self._worker.submit(partial(fanout.notify, notice), done)

    def _note_failure(self, detail: str) -> None:
        """Shown, and not in every way that was asked for: who relies on that one has to know."""
        if not detail:
            self.fault = None
            return
        self._log.warning("a notice was not shown in every way", detail=detail)
        self.fault = Fault(
            "notices",
            f"A notice could not be shown in every way: {detail}",
            "Mend it, or take it out of [notify]: watchdog config edit",
        )

    def _end(self, told: Told, delivered: bool, detail: str) -> None:
        if delivered:
            self.shown += 1
            self.last_failure = None
        else:
            self.undelivered += 1
            self.last_failure = detail
            self._log.warning("a notice could not be shown", detail=detail)
        told(delivered, detail)


def _desktop(settings: NotifySettings) -> list[Notifier]:
    if not settings.desktop:
        return []
    from watchdog_app.daemon.notify.desktop import DesktopNotifier

    return [DesktopNotifier()]


def _others(settings: NotifySettings) -> list[Notifier]:
    found: list[Notifier] = []
    if settings.terminal:
        from watchdog_app.daemon.notify.terminal import TerminalNotifier

        found.append(TerminalNotifier(sys.stderr))
    if settings.command:
        from watchdog_app.daemon.notify.command import CommandNotifier

        found.append(CommandNotifier(settings.command))
    return found
