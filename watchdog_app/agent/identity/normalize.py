"""
The text of a function without what changes no number.

Comments, docstrings, annotations, prints, log lines, assertions, timing and unused values are left
out. Local names are replaced by their order, and a value that only the next line uses is written
there.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

# calls that change no number if their result is unused
_LOGGING_CALLS = frozenset(
    (
        *("print", "pprint", "display", "warn", "warning", "info", "debug", "error", "exception"),
        *("critical", "log", "log_dict", "log_metrics", "write", "set_description", "flush"),
        *("set_postfix", "set_postfix_str", "scalar", "histogram", "image", "text", "figure"),
        *("add_scalar", "add_scalars", "add_histogram", "add_image", "add_text", "add_figure"),
        *("breakpoint", "set_trace", "record_function", "range_push", "range_pop"),
    )
)
# Calls that only read values. A line with only such calls is removed once no line uses its result.
_READING_CALLS = _LOGGING_CALLS | frozenset(
    (
        *("time", "perf_counter", "monotonic", "process_time", "perf_counter_ns", "time_ns"),
        *("len", "str", "repr", "format", "float", "int", "bool", "round", "type", "id", "join"),
        *("item", "detach", "cpu", "numpy", "tolist", "size", "numel", "dim", "getLogger"),
        *("memory_allocated", "max_memory_allocated", "now", "strftime"),
        *("mean", "sum", "max", "min", "std", "var", "norm", "abs", "sqrt", "argmax", "argmin"),
        *("any", "all", "isnan", "isinf", "isfinite", "exp"),
    )
)
# The only decorators that change the computation.
_COMPUTING = frozenset(("no_grad", "inference_mode", "enable_grad", "custom_gradient"))
# Parts of `a, (b, *c) = ...`.
_NAMES_ONLY = ast.Name | ast.Tuple | ast.List | ast.Starred | ast.expr_context
# Expressions that only read, and those whose parts are evaluated in the order of the text.
_READS = ast.Attribute | ast.Tuple | ast.List | ast.Starred | ast.keyword
_SYMBOLS = ast.operator | ast.unaryop | ast.cmpop | ast.expr_context
_IN_ORDER = _READS | _SYMBOLS | ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript


class Meanings(Protocol):
    """The meaning of the names that a function does not set."""

    def meaning(self, node: ast.AST) -> ast.expr | None:
        """Return what a non-local name stands for; None: keep it as written."""

    def method(self, written: str) -> str | None:
        """Return a text for an attribute of `self`; None: keep it as written."""

    def parameters(self, node: ast.AST, *, of_self: bool) -> Sequence[str]:
        """Return the positional parameters of a called function; empty if unknown."""

    def add_imports(self, imported: Mapping[str, tuple[str, str]]) -> None:
        """Add imports in the function: local name -> module, and the name in it or ""."""


def without_logging(node: ast.AST) -> ast.AST:
    """A copy of a text without docstrings, logging lines, and the values that only these use."""
    found: ast.AST = _LoggingRemover(drop_any_call=True).visit(copy.deepcopy(node))
    while _without_unused(found):
        pass
    return ast.fix_missing_locations(found)


class Normalizer(ast.NodeTransformer):
    """
    The tree of a function without parts that change no number, as `tree`; works on a copy.

    Args:
        node: a function or a lambda.
        names: meaning of the names that the function does not set; None: keep them.
    """

    def __init__(self, node: ast.AST, names: Meanings | None) -> None:
        self._names = names
        root: Any = ast.parse(ast.unparse(node)).body[0]  # ast.parse returns a copy
        root = root.value if isinstance(root, ast.Expr) else root
        self._self = next((each.arg for each in (*root.args.posonlyargs, *root.args.args)), "")
        quiet = _LoggingRemover()
        root = quiet.visit(root)
        self._imported: dict[str, str] = {}
        if names is not None:
            names.add_imports(quiet.imported)
        else:
            self._imported = {key: ".".join(each) for key, each in quiet.imported.items()}
        while _without_unused(root):
            pass
        _drop_unused_parameters(root.args, root)
        for block in _blocks(root):
            _join_lines(block, root)
        self._local = _local_names(root)
        self._renamed: dict[str, str] = {}
        self.tree: ast.AST = self.visit(root)

    def visit_FunctionDef(self, node: Any) -> Any:
        """Rename the function and keep only decorators that change the computation."""
        node.name = self._new(node.name) if node.name in self._local else "f"
        node.returns = None
        node.decorator_list = [
            each for each in node.decorator_list if last_name(each) in _COMPUTING
        ]
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Treat a parameter as a local name."""
        node.annotation = None
        node.arg = self._new(node.arg)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        """Treat the name of an error as a local name."""
        node.name = None if node.name is None else self._new(node.name)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace local names by their order, others by their meaning."""
        if node.id in self._local:
            node.id = self._new(node.id)
        elif node.id in self._imported:
            node.id = self._imported[node.id]
        elif self._names is not None:
            return self._names.meaning(node) or node
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Write `f(x, p=0.1)` as `f(x, 0.1)` where the parameters of `f` are known."""
        plain = all(each.arg for each in node.keywords) and not any(
            isinstance(each, ast.Starred) for each in node.args
        )
        if plain and node.keywords and self._names is not None:
            given = {str(each.arg): each for each in node.keywords}
            of_self = self._is_self(node.func)
            known = of_self or self._is_outer(node.func)
            names = self._names.parameters(node.func, of_self=of_self) if known else ()
            for each in names[len(node.args) :]:
                if each not in given:
                    break
                node.args.append(given.pop(each).value)
            node.keywords = [given[each] for each in sorted(given)]
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Replace an item of a global container by its value."""
        return self._outer_meaning(node) or self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Write `-1` as one constant, as the value of a name is written."""
        self.generic_visit(node)
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        negative = isinstance(node.op, ast.USub) and type(number) in (int, float)
        return ast.Constant(-number) if negative else node  # type: ignore[operator]

    def _is_outer(self, node: ast.AST) -> bool:
        """Whether a name, attribute or item comes from outside of the function."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in (self._local | self._imported.keys())

    def _is_self(self, node: ast.AST) -> bool:
        """Whether this is `self.name`."""
        whole = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(whole, ast.Name) and whole.id == self._self

    def _outer_meaning(self, node: ast.expr) -> ast.AST | None:
        outer = self._names is not None and self._is_outer(node)
        return self._names.meaning(node) if outer and self._names is not None else None

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace a function of the program by its index and a constant by its value."""
        found = self._outer_meaning(node)
        if found is not None:
            return found
        if self._is_self(node) and self._names is not None:
            node.attr = self._names.method(node.attr) or node.attr
        return self.generic_visit(node)

    def _new(self, written: str) -> str:
        return self._renamed.setdefault(written, f"local {len(self._renamed)}")


class _LoggingRemover(ast.NodeTransformer):
    """Removes docstrings, logging lines, assertions, annotations and imports."""

    def __init__(self, *, drop_any_call: bool = False) -> None:
        # if not, calls inside the line may change something and stay
        self._drop_any_call = drop_any_call
        # name in the function -> its module, and the name in that
        self.imported: dict[str, tuple[str, str]] = {}

    def visit_Import(self, node: ast.Import) -> None:
        """Record the origin of the imported names, then remove the import."""
        for each in node.names:
            top = each.name.partition(".")[0]
            self.imported[each.asname or top] = (each.name if each.asname else top), ""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """See `visit_Import`."""
        for each in node.names:
            module = "." * node.level + (node.module or "")
            self.imported[each.asname or each.name] = module, each.name

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a bare string, or a call that only logs."""
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Constant):
            return None
        logs = isinstance(value, ast.Call) and last_name(value) in _LOGGING_CALLS
        if logs and (self._drop_any_call or _only_reads(value)):
            return None
        return self.generic_visit(node)

    def visit_Assert(self, _node: ast.Assert) -> None:
        """Remove an assertion: if it fails, the program does not train."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Replace an annotated assignment by a plain one."""
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value))

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Remove an `if` whose body only logged."""
        self.generic_visit(node)
        if not node.body and not node.orelse and _only_reads(node.test):
            return None
        return node

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        """Replace `with record_function(...)` by its body."""
        self.generic_visit(node)
        if all(last_name(each.context_expr) in _LOGGING_CALLS for each in node.items):
            return node.body
        return node


def _without_unused(root: ast.AST) -> bool:
    """Remove values that no line uses; return whether any were removed."""
    used = set(read_names(root))
    found = False
    for lines in _blocks(root):
        kept = [each for each in lines if not _is_unused(each, used)]
        found = found or len(kept) < len(lines)
        lines[:] = kept
    return found


def _blocks(root: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of lines in a text."""
    for each in ast.walk(root):
        for field in ("body", "orelse", "finalbody"):
            lines = getattr(each, field, None)
            if isinstance(lines, list):
                yield lines


def read_names(root: ast.AST) -> list[str]:
    """The names that a text reads, once for each place."""
    return [each.id for each in ast.walk(root) if isinstance(each, ast.Name) and not is_set(each)]


def _drop_unused_parameters(given: ast.arguments, root: ast.AST) -> None:
    """Drop the last parameters as long as no line uses them, such as `training=None`."""
    used = set(read_names(root))
    keywords = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    kept = [(each, default) for each, default in keywords if each.arg in used]
    given.kwonlyargs, given.kw_defaults = [each for each, _ in kept], [each for _, each in kept]
    given.kwarg = given.kwarg if given.kwarg and given.kwarg.arg in used else None
    while given.args and not given.vararg and given.args[-1].arg not in used:
        given.args.pop()
        given.defaults = given.defaults[:-1]


def _join_lines(lines: list[ast.stmt], root: ast.AST) -> None:
    """Write `y = f(x)` and `return g(y)` as one line, if nothing else uses `y`."""
    place = 0
    while place + 1 < len(lines):
        line, after = lines[place], lines[place + 1]
        name = _assigned_name(line)
        value = after.value if isinstance(after, ast.Assign | ast.Return | ast.Expr) else None
        ends = isinstance(after, ast.Return) or _assigned_name(after) == name
        if (
            name is not None
            and value is not None
            and read_names(after).count(name) == 1
            and (ends or read_names(root).count(name) == 1)
            and _is_read_first(value, name)
        ):
            after.value = _Insertion(name, line.value).visit(value)  # type: ignore[attr-defined]
            del lines[place]
            place = max(0, place - 1)
        else:
            place += 1


def _assigned_name(line: ast.stmt) -> str | None:
    """The variable that a line sets, if it sets only that."""
    target = line.targets[0] if isinstance(line, ast.Assign) and len(line.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else None


def _is_read_first(node: ast.AST, name: str) -> bool | None:
    """Whether an expression reads a variable before it computes anything; None: neither."""
    if isinstance(node, ast.Name):
        return True if node.id == name else None
    if isinstance(node, ast.Constant):
        return None
    if not isinstance(node, _IN_ORDER):
        return False
    for each in ast.iter_child_nodes(node):
        found = _is_read_first(each, name)
        if found is not None:
            return found
    return None if isinstance(node, _READS | _SYMBOLS) else False


class _Insertion(ast.NodeTransformer):
    """Puts a value in the place of a variable."""

    def __init__(self, name: str, value: ast.expr) -> None:
        self._name = name
        self._value = value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """See the class."""
        return self._value if node.id == self._name else node


def _is_unused(line: ast.stmt, used: set[str]) -> bool:
    if isinstance(line, ast.Pass):
        return True
    if not isinstance(line, ast.Assign):
        return False
    targets = [each for target in line.targets for each in ast.walk(target)]
    names = {each.id for each in targets if isinstance(each, ast.Name)}
    plain = all(isinstance(each, _NAMES_ONLY) for each in targets)
    return plain and not used & names and _only_reads(line.value)


def _only_reads(value: ast.AST) -> bool:
    """Whether an expression only reads values."""
    return all(
        last_name(each) in _READING_CALLS for each in ast.walk(value) if isinstance(each, ast.Call)
    ) and not any(isinstance(each, ast.NamedExpr | ast.Yield) for each in ast.walk(value))


def last_name(node: ast.AST) -> str:
    """The name of a function that is called: `step` for `optimizer.step()`; else empty."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_set(node: ast.Name) -> bool:
    """Whether a text sets a variable here, and does not read it."""
    return isinstance(node.ctx, ast.Store | ast.Del)


def _local_names(root: ast.AST) -> set[str]:
    found: set[str | None] = set()
    outer: set[str] = set()
    for each in ast.walk(root):
        if isinstance(each, ast.arg):
            found.add(each.arg)
        elif isinstance(each, ast.Name) and is_set(each):
            found.add(each.id)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler):
            found.add(None if each is root else each.name)
        elif isinstance(each, ast.Global | ast.Nonlocal):
            outer |= set(each.names)
    return {each for each in found if each is not None} - outer
