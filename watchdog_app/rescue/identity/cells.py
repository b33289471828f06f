"""
The parts of a cell's or command's text that identify its training: the text and its constants.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from watchdog_app.rescue.identity import arguments

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def normalise(source: str) -> str:
    """
    The text of a cell or command without parts that do not change the training.

    Removes comments, blank lines, prints, numbers of epochs and the like, and the lines with which
    the training of a loop resumes.
    """
    try:
        tree = _Normaliser().visit(_WithoutRescue().visit(ast.parse(source)))
        return ast.dump(tree)
    except _UNREADABLE:
        return source.strip()


def constants(source: str) -> list[tuple[str, str]]:
    """
    Names that a cell assigns plain values: `FOLD = 3`, also in a class.

    Includes defaults of functions: `def train(fold=3)` gives `train.fold`.
    """
    try:
        body = ast.parse(source).body
    except _UNREADABLE:
        return []
    found = []
    for name, node in _read_assignments(body):
        try:
            value = ast.literal_eval(node)
        except (TypeError, *_UNREADABLE):
            continue
        if value not in ([], {}, ()) and value is not None:  # training fills these
            found.append((name, str(value)))
    return found


def _read_assignments(body: Sequence[ast.stmt], within: str = "") -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            pairs = [
                pair for target in node.targets for pair in _unpack_assignment(target, node.value)
            ]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = list(_unpack_assignment(node.target, node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pairs = [(f"{node.name}.{name}", value) for name, value in _read_defaults(node.args)]
        elif isinstance(node, ast.ClassDef):
            pairs = list(_read_assignments(node.body, f"{node.name}."))
        else:
            continue
        yield from ((f"{within}{name}", value) for name, value in pairs)


def _unpack_assignment(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Split `A, B = 1, 2` into two pairs."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        if len(target.elts) != len(value.elts):
            return
        for each, item in zip(target.elts, value.elts, strict=True):
            yield from _unpack_assignment(each, item)


def _read_defaults(given: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    named = [*given.posonlyargs, *given.args]
    without = len(named) - len(given.defaults)
    named = named[without:] + given.kwonlyargs
    for each, value in zip(named, [*given.defaults, *given.kw_defaults], strict=True):
        if value is not None:
            yield each.arg, value


class _WithoutRescue(ast.NodeTransformer):
    """Removes the lines of a Rescue: `rescue.data(x)` becomes `x`."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if (node.module or "").startswith("watchdog_app.agent") else node

    def visit_Global(self, node: ast.Global) -> ast.AST | None:
        return None if node.names == ["rescue"] else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _rescue_call(node.value) else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        is_own = _rescue_call(node.value) in ("Rescue", "Rescue.current", "rescue.variables")
        return None if is_own else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called, given = _rescue_call(node), node.args[:1]
        if called == "rescue.data" and given:
            return given[0]
        if called == "rescue.enumerate":
            node.func = ast.Name("enumerate", ast.Load())
        if called == "rescue.epochs" and given:
            is_range = isinstance(given[0], ast.Call)
            return given[0] if is_range else ast.Call(ast.Name("range", ast.Load()), given, [])
        return node


def _rescue_call(node: ast.AST) -> str:
    """`rescue.step` for a call of a Rescue named `rescue`, or of its class; else empty."""
    text = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return text if text.partition(".")[0] in ("rescue", "Rescue") else ""


class _Normaliser(ast.NodeTransformer):
    """Removes code that does not change the training."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        call = node.value
        printed = isinstance(call, ast.Call) and getattr(call.func, "id", None) == "print"
        text = isinstance(call, ast.Constant) and isinstance(call.value, str)
        return None if printed or text else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        own = arguments.RESCUE_ARGUMENTS if called == "Rescue" else ()
        node.keywords = [
            each
            for each in node.keywords
            if each.arg not in own and not _is_benign(each.arg, each.value)
        ]
        node.args = [each for each in node.args if not _is_benign(called, each)]
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        # for epoch in range(10)
        counted = node.iter if isinstance(node.iter, ast.Call) else None
        if counted is not None and getattr(counted.func, "id", None) == "range":
            name = getattr(node.target, "id", None)
            counted.args = [each for each in counted.args if not _is_benign(name, each)]
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        names = [getattr(each, "id", None) for each in node.targets]
        return None if _is_benign(names[0], node.value) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        name = getattr(node.target, "id", None)
        return None if _is_benign(name, node.value) else self.generic_visit(node)


def _is_benign(name: str | None, value: ast.expr | None) -> bool:
    if name is None or not isinstance(value, ast.Constant):
        return False
    return arguments.is_benign(name, str(value.value))
