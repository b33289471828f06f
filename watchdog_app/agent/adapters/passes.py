"""
Record the batches that a training has had in each epoch, and skip them in a resumed loop.

A pass is identified by its place among the passes of its epoch, because objects have no name that
another process knows. Every `iter()` of a data set is a pass: a reshuffling tf.data pipeline draws
a new order for each. A resumed loop begins the same number of passes. It draws the finished batches
of the current pass again and drops them. The states of random generators that the data owns are
recorded when a pass begins. Module `torch_data` handles passes over a DataLoader.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType, GeneratorType
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.identity.attributes import Attributes, Values, weak_reference
from watchdog_app.agent.identity.data_facts import (
    FIRST_BATCH,
    Batches,
    batch_signature,
    batches,
    first_batch_text,
    position_at_size,
)
from watchdog_app.agent.state import own_random, randomness
from watchdog_app.rescue.identity.compare import mismatch

COUNTED = (
    "what the loop itself counts (a `break` under `enumerate` counts from 0 again: use "
    "rescue.enumerate() or rescue.step_number)"
)
UNSEEN = "the place in data that is not read through rescue.data()"
LAZY = (
    "the order of data that draws global random numbers while it is read (give it a generator of "
    "its own)"
)
_REPORT_AFTER_S = 2.0  # print a message if drawing finished batches again takes longer
MADE_ANEW = (
    "the order of an iterator that is made again in each epoch (give rescue.data() the data set)"
)
INFINITE = -1
SHUFFLE = "_ShuffleDataset"  # of tf.data


class Source:
    """A data set that this process has iterated over."""

    def __init__(self, dataset: Any) -> None:
        self.passes = 0
        self.sketch: dict[str, int] = {}
        self.total = 0  # batches drawn over all passes
        self.ahead = 0  # of these, how many the program draws before their step
        self.get = weak_reference(dataset)  # returns the data set; None after its deletion


@dataclass
class RecordedPass:
    """The record in a rescue of one place in the epoch."""

    passes: int  # passes over the same data that began before this one
    drawn: int = 0  # batches that this pass gave to the program
    total: int = 0  # batches that all passes over the same data gave
    finished: bool = False
    current: bool = False  # whether the pass began in the epoch of the rescue
    length: int | None = None  # batches of a whole pass; None: unknown
    size: int | None = None  # rows of a batch
    rows: int | None = None  # rows of a whole pass
    first: list[Any] | None = None  # `batch_signature` of its first batch
    begin: dict[str, Any] | None = None  # global random states at its start (PyTorch)
    # Those before its first batch, if the program has drawn some since.
    before_first: dict[str, Any] | None = None
    begin_own: own_random.States = field(default_factory=list)  # its own generators at its start
    now_own: own_random.States = field(default_factory=list)  # its own generators at the save
    orders: own_random.Orders = field(default_factory=dict)  # orders that the data had at its start
    later: list[Any] = field(default_factory=list)  # draws that `torch_data._LaterDraws` kept
    loader: Any = None  # the state_dict of a loader that has one, or `contents` of another
    attributes: Values | None = None  # attributes of the data that training has changed
    loop_numbers: list[float | None] | None = (
        None  # of the loops around it, see `loop_steps.numbers_around`
    )

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> RecordedPass:
        """The record in a rescue's JSON; raises TypeError if it has other values."""
        made = cls(**said)
        counts = (made.passes, made.drawn, made.total)
        known = [each for each in (made.length, made.size, made.rows) if each is not None]
        lists = (made.begin_own, made.now_own, made.later)
        if (
            not all(type(each) is int and each >= 0 for each in (*counts, *known))
            or not all(isinstance(each, list) for each in lists)
            or not isinstance(made.orders, dict)
            or not isinstance(made.loop_numbers, list | None)
        ):
            raise TypeError("the place in the data is not what a rescue says of it")
        return made

    def next_epoch(self) -> RecordedPass:
        """The record of the same place one epoch later."""
        if not self.current:
            return self
        own, later = self.now_own, self.later
        return RecordedPass(self.passes + 1, total=self.total, now_own=own, later=later)


@dataclass
class Pass:
    """One pass over data, in this process."""

    source: Source
    passes: int  # passes over the source that began before this one
    batches: Batches = field(default_factory=Batches)
    drawn: int = 0  # batches given to the program
    finished: bool = False
    is_numbered: bool = False  # whether a resume continues the numbers of its batches
    ahead: bool = False  # whether the data has drawn more batches than `drawn` counts
    other_data: bool = False  # whether the previous pass at its place had another data set
    first: list[Any] | None = None  # `batch_signature` of its first batch
    generators: list[Any] = field(default_factory=list)  # random generators of the data
    begin: dict[str, Any] | None = None  # see `RecordedPass`, as are the following fields
    before_first: dict[str, Any] | None = None
    begin_own: own_random.States = field(default_factory=list)
    orders: own_random.Orders = field(default_factory=dict)
    later: list[Any] = field(default_factory=list)
    attributes: Attributes | None = None
    contents: list[Values] = field(default_factory=list)  # see `torch_data.contents`
    # Random states before a batch ahead, see `later`, by the number of batches before it.
    before_draw: Callable[[int], list[Any]] = lambda _: []
    iterator: Callable[[], Any] = lambda: None  # what the program reads; None: it has dropped it
    loop_numbers: list[float | None] | None = None  # see `RecordedPass`

    @property
    def is_read(self) -> bool:
        """Whether the program has read a part and may read on."""
        return self.drawn > 0 and not self.finished and self.iterator() is not None

    def count_batch(self, batch: Any) -> None:
        """Count a batch that the program gets."""
        self.drawn += 1
        self.source.total += 1
        if self.drawn == 1:
            found = batch_signature(batch)
            self.first = None if found is None else list(found)


class Passes:
    """The position of each pass of the epoch, and the positions that a rescue recorded."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._sources: dict[int, Source] = {}  # by id of the data set
        self._epoch: list[Pass] = []  # passes of the current epoch, in the order of their start
        self._last = -1  # the place of the pass that began last
        self._latest: dict[int, Pass] = {}  # the last pass at each place, of any epoch
        self._recorded: dict[int, RecordedPass] = {}  # places of the rescue not yet reached
        # Whether the loop calls next() on a pass, so that a resume begins in its last one.
        self.by_next = False
        # The numbers of the loops around the next pass; None: epochs() gives its place.
        self.next_numbers: list[float | None] | None = None
        self._lost: dict[str, None] = {}
        # Signature of the first batch in the rescue, until the first batch is drawn again.
        self._first: list[Any] | None = None
        self.on_begin: Callable[[], None] | None = None  # called after a pass has begun
        self.is_mixed = False  # whether a pass began while another one was read on
        self.has_stepped = False  # whether a step has ended since the resume
        # Whether a pass was at its place since the resume: the random states of the rescue are
        # restored there, once.
        self.has_arrived = False
        self.forced = False  # resume="force" accepts other data
        self._guard = Guard("the look at what the data draws from")

    @property
    def lost(self) -> list[str]:
        """What a resume would not restore of the order of the data, as texts."""
        return list(self._lost)

    @property
    def begun(self) -> bool:
        """Whether a pass has begun in this epoch."""
        return bool(self._epoch)

    @property
    def latest(self) -> Pass:
        """The pass of this epoch that began last."""
        return self._epoch[self._last]

    @property
    def is_first(self) -> bool:
        """Whether no pass of this epoch began before the latest one."""
        return self._last == 0 and self.begun

    @property
    def batch(self) -> int | None:
        """Batches that the latest pass of this epoch gave; None before the first pass."""
        return self.latest.drawn if self._epoch else None

    @property
    def reads_on(self) -> bool:
        """Whether the program is in the middle of a pass."""
        return any(each.is_read for each in self._epoch)

    @property
    def first_batch(self) -> int:
        """Batches that the next pass of this epoch will skip."""
        known = self._recorded.get(len(self._epoch))
        return 0 if known is None or known.finished else known.drawn

    def new_epoch(self) -> None:
        """Begin an epoch: the next pass is its first."""
        over = {each.drawn for each in self._epoch if each.finished}
        left = (each for each in self._epoch if each.drawn and not each.finished)
        # `zip` leaves the longer ones, of which it may have drawn one batch more.
        if not all(each.is_numbered or over & {each.drawn, each.drawn - 1} for each in left):
            self._lost[COUNTED] = None
        self._epoch = []
        # Lists allow no weak references, so drop the sources of earlier epochs.
        used = {id(each.source) for each in self._latest.values()}
        self._sources = {
            key: each
            for key, each in self._sources.items()
            if id(each) in used or (isinstance(each.get, weakref.ref) and each.get() is not None)
        }
        self._recorded = {place: known.next_epoch() for place, known in self._recorded.items()}

    def position(self, tensors: Any = None) -> dict[str, dict[str, Any]]:
        """
        The position of each place in the epoch, as JSON, for `continue_from`.

        Args:
            tensors: receives the tensors that the state of a loader holds.
        """
        places = dict(self._recorded)
        for place, last in self._latest.items():
            now_own = own_random.capture_all(last.generators)
            if place >= len(self._epoch):
                places[place] = self._record_next_pass(last, now_own)
                continue
            ahead = 0 if last.finished else min(last.source.ahead, last.drawn)
            places[place] = RecordedPass(
                last.passes,
                last.drawn - ahead,
                last.source.total - ahead,
                last.finished,
                current=True,
                length=last.batches.count,
                size=last.batches.size,
                rows=last.batches.rows,
                first=last.first,
                begin=None if last.finished else last.begin,
                before_first=None if last.finished else last.before_first,
                begin_own=last.begin_own,
                now_own=now_own,
                orders=last.orders,
                later=last.later + last.before_draw(last.drawn - 1),
                loader=self._loader_state(last, place, tensors),
                attributes=None if last.attributes is None else last.attributes.changed_values(),
                loop_numbers=last.loop_numbers,
            )
        if self.by_next:
            newest = {each.source: place for place, each in sorted(self._latest.items())}
            left = [place for place, last in self._latest.items() if newest[last.source] != place]
            kept = [places[place] for place in sorted(places) if place not in left]
            places = dict(enumerate(kept))
        # Not `asdict`, which copies: random states are long lists, and no code changes them.
        return {str(place): dict(vars(each)) for place, each in places.items()}

    def _record_next_pass(self, last: Pass, now_own: own_random.States) -> RecordedPass:
        """The record of the next pass at a place, from the pass of an earlier epoch."""
        if last.source.get() is None:  # the data set was made for one pass; so will the next be
            return RecordedPass(0, now_own=now_own)
        return RecordedPass(last.source.passes, total=last.source.total, now_own=now_own)

    def _loader_state(self, last: Pass, place: int, tensors: Any) -> Any:  # noqa: ARG002
        """State of a loader that has a `state_dict`, as JSON; None without one."""
        return None

    def continue_from(self, position: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue at the positions that `position` returned."""
        self._recorded = {int(place): RecordedPass.read(said) for place, said in position.items()}

    def step_ended(self) -> None:
        """
        Handle the end of a step.

        After the first step since a resume, the training is past the position of the rescue. A pass
        that had finished there (a validation in the middle of an epoch) then starts over.
        """
        if not self.has_stepped:
            self.has_stepped = True
            self._recorded = {
                place: known.next_epoch() if known.finished else known
                for place, known in self._recorded.items()
            }

    def _match_batches(self, known: RecordedPass, now: Batches) -> None:
        """
        Adjust a position of the rescue to the batches of this program.

        Raises:
            RescueMismatch: the program has other data.
        """
        if None not in (known.rows, now.rows) and known.rows != now.rows:
            found = f"the data has {now.rows} rows in the program, {known.rows} in the rescue"
        elif known.size and now.size and known.size != now.size:
            same_rows = known.rows is not None and known.rows == now.rows
            drawn, text = position_at_size(known.drawn, known.size, now.size)
            if not same_rows:
                drawn, text = 0, first_batch_text(known.size, now.size)
            known.total += drawn - known.drawn
            known.drawn, known.first = drawn, None
            self._report(text)
            return
        elif (known.size is None) is not (now.size is None):
            return  # the lines read a loader through an object of the program, of any length
        elif None not in (known.length, now.count) and known.length != now.count:
            found = (
                f"a pass over the data has {now.count} batches in the program, {known.length} in "
                "the rescue"
            )
        else:
            return
        if not self.forced:
            raise mismatch("that this training resumes from", [found])
        self._report(f'resume="force" resumes although {found}: begins at the first batch.')
        known.total, known.drawn = known.total - known.drawn, 0

    def _compare_first_batch(self, batch: Any, drawn: int) -> None:
        """
        Compare the first batch of a pass with the first batch in the saved run.

        Raises:
            RescueMismatch: the batch consists of other tensors.
        """
        known, self._first = self._first, None
        now = batch_signature(batch)
        if not known or now is None or known == list(now):
            return
        if known[0] != now[0]:
            before, after = (", ".join(map(str, each)) for each in (known[0] or (), now[0]))
            found = f"a batch of the data is {after} in the program, {before} in the rescue"
            if not self.forced:
                raise mismatch("that this training resumes from", [found])
            self._report(f'resume="force" resumes although {found}.')
        elif not self._lost:
            self._report(FIRST_BATCH.format(drawn))

    def _notify_begun(self) -> None:
        """Call `on_begin` when a pass is at its start, or at the position of the rescue."""
        if self.on_begin is not None:
            self.on_begin()

    def _draw(self, iterator: Iterator[Any], count: int) -> None:
        """Draw and drop batches that the training had before."""
        began, said = time.monotonic(), False
        for number in range(count):
            batch = next(iterator, self)
            if batch is self:
                return
            if number == 0 and self._first is not None:
                self._compare_first_batch(batch, count)
            if not said and time.monotonic() - began > _REPORT_AFTER_S:
                said = True
                self._report(f"drawing {count} batches again to find the place in the data")

    def run(
        self,
        dataset: Iterable[Any],
        arrived: Callable[[], None],
        read: Callable[[str], Any] | None = None,
    ) -> Iterator[Any]:
        """
        The batches of `dataset` that the training has not had.

        Args:
            dataset: any iterable.
            arrived: called when a pass of the rescue's epoch has reached its recorded position,
                unless another one was read on from there before.
            read: reads a tensor of the rescue by name.

        Raises:
            RescueMismatch: the recorded pass had another number of batches; raised at the draw of
                the first batch.
        """
        now, known = self._next_pass(dataset)
        batches_left = self._run(dataset, now, known, arrived, read)
        now.iterator = weakref.ref(batches_left)
        return batches_left

    def _next_pass(self, dataset: Any) -> tuple[Pass, RecordedPass | None]:
        """The next pass of the epoch, and the rescue's record of its place."""
        source = self._find_source(dataset)
        place = self._place_of(source)
        if place == len(self._epoch) and not self.has_stepped:
            self._drop_earlier_turns(place)
        with self._guard:
            self._check_order(dataset, source, self._latest.get(place))
            if hasattr(dataset, "_inputs") and int(dataset.cardinality()) == INFINITE:
                self._lost[COUNTED] = None  # the lines of a found loop restore it
        known = self._recorded.pop(place, None)
        now = Pass(source, source.passes if known is None else known.passes, batches(dataset))
        now.loop_numbers = self.next_numbers
        with self._guard:
            now.attributes = Attributes(self._data_parts(dataset))
        self._begin_at(place, now)
        return now, known

    def _drop_earlier_turns(self, place: int) -> None:
        """
        Let the record of the turn where the program is be that of the next place.

        A program that continues its outer loop, such as `while epoch < 5` with a saved epoch, does
        not begin the passes before it again.
        """
        distances = {
            each: _distance_of_turns(self.next_numbers, self._recorded[each].loop_numbers)
            for each in sorted(self._recorded)
            if each >= place
        }
        known = {each: found for each, found in distances.items() if found is not None}
        if known:
            nearest = min(known, key=known.__getitem__)
            self._recorded = {
                each - nearest + place: self._recorded[each]
                for each in distances
                if each >= nearest
            }

    def _data_parts(self, dataset: Any) -> Iterable[tuple[str, Any]]:
        """The objects that a pass reads from, with their names."""
        yield "data", dataset

    def _place_of(self, source: Source) -> int:
        """The place of the next pass over a source: that of its last one while others are read."""
        own = (place for place, each in enumerate(self._epoch) if each.source is source)
        return next(own, len(self._epoch)) if self.reads_on else len(self._epoch)

    def _begin_at(self, place: int, now: Pass) -> None:
        self.is_mixed |= place < len(self._epoch)
        self._epoch[place : place + 1] = [now]
        self._latest[place], self._last = now, place

    def set_numbered(self) -> Pass:
        """Note that a resume continues the numbers of the latest pass; returns it."""
        self.latest.is_numbered = True
        if len(self._epoch) == 1:
            self._lost.pop(COUNTED, None)
        return self.latest

    def draws_ahead(self, dataset: Any, count: int) -> None:
        """Set how many batches the program draws before their step, and again after a resume."""
        self._find_source(dataset).ahead = count

    def count(self, dataset: Iterable[Any]) -> int:
        """Count the items of data; if it draws random numbers, its order will not be restored."""
        own, before = own_random.find_generators(dataset), randomness.snapshot()
        found = None
        if isinstance(dataset, Sized):
            with suppress(Exception):  # as of a DataLoader of an IterableDataset
                found = len(dataset)
        if found is None:
            found = sum(1 for _ in dataset)
        if own or randomness.snapshot() != before:
            self._lost[LAZY] = None
        return found

    def _find_source(self, dataset: Any) -> Source:
        """The object that counts the passes over a data set."""
        anchor = dataset
        with self._guard:
            anchor = find_shuffle(dataset)
        source = self._sources.get(id(anchor))
        if source is None or source.get() is not anchor:
            source = self._sources[id(anchor)] = Source(anchor)
            with self._guard:
                source.sketch = own_random.order_checksums(dataset)
        return source

    def _run(
        self,
        dataset: Iterable[Any],
        now: Pass,
        known: RecordedPass | None,
        arrived: Callable[[], None],
        read: Callable[[str], Any] | None,
    ) -> Iterator[Any]:
        current = known is not None and known.current
        if known is not None and current:
            if not known.finished:
                self._match_batches(known, now.batches)
            now.drawn, now.finished, now.first = known.drawn, known.finished, known.first
        iterator = self._iterator(dataset, now, known, read)
        now.source.passes += 1
        if known is not None:
            now.source.total = max(now.source.total, known.total)
        if known is not None and now.attributes is not None and not now.finished:
            now.attributes.restore(known.attributes)
        if current and not self.has_arrived:
            arrived()
        # A finished pass is followed by what the loop does between two passes, unless it reads on.
        begun_again = any(each.source is now.source and each is not now for each in self._epoch)
        self.has_arrived |= begun_again if known is None else current and not now.finished
        if not now.finished:
            self._notify_begun()
            yield from self._remaining_batches(dataset, now, iterator)
            now.finished = True

    def _iterator(
        self,
        dataset: Iterable[Any],
        now: Pass,
        known: RecordedPass | None,
        read: Callable[[str], Any] | None,  # noqa: ARG002
    ) -> Iterator[Any]:
        """An iterator over the data, at the position of the rescue or at its start."""
        source = now.source
        while source.passes < now.passes:
            repeat_pass(dataset)
            source.passes += 1
        with self._guard:
            self._restore_random(dataset, now, known)
        iterator = begin(dataset)
        if known is None:
            return iterator
        if iterator is dataset:  # a generator: each pass begins where the last one stopped
            self._draw(iterator, known.total - source.total)
        elif not known.finished:
            self._first = known.first if known.current else None
            self._draw(iterator, known.drawn)
        if known.finished and known.now_own:
            own_random.restore_all(now.generators, known.now_own)
        return iterator

    def _remaining_batches(self, dataset: Any, now: Pass, iterator: Iterator[Any]) -> Iterator[Any]:  # noqa: ARG002
        """The remaining batches of a pass."""
        monitor = _DrawMonitor(iterator)
        for item in monitor:
            now.count_batch(item)
            if monitor.is_mixed:
                self._lost[LAZY] = None
            yield item

    def _restore_random(self, dataset: Any, now: Pass, known: RecordedPass | None) -> None:
        """Restore the data's random generators to the start of this pass, and record them."""
        now.generators = own_random.find_generators(dataset)
        # A Python generator that began in an earlier pass draws all its batches again.
        begins = not isinstance(dataset, Iterator) or known is None or known.total == known.drawn
        states: own_random.States = []
        if known is not None and begins:
            states = known.begin_own if known.current else known.now_own
        if states and not own_random.restore_all(now.generators, states):
            self._report(own_random.CHANGED)
        if states and known is not None and known.orders:
            own_random.restore_orders(dataset, known.orders)
        if now.generators:
            now.begin_own = own_random.capture_all(now.generators)
            now.orders = own_random.changed_orders(dataset, now.source.sketch)

    def _check_order(self, dataset: Any, source: Source, before: Pass | None) -> None:
        """Record what a resume in this pass could not restore of the order."""
        if isinstance(dataset, Iterator):
            anew = before is not None and before.source is not source
            # A Python generator repeats its batches, or draws from random states that are restored.
            if anew and not isinstance(dataset, GeneratorType) and hasattr(dataset, "_dataset"):
                self._lost[MADE_ANEW] = None


class _DrawMonitor:
    """
    An iterator that detects whether data and training draw from global generators in turn.

    Then a resume cannot repeat the order: it draws the finished batches again without the training
    between them.
    """

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.is_mixed = False
        self._iterator = iterator
        # Only a Python generator runs code of the program, which may draw.
        self._is_generator = isinstance(iterator, GeneratorType)
        self._after: randomness.Snapshot | None = None
        self._others = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._is_generator or self.is_mixed:
            return next(self._iterator)
        before = randomness.snapshot()
        self._others = self._others or self._after not in (None, before)
        item = next(self._iterator)
        self._after = randomness.snapshot()
        self.is_mixed = self._others and self._after != before
        return item


def find_shuffle(dataset: Any) -> Any:
    """
    The object whose passes advance the order; in a tf.data pipeline, its last shuffle.

    `dataset.take(8)` is a new object each time, but continues with the shuffle inside.
    """
    parts = [each for each in pipeline_parts(dataset) if hasattr(each, "__iter__")] or [dataset]
    return next((each for each in parts if type(each).__name__ == SHUFFLE), parts[0])


def order_draws(dataset: Any) -> int | None:
    """
    How many batches of a pass must be drawn to advance the order as the whole pass does.

    A new iterator advances the last shuffle of a tf.data pipeline. Shuffles before it advance at
    the first draw, and those before a `repeat` at later draws, too. None: all batches.
    """
    if isinstance(dataset, FunctionType):
        return None
    kinds = [type(each).__name__ for each in pipeline_parts(dataset)]
    if SHUFFLE not in kinds:
        return 0
    last = kinds.index(SHUFFLE)
    if "_RepeatDataset" in kinds[:last] and int(dataset.cardinality()) != INFINITE:
        return None
    return int(SHUFFLE in kinds[last + 1 :])


def repeat_pass(dataset: Any) -> None:
    """Advance the order of data as a whole pass does, with as few draws as possible."""
    deque(islice(begin(dataset), order_draws(dataset)), maxlen=0)


def begin(dataset: Any) -> Iterator[Any]:
    """An iterator over data, or over what a function of the program makes for each pass."""
    return iter(dataset() if isinstance(dataset, FunctionType) else dataset)


def pipeline_parts(dataset: Any) -> Iterator[Any]:
    """
    The steps of a tf.data pipeline, from its end to its start; of other data the data itself.

    Those of a function begin with what it names.
    """
    parts = [dataset]
    if isinstance(dataset, FunctionType):
        named = inspect.getclosurevars(dataset)
        parts += [*named.nonlocals.values(), *named.globals.values()]
    for each in parts:
        yield each
        sources = getattr(each, "_inputs", None)
        if callable(sources):
            parts.extend(sources())


def _distance_of_turns(one: list[float | None] | None, other: Any) -> float | None:
    """How far two turns of the same loops are apart; None if the loops are not the same."""
    if one is None or other is None or len(one) != len(other):
        return None
    total = 0.0
    for a, b in zip(one, other, strict=True):
        if isinstance(a, int | float) and isinstance(b, int | float):
            total += abs(a - b)
        elif a is not b:
            return None
    return total
