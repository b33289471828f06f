"""
Passes over the data of a `fit` whose batches Python draws in the thread of the training.

That is so on PyTorch and JAX. The order of a pass depends on random numbers that it draws at its
start: from Python, NumPy and PyTorch, and from generators that the data owns. So the random states
are recorded at that moment, and restored when a resume begins the pass again. No seed is needed.

Keras sometimes requests a new pass long before it draws from it. A DataLoader draws random numbers
at both moments, so both are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from watchdog_app.agent.adapters.keras.position import adapter_name
from watchdog_app.agent.adapters.passes import repeat_pass
from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.state import own_random, randomness

_ASKED = "asked"  # the moment when Keras makes the iterator
_BEGUN = "begun"  # the moment when Keras draws its first batch

GLOBAL_NUMBERS = (
    "the order of a generator that draws global random numbers while it is read, if others draw "
    "them too: give it a generator of its own"
)
_COMPARED_DRAWS = 3  # draws of a generator at which the global random numbers are compared


class DataPasses:
    """
    The passes of one EpochIterator, numbered as Keras makes them.

    Args:
        iterator: the EpochIterator of the fit, before its first epoch.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._adapter = iterator.data_adapter
        self._make = iterator._get_iterator
        self._guard = Guard()
        self._is_generator = adapter_name(iterator) == "GeneratorDataAdapter"
        source = _random_source(iterator)
        self._data = own_random.DataState(source, _order_holders(source))
        self._made = 0
        self._moments: dict[int, dict[str, _RandomMoment]] = {}
        self._draws_global = False  # whether the generator has drawn global random numbers
        # Used until a resume reaches its position.
        self._recorded: dict[int, Mapping[str, Any]] = {}  # recorded random states, by pass
        self._requested: int | None = None  # number of passes that the rescue had requested
        self._postponed: list[Pass] = []  # passes that this fit requests earlier than the rescue

    def install(self) -> None:
        """Record the iterator's passes from now on."""
        vars(self._iterator)["_get_iterator"] = self._next_pass

    def remove(self) -> None:
        """Restore the method of the iterator."""
        vars(self._iterator).pop("_get_iterator", None)

    def position(self) -> dict[str, Any]:
        """The position of the passes, as JSON, for `resume_from` in another process."""
        return {
            "asked": self._made,
            "began": [
                [number, {name: moment.to_json() for name, moment in moments.items()}]
                for number, moments in self._moments.items()
            ],
        }

    def resume_from(self, position: Mapping[str, Any] | None) -> None:
        """Give passes from now on the random states that the rescue recorded."""
        if position is not None:
            self._recorded = dict(position["began"])
            self._requested = position["asked"]

    def arrived(self) -> None:
        """Continue the training, after the finished batches were drawn and the state restored."""
        self._recorded, self._requested = {}, None
        later, self._postponed = self._postponed, []
        for part in later:
            iter(part)

    def lost(self) -> str | None:
        """What a resume cannot repeat of the order, as a text; None if it can repeat all."""
        if not self._is_generator or 0 not in self._moments:
            return None
        first = self._moments[0].get(_BEGUN)
        # Compare only the states of Python and NumPy: the training itself draws from PyTorch's.
        if first is None or (
            first.seen[:2] == randomness.snapshot()[:2] and not self._draws_global
        ):
            return None
        return GLOBAL_NUMBERS

    def _next_pass(self) -> Pass:
        self._made += 1
        return Pass(self, self._made - 1, self._make)

    def postpone(self, part: Pass) -> bool:
        """Postpone a pass that the rescue had not requested yet; whether it was postponed."""
        if self._requested is None or part.number < self._requested:
            return False
        self._postponed.append(part)
        return True

    def moment(self, part: Pass, name: str) -> None:
        """Restore or record random states when a pass is requested or begins."""
        known = self._recorded.get(part.number, {}).get(name)
        if known is not None:
            randomness.restore(dict(known))
            if not self._data.restore(known):
                print_message(own_random.CHANGED)
        with self._guard:  # an error here must not stop the training, whose thread calls this
            self._record_moment(part, name)

    def should_compare(self, part: Pass) -> bool:
        """Whether to compare the global random numbers around the next draw."""
        return self._is_generator and part.drawn <= _COMPARED_DRAWS and not self._draws_global

    def compare_random(self, before: randomness.Snapshot) -> None:
        """Compare the global random numbers after a draw with those before."""
        self._draws_global = before != randomness.snapshot()

    def count_skipped(self) -> None:
        """Begin a skipped pass once more, because a tf.data set counts its iterators."""
        if adapter_name(self._iterator) == "TFDatasetAdapter":
            repeat_pass(self._adapter.get_tf_dataset())

    def _record_moment(self, part: Pass, name: str) -> None:
        moment = _RandomMoment(self._data.capture(), randomness.snapshot())
        self._moments.setdefault(part.number, {})[name] = moment
        # At the end of an epoch two passes are in use: the current one, and the requested next one.
        for number in [each for each in self._moments if each < part.number - 1]:
            if not (
                self._is_generator and number == 0
            ):  # a resume draws a generator again from its start
                del self._moments[number]


class Pass:
    """An iterator over the data that counts its batches."""

    def __init__(self, passes: DataPasses, number: int, make: Callable[[], Any]) -> None:
        self.number = number
        self.drawn = 0
        self._passes = passes
        self._make = make
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> Pass:
        if self._source is None and not self._passes.postpone(self):
            self._passes.moment(self, _ASKED)
            self._source = iter(self._make())
        return self

    def __next__(self) -> Any:
        if self._source is None:
            raise StopIteration  # it was postponed
        if not self.drawn:
            self._passes.moment(self, _BEGUN)
        self.drawn += 1
        if not self._passes.should_compare(self):
            return next(self._source)
        before = randomness.snapshot()
        batch = next(self._source)
        self._passes.compare_random(before)
        return batch

    def skip(self) -> None:
        """End this pass during a replay, without drawing its remaining batches."""
        if not self.drawn:
            self._passes.count_skipped()


class _RandomMoment(NamedTuple):
    """Random states of one moment: captured in 50 µs, converted to JSON when a rescue is saved."""

    data: dict[str, Any]  # of the data's own
    seen: randomness.Snapshot

    def to_json(self) -> dict[str, Any]:
        """The random states as JSON values."""
        return {**randomness.state_of_snapshot(self.seen), **self.data}


def _random_source(iterator: Any) -> Any:
    """The data set of the passes, which may own random generators; None if not needed."""
    name = adapter_name(iterator)
    if name == "TorchDataLoaderAdapter":
        return iterator.data_adapter._dataloader
    # Module `state` handles a PyDataset per epoch; a resume draws a generator from its start.
    return iterator.data_adapter.get_tf_dataset() if name == "TFDatasetAdapter" else None


def _order_holders(source: Any) -> list[Any]:
    """The parts of a DataLoader, which may be the program's own and may keep an order."""
    if source is None:
        return []
    parts = [getattr(source, name, None) for name in ("dataset", "sampler", "batch_sampler")]
    return [part for part in parts if part is not None]
