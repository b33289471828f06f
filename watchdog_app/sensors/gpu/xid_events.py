"""
Xid events through the driver's event set: polled, never waited for. Runs in the child alone.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.sensors.gpu.driver import Driver, DriverError, as_address

_XID_CRITICAL_ERROR = 0x8  # nvmlEventTypeXidCriticalError
_MOST_AT_ONCE = 64


class XidEvents:
    """One event set for all cards. Where there is none (WSL, old cards) nothing comes."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: Any = None
        self._uuids: dict[int, str] = {}
        self._possible = True

    def register(self, handle: Any, uuid: str) -> None:
        """Hear of this card's events too."""
        if not self._possible:
            return
        try:
            if self._set is None:
                self._set = self._driver.ask("nvmlEventSetCreate")
        except DriverError:
            self._possible = False
            return
        try:
            self._driver.ask("nvmlDeviceRegisterEvents", handle, _XID_CRITICAL_ERROR, self._set)
        except DriverError:
            return  # this card has none
        self._uuids[as_address(handle)] = uuid

    def poll(self) -> list[tuple[str | None, int]]:
        """UUID and code of every event since the last time, oldest first."""
        found: list[tuple[str | None, int]] = []
        if not self._uuids:
            return found
        for _ in range(_MOST_AT_ONCE):
            try:
                event = self._driver.ask("nvmlEventSetWait_v2", self._set, 0)
            except DriverError:
                break  # a timeout: none is waiting. A lost card says so by itself.
            if int(event.eventType) & _XID_CRITICAL_ERROR:
                found.append((self._uuids.get(as_address(event.device)), int(event.eventData)))
        return found
