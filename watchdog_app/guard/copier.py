"""
Copy a rescue from outside, of a training that is stopped and cannot save itself.

    python -m watchdog_app.guard.copier PID START_TIME DIRECTORY DEADLINE_S REASON FD [FD]

The last arguments are inherited descriptors: of the segment, and of the training's memory, see
`rescue.segment.exchange`. The command prints one line of JSON: `path`, `step`, `bytes` and
`seconds` of the rescue, or `error`.

`check` says whether a copy is possible now, `copy` makes it. The process should be stopped or
frozen meanwhile. In any case the copier checks that the state did not change, before the rescue
becomes valid. The result is what the agent would have written at the boundary that it published,
byte for byte except the times.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from watchdog_app.base.errors import RescueError, WatchdogError
from watchdog_app.base.linux.process import read_statm
from watchdog_app.rescue.checkpoint import run_lock, runs
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.owner import Owner, acting_for
from watchdog_app.rescue.checkpoint.runs import Run
from watchdog_app.rescue.checkpoint.store import RescueStore, SavedRescue
from watchdog_app.rescue.segment import snapshot as snapshots
from watchdog_app.rescue.segment.exchange import Offer
from watchdog_app.rescue.segment.segment import RawSnapshot
from watchdog_app.rescue.segment.snapshot import ProcessMemory, Snapshot, Tensor

REASON = "copied from outside"

State = Literal["ready", "in_step", "none", "damaged"]


class CopyError(WatchdogError):
    """No rescue was copied, and nothing was left behind. The message says why."""


@dataclass(frozen=True, slots=True)
class CopyCheck:
    """
    Whether a training can be copied in its current state.

    `state`: "ready": yes. "in_step": tensors are being changed, or were since the snapshot. "none":
    nothing is published. "damaged": the published data is wrong.
    """

    state: State
    sequence: int = 0
    why: str | None = None  # message, if not ready


def check(training: Offer) -> CopyCheck:
    """
    Whether a training can be copied now, according to its segment.

    Takes a millisecond. Never raises because of the segment's contents.
    """
    try:
        return _check(training)[0]
    except (OSError, WatchdogError) as error:
        return CopyCheck("damaged", why=str(error))


def copy(training: Offer, deadline_s: float = 60.0, reason: str = REASON) -> SavedRescue:
    """
    Copy the state of a training into a rescue among its own.

    Args:
        training: should be frozen or stopped; if it runs meanwhile, nothing is saved.
        deadline_s: from now.
        reason: recorded in the rescue.

    Raises:
        CopyError: it cannot be copied in its current state, the disk is full, or time is up.
    """
    end_mono_s = time.monotonic() + deadline_s
    try:
        checked, snapshot = _check(training)
        if snapshot is None or training.memory_fd is None:
            raise CopyError(f"process {training.pid} cannot be copied: {checked.why}")
        _check_directory(training, snapshot.directory)
        memory = ProcessMemory(training.memory_fd)

        def progress(done: int, total: int) -> None:
            if time.monotonic() > end_mono_s:
                raise CopyError(f"the time was up with {done} of {total} bytes written")
            if done >= total:  # everything is read, and the rescue is not valid yet
                _check_unchanged(training, checked.sequence, _detect_change(snapshot, memory))

        return _write_rescue(snapshot, memory, progress, reason)
    except (OSError, WatchdogError) as error:
        if isinstance(error, CopyError):
            raise
        raise CopyError(f"process {training.pid} was not copied: {error}") from error


def _check(training: Offer) -> tuple[CopyCheck, Snapshot | None]:
    """
    Whether a training can be copied, and its snapshot if so.

    Raises:
        OSError, SegmentDamaged, SnapshotDamaged: the published data is wrong.
    """
    segment = training.segment
    sequence = segment.sequence
    why = "it has ended" if training.has_ended else segment.reason
    if why is not None:
        return CopyCheck("none", sequence, why), None
    published = segment.newest()
    if sequence % 2 or (published is not None and published.sequence != sequence):
        late = "it has published nothing yet"
        if published is not None:
            late = f"it has trained since step {published.step}, the last published"
        return CopyCheck("in_step", sequence, late), None
    if published is None or training.memory_fd is None:
        return CopyCheck("none", sequence, "it has published nothing yet"), None
    snapshot = _read_snapshot(training.pid, published)
    why = _detect_change(snapshot, ProcessMemory(training.memory_fd))
    if why is not None:
        return CopyCheck("in_step", sequence, why), None
    return CopyCheck("ready", sequence), snapshot


def _read_snapshot(pid: int, raw: RawSnapshot) -> Snapshot:
    """
    The snapshot; its tensors cannot exceed the size of the process.

    Raises:
        SnapshotDamaged: the published data is wrong.
    """
    statm = read_statm(pid)  # no state can be larger than the address space
    return snapshots.read(raw.body, most_bytes=0 if statm is None else statm.size_bytes)


def _detect_change(snapshot: Snapshot, memory: ProcessMemory) -> str | None:
    """Why the large tensors differ from the published ones; None if they do not."""
    for marker in snapshot.markers:
        if int.from_bytes(memory.read([(marker.address, 8)]), "little") != marker.value:
            return "its step has begun to change the weights"
    large = [(each.address, each.nbytes) for each in snapshot.tensors if each.address is not None]
    if memory.read(snapshots.sample_ranges(large)) != snapshot.samples:
        return "its weights have been changed since the last boundary"
    return None


def _check_unchanged(training: Offer, sequence: int, why: str | None) -> None:
    """
    Check that the training has not moved, before the rescue becomes valid.

    Args:
        training: the training.
        sequence: of its segment when the copy began.
        why: why its memory is not that of the snapshot; None if it is.

    Raises:
        CopyError: the training has moved meanwhile.
    """
    if training.segment.sequence != sequence:
        raise CopyError(f"process {training.pid} went on while it was copied")
    if why is not None or training.has_ended:
        raise CopyError(
            f"process {training.pid} went on while it was copied: {why or 'it has ended'}"
        )


def _check_directory(training: Offer, named: str) -> None:
    """
    Check that the rescue goes to the folder that the training itself writes to.

    Raises:
        CopyError: the folder is not the one that was offered, or not this user's.
    """
    if os.path.realpath(named) != os.path.realpath(training.directory):
        raise CopyError(
            f"its segment names the folder {named!r}, and its agent had offered "
            f"{training.directory!r}"
        )
    found = os.lstat(named)
    owner = os.stat(f"/proc/{training.pid}").st_uid
    if not stat.S_ISDIR(found.st_mode) or owner != os.geteuid() or found.st_uid != owner:
        raise CopyError(
            f"the folder {named!r} is not one of the user that process {training.pid} belongs to"
        )


def _write_rescue(
    snapshot: Snapshot, memory: ProcessMemory, progress: Callable[[int, int], None], reason: str
) -> SavedRescue:
    """
    Write the rescue into the snapshot's folder under its owner's name; prune older rescues.

    Raises:
        RescueError: the disk refused.
        OSError: a tensor cannot be read.
    """
    owner = Owner.parse(snapshot.owner)
    if owner is None:
        raise RescueError(f"{snapshot.owner!r} is no owner of rescues.")
    meta = {**snapshot.meta, "reason": reason}
    with acting_for(owner):
        store = RescueStore(snapshot.directory, snapshot.keep, run=_run_of_snapshot(snapshot))
        try:
            entries = [_tensor_entry(each, memory) for each in snapshot.tensors]
            return store.save(entries, meta, progress, step=snapshot.step)
        finally:
            store.close()


def _run_of_snapshot(snapshot: Snapshot) -> Run | None:
    """The run that the training has recorded; the training keeps its lock."""
    noted = snapshot.meta.get(runs.KEY)
    run = noted.get("id") if isinstance(noted, dict) else None
    known = isinstance(run, str) and run_lock.ID.fullmatch(run) is not None
    return Run(str(run), snapshot.directory) if known else None


def _tensor_entry(tensor: Tensor, memory: ProcessMemory) -> TensorEntry:
    about = (tensor.name, tensor.dtype, tensor.shape, tensor.nbytes)
    value, begin = tensor.value, tensor.address
    if begin is None:
        return TensorEntry(*about, lambda: memoryview(value or b""))

    def fill(place: memoryview, at: int) -> None:
        memory.read_into(place, begin + at)

    return TensorEntry(*about, _no_local_data, fill)


def _no_local_data() -> memoryview:
    raise RescueError("This tensor lies in another process.")


def main(arguments: Sequence[str]) -> int:
    """Copy the process in `arguments`; return 0 if a rescue was saved."""
    pid, start_time, directory, deadline_s, reason, *fds = arguments
    try:
        training = Offer(int(pid), int(start_time), directory, [int(each) for each in fds])
        saved = copy(training, float(deadline_s), reason)
    except (OSError, WatchdogError) as error:
        print(json.dumps({"error": str(error)}))
        return 1
    found = {"path": saved.path, "step": saved.step, "bytes": saved.bytes}
    print(json.dumps({**found, "seconds": saved.seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
