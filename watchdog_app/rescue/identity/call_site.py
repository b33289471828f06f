"""Where in the program a training begins: the function, and the plain values passed to it."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import os
import sysconfig
from dataclasses import dataclass, field
from numbers import Integral
from operator import itemgetter
from types import FrameType, FunctionType
from typing import Any

from watchdog_app.rescue.identity import arguments

_LIBRARIES = frozenset(
    (
        *("watchdog_app", "keras", "tf_keras", "tensorflow", "torch", "lightning", "transformers"),
        *("pytorch_lightning", "accelerate", "contextlib", "functools", "ignite", "fastai"),
    )
)
_STANDARD_LIBRARY = tuple(
    os.path.join(path, "")
    for name in ("stdlib", "platstdlib")
    if (folder := sysconfig.get_path(name))
    for path in (folder, os.path.realpath(folder))
)
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")  # the second: Debian's Python
_LONGEST_TEXT = 10_000


@dataclass(frozen=True, slots=True)
class CallSite:
    """
    A function of the program that begins a training.

    Attributes:
        function: its qualified name, with `#2` if the second `fit(...)` in its text trains. The
            names of callers follow whose text calls it a second time or later.
        given: names and plain values passed to it and its callers. For one name, its own value
            comes first, then those of its callers. Never store or show them.
    """

    function: str
    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def call_site(frame: FrameType | None) -> CallSite | None:
    """
    The program's function that called `frame`, outside of any library.

    Its callers count up to the script itself, which a debugger may have started.
    """
    functions: list[str] = []
    given: dict[tuple[str, str], None] = {}
    while frame is not None:
        module = _program_module(frame)
        if module is not None:
            code = frame.f_code
            which = _call_ordinal(frame)
            if which or not functions:
                functions.append(f"{module}.{code.co_qualname}{which}")
            given.update(dict.fromkeys(_plain_values(frame)))
            if module == "__main__" and not code.co_flags & inspect.CO_NEWLOCALS:
                break
        frame = frame.f_back
    if not functions:
        return None
    return CallSite(" < ".join(functions), tuple(sorted(given, key=itemgetter(0))))


def is_library_file(file: str) -> bool:
    """Whether a file belongs to Python's standard library or to an installed package."""
    return any(each in file for each in _PACKAGE_FOLDERS) or file.startswith(_STANDARD_LIBRARY)


def _program_module(frame: FrameType) -> str | None:
    """Name of the module that a frame runs; None for a library."""
    name = str(frame.f_globals.get("__name__", ""))
    library = is_library_file(frame.f_code.co_filename) and name != "__main__"
    if library or name.partition(".")[0] in _LIBRARIES:
        return None
    return "__main__" if name == "__mp_main__" else name


def _plain_values(frame: FrameType) -> list[tuple[str, str]]:
    """
    Arguments of a frame's function, and variables of the loops around its current line.

    Omits values that do not change the training, such as `epochs`. Never raises.
    """
    found = []
    for name, value in dict(_given_values(frame)).items():
        text = _value_text(value)
        if text is not None and not arguments.is_benign_variable(name, text):
            found.append((name, text))
    values = frame.f_locals
    for name in _loop_variables(frame):
        text = _value_text(values[name]) if name in values and name != "_" else None
        if text is None or arguments.is_length(name):
            continue
        # `for lr in (0.1, 0.01)` begins a training per value; `lr` as an argument does not.
        benign = arguments.is_benign_variable(name, text)
        found.append((f"loop variable {name}" if benign else name, text))
    return list(dict.fromkeys(found))


def _given_values(frame: FrameType) -> list[tuple[str, Any]]:
    """The arguments passed to a frame's function, by name; those of `**cfg` as `cfg.fold`."""
    names, several, by_keyword, values = inspect.getargvalues(frame)
    found = [(name, values[name]) for name in names if name in values]
    if several is not None and isinstance(collected := values.get(several), tuple):
        found += [(f"{several}.{place}", each) for place, each in enumerate(collected)]
    if by_keyword is not None and isinstance(collected := values.get(by_keyword), dict):
        found += [(f"{by_keyword}.{key}", each) for key, each in collected.items()]
    return found


def _value_text(value: Any) -> str | None:
    """A plain value or a function as a text that is the same in another run; None: neither."""
    try:
        if value is None or isinstance(value, bool):
            return str(value)
        if isinstance(value, float):
            return repr(float(value))
        if isinstance(value, Integral):  # of NumPy too
            return str(int(value))
        if isinstance(value, FunctionType | type):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
            return arguments.strip_temporary_path(str(value))
    except Exception:  # objects of the program may raise
        return None
    return None


def _loop_variables(frame: FrameType) -> list[str]:
    """Variables that are set by the loops around a frame's current line. Never raises."""
    line = frame.f_lineno or 0
    try:
        source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
        loops = _find_loops(source)
    except Exception:  # not Python, or a custom loader
        return []
    return [name for first, last, names in loops for name in names if first <= line <= last]


def _call_ordinal(frame: FrameType) -> str:
    """
    `#2` for the second call of one name in a function's text, "" for the first. Never raises.

    It does not depend on line numbers, which edits change, nor on executed calls: a rerun may skip
    the first.
    """
    code = frame.f_code
    try:
        positions = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
        source = "".join(linecache.getlines(code.co_filename, frame.f_globals))
        number = _count_calls(source).get((positions[1], positions[3]), 1)
    except Exception:  # not Python, or a custom loader
        return ""
    return f"#{number}" if number > 1 else ""


@functools.lru_cache(maxsize=16)
def _count_calls(source: str) -> dict[tuple[int | None, int | None], int]:
    """End position of each call -> its ordinal among the calls of that name in its function."""
    found: dict[tuple[int | None, int | None], int] = {}
    functions: list[ast.AST] = [ast.parse(source)]
    while functions:
        calls = []
        inside = list(ast.iter_child_nodes(functions.pop()))
        while inside:
            node = inside.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                functions.append(node)
                continue
            if isinstance(node, ast.Call):
                calls.append(node)
            inside.extend(ast.iter_child_nodes(node))
        counted: dict[str, int] = {}
        for call in sorted(calls, key=lambda each: (each.end_lineno, each.end_col_offset)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            counted[name] = counted.get(name, 0) + 1
            found[call.end_lineno, call.end_col_offset] = counted[name]
    return found


@functools.lru_cache(maxsize=16)
def _find_loops(source: str) -> list[tuple[int, int, list[str]]]:
    """First and last line of each loop's body, and the variables that the loop sets."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.For | ast.AsyncFor):
            lines = node.body[0].lineno, node.body[-1].end_lineno or 0
            targets = [node.target]
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            lines = node.lineno, node.end_lineno or 0
            targets = [each.target for each in node.generators]
        else:
            continue
        inside = [each for target in targets for each in ast.walk(target)]
        found.append((*lines, [each.id for each in inside if isinstance(each, ast.Name)]))
    return found
