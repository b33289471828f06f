"""Questions to the user's session bus that show nothing and start nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass

NOTIFICATIONS = "org.freedesktop.Notifications"
TRAY = "org.kde.StatusNotifierWatcher"
_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Bus:
    """What the bus says."""

    names: frozenset[str] = frozenset()  # that somebody owns
    activatable: frozenset[str] = frozenset()  # that would be started when called
    server: str = ""  # name and version of the notification service
    inhibited: bool | None = None  # do not disturb; None: it does not say
    tray_host: bool | None = None  # whether somebody shows the icons
    error: str | None = None  # why the bus could not be asked
    silent: str | None = None  # a service on it that gave no answer


def address(env: Mapping[str, str], uid: int, root: str = "") -> str | None:
    """Where the session bus listens; None: nothing says so."""
    given = env.get("DBUS_SESSION_BUS_ADDRESS")
    if given:
        return given
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    path = f"{root}{runtime}/bus"
    return f"unix:path={path}" if os.path.exists(path) else None


def ask(where: str) -> Bus:
    """What the bus at an address says. Never raises; takes some seconds at most."""
    try:
        return asyncio.run(asyncio.wait_for(_ask(where), 3 * _DEADLINE_S))
    except ImportError as error:
        return Bus(error=f"dbus-fast is not installed ({error})")
    except TimeoutError:
        return Bus(error="it did not answer")
    except Exception as error:  # refused, no such socket, a bad address
        return Bus(error=str(error) or type(error).__name__)


async def _ask(where: str) -> Bus:
    from dbus_fast import BusType, Message, MessageType
    from dbus_fast.aio import MessageBus

    bus = await asyncio.wait_for(MessageBus(where, bus_type=BusType.SESSION).connect(), _DEADLINE_S)

    async def call(name: str, path: str, interface: str, member: str, *words: str) -> list[object]:
        message = Message(
            destination=name,
            path=path,
            interface=interface,
            member=member,
            signature="s" * len(words),
            body=list(words),
        )
        reply = await asyncio.wait_for(bus.call(message), _DEADLINE_S)
        answered = reply is not None and reply.message_type is MessageType.METHOD_RETURN
        return list(reply.body) if reply is not None and answered else []

    dbus = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
    silent, server, inhibited, host = None, "", None, None
    try:
        names = _texts(await call(*dbus, "ListNames"))
        activatable = _texts(await call(*dbus, "ListActivatableNames"))
        properties = "org.freedesktop.DBus.Properties"
        if NOTIFICATIONS in names:
            path = "/org/freedesktop/Notifications"
            try:
                told = await call(NOTIFICATIONS, path, NOTIFICATIONS, "GetServerInformation")
                server = " ".join(str(told[index]) for index in (0, 2) if index < len(told))
                value = await call(
                    NOTIFICATIONS, path, properties, "Get", NOTIFICATIONS, "Inhibited"
                )
                inhibited = _truth(value)
            except TimeoutError:
                silent = NOTIFICATIONS
        if TRAY in names:
            try:
                value = await call(
                    TRAY, "/StatusNotifierWatcher", properties, "Get", TRAY,
                    "IsStatusNotifierHostRegistered",
                )  # fmt: skip
                host = _truth(value)
            except TimeoutError:
                silent = silent or TRAY
    finally:
        bus.disconnect()
    return Bus(names, activatable, server, inhibited, host, None, silent)


def _texts(body: list[object]) -> frozenset[str]:
    first = body[0] if body else []
    return frozenset(str(one) for one in first) if isinstance(first, list) else frozenset()


def _truth(body: list[object]) -> bool | None:
    value = getattr(body[0], "value", None) if body else None
    return value if isinstance(value, bool) else None
