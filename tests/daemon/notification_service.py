"""
A notification service for tests, which owns org.freedesktop.Notifications and logs its calls.

Each call of Notify becomes one line of JSON in FILE, each closed number a line in FILE.closed.

Usage:
    python notification_service.py FILE [MODE]

MODE is one of:
- "plain" (the default),
- "markup" (supports markup),
- "refuse" (answers with an error),
- "hang" (never answers),
- "excess" (refuses the first call, as GNOME does for calls that come too fast).
"""

from __future__ import annotations

import asyncio
import json
import sys

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus

NAME = "org.freedesktop.Notifications"
REFUSED: list[Message] = []


def answer(message: Message, path: str, mode: str) -> Message | bool:
    """The reply to a call; True: handled, but without an answer."""
    if message.message_type is not MessageType.METHOD_CALL or message.interface != NAME:
        return False
    if message.member == "GetCapabilities":
        known = ["body", "body-markup"] if mode == "markup" else ["body"]
        return Message.new_method_return(message, "as", [known])
    if message.member == "CloseNotification":
        with open(f"{path}.closed", "a") as file:
            file.write(f"{message.body[0]}\n")
        return Message.new_method_return(message)
    if message.member != "Notify" or mode == "hang":
        return True
    if mode == "refuse":
        return Message.new_error(message, "org.example.Excess", "too many notifications")
    if mode == "excess" and not REFUSED:
        REFUSED.append(message)
        return Message.new_error(
            message, "org.freedesktop.Notifications.Error.ExcessNotificationGeneration", "too fast"
        )
    app, replaces, _, title, body, actions, hints, expires_ms = message.body
    with open(path, "a+") as file:
        file.seek(0)
        number = replaces or 41 + len(file.readlines())
        shown = {"app": app, "replaces": replaces, "title": title, "body": body}
        shown |= {"actions": actions, "expires_ms": expires_ms}
        file.write(json.dumps({**shown, "urgency": hints["urgency"].value}) + "\n")
    return Message.new_method_return(message, "u", [number])


async def main() -> None:
    path, mode = sys.argv[1], (sys.argv[2:] or ["plain"])[0]
    bus = await MessageBus().connect()
    bus.add_message_handler(lambda message: answer(message, path, mode))
    await bus.request_name(NAME)
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main())
