"""
The D-Bus session and system bus: the address, calls, and the arguments of desktop notifications.

Never import this in the daemon: dbus-fast and asyncio would add half of the daemon's memory.

Source: D-Bus Specification; Desktop Notifications Specification 1.3, Notify, GetCapabilities.
"""

from __future__ import annotations

import asyncio
import html
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from dbus_fast.aio import MessageBus

DBUS = "org.freedesktop.DBus"
DBUS_PATH = "/org/freedesktop/DBus"
NOTIFICATIONS = "org.freedesktop.Notifications"
NOTIFICATIONS_PATH = "/org/freedesktop/Notifications"
NOTIFY_SIGNATURE = "susssasa{sv}i"

_CALL_S = 5.0
_DESKTOP_ENTRY = "org.watchdog_app.watchdog"  # name of the installed .desktop file
_URGENCY = {"low": 0, "normal": 1, "critical": 2}
_ICONS = {"low": "dialog-information", "normal": "dialog-warning", "critical": "dialog-error"}
# expire_timeout of Notify: until somebody closes it; as long as the service chooses
_NEVER, _BY_ITSELF = 0, -1


class CallFailed(Exception):
    """
    The called service returned an error, or did not answer.

    Args:
        name: D-Bus name of the error.
        text: message of the service; untrusted.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name  # D-Bus error name: org.freedesktop.DBus.Error....


def session_bus_address(
    env: Mapping[str, str] = os.environ, uid: int | None = None, root: str = ""
) -> str | None:
    """
    The address of the session bus; None: unknown.

    Programs that cron, a terminal multiplexer or a service started have no
    DBUS_SESSION_BUS_ADDRESS, but systemd's user bus may still run.

    Args:
        env: the environment.
        uid: user id; None: the user of this process.
        root: prefix of all paths, for tests.
    """
    given = env.get("DBUS_SESSION_BUS_ADDRESS")
    if given:
        return given
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid() if uid is None else uid}"
    path = f"{root}{runtime}/bus"
    return f"unix:path={path}" if os.path.exists(path) else None


async def connect(where: str | None, *, system: bool = False) -> MessageBus:
    """
    Connect to the session bus, or to the system bus, which passes files.

    Args:
        where: result of `session_bus_address`; None: the library finds the address.
        system: whether to connect to the system bus.

    Raises:
        Exception: the bus refuses, or the address is missing or bad. The library has many types.
    """
    from dbus_fast import BusType
    from dbus_fast.aio import MessageBus

    kind = BusType.SYSTEM if system else BusType.SESSION
    return await MessageBus(where, bus_type=kind, negotiate_unix_fd=system).connect()


async def call(  # noqa: PLR0917 - the fields of a message
    bus: MessageBus,
    name: str,
    path: str,
    member: str,
    signature: str = "",
    body: Sequence[Any] = (),
    *,
    interface: str | None = None,
) -> list[Any]:
    """
    Call a method and return the body of the reply; of files, their descriptors.

    Args:
        bus: the connection.
        name: bus name of the service.
        path: path of the object.
        member: name of the method.
        signature: D-Bus signature of the arguments.
        body: the arguments.
        interface: interface of the method; None: the same as `name`.

    Raises:
        CallFailed: no reply in time, or an error as the reply.
    """
    from dbus_fast import Message, MessageType

    message = Message(
        destination=name,
        path=path,
        interface=interface or name,
        member=member,
        signature=signature,
        body=list(body),
    )
    try:
        reply = await asyncio.wait_for(bus.call(message), _CALL_S)
    except TimeoutError:
        raise CallFailed("", f"{member} was not answered within {_CALL_S:g} s") from None
    if reply is None or reply.message_type is MessageType.ERROR:
        said = reply.body[0] if reply is not None and reply.body else member
        raise CallFailed("" if reply is None else str(reply.error_name), str(said))
    return list(reply.unix_fds or reply.body)


def notify_body(  # noqa: PLR0917 - the arguments of Notify
    title: str,
    body: str,
    urgency: str,
    replaces: int,
    buttons: Sequence[str],
    capabilities: Collection[str],
    *,
    stays: bool,
) -> list[Any]:
    """
    The arguments of Notify.

    Args:
        title: one line of plain text.
        body: plain text; escaped if the service supports markup.
        urgency: "low", "normal" or "critical".
        replaces: id of an earlier notification to replace; 0: none.
        buttons: alternating keys and labels.
        capabilities: capabilities of the service.
        stays: stay until closed; otherwise the service chooses how long.
    """
    from dbus_fast import Variant

    hints = {
        "urgency": Variant("y", _URGENCY.get(urgency, 1)),
        "desktop-entry": Variant("s", _DESKTOP_ENTRY),
        "category": Variant("s", "device.error" if urgency == "critical" else "device"),
    }
    if "body-markup" in capabilities:
        body = html.escape(body, quote=False)
    icon = _ICONS.get(urgency, "dialog-warning")
    expires = _NEVER if stays else _BY_ITSELF
    return ["watchdog", replaces, icon, title, body, list(buttons), hints, expires]


def failure_text(error: CallFailed) -> str:
    """Why the notification service did not show a notification, and what to do."""
    if error.name == f"{DBUS}.Error.ServiceUnknown":
        return (
            "no notification service runs in this session; install one, such as dunst or "
            f"notification-daemon, or set notify.command ({error})"
        )
    if ".Spawn." in error.name:
        return (
            "the notification service of this session could not be started; start it, or "
            f"set notify.command ({error})"
        )
    return f"the notification service refused it: {error}" if error.name else str(error)
