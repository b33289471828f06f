"""
All cards of the driver, one after the other: one that fails hides none. Runs in the child alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from watchdog_app.core.model.hardware import GpuState
from watchdog_app.sensors.gpu.card import Card
from watchdog_app.sensors.gpu.driver import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NOT_FOUND,
    RESET_REQUIRED,
    UNABLE,
    UNINITIALIZED,
    VERSION_MISMATCH,
    Driver,
    DriverError,
)
from watchdog_app.sensors.gpu.pci import short_address
from watchdog_app.sensors.gpu.xid_events import XidEvents

_COUNT_EVERY_S = 10.0
_TRY_AGAIN_S = 10.0  # a card whose handle was refused
# The driver as a whole does not answer any more: begin anew in a new process.
_FATAL = frozenset((UNINITIALIZED, DRIVER_NOT_LOADED, VERSION_MISMATCH))
_STATES = {GPU_IS_LOST: GpuState.LOST, RESET_REQUIRED: GpuState.NEEDS_RESET}

Row = dict[str, Any]


class _Slot:
    """A place in the driver's count, and what is known of who is in it."""

    def __init__(self, index: int, address: str | None) -> None:
        self.index = index
        self.address = address  # where the card was asked for by address: others sleep
        self.card: Card | None = None
        self.instances: list[Card] = []
        self.instances_mono_s: float | None = None
        self.failed: Row | None = None
        self.again_mono_s = 0.0


class Cards:
    """What the driver has, read as a whole."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._slots: list[_Slot] = []
        self._counted_mono_s: float | None = None
        self._awake: list[tuple[int, str]] | None = None
        self.xids = XidEvents(driver)

    def read(
        self,
        now_mono_s: float,
        skip: Collection[int],
        awake: Sequence[Sequence[Any]] | None,
        begin: Callable[[int], None],
        tell: Callable[[Row], None],
    ) -> int:
        """
        Read every card.

        Args:
            now_mono_s: when.
            skip: indices that are not to be touched: the driver hung or crashed on them.
            awake: index and address of the cards that may be asked, others sleep; None: all.
            begin: called before each card is touched.
            tell: gets each card's figures, by the names of core.model.hardware.Gpu.

        Returns:
            How many processes compute.

        Raises:
            DriverError: the driver as a whole does not answer.
        """
        self._count(now_mono_s, awake)
        computing = 0
        for slot in self._slots:
            if slot.index in skip:
                continue
            begin(slot.index)
            for row in self._read_slot(slot, now_mono_s):
                tell(row)
            for card in (slot.card, *slot.instances):
                if card is not None:
                    computing += card.computing
        return computing

    def _count(self, now_mono_s: float, awake: Sequence[Sequence[Any]] | None) -> None:
        asked = None if awake is None else [(int(index), str(at)) for index, at in awake]
        due = self._counted_mono_s is None or now_mono_s - self._counted_mono_s >= _COUNT_EVERY_S
        if not due and asked == self._awake:
            return
        self._counted_mono_s = now_mono_s
        if asked is None:
            count = int(self._driver.ask("nvmlDeviceGetCount"))
            places: list[tuple[int, str | None]] = [(index, None) for index in range(count)]
        else:
            places = list(asked)  # by address: asking by index would wake those that sleep
        if asked != self._awake or len(places) != len(self._slots):
            self._slots = [_Slot(index, address) for index, address in places]
            self._awake = asked

    def _read_slot(self, slot: _Slot, now_mono_s: float) -> list[Row]:
        if slot.failed is not None and now_mono_s < slot.again_mono_s:
            return [slot.failed]
        card = slot.card
        try:
            if card is None:
                card = slot.card = self._open(slot)
            rows = [card.read(now_mono_s)]
        except DriverError as error:
            if error.code in _FATAL:
                raise
            slot.failed = _failed(slot, error)
            slot.card = None if error.code in _STATES else card
            slot.instances, slot.instances_mono_s = [], None
            slot.again_mono_s = now_mono_s + (_TRY_AGAIN_S if slot.card is None else 0.0)
            return [slot.failed]
        slot.failed = None
        if card.partitioned:
            rows += self._read_instances(slot, card, now_mono_s)
        else:
            slot.instances, slot.instances_mono_s = [], None
        return rows

    def _open(self, slot: _Slot) -> Card:
        driver = self._driver
        if slot.address is None:
            handle = driver.ask("nvmlDeviceGetHandleByIndex", slot.index)
        else:
            handle = driver.ask("nvmlDeviceGetHandleByPciBusId", slot.address.encode())
        card = Card(driver, handle, slot.index)
        self.xids.register(card.handle, card.uuid)
        return card

    def _read_instances(self, slot: _Slot, card: Card, now_mono_s: float) -> list[Row]:
        """The MIG instances of a card; one that cannot be read is said in its place."""
        since = slot.instances_mono_s
        if since is None or now_mono_s - since >= _COUNT_EVERY_S:
            slot.instances = self._open_instances(slot.instances, card)
            slot.instances_mono_s = now_mono_s
        rows = []
        for instance in slot.instances:
            try:
                rows.append(instance.read(now_mono_s))
            except DriverError as error:
                if error.code in _FATAL:
                    raise
                rows.append(
                    {
                        "uuid": instance.uuid,
                        "index": instance.index,
                        "name": instance.name,
                        "parent_id": card.uuid,
                        "state": str(_STATES.get(error.code, GpuState.UNREADABLE)),
                        "notes": [f"The driver answers with an error ({error.said})."],
                    }
                )
        return rows

    def _open_instances(self, known: list[Card], card: Card) -> list[Card]:
        found: list[Card] = []
        before = {instance.uuid: instance for instance in known}
        card.why.pop("instances", None)
        try:
            places = int(self._driver.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle))
            for place in range(places):
                try:
                    handle = self._driver.ask(
                        "nvmlDeviceGetMigDeviceHandleByIndex", card.handle, place
                    )
                    fresh = Card(self._driver, handle, card.index, card.uuid)
                except DriverError as error:
                    if error.code == NOT_FOUND:
                        continue
                    raise
                old = before.get(fresh.uuid)
                if old is not None:
                    old.handle = fresh.handle
                found.append(old or fresh)
        except DriverError as error:
            if error.code not in UNABLE:
                card.why["instances"] = f"MIG instances: not all can be read ({error.said})."
        return found


def _failed(slot: _Slot, error: DriverError) -> Row:
    """A card that does not answer, in its own place, with what is known of it."""
    state = _STATES.get(error.code, GpuState.UNREADABLE)
    note = {
        GpuState.LOST: "The driver has lost this GPU: it fell off the bus.",
        GpuState.NEEDS_RESET: "The driver wants this GPU to be reset before it answers again.",
    }.get(state, f"The driver answers with an error ({error.said}).")
    row: Row = {"index": slot.index, "state": str(state), "notes": [note]}
    known = slot.card
    if known is not None:
        row.update(uuid=known.uuid, name=known.name)
        if known.bus_id:
            row["bus_id"] = known.bus_id
    elif slot.failed is not None:
        row.update({key: slot.failed[key] for key in _IDENTITY if key in slot.failed})
    if "bus_id" not in row and slot.address is not None:
        row["bus_id"] = short_address(slot.address) or slot.address
    return row


_IDENTITY = ("uuid", "name", "bus_id")
