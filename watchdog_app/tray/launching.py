"""
Start a terminal with one of our commands, or open a folder.

Started programs outlive this process. A program that ends at once with an error counts as not
installed, and the next one is tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec

from watchdog_app.base import children, paths
from watchdog_app.base.errors import WatchdogError
from watchdog_app.client import live_view

_EARLY_EXIT_S = 1.5

# Terminal emulators and the words between them and the command. Emulators that pass the command
# to their running server come first: they start fastest on their desktop. Emulators whose default
# font lacks block characters come late, with options for another font. Debian's alternative is
# often one of them, so it is the last.
_TERMINALS: tuple[tuple[str, ...], ...] = (
    ("xdg-terminal-exec",),
    ("gnome-terminal", "--"),
    ("kgx", "--"),
    ("ptyxis", "--"),
    ("konsole", "-e"),
    ("xfce4-terminal", "-x"),
    ("mate-terminal", "-x"),
    ("tilix", "-e"),
    ("kitty",),
    ("foot",),
    ("alacritty", "-e"),
    ("wezterm", "start", "--"),
    ("ghostty", "-e"),
    ("terminator", "-x"),
    ("lxterminal", "-e"),
    ("qterminal", "-e"),
    ("urxvt", "-e"),
    ("xterm", "-fa", "Monospace", "-fs", "10", "-u8", "-e"),
    ("uxterm", "-fa", "Monospace", "-fs", "10", "-u8", "-e"),
    ("x-terminal-emulator", "-e"),
)
# Keep the window open after the command, so that the user can read the output. PAGER starts at
# the top and shows how to quit; without a pager use WAIT.
PAGER = '"$@" 2>&1 | LESS= less -R -P "Arrows and blank scroll, q closes this window"'
WAIT = '"$@"; printf "\\nPress Enter to close this window. "; read -r _'


def open_live_view(task: int | None = None) -> None:
    """
    Open `watchdog top`, or `watchdog status --watch` if Textual is not installed.

    A live view that the tray has opened before is used again.

    Args:
        task: pid of the task to choose; None: no task.

    Raises:
        WatchdogError: no terminal could be opened.
    """
    paths.add_vendored()
    if find_spec("textual") is None:
        return run_in_terminal(children.watchdog_argv(["status", "--watch"]))
    if live_view.bring_forward(task):
        return None
    chosen = [] if task is None else ["--task", str(task)]
    return run_in_terminal(children.watchdog_argv(["top", "--window", *chosen]))


def run_in_terminal(command: Sequence[str], keep_open: str = "") -> None:
    """
    Run a command in a new terminal window.

    Args:
        command: its words; no shell interprets them.
        keep_open: `PAGER` or `WAIT`: how the window stays open after the command; empty: it closes.

    Raises:
        WatchdogError: no terminal emulator was found, or none started.
    """
    if keep_open == PAGER and not shutil.which("less"):
        keep_open = WAIT
    words = ["sh", "-c", keep_open, "sh", *command] if keep_open else list(command)
    if sys.platform == "darwin":
        return _mac_terminal(command)
    failures = []
    for prefix in _find_terminals(os.environ):
        try:
            return _spawn([*prefix, *words])
        except WatchdogError as error:
            failures.append(str(error))
    raise WatchdogError(
        "No terminal could be opened. "
        + (" ".join(failures[:2]) if failures else "None was found; install one, such as xterm.")
        + f" Type it yourself: {_command_text(command)}"
    )


def open_folder(path: str) -> None:
    """
    Show a folder in the file manager.

    Raises:
        WatchdogError: the folder does not exist, or no program can show it.
    """
    if not os.path.isdir(path):
        raise WatchdogError(f"The folder {path} is not there: nothing has been saved yet.")
    _open_path(path)


def open_report(task: int) -> None:
    """
    Show the page of `watchdog report` about an ended task in the browser.

    The page lies among the user's downloads: packaged browsers may read no hidden folder.

    Args:
        task: pid of the task.

    Raises:
        WatchdogError: the page could not be made, or no program can show it.
    """
    folder = paths.state_dir()
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["xdg-user-dir", "DOWNLOAD"]
        found = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
        if os.path.isdir(found.stdout.strip()):
            folder = found.stdout.strip()
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"watchdog-report-{task}.html")
    _run(["report", str(task), "--output", path])
    _open_path(path)


def open_settings() -> None:
    """
    Run `watchdog config edit` in a terminal: edits the file, checks it and reloads the daemon.

    Raises:
        WatchdogError: no terminal could be opened.
    """
    run_in_terminal(children.watchdog_argv(["config", "edit"]), WAIT)


def start_daemon() -> None:
    """
    Run `watchdog start` and wait for it.

    Raises:
        WatchdogError: the daemon did not start; with the command's output.
    """
    _run(["start"])


def enable_saving(python: str) -> str:
    """
    Run `watchdog agent enable` for an environment; return its output.

    Args:
        python: folder of the environment.

    Raises:
        WatchdogError: it failed; with the command's output.
    """
    return _run(["agent", "enable", "--python", python])


def _run(arguments: Sequence[str]) -> str:
    command = children.watchdog_argv(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        text = (done.stderr or done.stdout).strip()
        raise WatchdogError(text.removeprefix("watchdog: ") or "It did not say why.")
    return done.stdout.strip()


def _find_terminals(env: Mapping[str, str]) -> list[list[str]]:
    """Return the command prefixes of the installed terminals, the user's choice first."""
    found = []
    preferred = env.get("TERMINAL", "").split()
    if preferred and shutil.which(preferred[0]):
        known = {prefix[0]: list(prefix[1:]) for prefix in _TERMINALS}
        found.append([*preferred, *known.get(os.path.basename(preferred[0]), ["-e"])])
    return found + [list(prefix) for prefix in _TERMINALS if shutil.which(prefix[0])]


def _open_path(path: str) -> None:
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    if shutil.which(opener) is None:
        raise WatchdogError(f"{opener} was not found, so nothing can show {path}.")
    _spawn([opener, os.path.abspath(path)])


def _mac_terminal(command: Sequence[str]) -> None:
    import shlex

    # AppleScript escapes only backslash and double quote.
    line = shlex.join(command).replace("\\", "\\\\").replace('"', '\\"')
    _spawn(["osascript", "-e", f'tell application "Terminal" to do script "{line}"'])


def _spawn(command: Sequence[str]) -> None:
    """
    Start a command detached.

    Raises:
        WatchdogError: the command does not exist, or ends at once with an error.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.path.expanduser("~") if os.path.isdir(os.path.expanduser("~")) else "/",
            start_new_session=True,
        )
    except OSError as error:
        raise WatchdogError(f"{command[0]} could not be started: {error}.") from error
    try:
        code = process.wait(_EARLY_EXIT_S)
    except subprocess.TimeoutExpired:
        # The command runs. A thread reaps the process when it ends.
        threading.Thread(target=process.wait, daemon=True).start()
        return
    if code:
        raise WatchdogError(f"{command[0]} ended at once with exit code {code}.")


def _command_text(command: Sequence[str]) -> str:
    """Return the command as the user would type it."""
    words = list(command)
    if words[1:4] == ["-P", "-m", "watchdog_app"]:
        words = ["watchdog", *words[4:]]
    return " ".join(words)
