"""
What a PyTorch training that named no Rescue consists of, under the names the program has for it.

From the frames that lead to the optimizer's step: modules, schedulers, gradient scalers, random
generators and trained tensors that somebody has a name for. What a library holds for the program is
asked of that library.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from watchdog_app.agent.found import found_names, loop_lines
from watchdog_app.agent.loops import own_random
from watchdog_app.agent.loops.torch_optimizers import drives, parameters

# What Rescue(...) calls its own.
_RESERVED = frozenset({"self", "directory", "resume", "keep", "on_oom"})


@dataclass(frozen=True, slots=True)
class Named:
    """One object of a training, which lives as long as the program wants it to."""

    name: str  # a keyword of Rescue(...)
    expression: str  # as the program reaches it; of what it has no name for, what it is
    get: Callable[[], Any]  # None when it is gone
    stamp: int | None  # of a module that is not trained: moves when its tensors change

    def part(self) -> Any:
        """The object, if it belongs into a rescue."""
        thing = self.get()
        still = thing is not None and self.stamp is not None and _stamp(thing) == self.stamp
        return None if still else thing


def things(
    optimizers: Sequence[Any], frame: FrameType | None, of_library: Sequence[Any] = ()
) -> list[Named]:
    """
    The objects whose state makes up the training of these optimizers.

    Args:
        optimizers: that have stepped.
        frame: where one of them did.
        of_library: modules and schedulers that the library which runs the loop holds.
    """
    trained = {id(item): item for each in optimizers for item in parameters(each)}
    ours = {id(each) for each in optimizers}

    def wanted(thing: Any) -> bool:
        kind = type(thing)
        if issubclass(kind, torch.nn.Module):
            return next(_tensors(thing), None) is not None
        if issubclass(kind, torch.optim.Optimizer):
            return id(thing) in ours
        if issubclass(kind, torch.Tensor):
            return id(thing) in trained
        return (
            _scales(kind)
            or any(drives(thing, each) for each in optimizers)
            or (own_random.is_generator(thing) and not own_random.is_global(thing))
        )

    found = found_names.search(frame, wanted, loop_lines.assigned(loop_lines.places(frame)))
    chosen: list[tuple[str, str, Any]] = []
    modules = [each for each in found if isinstance(each.thing, torch.nn.Module)]
    inner = {id(part) for each in modules for part in list(each.thing.modules())[1:]}
    owned: set[int] = set()
    for each in modules:
        if id(each.thing) not in inner:
            chosen.append((each.name, each.expression, each.thing))
            owned.update(map(id, _tensors(each.thing)))
    for thing in of_library:
        trains = isinstance(thing, torch.nn.Module) and any(
            id(item) in trained and id(item) not in owned for item in thing.parameters()
        )
        if trains:
            chosen.append(("model", f"<the {type(thing).__name__}>", thing))
            owned.update(map(id, _tensors(thing)))
    for each in found:
        if isinstance(each.thing, torch.nn.Module) or id(each.thing) in owned:
            continue
        chosen.append((each.name, each.expression, each.thing))
    known = {id(thing) for _, _, thing in chosen}
    for optimizer in optimizers:
        if id(optimizer) not in known:
            chosen.append(("optimizer", f"<the {type(optimizer).__name__}>", optimizer))
    known = {id(thing) for _, _, thing in chosen}
    chosen += [
        ("scheduler", f"<the {type(thing).__name__}>", thing)
        for thing in of_library
        if id(thing) not in known and any(drives(thing, each) for each in optimizers)
    ]
    within = {
        id(part) for _, _, each in chosen for part in getattr(each, "_schedulers", None) or ()
    }
    return list(_named([one for one in chosen if id(one[2]) not in within], set(trained)))


def missing(found: Iterable[Named], optimizers: Iterable[Any]) -> bool:
    """Whether something that is trained has no owner among these."""
    owned: set[int] = set()
    for each in found:
        thing = each.get()
        if isinstance(thing, torch.nn.Module):
            owned.update(map(id, thing.parameters()))
        elif isinstance(thing, torch.Tensor):
            owned.add(id(thing))
    return any(id(item) not in owned for each in optimizers for item in parameters(each))


def _named(chosen: Sequence[tuple[str, str, Any]], trained: set[int]) -> Iterator[Named]:
    taken = set(_RESERVED)
    for given, expression, thing in chosen:
        own = given not in _RESERVED
        base = given if own else "model" if isinstance(thing, torch.nn.Module) else f"{given}_"
        name, number = base, 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        stamp = None
        if isinstance(thing, torch.nn.Module) and not any(
            id(item) in trained for item in thing.parameters()
        ):
            stamp = _stamp(thing)
        yield Named(name, expression, weak(thing), stamp)


def weak(thing: Any) -> Callable[[], Any]:
    """A reference that keeps nothing alive, where the kind of thing allows it."""
    try:
        return weakref.ref(thing)
    except TypeError:  # generators, which hold nothing
        return lambda: thing


def _scales(kind: type) -> bool:
    return "GradScaler" in kind.__name__ and hasattr(kind, "state_dict")


def _tensors(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def _stamp(module: Any) -> int:
    """A number that moves when a tensor of the module is written to."""
    return sum(int(item._version) for item in _tensors(module))
