"""
Where the answer to one request goes: at once, or when it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from watchdog_app.daemon.connection import Connection
from watchdog_app.protocol import messages

if TYPE_CHECKING:
    from watchdog_app.daemon.server import Server

Shorter = Callable[[dict[str, Any]], dict[str, Any]]


class Reply:
    """Where the answer to one request goes, now or later. The first answer counts."""

    __slots__ = ("__weakref__", "_connection", "_id", "_server")

    def __init__(self, server: Server, connection: Connection, id_: int | str | None) -> None:
        self._server = server
        self._connection = connection
        self._id = id_

    @property
    def wanted(self) -> bool:
        """Somebody still waits for it."""
        return self._id is not None and not self._connection.closed

    def result(self, value: Any, shorter: Shorter | None = None) -> None:
        """It worked. `shorter`: makes the value fit into a message where it does not."""
        if self._id is not None:
            self._give(messages.result(self._id, value), shorter)

    def error(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        """It did not, and why."""
        if self._id is not None:
            self._give(messages.error(self._id, code, message, data))

    def _give(self, message: dict[str, Any], shorter: Shorter | None = None) -> None:
        self._id = None
        self._server.send(self._connection, message, shorter)
        self._server.answered(self._connection)
