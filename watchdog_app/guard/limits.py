"""
What a guard may hold: its limit as somebody requests it, or as the machine can give it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.base.errors import ActionError
from watchdog_app.base.text.quantities import format_bytes, parse_bytes, size_above
from watchdog_app.guard import cgroup, shares
from watchdog_app.guard import record as records
from watchdog_app.guard.policy import Stage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from watchdog_app.guard.cgroup import Cgroup
    from watchdog_app.guard.record import GuardRecord

_BATCH_BYTES = 1 << 20  # what processors have charged beforehand


class Limits:
    """
    Those of one guard. `limit_bytes` is without any reserve, and is in the record as well.
    """

    def __init__(self, guard: Cgroup, record: GuardRecord) -> None:
        self._guard = guard
        self._record = record

    @property
    def limit_bytes(self) -> int:
        """What it may hold before anything is done about it."""
        return self._record.limit_bytes

    def allow(self, bytes_: int) -> None:
        """So much from now on, the reserve or a part of it included."""
        with suppress(OSError):
            try:
                self._guard.allow(bytes_)
            except OSError:  # v1 refuses a limit below what is used: then exactly that
                self._guard.allow(self._guard.usage().used_bytes + _BATCH_BYTES)

    def set(self, bytes_: int) -> None:
        """Another limit."""
        self._record.limit_bytes = bytes_
        self.allow(bytes_)

    def keep_for(self, state_bytes: int) -> None:
        """A reserve that carries the save of so much, where there is room; never a smaller one."""
        record = self._record
        wanted = shares.reserve_for(state_bytes)
        if record.follows_state and wanted > record.reserve_bytes:
            free = self._free()
            spare = free.free_bytes - free.margin_bytes
            record.reserve_bytes = max(record.reserve_bytes, min(wanted, spare))

    def open_up(self, held_bytes: int) -> None:
        """All that the machine has; where that ends the kernel kills."""
        free = self._free()
        self.set(held_bytes + max(0, free.free_bytes - free.margin_bytes // 2))
        self._guard.release()

    def wanted(self, request: dict[str, Any]) -> tuple[int, int]:
        """
        The limit that somebody requests, and what the guard holds now.

        Raises:
            ActionError: it is no limit, too little for anything, or more than there is.
        """
        free = self._free()
        held = self._guard.usage().held_bytes
        most = held + free.free_bytes
        wanted = request.get("limit_bytes")
        if request.get("more") is True:  # a button: as much as the report says, or as there is
            wanted = min(parse_bytes(size_above(max(self.limit_bytes, held))), most)
        if isinstance(wanted, bool) or not isinstance(wanted, int):
            raise ActionError("That is no request that this supervisor knows.")
        if wanted < cgroup.LEAST_LIMIT_BYTES:
            raise ActionError(
                f"A limit below {format_bytes(cgroup.LEAST_LIMIT_BYTES)} holds no program at all."
            )
        if wanted > most:
            raise ActionError(
                f"{format_bytes(wanted)} is more than there is: {self._record.name} holds "
                f"{format_bytes(held)}, and {format_bytes(free.free_bytes)} are free. "
                "End something else first, or give less."
            )
        return wanted, held

    def by_machine(self, held_bytes: int, agents: int, stage: Stage) -> int:
        """What a guard that was given no limit may hold now, beside all others like it."""
        own = self._holder(self._record, held_bytes, agents, stage.value)
        others = [
            self._holder(each, each.used_bytes, each.agents, each.stage)
            for each in records.every()
            if each.follows_machine and each.folder != self._record.folder
        ]
        return shares.limit_of(own.key, [own, *others], self._free())

    def _free(self) -> shares.Free:
        return shares.free_now(self._guard.path)

    @staticmethod
    def _holder(record: GuardRecord, held_bytes: int, agents: int, stage: str) -> shares.Holder:
        return shares.Holder(
            os.path.basename(record.folder),
            held_bytes,
            record.reserve_bytes,
            record.saved_unix_s,
            agents,
            stage == Stage.HELD.value,
        )
