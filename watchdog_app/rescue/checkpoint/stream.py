"""
Write tensors to a file without a second copy of them.

Two page-aligned buffers of 1 MiB are allocated beforehand. The calling thread copies the next bytes
into one buffer and computes their checksum; a background thread writes the other. Measured on ext4
on NVMe with 100 MB: 45 ms, against 66 ms with one buffer and 55 ms for a plain write with fsync of
the same bytes.
"""

from __future__ import annotations

import _thread
import errno
import os
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

from watchdog_app.base import signals
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint import sink as sinks
from watchdog_app.rescue.checkpoint.format import TensorEntry
from watchdog_app.rescue.checkpoint.sink import private_memory

CHUNK_BYTES = 1024 * 1024

# During a save, threads switch this often instead of every 5 ms. With another busy Python thread (a
# data generator), 100 MB took 0.07 s instead of 0.9 s.
_SWITCH_INTERVAL_S = 0.0001

Progress = Callable[[int, int], None]
# errno: (what happened, what to do); {folder} is filled in.
_MESSAGES = {
    errno.ENOSPC: (
        "The disk that holds {folder} is full.",
        "Free space there, or give Rescue a folder on another disk.",
    ),
    errno.EDQUOT: (
        "Your quota on the disk that holds {folder} is used up.",
        "Delete files of yours there, or give Rescue a folder on another disk.",
    ),
    errno.EFBIG: (
        "The rescue is bigger than a file in {folder} may be.",
        "Raise the limit on file sizes (ulimit -f), or give Rescue a folder on another disk.",
    ),
    errno.EACCES: (
        "This user may not write to {folder}.",
        "Give Rescue a folder of your own, or change the folder's permissions.",
    ),
    errno.ENOTDIR: (
        "A part of the path {folder} is a file, not a folder.",
        "Give Rescue another folder.",
    ),
    errno.ENOENT: (
        "The folder {folder} has vanished.",
        "Do not move or delete it while the training runs; the next save will make it again.",
    ),
    errno.EIO: (
        "The disk that holds {folder} failed while it was written.",
        "Look at the kernel's messages (dmesg) and give Rescue a folder on another disk.",
    ),
    errno.ENOMEM: (
        "There was not even the little memory that writing a rescue takes.",
        "Stop something, or give the training a higher limit.",
    ),
    errno.EMFILE: (
        "This process has as many files open as it may have.",
        "Raise the limit on open files (ulimit -n), or close some.",
    ),
}
_ALIASES = {
    errno.EPERM: errno.EACCES,
    errno.EEXIST: errno.ENOTDIR,
    errno.ENFILE: errno.EMFILE,
    errno.ESTALE: errno.EIO,
}


class Streamer:
    """
    Writes files, one at a time, with buffers that it keeps for its whole life.

    Extra memory: 2 MiB and one idle thread, from `prepare` on. After a fork the child's copy starts
    its own thread at its first write.
    """

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        if chunk_bytes <= 0 or chunk_bytes % sinks.BLOCK_BYTES:
            raise ValueError(f"chunk_bytes must be a multiple of {sinks.BLOCK_BYTES}")
        self._chunk_bytes = chunk_bytes
        self._buffers: tuple[memoryview, memoryview] | None = None
        self._worker: Worker | None = None
        self._busy = _thread.allocate_lock()
        _streamers.add(self)

    def prepare(self) -> None:
        """Allocate and touch everything that `write` needs. Cheap if nothing is missing."""
        sinks.load_sync_file_range()
        if self._buffers is None:
            memory = memoryview(private_memory(2 * self._chunk_bytes))
            self._buffers = (memory[: self._chunk_bytes], memory[self._chunk_bytes :])
        if self._worker is None or not self._worker.alive:
            self._worker = Worker()
            weakref.finalize(self, self._worker.stop).atexit = False

    def write(
        self,
        path: str,
        parts: Iterable[TensorEntry],
        progress: Progress | None = None,
        *,
        total_bytes: int = 0,
    ) -> dict[str, int]:
        """
        Write a new file at `path` with the parts one after the other.

        Returns after the last byte is handed over. After `wait_idle` the file is durable, or its
        error is known.

        Args:
            path: must not exist; removed again on any failure.
            parts: written in this order.
            progress: called in this thread with (bytes done, `total_bytes`).
            total_bytes: passed on to `progress`.

        Returns:
            The CRC-32 of each part, by name.

        Raises:
            RescueError: the disk refused, with a message and a remedy (`SaveFailed`); or a part's
                view does not match its description.
            Exception: any error of a part's `view`.
        """
        with self._new_file(path) as (worker, sink):
            checksums = self._fill(worker, sink, parts, progress, total_bytes)
            worker.acquire_slot()
            worker.submit(sink.finish)
        return checksums

    def write_small(self, path: str, data: bytes) -> None:
        """
        Write a new durable file in this thread, while the background thread may be busy.

        Raises:
            SaveFailed: the disk refused.
        """
        with self._new_file(path) as (worker, sink):
            buffer = self._slot_buffer(worker.acquire_slot())
            for at in range(0, len(data), self._chunk_bytes):
                piece = data[at : at + self._chunk_bytes]
                buffer[: len(piece)] = piece
                sink.write(buffer, len(piece))
            worker.release_slot()
            sink.finish()

    def submit(self, job: Job) -> None:
        """Run `job` in the writing thread, after the jobs submitted before."""
        with self._exclusive_worker("") as worker:
            worker.acquire_slot()
            worker.submit(job)

    def wait_idle(self) -> None:
        """
        Wait until the writing thread has run every job.

        Raises:
            SaveFailed: the disk refused.
            BaseException: any error of a job.
        """
        if self._worker is not None and self._worker.alive:
            with self._exclusive_worker("") as worker:
                worker.wait_idle()

    def close(self) -> None:
        """End the thread after its current job; the next write starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def release(self) -> None:
        """End the thread and free the buffers; the next write allocates them again."""
        self.close()
        buffers, self._buffers = self._buffers, None
        for each in buffers or ():
            each.release()

    @contextmanager
    def _exclusive_worker(self, path: str) -> Iterator[Worker]:
        """The worker, for one caller at a time; disk errors become `SaveFailed`."""
        if self._busy.locked():
            raise RescueError("Another save of this training is still running; this one was left.")
        interval_s = sys.getswitchinterval()
        with self._busy:
            try:
                sys.setswitchinterval(min(interval_s, _SWITCH_INTERVAL_S))
                self.prepare()
                assert self._worker is not None  # noqa: S101 - prepare() made it
                yield self._worker
            except BaseException as error:
                self.close()
                if isinstance(error, OSError):
                    raise translate(error, os.path.dirname(path)) from error
                raise
            finally:
                sys.setswitchinterval(interval_s)

    @contextmanager
    def _new_file(self, path: str) -> Iterator[tuple[Worker, sinks.Sink]]:
        """A new file, removed again on any failure, and the worker that writes to it."""
        with self._exclusive_worker(path) as worker:
            sink = sinks.Sink(path)
            try:
                yield worker, sink
            except BaseException:
                # The thread must stop using the descriptor before another file can get its number.
                self.close()
                for step in (sink.close, partial(os.unlink, path)):
                    with suppress(OSError):  # the whole folder is removed later
                        step()
                raise

    def _slot_buffer(self, number: int) -> memoryview:
        assert self._buffers is not None  # noqa: S101 - prepare() made them
        return self._buffers[number]

    def _fill(
        self,
        worker: Worker,
        sink: sinks.Sink,
        parts: Iterable[TensorEntry],
        progress: Progress | None,
        total_bytes: int,
    ) -> dict[str, int]:
        """Pass the parts to the worker, buffer by buffer; return their checksums."""
        checksums: dict[str, int] = {}
        chunk = self._chunk_bytes
        used = done = 0
        buffer = self._slot_buffer(worker.acquire_slot())
        for part in parts:
            checksum = 0
            if part.nbytes:
                with _copier(part) as fill:
                    at = 0
                    while at < part.nbytes:
                        take = min(chunk - used, part.nbytes - at)
                        with buffer[used : used + take] as place:
                            fill(place, at)
                            # Compute it from the copy, so that it matches the written bytes.
                            checksum = zlib.crc32(place, checksum)
                        at += take
                        used += take
                        if used == chunk:
                            worker.submit(partial(sink.write, buffer, used))
                            done += used
                            used = 0
                            if progress is not None:
                                progress(done, total_bytes)
                            buffer = self._slot_buffer(worker.acquire_slot())
            checksums[part.name] = checksum
        if used:
            worker.submit(partial(sink.write, buffer, used))
            done += used
            if progress is not None:
                progress(done, total_bytes)
        else:
            worker.release_slot()
        return checksums

    def _reset_after_fork(self) -> None:
        """In a forked child: the thread does not exist, and locks may be held."""
        self._worker = None
        self._busy = _thread.allocate_lock()


_streamers: weakref.WeakSet[Streamer] = weakref.WeakSet()


def _after_fork() -> None:
    for streamer in list(_streamers):
        streamer._reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def _copier(part: TensorEntry) -> Iterator[Callable[[memoryview, int], None]]:
    """A function that copies a part's bytes from an offset into a view."""
    if part.fill is not None:
        yield part.fill
        return
    with part.view() as view, _byte_view(view, part) as source:

        def copy(place: memoryview, at: int) -> None:
            with source[at : at + len(place)] as piece:
                place[:] = piece

        yield copy


def _byte_view(view: memoryview, part: TensorEntry) -> memoryview:
    if view.nbytes != part.nbytes or not view.c_contiguous:
        raise RescueError(
            f"Tensor {part.name!r} changed from {part.nbytes} to {view.nbytes} bytes while it was "
            "saved. Nothing was saved; save between two steps."
        )
    return view.cast("B")


Job = Callable[[], object]
_SLOTS = 2
_LOOK_S = 1.0  # between two looks whether the thread still runs


class Worker:
    """
    A thread with two job slots. A job that fails makes the next call raise its error.

    Only one thread may use a worker at a time. Order of calls: `acquire_slot` waits for a free slot
    and returns its number. Then `submit` puts a job into it, or `release_slot` frees it. The thread
    keeps the worker alive: its owner calls `stop`.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[int, Job] | None] = SimpleQueue()  # None: the end
        self._free: SimpleQueue[int] = SimpleQueue()  # slots
        for slot in range(_SLOTS):
            self._free.put(slot)
        self._slot = 0  # held by the caller
        self.alive = True  # whether the thread still runs; wrong in a forked child, which has none
        self._end = _thread.allocate_lock()  # released when the thread has ended
        self._end.acquire()
        self._error: BaseException | None = None
        self._stopped = False
        # Not threading.Thread: Ctrl-C while it starts or is joined raises "release unlocked lock"
        # from its conditions (Python 3.11). A raw thread is good enough and waits for nothing.
        _thread.start_new_thread(self._run, ())

    def acquire_slot(self) -> int:
        """
        Wait for the next slot, 0 or 1, and hold it.

        Raises:
            BaseException: any error of an earlier job.
            RescueError: the thread has ended.
        """
        slot, runs = None, True
        while slot is None and runs:
            runs = self._can_run  # before the look: a slot that is free at the end counts
            with suppress(Empty):
                slot = self._free.get(timeout=_LOOK_S if runs else 0)
        if self._error is not None:
            raise self._error
        if slot is None:  # memory ran out in the thread itself
            raise RescueError("The thread that writes the rescue has ended. Nothing was saved.")
        self._slot = slot
        return slot

    def submit(self, job: Job) -> None:
        """Run `job` in the slot that `acquire_slot` returned."""
        self._jobs.put((self._slot, job))

    def release_slot(self) -> None:
        """Free the slot that `acquire_slot` returned, without a job."""
        self._free.put(self._slot)

    def wait_idle(self) -> None:
        """
        Wait until every job is done.

        Raises:
            BaseException: any error of a job.
        """
        for slot in [self.acquire_slot() for _ in range(_SLOTS)]:
            self._free.put(slot)

    def stop(self) -> None:
        """End the thread after its current job; does not wait."""
        self._stopped = True
        self._jobs.put(None)

    def end(self) -> None:
        """Wait for the thread's end in any state; Ctrl-C is delayed until then."""
        interrupted: KeyboardInterrupt | None = None
        while self._can_run:
            try:
                self.stop()
                self._end.acquire(timeout=0.05)
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    @property
    def _can_run(self) -> bool:
        """Whether the thread can still run: at the end of Python no thread gets its lock."""
        return self.alive and not sys.is_finalizing()

    def _run(self) -> None:
        signals.block_in_thread()
        try:
            while (given := self._jobs.get()) is not None and not self._stopped:
                self._run_job(*given)
                del given
        finally:
            self.alive = False
            self._end.release()

    def _run_job(self, slot: int, job: Job) -> None:
        if self._error is None:
            try:
                job()
            except BaseException as error:  # raised in the thread that submits the jobs
                self._error = error
        self._free.put(slot)


class SaveFailed(RescueError):
    """A rescue was not written, no part of it was left behind, and the training continues."""

    def __init__(self, problem: str, remedy: str, no_space: bool = False) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.no_space = no_space  # another try may work after a deletion


def translate(error: OSError, folder: str) -> SaveFailed:
    """The message and remedy for `error`, which occurred while writing below `folder`."""
    above, name = os.path.split(folder)
    if names.is_partial(name):  # the user did not choose such a folder
        folder = above
    code = error.errno or 0
    message = _MESSAGES.get(_ALIASES.get(code, code))
    if message is None:
        reason = os.strerror(code) if code else str(error)
        message = (
            f"The rescue could not be written to {{folder}}: {reason}.",
            "Give Rescue another folder.",
        )
    problem, remedy = message
    return SaveFailed(
        problem.replace("{folder}", folder),
        remedy,
        no_space=code in (errno.ENOSPC, errno.EDQUOT),
    )
