"""
The helper that holds logind's delay locks for shutdown and sleep, run with `python -m`.

It writes a line for each event: `shutdown 5.0` or `sleep 5.0` with the seconds that logind waits,
and `resumed`. Then it reads a line, and releases the lock. It takes a new lock after `resumed`,
also if a shutdown was called off. It ends with its standard input.

Source: org.freedesktop.login1(5), "Inhibit"; systemd, "Inhibitor Locks".
"""

from __future__ import annotations

import asyncio
import os
import sys

from watchdog_app.base import dbus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

_LOGIND = "org.freedesktop.login1"
_PATH = "/org/freedesktop/login1"
_MANAGER = f"{_LOGIND}.Manager"
_EVENTS = {"PrepareForShutdown": "shutdown", "PrepareForSleep": "sleep"}
_OUTPUT = 1
# A lock for each: polkit refuses a joint one to a user without a session.
_WHAT = ("shutdown", "sleep")
_WHY = ("watchdog", "saves the trainings", "delay")


class _Lock:
    """The delay locks, and the events that they delay."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self._fds: list[int] = []

    async def take(self) -> None:
        """Take the locks, unless they are held."""
        for what in () if self._fds else _WHAT:
            inhibit = (self._bus, _LOGIND, _PATH, "Inhibit", "ssss", (what, *_WHY))
            self._fds += await dbus.call(*inhibit, interface=_MANAGER)

    def release(self) -> None:
        """Let the shutdown or the sleep begin."""
        while self._fds:
            os.close(self._fds.pop())

    async def report(self, event: str, *, begins: bool) -> None:
        """Write an event, with the time that logind waits for the lock."""
        if not begins:
            os.write(_OUTPUT, b"resumed\n")
            await self.take()
            return
        get = (self._bus, _LOGIND, _PATH, "Get", "ss", (_MANAGER, "InhibitDelayMaxUSec"))
        (delay,) = await dbus.call(*get, interface="org.freedesktop.DBus.Properties")
        # In one write, so that the daemon never reads a part of a line.
        os.write(_OUTPUT, f"{event} {delay.value / 1e6}\n".encode())


async def main() -> None:
    """Report the events until standard input ends."""
    bus = await dbus.connect(None, system=True)
    lock, tasks = _Lock(bus), set()

    def receive(message: Message) -> None:
        event = _EVENTS.get(message.member)
        if event is not None and message.path == _PATH:
            tasks.add(asyncio.ensure_future(lock.report(event, begins=message.body[0])))

    bus.add_message_handler(receive)
    rule = f"type='signal',sender='{_LOGIND}',interface='{_MANAGER}',path='{_PATH}'"
    await dbus.call(bus, dbus.DBUS, dbus.DBUS_PATH, "AddMatch", "s", [rule])
    await lock.take()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        lock.release()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Exception as error:  # no logind, or it refuses: the daemon does without
        sys.exit(f"watchdog: logind: {error}")
