"""
The functions of the program that a loop computes its losses with, read from its source.

`objective(model, batch)` belongs to no named object. A function counts if it gets a model, or a
value that a model computed, and if its value reaches a backward pass. Augmentation, validation,
metrics and logging do not count. The loss itself counts as one expression: variables are replaced
by what they are computed from, and those from before the loop by their values.
"""

from __future__ import annotations

import ast
import builtins
import copy
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from types import FrameType, MethodType
from typing import Any, TypeGuard

from watchdog_app.agent.identity import audit, code, keras_facts, loop_text
from watchdog_app.agent.identity.normalize import is_set

_DEPTH = 3  # levels of functions that the loop calls
_MAX_FUNCTIONS = 64
_MAX_INSERTED = 64  # variables of a loss that are replaced by their values
_SCALES = ("scale", "get_scaled_loss", "scale_loss")  # only for mixed precision
_RESTORING = ".variables("  # of a Rescue
_Scope = Mapping[str, Any]


def functions(
    frame: FrameType | None, rescue: object, named: Mapping[str, Any], *, of_library: bool
) -> keras_facts.Functions | None:
    """
    The loss functions of the loop around `rescue.step()`, in order.

    Args:
        frame: the frame that calls `rescue.step()`, or one that it called.
        rescue: the Rescue.
        named: the objects given to the Rescue, by name.
        of_library: also record the functions and losses of libraries, for frameworks without an
            autograd graph that shows them.

    Returns:
        None if no backward pass is found.
    """
    for each, text, values in audit.frames_with_source(frame):
        loops = loop_text.loops_around(text, each.f_lineno)
        if loops:
            found = _LossFunctions(rescue, named, of_library=of_library)
            changing = _set_names(loops[0]) - _constants(text, loops)
            changing |= found.restored_names(text, values)
            changing |= {
                node.value.id
                for node in ast.walk(loops[0])  # `mean.lerp_(...)`
                if isinstance(node, ast.Attribute) and node.attr.endswith("_")
                if isinstance(node.value, ast.Name) and hasattr(values.get(node.value.id), "shape")
            }
            kept = {name: value for name, value in values.items() if name not in changing}
            found.within = each.f_code.co_qualname
            found.follow(loops[-1], values, kept, each.f_code.co_filename, 0)
            if found.seen:
                return found.functions[:_MAX_FUNCTIONS]
    return None


class _LossFunctions:
    """The functions that reach the backward passes of one loop."""

    def __init__(self, rescue: object, named: Mapping[str, Any], *, of_library: bool) -> None:
        self.functions: keras_facts.Functions = []
        self.seen = False
        self.within = ""  # the function whose variables are known, besides its callees' arguments
        self._rescue = rescue
        self._models = set(audit.ids_within(named.values()))
        self._of_library = of_library

    def restored_names(self, text: ast.AST, values: _Scope) -> Set[str]:
        """
        Variables of a text whose values another run need not have.

        They are computed from the rescue, or set under a condition on it. Plain ones are also
        computed from named objects, settings of the run, the time, or a random number.
        """
        found: set[str] = set()
        of_rescue = {name for name, value in values.items() if value is self._rescue}
        for each in (each for each in loop_text.own_nodes(text) if isinstance(each, ast.If)):
            if of_rescue & _all_names(each.test):
                found |= _set_names(each)
        for name, value in _assignments_in_order(text):
            read = _all_names(value)
            # A tensor that the lines restore is the same data, and computed as without them.
            is_same = _RESTORING in ast.unparse(value) and not code.is_plain(values.get(name))
            if of_rescue & read and not (callable(values.get(name)) or is_same):
                of_rescue.add(name)
            elif code.is_plain(values.get(name)) and (
                read & (found | of_rescue)
                or code.varies(value)
                or any(id(values.get(each)) in self._models for each in read)
            ):
                found.add(name)
        return found | of_rescue

    def follow(
        self, text: ast.AST, values: _Scope, kept: _Scope, filename: str, depth: int
    ) -> None:
        """
        Search a text, and the functions that it calls, for backward passes.

        Args:
            text: of a loop or a function.
            values: of all its names, as far as known.
            kept: those that are the same in every run.
            filename: of the text.
            depth: how many functions lie around it.
        """
        calls = [each for each in loop_text.own_nodes(text) if isinstance(each, ast.Call)]
        for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
            losses = self._losses(call, values)
            if losses:
                self.seen = True
                self._add_functions(losses, _assignments(text), values)
                self._add_expressions(losses, text, values, kept, filename)
                continue
            called = audit.value_of(call.func, values)
            inside = _body_and_scope(called) if depth < _DEPTH and callable(called) else None
            if inside is not None:
                function = code.unwrapped(called)[0]
                self.follow(
                    inside[0],
                    {**inside[1], **_bound_arguments(call, called, values)},
                    {**inside[1], **_known(_bound_arguments(call, called, kept))},
                    "" if function is None else function.__code__.co_filename,
                    depth + 1,
                )

    def _losses(self, call: ast.Call, values: _Scope) -> list[ast.expr]:
        """The expressions whose gradients a call computes."""
        if not isinstance(call.func, ast.Attribute):
            return []
        whose, method = call.func.value, call.func.attr
        if method in ("backward", "gradients") and audit.value_of(whose, values) is self._rescue:
            return [ast.copy_location(ast.Call(each, [], []), each) for each in call.args[1:2]]
        if method == "backward":
            return call.args[:1] or [whose]
        return call.args[:1] if method in ("gradient", "minimize") else []

    def _add_functions(
        self, losses: list[ast.expr], assigned: Mapping[str, list[ast.expr]], values: _Scope
    ) -> None:
        for call in _source_calls(losses, assigned):
            called = audit.value_of(call.func, values)
            given = [*call.args, *(each.value for each in call.keywords)]
            if isinstance(call.func, ast.Attribute):
                given.append(call.func.value)
            if not callable(called) or not self._holds_model(given, assigned, values):
                continue
            plain = code.unwrapped(called)[0]
            if plain is not None:
                self.functions += keras_facts.function_entry(called, code.name(called))
                self._add_model_methods(call, called, values)
            elif self._of_library and id(called) not in self._models:
                name = getattr(called, "__name__", None)
                shown = name if isinstance(name, str) else keras_facts.class_of(called)
                if shown != "cast":
                    told = code.text_hash(keras_facts.describe(called)) if name is None else shown
                    self.functions.append({"name": shown, "at": "", "functions": [[shown, told]]})

    def _add_expressions(
        self, losses: list[ast.expr], text: ast.AST, values: _Scope, kept: _Scope, filename: str
    ) -> None:
        """Add each loss as one expression."""
        assigned = _assignments(text)
        # The lines that resume a loop set variables to what they are already.
        steps = [
            each for each in _assignments_in_order(text) if not self._restores(each[1], values)
        ]
        changing = _set_names(text)
        scope = {name: value for name, value in kept.items() if name not in changing}
        left = 0  # number of variables that may still be replaced

        def insert(value: ast.expr, end: int) -> ast.expr:
            """Replace variables by the last value before assignment number `end`."""
            nonlocal left
            for node in [each for each in ast.walk(value) if _is_read(each)]:
                before = [n for n, (name, _) in enumerate(steps[:end]) if name == node.id]
                if not before or not left:
                    continue
                inner = steps[before[-1]][1]
                if isinstance(inner, ast.Constant) or self._holds_model([inner], assigned, values):
                    left -= 1
                    value = _replace(value, node, insert(copy.deepcopy(inner), before[-1]))
            return value

        for loss in losses:
            if self._holds_model([loss], assigned, values):
                left = _MAX_INSERTED
                whole = insert(copy.deepcopy(loss), len(steps))
                whole = _without_scale(whole)
                whole = _DataRemover(
                    lambda each: self._holds_model([each], assigned, values), scope
                ).visit(whole)
                found = code.expression_fingerprint(whole, scope, filename, self._models)
                if found is not None:
                    at = f"{os.path.basename(filename)}:{loss.lineno}"
                    entry = {"name": "the loss", "at": at, "functions": found}
                    self.functions.append({**entry, "within": self.within})

    def _restores(self, value: ast.expr, values: _Scope) -> bool:
        names = (each for each in ast.walk(value) if isinstance(each, ast.Name))
        return any(audit.value_of(each, values) is self._rescue for each in names)

    def _add_model_methods(self, call: ast.Call, called: Any, values: _Scope) -> None:
        """
        Add the methods of models that a function calls; the function's text does not identify them.
        """
        inside = _body_and_scope(called)
        if inside is None:
            return
        scope = {**inside[1], **_bound_arguments(call, called, values)}
        for each in loop_text.own_nodes(inside[0]):
            method = each.func if isinstance(each, ast.Call) else None
            if not isinstance(method, ast.Attribute):
                continue
            if id(audit.value_of(method.value, scope)) in self._models:
                own = audit.value_of(method, scope)
                self.functions += keras_facts.function_entry(own, code.name(own))

    def _holds_model(
        self, given: list[ast.expr], assigned: Mapping[str, list[ast.expr]], values: _Scope
    ) -> bool:
        return any(
            id(audit.value_of(node, values)) in self._models
            for node in _source_nodes(given, assigned)
            if isinstance(node, ast.Name | ast.Attribute)
        )


def _assignments(text: ast.AST) -> dict[str, list[ast.expr]]:
    """The values that a text assigns to its variables."""
    found: dict[str, list[ast.expr]] = {}
    for each in loop_text.own_nodes(text):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign) and each.value is not None:
            for target in targets:
                for node in ast.walk(target) if target is not None else ():
                    if isinstance(node, ast.Name):
                        found.setdefault(node.id, []).append(each.value)
    return found


def _without_scale(loss: ast.expr) -> ast.expr:
    """A loss without the factors of mixed precision and of gradient accumulation."""
    while True:
        if isinstance(loss, ast.Call) and _method(loss) in _SCALES and loss.args:
            loss = loss.args[0]
        elif (
            isinstance(loss, ast.BinOp)
            and isinstance(loss.op, ast.Div)
            and "accum" in ast.unparse(loss.right).lower()
        ):
            loss = loss.left
        else:
            return loss


class _DataRemover(ast.NodeTransformer):
    """Replaces parts that get no model by their order: they are data, which may change."""

    def __init__(self, counts: Callable[[ast.expr], bool], scope: _Scope) -> None:
        self._counts = counts
        self._scope = scope
        self._order: dict[str, int] = {}

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        """Keep the value of `(loss := ...)` alone."""
        found: ast.AST = self.visit(node.value)
        return found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """See the class; a move of a model's result to a device is left out."""
        if _moves(node) and isinstance(node.func, ast.Attribute):
            moved: ast.AST = self.visit(node.func.value)
            return moved
        if not self._counts(node):
            return self._data(node)
        func = node.func
        if isinstance(func, ast.Attribute):
            func.value = self.visit(func.value)
        elif not isinstance(func, ast.Name):
            node.func = self.visit(func)
        node.args = [self.visit(each) for each in node.args]
        node.keywords = [self.visit(each) for each in node.keywords]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """See the class."""
        return self._data(node) if self._is_data(node) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """See the class."""
        return self._data(node) if self._is_data(node) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """See the class."""
        return self._data(node) if self._is_data(node) else self.generic_visit(node)

    def _is_data(self, node: ast.expr) -> bool:
        root = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        return (
            _is_read(root)
            and root.id not in self._scope
            and not hasattr(builtins, root.id)
            and not self._counts(node)
        )

    def _data(self, node: ast.expr) -> ast.AST:
        number = self._order.setdefault(ast.dump(node), len(self._order))
        return ast.Name(f"watchdog_data_{number}", ast.Load())


def _moves(call: ast.Call) -> bool:
    """Whether a call only moves a value to a device."""
    method = _method(call)
    given = [*call.args, *(each.value for each in call.keywords)]
    words = [ast.unparse(each).lower() for each in given if not isinstance(each, ast.Constant)]
    places = all("dev" in each or "rank" in each or "gpu" in each for each in words)
    return method in ("cpu", "cuda") or (method == "to" and places)


def _assignments_in_order(text: ast.AST) -> list[tuple[str, ast.expr]]:
    """The variables that a text sets, with their values; a part of a tuple as an item of it."""
    found: list[tuple[str, ast.expr]] = []
    lines = [each for each in loop_text.own_nodes(text) if isinstance(each, _ASSIGNMENTS)]
    for each in sorted(lines, key=lambda line: (line.lineno, line.col_offset)):
        if each.value is None:
            continue
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
            if isinstance(target, ast.Name) and isinstance(each, ast.AugAssign):
                before = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                found.append((target.id, ast.BinOp(before, each.op, each.value)))
            elif isinstance(target, ast.Name):
                found.append((target.id, each.value))
            elif isinstance(target, ast.Tuple):
                found += [
                    (part.id, ast.Subscript(each.value, ast.Constant(place), ast.Load()))
                    for place, part in enumerate(target.elts)
                    if isinstance(part, ast.Name)
                ]
    return found


_ASSIGNMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _set_names(text: ast.AST) -> Set[str]:
    """The variables that a text sets."""
    return {
        each.id
        for each in loop_text.own_nodes(text)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }


def _constants(text: ast.AST, loops: list[ast.AST]) -> Set[str]:
    """The variables that a text sets once, to a constant, in the body of one of its loops."""
    sets = Counter(
        each.id for each in loop_text.own_nodes(text) if isinstance(each, ast.Name) and is_set(each)
    )
    return {
        target.id
        for loop in loops
        for line in getattr(loop, "body", ())
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name) and sets[target.id] == 1
    }


def _all_names(text: ast.AST) -> Set[str]:
    return {each.id for each in ast.walk(text) if isinstance(each, ast.Name)}


def _replace(whole: ast.expr, old: ast.expr, new: ast.expr) -> ast.expr:
    """An expression in which one part is replaced, in place if it is not the whole."""
    if whole is old:
        return new
    for node in ast.walk(whole):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)
            elif isinstance(value, list):
                value[:] = [new if each is old else each for each in value]
    return whole


def _known(values: _Scope) -> _Scope:
    return {name: value for name, value in values.items() if value is not None}


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _source_nodes(
    values: list[ast.expr], assigned: Mapping[str, list[ast.expr]]
) -> Iterator[ast.AST]:
    """All nodes that the values are computed from, through the variables in them."""
    waiting, seen = list(values), set()
    while waiting:
        for node in ast.walk(waiting.pop()):
            yield node
            if isinstance(node, ast.Name) and node.id not in seen:
                seen.add(node.id)
                waiting += assigned.get(node.id, ())


def _source_calls(values: list[ast.expr], assigned: Mapping[str, list[ast.expr]]) -> list[ast.Call]:
    found = {
        id(each): each for each in _source_nodes(values, assigned) if isinstance(each, ast.Call)
    }
    return sorted(found.values(), key=lambda each: (each.lineno, each.col_offset))


def _body_and_scope(called: Any) -> tuple[ast.AST, dict[str, Any]] | None:
    """Source and non-local names of a function of the program."""
    plain = code.unwrapped(called)[0]
    text = None if plain is None else code.source_tree(plain.__code__)
    if plain is None or text is None:
        return None
    outer = code.outer_values(plain)
    for name in plain.__code__.co_varnames:
        outer.pop(name, None)
    return text, outer


def _bound_arguments(call: ast.Call, called: Any, values: _Scope) -> dict[str, Any]:
    """The parameters of a function, as far as a call shows their values."""
    plain = code.unwrapped(called)[0]
    names = [] if plain is None else list(plain.__code__.co_varnames[: plain.__code__.co_argcount])
    found = {names[0]: called.__self__} if names and isinstance(called, MethodType) else {}
    for name, value in zip(names[len(found) :], call.args, strict=False):
        found[name] = audit.value_of(value, values)
    found |= {
        each.arg: audit.value_of(each.value, values) for each in call.keywords if each.arg in names
    }
    return found
