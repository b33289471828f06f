"""
Passes over the data of a `fit` whose batches are drawn by Python in the training's own thread.

So it is on PyTorch and JAX. The order of a pass follows from random numbers that
are drawn as it begins: those of Python, NumPy and PyTorch, and of generators that
the data holds. They are noted then, and put back when a resume begins that pass
again; so no seed is needed. Keras asks for a new pass here and there long before
it draws from it, which is a moment of its own: a DataLoader draws at both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from watchdog_app.agent.adapters.keras.position import adapter_name
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.state import own_random, randomness

_ASKED = "asked"  # Keras has made the iterator
_BEGUN = "begun"  # and draws its first batch

GLOBAL_NUMBERS = (
    "the order of a generator that draws global random numbers while it is read, if others draw "
    "them too: give it a generator of its own"
)
_COMPARED_DRAWS = 3  # draws of a generator at which the global random numbers are compared


class DataPasses:
    """
    The passes of one EpochIterator, numbered as Keras makes them.

    Args:
        iterator: of the fit, before its first epoch.
        say: tells the user a line.
    """

    def __init__(self, iterator: Any, say: Callable[[str], None]) -> None:
        self._iterator = iterator
        self._adapter = iterator.data_adapter
        self._make = iterator._get_iterator
        self._say = say
        self._guard = Guard()
        self._is_generator = adapter_name(iterator) == "GeneratorDataAdapter"
        self._source = _random_source(iterator)
        self._holders = _order_holders(self._source)
        self._sketches = [own_random.order_checksums(each) for each in self._holders]
        self._made = 0
        self._moments: dict[int, dict[str, _RandomMoment]] = {}
        self._draws_global = False  # the generator was seen to draw global numbers
        # On the way to the place of a rescue: what its passes began with, how many it had asked
        # for, and those that were asked for here and there were not.
        self._recorded: dict[int, Mapping[str, Any]] = {}
        self._requested: int | None = None
        self._postponed: list[Pass] = []

    def install(self) -> None:
        """From now on the iterator's passes are noted."""
        vars(self._iterator)["_get_iterator"] = self._next_pass

    def remove(self) -> None:
        """Leave the iterator as Keras made it."""
        vars(self._iterator).pop("_get_iterator", None)

    def position(self) -> dict[str, Any]:
        """Where the passes stand, as JSON: for `resume_from` in another process."""
        return {
            "asked": self._made,
            "began": [
                [number, {name: moment.to_json() for name, moment in moments.items()}]
                for number, moments in self._moments.items()
            ],
        }

    def resume_from(self, position: Mapping[str, Any] | None) -> None:
        """Passes that are made from now on begin as those of the rescue did."""
        if position is not None:
            self._recorded = dict(position["began"])
            self._requested = position["asked"]

    def arrived(self) -> None:
        """The finished batches were drawn, the random numbers put back; the training continues."""
        self._recorded, self._requested = {}, None
        later, self._postponed = self._postponed, []
        for part in later:
            iter(part)

    def lost(self) -> str | None:
        """What a resume cannot repeat of the order, if anything."""
        if not self._is_generator or 0 not in self._moments:
            return None
        first = self._moments[0].get(_BEGUN)
        # Of Python's and NumPy's numbers: the training itself draws PyTorch's.
        if first is None or (
            first.seen[:2] == randomness.snapshot()[:2] and not self._draws_global
        ):
            return None
        return GLOBAL_NUMBERS

    def _next_pass(self) -> Pass:
        self._made += 1
        return Pass(self, self._made - 1, self._make)

    def postpone(self, part: Pass) -> bool:
        """Whether a pass is postponed, as the rescue had not requested it yet."""
        if self._requested is None or part.number < self._requested:
            return False
        self._postponed.append(part)
        return True

    def moment(self, part: Pass, name: str) -> None:
        """A pass is asked for, or begun."""
        known = self._recorded.get(part.number, {}).get(name)
        if known is not None:
            randomness.restore(dict(known))
            if not own_random.restore_all(own_random.find_generators(self._source), known["own"]):
                self._say(own_random.CHANGED)
            for holder, orders in zip(self._holders, known["orders"], strict=False):
                own_random.restore_orders(holder, orders)
        with self._guard:  # the training's own thread is on its way to its next batch
            self._record_moment(part, name)

    def should_compare(self, part: Pass) -> bool:
        """Whether to compare the global random numbers around the next draw."""
        return self._is_generator and part.drawn <= _COMPARED_DRAWS and not self._draws_global

    def compare_random(self, before: randomness.Snapshot) -> None:
        """Compare the global random numbers after a draw with those before."""
        self._draws_global = before != randomness.snapshot()

    def count_skipped(self) -> None:
        """A pass that is not drawn again has been begun once: a data set counts its iterators."""
        if adapter_name(self._iterator) == "TFDatasetAdapter":
            iter(self._adapter.get_tf_dataset())

    def _record_moment(self, part: Pass, name: str) -> None:
        own = (
            own_random.capture_all(own_random.find_generators(self._source))
            if self._source is not None
            else []
        )
        orders = [
            own_random.changed_orders(holder, sketch)
            for holder, sketch in zip(self._holders, self._sketches, strict=True)
        ]
        self._moments.setdefault(part.number, {})[name] = _RandomMoment(own, orders)
        # Two are in use at the end of an epoch: the one drawn from, and the next one asked for.
        for number in [each for each in self._moments if each < part.number - 1]:
            if not (
                self._is_generator and number == 0
            ):  # a generator is drawn again from its beginning
                del self._moments[number]


class Pass:
    """One iterator over the data, which counts what is drawn."""

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
            raise StopIteration  # it was not asked for yet
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
        """End this pass during a replay: the rest is not drawn."""
        if not self.drawn:
            self._passes.count_skipped()


class _RandomMoment:
    """Random numbers of one moment: taken in 50 µs, made into JSON when a rescue is saved."""

    def __init__(
        self, own: own_random.States | None = None, orders: list[own_random.Orders] | None = None
    ) -> None:
        self._own = own or []
        self._orders = orders or []
        self.seen = randomness.snapshot()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**randomness.state_of_snapshot(self.seen), "own": self._own, "orders": self._orders}


def _random_source(iterator: Any) -> Any:
    """What the passes are made from, for the generators that it draws from."""
    name = adapter_name(iterator)
    if name == "TorchDataLoaderAdapter":
        return iterator.data_adapter._dataloader
    # A PyDataset begins with its epoch, see `state`; a generator is drawn from its beginning.
    return iterator.data_adapter.get_tf_dataset() if name == "TFDatasetAdapter" else None


def _order_holders(source: Any) -> list[Any]:
    """Objects of the program that may keep an order: what a DataLoader is made of."""
    if source is None:
        return []
    parts = [getattr(source, name, None) for name in ("dataset", "sampler", "batch_sampler")]
    return [part for part in parts if part is not None]
