"""
Find, capture and restore the random generators that a source of data holds.

A generator function draws its order from `rng` in its closure, a `PyDataset` from `self.rng`, a
`map` from a layer's seeds. The program does not name them, but their state at the start of a pass
is enough to repeat that pass. The search covers what the program wrote: attributes, closures, and
the globals that its functions name. Arrays of row numbers that a source shuffles in place are
captured, too. So is what a sampler of the program keeps over its passes.

Generators of every framework that the program has loaded are supported; none is imported.
"""

from __future__ import annotations

import functools
import marshal
import random
import sys
import types
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from typing import Any

from watchdog_app.agent.state import randomness

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

States = list[list[Any]]  # per generator: its kind, and its state as JSON
Orders = dict[str, list[int]]  # attribute name -> order

CHANGED = (
    "the data draws from other random generators than when the rescue was saved: its order "
    "starts over."
)
_OF_TORCH = "torch.Generator"
_OF_KERAS, _OF_TENSORFLOW = "SeedGenerator", "tf.random.Generator"
_WITH_VARIABLE = (_OF_KERAS, _OF_TENSORFLOW)  # generators whose state is a variable
_DATALOADER = ("torch", "utils", "data", "DataLoader")
_SAMPLER = "Sampler"  # of the program, with attributes that its passes change
# checksums of the attributes of samplers before their first passes
_first_checksums: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), type})
_MOST_THINGS = 3000
_MOST_ITEMS = 64  # items of a list or dict; longer ones are data
_MOST_FOUND = 32
_MOST_ROWS = 200_000  # rows of an order that goes into a rescue
_LIBRARIES = frozenset(
    {"tensorflow", "keras", "torch", "torchvision", "torchaudio", "numpy", "pandas", "PIL"}
    | {"watchdog_app", "random", "builtins", "threading", "_thread", "multiprocessing"}
)
# Library objects that hold functions or sources of the program: pipelines, loaders, samplers,
# subsets, compositions of transforms.
_HOLDERS = (
    *("tensorflow.python.data.", "tensorflow.python.ops.script_ops"),
    *("torch.utils.data", "torchvision"),
)


def find_generators(source: Any) -> list[Any]:
    """
    The generators that a data set or loader uses, in an order that the same program repeats.

    Includes generators of NumPy, Python, TensorFlow and PyTorch, Keras's seed generators, and
    samplers of the program. Never includes the global ones.
    """
    found: list[Any] = []
    waiting: list[Any] = [source]
    seen: dict[int, Any] = {}  # keeps visited objects alive, so that no other object gets their id
    while waiting and len(seen) < _MOST_THINGS and len(found) < _MOST_FOUND:
        thing = waiting.pop()
        if type(thing) in _PLAIN or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if _generator_kind(thing) is not None:
            if not is_global(thing):
                found.append(thing)
            if not _is_sampler(thing):
                continue
        try:
            waiting.extend(reversed(list(_children(thing))))
        except Exception:  # noqa: S112 - the object does not allow inspection
            continue
    return found


def is_generator(thing: Any) -> bool:
    """Whether this is a random generator that can be captured and restored."""
    return _generator_kind(thing) is not None and not _is_sampler(thing)


def capture_all(generators: Sequence[Any]) -> States:
    """The current states, as JSON."""
    return [capture(each) for each in generators]


def restore_all(generators: Sequence[Any], states: Sequence[Sequence[Any]]) -> bool:
    """Restore the generators. If their kinds differ, set nothing and return False."""
    if [_generator_kind(each) for each in generators] != [state[0] for state in states]:
        return False
    for each, state in zip(generators, states, strict=True):
        restore(each, state)
    return True


def capture(generator: Any) -> list[Any]:
    """Kind and state of one generator, as JSON."""
    kind = _generator_kind(generator)
    if kind == "Random":
        state = _json_state(generator.getstate())
    elif kind == "RandomState":
        state = _json_state(generator.get_state())
    elif kind == _SAMPLER:
        state = _changed_attributes(generator)
    elif kind == _OF_TORCH:
        state = randomness.torch_text(generator.get_state())
    elif kind in _WITH_VARIABLE:
        state = _numpy().asarray(generator.state).tolist()
    else:
        state = _json_state(generator.bit_generator.state)
    return [kind, state]


def restore(generator: Any, state: Sequence[Any]) -> None:
    """Set a generator of the same kind to the state that `capture` returned."""
    kind, held = state
    if kind == "Random":
        generator.setstate(randomness.random_from_json(held))
    elif kind == "RandomState":
        name, keys, *rest = held
        generator.set_state((name, _numpy().array(keys, dtype="uint32"), *rest))
    elif kind == _SAMPLER:
        _restore_attributes(generator, held)
    elif kind == _OF_TORCH:
        generator.set_state(randomness.torch_state(held))
    elif kind in _WITH_VARIABLE:
        type_ = _numpy().asarray(generator.state).dtype
        generator.state.assign(_numpy().array(held, dtype=type_))
    else:
        generator.bit_generator.state = held


def _is_sampler(thing: Any) -> bool:
    """Whether this is a sampler of the program, which has no state_dict of its own."""
    is_sampler = isinstance(thing, _loaded_class("torch", "utils", "data", "Sampler"))
    kind = type(thing)
    own = is_sampler and not (_is_library(kind.__module__) or hasattr(thing, "state_dict"))
    return own and kind.__hash__ is not None


def _changed_attributes(sampler: Any) -> dict[str, Any]:
    """The attributes that changed since the first call, as JSON; nothing of other objects."""
    from watchdog_app.agent.state import values

    def leaf(item: Any, _: str) -> Any:
        if not isinstance(item, _loaded_class("numpy", "ndarray")) or item.dtype.kind not in "biuf":
            return None
        if item.size > _MOST_ROWS:
            raise TypeError
        return {values.ARRAY: [item.dtype.str, item.shape, item.reshape(-1).tolist()]}

    checksums = dict[str, int]()
    attributes = dict(getattr(sampler, "__dict__", {}))
    for name, value in attributes.items():
        with suppress(Exception):  # not of plain values, as the data set
            plain = dict(value) if isinstance(value, dict) else value
            rows = len(value) if isinstance(value, Sized) else 1
            if max(rows, getattr(value, "size", 1)) <= _MOST_ROWS:
                checksums[name] = zlib.crc32(marshal.dumps(plain, 2))  # without references
    first, found = _first_checksums.setdefault(sampler, checksums), {}
    for name, checksum in checksums.items():
        with suppress(TypeError):  # a rescue cannot hold it
            if checksum != first.get(name):
                found[name] = values.encode(attributes[name], name, leaf)
    return found


def _restore_attributes(sampler: Any, held: dict[str, Any]) -> None:
    """Set the attributes that `_changed_attributes` returned; dicts in place."""
    from watchdog_app.agent.state import values

    _changed_attributes(sampler)
    array = _numpy().array
    for name, encoded in held.items():
        value = values.decode(encoded, lambda _, of: array(of[2], of[0]).reshape(of[1]))
        now = getattr(sampler, name, None)
        if isinstance(now, dict) and isinstance(value, dict):
            now.clear()
            now.update(value)
        else:
            setattr(sampler, name, value)


def order_checksums(source: Any) -> dict[str, int]:
    """Checksums of the orders (vectors of integers) that an object of the program keeps."""
    return {name: zlib.crc32(order.tobytes()) for name, order in _orders(source)}


def changed_orders(source: Any, before: dict[str, int]) -> Orders:
    """The orders that changed since `order_checksums` returned `before`."""
    return {
        name: order.tolist()
        for name, order in _orders(source)
        if before.get(name) != zlib.crc32(order.tobytes())
    }


def restore_orders(source: Any, orders: Orders) -> None:
    """Set the orders that `changed_orders` returned, if the object still has them."""
    for name, order in _orders(source):
        rows = orders.get(name)
        if rows is not None and len(rows) == len(order):
            setattr(source, name, _numpy().array(rows, dtype=order.dtype))


class DataState:
    """What passes over a data set change: its own generators, and orders that it shuffles."""

    def __init__(self, source: Any, holders: Sequence[Any] | None = None) -> None:
        """
        Args:
            source: the data set.
            holders: the objects that may keep an order; None: the data set itself.
        """
        self.source = source
        self._holders = [source] if holders is None else holders
        self._sketches = [order_checksums(each) for each in self._holders]
        self.held: dict[str, Any] = {"random": [], "orders": []}

    def capture(self) -> dict[str, Any]:
        """Record the current state in `held`, as JSON values."""
        orders = map(changed_orders, self._holders, self._sketches)
        random = capture_all(find_generators(self.source))
        self.held = {"random": random, "orders": list(orders)}
        return self.held

    def restore(self, held: Mapping[str, Any]) -> bool:
        """Restore what another process recorded; False if it had other generators."""
        for holder, orders in zip(self._holders, held["orders"], strict=False):
            restore_orders(holder, orders)
        before = held["random"]
        return not before or restore_all(find_generators(self.source), before)


def _orders(source: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if _is_library(type(source).__module__):
        return
    for name, value in getattr(source, "__dict__", {}).items():
        if (
            not isinstance(value, _loaded_class("numpy", "ndarray"))
            or value.ndim != 1
            or value.dtype.kind not in "iu"
        ):
            continue
        if value.size <= _MOST_ROWS:
            yield name, value


def _generator_kind(thing: Any) -> str | None:
    if isinstance(thing, random.Random):
        return None if isinstance(thing, random.SystemRandom) else "Random"
    if _is_sampler(thing):
        return _SAMPLER
    if isinstance(thing, _loaded_class("numpy", "random", "Generator")):
        return type(thing.bit_generator).__name__
    for kind, module, *path in (
        ("RandomState", "numpy", "random", "RandomState"),
        (_OF_KERAS, "keras", "random", "SeedGenerator"),
        (_OF_TENSORFLOW, "tensorflow", "random", "Generator"),
        (_OF_TORCH, "torch", "Generator"),
    ):
        if isinstance(thing, _loaded_class(module, *path)):
            return kind
    return None


def _numpy() -> Any:
    return sys.modules["numpy"]


def _loaded_class(module: str, *path: str) -> Any:
    """A class of a loaded framework; otherwise an empty tuple, of which nothing is an instance."""
    found = sys.modules.get(module)
    for name in path:
        found = getattr(found, name, None)
    return found if isinstance(found, type) else ()


def is_global(thing: Any) -> bool:
    """Whether this is one of the generators that belong to the whole process."""
    known = (
        getattr(random, "_inst", None),
        getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None),
        getattr(sys.modules.get("torch"), "default_generator", None),
    )
    return any(thing is each for each in known)


def _json_state(value: Any) -> Any:
    """A generator's state in JSON's types."""
    if isinstance(value, dict):
        return {str(key): _json_state(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_state(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _children(thing: Any) -> Iterator[Any]:
    """The objects that the program has put into an object."""
    if isinstance(thing, types.FunctionType):
        yield from _function_children(thing)
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
    elif isinstance(thing, _loaded_class("keras", "Layer")):
        yield from getattr(thing, "_seed_generators", ())
        yield from getattr(thing, "_layers", ())
    elif not isinstance(
        thing,
        (
            type,
            types.ModuleType,
            _loaded_class("numpy", "ndarray"),
            _loaded_class("torch", "Tensor"),
        ),
    ):
        yield from _object_children(thing)


def _function_children(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield getattr(function, "__wrapped__", None)
    yield from _globals(function.__code__, function.__globals__)


def _globals(code: types.CodeType, known: dict[str, Any]) -> Iterator[Any]:
    """The globals that a function of the program and its inner functions name."""
    if _is_library(known.get("__name__", "")):
        return
    for name in code.co_names:
        if name in known:
            yield known[name]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(inner, known)


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _object_children(thing: Any) -> Iterator[Any]:
    module = str(type(thing).__module__)
    if _is_library(module) and not module.startswith(_HOLDERS):
        return
    sources = getattr(thing, "_inputs", None)
    if callable(sources):
        yield from sources()
    under_way = "_iterator" if isinstance(thing, _loaded_class(*_DATALOADER)) else None
    for name, value in getattr(thing, "__dict__", {}).items():
        if name != under_way:
            yield value
    for kind in type(thing).__mro__:
        if _is_library(kind.__module__):
            continue
        for name in getattr(kind, "__slots__", ()):
            yield getattr(thing, name, None)
        for held in vars(kind).values():
            if isinstance(held, types.FunctionType):
                yield held
