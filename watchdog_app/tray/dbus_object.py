"""What every object on the bus answers: its properties, and what it is made of."""

from __future__ import annotations

from dbus_fast import Message, MessageType, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_PROPERTIES = "org.freedesktop.DBus.Properties"
_INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"
_HEAD = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN" '
    '"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)


class BusObject:
    """
    One object with one interface of its own.

    Args:
        path: where it is.
        interface: its name.
        methods: by name: signature of the answer, and what makes the answer's values of the
            call's.
        properties: the values now, each with its type.
        xml: what stands inside the interface's element for whoever introspects it.
    """

    def __init__(
        self,
        path: str,
        interface: str,
        methods: Mapping[str, tuple[str, Callable[..., list[Any]]]],
        properties: Callable[[], Mapping[str, Variant]],
        xml: str,
    ) -> None:
        self.path = path
        self.interface = interface
        self._methods = methods
        self._properties = properties
        self._xml = f'{_HEAD}<node><interface name="{interface}">{xml}</interface></node>'

    def handle(self, message: Message) -> Message | None:
        """The answer to a call on this object; None: the call is for another."""
        if message.message_type is not MessageType.METHOD_CALL or message.path != self.path:
            return None
        if message.interface == _PROPERTIES:
            return self._property(message)
        if message.interface == _INTROSPECTABLE and message.member == "Introspect":
            return Message.new_method_return(message, "s", [self._xml])
        if message.interface not in (self.interface, None):
            return None
        known = self._methods.get(message.member or "")
        if known is None:
            return _error(message, "UnknownMethod", f"There is no method {message.member}.")
        signature, method = known
        try:
            values = method(*message.body)
        except (TypeError, ValueError, LookupError) as error:
            return _error(message, "InvalidArgs", f"{message.member}: {error}")
        return Message.new_method_return(message, signature, values)

    def _property(self, message: Message) -> Message:
        if message.member == "GetAll" and message.signature == "s":
            found = dict(self._properties()) if message.body[0] in (self.interface, "") else {}
            return Message.new_method_return(message, "a{sv}", [found])
        if message.member == "Get" and message.signature == "ss":
            interface, name = message.body
            found = dict(self._properties()) if interface in (self.interface, "") else {}
            if name in found:
                return Message.new_method_return(message, "v", [found[name]])
            return _error(message, "UnknownProperty", f"There is no property {name}.")
        if message.member == "Set":
            return _error(message, "PropertyReadOnly", "No property can be set.")
        return _error(message, "UnknownMethod", f"There is no method {message.member}.")


def _error(message: Message, name: str, text: str) -> Message:
    return Message.new_error(message, f"org.freedesktop.DBus.Error.{name}", text)
