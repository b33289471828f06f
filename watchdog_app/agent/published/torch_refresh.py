"""
The state of a PyTorch loop as it is a step later, at a fraction of the cost of taking it whole.

After a table was made whole the small tensors are copied again from where they lie
(`torch_places`), all by one call, and of the rest only what can have changed is asked. Where a
tensor lies elsewhere by now, or a part has a way of its own to tell its state, the state is taken
whole.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, Protocol

from watchdog_app.agent.loops import torch_random, torch_values
from watchdog_app.agent.loops.torch_modules import ModulePart
from watchdog_app.agent.loops.torch_optimizers import OptimizerPart
from watchdog_app.agent.loops.torch_part import ArrayPart, Part, TensorPart
from watchdog_app.agent.loops.torch_values import Tensors
from watchdog_app.agent.published.contents import Contents, sampled
from watchdog_app.agent.published.guards import Refreshed
from watchdog_app.agent.published.news import news
from watchdog_app.agent.published.torch_places import (
    ModulePlaces,
    OptimizerPlaces,
    TensorPlace,
    Unknown,
)
from watchdog_app.airbag.foreign_memory import Gathering

Path = tuple[str | int, ...]
_NAMES_OF_TENSORS = ("params", "param_names")  # of an optimizer's group: they stay


class Loop(Protocol):
    """What is told of, whether a program named it or it was found."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Its objects, as they were published whole."""

    def position(self, tensors: Tensors) -> Mapping[str, Any]:
        """Where the loop stands."""

    def waiting(self) -> set[int]:
        """Ids of the parameters whose gradients wait for their optimizer's step."""

    def lost(self) -> list[str]:
        """What a resume would not bring back, in words."""

    def trained(self) -> list[Any]:
        """The parameters of its optimizers."""

    def same(self) -> bool:
        """Whether it consists of the same objects."""


class TorchRefresh:
    """Made at a boundary, of what was published there whole; `take` is called at later ones."""

    def __init__(self, loop: Loop, meta: Mapping[str, Any], contents: Contents) -> None:
        """
        Args:
            loop: that is published.
            meta: as it was published.
            contents: likewise.

        Raises:
            Unknown: some of this can only be taken whole.
        """
        self._meta = meta
        self._loop = loop
        self._places: list[ModulePlaces | OptimizerPlaces | TensorPlace] = []
        self._others: list[tuple[str, type[Part], Callable[[], Any]]] = []
        self._groups: dict[Path, _Group] = {}
        for name, part in loop.parts.items():
            self._note(name, part)
        if contents.small is None or self._adds_up():
            raise Unknown
        pieces = list(contents.small)
        self._values = sum(size for _, size in pieces)
        self._gathering = Gathering([*pieces, *sampled(contents.large)])

    def take(self, step: int) -> Refreshed | None:  # noqa: ARG002
        """What is there now; None where it must be taken whole."""
        now = self.values()
        if now is None:
            return None
        now.append((("random",), torch_random.take()))
        found = [each for path, value in now for each in news(self._before(path), value, path)]
        taken = self._gathering.take()
        return Refreshed(found, taken[: self._values], taken[self._values :])

    def values(self) -> list[tuple[Path, Any]] | None:
        """
        What of the meta may be another by now, random numbers apart: places, and what is there.

        None where the whole is to be taken.
        """
        if self._adds_up() or not self._loop.same():
            return None
        if not all(each.same() for each in self._places):
            return None
        tensors = Tensors()
        found = list(self._values_of_parts(tensors))
        found += [
            (("position",), self._loop.position(tensors)),
            (("not_restored",), self._loop.lost()),
        ]
        return None if tensors.entries else found

    def _values_of_parts(self, tensors: Tensors) -> Iterator[tuple[Path, Any]]:
        for name, kind, get in self._others:
            yield ("parts", name), kind(name, get()).take(tensors)
        for each in self._places:
            if isinstance(each, OptimizerPlaces):
                for index, group in enumerate(each.get().param_groups):
                    path = ("parts", each.name, "param_groups", index)
                    known = self._groups.get(path)
                    if known is None:
                        known = self._groups[path] = _Group(self._before(path))
                    yield path, known.now(group, tensors)

    def _before(self, path: Path) -> Any:
        place: Any = self._meta
        for key in path:
            place = place[key]
        return place

    def _note(self, name: str, part: Part) -> None:
        thing = part.thing
        if isinstance(part, ModulePart):
            self._places.append(ModulePlaces(thing))
        elif isinstance(part, OptimizerPart):
            self._places.append(OptimizerPlaces(name, thing))
        elif isinstance(part, TensorPart):
            self._places.append(TensorPlace(thing))
        elif isinstance(part, ArrayPart):
            raise Unknown
        else:
            tensors = Tensors()
            part.take(tensors)
            if tensors.entries:
                raise Unknown
            self._others.append((name, type(part), _reference(thing)))

    def _adds_up(self) -> bool:
        """Gradients that wait for their optimizer are part of the state."""
        ids = self._loop.waiting()
        return bool(ids) and any(
            id(each) in ids and each.grad is not None for each in self._loop.trained()
        )


class _Group:
    """The settings of one group of an optimizer's parameters: mostly what they were."""

    def __init__(self, before: dict[str, Any]) -> None:
        """
        Args:
            before: as published.
        """
        self._keys = [key for key in before if key not in _NAMES_OF_TENSORS]
        self._values: list[Any] = []
        self._told = before

    def now(self, group: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
        """
        As JSON; the same dict as before where all of it is the same.

        Args:
            group: of the optimizer.
            tensors: receives those that are among the settings.
        """
        values = [group.get(key) for key in self._keys]
        if len(values) == len(self._values) and all(map(is_, values, self._values)):
            return self._told
        told = dict(self._told)
        for key, value in zip(self._keys, values, strict=True):
            told[key] = torch_values.encode(value, key, tensors)
        # A list that is written to is the same one, and another value.
        self._values = values if all(map(_stays, values)) else []
        self._told = told
        return told


def _stays(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _reference(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # dicts, lists and generators, which hold no tensors here
        return lambda: thing
