"""
The helper that shows one notification on the desktop, run with `python -m`.

Reads the notification as JSON on standard input. Writes {"delivered": bool, "detail": str,
"number": int} as the last line of standard output. `number` is the server's id of the shown
notification, 0 if there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from watchdog_app.base.text.terminal import plain, plain_block

_APP = "watchdog"
_SHOW_S = 5.0
_AGAIN_S = 1.5  # GNOME refuses notifications that come too fast; wait before a retry
_HAS_DBUS: bool = sys.platform != "darwin"


def main() -> int:
    """Show the notification from standard input."""
    # Libraries write to standard output too; the answer must stay the last line of ours.
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        request = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        answer = _not_delivered(f"the notification could not be read: {error}")
    else:
        answer = show(request)
    os.write(answer_fd, json.dumps(answer).encode() + b"\n")
    return 0 if answer["delivered"] else 1


def show(request: Mapping[str, Any]) -> dict[str, Any]:
    """Show a notification by D-Bus, or by plyer on macOS."""
    return _show_by_dbus(request) if _HAS_DBUS else _show_by_plyer(request)


def _show_by_dbus(request: Mapping[str, Any]) -> dict[str, Any]:
    import asyncio

    from watchdog_app.base.dbus import CallFailed, failure_text

    try:
        number = asyncio.run(asyncio.wait_for(_notify(request), _SHOW_S))
    except TimeoutError:
        return _not_delivered(f"the notification service did not answer within {_SHOW_S:g} s")
    except CallFailed as error:
        return _not_delivered(failure_text(error))
    return {"delivered": True, "detail": "", "number": number}


async def _notify(request: Mapping[str, Any]) -> int:
    """
    Show a notification on this session's desktop, and return its id.

    Raises:
        CallFailed: no session bus, no notification service, or it refused.
    """
    import asyncio

    from watchdog_app.base import dbus

    try:
        bus = await dbus.connect(dbus.session_bus_address())
    except Exception as error:  # all failures mean the same: no session bus
        # Keep it short: without a desktop, every journalled notification contains this text.
        text = "no desktop session to show it on (no session bus)"
        raise dbus.CallFailed("", text) from error
    service = (bus, dbus.NOTIFICATIONS, dbus.NOTIFICATIONS_PATH)
    replaces = request.get("replaces")
    try:
        (known,) = await dbus.call(*service, "GetCapabilities")
        values = dbus.notify_body(
            plain(str(request.get("title", ""))),
            plain_block(str(request.get("body", ""))),
            str(request.get("urgency", "normal")),
            replaces if isinstance(replaces, int) and replaces > 0 else 0,
            (),
            known,
        )
        try:
            (number,) = await dbus.call(*service, "Notify", dbus.NOTIFY_SIGNATURE, values)
        except dbus.CallFailed as error:
            if "Excess" not in error.name:
                raise
            await asyncio.sleep(_AGAIN_S)
            (number,) = await dbus.call(*service, "Notify", dbus.NOTIFY_SIGNATURE, values)
        return int(number)
    finally:
        bus.disconnect()


def _show_by_plyer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        from plyer import notification

        notification.notify(
            title=_not_an_option(str(request.get("title", ""))),
            message=_not_an_option(str(request.get("body", ""))),
            app_name=_APP,
        )
    except Exception as error:
        return _not_delivered(f"plyer could not show it: {type(error).__name__}: {error}")
    return {"delivered": True, "detail": "", "number": 0}


def _not_an_option(text: str) -> str:
    """Prefix a space, so that the programs that plyer starts do not take the text for an option."""
    return f" {text}" if text.startswith("-") else text


def _not_delivered(detail: str) -> dict[str, Any]:
    return {"delivered": False, "detail": detail, "number": 0}


if __name__ == "__main__":
    sys.exit(main())
