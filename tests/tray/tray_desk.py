"""
A desktop for tests: a private bus without services, a tray, a notification service.

All parts use the real protocols; the tested program runs in its own process.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from support.waiting import until

WATCHER = "org.kde.StatusNotifierWatcher"
NOTIFICATIONS = "org.freedesktop.Notifications"
ITEM = "org.kde.StatusNotifierItem"
MENU = "com.canonical.dbusmenu"

CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={path}</listen>
<policy context="default"><allow send_destination="*" eavesdrop="true"/>
<allow eavesdrop="true"/><allow own="*"/></policy></busconfig>"""


class PrivateBus:
    """dbus-daemon with its own socket, which stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "bus"
        self._config = folder / "bus.conf"
        self._config.write_text(CONFIG.format(path=self._socket))
        self.address = f"unix:path={self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile"],
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "the bus listens")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._socket.unlink(missing_ok=True)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(str(self._socket)) == 0


class OnBus:
    """A bus connection in a thread, for tests that are not asynchronous."""

    def __init__(self, address: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

        async def connect() -> MessageBus:
            return await MessageBus(address).connect()

        self.bus: MessageBus = self.run(connect())

    def run(self, coroutine: Any, seconds: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(seconds)

    def call(self, name, path, interface, member, signature="", body=()):  # noqa: PLR0917
        reply = self.run(
            self.bus.call(
                Message(
                    destination=name,
                    path=path,
                    interface=interface,
                    member=member,
                    signature=signature,
                    body=list(body),
                )
            )
        )
        if reply.message_type is MessageType.ERROR:
            raise RuntimeError(f"{reply.error_name}: {reply.body}")
        return reply.body

    def listen(self, rule: str) -> None:
        name = "org.freedesktop.DBus"
        self.call(name, "/org/freedesktop/DBus", name, "AddMatch", "s", [rule])

    def close(self) -> None:
        def end() -> None:
            self.bus.disconnect()
            self.loop.call_later(0.05, self.loop.stop)

        self.loop.call_soon_threadsafe(end)
        self._thread.join(5)
        self.loop.close()


class Panel(OnBus):
    """A tray: accepts items, reads them, opens their menus and clicks."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.registered: list[str] = []
        self.signals: list[tuple[str, list[Any]]] = []
        self.bus.add_message_handler(self._handle)
        self.listen(f"type='signal',interface='{ITEM}'")
        self.listen(f"type='signal',interface='{MENU}'")
        self.run(self.bus.request_name(WATCHER))

    def _handle(self, message: Message) -> Message | bool | None:
        if message.message_type is MessageType.SIGNAL and message.interface in (ITEM, MENU):
            self.signals.append((message.member, message.body))
        if message.member == "RegisterStatusNotifierItem":
            self.registered.append(message.body[0])
            return Message.new_method_return(message)
        return None

    @property
    def item(self) -> str:
        until(lambda: self.registered, "an item registers")
        return self.registered[-1]

    def property(self, name: str) -> Any:
        interface = "org.freedesktop.DBus.Properties"
        return self.call(self.item, "/StatusNotifierItem", interface, "Get", "ss", [ITEM, name])[
            0
        ].value

    def pixels(self, size: int) -> list[tuple[int, int, int, int]]:
        """Return the icon at one size as (alpha, red, green, blue), row by row."""
        for width, height, data in self.property("IconPixmap"):
            if width == size:
                assert size * size * 4 == height * width * 4 == len(data)
                return [tuple(data[i : i + 4]) for i in range(0, len(data), 4)]
        raise AssertionError(f"no pixmap of {size}")

    def activate(self) -> None:
        self.call(self.item, "/StatusNotifierItem", ITEM, "Activate", "ii", [1, 1])

    def layout(self) -> tuple[int, list[Any]]:
        revision, tree = self.call(self.item, "/MenuBar", MENU, "GetLayout", "iias", [0, -1, []])
        return revision, tree

    def lines(self) -> dict[tuple[str, ...], tuple[int, dict[str, Any]]]:
        """Return every visible menu line by its labels from the top: id and properties."""
        found: dict[tuple[str, ...], tuple[int, dict[str, Any]]] = {}

        def walk(node: list[Any], above: tuple[str, ...]) -> None:
            for child in node[2]:
                number, properties, _ = child.value
                plain = {key: value.value for key, value in properties.items()}
                if plain.get("type") == "separator" or not plain["visible"]:
                    continue
                path = (*above, plain["label"])
                found[path] = (number, plain)
                walk(child.value, path)

        walk(self.layout()[1], ())
        return found

    def line(self, *labels: str) -> tuple[int, dict[str, Any]]:
        """Return the line whose labels start with these."""
        for path, line in self.lines().items():
            if len(path) == len(labels) and all(
                have.startswith(want) for have, want in zip(path, labels, strict=True)
            ):
                return line
        raise AssertionError(f"no {labels} in {list(self.lines())}")

    def event(self, number: int, kind: str = "clicked") -> None:
        body = [number, kind, Variant("i", 0), 0]
        self.call(self.item, "/MenuBar", MENU, "Event", "isvu", body)

    def click(self, *labels: str) -> None:
        self.event(self.line(*labels)[0])


class Screen(OnBus):
    """A notification service; `mode`: markup, plain, silent (no buttons), refuse, hang."""

    def __init__(self, address: str, mode: str = "markup") -> None:
        super().__init__(address)
        self.mode = mode
        self.shown: list[dict[str, Any]] = []
        self.closed: list[int] = []
        self._last = 40
        self.bus.add_message_handler(self._handle)
        self.run(self.bus.request_name(NOTIFICATIONS))

    def _handle(self, message: Message) -> Message | bool | None:
        if message.interface != NOTIFICATIONS:
            return None
        if message.member == "GetCapabilities":
            known = ["body"] + ["actions"] * (self.mode != "silent")
            return Message.new_method_return(
                message, "as", [known + ["body-markup"] * (self.mode == "markup")]
            )
        if message.member == "CloseNotification":
            self.closed.append(message.body[0])
            self.dismiss(message.body[0])
            return Message.new_method_return(message)
        if message.member != "Notify" or self.mode == "hang":
            return True
        if self.mode == "refuse":
            return Message.new_error(message, "org.example.Excess", "too many notifications")
        _, replaces, icon, title, body, actions, hints, expire = message.body
        if not replaces:
            self._last += 1
        number = replaces or self._last
        self.shown.append(
            {
                "number": number,
                "replaces": replaces,
                "icon": icon,
                "title": title,
                "body": body,
                "buttons": dict(zip(actions[::2], actions[1::2], strict=True)),
                "urgency": hints["urgency"].value,
                "expire": expire,
            }
        )
        return Message.new_method_return(message, "u", [number])

    def wait(self, title: str) -> dict[str, Any]:
        """Wait for the newest notification whose title starts with this text."""
        return until(
            lambda: next((n for n in reversed(self.shown) if n["title"].startswith(title)), None),
            f"a notice {title!r} in {[n['title'] for n in self.shown]}",
        )

    def press(self, number: int, key: str) -> None:
        self._signal("ActionInvoked", "us", [number, key])

    def dismiss(self, number: int) -> None:
        self._signal("NotificationClosed", "uu", [number, 2])

    def _signal(self, member: str, signature: str, body: list[Any]) -> None:
        path = "/org/freedesktop/Notifications"
        message = Message.new_signal(path, NOTIFICATIONS, member, signature, body)
        self.loop.call_soon_threadsafe(self.bus.send, message)
