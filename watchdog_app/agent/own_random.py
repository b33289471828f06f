"""
Random generators that a source of data holds for itself: found, taken, put back.

A generator function draws its order from `rng` in its closure, a `PyDataset`
from `self.rng`, a `map` from a layer's seeds. Nobody names them, but their state
at the start of a pass is all that it takes to have the same pass again. They are
looked for in what the program wrote: attributes, closures, and the globals that
its functions name. Orders that a source shuffles in place with them go along.
"""

from __future__ import annotations

import functools
import random
import types
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.callback_state import plain

States = list[list[Any]]  # of each generator: its kind, and its state as JSON
Orders = dict[str, list[int]]  # by attribute

CHANGED = (
    "the data draws from other random generators than when the rescue was saved: its order "
    "begins anew."
)
_MOST_THINGS = 3000
_MOST_ITEMS = 64  # of a list or dict; longer ones are data
_MOST_FOUND = 32
_MOST_ROWS = 200_000  # of an order that goes into a rescue
_LIBRARIES = frozenset(
    {"tensorflow", "keras", "numpy", "watchdog_app", "random", "builtins", "threading", "_thread"}
)
# Library objects that hold functions or sources of the program.
_HOLDERS = ("tensorflow.python.data.", "tensorflow.python.ops.script_ops")


def find(source: Any) -> list[Any]:
    """
    The generators within reach of a data set or loader, in an order that the same program repeats.

    NumPy's and Python's, Keras's seed generators and TensorFlow's. Never the global ones.
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


def is_generator(thing: Any) -> bool:
    """Whether this is a random generator that can be taken and put back."""
    return _kind(thing) is not None


def take(generators: list[Any]) -> States:
    """The states as they are now, as JSON."""
    return [[_kind(each), _state(each)] for each in generators]


def put(generators: list[Any], states: States) -> bool:
    """Set the generators; False, and nothing set, where they are others than were taken."""
    if [_kind(each) for each in generators] != [kind for kind, _ in states]:
        return False
    for each, (_, state) in zip(generators, states, strict=True):
        _set(each, state)
    return True


def sketch(source: Any) -> dict[str, int]:
    """Checksums of the orders (vectors of whole numbers) that an object of the program keeps."""
    return {name: zlib.crc32(order.tobytes()) for name, order in _orders(source)}


def changed_orders(source: Any, before: dict[str, int]) -> Orders:
    """The orders that are not as they were when `before` was sketched."""
    return {
        name: order.tolist()
        for name, order in _orders(source)
        if before.get(name) != zlib.crc32(order.tobytes())
    }


def put_orders(source: Any, orders: Orders) -> None:
    """Set the orders that `changed_orders` returned, where the object still keeps such."""
    for name, order in _orders(source):
        rows = orders.get(name)
        if rows is not None and len(rows) == len(order):
            setattr(source, name, np.array(rows, dtype=order.dtype))


def _orders(source: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if _of_library(type(source).__module__):
        return
    for name, value in getattr(source, "__dict__", {}).items():
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
            continue
        if value.size <= _MOST_ROWS:
            yield name, value


def _kind(thing: Any) -> str | None:
    if isinstance(thing, np.random.Generator):
        return type(thing.bit_generator).__name__
    if isinstance(thing, np.random.RandomState):
        return "RandomState"
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        return "Random"
    if isinstance(thing, keras.random.SeedGenerator):
        return "SeedGenerator"
    return "tf.random.Generator" if isinstance(thing, tf.random.Generator) else None


def _global(thing: Any) -> bool:
    module = getattr(random, "_inst", None)
    return thing is module or thing is getattr(np.random.mtrand, "_rand", None)


def _state(thing: Any) -> Any:
    if isinstance(thing, np.random.Generator):
        return plain(thing.bit_generator.state)
    if isinstance(thing, np.random.RandomState):
        return plain(thing.get_state())
    if isinstance(thing, random.Random):
        return plain(thing.getstate())
    return np.asarray(thing.state).tolist()


def _set(thing: Any, state: Any) -> None:
    if isinstance(thing, np.random.Generator):
        thing.bit_generator.state = state
    elif isinstance(thing, np.random.RandomState):
        kind, keys, *rest = state
        thing.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    elif isinstance(thing, random.Random):
        version, words, gauss = state
        thing.setstate((version, tuple(words), gauss))
    else:
        thing.state.assign(np.array(state, dtype=np.asarray(thing.state).dtype))


def _within(thing: Any) -> Iterator[Any]:
    """What a thing holds, as far as the program put it there."""
    if isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield thing.__self__
        yield thing.__func__
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
    elif isinstance(thing, keras.Layer):
        yield from getattr(thing, "_seed_generators", ())
        yield from getattr(thing, "_layers", ())
    elif not isinstance(thing, (type, types.ModuleType, np.ndarray)):
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
    if _of_library(module) and not module.startswith(_HOLDERS):
        return
    sources = getattr(thing, "_inputs", None)
    if callable(sources):
        yield from sources()
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        if _of_library(kind.__module__):
            continue
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)
        for held in vars(kind).values():
            if isinstance(held, types.FunctionType):
                yield held
