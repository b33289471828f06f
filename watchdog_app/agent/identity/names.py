"""
Find the names that a program has for its objects, in the frames that lead to a call.

A rescue of a loop without a Rescue must use the names that its author would give. The search covers
the variables of the training function and of its callers, and the globals that their code uses. It
also covers attributes of the program's own objects and items of small lists and dicts. It does not
enter libraries.
"""

from __future__ import annotations

import itertools
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from watchdog_app.agent.identity.code import (
    closure,
    is_own,
    is_own_file,
    is_program,
    library_class,
    nested_codes,
    program_frames,
)
from watchdog_app.agent.telemetry.stacks import frame_locals

_MOST_FRAMES = 40  # frames of the program and the frames between them
_MOST_THINGS = 4000
_MOST_ITEMS = 32  # items of a list or dict to search; longer ones are data
_DEPTH = 5
_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function, not a module or a class body
_ARGUMENTS = ("argparse", "Namespace")
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, bytearray, type(None))
Wanted = Callable[[Any], bool]
# Argument names of Rescue(...).
_RESERVED = frozenset({"self", "directory", "name", "resume", "keep", "on_oom", "strict"})


@dataclass(frozen=True, slots=True)
class Found:
    """An object that the program has a name for."""

    name: str  # an identifier, unique within one search
    expression: str  # code that reaches the object: "self.model", 'parts["encoder"]'
    thing: Any
    code: CodeType  # of the function in which the expression does so


@dataclass(frozen=True, slots=True)
class Named:
    """One object of a training, by a reference that does not keep it alive."""

    name: str  # a keyword of Rescue(...)
    expression: str  # code that reaches the object; without such code, a description
    get: Callable[[], Any]  # returns the object; None after its deletion
    stamp: Callable[[Any], int] | None = None  # version of an object that is not trained
    stamped: int = 0  # that version when the agent found the object

    def part(self) -> Any:
        """The object if it belongs into a rescue: it is trained, or it has changed."""
        thing = self.get()
        still = thing is not None and self.stamp is not None and self.stamp(thing) == self.stamped
        return None if still else thing


def keyword(wish: str, taken: set[str], instead: str | None = None) -> str:
    """
    Choose a free keyword of Rescue(...), and add it to `taken`.

    Args:
        wish: the program's name for the object.
        taken: keywords of other objects.
        instead: the keyword if Rescue(...) has an argument `wish`; None: append "_" to `wish`.
    """
    return _unique_name((instead or f"{wish}_") if wish in _RESERVED else wish, taken)


def names_of(objects: Iterable[object], frame: FrameType | None) -> dict[str, Any]:
    """
    The names that the program has for `objects`, those of the innermost function first.

    Args:
        objects: the objects, which are compared by identity.
        frame: the innermost frame of the search, which includes its callers.

    Returns:
        Name to object, in the order of discovery, without objects that have no name. If two would
        have the same name, the later one gets a number at its end.
    """
    asked = {id(each): each for each in objects}
    return {found.name: found.thing for found in search(frame, lambda one: id(one) in asked)}


def search(
    frame: FrameType | None, wanted: Wanted, passing: Collection[str] = (), most: int = _MOST_FRAMES
) -> list[Found]:
    """
    All `wanted` objects that the program's names reach, without duplicates.

    The search enters no private attribute of a wanted object of a library. If `wanted` raises, it
    skips the object.

    Args:
        frame: the innermost frame of the search, which includes its callers.
        wanted: whether to return an object.
        passing: variables that the loop assigns again; the search uses them last in each frame.
        most: frames of the program to search.
    """
    taken: set[str] = set()
    return [
        Found(_unique_name(_identifier(expression), taken), expression, thing, code)
        for expression, thing, code in _find_reachable(frame, wanted, passing, most)
    ]


def _find_reachable(
    frame: FrameType | None, wanted: Wanted, passing: Collection[str], most: int
) -> Iterator[tuple[str, Any, CodeType]]:
    seen: dict[int, Any] = {}  # keeps objects alive, so that no other object gets the same id
    for each, late in itertools.product(program_frames(frame, most), (False, True)):
        named = frame_variables(each).items()
        roots = [(name, thing) for name, thing in named if (name in passing) is late]
        for expression, thing in _walk(roots, wanted, each.f_globals, seen):
            yield expression, thing, each.f_code


def objects_in(roots: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The program's own plain objects that these objects hold, with expressions."""
    return list(_walk(roots, is_plain_object, {}, {}))


def is_plain_object(thing: Any) -> bool:
    """Whether an object is of a class of the program that has no base class of a library."""
    return is_own(kind := type(thing)) and library_class(kind) == "object"


def _walk(
    roots: Iterable[tuple[str, Any]], wanted: Wanted, outer: Mapping[str, Any], seen: dict[int, Any]
) -> Iterator[tuple[str, Any]]:
    waiting = [(name, thing, 0) for name, thing in roots]
    while waiting and len(seen) < _MOST_THINGS:
        expression, thing, depth = waiting.pop(0)
        if isinstance(thing, _PLAIN_TYPES) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        try:
            private = "?"  # begins no expression
            if wanted(thing):
                yield expression, thing
                if library_class(type(thing)) != "object":
                    private = f"{expression}._"
            if depth < _DEPTH:
                inner = _read_contents(expression, thing, outer)
                waiting += [(*one, depth + 1) for one in inner if not one[0].startswith(private)]
        except Exception:  # noqa: S112 - an object whose attributes raise
            continue


def frame_variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, and the globals that its code names."""
    code, outer = frame.f_code, frame.f_globals
    names: dict[str, Any] = {}
    if code.co_flags & _OPTIMIZED:
        names.update(frame_locals(frame))
    names.update(
        (name, outer[name]) for name in _used_names(code) if name in outer and name not in names
    )
    return names


def _used_names(code: CodeType) -> Iterator[str]:
    """The names that code and its inner functions use."""
    return (name for each in nested_codes(code) for name in each.co_names)


def _read_contents(
    expression: str, thing: Any, outer: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The objects inside an object of the program, with the expressions that reach them."""
    if isinstance(thing, types.MethodType):
        yield expression.rpartition(".")[0] or expression, thing.__self__
        thing = thing.__func__
    # Unwrap a tf.function, or a wrapper by functools.wraps.
    inner = getattr(thing, "_python_function", None) or getattr(thing, "__wrapped__", None)
    if isinstance(inner, types.FunctionType | types.MethodType):
        yield from _read_contents(expression, inner, outer)
    elif isinstance(thing, types.FunctionType):
        yield from _function_variables(thing)
    elif isinstance(thing, list | tuple):
        if len(thing) <= _MOST_ITEMS:
            yield from ((f"{expression}[{number}]", one) for number, one in enumerate(thing))
    elif isinstance(thing, dict):
        if len(thing) <= _MOST_ITEMS:
            yield from (
                (f"{expression}[{key!r}]", one)
                for key, one in list(thing.items())
                if isinstance(key, str | int)
            )
    elif isinstance(thing, types.ModuleType):
        file = getattr(thing, "__file__", None)
        if file and is_own_file(file):
            for name, one in list(vars(thing).items()):
                if not name.startswith("__") and not isinstance(one, types.ModuleType | type):
                    yield f"{expression}.{name}", one
    elif not isinstance(thing, type) and _is_program_class(type(thing)):
        for name, one in list(getattr(thing, "__dict__", {}).items()):
            yield f"{expression}.{name}", one


def _function_variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    # AutoGraph converts a function of the program to one in a temporary file: it counts as well.
    if not is_program(code):
        return
    yield from closure(function).items()
    for name in _used_names(code):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _is_program_class(kind: type) -> bool:
    """Whether a class is the program's own, or a plain namespace of the standard library."""
    standard = kind is types.SimpleNamespace or (kind.__module__, kind.__name__) == _ARGUMENTS
    return standard or kind.__module__ == "__main__" or is_own(kind)


def _unique_name(base: str, taken: set[str]) -> str:
    name, number = base, 2
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def _identifier(expression: str) -> str:
    """`model` for "self.model", `parts_encoder` for 'parts["encoder"]'."""
    last = expression.rpartition(".")[2] if expression.isprintable() else "thing"
    name = re.sub(r"\W+", "_", last).strip("_") or "thing"
    return f"_{name}" if name[0].isdigit() else name
