"""
How a fresh `fit` gets to a recorded place in its data.

Keras's own generator is driven through the finished epochs, which makes as many
dataset iterators and calls the same epoch hooks, so that every reshuffle comes
out as before, and then through the finished batches of the current epoch, which
are drawn and dropped. Only the one iterator object of the resumed fit is
touched, for its first epoch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from watchdog_app.agent.fit.position import adapter_name
from watchdog_app.base.errors import RescueMismatch

SAY_AFTER_S = 2.0  # drawing finished batches again is said when it takes longer


def ended_earlier(batch: int) -> RescueMismatch:
    """The error of a resume whose data is shorter than it was."""
    return RescueMismatch(
        f"The rescue was saved before batch {batch} of its epoch, but the data of this "
        "program ends earlier. Train on the same data with the same batch size, or start "
        "afresh with Rescue(..., resume=False)."
    )


class FreshReplay:
    """
    What brings the data of a fresh fit to a recorded position, whichever Keras drives it.

    Args:
        iterator: of the fit that resumes.
        position: what `Course.position` returned.
        before_epoch: called when the finished epochs are replayed, before the current one.
        train_step: trains on the next batch of the dataset iterator it is given, to make
            variables that nothing else can make; None when all of them exist.
        arrived: called once when the position is reached, before the next batch is trained.
        without_training: a step within it trains nothing; None where an epoch needs no step.
        data_ended: what iterators raise at the end of their data.
        say: tells the user a line.
    """

    def __init__(
        self,
        iterator: Any,
        position: dict[str, Any],
        *,
        before_epoch: Callable[[], None],
        train_step: Callable[[Any], object] | None,
        arrived: Callable[[], None],
        without_training: AbstractContextManager[None] | None,
        data_ended: tuple[type[BaseException], ...],
        say: Callable[[str], None],
    ) -> None:
        self._iterator = iterator
        self._position = position
        self._before_epoch = before_epoch
        self._train_step = train_step
        self._arrived = arrived
        self._without_training = without_training
        self._data_ended = data_ended
        self._say = say
        self._owed = 0

    def _drop(self, source: Any, count: int, per_execution: Callable[[], int]) -> bool:
        """Draw so many batches and drop them; False where the data ended before."""
        began, left, said = time.monotonic(), count, False
        while left > 0:
            try:
                if self._train_step is not None:
                    self._train_step(source)
                    self._train_step = None
                    left -= per_execution()
                else:
                    next(source)
                    left -= 1
            except self._data_ended:
                return False
            if not said and time.monotonic() - began > SAY_AFTER_S:
                said = True
                self._say(f"drawing {count} batches again to find the place in the data")
        return True


class Replay(FreshReplay):
    """Brings one EpochIterator of Keras 3 there when its first epoch begins."""

    def __init__(self, iterator: Any, position: dict[str, Any], **how: Any) -> None:
        super().__init__(iterator, position, **how)
        # A Python generator goes on where the iterator before it stopped; every dataset
        # iterator else starts at its own beginning, and those not in use any more need no draws.
        self._draw_all = adapter_name(iterator) == "GeneratorDataAdapter"
        self._source: Any = None

    def install(self) -> None:
        """Let the next epoch of this iterator, and that one alone, begin with the replay."""
        vars(self._iterator)["_enumerate_iterator"] = self._first_epoch

    def remove(self) -> None:
        """Leave the iterator as Keras made it."""
        vars(self._iterator).pop("_enumerate_iterator", None)

    def _first_epoch(self) -> Iterator[Any]:
        self.remove()
        with warnings.catch_warnings():
            # Keras says again, for each replayed epoch, that its data ran out.
            warnings.simplefilter("ignore")
            self._finished_epochs()
        self._before_epoch()
        if self._position["epoch_done"]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._whole_epoch(self._position["ran_out"])
            self._draw()
            self._arrived()
            if self._without_training is not None:
                with self._without_training:
                    yield 0, 0, None
            return
        generator = self._iterator._enumerate_iterator()
        item = self._finished_batches(generator)
        if item[-1] is not self._source:
            self._leave_source()
        self._draw()
        self._arrived()
        yield item
        yield from generator

    def _finished_epochs(self) -> None:
        adapter = self._iterator.data_adapter
        # Workers would compute batches of every finished epoch only to drop them.
        workers = getattr(adapter, "enqueuer", None)
        if workers is not None and adapter.num_batches is not None:
            adapter.enqueuer = None
        for steps, count in self._position["ended"]:
            for _ in range(count):
                self._whole_epoch(steps)
        if workers is not None:
            adapter.enqueuer = workers

    def _whole_epoch(self, ran_out_at: int | None) -> None:
        """One epoch without training: to its regular end, or to where its data ran out."""
        generator = self._iterator._enumerate_iterator()
        for item in generator:
            self._step(item)
            if ran_out_at is not None and self._iterator._steps_seen >= ran_out_at:
                generator.close()
                self._run_out()
                return

    def _run_out(self) -> None:
        """What Keras does when the data ended earlier than expected."""
        with self._iterator.catch_stop_iteration():
            raise StopIteration

    def _finished_batches(self, generator: Iterator[Any]) -> Any:
        """Drive the current epoch to the step that comes next, and return Keras's item for it."""
        next_batch = self._position["next_batch"]
        for item in generator:
            if item[0] >= next_batch:
                return item
            self._step(item)
        raise ended_earlier(next_batch)

    def _step(self, item: Any) -> None:
        """Owe the batches of one training step to the dataset iterator that would feed it."""
        source = item[-1]
        if source is not self._source:
            self._leave_source()
            self._source, self._owed = source, 0
        self._owed += self._iterator.steps_per_execution

    def _leave_source(self) -> None:
        """The batches of an iterator that is not in use any more need not be drawn."""
        if self._draw_all:
            self._draw()
        self._owed = 0
        leave = getattr(self._source, "leave", None)
        if leave is not None:
            leave()

    def _draw(self) -> None:
        """Draw what is owed, and drop it."""
        # The last execution of an epoch may hold fewer steps than the others.
        self._drop(self._source, self._owed, lambda: self._iterator.steps_per_execution)
        self._owed = 0
