"""
Count the iterations of the loops around a training step.

The lengths come from the source of the loops and from the program's variables: the numbers of a
`range`, the data of the pass, the total of a progress bar. Nothing of the program runs but `len`.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.agent.identity.audit import frames_with_source, value_of
from watchdog_app.agent.identity.loop_text import loops_around
from watchdog_app.agent.identity.names import frame_variables
from watchdog_app.agent.identity.normalize import last_name
from watchdog_app.agent.identity.source_loops import Loop, loops_at
from watchdog_app.agent.source.program import LITERAL
from watchdog_app.agent.telemetry.stacks import callers

# fields of a report: steps of the program's loops that are left, and steps in a pass over the data
NO_STEPS: Mapping[str, int | None] = {"steps_left": None, "epoch_steps": None}
Turn = tuple[Loop, int] | None  # of a loop, from 0; None: not known
_MOST_FRAMES = 40
_OPERATIONS: Any = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
# `epochs` and `data` are methods of a Rescue.
_CALLS: Any = {"len": len, "range": range, "trange": range, "epochs": range}
_WRAPPERS = ("tqdm", "enumerate", "data")  # as many iterations as their first argument has


def count_steps(passes: Any) -> Mapping[str, int | None]:
    """
    Count the iterations of all loops of the program around the caller.

    Args:
        passes: the `Passes` of the training.

    Returns:
        Fields of a report: iterations of the innermost loop that are left in all, and those in one
        pass over the data. Both are None if the length of a loop is not known.
    """
    done, total = 0, 1
    try:
        for frame in code.program_frames(sys._getframe(1), _MOST_FRAMES):
            if code.source_tree(frame.f_code) is None:
                return NO_STEPS
            for loop in loops_at(frame.f_code, frame.f_lineno or 0):
                begun, length = iterations(loop.node, frame_variables(frame), passes)
                done, total = done + begun * total, total * length
            if frame.f_code.co_name == "<module>":
                break
    except Exception:  # an unknown length, or an object of the program that raises
        return NO_STEPS
    in_pass = passes.latest.batches.count if passes.begun else None
    return {"steps_left": total - done, "epoch_steps": in_pass}


def turn_around(frame: FrameType) -> Turn:
    """The only loop around a pass that begins in `frame`, and its turn; not one over phases."""
    found = [
        (loop, each)
        for each in code.program_frames(frame, _MOST_FRAMES)
        for loop in loops_at(each.f_code, each.f_lineno or 0)
        if getattr(loop.node, "body", [loop.node])[0].lineno <= (each.f_lineno or 0)
        and not isinstance(getattr(loop.node, "iter", None), LITERAL)
    ]
    with suppress(Exception):  # not a range, or an object of the program that raises
        ((loop, own),) = found
        return loop, iterations(loop.node, frame_variables(own), None)[0]
    return None


def numbers_around(frame: FrameType) -> list[float | None]:
    """
    The turn of each loop around a call, as the numbers that decide it: counters and lengths.

    A program that begins such a loop again, or at a saved value, shows it by these numbers.
    """
    found: list[float | None] = []
    for each, text, values in frames_with_source(frame):
        for loop in loops_around(text, each.f_lineno):
            nodes = (
                [loop.target]
                if isinstance(loop, ast.For | ast.AsyncFor)
                else list(_conditions(loop))
            )
            places = [node for part in nodes for node in ast.walk(part)]
            found += [_number(value_of(node, values)) for node in places]
    return found


def _conditions(loop: ast.AST) -> Iterator[ast.AST]:
    """What ends a `while`: its test, tests before a `break` in its body, and what it counts."""
    if isinstance(loop, ast.While):
        yield loop.test
        for each in loop.body:
            if isinstance(each, ast.If) and any(isinstance(one, ast.Break) for one in each.body):
                yield each.test
            elif isinstance(each, ast.AugAssign):
                yield each.target


def _number(value: Any) -> float | None:
    if type(value) in (list, dict):
        return len(value)
    return value if type(value) in (int, float) and math.isfinite(value) else None


def iterations(loop: Any, variables: Mapping[str, Any], passes: Any) -> tuple[int, Any]:
    """The iterations of a loop that have begun, and all of them; raises if they are not known."""
    things = _value(loop.iter, variables)
    if isinstance(things, range):
        return things.index(value_of(loop.target, variables)), len(things)
    if type(things).__module__.startswith("tqdm."):
        return int(things.n), things.total
    if things is None or things is not passes.latest.source.get():
        raise ValueError("a loop of unknown length")
    return passes.latest.drawn, passes.latest.batches.count


def first_number(loop: Any, variables: Mapping[str, Any], *kinds: str) -> Any:
    """The number that a loop begins to count with; raises if it is not known."""
    calls = [each for each in ast.walk(loop.iter) if isinstance(each, ast.Call)]
    kinds = kinds or ("range", "trange", "count")
    call = next(each for each in calls if last_name(each) in kinds)
    given, name = [*call.args, *(each.value for each in call.keywords)], last_name(call)
    begins = given if name == "count" else given[1:] and given[name == "enumerate" :]
    return _value(begins[0], variables) if begins else 0


def counted(loop: Any, variables: Mapping[str, Any]) -> int:
    """The items that the `enumerate` of a loop has given; raises if that is not known."""
    first = first_number(loop, variables, "enumerate")
    return int(value_of(loop.target.elts[0], variables)) - int(first) + 1


def iterated(loops: Sequence[Any], frame: FrameType | None) -> tuple[Any, bool]:
    """What a loop runs over, if known, and whether its `enumerate` and the range around count."""
    scopes: list[Mapping[str, Any]] = []
    for each in callers(frame):
        for loop in loops[len(scopes) : 2]:
            scopes += [frame_variables(each)] if each.f_code is loop.code else []
    found = None
    with suppress(Exception):  # other loops, or an object of the program that raises
        found = _value(loops[0].node.iter, scopes[0])
        iterations(loops[1].node, scopes[1], None)
        counted(loops[0].node, scopes[0])
        return found, True
    return found, False


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """The value of an expression of names, numbers and the calls above; None: not known."""
    if isinstance(node, ast.Call):
        name = last_name(node)
        given = [_value(each, variables) for each in node.args]
        return given[0] if name in _WRAPPERS else _CALLS[name](*given)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, variables), _value(node.right, variables)
        return _OPERATIONS[type(node.op)](left, right)
    return node.value if isinstance(node, ast.Constant) else value_of(node, variables)
