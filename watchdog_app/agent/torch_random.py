"""
Random numbers where PyTorch trains: the global ones, each device's, and those of the data.

A resumed process starts all of them anew unless they are put back. Generators
that a data loader or data set holds for itself are looked for in what the program
wrote: attributes, closures, and the globals that its functions name.
"""

from __future__ import annotations

import base64
import functools
import random
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from watchdog_app.agent import randomness

State = dict[str, Any]

_MOST_THINGS = 3000
_MOST_ITEMS = 64  # of a list or dict; longer ones are data
_MOST_FOUND = 32
_LIBRARIES = frozenset(
    {"torch", "torchvision", "torchaudio", "numpy", "watchdog_app", "random", "builtins"}
    | {"threading", "_thread", "multiprocessing", "tensorflow", "keras", "pandas", "PIL"}
)


def take() -> State:
    """Python's, NumPy's and PyTorch's global generators as they are now, as JSON."""
    devices: dict[str, list[str]] = {}
    for kind, module in _accelerators():
        devices[kind] = [
            _text(module.get_rng_state(index)) for index in range(module.device_count())
        ]
    if _has_mps():
        devices["mps"] = [_text(torch.mps.get_rng_state())]
    return {
        **randomness.take(),
        "torch": _text(torch.get_rng_state()),
        "devices": devices,
    }


def put(state: State) -> None:
    """Set the global generators to what `take` returned; devices that are not here are left out."""
    randomness.put(state)
    torch.set_rng_state(_tensor(state["torch"]))
    for kind, states in state["devices"].items():
        if kind == "mps":
            if _has_mps():
                torch.mps.set_rng_state(_tensor(states[0]))
            continue
        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            continue
        for index, text in enumerate(states[: module.device_count()]):
            module.set_rng_state(_tensor(text), index)


def is_generator(thing: Any) -> bool:
    """Whether this is a random generator that can be taken and put back."""
    return _kind(thing) is not None


def take_one(generator: Any) -> list[Any]:
    """Kind and state of one generator, as JSON."""
    if isinstance(generator, torch.Generator):
        state: Any = _text(generator.get_state())
    elif isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        state = [version, list(words), gauss]
    else:
        held = generator.get_state() if isinstance(generator, np.random.RandomState) else None
        state = _plain(held if held is not None else generator.bit_generator.state)
    return [_kind(generator), state]


def put_one(generator: Any, state: Sequence[Any]) -> None:
    """Set one generator, of the same kind, to what `take_one` returned."""
    _kind_of_it, held = state
    if isinstance(generator, torch.Generator):
        generator.set_state(_tensor(held))
    elif isinstance(generator, random.Random):
        version, words, gauss = held
        generator.setstate((version, tuple(words), gauss))
    elif isinstance(generator, np.random.RandomState):
        name, keys, *rest = held
        generator.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    else:
        generator.bit_generator.state = held


def put_all(generators: Sequence[Any], states: Sequence[Sequence[Any]]) -> bool:
    """Set several; False, and nothing set, where they are others than were taken."""
    if [_kind(each) for each in generators] != [state[0] for state in states]:
        return False
    for each, state in zip(generators, states, strict=True):
        put_one(each, state)
    return True


def find(source: Any) -> list[Any]:
    """
    The generators within reach of a loader or data set, in an order that its program repeats.

    PyTorch's, NumPy's and Python's; never the global ones.
    """
    found: list[Any] = []
    waiting: list[Any] = [source]
    seen: dict[int, Any] = {}  # keeps what was seen alive: another thing may not get its id
    while waiting and len(seen) < _MOST_THINGS and len(found) < _MOST_FOUND:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if _kind(thing) is not None:
            if not _global(thing):
                found.append(thing)
            continue
        try:
            waiting.extend(reversed(list(_within(thing))))
        except Exception:  # noqa: S112 - a thing that does not let itself be looked into
            continue
    return found


def _kind(thing: Any) -> str | None:
    if isinstance(thing, torch.Generator):
        return "torch.Generator"
    if isinstance(thing, np.random.Generator):
        return type(thing.bit_generator).__name__
    if isinstance(thing, np.random.RandomState):
        return "RandomState"
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return "Random"
    return None


def _global(thing: Any) -> bool:
    known = (
        getattr(random, "_inst", None),
        getattr(np.random.mtrand, "_rand", None),
        torch.default_generator,
    )
    return any(thing is each for each in known)


def _within(thing: Any) -> Iterator[Any]:
    """What a thing holds, as far as the program put it there."""
    if isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.GeneratorType):
        if thing.gi_frame is not None:
            yield from thing.gi_frame.f_locals.values()
            yield from _globals(thing.gi_code, thing.gi_frame.f_globals)
    elif isinstance(thing, (list, tuple)):
        if len(thing) <= _MOST_ITEMS:
            yield from thing
    elif isinstance(thing, dict):
        if len(thing) <= _MOST_ITEMS:
            yield from thing.values()
    elif not isinstance(thing, (type, types.ModuleType, np.ndarray, torch.Tensor)):
        yield from _of_object(thing)


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)
    yield from _globals(function.__code__, function.__globals__)


def _globals(code: types.CodeType, known: dict[str, Any]) -> Iterator[Any]:
    """The globals that a function of the program names, those of its inner functions as well."""
    if _of_library(known.get("__name__", "")):
        return
    for name in code.co_names:
        if name in known:
            yield known[name]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner, known)


def _of_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _of_object(thing: Any) -> Iterator[Any]:
    module = str(type(thing).__module__)
    # Loaders, samplers, subsets and compositions of transforms hold what the program gave them.
    if _of_library(module) and not module.startswith(("torch.utils.data", "torchvision")):
        return
    for name, value in getattr(thing, "__dict__", {}).items():
        if name != "_iterator":  # of a DataLoader: a pass that is under way
            yield value
    for kind in type(thing).__mro__:
        if _of_library(kind.__module__):
            continue
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)
        for held in vars(kind).values():
            if isinstance(held, types.FunctionType):
                yield held


def _accelerators() -> Iterator[tuple[str, Any]]:
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        # Before a program uses a device, asking for its random numbers would initialise it.
        if module is not None and module.is_initialized():
            yield kind, module


def _has_mps() -> bool:
    mps = getattr(torch.backends, "mps", None)
    return mps is not None and bool(mps.is_available())


def _plain(value: Any) -> Any:
    """NumPy's state of a generator, whatever it is made of, in JSON's types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(np.frombuffer(base64.b64decode(text), np.uint8))
