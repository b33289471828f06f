"""Notifications by the package plyer, for systems without a session bus (macOS)."""

from __future__ import annotations


def show(title: str, body: str) -> str:
    """
    Show a notification.

    Args:
        title: one line of plain text.
        body: plain text.

    Returns:
        Why it was not shown; empty: it was.
    """
    try:
        from plyer import notification

        title, body = (f" {each}" if each.startswith("-") else each for each in (title, body))
        # A blank in front: the programs that plyer starts do not take the text for an option.
        notification.notify(title=title, message=body, app_name="watchdog")
    except Exception as error:
        return f"plyer could not show it: {type(error).__name__}: {error}"
    return ""
