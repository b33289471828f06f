"""The objects that a training changes, by the names and values that its text gives them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from watchdog_app.agent.source.program import Function, Loop, Program

# Full names of what makes an object whose state changes in a training.
_CHANGES = re.compile(
    r"^torch\.nn\.(?!functional|init|utils).*\b[A-Z]\w*(?<!Loss)$|\b(Sequential|Model)$"
    r"|^(?!.*\.(schedules|losses)\.).*optim|lr_scheduler|get_\w*schedule|GradScaler"
    r"|AveragedModel|EMA$|\.metrics\.|Variable$|(Generator|RandomState|default_rng|from_seed)$"
    r"|\.applications\.|^torchvision\.models\.|from_pretrained$|^random\.Random$"
)
_SAME = ("to", "cuda", "cpu", "float", "double", "half", "train", "eval", "requires_grad_")
_COPIES = ("deepcopy", "clone_model", "compile")
_MOST_NAMES = 8  # names that lead to a value


def state(program: Program, loop: Loop) -> list[str]:
    """The expressions for what a training changes that are visible before its outermost loop."""
    scope, used = program.function_of(loop), _names_used(program, loop)
    found = {
        text: None
        for text, value, place in _visible(program, scope)
        if text in used and (place.lineno < loop.lineno or program.function_of(place) is not scope)
        if _changes(program, value)
    }
    return list(found)


def is_model_class(program: Program, found: ast.ClassDef) -> bool:
    """Whether a class of the program is a model or layer."""
    lasts = [program.full_name(base).rpartition(".")[2] for base in found.bases]
    return any(
        last.endswith(("Module", "Model", "Layer", "Sequential"))
        or (last in program.classes and is_model_class(program, program.classes[last]))
        for last in lasts
    )


def _changes(program: Program, value: ast.AST | None, names: int = 0) -> bool:
    """Whether an expression makes an object that a training changes."""
    if names > _MOST_NAMES:
        return False
    if isinstance(value, ast.Name | ast.Attribute):
        return _changes(program, program.value(value), names + 1)
    if not isinstance(value, ast.Call):
        return False
    name = program.full_name(value.func)
    last = name.rpartition(".")[2] or getattr(value.func, "attr", "")
    if last in _SAME and isinstance(value.func, ast.Attribute):
        return _changes(program, value.func.value, names)
    if last in _COPIES and value.args:
        return _changes(program, value.args[0], names)
    if last in program.classes:
        return is_model_class(program, program.classes[last])
    returned = [each for each in ast.walk(program.functions.get(last, ast.Pass()))
                if isinstance(each, ast.Return)]  # fmt: skip
    return (
        any(_changes(program, each.value, names + 1) for each in returned)
        or any(each.arg == "requires_grad" for each in value.keywords)
        or _CHANGES.search(name) is not None
    )


def _visible(
    program: Program, scope: Function | None
) -> Iterator[tuple[str, ast.AST | None, ast.stmt]]:
    """The expressions that are visible in a function, their values, and where they get them."""
    owner = program.class_of(scope)
    for text, value, place in program.assignments():
        where = program.function_of(place)
        if where in (None, scope):
            yield text, value, place
        elif text.startswith("self.") and owner is not None and owner in program.ancestors(place):
            makers = program.calls(owner.name) if isinstance(value, ast.Name) else []
            given = where and makers and program.argument(where, makers[0], ast.unparse(value))
            yield text, given or value, place
    if scope is not None:
        for call in program.calls_of(scope)[:1]:
            for each in scope.args.args:
                yield each.arg, program.argument(scope, call, each.arg), scope


def _names_used(program: Program, loop: ast.AST) -> set[str]:
    """The names and attributes that a loop uses, with those of the functions that it calls."""
    waiting, found = [loop], set[str]()
    while waiting:
        for node in ast.walk(waiting.pop()):
            if isinstance(node, ast.Name | ast.Attribute):
                name = node.id if isinstance(node, ast.Name) else node.attr
                if name in program.functions and name not in found:
                    waiting.append(program.functions[name])
                found |= {name, ast.unparse(node)}
    return found
