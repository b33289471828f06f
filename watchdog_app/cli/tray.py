"""
Show an icon in the desktop's tray: how full the most critical resource is, and every task in its
menu with save, pause, resume and explain. Notifications have buttons. It can start before the
daemon and before the tray; both appear when they are ready. Without a display it shows
notifications only, and says so.

examples:
  watchdog tray &
  watchdog tray --notifications-only   no icon

Start it at every login: the menu of the icon, or watchdog desktop install --login

exit codes: 0 ended, or it runs already in this session; 1 failure, 2 usage
"""

from __future__ import annotations

import sys

from watchdog_app.base.errors import EXIT_OK, AlreadyRunning, WatchdogError
from watchdog_app.cli.desktop import find_program
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.install.login import LoginSetting


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.flag("--notifications-only", "show notifications and no icon")
    parser.add_argument(
        "--theme",
        choices=("dark", "light"),
        default="dark",
        help="of the panel that the icon stands on",
    )
    parser.flag("--open-live-view", "open the live view in a terminal, and end")
    parser.flag("--open-settings", "open the settings in an editor, and end")


def run(args: Args, out: Output) -> int:
    """Run the tray process, or open what its menu opens."""
    if args.open_live_view:
        from watchdog_app.tray.launching import open_live_view

        open_live_view()
        return EXIT_OK
    if args.open_settings:
        from watchdog_app.tray.launching import open_settings

        open_settings()
        return EXIT_OK
    _block_openssl()
    from watchdog_app.tray.app import Companion

    try:
        return Companion(
            find_login_setting(),
            notifications_only=args.notifications_only,
            dark_panel=args.theme == "dark",
        ).run()
    except AlreadyRunning as error:
        out.lines(str(error))
        return EXIT_OK


def _block_openssl() -> None:
    """
    Keep OpenSSL out of this process: it takes 5 of 35 MB and is not needed.

    asyncio and hashlib import it if it is available, and work without it. D-Bus on this machine
    does not need it, and this process uses no network.
    """
    for module in ("ssl", "_hashlib"):
        if module not in sys.modules:
            sys.modules[module] = None  # type: ignore[assignment]


def find_login_setting() -> LoginSetting | None:
    """Return the login setting; None if unsupported: another system, or no path to this program."""
    if sys.platform == "darwin":
        return None
    from watchdog_app.install.login import LoginSetting

    try:
        return LoginSetting(find_program())
    except WatchdogError:
        return None
