"""`watchdog install-desktop`: menu entry, icon, units and completions, for this user."""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from watchdog_app.base import paths
from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.install.placed_files import PlacedFiles

DESCRIPTION = """\
Place menu entry, icons, systemd user units, man page and shell completions in your own folders,
for an installation by pip, pipx or uv; a .deb brings its own. With --login the daemon and the
tray icon start with every session: by systemd where it manages yours, else by an autostart
entry. Every file is recorded; `watchdog uninstall-desktop` removes those and nothing else."""
EPILOG = """\
examples:
  watchdog install-desktop
  watchdog install-desktop --login       and start at every login
  watchdog install-desktop --dry-run     only say what would be written

exit codes: 0 placed, 1 failure or a file of yours is in the way, 2 usage"""


def add_arguments(parser: Parser) -> None:
    """What to place."""
    parser.flag("--login", "start at every login, too")
    parser.flag("--dry-run", "print the paths, and write nothing")


def run(args: Args, out: Output) -> int:
    """Place the files."""
    from watchdog_app.install import trust
    from watchdog_app.install.desktop_files import autostart_path, data_home, desktop_files
    from watchdog_app.install.login import UNITS, LoginStart

    if sys.platform in ("win32", "darwin"):
        raise UsageError(
            "install-desktop is for Linux desktops. On macOS and Windows the installer places "
            "what starts watchdog at login: packaging/ in the source tree."
        )
    command = program()
    wanted = desktop_files(os.environ, command)
    if args.dry_run:
        out.lines(*map(plain, wanted))
        return EXIT_OK
    trust.refuse_untrusted()
    _refuse_root_of_another()
    placed = open_placed()
    report = placed.place(wanted)
    autostart = {autostart_path(os.environ, unit) for unit in UNITS}
    stale = set(placed.files) - wanted.keys() - autostart
    placed.remove(sorted(stale))  # of an older version
    login = LoginStart(os.environ, command, placed)
    login.renew()
    login.reload()
    if wanted:
        out.lines(
            f"{len(report.written)} files placed, {len(report.unchanged)} were there already."
        )
    else:
        out.lines("Menu entry, icons, units and completions are installed for every user already.")
    if args.login:
        for unit, way in login.enable(UNITS).items():
            out.lines(f"{unit.removesuffix('.service')} starts at login, by {way.value}.")
        out.lines("Start both now: watchdog start; watchdog tray &")
    elif all(login.way(unit) is not None for unit in UNITS):
        out.lines("Daemon and tray icon start at every login, as before.")
    else:
        out.lines("Start at every login: watchdog install-desktop --login")
    if wanted and os.path.basename(os.environ.get("SHELL", "")) == "zsh":
        folder = os.path.join(data_home(os.environ), "zsh", "site-functions")
        out.lines(
            f"For completion in zsh, before compinit in ~/.zshrc: fpath+=({shlex.quote(folder)})"
        )
    out.lines("Take it all away again: watchdog uninstall-desktop")
    return EXIT_OK


def open_placed() -> PlacedFiles:
    """What was placed for this user so far."""
    from watchdog_app.install.placed_files import PlacedFiles

    return PlacedFiles(os.path.abspath(os.path.join(paths.state_dir(), "desktop.json")))


def program() -> str:
    """
    Absolute path of the `watchdog` program that this is.

    Raises:
        UsageError: it was started in a way that cannot be repeated by a path alone.
    """
    typed = sys.argv[0] if os.path.basename(sys.argv[0]) == "watchdog" else None
    beside = os.path.join(os.path.dirname(sys.executable), "watchdog")
    for candidate in (typed, beside, shutil.which("watchdog")):
        if candidate and os.access(candidate, os.X_OK):
            return lasting(os.path.abspath(candidate))
    raise UsageError(
        "The program `watchdog` was found neither in this Python's folder nor in PATH. What starts "
        "at login must name it. Install watchdog with pip, pipx or uv, then try again."
    )


def lasting(path: str) -> str:
    """
    The path, where what starts at login will find it and can name it.

    Raises:
        UsageError: it will not, or cannot.
    """
    if not path.isprintable():
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


def _refuse_root_of_another() -> None:
    """Files of root's in a user's home could not be removed by that user."""
    if os.geteuid() != 0:
        return
    home = os.path.expanduser("~")
    owner = os.stat(home).st_uid if os.path.isdir(home) else 0
    if os.environ.get("SUDO_UID", "0") != "0" or owner != 0:
        raise UsageError(
            "This is root, and menus and login belong to the user whose desktop it is. Run it as "
            "that user, without sudo."
        )
