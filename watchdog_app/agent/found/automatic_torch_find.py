"""
What a PyTorch training that named no Rescue consists of, under the names the program has for it.

From the frames that lead to the optimizer's step: modules, schedulers, gradient scalers, random
generators and trained tensors that somebody has a name for. Modules and schedulers that no
frame leads to, since a library holds them, are looked for among all objects once.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from watchdog_app.agent.found import found_names
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
    optimizers: Sequence[Any], frame: FrameType | None, passing: Collection[str] = ()
) -> list[Named]:
    """
    The objects whose state makes up the training of these optimizers.

    Args:
        optimizers: that have stepped.
        frame: where one of them did.
        passing: variables that each iteration gives another value to.
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

    found = found_names.search(frame, wanted, passing)
    chosen: list[tuple[str, str, Any]] = []
    modules = [each for each in found if isinstance(each.thing, torch.nn.Module)]
    inner = {id(part) for each in modules for part in list(each.thing.modules())[1:]}
    owned: set[int] = set()
    for each in modules:
        if id(each.thing) not in inner:
            chosen.append((each.name, each.expression, each.thing))
            owned.update(map(id, _tensors(each.thing)))
    for module in _owners({key for key in trained if key not in owned}, trained):
        chosen.append(("model", f"<the {type(module).__name__}>", module))
        owned.update(map(id, _tensors(module)))
    for each in found:
        if isinstance(each.thing, torch.nn.Module) or id(each.thing) in owned:
            continue
        chosen.append((each.name, each.expression, each.thing))
    known = {id(thing) for _, _, thing in chosen}
    for optimizer in optimizers:
        if id(optimizer) not in known:
            chosen.append(("optimizer", f"<the {type(optimizer).__name__}>", optimizer))
    driving = [thing for _, _, thing in chosen]
    for optimizer in optimizers:
        if not any(drives(each, optimizer) for each in driving):
            for each in _schedulers_of(optimizer):
                chosen.append(("scheduler", f"<the {type(each).__name__}>", each))
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


def _owners(wanted: set[int], trained: dict[int, Any]) -> list[Any]:
    """The outermost modules that own these tensors, among all objects of the process."""
    if not wanted:
        return []
    direct = _among_all(
        lambda thing: (
            issubclass(type(thing), torch.nn.Module)
            and any(id(item) in wanted for item in thing.parameters())
        )
    )
    inner = {id(part) for each in direct for part in list(each.modules())[1:]}
    found: list[Any] = []
    left = set(wanted)
    outer = [each for each in direct if id(each) not in inner]
    # The one that owns most: a metric or a wrapper beside it adds nothing.
    outer.sort(key=lambda each: -sum(id(item) in trained for item in each.parameters()))
    for each in outer:
        owned = {id(item) for item in each.parameters()}
        if owned & left:
            found.append(each)
            left -= owned
    return found


def _among_all(wanted: Callable[[Any], bool]) -> list[Any]:
    found = []
    for thing in gc.get_objects():
        try:
            if wanted(thing):
                found.append(thing)
        except Exception:  # noqa: S112 - a thing that does not let itself be looked at
            continue
    return found


def _schedulers_of(optimizer: Any) -> list[Any]:
    kind = torch.optim.lr_scheduler.LRScheduler
    return _among_all(lambda thing: issubclass(type(thing), kind) and drives(thing, optimizer))


def _scales(kind: type) -> bool:
    return "GradScaler" in kind.__name__ and hasattr(kind, "state_dict")


def _tensors(module: Any) -> Iterator[Any]:
    yield from module.parameters()
    yield from module.buffers()


def _stamp(module: Any) -> int:
    """A number that moves when a tensor of the module is written to."""
    return sum(int(item._version) for item in _tensors(module))
