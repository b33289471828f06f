"""
The variables that a loop carries from one iteration to the next, read from its frames.

A resume sets them before the loop, so each value must be the one that the next iteration begins
with. The frame of the loop shows its current line, and the text of the loop shows which lines
change a variable. A variable whose value cannot be right is left out.
"""

from __future__ import annotations

import ast
import re
import time
import weakref
from collections import ChainMap, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from functools import cache
from inspect import CO_NEWLOCALS
from types import FrameType
from typing import Any

from watchdog_app.agent.identity.audit import Carried, value_of
from watchdog_app.agent.identity.loop_steps import counted, first_number, iterations
from watchdog_app.agent.identity.source_loops import Loop
from watchdog_app.agent.state.values import without_graph
from watchdog_app.agent.telemetry.stacks import callers, frame_locals

_MOST_ITEMS = 4096  # of a list or dict
_MOST_FLOATS = 1 << 17  # of a list of floats, such as the losses of all steps
_MOST_BYTES = 64 << 20  # of the tensors in one variable
_MOST_COPIED = 2 << 20  # of those that are copied after each step near a limit
_MOST_SHORT = 64  # items of a list that is copied then
_SHARE = 0.01  # of the time, for comparisons of watched variables
_PLAIN = frozenset((bool, int, float, str))
NOTHING: tuple[dict[str, Any], list[Any], tuple[Any, int] | None] = {}, [], None
_Scopes = dict[int, tuple[int, ChainMap[str, Any]]]  # by id of the code


class LoopVariables:
    """The variables of one loop."""

    def __init__(
        self,
        carried: Iterable[Carried],
        tensor_bytes: Callable[[Any], int],
        loops: Sequence[Loop] = (),
        watched: Iterable[Carried] = (),
        stamp: Callable[[Any], int | None] = lambda _: None,
    ) -> None:
        """
        Args:
            carried: the variables, from the text of the loop.
            tensor_bytes: bytes of the tensors in a value; raises TypeError if a rescue cannot
                hold the value.
            loops: that loop and those around it, the innermost first.
            watched: variables that count as carried as soon as they have changed.
            stamp: a number that changes with the elements of tensors; None: it is given none.
        """
        self._carried = list(carried)
        self._watched, self._stamp = {each.expression: each for each in watched}, stamp
        self._stamps: dict[str, tuple[Any, Any]] = {}  # of these; with the objects, see `_key`
        self._next_s = 0.0  # when they are compared again
        self.changed: list[str] = []  # those that have changed
        self.left_out: Container[str] = ()  # expressions that a resume does not restore
        # Names without a value at the last `read`: as after a resume. The lines restore later ones.
        self.unset: list[str] = []
        self._tensor_bytes = tensor_bytes
        # Only the lines before the step change these, and so perhaps before an end is seen.
        self._early = [each for each in self._carried if _changes_early(each)]
        # Copies of them after the last step, what the outer loops counted there, and the place.
        self.after_step = NOTHING
        # The lines count no comprehensions, and place a loop over numbers or data by its steps.
        statements = [each for each in loops if isinstance(each.node, ast.For | ast.While)]
        self._is_while = any(isinstance(each.node, ast.While) for each in statements[:1])
        self._around = statements[1:]
        self._outer = self._around if self._early or self._is_while else []
        self._inner = statements[0] if self._around else None
        used: list[Any] = [*self._carried, *self._watched.values(), *statements]
        self._codes = {id(each.code) for each in used}
        self.epoch: int | None = None  # of the only outer loop, from 0; None: unknown
        # Turn of the loop around the innermost one, and the items that `enumerate` gave in it.
        self.place: tuple[int, int] | None = None  # None: unknown
        self._numbers: list[tuple[Any, Any]] = []  # of the outer loops: turn from 0, and counter

    def find_changed(self, frame: FrameType | None) -> None:
        """Compare the watched variables with their values at the last call."""
        self._find_changed(self._scopes(frame))

    def _find_changed(self, scopes: _Scopes) -> None:
        for each, _, value in list(_values(self._watched.values(), scopes)):
            name, stamp = each.expression, self._stamp(value)
            now = _content(value) if stamp is None else stamp
            known, before = self._stamps.get(name, (0, now))
            is_same = known() is value if callable(known) else known in (0, id(value))
            if is_same and before != now and not hasattr(value, "close"):
                self._carried.append(self._watched.pop(name))
                self.changed.append(name)
            self._stamps[name] = 0 if stamp is None else _key(value), now

    def read_after_step(self, frame: FrameType) -> None:
        """Copy the variables that the next iteration may change before its end is seen."""
        scopes = self._scopes(frame) if self._early or self._outer or self._inner else {}
        copies = {
            each.expression: copy(value) if _is_buffer(value) else deepcopy(without_graph(value))
            for each, _, value in _values(self._early, scopes)
            if _is_buffer(value) or (_is_short(value) and self._is_storable(value, _MOST_COPIED))
        }
        self.after_step = copies, self._count(scopes), self._place(scopes)

    def locate(self, frame: FrameType | None) -> None:
        """Find the turns of the outer loops and the place; `read` does so as well."""
        scopes = self._scopes(frame)
        self._locate(scopes)
        self._count(scopes)

    def has_turned(self, frame: FrameType | None) -> bool:
        """Whether the innermost loop has begun again since its last step."""
        scopes = self._scopes(frame) if self._inner else {}
        if self._is_while:
            pairs = zip(self.after_step[1], self._count(scopes), strict=False)
            return any(one != now for one, now in pairs if type(one) is type(now) is int)
        with suppress(Exception):  # not a range, or an object of the program that raises
            loop: Any = self._inner
            line, variables = scopes[id(loop.code)]
            return loop.contains(loop.code, line) and not iterations(loop.node, variables, None)[0]
        return False

    def _locate(self, scopes: _Scopes) -> None:
        self._numbers = list(_count_around(self._around, scopes))
        _, _, place = self.after_step
        self.place = None
        if place is not None and type(now := self._numbers[0][0]) is int:
            self.place = now, place[1] if place[0] == now else 0

    def read(self, frame: FrameType | None, *, failed: bool = False) -> dict[str, Any]:
        """The values at the end of an iteration, or where the next one failed, by expression."""
        found, scopes = {}, self._scopes(frame)
        if (began_s := time.perf_counter()) >= self._next_s:
            self._find_changed(scopes)
            self._next_s = (now_s := time.perf_counter()) + (now_s - began_s) / _SHARE
        self._locate(scopes)
        self.unset = [
            each.expression for each in self._carried
            if each.expression.isidentifier() and each.expression not in self.left_out
            and id(each.code) in scopes and each.expression not in scopes[id(each.code)][1]
        ]  # fmt: skip
        copies, turn, _ = self.after_step
        same = turn == self._count(scopes)  # else an outer loop may have set them
        for each, line, value in _values(self._carried, scopes):
            is_known = each.expression not in self.changed  # which calls change it
            if _is_unchanged(each, line, failed=failed, is_known=is_known):
                found[each.expression] = value
            elif same and each in self._early and each.expression in copies:
                found[each.expression] = copies[each.expression]
            elif each.changes == (each.loop,) and type(value) is int:  # the counter of the loop
                begins_again = failed and line <= _end(each.step)
                if begins_again or self._is_first_turn(each, value, scopes):
                    found[each.expression] = value - 1  # the lines continue behind it
        return {
            name: without_graph(each) for name, each in found.items()
            if name not in self.left_out and self._is_storable(each)
        }  # fmt: skip

    def read_failed(
        self, frame: FrameType | None, before: Mapping[str, Any], *, is_next: bool = True
    ) -> dict[str, Any]:
        """
        The values where an iteration failed.

        Args:
            frame: where it failed.
            before: the values at the boundary, which may have changed in place since.
            is_next: whether that iteration is the first one since the boundary.
        """
        values = _values(self._carried, self._scopes(frame))
        now = {each.expression: value for each, _, value in values}
        kept = {
            name: value
            for name, value in before.items()
            if now.get(name, value) is not value
            or (_is_fixed(value) and not hasattr(value, "shape"))
        }
        return {**kept, **self.read(frame, failed=True)} if is_next else kept

    def records(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Keyword of `rescue.step`, and function and expression in the program, by these names."""
        known = (*self._carried, *self._watched.values())
        functions = {each.expression: each.code.co_name for each in known}
        return {keyword(name): [functions[name], name] for name in names}

    @property
    def is_later_turn(self) -> bool:
        """Whether the loop around the innermost one is in a turn after its first."""
        turn = self._numbers[0][0] if self._numbers else 0
        return type(turn) is int and turn > 0

    @property
    def turn(self) -> int | None:
        """The turn of the only outer loop, from 0; None if it is not known."""
        turns = [turn for turn, _ in self._numbers if type(turn) is int]
        return turns[0] if len(turns) == len(self._numbers) == 1 else None

    def number(self, epoch: int | None) -> int | None:
        """The program's number for an epoch, which is counted from 0; None if it is not sure."""
        found = {number for turn, number in self._numbers if turn == epoch and type(number) is int}
        return found.pop() if len(found) == 1 else None

    def _scopes(self, frame: FrameType | None) -> _Scopes:
        """The functions of the variables: the line where each is, its locals and globals."""
        found: _Scopes = {}
        for each in callers(frame):
            key = id(each.f_code)
            if key in self._codes and key not in found:  # of a recursive one the innermost
                own = frame_locals(each) if each.f_code.co_flags & CO_NEWLOCALS else {}
                found[key] = each.f_lineno, ChainMap(own, each.f_globals)
            if len(found) == len(self._codes):
                break
        return found

    def _count(self, scopes: _Scopes) -> list[Any]:
        """What the outer loops count now, a new object for one that counts nothing; the epoch."""
        counted = [turn for turn, _ in _count_around(self._outer, scopes)]
        known = self._is_while and [int] == list(map(type, counted))
        self.epoch = counted[0] if known else None
        return counted

    def _place(self, scopes: _Scopes) -> tuple[Any, int] | None:
        """The turn of the next outer loop, and the items that `enumerate` gave in it."""
        with suppress(Exception):  # another loop, or an object of the program that raises
            loop: Any = self._inner
            items = counted(loop.node, scopes[id(loop.code)][1])
            return next(_count_around(self._around, scopes))[0], items
        return None

    def _is_first_turn(self, counter: Carried, number: int, scopes: _Scopes) -> bool:
        """Whether a loop has begun again since the last step, and is in its first turn."""
        _, turn, _ = self.after_step
        if not turn or turn == self._count(scopes):
            return False
        with suppress(Exception):  # not known, or an object of the program that raises
            return number == int(first_number(counter.loop, scopes[id(counter.code)][1]))
        return False

    def _is_storable(self, value: Any, most_bytes: int = _MOST_BYTES) -> bool:
        items = value if type(value) in (list, str) else (value,)
        if len(items) > _MOST_FLOATS:
            return False
        kinds = set(map(type, items))
        if kinds <= _PLAIN:  # most variables; a history may be long
            return len(items) <= (_MOST_FLOATS if kinds == {float} else _MOST_ITEMS)
        try:
            if hasattr(value, "shape") or not hasattr(value, "__len__"):
                return self._tensor_bytes(value) <= most_bytes
            if len(value) > _MOST_ITEMS:
                return False
            # All items of a replay buffer take long. A capture names those that it cannot hold.
            part = [value[0], value[-1]] if _is_buffer(value) else value
            return self._tensor_bytes(part) * len(value) <= most_bytes * max(1, len(part))
        except Exception:  # a value that a rescue cannot hold, or an object that raises
            return False


def _count_around(loops: Iterable[Loop], scopes: _Scopes) -> Iterator[tuple[Any, Any]]:
    """The turn of each loop, from 0, and its counter; a new object for what is unknown."""
    for loop in loops:
        node: Any = loop.node
        found: tuple[Any, Any] = object(), None
        with suppress(Exception):  # not a range, or an object of the program that raises
            variables = scopes[id(loop.code)][1]
            found = iterations(node, variables, None)[0], value_of(node.target, variables)
        yield found


def _key(value: Any) -> Any:
    """A reference to an object, since a new one may get the id of an old one; else its id."""
    try:
        return weakref.ref(value)
    except TypeError:  # such as a list
        return id(value)


def _content(value: Any, depth: int = 2) -> Any:
    """What changes with a plain value, or with a container of such values."""
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, list | tuple | set | deque) and depth:
        items = [*value]
        if len(items) > _MOST_SHORT:
            items = [len(items), items[0], items[-1]]
        return [_content(each, depth - 1) for each in items]
    return value if value is None or type(value) in _PLAIN else id(value)


def _is_fixed(value: Any) -> bool:
    """Whether a value holds no lists or dicts, which a function may change."""
    if type(value) is tuple:
        return all(map(_is_fixed, value))
    return value is None or type(value) in _PLAIN or hasattr(value, "shape")


def _is_short(value: Any) -> bool:
    """Whether a value is fixed, or a short list of such values."""
    is_list = type(value) is list and len(value) <= _MOST_SHORT
    return all(map(_is_fixed, value)) if is_list else _is_fixed(value)


def _is_buffer(value: Any) -> bool:
    """Whether a value collects tuples, as a replay buffer does; the tuples do not change."""
    ends = (value[0], value[-1]) if type(value) in (list, deque) and value else ()
    return bool(ends) and all(isinstance(each, tuple) and _is_fixed((*each,)) for each in ends)


@cache
def keyword(expression: str) -> str:
    """The keyword of `rescue.step` for a variable: `self_lr` for `self.lr`."""
    name = re.sub(r"\W", "_", expression)
    return f"{name}_" if name == "loss" else name


def _values(carried: Iterable[Carried], scopes: _Scopes) -> Iterator[tuple[Any, int, Any]]:
    """Variables that have a value, the current lines of their functions, and the values."""
    for one in carried:
        if id(one.code) not in scopes:
            continue
        line, values = scopes[id(one.code)]
        node = _parsed(one.expression)
        holder = values if isinstance(node, ast.Name) else value_of(node.value, values)
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        held = holder if holder is values else getattr(holder, "__dict__", {})
        if name in held:
            yield one, line, held[name]


@cache
def _parsed(expression: str) -> Any:
    return ast.parse(expression, mode="eval").body


def _is_unchanged(each: Carried, line: int, *, failed: bool, is_known: bool) -> bool:
    """Whether a resume would begin with the value that a variable has at (or in) this line."""
    loop: Any = each.loop
    if each.is_outer:  # the resume sets it before the statement that leads to the step
        return each.step.lineno <= line <= _end(each.step)
    if loop.lineno <= line < loop.body[0].lineno:
        return True
    inside = loop.lineno <= line <= _end(each.step)
    return inside and not any(
        _end(change, own=True) < line + failed
        # A call in this line may have changed it: `loss = model(next_batch())`.
        or (
            is_known and change.lineno <= line and change is not each.step and not each.sets(change)
        )
        for change in each.changes
    )


def _changes_early(each: Carried) -> bool:
    changes = [_end(change, own=True) for change in each.changes]
    return not each.is_outer and max(changes, default=0) < each.step.lineno


def _end(statement: ast.stmt, *, own: bool = False) -> int:
    """The last line of a statement, or of what is its own before the statements inside it."""
    inner = getattr(statement, "body", None)
    return inner[0].lineno - 1 if own and inner else statement.end_lineno or statement.lineno
