"""
The helper that shows one notification on the desktop, or closes some, run with `python -m`.

Reads a request as JSON on standard input: the notification with `replaces`, `service` and `stays`,
or {"close": [numbers], "service": str}. Writes {"delivered": bool, "detail": str, "number": int,
"service": str} as the last line of standard output. `number` is the id of the shown notification,
`service` the bus name of the process that shows it; both are left out if there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from watchdog_app.base.text.terminal import plain, plain_block

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dbus_fast.aio import MessageBus

_SHOW_S = 5.0
_AGAIN_S = 1.5  # GNOME refuses notifications that come too fast; wait before a retry
_HAS_DBUS: bool = sys.platform != "darwin"


def main() -> int:
    """Carry out the request from standard input."""
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
    """Show or close notifications by D-Bus; show one by plyer on macOS."""
    return _call_service(request) if _HAS_DBUS else _show_by_plyer(request)


def _call_service(request: Mapping[str, Any]) -> dict[str, Any]:
    import asyncio

    from watchdog_app.base.dbus import CallFailed, failure_text

    try:
        found = asyncio.run(asyncio.wait_for(_carry_out(request), _SHOW_S))
    except TimeoutError:
        return _not_delivered(f"the notification service did not answer within {_SHOW_S:g} s")
    except CallFailed as error:
        return _not_delivered(failure_text(error))
    return {"delivered": True, "detail": "", **found}


async def _carry_out(request: Mapping[str, Any]) -> dict[str, Any]:
    """
    Carry out a request on this session's desktop; return `number` and `service` of the answer.

    Raises:
        CallFailed: no session bus, no notification service, or it refused.
    """
    from watchdog_app.base import dbus

    try:
        bus = await dbus.connect(dbus.session_bus_address())
    except Exception as error:  # all failures mean the same: no session bus
        # Keep it short: without a desktop, every journalled notification contains this text.
        text = "no desktop session to show it on (no session bus)"
        raise dbus.CallFailed("", text) from error
    try:
        if "close" not in request:
            return await _notify(bus, request)
        closing = (bus, request["service"], dbus.NOTIFICATIONS_PATH, "CloseNotification", "u")
        for number in request["close"]:
            with suppress(dbus.CallFailed):  # the user closed it, or the service has ended
                await dbus.call(*closing, [number], interface=dbus.NOTIFICATIONS)
        return {}
    finally:
        bus.disconnect()


async def _notify(bus: MessageBus, request: Mapping[str, Any]) -> dict[str, Any]:
    import asyncio

    from watchdog_app.base import dbus

    service = (bus, dbus.NOTIFICATIONS, dbus.NOTIFICATIONS_PATH)
    (known,) = await dbus.call(*service, "GetCapabilities")
    owner = (bus, dbus.DBUS, dbus.DBUS_PATH, "GetNameOwner", "s", [dbus.NOTIFICATIONS])
    (running,) = await dbus.call(*owner)
    # A restarted service counts from 1 again: an old number may be another program's.
    replaces = request["replaces"] if request["service"] == running else 0
    values = dbus.notify_body(
        plain(str(request.get("title", ""))),
        plain_block(str(request.get("body", ""))),
        str(request.get("urgency", "normal")),
        replaces,
        (),
        known,
        stays=request["stays"],
    )
    try:
        (number,) = await dbus.call(*service, "Notify", dbus.NOTIFY_SIGNATURE, values)
    except dbus.CallFailed as error:
        if "Excess" not in error.name:
            raise
        await asyncio.sleep(_AGAIN_S)
        (number,) = await dbus.call(*service, "Notify", dbus.NOTIFY_SIGNATURE, values)
    return {"number": int(number), "service": running}


def _show_by_plyer(request: Mapping[str, Any]) -> dict[str, Any]:
    from watchdog_app.base.plyer import show

    problem = show(str(request.get("title", "")), str(request.get("body", "")))
    return _not_delivered(problem) if problem else {"delivered": True, "detail": ""}


def _not_delivered(detail: str) -> dict[str, Any]:
    return {"delivered": False, "detail": detail}


if __name__ == "__main__":
    sys.exit(main())
