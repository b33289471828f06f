"""Whether the desktop shows notifications and icons; the check shows and starts nothing."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchdog_app.base import dbus
from watchdog_app.base.dbus import DBUS, DBUS_PATH, NOTIFICATIONS, NOTIFICATIONS_PATH
from watchdog_app.doctor import children
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity

TRAY = "org.kde.StatusNotifierWatcher"
_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Bus:
    """What the session bus says."""

    names: frozenset[str] = frozenset()  # names with an owner
    activatable: frozenset[str] = frozenset()  # names whose service starts when it is called
    server: str = ""  # name and version of the notification service
    inhibited: bool | None = None  # do not disturb; None: unknown
    tray_host: bool | None = None  # whether a program displays the tray icons
    error: str | None = None  # why the bus did not answer
    silent: str | None = None  # name of a service that did not answer


def check(facts: Facts) -> Iterator[Finding]:
    """Check the session bus, then the services on it."""
    machine = facts.machine
    where = dbus.session_bus_address(machine.env, machine.uid, machine.root)
    program = shlex.join(facts.settings().notify.command)
    if where is None:
        if machine.env.get("DISPLAY") or machine.env.get("WAYLAND_DISPLAY"):
            yield facts.finding("desktop.session-bus.missing")
        elif program:
            yield facts.fine("desktop.session-bus.no-desktop", program=program)
        else:
            yield facts.finding("desktop.session-bus.no-desktop")
        return
    bus = _query_bus(where)
    if bus.error:
        yield facts.finding("desktop.session-bus.unreachable", address=where, error=bus.error)
        return
    yield _notifications(facts, bus)
    gnome = "GNOME" in machine.env.get("XDG_CURRENT_DESKTOP", "").upper()
    if bus.inhibited:
        variant = "program-told" if program else "on"
        yield facts.finding(f"desktop.do-not-disturb.{variant}", program=program)
    elif gnome:
        yield from _gnome_do_not_disturb(facts)
    if TRAY in bus.names and bus.tray_host is not False:
        yield facts.fine("desktop.tray")
    else:
        yield facts.finding("desktop.tray.gnome" if gnome else "desktop.tray")


def has_notification_service(env: Mapping[str, str]) -> bool:
    """
    Whether a service shows notifications on the session bus, or starts when it is called.

    Asks the bus, which takes some seconds at most.
    """
    where = dbus.session_bus_address(env)
    if where is None:
        return False
    bus = _query_bus(where)
    return NOTIFICATIONS in bus.names | bus.activatable


def _notifications(facts: Facts, bus: Bus) -> Finding:
    if bus.silent == NOTIFICATIONS:
        return facts.finding("desktop.notifications.silent")
    if NOTIFICATIONS in bus.names:
        server = bus.server or "a service that gives no name"
        return facts.fine("desktop.notifications.shown", server=server)
    if NOTIFICATIONS in bus.activatable:
        return facts.fine("desktop.notifications.on-demand")
    return facts.finding("desktop.notifications.none")


def _gnome_do_not_disturb(facts: Facts) -> Iterator[Finding]:
    """Report GNOME's own do-not-disturb setting, which its notification service does not show."""
    program = facts.machine.command("gsettings")
    if program is None:
        return
    words = [facts.machine.path(program), "get", "org.gnome.desktop.notifications", "show-banners"]
    try:
        ended = children.run(words, 3.0, facts.machine.env)
    except OSError as error:
        yield facts.finding("desktop.do-not-disturb", reason=str(error), severity=Severity.INFO)
        return
    if ended.stdout.strip() == "false":
        yield facts.finding("desktop.do-not-disturb.gnome")


def _query_bus(where: str) -> Bus:
    """Ask the session bus at an address. Never raises; takes some seconds at most."""
    try:
        return asyncio.run(asyncio.wait_for(_read_bus(where), 3 * _DEADLINE_S))
    except ImportError as error:
        return Bus(error=f"dbus-fast is not installed ({error})")
    except TimeoutError:
        return Bus(error="it did not answer")
    except Exception as error:  # refused, no such socket, a bad address
        return Bus(error=str(error) or type(error).__name__)


async def _read_bus(where: str) -> Bus:
    bus = await asyncio.wait_for(dbus.connect(where), _DEADLINE_S)
    properties = "org.freedesktop.DBus.Properties"

    async def ask(name: str, path: str, member: str, *words: str) -> list[object]:
        """Return the reply; empty after an error reply."""
        interface = properties if member == "Get" else name
        try:
            return await dbus.call(
                bus, name, path, member, "s" * len(words), words, interface=interface
            )
        except dbus.CallFailed as error:
            if not error.name:
                raise TimeoutError from error
            return []

    silent, server, inhibited, host = None, "", None, None
    try:
        names = _string_set(await ask(DBUS, DBUS_PATH, "ListNames"))
        activatable = _string_set(await ask(DBUS, DBUS_PATH, "ListActivatableNames"))
        if NOTIFICATIONS in names:
            service = (NOTIFICATIONS, NOTIFICATIONS_PATH)
            try:
                told = await ask(*service, "GetServerInformation")
                server = " ".join(str(told[index]) for index in (0, 2) if index < len(told))
                inhibited = _bool_or_none(await ask(*service, "Get", NOTIFICATIONS, "Inhibited"))
            except TimeoutError:
                silent = NOTIFICATIONS
        if TRAY in names:
            try:
                wanted = (TRAY, "IsStatusNotifierHostRegistered")
                host = _bool_or_none(await ask(TRAY, "/StatusNotifierWatcher", "Get", *wanted))
            except TimeoutError:
                silent = silent or TRAY
    finally:
        bus.disconnect()
    return Bus(names, activatable, server, inhibited, host, None, silent)


def _string_set(body: list[object]) -> frozenset[str]:
    first = body[0] if body else []
    return frozenset(str(one) for one in first) if isinstance(first, list) else frozenset()


def _bool_or_none(body: list[object]) -> bool | None:
    value = getattr(body[0], "value", None) if body else None
    return value if isinstance(value, bool) else None
