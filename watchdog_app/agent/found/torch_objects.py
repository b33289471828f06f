"""The objects that make up a PyTorch training, by the names that the program has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch

from watchdog_app.agent.found.gradients import ByHand
from watchdog_app.agent.identity import names, source_loops
from watchdog_app.agent.identity.attributes import weak_reference
from watchdog_app.agent.identity.audit import unwrapped
from watchdog_app.agent.identity.code import library_class
from watchdog_app.agent.identity.names import Named
from watchdog_app.agent.state import own_random
from watchdog_app.agent.state.torch_parts import is_of_keras, is_scheduler_of, parameters
from watchdog_app.agent.state.torch_tensors import Tensors, encode


def find_objects(
    optimizers: Sequence[Any], frame: FrameType | None, of_library: Sequence[Any] = ()
) -> list[Named]:
    """
    The objects whose state makes up the training of these optimizers.

    Args:
        optimizers: the optimizers that have stepped.
        frame: the frame in which one of them stepped.
        of_library: modules and schedulers from the library that runs the loop.
    """
    trained = {id(item): item for each in optimizers for item in parameters(each)}
    ours = {id(each) for each in optimizers}
    by_hand = any(isinstance(each, ByHand) for each in optimizers)
    shapes = {each.shape for each in trained.values()}  # a loop by hand may keep averages of them

    def wanted(thing: Any) -> bool:
        thing = unwrapped(thing)[0]
        kind = type(thing)
        if issubclass(kind, torch.nn.Module):
            return next(tensors_of(thing), None) is not None
        if issubclass(kind, torch.optim.Optimizer):
            return id(thing) in ours
        if issubclass(kind, torch.Tensor):
            return id(thing) in trained or (by_hand and thing.shape in shapes)
        return (
            (not of_library and (_is_stateful(thing) or is_of_keras(thing)))
            or any(is_scheduler_of(thing, each) for each in optimizers)
            or (own_random.is_generator(thing) and not own_random.is_global(thing))
        )

    passing = source_loops.assigned_names(source_loops.program_places(frame))
    found = names.search(frame, wanted, passing)
    found = [
        replace(each, expression=each.expression + word, thing=thing)
        for each in found
        for thing, word in [unwrapped(each.thing)]
        if not isinstance(thing, torch.Tensor) or id(thing) in trained or each.name not in passing
    ]
    modules = [each for each in found if isinstance(each.thing, torch.nn.Module)]
    inner = {id(part) for each in modules for part in list(each.thing.modules())[1:]}
    chosen = [
        (each.name, each.expression, each.thing) for each in modules if id(each.thing) not in inner
    ]
    owned = {id(item) for _, _, module in chosen for item in tensors_of(module)}
    for thing in of_library:
        if isinstance(thing, torch.nn.Module) and any(
            id(item) in trained and id(item) not in owned for item in thing.parameters()
        ):
            chosen.append(("model", f"<the {type(thing).__name__}>", thing))
            owned.update(map(id, tensors_of(thing)))
    chosen += [
        (each.name, each.expression, each.thing)
        for each in found
        if not isinstance(each.thing, torch.nn.Module) and id(each.thing) not in owned
    ]
    known = {id(thing) for _, _, thing in chosen}
    schedulers = [
        thing for thing in of_library if any(is_scheduler_of(thing, each) for each in optimizers)
    ]
    chosen += [
        (word, f"<the {type(thing).__name__}>", thing)
        for word, things in (("optimizer", optimizers), ("scheduler", schedulers))
        for thing in things
        if id(thing) not in known and not isinstance(thing, ByHand)
    ]
    within = {
        id(part) for _, _, each in chosen for part in getattr(each, "_schedulers", None) or ()
    }
    return list(_name_objects([one for one in chosen if id(one[2]) not in within], set(trained)))


def _name_objects(chosen: Sequence[tuple[str, str, Any]], trained: set[int]) -> Iterator[Named]:
    taken: set[str] = set()
    for given, expression, thing in chosen:
        module = isinstance(thing, torch.nn.Module)
        name = names.keyword(given, taken, "model" if module else None)
        held = (*tensors_of(thing), thing) if module or isinstance(thing, torch.Tensor) else None
        if held and trained.isdisjoint(map(id, held)):
            yield Named(name, expression, weak_reference(thing), stamp, stamp(thing))
        else:
            yield Named(name, expression, weak_reference(thing))


def _is_stateful(thing: Any) -> bool:
    """Whether a library's object, such as an average, has a state that a rescue can hold."""
    kind, tensors = type(thing), Tensors()
    if not (hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")):
        return False
    # The audit reads the program's own classes; data and other schedulers have their own rules.
    if hasattr(kind, "__iter__") or hasattr(thing, "optimizer") or library_class(kind) == "object":
        return False
    state = thing.state_dict()  # empty for a gradient scaler that is disabled
    encode(state, "", tensors)
    return bool(state) and not tensors.any_trained()


def tensors_of(thing: Any) -> Iterator[Any]:
    """The tensors of a module or a container; a tensor itself."""
    if not isinstance(thing, torch.nn.Module):
        held = list(thing.values()) if isinstance(thing, dict) else thing
        yield from held if isinstance(held, list) else [held]
        return
    yield from thing.parameters()
    yield from thing.buffers()


def are_tensors(thing: Any) -> bool:
    """Whether a thing is a tensor, or a container of tensors alone."""
    items = [] if isinstance(thing, torch.nn.Module) else [*tensors_of(thing)]
    return bool(items) and all(isinstance(each, torch.Tensor) for each in items)


def stamp(thing: Any) -> int:
    """A number that changes when code writes to these tensors, also through `.data`."""
    tensors = [item.detach() for item in tensors_of(thing) if item.numel()]
    return hash(tuple((item[(0,) * item.ndim].item(), item._version) for item in tensors))
