"""What the text of a loop reads, sets and changes, without the values of its names."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.agent.source.program import is_of_hooks, leaving

_CONDITIONAL = ast.If | ast.Try | ast.Match
_Loop = ast.For | ast.AsyncFor | ast.While
_Event = tuple[str, bool | None]  # a name; True: read, False: set, None: set under a condition
_OPTION = re.compile(r"(not )?(self\.)?(args|opts?|cfg|config|hparams|FLAGS)\.\w+")
_NOTHING: Mapping[str, bool] = {}


def loops_around(text: ast.AST, line: int) -> list[ast.AST]:
    """The loops of a text that contain a line, outer ones first."""
    return [each for each in own_nodes(text) if _is_loop_around(each, line)]


def own_nodes(text: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a text except inner functions and classes, outer ones first."""
    waiting = deque(ast.iter_child_nodes(text))
    while waiting:
        each = waiting.popleft()
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(each))


def _is_loop_around(node: ast.AST, line: int) -> bool:
    is_around = isinstance(node, _Loop) and node.lineno < line <= (node.end_lineno or 0)
    return is_around and not is_of_hooks(node)


def carried_variables(loop: ast.AST) -> set[str]:
    """Variables that an iteration reads before it sets them."""
    events = list(body_events(loop))
    found = {name for name, is_load in events if not is_load}.intersection(_read_first(events))
    branches = [each for each in ast.walk(loop) if isinstance(each, ast.If | ast.IfExp)]
    # An option is the same in a whole turn: it sets and reads a name under the same one.
    changed = {ast.unparse(each) for each in ast.walk(loop)
               if isinstance(getattr(each, "ctx", None), ast.Store)}  # fmt: skip
    for test in {*filter(_OPTION.fullmatch, (ast.unparse(each.test) for each in branches))}:
        if test.removeprefix("not ") in changed:
            continue
        turns = [_read_first(body_events(loop, {test: value})) for value in (True, False)]
        found.intersection_update({*turns[0], *turns[1]})
    return found


def _read_first(events: Iterable[_Event]) -> Iterator[str]:
    first: dict[str, bool] = {}
    for name, is_load in events:
        if is_load is not None:
            first.setdefault(name, is_load)
    yield from (name for name, is_load in first.items() if is_load)


def only_added_to(loop: ast.AST) -> set[str]:
    """Variables that a loop never sets: they have no value in it unless they had one before."""
    nodes = list(ast.walk(loop))
    added = {id(each.target) for each in nodes if isinstance(each, ast.AugAssign)}
    stored = [each for each in nodes
              if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]  # fmt: skip
    return {each.id for each in stored} - {each.id for each in stored if id(each) not in added}


def body_events(loop: ast.AST, known: Mapping[str, bool] = _NOTHING) -> Iterator[_Event]:
    """
    Names of a turn of a loop in rough execution order, with what happens to them.

    Args:
        loop: the loop.
        known: conditions whose value is given.
    """
    if isinstance(loop, ast.While):
        yield from _name_events(loop.test, known)
    elif isinstance(loop, ast.For | ast.AsyncFor):
        yield from _name_events(loop.target, known)
    body = getattr(loop, "body", [])  # of a lambda an expression
    yield from name_events_of(body if isinstance(body, list) else [body], known)


def name_events_of(
    nodes: Iterable[ast.AST], known: Mapping[str, bool] = _NOTHING
) -> Iterator[_Event]:
    """The same of the names in these nodes."""
    for each in nodes:
        yield from _name_events(each, known)


def _name_events(node: ast.AST, known: Mapping[str, bool]) -> Iterator[_Event]:
    """Names in rough execution order, with what happens to them."""
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Load)
    elif isinstance(node, ast.AugAssign):
        yield from _name_events(node.value, known)
        if isinstance(node.target, ast.Name):
            yield node.target.id, True
        yield from _name_events(node.target, known)
    elif isinstance(node, ast.Assign):
        yield from name_events_of((node.value, *node.targets), known)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from name_events_of((node.iter, node.target, *node.body, *node.orelse), known)
    elif isinstance(node, ast.If | ast.IfExp) and (test := ast.unparse(node.test)) in known:
        taken = node.body if known[test] else node.orelse
        yield from name_events_of(taken if isinstance(taken, list) else [taken], known)
    elif isinstance(node, ast.If):
        yield from _name_events(node.test, known)
        branches = [list(name_events_of(branch, known)) for branch in (node.body, node.orelse)]
        # If one branch sets a name, the other may still read the value of the last iteration.
        yield from ((name, True) for branch in branches for name in _read_first(branch))
        one, other = ({name for name, is_load in each if is_load is False} for each in branches)
        for name, is_load in (event for branch in branches for event in branch):
            if not is_load:
                yield name, False if name in one & other else None
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        inner = list(name_events_of(ast.iter_child_nodes(node), known))
        bound = {name for name, is_load in inner if not is_load}
        yield from (event for event in inner if event[0] not in bound)
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        yield from name_events_of(ast.iter_child_nodes(node), known)


def kept_attributes(text: ast.AST, drawing: str = "") -> Iterator[ast.Attribute]:
    """
    Attributes that a loop or a method keeps.

    It reads them before it sets them, sets them under a condition, or changes them in place.

    Args:
        text: of the loop or the method.
        drawing: name of an object of which those count, too, that it only sets.
    """
    read, stored = set[str](), set[str]()
    statements = [each for each in own_nodes(text) if isinstance(each, ast.stmt)]
    branches = [one for each in statements if isinstance(each, ast.If) for one in ast.walk(each)]
    for each in sorted(statements, key=lambda one: one.lineno):
        parts = list(own_parts(each))
        loads = [one for one in parts if isinstance(getattr(one, "ctx", None), ast.Load)]
        read |= {*map(ast.unparse, loads)} - stored
        stores = [one for one in parts if isinstance(getattr(one, "ctx", None), ast.Store)]
        places: list[ast.AST | None] = [*map(code.changed_container, parts)]
        for one in stores:
            is_kept = (
                isinstance(each, ast.AugAssign)
                or (isinstance(one, ast.Attribute) and ast.unparse(one.value) == drawing)
                or ast.unparse(one) in read or each in branches
            )  # fmt: skip
            places += [one] if is_kept or isinstance(one, ast.Subscript) else []
        if each in getattr(text, "body", ()):
            stored.update(map(ast.unparse, stores))
        for place in map(without_subscripts, places):
            if isinstance(place, ast.Attribute):
                yield place


def kept_for_later(loop: ast.AST, whole: ast.AST, *, sometimes: bool = True) -> set[str]:
    """Variables that some or all iterations set, and that the program reads after the loop."""
    events = list(body_events(loop))
    found = {name for name, what in events if what is False}
    if sometimes:
        found = {name for name, what in events if what is None} - found
    later = _statements_after(whole, getattr(loop, "end_lineno", None) or 0)
    return found.intersection(_read_first(name_events_of(later)))


def _statements_after(text: ast.AST, line: int) -> Iterator[ast.stmt]:
    """The outermost statements that begin after a line, without those of inner functions."""
    for each in ast.iter_child_nodes(text):
        if isinstance(each, ast.stmt) and each.lineno > line:
            yield each
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements_after(each, line)


def made_before(outer: ast.AST, first: int, making: re.Pattern[str]) -> Iterator[str]:
    """Variables that such a call makes or changes before a line, which are read from there on."""
    read = {
        each.id
        for each in own_nodes(outer)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and each.lineno >= first
    }
    for each in own_nodes(outer):
        if isinstance(each, ast.Assign | ast.Expr) and each.lineno < first:
            places = each.targets if isinstance(each, ast.Assign) else each.value
            places = getattr(places, "args", places)  # shuffle(rows)
            if isinstance(places, list) and making.search(ast.unparse(each.value)):
                yield from read.intersection(map(ast.unparse, places))


def is_set_before(made: Iterable[ast.Assign], loop: Any, text: ast.AST) -> bool:
    """Whether the program sets a variable before a loop, under no condition."""
    branches = [
        each for each in own_nodes(text)
        if isinstance(each, ast.If) and (each.end_lineno or 0) < getattr(loop, "lineno", 0)
    ]  # fmt: skip
    return any(
        each.lineno < getattr(loop, "lineno", 0)
        and not any(each in ast.walk(branch) for branch in branches)
        for each in made
    )


def may_skip(frames: Iterable[tuple[FrameType, ast.AST, Any]], depth: int) -> bool:
    """
    Whether a turn of one of the innermost loops may end without all of its steps.

    Args:
        frames: from the step outwards, with the text of their functions.
        depth: 2: of the innermost loop and the one around it; 1: there is only one; 0: none.
    """
    for frame, text, _ in frames:
        line = frame.f_lineno
        for block in (*loops_around(text, line)[::-1], text):
            if not depth:
                return False
            is_loop, is_inner = isinstance(block, _Loop), depth == 2
            if any(
                isinstance(each, _CONDITIONAL) and each.lineno < line <= (each.end_lineno or 0)
                for each in own_nodes(block)
            ) or any(
                (is_loop and is_inner and not isinstance(each, ast.Continue))
                or (each.lineno < line and not isinstance(each, ast.Break))
                for each in leaving(block, own=is_loop)
            ):
                return True
            if isinstance(block, _Loop):
                depth, line = depth - 1, block.lineno
    return False


def may_change(node: ast.AST, expression: str, calls: Container[str]) -> bool:
    """Whether a node sets a variable or attribute, changes its container, or is such a call."""
    place: ast.AST | None = node
    if isinstance(node, ast.Call) and calls and ast.unparse(node) in calls:
        return True
    if not isinstance(node, ast.Name | ast.Attribute):
        place = code.changed_container(node)
    elif not isinstance(node.ctx, ast.Store):
        return False
    return place is not None and ast.unparse(place) == expression


def leading_to(line: int, loop: Any) -> ast.stmt:
    """The statement of a loop's body that a line belongs to."""
    found: ast.stmt = next(each for each in loop.body if line <= (each.end_lineno or 0))
    return found


def written_files(text: ast.AST, loop: Any) -> Iterator[str]:
    """Files that a program writes before a loop and in it, and reads behind it: a new run's."""
    found = dict[tuple[str, int], None]()
    for each in own_nodes(text):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            path = each.args[{"save": 1, "load": 0}.get(each.func.attr, 9) :][:1]
            place = (each.lineno > loop.lineno) + (each.lineno > loop.end_lineno)
            found |= {(ast.unparse(one), place): None for one in path}
    places = (0, 1, 2)
    names = dict.fromkeys(name for name, _ in found)
    yield from (f"the file {name}" for name in names if all((name, at) in found for at in places))


def loaded_names(statement: ast.stmt) -> set[str]:
    """The names that a statement loads, without those of statements inside it."""
    parts = [] if isinstance(statement, ast.FunctionDef) else own_parts(statement)
    return {each.id for each in parts if isinstance(each, ast.Name)}


def own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that are not in the statements inside it; all of a function."""
    if isinstance(statement, ast.FunctionDef):
        yield from ast.walk(statement)
    for each in ast.iter_child_nodes(statement):
        if not isinstance(each, ast.stmt | ast.excepthandler):
            yield from ast.walk(each)


def is_used(name: str, whole: ast.AST) -> bool:
    """Whether a variable influences anything except its own next value."""

    def uses(node: ast.AST) -> bool:
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(base_name(each) == name for each in targets):
                return False
        if isinstance(node, ast.Expr) and changed_name(node.value) == name:
            return any(uses(each) for each in getattr(node.value, "args", ()))
        if isinstance(node, ast.Name):
            return node.id == name and isinstance(node.ctx, ast.Load)
        return any(uses(each) for each in ast.iter_child_nodes(node))

    return uses(whole)


def changed_name(node: ast.AST) -> str | None:
    """The variable behind `name.append(...)` and `name["a"].append(...)`."""
    changed = code.changed_container(node) if isinstance(node, ast.Call) else None
    return changed.id if isinstance(changed, ast.Name) else None


def base_name(node: ast.AST) -> str | None:
    """The variable behind `name[0][1]`; None: it is none."""
    base = without_subscripts(node)
    return base.id if isinstance(base, ast.Name) else None


def without_subscripts(node: ast.AST | None) -> ast.AST | None:
    """The node behind `node[0][1]`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node
