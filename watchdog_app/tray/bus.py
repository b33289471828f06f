"""
The session bus: one connection in its own thread, which reconnects when the bus restarts.

Icon, menu and notifications are parts on the connection. A part answers method calls, and gets
events: connected, disconnected, and changed owners of names. An object answers calls of its own
interface, of Properties and of Introspectable.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dbus_fast import Message, MessageType, NameFlag, RequestNameReply, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.signature import SignatureTree

from watchdog_app.base.dbus import DBUS, DBUS_PATH, CallFailed, call, connect, session_bus_address

Method = tuple[str, str, Callable[..., list[Any]]]

# the owner of this name is the tray process of the session
OWN_NAME = "org.watchdog_app.watchdog.Tray"

_CONNECT_S = 5.0
_CALL_S = 5.0
_MIN_RETRY_S = 0.5
_MAX_RETRY_S = 10.0
_PROPERTIES = "org.freedesktop.DBus.Properties"
_INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"
_DOCTYPE = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN" '
    '"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)


class Part:
    """A user of the bus connection. The bus's thread calls all methods."""

    watched_names: tuple[str, ...] = ()  # `owner_changed` is called for these bus names

    async def connected(self, bus: MessageBus) -> None:
        """Handle a new connection, the first or a later one."""

    def disconnected(self) -> None:
        """Handle the end of the connection; the bus reconnects."""

    def handle(self, message: Message) -> Message | None:
        """
        Return the answer to a method call; None: the message is not for this part, or is a signal.
        """

    async def owner_changed(self, name: str, present: bool) -> None:
        """
        Handle an ownership change of a name in `watched_names`; `present`: the name has an owner.
        """


@dataclass(eq=False)
class SessionBus:
    """
    Keeps a connection to the session bus.

    Args:
        parts: users of the connection.
        on_taken: called if another tray process of this session holds the name.
        on_failure: called with each error of a part that no caller gets.
    """

    parts: list[Part]
    on_taken: Callable[[], None]
    on_failure: Callable[[BaseException], None]
    name_taken: bool = field(default=False, init=False)  # another process shows the icon
    problem: str | None = field(default=None, init=False)  # why there is no connection
    _bus: MessageBus | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Make the thread, and what it waits for."""
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._first_attempt = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="session-bus", daemon=True)

    @property
    def connected(self) -> bool:
        """True: connected to a session bus, with all parts."""
        return self._bus is not None

    def start(self, wait_s: float = _CONNECT_S) -> None:
        """Connect; return after the first success or failure, or after `wait_s`."""
        self._thread.start()
        self._first_attempt.wait(wait_s)

    def stop(self) -> None:
        """Close the connection; icon and names disappear with it."""
        if not self._thread.is_alive():
            return
        self.call_soon(self._ending.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CALL_S)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the bus's thread."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop has ended

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any] | None:
        """
        Run a coroutine in the bus's thread; return its future, or None if the thread has ended.
        """
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            return None

    def signal(self, path: str, interface: str, member: str, signature: str, body: Any) -> None:
        """
        Send a signal on the bus; safe to call from any thread. Without a connection do nothing.
        """

        def send() -> None:
            if self._bus is not None:
                self._bus.send(Message.new_signal(path, interface, member, signature, body))

        self.call_soon(send)

    async def call(
        self, name: str, path: str, member: str, signature: str = "", body: Any = (), **more: Any
    ) -> Any:
        """
        Call a method on the bus and return the body of its answer; only in the bus's thread.

        Raises:
            CallFailed: no connection, no answer, or an error reply.
        """
        if self._bus is None:
            raise CallFailed("", f"there is no session bus: {self.problem or 'not connected'}")
        return await call(self._bus, name, path, member, signature, body, **more)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep_connected())
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _keep_connected(self) -> None:
        retry_s = _MIN_RETRY_S
        while not self._ending.is_set():
            try:
                bus = await asyncio.wait_for(self._connect(), _CONNECT_S)
                self._first_attempt.set()
                if self.name_taken:
                    bus.disconnect()
                    self.on_taken()
                    return
                retry_s = _MIN_RETRY_S
                await self._serve(bus)
            except Exception as error:  # all errors mean the same: no connection
                self.problem = _describe_error(error)
            finally:
                self._bus = None
                self._first_attempt.set()
            try:
                await asyncio.wait_for(self._ending.wait(), retry_s)
            except TimeoutError:
                retry_s = min(_MAX_RETRY_S, 2 * retry_s)

    async def _connect(self) -> MessageBus:
        bus = await connect(session_bus_address())
        try:
            reply = await bus.request_name(OWN_NAME, NameFlag.DO_NOT_QUEUE)
            self.name_taken = reply not in (
                RequestNameReply.PRIMARY_OWNER,
                RequestNameReply.ALREADY_OWNER,
            )
            if not self.name_taken:
                bus.add_message_handler(self._handle)
                for name in {name for part in self.parts for name in part.watched_names}:
                    rule = (
                        f"type='signal',sender='{DBUS}',interface='{DBUS}',"
                        f"member='NameOwnerChanged',arg0='{name}'"
                    )
                    await add_match(bus, rule)
        except BaseException:
            bus.disconnect()
            raise
        return bus

    async def _serve(self, bus: MessageBus) -> None:
        self._bus, self.problem = bus, None
        disconnect = asyncio.ensure_future(bus.wait_for_disconnect())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            for part in self.parts:
                await self._report_failure(part.connected(bus))
            await asyncio.wait((disconnect, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._bus = None
            disconnect.cancel()
            ending.cancel()
            for part in self.parts:
                part.disconnected()
            bus.disconnect()
            await asyncio.gather(disconnect, ending, return_exceptions=True)
        self.problem = "the session bus has ended the connection"

    async def _report_failure(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except Exception as error:
            self.on_failure(error)

    def _handle(self, message: Message) -> Message | bool | None:
        if message.message_type is MessageType.SIGNAL and message.member == "NameOwnerChanged":
            if message.sender == DBUS:
                name, _, owner = message.body
                for part in self.parts:
                    if name in part.watched_names:
                        self._in_background(part.owner_changed(name, bool(owner)))
            return None
        for part in self.parts:
            try:
                answer = part.handle(message)
            except Exception as error:  # another program's call must not end the connection
                self.on_failure(error)
                if message.message_type is not MessageType.METHOD_CALL:
                    return None
                return Message.new_error(message, f"{DBUS}.Error.Failed", str(error))
            if answer is not None:
                return answer
        return None

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._report_failure(coroutine))
        self._tasks.add(task)  # the loop has only weak references to tasks
        task.add_done_callback(self._tasks.discard)


@dataclass
class BusObject:
    """
    A D-Bus object with one interface.

    Args:
        path: object path.
        interface: name of the interface.
        methods: by name: signatures of arguments and answer, and the function that returns the
            answer's values.
        signals: signature of each signal, by name.
        properties: function that returns the current properties as variants.
    """

    path: str
    interface: str
    methods: Mapping[str, Method]
    signals: Mapping[str, str]
    properties: Callable[[], Mapping[str, Variant]]

    def handle(self, message: Message) -> Message | None:
        """Return the answer to a call on this object; None: the call is for another object."""
        if message.message_type is not MessageType.METHOD_CALL or message.path != self.path:
            return None
        if message.interface == _PROPERTIES:
            return self._handle_property_call(message)
        if message.interface == _INTROSPECTABLE and message.member == "Introspect":
            return Message.new_method_return(message, "s", [self._introspection_xml()])
        if message.interface not in (self.interface, None):
            return None
        known = self.methods.get(message.member or "")
        if known is None:
            return _error_reply(message, "UnknownMethod", f"There is no method {message.member}.")
        _, signature, method = known
        try:
            values = method(*message.body)
        except (TypeError, ValueError, LookupError) as error:
            return _error_reply(message, "InvalidArgs", f"{message.member}: {error}")
        return Message.new_method_return(message, signature, values)

    def _handle_property_call(self, message: Message) -> Message:
        if message.member == "GetAll" and message.signature == "s":
            found = dict(self.properties()) if message.body[0] in (self.interface, "") else {}
            return Message.new_method_return(message, "a{sv}", [found])
        if message.member == "Get" and message.signature == "ss":
            interface, name = message.body
            found = dict(self.properties()) if interface in (self.interface, "") else {}
            if name in found:
                return Message.new_method_return(message, "v", [found[name]])
            return _error_reply(message, "UnknownProperty", f"There is no property {name}.")
        if message.member == "Set":
            return _error_reply(message, "PropertyReadOnly", "No property can be set.")
        return _error_reply(message, "UnknownMethod", f"There is no method {message.member}.")

    def _introspection_xml(self) -> str:
        """Return the interface as introspection XML."""
        parts = [
            f'<property name="{name}" type="{value.signature}" access="read"/>'
            for name, value in self.properties().items()
        ]
        for name, (given, answer, _) in self.methods.items():
            arguments = f"{_argument_xml(given, 'in')}{_argument_xml(answer, 'out')}"
            parts.append(f'<method name="{name}">{arguments}</method>')
        for name, given in self.signals.items():
            parts.append(f'<signal name="{name}">{_argument_xml(given)}</signal>')
        inside = "".join(parts)
        return f'{_DOCTYPE}<node><interface name="{self.interface}">{inside}</interface></node>'


def _argument_xml(signature: str, direction: str = "") -> str:
    which = f' direction="{direction}"' if direction else ""
    types = [each.signature for each in SignatureTree(signature).types]
    return "".join(f'<arg type="{each}"{which}/>' for each in types)


def _error_reply(message: Message, name: str, text: str) -> Message:
    return Message.new_error(message, f"org.freedesktop.DBus.Error.{name}", text)


async def has_owner(bus: MessageBus, name: str) -> bool:
    """Return whether the name has an owner on the bus now; does not start a service."""
    found = await call(bus, DBUS, DBUS_PATH, "NameHasOwner", "s", [name])
    return bool(found[0])


async def add_match(bus: MessageBus, rule: str) -> None:
    """Subscribe to the signals that match the rule."""
    await call(bus, DBUS, DBUS_PATH, "AddMatch", "s", [rule])


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else repr(error)
