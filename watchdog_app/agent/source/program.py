"""
The training loops of a program, from the text of its files alone.

The files count as one text, so a line number of a node is that of this text. The search begins at a
call that trains: a step of an optimizer, or a gradient where no optimizer steps. It goes outwards
through loops, and from a function to the call of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
LITERAL = ast.List | ast.Tuple | ast.Set | ast.Dict  # a loop over one runs phases of an epoch
Calls = tuple[tuple[Function, ast.Call], ...]
_STEPS = ("step", "apply_gradients", "apply", "minimize")
_BY_HAND = ("train_on_batch", "backward", "gradient")  # they train where no optimizer steps
# What loops over parts of one step read.
_PARTS = ("parameters", "named_parameters", "optimizers", "param_groups", "trainable_variables")
_HOOKS = ("hooks", "_hooks", "callbacks", "_callbacks")


@dataclass(frozen=True)
class Called:
    """A call that a running program was in, and what its function calls its objects."""

    function: str
    text: str
    line: int
    names: Mapping[str, str]  # keyword of `Rescue`: expression
    file: str = ""  # relative to the folder of the program; empty: the program itself


@dataclass(frozen=True)
class Level:
    """One loop around a training step."""

    loop: Loop
    inside: ast.expr  # the step, or the call that leads to it, in the function of the loop
    calls: Calls  # the functions from the step to the loop, with the calls of them


class Program:
    """The parsed text of a program."""

    def __init__(self, files: Mapping[str, str], called: Sequence[Called] = ()) -> None:
        """
        Args:
            files: the text of each file, by its name.
            called: the calls from a step outwards, when the program ran.

        Raises:
            SyntaxError: a text is no Python.
        """
        self.files, self.source, self._called = files, "", called
        # The files with the calls; the others hold what these import.
        self.loop_files = {one.file for one in called} & files.keys() or {*files}
        self.places: dict[str, tuple[int, int]] = {}  # lines before a file, and its last line
        for name, text in files.items():
            if self.source:  # an empty line between two files belongs to neither
                self.source += "\n" if self.source.endswith("\n") else "\n\n"
            before = len(lines_of(self.source))
            self.source += text
            self.places[name] = before, before + len(lines_of(text))
        self.tree = ast.parse(self.source)
        self._nodes = nodes = list(ast.walk(self.tree))
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._calls = [each for each in nodes if isinstance(each, ast.Call)]
        self._stores: list[Any] = [
            each
            for each in nodes
            if isinstance(each, ast.arg) or isinstance(getattr(each, "ctx", None), ast.Store)
        ]
        self.functions = {each.name: each for each in nodes if isinstance(each, Function)}
        self.classes = {each.name: each for each in nodes if isinstance(each, ast.ClassDef)}
        self.imports: dict[str, str] = {}  # name in the program: full name of what it imports
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                for each in node.names:
                    own = each.asname or each.name.split(".")[0]
                    self.imports[own] = module + (each.name if module or each.asname else own)

    def file_at(self, line: int) -> str:
        """The file that a line of the whole text belongs to."""
        return next(name for name, (before, _) in reversed(self.places.items()) if line > before)

    def place(self, node: ast.stmt | ast.expr) -> str:
        """The place of a node for messages: `line 86 of solver.py`."""
        name = self.file_at(node.lineno)
        return f"line {node.lineno - self.places[name][0]}" + (f" of {name}" if name else "")

    def function_at(self, line: int) -> Function | None:
        """The innermost function around a line; None at the top level."""
        around = [each for each in self._nodes if isinstance(each, Function)
                  and each.lineno <= line <= (each.end_lineno or 0)]  # fmt: skip
        return max(around, key=lambda each: each.lineno, default=None)

    def imports_from(self, *packages: str) -> bool:
        """Whether the program imports one of these packages."""
        return any(full.split(".")[0] in packages for full in self.imports.values())

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, the innermost first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node; None at the top level."""
        return next((each for each in self.ancestors(node) if isinstance(each, Function)), None)

    def name_around(self, node: ast.AST) -> str:
        """The name of the function around a node; `<module>` at the top level."""
        return getattr(self.function_of(node), "name", "<module>")

    def _begins(self, place: ast.AST, text: str, statement: ast.stmt) -> bool:
        """Whether the method around a place has surely set it on an object before a statement."""
        maker, around = self.name_around(place), list(self.ancestors(statement))
        if maker == "__init__" or self.block_of(place)[0] is not self.function_of(place):
            return maker == "__init__"
        for call in self.calls(maker):
            owner, of = self.block_of(call)[0], ast.unparse(call.func).rpartition(".")[0]
            if of == text and owner in around and call.lineno < statement.lineno:
                return True
            if of == "self" and self.name_around(call) != maker and (
                    self._begins(call, text, statement)):  # fmt: skip
                return True
        return False

    def _is_field(self, node: ast.AST, text: str) -> bool:
        """Whether a class sets a name for its objects, of which a text is one."""
        statement, kind = self._parents.get(node), self.block_of(node)[0]
        is_set = isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None
        maker = self.maker(ast.parse(text, mode="eval").body)
        names = text, maker.rpartition(".")[2]
        return is_set and isinstance(kind, ast.ClassDef) and kind.name in names

    def is_set_before(self, text: str, statement: ast.stmt) -> bool:
        """Whether a variable, or an attribute of an object, surely has a value at a statement."""
        scope, around = self.function_of(statement), list(self.ancestors(statement))
        body = () if scope is None else ast.walk(scope)
        is_global = any(isinstance(each, ast.Global) and text in each.names for each in body)
        for node in self._stores:
            is_parameter = isinstance(node, ast.arg) and node.arg == text
            if isinstance(node, ast.arg) and not is_parameter:
                continue
            made_in = self.function_of(node)
            if is_parameter and made_in is scope:
                return True
            of, _, attribute = text.rpartition(".")
            if of and ast.unparse(node) == attribute and self._is_field(node, of):
                return True
            if isinstance(node, ast.Attribute) and of:
                if node.attr == attribute and self._begins(node, of, statement):
                    return True
            elif ast.unparse(node) == text and (
                (is_global and made_in is None)
                or (made_in is scope and self.block_of(node)[0] in around
                    and node.lineno < statement.lineno)
            ):  # fmt: skip
                return True
        return False

    def is_global(self, text: str, statement: ast.stmt) -> bool:
        """Whether a name is a global one in the function of a statement, which does not set it."""
        scope = self.function_of(statement)
        own = set[str]() if scope is None else {
            each.arg if isinstance(each, ast.arg) else each.id for each in ast.walk(scope)
            if isinstance(each, ast.arg)
            or (isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        }  # fmt: skip
        return scope is not None and "." not in text and text not in own

    def changes_in(self, text: str, loop: Loop) -> bool:
        """Whether a loop gives a variable another value, or may change it in a function."""
        declared = (each for each in self._nodes if isinstance(each, ast.Global | ast.Nonlocal))
        is_declared = any(text in each.names for each in declared)
        return "." in text or is_declared or text in names_among(ast.walk(loop), ast.Store)

    def root_class(self, node: ast.AST) -> str:
        """The full name of a class, or of the imported class from which one of the program is."""
        seen = set[str]()
        while (own := self.classes.get(ast.unparse(node))) and own.bases and own.name not in seen:
            seen.add(own.name)
            node = own.bases[0]
        return "" if ast.unparse(node) in self.classes else self.full_name(node)

    def class_of(self, function: Function | None) -> ast.ClassDef | None:
        """The class of a method; None for other functions."""
        parent = self._parents.get(function)  # type: ignore[arg-type]
        return parent if isinstance(parent, ast.ClassDef) else None

    def block_of(self, node: ast.AST) -> tuple[ast.AST, list[ast.stmt]]:
        """The owner of the list of statements in which a node is, and that list."""
        for parent in self.ancestors(node):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(parent, name, None)
                if isinstance(block, list) and node in block:
                    return parent, block
            node = parent
        return self.tree, self.tree.body

    def full_name(self, node: ast.AST) -> str:
        """`torch.optim.Adam` for `optim.Adam`; empty if the node is no dotted name."""
        if isinstance(node, ast.Attribute):
            before = self.full_name(node.value)
            return f"{before}.{node.attr}" if before else ""
        return self.imports.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def calls(self, name: str) -> list[ast.Call]:
        """The calls of functions and methods of this name, in the order of the text."""
        found = [
            node
            for node in self._calls
            if name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
        ]
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def calls_of(self, function: Function) -> list[ast.Call]:
        """The calls of a function of the program from outside of it."""
        kind = ast.Name if self.class_of(function) is None else ast.Attribute
        return [
            call
            for call in self.calls(function.name)
            if isinstance(call.func, kind) and function not in self.ancestors(call)
        ]

    @cached_property
    def assignments(self) -> list[tuple[str, ast.expr, ast.stmt]]:
        """The names and attributes that get values, also in a `with`: text, value, statement."""
        return list(self._find_assignments())

    def _find_assignments(self) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
        blocks = [each for each in self._nodes if isinstance(each, ast.With)]
        for block, item in ((each, item) for each in blocks for item in each.items):
            if item.optional_vars is not None:
                yield ast.unparse(item.optional_vars), item.context_expr, block
        statements = [each for each in self._nodes if isinstance(each, ast.Assign)]
        for node, target in ((each, target) for each in statements for target in each.targets):
            if isinstance(target, ast.Tuple):
                values = getattr(node.value, "elts", [])  # not known for a call
                for each, value in zip(target.elts, values, strict=False):
                    yield ast.unparse(each), value, node
            else:
                yield ast.unparse(target), node.value, node

    def value(self, node: ast.AST) -> ast.expr | None:
        """The first value that the program gives to a name or an attribute; None if unknown."""
        wanted = ast.unparse(node)
        return next((value for text, value, _ in self.assignments if text == wanted), None)

    def maker(self, node: ast.AST) -> str:
        """The full name of the class or function whose call makes an object; empty if unknown."""
        seen = set[str]()
        while not isinstance(node, ast.Call) and (text := ast.unparse(node)) not in seen:
            seen.add(text)
            node = self.value(node) or node
        return self.full_name(node.func) if isinstance(node, ast.Call) else ""

    def steps(self) -> list[ast.Call]:
        """The calls that train."""
        found = [
            call
            for name in _STEPS
            for call in self.calls(name)
            if isinstance(call.func, ast.Attribute) and self._is_optimizer(call.func.value)
        ]
        found = found or [call for name in _BY_HAND for call in self.calls(name)]
        own = (call for call in found if self.file_at(call.lineno) in self.loop_files)
        return sorted(own, key=lambda call: (call.lineno, call.col_offset))

    def names_in(self, node: ast.stmt, otherwise: Mapping[str, str]) -> Mapping[str, str]:
        """What the function around a node calls its objects; `otherwise` if no calls are known."""
        file, name = self.file_at(node.lineno), self.name_around(node)
        # The module's names are valid in its functions, too.
        outer, own = ({keyword: text for one in self._called if (one.function, one.file) == place
                       for keyword, text in one.names.items()}
                      for place in (("<module>", file), (name, file)))  # fmt: skip
        shared = {keyword: text for keyword, text in outer.items()
                  if self.is_global(re.split(r"\W", text)[0], node)}  # fmt: skip
        return {**shared, **own} if self._called else otherwise

    def path(self) -> list[ast.Call]:
        """The calls in the text that were running; empty unless the text has all of them."""
        found = []
        for one in self._called:
            before, last = self.places.get(one.file, (0, 0))
            like = [
                node for node in self._nodes
                if isinstance(node, ast.Call) and before < node.lineno <= last
                and one.function in ("", self.name_around(node)) and ast.unparse(node) == one.text
            ]  # fmt: skip
            line = before + one.line
            found += [min(like, key=lambda node: abs(node.lineno - line))] if like else []
        return found if len(found) == len(self._called) else []

    def levels(self, step: ast.expr, path: Sequence[ast.Call] = ()) -> list[Level]:
        """The loops around a call that trains, innermost first; `path`: the calls around it."""
        found: list[Level] = []
        calls: Calls = ()
        node, callers = step, iter(path)
        while True:
            function = self.function_of(node)
            for each in self.ancestors(node):
                if each is function:
                    break
                if isinstance(each, Loop) and _is_of_steps(each):
                    found.append(Level(each, node, calls))
            if function is None or function in [known for known, _ in calls]:
                return found
            caller = next(callers, None) if path else self._caller(function)
            if caller is None:
                return found
            node, calls = caller, (*calls, (function, caller))

    def _caller(self, function: Function) -> ast.Call | None:
        """The call of a function that trains, as far as the text shows."""
        callers = self.calls_of(function)
        # A call in a loop trains; one outside may be a trial.
        in_loop = (c for c in callers if any(isinstance(e, Loop) for e in self.ancestors(c)))
        return next(in_loop, callers[0] if callers else None)

    def translated(self, text: str, calls: Calls) -> str | None:
        """
        An expression of the innermost function, as its outermost caller writes it.

        Args:
            text: a name with attributes or items: `self.model`, `parts["encoder"]`.
            calls: see `Level`.

        Returns:
            None if a function makes the value itself.
        """
        for function, call in calls:
            base = next((n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)), "")
            given = self.argument(function, call, base)
            if given is not None:
                text = ast.unparse(given) + text[len(base) :]
            elif any(
                name == base and self.function_of(place) is function
                for name, _, place in self.assignments
            ):
                return None
        return text

    def argument(self, function: Function, call: ast.Call, name: str) -> ast.expr | None:
        """What a call gives for a parameter of a function; None if it gives nothing."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        given: list[ast.expr] = []
        for each in call.args:
            made = self.value(each.value) if isinstance(each, ast.Starred) else None
            if isinstance(each, ast.Starred) and not isinstance(made, ast.Tuple):
                break  # what follows has no known place
            given += made.elts if isinstance(made, ast.Tuple) else [each]
        if self.class_of(function) is not None and isinstance(call.func, ast.Attribute):
            given.insert(0, call.func.value)
        named = {each.arg: each.value for each in call.keywords}
        return dict(zip(names, given, strict=False)).get(name) or named.get(name)

    def read_by(self, call: ast.Call) -> ast.expr | None:
        """The argument over which a generator of the program loops to yield its items."""
        function, read = self.called(call), self.read_in(call)
        if function is None or read is None or self.begins_again(call):
            return None
        return self.argument(function, call, read.id)

    def begins_again(self, call: ast.Call) -> bool:
        """Whether a generator of the program begins what it reads again and again."""
        read = self.read_in(call)
        return read is not None and sum(isinstance(up, Loop) for up in self.ancestors(read)) > (
            isinstance(self._parents[read], ast.For)
        )

    def name_of(self, node: ast.AST) -> str:
        """The last part of the name of a function that is called; of another node, of itself."""
        func = getattr(node, "func", node)
        return (self.full_name(func) or ast.unparse(func)).rpartition(".")[2]

    def called(self, call: ast.Call) -> Function | None:
        """The function of the program that a call calls, by its name."""
        return self.functions.get(self.name_of(call))

    def read_in(self, call: ast.Call) -> ast.Name | None:
        """What a generator of the program loops over to yield its items, in its own text."""
        for each in ast.walk(self.called(call) or ast.Pass()):
            read: Any = getattr(each, "iter", None) if isinstance(each, ast.For) else None
            if isinstance(each, ast.YieldFrom):
                read = each.value
            elif not any(isinstance(node, ast.Yield) for node in ast.walk(each)):
                continue
            if isinstance(read, ast.Name):
                return read
        return None

    def _is_optimizer(self, node: ast.AST) -> bool:
        text = ast.unparse(node).lower()
        made = ast.unparse(value).lower() if (value := self.value(node)) is not None else ""
        is_other = any(word in f"{text} {made}" for word in ("sched", "profil", "env"))
        return not is_other and ("opt" in text or "scaler" in text or "optim." in made)


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as Python counts them: a form feed ends none."""
    return [each.decode() for each in text.encode().splitlines(keepends=True)]


def leaving(block: ast.AST, *, own: bool = True) -> Iterator[ast.stmt]:
    """
    The statements that end a turn of a loop, or a function.

    Args:
        block: the loop or the function.
        own: whether `break` and `continue` in it are of this loop.
    """
    for each in ast.iter_child_nodes(block):
        if isinstance(each, ast.Return) or (own and isinstance(each, ast.Break | ast.Continue)):
            yield each
        elif not isinstance(each, Function | ast.ClassDef):
            yield from leaving(each, own=own and not isinstance(each, Loop))


def names_among(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """The names, attributes and items among nodes that are read, or that are set."""
    return {ast.unparse(each) for each in nodes if isinstance(getattr(each, "ctx", None), context)}


def changes_length(count: ast.AST, loop: ast.AST) -> bool:
    """Whether a loop may change what a `range` in it counts: its names, or the length of one."""
    parts = list(ast.walk(count))
    read = {ast.unparse(each) for each in parts if isinstance(each, ast.Name | ast.Attribute)}
    sized = {ast.unparse(each.args[0]) for each in parts if isinstance(each, ast.Call)
             and ast.unparse(each.func) == "len" and each.args}  # fmt: skip
    return any(
        (isinstance(getattr(each, "ctx", None), ast.Store) and ast.unparse(each) in read)
        or (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and ast.unparse(each.func.value) in sized  # rows.append(row)
        )
        for each in ast.walk(loop)
    )


def is_of_hooks(node: ast.AST) -> bool:
    """Whether a loop calls hooks, of which one may step."""
    return isinstance(node, ast.For | ast.AsyncFor) and not _words(node).isdisjoint(_HOOKS)


def _is_of_steps(loop: Loop) -> bool:
    """Whether a loop runs steps, and not parts of one or phases of an epoch."""
    if isinstance(loop, ast.While):
        return True
    return (
        not isinstance(loop.iter, LITERAL)
        and not is_of_hooks(loop)
        and _words(loop).isdisjoint(_PARTS)
    )


def _words(loop: ast.For | ast.AsyncFor) -> set[str]:
    """The names and attributes in what a loop runs over."""
    return {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(loop.iter)}
