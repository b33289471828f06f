"""
What a bag may hold: its limit as somebody wishes it, or as the machine can give it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from watchdog_app.airbag import groups, shares
from watchdog_app.airbag import record as records
from watchdog_app.airbag.policy import Stage
from watchdog_app.base.errors import ActionError
from watchdog_app.base.text.quantities import format_bytes, parse_bytes, size_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from watchdog_app.airbag.groups import Bag
    from watchdog_app.airbag.record import BagRecord

_BATCH_BYTES = 1 << 20  # what processors have charged beforehand


class Limits:
    """
    Those of one bag. `limit_bytes` is without any reserve, and is in the record as well.
    """

    def __init__(self, bag: Bag, record: BagRecord) -> None:
        self._bag = bag
        self._record = record

    @property
    def limit_bytes(self) -> int:
        """What it may hold before anything is done about it."""
        return self._record.limit_bytes

    def allow(self, bytes_: int) -> None:
        """So much from now on, the reserve or a part of it included."""
        with suppress(OSError):
            try:
                self._bag.allow(bytes_)
            except OSError:  # v1 refuses a limit below what is used: then exactly that
                self._bag.allow(self._bag.usage().used_bytes + _BATCH_BYTES)

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
        self._bag.release()

    def wanted(self, wish: dict[str, Any]) -> tuple[int, int]:
        """
        The limit that somebody wishes, and what the bag holds now.

        Raises:
            ActionError: it is no limit, too little for anything, or more than there is.
        """
        free = self._free()
        held = self._bag.usage().held_bytes
        most = held + free.free_bytes
        wanted = wish.get("limit_bytes")
        if wish.get("more") is True:  # a button: as much as the report says, or as there is
            wanted = min(parse_bytes(size_above(max(self.limit_bytes, held))), most)
        if isinstance(wanted, bool) or not isinstance(wanted, int):
            raise ActionError("That is no wish that this keeper knows.")
        if wanted < groups.LEAST_LIMIT_BYTES:
            raise ActionError(
                f"A limit below {format_bytes(groups.LEAST_LIMIT_BYTES)} holds no program at all."
            )
        if wanted > most:
            raise ActionError(
                f"{format_bytes(wanted)} is more than there is: {self._record.name} holds "
                f"{format_bytes(held)}, and {format_bytes(free.free_bytes)} are free. "
                "End something else first, or give less."
            )
        return wanted, held

    def by_machine(self, held_bytes: int, agents: int, stage: Stage) -> int:
        """What a bag that was given no limit may hold now, beside all others like it."""
        own = self._holder(self._record, held_bytes, agents, stage.value)
        others = [
            self._holder(each, each.used_bytes, each.agents, each.stage)
            for each in records.every()
            if each.follows_machine and each.folder != self._record.folder
        ]
        return shares.limit_of(own.key, [own, *others], self._free())

    def _free(self) -> shares.Free:
        return shares.free_now(self._bag.path)

    @staticmethod
    def _holder(record: BagRecord, held_bytes: int, agents: int, stage: str) -> shares.Holder:
        return shares.Holder(
            os.path.basename(record.folder),
            held_bytes,
            record.reserve_bytes,
            record.saved_unix_s,
            agents,
            stage == Stage.HELD.value,
        )
