"""`watchdog config edit`: the file in the user's editor, checked before it is used."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile

from watchdog_app.base.errors import ConfigError, WatchdogError
from watchdog_app.base.text.terminal import plain, plain_block

_EDITORS = ("sensible-editor", "nano", "vim", "vi", "notepad.exe")
_REJECTED = ".rejected"


def edit(where: str) -> bool:
    """
    Let a person change the file; whether it was changed.

    The editor gets a copy, and the file is replaced when that is good: until then the old
    settings stay in force. Without a file the copy is one that explains every setting.

    Raises:
        WatchdogError: there is no editor, it failed, or the file was changed meanwhile.
        ConfigError: what was written holds mistakes; it is kept beside the file.
    """
    from watchdog_app.cli.config_text import template
    from watchdog_app.config import editing, loads, read_file

    command = editor()
    before = read_file(where)
    text = "\n".join([*template(), ""]) if before is None else before
    begun = text
    while True:
        text = _edited(command, text)
        if text == begun:
            print("Nothing was changed.")
            return False
        try:
            loads(text, where, {})
        except ConfigError as error:
            print(plain_block(error), file=sys.stderr)
            if _again():
                continue
            kept = f"{where}{_REJECTED}"
            editing.write(kept, text, read_file(kept))
            raise ConfigError(
                f"The settings of before stay in force. What you wrote is in {kept}"
            ) from None
        break
    editing.write(where, text, before)
    print(f"{plain(where)} is changed.")
    return True


def editor() -> list[str]:
    """
    The command line of the user's editor.

    Raises:
        WatchdogError: there is none.
    """
    from shutil import which

    for name in ("VISUAL", "EDITOR"):
        given = os.environ.get(name, "").strip()
        if given:
            try:
                return shlex.split(given, posix=os.name != "nt")
            except ValueError as error:
                raise WatchdogError(f"{name} cannot be read as a command: {error}.") from error
    found = next((path for path in map(which, _EDITORS) if path), None)
    if found is None:
        raise WatchdogError("There is no editor. Name one: EDITOR=nano watchdog config edit")
    return [found]


def _edited(command: list[str], text: str) -> str:
    """What the editor leaves of a text."""
    from watchdog_app.config import read_file

    with tempfile.TemporaryDirectory(prefix="watchdog-") as folder:
        path = os.path.join(folder, "config.toml")  # the name tells the editor what it is
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        try:
            status = subprocess.run([*command, path], check=False).returncode
        except OSError as error:
            raise WatchdogError(
                f"{command[0]} could not be started: {error.strerror}. "
                "Name another: EDITOR=nano watchdog config edit"
            ) from error
        if status != 0:
            raise WatchdogError(f"{command[0]} ended with status {status}; nothing was changed.")
        found = read_file(path)
    if found is None:
        raise WatchdogError("The editor removed the file; nothing was changed.")
    return found


def _again() -> bool:
    """Whether to open the editor again; never without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("Edit it again? [Y/n] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in ("", "y", "yes")
