"""Whether a notice would be seen, and an icon shown."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.base import dbus
from watchdog_app.base.dbus import NOTIFICATIONS
from watchdog_app.doctor import children, session_bus
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked
from watchdog_app.doctor.machine import Machine
from watchdog_app.doctor.session_bus import TRAY, Bus

_INSTALL = {
    "debian": "sudo apt install dunst",
    "ubuntu": "sudo apt install dunst",
    "fedora": "sudo dnf install dunst",
    "arch": "sudo pacman -S dunst",
    "suse": "sudo zypper install dunst",
}
_COMMAND = ("[notify]", 'command = ["/path/to/program"]')


def check(facts: Facts) -> Iterator[Finding]:
    """The session bus, then who listens on it."""
    machine = facts.machine
    where = dbus.address(machine.env, machine.uid, machine.root)
    has_screen = bool(machine.env.get("DISPLAY") or machine.env.get("WAYLAND_DISPLAY"))
    if where is None:
        yield _no_bus(machine, has_screen)
        return
    bus = session_bus.ask(where)
    if bus.error:
        yield Finding(
            "desktop.session-bus",
            Severity.WARNING,
            f"The session bus at {where} cannot be reached: {bus.error}.",
            "No notice can be shown: a warning at two in the morning is only in the journal.",
            "Take the address from the desktop's own session.",
            ("export DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$(id -u)/bus",),
        )
        return
    yield from _notifications(machine, bus)
    yield from _tray(machine, bus)
    yield from _quiet(machine)


def _no_bus(machine: Machine, has_screen: bool) -> Finding:
    if has_screen:
        return Finding(
            "desktop.session-bus",
            Severity.WARNING,
            "There is a screen and no session bus (DBUS_SESSION_BUS_ADDRESS is not set).",
            "No notice can be shown.",
            "Start watchdog from within the desktop session.",
            ("export DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/$(id -u)/bus",),
        )
    return Finding(
        "desktop.session-bus",
        Severity.INFO,
        "There is no desktop session here (ssh, a container or a server): notices cannot be shown "
        "on a screen.",
        "Warnings go to the journal only, unless a program of yours is told.",
        "Name a program that sends them on, by mail or chat, in "
        + (machine.env.get("WATCHDOG_CONFIG") or "~/.config/watchdog/config.toml")
        + ":",
        _COMMAND,
    )


def _notifications(machine: Machine, bus: Bus) -> Iterator[Finding]:
    id_ = "desktop.notifications"
    if bus.silent == NOTIFICATIONS:
        yield Finding(
            id_,
            Severity.WARNING,
            "The notification service does not answer.",
            "Notices are not shown.",
            "Log in again, or start the service again.",
            ("systemctl --user restart plasma-plasmashell dunst",),
        )
    elif NOTIFICATIONS in bus.names:
        yield fine(id_, f"Notices are shown by {bus.server or 'a service that gives no name'}.")
        if bus.inhibited:
            yield Finding(
                "desktop.do-not-disturb",
                Severity.WARNING,
                "Do Not Disturb is on.",
                "Warnings stay unseen; some desktops let critical ones through.",
                "Switch it off while a long training runs, or have a program of yours told.",
                _COMMAND,
            )
    elif NOTIFICATIONS in bus.activatable:
        yield fine(id_, "A notification service is started when the first notice comes.")
    else:
        yield Finding(
            id_,
            Severity.WARNING,
            "No notification service runs in this session, and none can be started.",
            "A warning that nobody sees saves nothing; checkpoints are still made.",
            "Install one.",
            (_INSTALL.get(machine.distribution(), "sudo apt install dunst"),),
        )


def _tray(machine: Machine, bus: Bus) -> Iterator[Finding]:
    desktop = machine.env.get("XDG_CURRENT_DESKTOP", "")
    if TRAY in bus.names and bus.tray_host is not False:
        yield fine("desktop.tray", "The desktop shows tray icons.")
        return
    gnome = "GNOME" in desktop.upper()
    yield Finding(
        "desktop.tray",
        Severity.INFO,
        "GNOME shows no tray icons without the AppIndicator extension."
        if gnome
        else "Nothing in this session shows tray icons (StatusNotifier).",
        "watchdog's icon is not seen; notices and the command line do not need it.",
        "Install and switch on the extension, then log in again."
        if gnome
        else "Add the tray to the panel; sway needs waybar with its tray module.",
        (
            "sudo dnf install gnome-shell-extension-appindicator"
            if machine.distribution() == "fedora"
            else "sudo apt install gnome-shell-extension-appindicator",
            "gnome-extensions enable appindicatorsupport@rgcjonas.gmail.com",
        )
        if gnome
        else (),
        (f"XDG_CURRENT_DESKTOP: {desktop}",) if desktop else (),
    )


def _quiet(machine: Machine) -> Iterator[Finding]:
    """GNOME's own switch, which its service does not tell."""
    if "GNOME" not in machine.env.get("XDG_CURRENT_DESKTOP", "").upper():
        return
    program = machine.command("gsettings")
    if program is None:
        return
    words = [machine.path(program), "get", "org.gnome.desktop.notifications", "show-banners"]
    try:
        ended = children.run(words, 3.0, machine.env)
    except OSError as error:
        yield unchecked("desktop.do-not-disturb", "Do Not Disturb", str(error))
        return
    if ended.stdout.strip() == "false":
        yield Finding(
            "desktop.do-not-disturb",
            Severity.WARNING,
            "Do Not Disturb is on.",
            "Only critical notices are shown.",
            "Switch it off while a long training runs.",
            ("gsettings set org.gnome.desktop.notifications show-banners true",),
        )
