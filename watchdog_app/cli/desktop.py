"""
install places menu entry, icons, systemd user units, man page and shell completions in your own
folders, for an installation by pip, pipx or uv; a .deb brings its own. With --login the daemon
and the tray icon start with every session: by systemd where it manages yours, else by an
autostart entry.

remove takes away every file that install and "Start at login" placed, and the folders made for
them. A file that you have changed since stays, and is named each time until you remove it.
Configuration, journal and rescues stay. A running daemon keeps running until `watchdog stop`.

status (default) shows what is placed and what starts at login.

examples:
  watchdog desktop status
  watchdog desktop install
  watchdog desktop install --login       and start at every login
  watchdog desktop install --dry-run     only say what would be written
  watchdog desktop remove && pipx uninstall watchdog-app

exit codes: 0 done, 1 failure, a file of yours is in the way, or one that you changed is left,
  2 usage
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, UsageError
from watchdog_app.base.text.terminal import counted, plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.install import trust
from watchdog_app.install.login import UNITS, LoginMethod, LoginStart, open_placed_files


def add_arguments(parser: Parser) -> None:
    """Add the verbs."""
    verb = parser.subcommands(dest="verb", help="what to do; absent: status")
    install = verb("install", "place the files, and with --login start at every login")
    install.flag("--login", "start at every login, too")
    install.flag("--dry-run", "print the paths, and write nothing")
    verb("remove", "remove what was placed, and nothing else")
    verb("status", "show what is placed and what starts at login").json("print it as JSON")


def run(args: Args, out: Output) -> int:
    """Run the verb."""
    if sys.platform == "darwin":
        raise UsageError(
            "This command is for Linux desktops. On macOS packaging/macos in the source tree has "
            "what starts watchdog at login."
        )
    if args.verb == "install":
        return _install(args, out)
    return _remove(out) if args.verb == "remove" else _status(out)


def _install(args: Args, out: Output) -> int:
    from watchdog_app.install.desktop_files import (
        DAEMON_UNIT,
        autostart_path,
        data_home,
        desktop_files,
    )

    command = find_program()
    wanted = desktop_files(os.environ, command)
    if args.dry_run:
        out.lines(*map(plain, wanted))
        return EXIT_OK
    trust.refuse_untrusted(command)
    _refuse_root_in_user_home()
    placed = open_placed_files()
    report = placed.place(wanted)
    autostart = {autostart_path(os.environ, unit) for unit in UNITS}
    stale = set(placed.files) - wanted.keys() - autostart
    placed.remove(sorted(stale))  # files of an older version
    login = LoginStart(os.environ, command, placed)
    login.update_entries()
    login.reload()
    if wanted:
        out.lines(
            f"{len(report.written)} files placed, {len(report.unchanged)} were there already."
        )
    else:
        out.lines("Menu entry, icons, units and completions are installed for every user already.")
    if args.login:
        methods = login.enable(UNITS)
        for unit, method in methods.items():
            out.lines(f"{unit.removesuffix('.service')} starts at login, by {method.value}.")
        if methods[DAEMON_UNIT] is LoginMethod.AUTOSTART:
            out.lines("Only a desktop session reads autostart entries: a login by ssh does not.")
        out.lines("Start both now: watchdog start; watchdog tray &")
    elif all(login.method(unit) is not None for unit in UNITS):
        out.lines("Daemon and tray icon start at every login, as before.")
    else:
        out.lines("Start at every login: watchdog desktop install --login")
    if wanted and os.path.basename(os.environ.get("SHELL", "")) == "zsh":
        folder = os.path.join(data_home(os.environ), "zsh", "site-functions")
        out.lines(
            f"For completion in zsh, before compinit in ~/.zshrc: fpath+=({shlex.quote(folder)})"
        )
    out.lines("Take it all away again: watchdog desktop remove")
    return EXIT_OK


def _remove(out: Output) -> int:
    placed = open_placed_files()
    login = LoginStart(os.environ, "watchdog", placed)
    if not placed.files and all(login.method(unit) is None for unit in UNITS):
        placed.remove()
        out.lines("Nothing was placed for this user.")
        return EXIT_OK
    before = len(placed.files)
    login.disable()
    report = placed.remove()
    login.reload()
    out.lines(f"{before - len(report.kept)} files removed.")
    for path in report.kept:
        out.lines(f"Left, because it was changed since: {plain(path)}")
    if report.kept:
        out.lines("Remove what is left by hand, if you do not want to keep it.")
        return EXIT_FAILURE
    return EXIT_OK


def _status(out: Output) -> int:
    placed = open_placed_files()
    login = LoginStart(os.environ, "watchdog", placed)
    methods = {unit.removesuffix(".service"): login.method(unit) for unit in UNITS}
    nothing = "Nothing is placed for this user. Place it: watchdog desktop install"
    lines = [f"{counted(len(placed.files), 'file')} placed." if placed.files else nothing]
    for name, method in methods.items():
        starts = f"starts at login, by {method.value}" if method else "does not start at login"
        lines.append(f"{name} {starts}.")
    changed = placed.changed_files()
    lines += [f"Changed since, so remove leaves it: {plain(path)}" for path in changed]
    out.result(
        {
            "placed": list(placed.files),
            "left": changed,
            "login": {name: method and method.value for name, method in methods.items()},
        },
        lambda: lines,
    )
    return EXIT_OK


def find_program() -> str:
    """
    Return the absolute path of the running `watchdog` program.

    Raises:
        UsageError: no path alone can start this program again.
    """
    typed = sys.argv[0] if os.path.basename(sys.argv[0]) == "watchdog" else None
    beside = os.path.join(os.path.dirname(sys.executable), "watchdog")
    for candidate in (typed, beside, shutil.which("watchdog")):
        if candidate and os.access(candidate, os.X_OK):
            return check_program_path(os.path.abspath(candidate))
    raise UsageError(
        "The program `watchdog` was found neither in this Python's folder nor in PATH. What starts "
        "at login must name it. Install watchdog with pip, pipx or uv, then try again."
    )


def check_program_path(path: str) -> str:
    """
    Return the path if a menu entry and a unit can name it and it is not in a cache folder.

    Raises:
        UsageError: it holds characters that these would have to escape, or is in a cache folder.
    """
    if not path.isprintable() or set(path) & set("\"'\\;$`%"):
        raise UsageError(
            f"The path of this program, {path!r}, holds characters that no menu entry can hold. "
            "Install watchdog somewhere else."
        )
    caches = [os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "UV_CACHE_DIR")]
    in_cache = any(os.path.isabs(each) and path.startswith(each + os.sep) for each in caches)
    if in_cache or ".cache" in path.split(os.sep):
        raise UsageError(
            f"This watchdog lies in a cache, {path}, and goes when that is emptied. Install it to "
            "stay: pipx install watchdog-app, or uv tool install watchdog-app"
        )
    return path


def _refuse_root_in_user_home() -> None:
    """Refuse to run as root in a user's home: that user could not remove root's files."""
    if os.geteuid() != 0:
        return
    home = os.path.expanduser("~")
    owner = os.stat(home).st_uid if os.path.isdir(home) else 0
    if os.environ.get("SUDO_UID", "0") != "0" or owner != 0:
        raise UsageError(
            "This is root, and menus and login belong to the user whose desktop it is. Run it as "
            "that user, without sudo."
        )
