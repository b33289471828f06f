"""
The loops of a program around the steps of a training, from the lines of its source.

The current lines of the program's functions show whether two optimizers step in one loop, and
whether the program has left that loop. If a library runs the loop, the library function that the
program called counts as the loop. Without source the loops are unknown.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, dropwhile
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from watchdog_app.agent.identity.audit import value_of
from watchdog_app.agent.identity.code import (
    is_own,
    is_own_file,
    is_program,
    source_tree,
    unwrapped,
)
from watchdog_app.agent.identity.normalize import last_name
from watchdog_app.agent.source.program import is_of_hooks
from watchdog_app.agent.telemetry.stacks import callers, frame_locals

_MOST_FRAMES = 200
_MOST_DEPTH = 3  # of functions that call each other
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp)
# Modules of frameworks, whose frames between the program and our wrappers do not count.
_FRAMEWORKS = ("torch.", "tensorflow.", "keras.")

# Calls that draw no random numbers; the text of others is read, if it is of the program.
_DRAW_NOTHING = frozenset(
    (
        *("step", "zero_grad", "print", "item", "append", "len", "float", "update", "mean"),
        *("write", "no_grad", "parameters", "add_", "sub_", "mul_", "zero_", "zip", "assign_sub"),
        *("int", "str", "bool", "round", "min", "max", "sum", "abs", "range", "isinstance", "open"),
        *("bytearray", "get", "detach", "cpu", "clone", "tolist", "format", "add_scalar", "time"),
        *("sleep", "perf_counter", "set_postfix", "set_description", "get_last_lr", "copy_", "eq"),
        *("topk", "argmax", "numpy", "squeeze"),
    )
)
_KNOWN = ("torch", "tensorflow", "keras", "numpy", "math", "time", "builtins", "collections")
_DRAWS = re.compile(
    "rand|shuffle|sample|choice|perm|normal|uniform|integers|noise|dropout|fit|generate|nomial"
)

Place = tuple[CodeType, int]  # code of a running function, and its current line


@dataclass(frozen=True, slots=True)
class Loop:
    """The lines of a loop in a function."""

    code: CodeType
    first: int
    last: int
    node: ast.AST | None = field(default=None, compare=False)  # None: a library runs the loop

    def contains(self, code: CodeType, line: int) -> bool:
        """Whether a place is in this loop."""
        return code is self.code and self.first <= line <= self.last


def program_places(frame: FrameType | None) -> tuple[Place, ...]:
    """Places of the program and of the functions that it has called, the innermost first."""
    found: list[tuple[Place, bool]] = []
    outside = 0  # callers of the program (a kernel, a test runner) do not count
    for each in callers(frame):
        if len(found) >= _MOST_FRAMES:
            break
        if not str(each.f_globals.get("__name__")).startswith(_FRAMEWORKS):
            found.append(((each.f_code, each.f_lineno or 0), is_program(each.f_code)))
            if found[-1][1]:
                outside = len(found)
    return tuple(place for place, _ in found[:outside])


def enclosing_loops(stack: Sequence[Place]) -> list[Loop]:
    """The loops around a place of the program, the innermost first."""
    found: list[Loop] = []
    for code, line in stack:
        found += loops_at(code, line)
    if found:
        return found
    called = [code for code, _ in stack if not is_program(code)]
    return [Loop(called[-1], 0, sys.maxsize)] if called else []


def call_at(frame: FrameType) -> ast.Call | None:
    """The call that a frame of the program is in; None if its text does not show it."""
    place = inspect.getframeinfo(frame, context=0).positions
    for node in ast.walk(_parse(source(frame.f_code))):
        if isinstance(node, ast.Call) and place == (
            *(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset),
        ):
            return node
    return None


def in_same_loop(one: Sequence[Place], other: Sequence[Place]) -> bool:
    """Whether two places are in one loop, as far as the source shows."""
    lines = dict(reversed(one))  # for a recursive function, the line of its innermost call
    # Skip libraries' innermost functions: any loop may call a wrapper around an optimizer.
    inner = dropwhile(lambda place: not is_program(place[0]), other)
    shared = [(code, line) for code, line in inner if code in lines]
    for code, line in shared:
        if is_program(code) and not source(code):
            return True
        if any(loop.contains(code, lines[code]) for loop in loops_at(code, line)):
            return True
    return any(not is_program(code) for code, _ in shared)


def assigned_names(stack: Sequence[Place]) -> frozenset[str]:
    """The variables that the loops around a place of the program assign."""
    return frozenset(
        name.id
        for code, line in stack
        for loop in loops_at(code, line)
        for name in ast.walk(_parse(source(code)))
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        if loop.first <= name.lineno <= loop.last
    )


def draws_after(
    stack: Sequence[Place], frame: FrameType | None, *, has_turned: bool = False
) -> bool:
    """
    Whether a loop may draw random numbers after its step.

    Args:
        stack: the program's functions at the step.
        frame: a later frame in the loop.
        has_turned: whether the loop around it may have drawn some since as well.
    """
    left = 1 + has_turned  # of these loops
    for code, line in stack:
        inside = line, line  # what leads to the step
        last = max(one for *_, one in code.co_lines() if one)
        values = _values_at(code, frame)
        for block in (*loops_at(code, line), Loop(code, code.co_firstlineno - 1, last)):
            after = inside[1] if left > has_turned else block.first
            calls = _calls_behind(code, after, block.last, inside)
            if any(_may_draw(each, values, _MOST_DEPTH) for each in calls):
                return True
            left -= block.node is not None
            if not left:
                return False
            inside = block.first, block.last
    return True


@lru_cache(maxsize=64)
def _calls_behind(code: CodeType, line: int, last: int, inside: tuple[int, int]) -> list[ast.Call]:
    """The calls of the program behind a line, up to the last one, but not those in some lines."""
    nodes = ast.walk(_parse(source(code) if is_program(code) else ""))
    return [each for each in nodes if isinstance(each, ast.Call) and line < each.lineno <= last
            and not inside[0] <= each.lineno <= inside[1]]  # fmt: skip


def _values_at(code: CodeType, frame: FrameType | None) -> Mapping[str, Any]:
    """The values that code of the program knows; the globals only if the function has ended."""
    for each in callers(frame):
        if each.f_code is code:
            return {**each.f_globals, **frame_locals(each)}
    same = (each for each in callers(frame) if each.f_code.co_filename == code.co_filename)
    return next((each.f_globals for each in same), {})


def _may_draw(call: ast.Call, values: Mapping[str, Any], depth: int) -> bool:
    if last_name(call) in _DRAW_NOTHING:
        return False
    name = ast.unparse(call.func)
    owner = values.get(name.partition(".")[0])
    kind = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
    if type(owner) is count:
        return False
    if "." in name and kind.partition(".")[0] in _KNOWN and not _DRAWS.search(name):
        return False  # of a module or an object of such a library
    called = value_of(call.func, values)
    plain = unwrapped(called)[0] if callable(called) else None
    text = source_tree(plain.__code__) if depth and plain is not None and is_own(plain) else None
    if plain is None or text is None:
        return True
    calls = [each for each in ast.walk(text) if isinstance(each, ast.Call)]
    return any(_may_draw(each, plain.__globals__, depth - 1) for each in calls)


@lru_cache(maxsize=64)
def loops_at(code: CodeType, line: int) -> list[Loop]:
    """The loops around a line of a function of the program, the innermost first."""
    if not is_program(code):
        return []
    begin = 0 if code.co_name == "<module>" else code.co_firstlineno
    found = [
        Loop(code, each.lineno, each.end_lineno or 0, each)
        for each in ast.walk(_parse(source(code)))
        if isinstance(each, _LOOPS)
        and begin <= each.lineno <= line <= (each.end_lineno or 0)
        and not is_of_hooks(each)
    ]
    return sorted(found, key=lambda loop: loop.last - loop.first)


def source(code: CodeType) -> str:
    """The text of the file that holds a function; empty if it is not known."""
    return "".join(linecache.getlines(code.co_filename))


def files_of(things: Iterable[object]) -> dict[str, str]:
    """The texts of the program's files and cells that define classes, functions and modules."""
    files = set[str]()
    for each in things:
        inner = [each, *vars(each).values()] if isinstance(each, type) else [each]
        files |= {one.__code__.co_filename for one in inner if isinstance(one, FunctionType)}
        files |= {one.__file__ or "" for one in inner if isinstance(one, ModuleType)
                  and hasattr(one, "__file__")}  # fmt: skip
    texts = {each: "".join(linecache.getlines(each)) for each in sorted(files)
             if is_own_file(each) and not each.endswith((".so", ".pyc"))}  # fmt: skip
    return {each: text for each, text in texts.items() if text}


@lru_cache(maxsize=16)
def _parse(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])
