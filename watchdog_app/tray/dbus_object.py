"""What every object on the bus answers: its properties, and what it is made of."""

from __future__ import annotations

from dbus_fast import Message, MessageType, Variant
from dbus_fast.signature import SignatureTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Method = tuple[str, str, Callable[..., list[Any]]]

_PROPERTIES = "org.freedesktop.DBus.Properties"
_INTROSPECTABLE = "org.freedesktop.DBus.Introspectable"
_DOCTYPE = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN" '
    '"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)


class BusObject:
    """
    One object with one interface of its own.

    Args:
        path: where it is.
        interface: its name.
        methods: by name: signatures of arguments and answer, and what makes the answer's values.
        signals: signature of each signal by its name.
        properties: the values now, each with its type.
    """

    def __init__(
        self,
        path: str,
        interface: str,
        methods: Mapping[str, Method],
        signals: Mapping[str, str],
        properties: Callable[[], Mapping[str, Variant]],
    ) -> None:
        self.path = path
        self.interface = interface
        self._methods = methods
        self._signals = signals
        self._properties = properties

    def handle(self, message: Message) -> Message | None:
        """The answer to a call on this object; None: the call is for another."""
        if message.message_type is not MessageType.METHOD_CALL or message.path != self.path:
            return None
        if message.interface == _PROPERTIES:
            return self._handle_property_call(message)
        if message.interface == _INTROSPECTABLE and message.member == "Introspect":
            return Message.new_method_return(message, "s", [self._introspection_xml()])
        if message.interface not in (self.interface, None):
            return None
        known = self._methods.get(message.member or "")
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
            found = dict(self._properties()) if message.body[0] in (self.interface, "") else {}
            return Message.new_method_return(message, "a{sv}", [found])
        if message.member == "Get" and message.signature == "ss":
            interface, name = message.body
            found = dict(self._properties()) if interface in (self.interface, "") else {}
            if name in found:
                return Message.new_method_return(message, "v", [found[name]])
            return _error_reply(message, "UnknownProperty", f"There is no property {name}.")
        if message.member == "Set":
            return _error_reply(message, "PropertyReadOnly", "No property can be set.")
        return _error_reply(message, "UnknownMethod", f"There is no method {message.member}.")

    def _introspection_xml(self) -> str:
        """The interface in XML, as introspection returns it."""
        parts = [
            f'<property name="{name}" type="{value.signature}" access="read"/>'
            for name, value in self._properties().items()
        ]
        for name, (given, answer, _) in self._methods.items():
            arguments = f"{_argument_xml(given, 'in')}{_argument_xml(answer, 'out')}"
            parts.append(f'<method name="{name}">{arguments}</method>')
        for name, given in self._signals.items():
            parts.append(f'<signal name="{name}">{_argument_xml(given)}</signal>')
        inside = "".join(parts)
        return f'{_DOCTYPE}<node><interface name="{self.interface}">{inside}</interface></node>'


def _argument_xml(signature: str, direction: str = "") -> str:
    which = f' direction="{direction}"' if direction else ""
    types = [each.signature for each in SignatureTree(signature).types]
    return "".join(f'<arg type="{each}"{which}/>' for each in types)


def _error_reply(message: Message, name: str, text: str) -> Message:
    return Message.new_error(message, f"org.freedesktop.DBus.Error.{name}", text)
