"""
Start at login: by systemd user units if a user manager runs, else by XDG autostart.

Only one of the two: a second daemon or a second tray process would refuse to start.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchdog_app.base import paths
from watchdog_app.base.errors import WatchdogError
from watchdog_app.install.desktop_files import (
    DAEMON_UNIT,
    TRAY_UNIT,
    autostart_entry,
    autostart_path,
    unit_path,
)
from watchdog_app.install.placed_files import PlacedFiles, read_regular_file

UNITS = (DAEMON_UNIT, TRAY_UNIT)
_SYSTEM_UNITS = (
    "/usr/lib/systemd/user",
    "/etc/systemd/user",
    "/usr/local/lib/systemd/user",
    "/usr/share/systemd/user",
    "/usr/local/share/systemd/user",
)
_TIMEOUT_S = 20.0

# Runs `systemctl --user ...`; returns its exit status and its output.
Systemctl = Callable[[Sequence[str]], tuple[int, str]]


class LoginMethod(StrEnum):
    """How a program is started at login."""

    UNIT = "systemd user unit"
    AUTOSTART = "autostart entry"


def systemctl(arguments: Sequence[str]) -> tuple[int, str]:
    """Run the real systemctl; status 127 if it is missing or does not answer."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", "--no-pager", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


@dataclass
class LoginStart:
    """
    Whether daemon and tray process start with the user's session.

    Args:
        env: environment of the user.
        command: absolute path of the `watchdog` program.
        placed: list that records autostart entries, so that `watchdog desktop remove` removes them.
        systemctl: see `systemctl`.
    """

    env: Mapping[str, str]
    command: str
    placed: PlacedFiles
    systemctl: Systemctl = systemctl

    def method(self, unit: str = TRAY_UNIT) -> LoginMethod | None:
        """Return how the unit's program is started at login now; None: not started."""
        if _is_active_entry(autostart_path(self.env, unit)):
            return LoginMethod.AUTOSTART
        if self._is_installed(unit) and self._is_enabled(unit):
            return LoginMethod.UNIT
        return None

    def enable(self, units: Sequence[str] = UNITS) -> dict[str, LoginMethod]:
        """
        Start the units at every login from now on; start nothing now.

        Returns:
            The method used for each unit.

        Raises:
            WatchdogError: systemd refused, or an autostart entry could not be written.
        """
        methods: dict[str, LoginMethod] = {}
        managed = self.has_user_manager()
        for unit in units:
            path = autostart_path(self.env, unit)
            if managed and self._is_installed(unit) and self._is_target_reached(unit):
                self._remove_entry(path)
                if not self._is_enabled(unit):
                    status, output = self.systemctl(["enable", unit])
                    if status != 0:
                        raise WatchdogError(f"systemd did not enable {unit}: {output}")
                methods[unit] = LoginMethod.UNIT
            else:
                if managed and self._is_installed(unit) and self._is_enabled(unit):
                    self._disable_unit(unit)
                # Also overwrite an entry that the user disabled in the desktop's settings: the
                # request of now counts.
                self._write_entry(path, unit)
                methods[unit] = LoginMethod.AUTOSTART
        return methods

    def update_entries(self) -> None:
        """
        Rewrite the autostart entries that we placed with the program's current path.

        Raises:
            WatchdogError: an entry could not be written.
        """
        for unit in UNITS:
            path = autostart_path(self.env, unit)
            if path in self.placed.files and _is_active_entry(path):
                self._write_entry(path, unit)

    def disable(self, units: Sequence[str] = UNITS) -> None:
        """
        Stop starting the units at login; running programs continue.

        Raises:
            WatchdogError: systemd refused, or an entry could not be removed or is not ours.
        """
        managed = self.has_user_manager()
        for unit in units:
            self._remove_entry(autostart_path(self.env, unit))
            if managed and self._is_installed(unit):
                self._disable_unit(unit)

    def has_user_manager(self) -> bool:
        """Return whether a systemd user manager answers for this user."""
        status, output = self.systemctl(["is-system-running"])
        # In the states "degraded" and "starting" the exit code is not 0, but the manager answers.
        return status != 127 and output in ("running", "degraded", "starting", "initializing")

    def reload(self) -> None:
        """Make systemd read added and removed units; do nothing without a user manager."""
        if self.has_user_manager():
            self.systemctl(["daemon-reload"])

    def _write_entry(self, path: str, unit: str) -> None:
        self.placed.place({path: autostart_entry(self.command, unit)}, even_changed=True)

    def _remove_entry(self, path: str) -> None:
        """Remove an autostart entry, also one that the desktop's settings have rewritten."""
        self.placed.remove([path], even_changed=True)
        if _is_active_entry(path):
            raise WatchdogError(
                f"{path} starts watchdog at login as well, and was not placed by watchdog. Remove "
                "it, then try again."
            )

    def _is_enabled(self, unit: str) -> bool:
        return self.systemctl(["is-enabled", unit])[1] in ("enabled", "enabled-runtime")

    def _disable_unit(self, unit: str) -> None:
        status, output = self.systemctl(["disable", unit])
        if status != 0:
            raise WatchdogError(f"systemd did not disable {unit}: {output}")

    def _is_target_reached(self, unit: str) -> bool:
        """
        Return whether systemd knows the graphical session that the unit waits for.

        Some desktops do not tell systemd that their session has started (XFCE, LXQt and most window
        managers). There the unit of the tray process would never start.
        """
        if unit != TRAY_UNIT:
            return True
        return self.systemctl(["is-active", "graphical-session.target"])[1] == "active"

    def _is_installed(self, unit: str) -> bool:
        places = (unit_path(self.env, unit), *(f"{each}/{unit}" for each in _SYSTEM_UNITS))
        return any(os.path.exists(place) for place in places)


def open_placed_files() -> PlacedFiles:
    """Open the list of files placed for this user's desktop."""
    return PlacedFiles(os.path.abspath(os.path.join(paths.state_dir(), "desktop.json")))


class LoginSetting:
    """
    The setting of the tray's menu: whether daemon and tray process start at login.

    Args:
        program: absolute path of the `watchdog` program.
    """

    def __init__(self, program: str) -> None:
        self._program = program

    def state(self) -> bool | None:
        """Return whether both start; None: the list of placed files is damaged."""
        try:
            start = LoginStart(os.environ, self._program, open_placed_files())
            return all(start.method(unit) is not None for unit in UNITS)
        except WatchdogError:
            return None  # `watchdog desktop status` explains what to do

    def set(self, on: bool) -> None:
        """
        Set it for both: an icon without its daemon protects nothing.

        Raises:
            WatchdogError: systemd refused, or an entry could not be changed.
        """
        start = LoginStart(os.environ, self._program, open_placed_files())
        if on:
            start.enable()
        else:
            start.disable()


def _is_active_entry(path: str) -> bool:
    """Return whether an autostart entry exists and is not disabled in the desktop's settings."""
    content = read_regular_file(path)
    if content is None:
        return False
    lines = {line.replace(b" ", b"").lower() for line in content.splitlines()}
    return not lines & {b"hidden=true", b"x-gnome-autostart-enabled=false"}
