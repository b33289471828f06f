"""
Channels that show notifications to people: their interface, and the helper processes of some.

To add one, write a module with a `Channel` and add a row of `CHANNELS` in `core.model.settings`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from watchdog_app.base.errors import ConfigError
from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import HIDDEN, clean, shortened
from watchdog_app.base.text.terminal import plain, plain_block
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.settings import CHANNELS, NotifySettings
from watchdog_app.core.model.status import Notification, Status

URGENCIES = ("low", "normal", "critical")
TEST = "test"  # topic of the notification of `watchdog notify test`, and key of its button
_SHORT = 8  # characters: a shorter secret is also a part of other words


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of a notification in one channel."""

    delivered: bool
    detail: str = ""  # if not delivered: the reason and advice


def plain_text(notification: Notification, commands: Sequence[str]) -> tuple[str, str]:
    """Title and body without control characters; the body ends with these commands."""
    body = plain_block("\n".join([notification.body, *commands]))
    return plain(shortened(notification.title)), body


@dataclass(frozen=True, slots=True)
class Offer:
    """A button that a person can answer once, from elsewhere."""

    key: str  # key in the table of actions
    notification: Notification
    until: Any  # a deadline on two clocks, `dispatcher.Until`


class Channel:
    """
    One way to show a notification.

    Its class is called with its setting of `[notify]`, or with the keys of its table
    `[notify.NAME]` except `least` as keyword arguments. It raises ValueError or TypeError for bad
    values.
    """

    name: str
    also_with_tray = True  # used even if a tray has shown the notification
    needed = True  # its failure is a fault; False: a machine may lack it
    least = "low"  # the least urgency of the notifications that it gets
    fault: Fault | None = None  # what does not work, apart from `send`
    standing = False  # whether notifications are on a screen that `close_over` may close

    def send(self, notification: Notification) -> Delivery:
        """
        Show the notification and report whether that worked.

        Runs in the channel's own thread, blocks some seconds at most, never raises.
        """
        raise NotImplementedError

    def close_over(self, status: Status) -> None:
        """Remove what the status shows to be no longer true. Runs in the channel's own thread."""

    def follow(self, now_mono_s: float) -> None:
        """Look after a process that stays. Called every few seconds by the loop; never blocks."""

    def redeem(self, token: str) -> Offer | None:
        """
        What was offered with this one-time token; None: nothing, or it was answered before.

        Raises:
            RequestError: it was offered too long ago.
        """

    def close(self) -> None:
        """End what `follow` has started."""


def open_channels(settings: NotifySettings) -> Sequence[Channel]:
    """
    The channels that are turned on.

    Raises:
        ConfigError: a channel refuses the values of its table `[notify.NAME]`.
    """
    found = []
    for name, place in CHANNELS.items():
        setting, table = getattr(settings, name, None), settings.tables.get(name)
        if not setting and table is None:
            continue
        module, _, class_name = place.partition(":")
        channel = getattr(import_module(f"{__name__}.{module}"), class_name)
        keys = dict(table or {})
        least = keys.pop("least", Channel.least)
        if least not in URGENCIES:
            raise ConfigError(f"[notify.{name}] least must be one of {', '.join(URGENCIES)}.")
        try:
            found.append(channel(setting) if table is None else channel(**keys))
            found[-1].least = least
        except (TypeError, ValueError) as error:
            raise ConfigError(f"[notify.{name}] is not accepted: {error}.") from error
    return found


def ask(
    argv: Sequence[str],
    request: Mapping[str, object],
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    *,
    service: str,
) -> dict[str, object]:
    """
    The helper's answer, or a description of its failure in `detail`.

    Args:
        argv: command line of the helper.
        request: written to its standard input, which other users cannot see.
        deadline_s: time limit, after which the helper is killed.
        env: environment of the helper; None: that of this process.
        service: what it talks to, for people, such as "the desktop".
    """
    data = json.dumps(request).encode()
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, timeout=deadline_s, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        late = f"{service} did not answer within {deadline_s:g} s"
        return {"detail": f"{late}; the notification is in `watchdog history`"}
    except (OSError, ValueError) as error:
        return {"detail": f"the helper for {service} could not be started: {error}"}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        error_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = error_lines[-1][:200] if error_lines else "it said nothing"
        return {"detail": f"the helper for {service} failed (status {done.returncode}): {last}"}
    return answer


def delivery(answer: Mapping[str, object], secrets: Sequence[str]) -> Delivery:
    """
    The result that a helper reports.

    Args:
        answer: from `ask`; its text may quote what a server has written.
        secrets: left out of the text.
    """
    detail = str(answer.get("detail", ""))
    for secret in filter(None, secrets):
        form = re.escape(secret)
        form = rf"(?<!\w){form}(?!\w)" if len(secret) < _SHORT else form
        detail = re.sub(form, HIDDEN, detail)
    return Delivery(answer.get("delivered") is True, clean(detail, 300) if detail else "")
