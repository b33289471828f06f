"""One notification over the session bus, and whether it was taken."""

from __future__ import annotations

import asyncio

from watchdog_app.base import dbus
from watchdog_app.base.dbus import NOTIFICATIONS, NOTIFICATIONS_PATH, NOTIFY_SIGNATURE, CallFailed
from watchdog_app.base.errors import ActionError

_DEADLINE_S = 5.0
_AGAIN_S = 1.5  # GNOME refuses what comes too fast, and takes it a moment later


class Unreachable(ActionError):
    """The notification was not shown; the message says why and what to do."""


def show_once(title: str, body: str, urgency: str, replaces: int = 0) -> int:
    """
    Show a notification on this session's desktop; the server's id of it.

    Args:
        title: one line of plain text.
        body: plain text; it is escaped where the server understands markup.
        urgency: "low", "normal" or "critical".
        replaces: id of an earlier notification that this one takes the place of; 0: none.

    Raises:
        Unreachable: no session bus, no notification service on it, or it refused.
    """
    try:
        return asyncio.run(asyncio.wait_for(_show(title, body, urgency, replaces), _DEADLINE_S))
    except TimeoutError:
        raise Unreachable(
            f"the notification service did not answer within {_DEADLINE_S:g} s"
        ) from None
    except CallFailed as error:
        raise Unreachable(dbus.why_not_shown(error)) from error


async def _show(title: str, body: str, urgency: str, replaces: int) -> int:
    try:
        bus = await dbus.connect(dbus.address())
    except Exception as error:  # refused, no such socket, no address, a bad address: one meaning
        # One line: every notification of a machine without a desktop is kept with it.
        raise Unreachable("no desktop session to show it on (no session bus)") from error
    service = (bus, NOTIFICATIONS, NOTIFICATIONS_PATH)
    try:
        (known,) = await dbus.call(*service, "GetCapabilities")
        values = dbus.notify_body(shown(title), shown(body), urgency, replaces, (), known)
        try:
            (number,) = await dbus.call(*service, "Notify", NOTIFY_SIGNATURE, values)
        except CallFailed as error:
            if "Excess" not in error.name:
                raise
            await asyncio.sleep(_AGAIN_S)
            (number,) = await dbus.call(*service, "Notify", NOTIFY_SIGNATURE, values)
        return int(number)
    finally:
        bus.disconnect()


def shown(text: str) -> str:
    """Lines of text alone: what a server or the bus itself would choke on becomes a `?`."""
    return "".join(
        char if char.isprintable() or char == "\n" else "?" for char in text.expandtabs(4)
    )
