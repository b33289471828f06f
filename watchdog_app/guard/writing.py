"""A table of somebody else's tensors, written as the rescue that their owner would have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import run_lock, runs
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.owner import Owner, acting_for
from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.segment.memory import ForeignMemory
from watchdog_app.rescue.segment.snapshot import Snapshot, Tensor


@dataclass(frozen=True, slots=True)
class _Remote(TensorEntry):
    """A tensor that is read piece by piece from where it lies; see `stream.FilledPart`."""

    fill: Callable[[memoryview, int], None]


def write(
    table: Snapshot, memory: ForeignMemory, progress: Callable[[int, int], None], reason: str
) -> SavedRescue:
    """
    Into the folder that the table names, under its owner's name; older rescues are pruned.

    Args:
        table: of a training that stands still.
        memory: of its process.
        progress: called with bytes done and in all; what it raises ends the save, and the last
            call comes before the rescue begins to count.
        reason: as the rescue tells it.

    Raises:
        RescueError: the disk refused.
        OSError: a tensor cannot be read.
    """
    owner = Owner.parse(table.owner)
    if owner is None:
        raise RescueError(f"{table.owner!r} is no owner of rescues.")
    meta = {**table.meta, "reason": reason}
    with acting_for(owner):
        store = RescueStore(table.directory, table.keep, run=_run(table))
        try:
            entries = [_entry(each, memory) for each in table.tensors]
            return store.save(entries, meta, progress, step=table.step)
        finally:
            store.close()


def _run(table: Snapshot) -> Run | None:
    """The run that the training has said to be; its lock is the training's."""
    told = table.meta.get(runs.KEY)
    run = told.get("id") if isinstance(told, dict) else None
    known = isinstance(run, str) and run_lock.ID.fullmatch(run) is not None
    return Run(str(run), table.directory) if known else None


def _entry(tensor: Tensor, memory: ForeignMemory) -> TensorEntry:
    about = (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes)
    value, begin = tensor.value, tensor.address
    if begin is None:
        return TensorEntry(*about, lambda: memoryview(value or b""))

    def fill(place: memoryview, at: int) -> None:
        memory.read_into(place, begin + at)

    return _Remote(*about, _nowhere, fill)


def _nowhere() -> memoryview:
    raise RescueError("This tensor lies in another process.")
