"""
Showing a notice to a person: one interface, several ways, and what became of it.

A notifier blocks until it knows whether the notice was delivered, up to some
seconds: the daemon calls it from a thread of its own. It never raises.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from watchdog_app.core.model.decisions import Notification

# The policy is seldom by itself; this is the last line against a mistake in a rule of it.
_MOST_A_MINUTE = 20
_MOST_INCIDENTS = 64
_DOES_SOMETHING = frozenset(("checkpoint", "pause", "resume"))


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a notice."""

    delivered: bool
    via: str  # "desktop", "terminal", "command"; several joined by "+"; "" when by none
    detail: str  # where it was not delivered: why, and what to do
    failed: tuple[str, ...] = field(default=(), compare=False)  # the ways that did not work


class Notifier(Protocol):
    """One way to show a notice."""

    def notify(self, notice: Notification) -> Delivery:
        """Show it, and say whether that worked."""


def to_type(notice: Notification) -> list[str]:
    """
    What does in a terminal what the buttons would do, where a notice is shown without any.

    Without what its text says already, and without what only shows more.
    """
    return [
        each.command
        for each in notice.actions
        if each.key in _DOES_SOMETHING and each.command and each.command not in notice.body
    ]


class Fanout:
    """
    All ways at once: delivered when one of them worked.

    Args:
        notifiers: asked in this order.
        clock: monotonic seconds.
    """

    def __init__(
        self, notifiers: Sequence[Notifier], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._notifiers = tuple(notifiers)
        self._clock = clock
        self._shown: dict[str, deque[float]] = {}

    def notify(self, notice: Notification) -> Delivery:
        """Show it in every way there is."""
        if not self._notifiers:
            return Delivery(
                False, "", "Notices are switched off: see [notify] in the configuration."
            )
        if self._flooding(notice):
            return Delivery(
                False,
                "",
                f"More than {_MOST_A_MINUTE} notices of one incident within a minute: "
                "this one was not shown. All are in `watchdog history`.",
            )
        deliveries = [notifier.notify(notice) for notifier in self._notifiers]
        worked = [each for each in deliveries if each.delivered]
        broken = [each for each in deliveries if not each.delivered]
        return Delivery(
            bool(worked),
            "+".join(each.via for each in worked),
            "; ".join(f"{each.via}: {each.detail}" for each in broken),
            tuple(each.via for each in broken),
        )

    def _flooding(self, notice: Notification) -> bool:
        now = self._clock()
        while len(self._shown) > _MOST_INCIDENTS:
            del self._shown[next(iter(self._shown))]
        times = self._shown.setdefault(notice.incident, deque(maxlen=_MOST_A_MINUTE))
        if len(times) == _MOST_A_MINUTE and now - times[0] < 60.0:
            return True
        times.append(now)
        return False
