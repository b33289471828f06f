"""
The functions of the program that a loop computes its losses with, read from its source.

`objective(model, batch)` belongs to no named object. A function counts if it gets a model, or a
value that a model computed, and if its value reaches a backward pass. Augmentation, validation,
metrics and logging do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FrameType, MethodType
from typing import Any

from watchdog_app.agent.identity import audit, code, keras_facts

_DEPTH = 3  # levels of functions that the loop calls
_MAX_FUNCTIONS = 64
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
        loops = audit.loops_around(text, each.f_lineno)
        if loops:
            found = _LossFunctions(rescue, named, of_library=of_library)
            found.follow(loops[-1], values, 0)
            if found.seen:
                return found.functions[:_MAX_FUNCTIONS]
    return None


class _LossFunctions:
    """The functions that reach the backward passes of one loop."""

    def __init__(self, rescue: object, named: Mapping[str, Any], *, of_library: bool) -> None:
        self.functions: keras_facts.Functions = []
        self.seen = False
        self._rescue = rescue
        self._models = set(audit.ids_within(named.values()))
        self._of_library = of_library

    def follow(self, text: ast.AST, values: _Scope, depth: int) -> None:
        """Search a text, and the functions that it calls, for backward passes."""
        calls = [each for each in audit.own_nodes(text) if isinstance(each, ast.Call)]
        for call in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
            losses = self._losses(call, values)
            if losses:
                self.seen = True
                self._add_functions(losses, _assignments(text), values)
                continue
            called = audit.value_of(call.func, values)
            inside = _body_and_scope(called) if depth < _DEPTH and callable(called) else None
            if inside is not None:
                self.follow(
                    inside[0], {**inside[1], **_bound_arguments(call, called, values)}, depth + 1
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

    def _add_model_methods(self, call: ast.Call, called: Any, values: _Scope) -> None:
        """
        Add the methods of models that a function calls; the function's text does not identify them.
        """
        inside = _body_and_scope(called)
        if inside is None:
            return
        scope = {**inside[1], **_bound_arguments(call, called, values)}
        for each in audit.own_nodes(inside[0]):
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
    for each in audit.own_nodes(text):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign) and each.value is not None:
            for target in targets:
                for node in ast.walk(target) if target is not None else ():
                    if isinstance(node, ast.Name):
                        found.setdefault(node.id, []).append(each.value)
    return found


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
