"""
One thread that does jobs in the order they come, never more than two of them ahead.

Two slots: while the thread works on one, the caller fills the other. All locks
and the thread exist beforehand, so that giving a job takes no memory to speak of.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable

Job = Callable[[], object]


class Worker:
    """
    Used by one thread at a time. A job that fails makes the next call raise its error.

    Order of calls: `turn` waits until a slot is free and says which; then `give`
    puts a job into it, or `leave` frees it again.
    """

    def __init__(self) -> None:
        self._state = _State()
        self._turn = 0
        # Not threading.Thread: Ctrl-C while it starts or is joined comes out of its conditions as
        # "release unlocked lock" (Python 3.11). A raw thread is as good and waits for nothing.
        _thread.start_new_thread(self._state.run, ())

    @property
    def alive(self) -> bool:
        """Whether the thread still runs. Not to be asked in a forked child, which has none."""
        return not self._state.ended

    @property
    def stop(self) -> Callable[[], None]:
        """Lets the thread end after the job that it is at; holds no reference to the worker."""
        return self._state.stop

    def turn(self) -> int:
        """
        Wait for the slot whose turn it is, 0 or 1; whoever asked holds it.

        Raises:
            BaseException: what an earlier job raised.
        """
        self._state.free[self._turn].acquire()
        if self._state.error is not None:
            raise self._state.error
        return self._turn

    def give(self, job: Job) -> None:
        """Have `job` done in the slot that `turn` gave."""
        self._state.jobs[self._turn] = job
        self._state.full[self._turn].release()
        self._turn ^= 1

    def leave(self) -> None:
        """Free the slot that `turn` gave; there was nothing to be done."""
        self._state.free[self._turn].release()

    def settle(self) -> None:
        """
        Wait until everything is done.

        Raises:
            BaseException: what a job raised.
        """
        for gate in self._state.free:
            gate.acquire()
            gate.release()
        if self._state.error is not None:
            raise self._state.error

    def end(self) -> None:
        """Wait for the thread's end, whatever state it is in; Ctrl-C is put off until then."""
        interrupted: KeyboardInterrupt | None = None
        while not self._state.ended:
            try:
                self._state.stop()
                self._state.end.acquire(timeout=0.05)
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted


class _State:
    """What the thread holds: not the worker itself, which can thus be given up."""

    def __init__(self) -> None:
        self.jobs: list[Job | None] = [None, None]
        # Locks as gates. Open `free`: may be filled; open `full`: there is a job.
        self.free = (_thread.allocate_lock(), _thread.allocate_lock())
        self.full = (_thread.allocate_lock(), _thread.allocate_lock())
        for gate in self.full:
            gate.acquire()
        self.ended = False
        self.end = _thread.allocate_lock()  # opened when the thread has ended
        self.end.acquire()
        self.error: BaseException | None = None
        self.stopped = False

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended = True
            self.end.release()

    def _work(self) -> None:
        turn = 0
        while True:
            self.full[turn].acquire()
            if self.stopped:
                return
            job, self.jobs[turn] = self.jobs[turn], None
            if job is not None and self.error is None:
                try:
                    job()
                except BaseException as error:  # told to the thread that gives the jobs
                    self.error = error
            del job
            self.free[turn].release()
            turn ^= 1

    def stop(self) -> None:
        self.stopped = True
        for gate in self.full:
            if gate.locked():
                try:
                    gate.release()
                except RuntimeError:  # a job was given just now
                    pass
