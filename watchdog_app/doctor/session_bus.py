"""Questions to the user's session bus that show nothing and start nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from watchdog_app.base.dbus import (
    DBUS,
    DBUS_PATH,
    NOTIFICATIONS,
    NOTIFICATIONS_PATH,
    CallFailed,
    call,
    connect,
)

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
    bus = await asyncio.wait_for(connect(where), _DEADLINE_S)
    properties = "org.freedesktop.DBus.Properties"

    async def ask(name: str, path: str, member: str, *words: str) -> list[object]:
        """Nothing where it answers with an error."""
        interface = properties if member == "Get" else name
        try:
            return await call(bus, name, path, member, "s" * len(words), words, interface=interface)
        except CallFailed as error:
            if not error.name:
                raise TimeoutError from error
            return []

    silent, server, inhibited, host = None, "", None, None
    try:
        names = _texts(await ask(DBUS, DBUS_PATH, "ListNames"))
        activatable = _texts(await ask(DBUS, DBUS_PATH, "ListActivatableNames"))
        if NOTIFICATIONS in names:
            service = (NOTIFICATIONS, NOTIFICATIONS_PATH)
            try:
                told = await ask(*service, "GetServerInformation")
                server = " ".join(str(told[index]) for index in (0, 2) if index < len(told))
                inhibited = _truth(await ask(*service, "Get", NOTIFICATIONS, "Inhibited"))
            except TimeoutError:
                silent = NOTIFICATIONS
        if TRAY in names:
            try:
                wanted = (TRAY, "IsStatusNotifierHostRegistered")
                host = _truth(await ask(TRAY, "/StatusNotifierWatcher", "Get", *wanted))
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
