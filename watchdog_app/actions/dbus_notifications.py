"""
One notice over org.freedesktop.Notifications, and whether it was taken.

Source: Desktop Notifications Specification 1.3, Notify, GetCapabilities.
"""

from __future__ import annotations

import asyncio
import html
import os

from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from watchdog_app.base.errors import ActionError

_NAME = "org.freedesktop.Notifications"
_PATH = "/org/freedesktop/Notifications"
_DESKTOP_ENTRY = "org.watchdog_app.watchdog"  # the installed file's name: settings per program
_URGENCY = {"low": 0, "normal": 1, "critical": 2}
_ICONS = {"low": "dialog-information", "normal": "dialog-warning", "critical": "dialog-error"}
_DEADLINE_S = 5.0
_AGAIN_S = 1.5  # GNOME refuses what comes too fast, and takes it a moment later
_BY_ITSELF = -1  # the server decides how long it stays; critical ones stay until they are closed


class Unreachable(ActionError):
    """The notice was not shown; the message says why and what to do."""


class TooFast(Unreachable):
    """The server wants a break between two notices."""


def show_once(title: str, body: str, urgency: str, replaces: int = 0) -> int:
    """
    Show a notice on this session's desktop; the server's id of it.

    Args:
        title: one line of plain text.
        body: plain text; it is escaped where the server understands markup.
        urgency: "low", "normal" or "critical".
        replaces: id of an earlier notice that this one takes the place of; 0: none.

    Raises:
        Unreachable: no session bus, no notification service on it, or it refused.
    """
    try:
        return asyncio.run(asyncio.wait_for(_show(title, body, urgency, replaces), _DEADLINE_S))
    except TimeoutError:
        raise Unreachable(
            f"the notification service did not answer within {_DEADLINE_S:g} s"
        ) from None


async def _show(title: str, body: str, urgency: str, replaces: int) -> int:
    try:
        bus = await MessageBus(_address(), bus_type=BusType.SESSION).connect()
    except Exception as error:  # refused, no such socket, no address, a bad address: one meaning
        # One line: every notice of a machine without a desktop is kept with it.
        raise Unreachable("no desktop session to show it on (no session bus)") from error
    try:
        capabilities = await _call(bus, "GetCapabilities", "", [])
        title, body = shown(title), shown(body)
        if isinstance(capabilities, list) and "body-markup" in capabilities:
            body = html.escape(body, quote=False)
        hints = {
            "urgency": Variant("y", _URGENCY.get(urgency, 1)),
            "desktop-entry": Variant("s", _DESKTOP_ENTRY),
            "category": Variant("s", "device.error" if urgency == "critical" else "device"),
        }
        icon = _ICONS.get(urgency, "dialog-warning")
        values = ["watchdog", replaces, icon, title, body, [], hints, _BY_ITSELF]
        try:
            number = await _call(bus, "Notify", "susssasa{sv}i", values)
        except TooFast:
            await asyncio.sleep(_AGAIN_S)
            number = await _call(bus, "Notify", "susssasa{sv}i", values)
        if not isinstance(number, int):
            raise Unreachable(f"the notification service answered {number!r} instead of an id")
        return number
    finally:
        bus.disconnect()


def _address() -> str | None:
    """
    Where the session bus listens; None leaves it to the library.

    A daemon that cron or a terminal multiplexer started has no DBUS_SESSION_BUS_ADDRESS, and
    systemd's user bus is there all the same.
    """
    if os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return None
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    return f"unix:path={runtime}/bus" if os.path.exists(f"{runtime}/bus") else None


def shown(text: str) -> str:
    """Lines of text alone: what a server or the bus itself would choke on becomes a `?`."""
    return "".join(
        char if char.isprintable() or char == "\n" else "?" for char in text.expandtabs(4)
    )


async def _call(bus: MessageBus, member: str, signature: str, body: list[object]) -> object:
    reply = await bus.call(
        Message(
            destination=_NAME,
            path=_PATH,
            interface=_NAME,
            member=member,
            signature=signature,
            body=body,
        )
    )
    if reply is None:
        raise Unreachable("the session bus gave no answer")
    if reply.message_type is MessageType.ERROR:
        said = reply.body[0] if reply.body else reply.error_name
        if reply.error_name == "org.freedesktop.DBus.Error.ServiceUnknown":
            raise Unreachable(
                "no notification service runs in this session; install one, such as dunst or "
                f"notification-daemon, or set notify.command ({said})"
            )
        if reply.error_name and ".Spawn." in reply.error_name:
            raise Unreachable(
                "the notification service of this session could not be started; start it, or "
                f"set notify.command ({said})"
            )
        refusal = TooFast if "Excess" in (reply.error_name or "") else Unreachable
        raise refusal(f"the notification service refused it: {said}")
    return reply.body[0]
