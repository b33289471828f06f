"""
Count the iterations of the loops around a training step.

The lengths come from the source of the loops and from the program's variables: the numbers of a
`range`, the data of the pass, the total of a progress bar. Nothing of the program runs but `len`.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import CodeType
from typing import Any

from watchdog_app.agent.found.names import frame_variables
from watchdog_app.agent.identity import code
from watchdog_app.agent.identity.audit import own_nodes, value_of
from watchdog_app.agent.runtime.session import NO_STEPS, Steps

_MOST_FRAMES = 40
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
}  # fmt: skip


def _first(things: Any, *_: Any) -> Any:
    return things


# `epochs` and `data` are methods of a Rescue.
_CALLS: Mapping[str, Callable[..., Any]] = {
    "len": len, "range": range, "trange": range, "epochs": range,
    "tqdm": _first, "enumerate": _first, "data": _first,
}  # fmt: skip


def count_steps(passes: Any) -> Steps:
    """
    Count the iterations of all loops of the program around the caller.

    Args:
        passes: the `Passes` of the training.

    Returns:
        Iterations of the innermost loop: those that have begun, those in total, and those in one
        pass over the data. None: the length of a loop is not known.
    """
    done, total = 0, 1
    try:
        for frame in code.program_frames(sys._getframe(1), _MOST_FRAMES):
            for loop in _loops_around(frame.f_code, frame.f_lineno or 0):
                begun, length = _iterations(loop, frame_variables(frame), passes)
                done, total = done + begun * total, total * length
            if frame.f_code.co_name == "<module>":
                break
    except Exception:  # an unknown length, or an object of the program that raises
        return NO_STEPS
    return done, total, passes.latest.batches.count if passes.begun else None


@lru_cache(maxsize=32)
def _loops_around(function: CodeType, line: int) -> list[ast.For | ast.While]:
    """The loops of a function around a line, the innermost first."""
    text = code.source_tree(function)
    if text is None:
        raise ValueError("its source is not known")
    loops = [each for each in own_nodes(text) if isinstance(each, ast.For | ast.While)]
    return [each for each in loops if each.lineno <= line <= (each.end_lineno or 0)][::-1]


def _iterations(loop: Any, variables: Mapping[str, Any], passes: Any) -> tuple[int, Any]:
    """The iterations of a loop that have begun, and all of them; raises if they are not known."""
    things = _value(loop.iter, variables)
    if isinstance(things, range):
        return things.index(value_of(loop.target, variables)), len(things)
    if type(things).__module__.startswith("tqdm."):
        return int(things.n), things.total
    if things is None or things is not passes.latest.source.get():
        raise ValueError("a loop of unknown length")
    return passes.latest.drawn, passes.latest.batches.count


def _value(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """The value of an expression of names, numbers and the calls above; None: not known."""
    if isinstance(node, ast.Call):
        called = _CALLS[ast.unparse(node.func).rpartition(".")[2]]
        return called(*(_value(each, variables) for each in node.args))
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](
            _value(node.left, variables), _value(node.right, variables)
        )
    return node.value if isinstance(node, ast.Constant) else value_of(node, variables)
