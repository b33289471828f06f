"""
Notifications through plyer: Windows and macOS, and nowhere else by us.

On Linux plyer cannot tell whether anything was shown, and takes text as
options: there the bus is spoken to, or the daemon shows the notification by itself.
"""

from __future__ import annotations

import sys

from watchdog_app.tray import labels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Notification

CERTAIN: bool = sys.platform in ("win32", "darwin")


def show(notification: Notification) -> tuple[bool, str]:
    """Show a notification; whether it was shown, and why not."""
    if not CERTAIN:
        return False, "there is no session bus to show it on"
    try:
        from plyer import notification as desktop

        desktop.notify(
            title=_no_option(labels.plain(notification.title, 64)),
            # Windows cuts at 256 characters and fails beyond.
            message=_no_option(labels.plain_block(notification.body, 250)),
            app_name="watchdog",
        )
    except Exception as error:
        return False, f"plyer could not show it: {type(error).__name__}: {error}"
    return True, "shown by the companion"


def _no_option(text: str) -> str:
    return f" {text}" if text.startswith("-") else text
