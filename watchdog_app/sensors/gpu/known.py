"""
The cards that have been seen, and their last figures as long as those may be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.core.model.hardware import Gpu, GpuProcess, GpuState
from watchdog_app.sensors.gpu import answer
from watchdog_app.sensors.gpu.pci import PciCard, short_address

# A card that the driver no longer lists is shown as lost for so long.
_MISSED_S = 3600.0
UNKNOWN_CARD = "GPU-unknown-"
_LOOK_UP_S = 5.0  # whether the pids of a list are still processes of ours
_MOVED_BYTES = 32 * 1024**2  # a desktop's windows move less
_MOVED_S = 60.0
_ASLEEP = "It sleeps, powered down by the system, and is left alone."
_SILENT = "The driver has not answered in time: its figures are not known."
_AVOIDED = "The driver hung or crashed when asked about this GPU; it is asked again later."
_MISSING = "The driver no longer lists this GPU."
_LEFT_ALONE = "It was not read for a while: nobody uses it, and so it may sleep."
_BROKEN = (GpuState.LOST, GpuState.NEEDS_RESET)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A list of processes as it came, and what was made of it."""

    rows: Sequence[Sequence[Any]]
    processes: tuple[GpuProcess, ...]
    mono_s: float


class KnownCards:
    """Last figures by UUID; identity by index for a card that cannot say who it is."""

    def __init__(self, foreign: Callable[[int], bool]) -> None:
        self._foreign = foreign
        self._gpus: dict[str, Gpu] = {}
        self._coming: dict[str, Gpu] = {}
        self._missing_since: dict[str, float] = {}
        # Cards that the last reading left out on purpose, and how they are shown until they are
        # read again.
        self._left_out: dict[str, GpuState] = {}
        self._lists: dict[str, _Listed] = {}
        self.read_mono_s: float | None = None
        self.computing = 0
        self._moved_mono_s: float | None = None

    @property
    def in_use(self) -> bool:
        """Somebody was on a card at the last reading."""
        return any(gpu.processes for gpu in self._gpus.values())

    def at_work(self, now_mono_s: float) -> bool:
        """
        Somebody computes on a card, or its memory has moved lately.

        The second, because in containers and in WSL the driver does not say who computes.
        """
        moved = self._moved_mono_s
        return bool(self.computing) or (moved is not None and now_mono_s - moved <= _MOVED_S)

    @property
    def any(self) -> bool:
        """A card has been seen."""
        return bool(self._gpus)

    @property
    def any_broken(self) -> bool:
        """A card is lost or needs a reset."""
        return any(gpu.state in _BROKEN for gpu in self._gpus.values())

    @property
    def all_broken(self) -> bool:
        """No card can do any work."""
        return bool(self._gpus) and all(gpu.state in _BROKEN for gpu in self._gpus.values())

    def current(self, now_mono_s: float, fresh_s: float) -> bool:
        """Whether the last figures may still be shown."""
        return self.read_mono_s is not None and now_mono_s - self.read_mono_s <= fresh_s

    def address_of(self, uuid: str | None) -> str | None:
        """Where a card is on the bus."""
        gpu = self._gpus.get(uuid or "")
        return short_address(gpu.bus_id) if gpu is not None else None

    def take(self, row: Mapping[str, Any], now_mono_s: float) -> None:
        """
        One card of the reading that is coming in.

        Raises:
            ValueError, TypeError, KeyError: that is no card.
        """
        gpu = answer.card(row, self._running(row, now_mono_s))
        last = self._gpus.get(gpu.id)
        if last is not None and _moved(last, gpu):
            self._moved_mono_s = now_mono_s
        if not gpu.id:
            gpu = self._identified(gpu)
        before = self._coming.get(gpu.id)
        if before is not None and before.index != gpu.index:
            # Two cards with one name, from a driver that is out of order: none hides the other.
            gpu = replace(gpu, id=f"{gpu.id}#{gpu.index}")
        self._coming[gpu.id] = gpu
        # Shown at once: the cards behind it may take the driver down.
        self._gpus[gpu.id] = gpu
        self._missing_since.pop(gpu.id, None)
        self._left_out.pop(gpu.id, None)

    def end(
        self,
        asked_mono_s: float,
        computing: int,
        left_out: Callable[[int], GpuState | None] = lambda _: None,
    ) -> None:
        """
        The reading is complete.

        Args:
            asked_mono_s: its figures were true after that.
            computing: how many processes compute.
            left_out: by index how a card counts of which nobody asked; None: it was asked.
        """
        self.read_mono_s = asked_mono_s
        self.computing = computing
        for uuid in self._gpus.keys() - self._coming.keys():
            state = left_out(self._gpus[uuid].index)
            if state is None:
                self._missing_since.setdefault(uuid, asked_mono_s)
                self._left_out.pop(uuid, None)
            else:
                self._left_out[uuid] = state
        self._coming = {}

    def look(
        self,
        now_mono_s: float,
        fresh_s: float,
        ill: bool,
        avoided: Collection[int],
        on_bus: Sequence[PciCard],
    ) -> tuple[Gpu, ...]:
        """
        Every card as it can be shown now, by index, MIG instances behind their card.

        Args:
            now_mono_s: now.
            fresh_s: figures older than this are not shown.
            ill: the reader has failed, and none has read everything since.
            avoided: indices of the cards that are not asked about.
            on_bus: the cards as the kernel lists them.
        """
        places = {card.address: card for card in on_bus}
        old = not self.current(now_mono_s, fresh_s)
        shown: list[Gpu] = []
        mine = [card.address for card in on_bus if card.driver in (None, "nvidia")]
        for uuid, known in list(self._gpus.items()):
            gpu = known
            if gpu.bus_id is None and gpu.parent_id is None and gpu.index < len(mine):
                # Lost before it could say where it is; the driver counts by address.
                gpu = replace(gpu, bus_id=f"0000{mine[gpu.index]}")
            place = places.get(short_address(gpu.bus_id) or "")
            since = self._missing_since.get(uuid)
            if place is not None and place.asleep:
                shown.append(_without_figures(gpu, GpuState.ASLEEP, _ASLEEP))
            elif gpu.index in avoided:
                shown.append(_without_figures(gpu, GpuState.SILENT, _AVOIDED))
            elif since is not None:
                if self._gone(gpu, place, now_mono_s - since):
                    del self._gpus[uuid]
                    self._lists.pop(uuid, None)
                    self._missing_since.pop(uuid)
                    self._left_out.pop(uuid, None)
                    continue
                shown.append(_without_figures(gpu, GpuState.LOST, _MISSING))
            elif gpu.state is GpuState.OK and uuid in self._left_out:
                state = self._left_out[uuid]
                why = _AVOIDED if state is GpuState.SILENT else _LEFT_ALONE
                shown.append(_without_figures(gpu, state, why))
            elif gpu.state is GpuState.OK and old:
                state, why = (GpuState.SILENT, _SILENT) if ill else (GpuState.OK, _LEFT_ALONE)
                shown.append(_without_figures(gpu, state, why))
            else:
                shown.append(gpu)
        seen = {short_address(gpu.bus_id) for gpu in shown}
        for index, card in enumerate(on_bus):
            if card.asleep and card.address not in seen:
                shown.append(
                    Gpu(
                        id=f"PCI-{card.address}",
                        index=index,
                        name="NVIDIA GPU",
                        bus_id=f"0000{card.address}",
                        state=GpuState.ASLEEP,
                        notes=(_ASLEEP,),
                    )
                )
        shown.sort(key=lambda gpu: (gpu.index, gpu.parent_id is not None))
        return _numbered(_by_address(shown))

    def _running(self, row: Mapping[str, Any], now_mono_s: float) -> tuple[GpuProcess, ...]:
        """Its processes; the reader repeats a list until it has a new one."""
        rows, uuid = row.get("processes", ()), str(row.get("uuid"))
        last = self._lists.get(uuid)
        if last is None or last.rows != rows or now_mono_s - last.mono_s >= _LOOK_UP_S:
            last = _Listed(rows, answer.processes(rows, self._foreign), now_mono_s)
            self._lists[uuid] = last
        return last.processes

    def _gone(self, gpu: Gpu, place: PciCard | None, missing_s: float) -> bool:
        """Whether a card that is not listed any more is simply not there: no fault."""
        if gpu.parent_id is not None:
            return True  # a MIG instance was taken down
        if gpu.id.startswith(UNKNOWN_CARD):
            return True  # it has said who it is since
        if place is not None and place.driver not in (None, "nvidia"):
            return True  # given to another driver, a virtual machine's say
        return missing_s > _MISSED_S

    def _identified(self, gpu: Gpu) -> Gpu:
        """A card that cannot say who it is: the one that was last in its place."""
        for known in self._gpus.values():
            if known.index == gpu.index and known.parent_id is None:
                return replace(
                    gpu,
                    id=known.id,
                    uuid=known.uuid,
                    name=known.name,
                    bus_id=gpu.bus_id or known.bus_id,
                )
        return replace(gpu, id=f"{UNKNOWN_CARD}{gpu.index}")


def _by_address(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The same, by their PCI addresses in place of what the driver calls them."""
    ids = {gpu.id: short_address(gpu.bus_id) or gpu.id for gpu in gpus if gpu.parent_id is None}
    found = []
    for gpu in gpus:
        parent = None if gpu.parent_id is None else ids.get(gpu.parent_id, gpu.parent_id)
        where = ids[gpu.id] if parent is None else f"{parent}/{gpu.id}"
        found.append(replace(gpu, id=where, parent_id=parent))
    return found


def _numbered(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The same, the parts of each card counted: they have one index and one name."""
    seen: dict[str, int] = {}
    found = []
    for gpu in gpus:
        if gpu.parent_id is None:
            found.append(gpu)
            continue
        number = seen.get(gpu.parent_id, 0)
        seen[gpu.parent_id] = number + 1
        found.append(replace(gpu, part=number))
    return tuple(found)


def _moved(before: Gpu, now: Gpu) -> bool:
    one, other = before.memory_used_bytes, now.memory_used_bytes
    return one is not None and other is not None and abs(other - one) >= _MOVED_BYTES


def _without_figures(gpu: Gpu, state: GpuState, note: str) -> Gpu:
    """Who it is, and why nothing else is known."""
    return Gpu(
        id=gpu.id,
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        bus_id=gpu.bus_id,
        parent_id=gpu.parent_id,
        state=state,
        unified_memory=gpu.unified_memory,
        notes=(note,),
    )
