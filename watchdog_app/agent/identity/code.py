"""
A fingerprint of what a function of the program computes.

The fingerprint ignores what changes no number: comments, formatting, docstrings, annotations,
prints, log lines, assertions, timing, names of local variables, a line for a value that only the
next line uses. It follows calls to functions of the program, also those of its modules and objects.
Plain constants count with their values, also those of modules, namespaces and dictionaries.

The source counts only if it matches the running code: a file edited after its import does not.
Without matching source the bytecode counts, which only one version of Python reproduces.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

from watchdog_app.agent.identity.normalize import (
    Normalizer,
    is_set,
    read_names,
    without_logging,
)
from watchdog_app.agent.telemetry.stacks import callers
from watchdog_app.rescue.identity import arguments
from watchdog_app.rescue.identity.call_site import is_library_file

# One entry per function, the fingerprinted one first, then those it calls: name, hash of what it
# computes, file (relative to the program's folder if it is inside), hash of its text alone.
Fingerprint = list[list[str]]

BYTECODE = "bytecode"
_MOST_FUNCTIONS = 64  # functions of one fingerprint; of a larger program only these are compared
_MOST_BYTES = 2_000_000  # size of a source file; longer files are generated
_HASH_DIGITS = 16
_WRAPPER_ATTRIBUTES = ("__wrapped__", "python_function", "_torchdynamo_orig_callable")
# Methods that change a list, a set or a dictionary.
_CHANGE_CONTAINER = frozenset(
    (
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove"),
        *("add", "discard", "clear", "update", "setdefault", "sort", "reverse"),
    )
)
# What Python, Keras and PyTorch call when an object, or an autograd function, is called.
_CALLED = ("__call__", "call", "forward", "backward")
_NAMESPACES = ("types", "argparse")  # modules of SimpleNamespace and Namespace
_LONGEST_WORD = 64
_WATCHDOG = os.path.join(os.path.realpath(f"{os.path.dirname(__file__)}/../.."), "")
# Start scripts of installed packages: pytest, accelerate, jupyter.
_COMMANDS = sysconfig.get_path("scripts") or ""
# Attributes and constants that say how or how long a program trains, not what it trains.
_RUN_SETTINGS = frozenset(
    (
        *("training", "built", "compiled", "epoch", "step", "global_step", "random_state"),
        *("verbose", "steps_per_execution", "run_eagerly", "jit_compile", "stop_training"),
    )
)

# Modules and functions whose results differ between runs, machines or sizes of a batch.
_VARYING = frozenset(
    (
        *("time", "datetime", "random", "secrets", "uuid", "tempfile", "default_rng", "getpid"),
        *("perf_counter", "monotonic", "randint", "uniform", "rand", "randn", "now", "today"),
        *("os", "socket", "platform", "len"),
    )
)
# A number of more digits is computed or drawn, not written by hand.
_MOST_DIGITS = 12


def fingerprint(function: object) -> Fingerprint | None:
    """
    What a function computes; None if it is not the program's own. Never raises.

    Args:
        function: a function, method, `functools.partial`, or a wrapper made by tf.function,
            torch.compile or `functools.wraps`.
    """
    try:
        plain, _ = unwrapped(function)
        return None if plain is None else _Fingerprinter().fingerprint(plain)
    except Exception:  # objects of the program may raise on access
        return None


def expression_fingerprint(
    value: ast.expr, scope: Mapping[str, object], filename: str, restored: Set[int]
) -> Fingerprint | None:
    """
    What an expression computes, and the functions that it calls. Never raises.

    Args:
        value: an expression of a file; names that the scope lacks count by their order.
        scope: names and values that are the same in every run.
        filename: the file.
        restored: ids of objects that a resume restores, so that their contents do not count.
    """
    try:
        file = _file(filename)
        if file is None:
            return None
        free = [each for each in read_names(value) if each not in scope]
        own = [each for each in dict.fromkeys(free) if each not in vars(builtins)]
        given = ast.arguments([], [ast.arg(each) for each in own], None, [], [], None, [])
        root = ast.fix_missing_locations(ast.Lambda(given, value))
        called = _Fingerprinter()
        text = _normalized_hash(root, _Names(scope, None, file, called, restored))
        return [["the loss", text, os.path.basename(filename), ""], *called.found]
    except Exception:  # see `fingerprint`
        return None


def varies(value: ast.expr) -> bool:
    """Whether the text of a value reads the time, a random number or a setting of the run."""
    words = _words(value)
    return bool(words & _VARYING) or any(_is_irrelevant_setting(each, 1) for each in words)


def _words(value: ast.expr) -> set[str]:
    """The names, attributes and items in the text of a value."""
    words: set[str] = set()
    for each in ast.walk(value):
        if isinstance(each, ast.Name):
            words.add(each.id)
        elif isinstance(each, ast.Attribute):
            words.add(each.attr)
        elif isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant):
            words.add(str(each.slice.value))
    return words


def source_tree(code: CodeType) -> ast.AST | None:
    """The source that a function or module was compiled from; None if unknown."""
    if code.co_name != "<module>":
        written = _written_function(code)
        return None if written is None else written[0]
    file = _file(code.co_filename)
    return file.tree if file is not None and file.runs(code) else None


def outer_values(function: FunctionType) -> dict[str, object]:
    """The values of the non-local names of a function."""
    return {**function.__globals__, **closure(function)}


def is_own(thing: object) -> bool:
    """Whether a function or class belongs to the program itself, not to a library."""
    if isinstance(thing, FunctionType):
        return is_own_file(thing.__code__.co_filename)
    if not isinstance(thing, type):
        return False
    module = sys.modules.get(thing.__module__)
    if module is None:
        return False
    path = getattr(module, "__file__", None)
    if path is None:
        return thing.__module__ == "__main__"  # a notebook or a prompt
    return is_own_file(str(path))


def library_class(kind: type) -> str:
    """The name of a class; for a class of the program that of its library base class."""
    others = (each for each in kind.__mro__ if not is_own(each))
    library = next((each for each in others if each.__module__ not in ("abc", "typing")), kind)
    return str(library.__name__)


def is_program(code: CodeType) -> bool:
    """Whether code belongs to the program: a script, a cell, or a module of its folder."""
    file = code.co_filename
    command = os.path.dirname(file) == _COMMANDS and not file.endswith(".py")
    return not command and is_own_file(file)


def program_frames(frame: FrameType | None, most: int) -> Iterator[FrameType]:
    """The innermost frames of the program's own code, from `frame` outwards."""
    return islice((each for each in callers(frame) if is_program(each.f_code)), most)


def program_frame(frame: FrameType) -> FrameType:
    """The innermost frame of the program's own code; `frame` itself if there is none."""
    return next(program_frames(frame, 1), frame)


def location(function: object) -> str:
    """File and line of a function for messages; empty if it has none."""
    plain, _ = unwrapped(function)
    if plain is None or plain.__code__.co_filename.startswith("<"):
        return ""
    return f"{os.path.basename(plain.__code__.co_filename)}:{plain.__code__.co_firstlineno}"


def name(function: object) -> str:
    """The qualified name of a function, without the functions that enclose it."""
    plain, _ = unwrapped(function)
    return "" if plain is None else plain.__qualname__.rpartition("<locals>.")[2]


def unwrapped(function: object) -> tuple[FunctionType | None, Mapping[str, object]]:
    """The program's own function inside the wrappers, and the values that a partial binds."""
    given: dict[str, object] = {}
    for _ in range(16):
        if isinstance(function, functools.partial):
            given |= {str(index): value for index, value in enumerate(function.args)}
            given |= function.keywords
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        else:
            inner = next(
                (
                    each
                    for name in _WRAPPER_ATTRIBUTES
                    if (each := _attribute(function, name)) is not None
                ),
                None,
            )
            if inner is None:
                break
            function = inner
    if isinstance(function, FunctionType) and is_own(function):
        return function, given
    return None, given


def plain_attributes(thing: object, *, begins: bool = True) -> dict[str, Any]:
    """
    The numbers and words in an object of the program; they influence what it computes.

    Omitted: settings that do not change the training (`batch_size`, `log_dir`), seeds, names, and
    values that differ in each run, such as a time stamp.

    Args:
        thing: a layer, module or loss.
        begins: whether the training starts now. If not, attributes are omitted that the program's
            text sets, since they may have changed by now.
    """
    found = {}
    moving = frozenset() if begins else attributes_set(type(thing))
    used: Set[str] | None = None
    for key, value in sorted(attributes_of(thing).items()):
        if key.startswith("_") or key in moving:
            continue
        inner: Mapping[Any, object] = {}
        if type(value) is dict:
            inner = value
        elif type(value).__module__ in _NAMESPACES or (is_own(type(value)) and not callable(value)):
            inner = attributes_of(value)
        if inner:  # a configuration: only what the methods of the object read
            used = _names_in_methods(type(thing)) if used is None else used
            now = used if begins else used - moving - attributes_set(type(value))
            inner = {f"{key}.{name}": each for name, each in inner.items() if name in now}
        for name, each in (inner or {key: value}).items():
            if is_plain(each) and not _is_irrelevant_setting(name, each):
                found[name] = each
    return found


def attributes_named(kind: type) -> frozenset[str]:
    """The attributes that methods of a class use; counts only methods that the program defines."""
    return frozenset(name for code in method_codes(kind) for name in code.co_names)


def _names_in_methods(kind: type) -> set[str]:
    """`attributes_named`, and the keys of dictionaries, without those of `__init__`."""
    codes = [each for each in method_codes(kind) if each.co_name != "__init__"]
    return {
        each for code in codes for each in (*code.co_names, *code.co_consts) if type(each) is str
    }


def method_codes(kind: type) -> Iterator[CodeType]:
    """The methods of a class, also inherited ones, that the program defines."""
    for each in kind.__mro__:
        for member in vars(each).values() if is_own(each) else ():
            function = member.fget if isinstance(member, property) else member
            plain, _ = unwrapped(function) if callable(function) else (None, {})
            if plain is not None:
                yield plain.__code__


def attributes_set(kind: type) -> frozenset[str]:
    """
    The attributes that the text of a class and of the program changes outside of `__init__`.

    The text sets them or changes their contents: `self.bank.append(x)`, `self.seen[key] = x`.
    """
    paths = {_path_of(sys.modules.get(name)) for name in (kind.__module__, "__main__")}
    paths |= {each.co_filename for each in method_codes(kind)}  # cells of a notebook
    files = map(_file, paths)
    return frozenset[str]().union(*(file.attributes for file in files if file is not None))


def is_plain(value: object) -> bool:
    """Whether a value is the same in every run: a number, a word, or a short tuple of them."""
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int | float):
        return abs(value) < 1e9 and float(f"{value:.{_MOST_DIGITS}g}") == value
    if isinstance(value, str):
        return len(value) <= _LONGEST_WORD and value.replace("_", "").isalpha()
    return isinstance(value, tuple) and len(value) <= 16 and all(map(is_plain, value))


def statements(path: str | None) -> list[tuple[str, int, int]]:
    """
    The top-level statements of a program's source: hash, first line, last line.

    Empty if the source cannot be read. Comments and formatting do not count.
    """
    try:
        return _statements(_source(path or "") or "")
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []


@functools.lru_cache(maxsize=2)
def _statements(source: str) -> list[tuple[str, int, int]]:
    return [
        (text_hash(ast.dump(each)), each.lineno, each.end_lineno or each.lineno)
        for each in ast.parse(source).body
    ]


def function_hashes(path: str) -> set[str]:
    """The text hashes (see `Fingerprint`) of all functions in a file; empty if it is unreadable."""
    file = _file(path)
    return {_normalized_hash(each) for each in file.nodes} if file is not None else set()


class _Fingerprinter:
    """Fingerprints one function and its callees, in the order in which it names them."""

    def __init__(self) -> None:
        self._known: dict[CodeType, int] = {}
        self.found: Fingerprint = []

    def fingerprint(self, function: FunctionType) -> Fingerprint:
        self.number(function, None)
        return self.found

    def number(self, function: FunctionType, owner: type | None) -> int | None:
        """The index of a function in the fingerprint; None if it is left out."""
        code = function.__code__
        if code in self._known:
            return self._known[code]
        if len(self.found) >= _MOST_FUNCTIONS:
            return None
        self._known[code] = number = len(self.found)
        entry = [name(function), "", _file_of(code), ""]
        self.found.append(entry)
        written = _written_function(code)
        if written is None:
            major, minor, *_ = sys.version_info
            entry[1] = f"{BYTECODE}-{major}.{minor}:{text_hash(repr(_code_key(code)))}"
            return number
        node, file = written
        values = outer_values(function)
        for each in code.co_freevars:
            if each in file.looped:  # another iteration, or a resume, has another value
                values.pop(each, None)
        names = _Names(values, owner or _defining_class(function), file, self)
        entry[1] = _normalized_hash(node, names)
        entry[3] = _normalized_hash(node)
        return number


def _written_function(code: CodeType) -> tuple[ast.AST, _File] | None:
    """
    The source of a function, and its file.

    None if there is no source, or the source does not match the running code.
    """
    file = _file(code.co_filename)
    if file is None or not file.runs(code):
        return None
    found = [each for each in file.nodes if _is_definition_of(each, code)]
    return (found[0], file) if len(found) == 1 else None  # else several lambdas on one line


@dataclass(frozen=True, slots=True)
class _File:
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # functions and lambdas
    codes: Mapping[tuple[str, int], list[tuple[Any, ...]]]
    changed: frozenset[str]  # globals that functions or loops set, and containers that change
    looped: frozenset[str]  # variables that loops set, also in functions
    varying: frozenset[str]  # globals whose values another run need not have
    attributes: frozenset[str]  # attributes set or changed outside of `__init__`
    imported: Mapping[str, tuple[str, str]]  # name -> the module and the name in it

    def runs(self, code: CodeType) -> bool:
        """Whether running code was compiled from this source."""
        there = self.codes.get((code.co_name, code.co_firstlineno), ())
        return _code_key(code) in there


def _definition_hash(name: str) -> str:
    """
    A text for a definition of the program in a module that may not be loaded; empty if unknown.

    It is that of the whole module without its log lines.
    """
    module = name.rpartition(".")[0]
    path = _path_of(sys.modules.get(module))
    parent = module.rpartition(".")[0]
    if module and module not in sys.modules and (not parent or parent in sys.modules):
        spec = importlib.util.find_spec(module)  # imports nothing: its package is loaded
        path = str(spec.origin) if spec is not None else path
    file = _file(path) if os.path.isfile(path) and is_own_file(path) else None
    return "" if file is None else f" {text_hash(ast.dump(without_logging(file.tree)))}"


def _path_of(module: object) -> str:
    """The file of a module; "<none>" if it has none."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) else "<none>"


def _file(filename: str) -> _File | None:
    """The parsed source of a file; None if it cannot be read."""
    source = _source(filename)
    return _parsed(filename, source) if source else None


@functools.lru_cache(maxsize=32)
def _parsed(filename: str, source: str) -> _File | None:
    try:
        tree = ast.parse(source)
        # IPython runs the statements of a cell one by one.
        single = [] if os.path.exists(filename) else [ast.Module([each], []) for each in tree.body]
        wholes = [compile(each, filename, "exec", dont_inherit=True) for each in (tree, *single)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    codes: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for code in (code for whole in wholes for code in nested_codes(whole)):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(_code_key(code))
    walked = list(ast.walk(tree))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    imported = {
        alias.asname or alias.name: (each.module, alias.name)
        for each in tree.body
        if isinstance(each, ast.ImportFrom) and each.module and not each.level
        for alias in each.names
    }
    return _File(
        tree,
        tuple(each for each in walked if isinstance(each, functions)),
        codes,
        frozenset({*_changed_globals(walked), *_set_in_loops(tree, in_functions=False)}),
        frozenset(_set_in_loops(tree, in_functions=True)),
        frozenset(
            target.id
            for each in tree.body
            if isinstance(each, ast.Assign) and varies(each.value)
            for target in each.targets
            if isinstance(target, ast.Name)
        ),
        frozenset(_attributes_set(tree)),
        imported,
    )


def _changed_globals(walked: Iterable[ast.AST]) -> Iterator[str]:
    """The globals that functions set, and the containers that change."""
    for each in walked:
        container = changed_container(each)
        if isinstance(container, ast.Name):
            yield container.id
        if isinstance(each, ast.Global):
            yield from each.names


def _set_in_loops(node: ast.AST, *, in_functions: bool, in_loop: bool = False) -> Iterator[str]:
    """The variables that loops set, at the top level and, if asked, in functions."""
    if isinstance(node, ast.Name) and in_loop and is_set(node):
        yield node.id
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if not in_functions:
            return
        in_loop = False
    in_loop = in_loop or isinstance(node, ast.For | ast.While)
    for each in ast.iter_child_nodes(node):
        yield from _set_in_loops(each, in_functions=in_functions, in_loop=in_loop)


def _attributes_set(node: ast.AST) -> Iterator[str]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.attr
        inner = changed_container(each)
        if isinstance(inner, ast.Attribute):
            yield inner.attr
        if not isinstance(each, ast.FunctionDef) or each.name != "__init__":
            yield from _attributes_set(each)


def changed_container(node: ast.AST) -> ast.AST | None:
    """
    The container behind `node.append(...)`, `node["a"].append(...)` and `node["a"] = ...`.

    None for any other text.
    """
    found: ast.AST
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _CHANGE_CONTAINER:
            return None
        found = node.func.value
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        found = node.value
    else:
        return None
    while isinstance(found, ast.Subscript):
        found = found.value
    return found


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from nested_codes(each)


def _code_key(code: CodeType) -> tuple[Any, ...]:
    """The parts of a code object that two compilations of one text share."""
    constants = tuple(
        _code_key(each) if isinstance(each, CodeType) else repr(each)
        for each in code.co_consts
        if not isinstance(each, frozenset)  # the print order of a frozenset varies
    )
    return code.co_code, code.co_names, code.co_varnames, constants


def _is_definition_of(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
        return False
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return code.co_firstlineno == first


class _Names:
    """The meaning of the names in one function or expression."""

    def __init__(
        self,
        values: Mapping[str, object],
        owner: type | None,
        file: _File,
        follow: _Fingerprinter,
        restored: Set[int] = frozenset(),
    ) -> None:
        main = _file(_path_of(sys.modules.get("__main__")))
        self._file = file
        self._files = [each for each in (file, main) if each is not None]
        self._follow = follow
        self._owner = owner
        self._values = values
        self._imported = file.imported
        self._own_imports: Set[str] = frozenset()  # names that the function itself imports
        self._restored = restored

    def add_imports(self, imported: Mapping[str, tuple[str, str]]) -> None:
        """See `Meanings`; what the function itself imports may not be loaded yet."""
        self._own_imports = imported.keys()
        package = str(self._values.get("__package__") or "")
        for name, (module, inner) in imported.items():
            relative = module.startswith(".") and package
            whole = importlib.util.resolve_name(module, package) if relative else module
            self._imported = {**self._imported, name: (whole, inner)}
        self._values = {key: each for key, each in self._values.items() if key not in imported}

    def parameters(self, node: ast.AST, *, of_self: bool) -> Sequence[str]:
        """The positional parameters of a function, without `self`; empty if unknown."""
        if of_self and isinstance(node, ast.Attribute) and self._owner is not None:
            found = inspect.getattr_static(self._owner, node.attr, None)
        else:
            found = self._value_of(node)
        bound = isinstance(found, MethodType) or (of_self and not isinstance(found, staticmethod))
        if isinstance(found, staticmethod | classmethod | MethodType):
            found = found.__func__
        found = inspect.unwrap(found) if isinstance(found, FunctionType) else None
        if not isinstance(found, FunctionType):
            return ()
        return found.__code__.co_varnames[bound : found.__code__.co_argcount]

    def _value_of(self, node: ast.AST) -> object:
        if isinstance(node, ast.Name):
            return self._values.get(node.id)
        holder = self._value_of(node.value) if isinstance(node, ast.Attribute) else None
        inside = vars(holder) if isinstance(holder, ModuleType) else {}
        return inside.get(node.attr) if isinstance(node, ast.Attribute) else None

    def meaning(self, node: ast.AST) -> ast.expr | None:
        """What a non-local name, or `module.name` and the like, stands for; None: keep it."""
        try:
            value, name, holder = self._resolve(node)
        except LookupError:
            found = self._library_name(node)
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            if isinstance(found, ast.Name) and any(each.id in self._own_imports for each in names):
                return _named(f"{found.id}{_definition_hash(found.id)}")
            return found
        if isinstance(value, ModuleType):
            within = self._imported.get(name, ("",))[0].partition(".")[0]
            same = within == value.__name__.partition(".")[0]
            return (self._library_name(node) if same else None) or _named(value.__name__)
        inner, given = unwrapped(value) if callable(value) else (None, {})
        if inner is not None:
            owner = None if holder is None or isinstance(holder, ModuleType) else type(holder)
            number = self._follow.number(inner, owner)
            values = {key: each for key, each in given.items() if is_plain(each)}
            text = f"function {number} {sorted(values.items())}"
            return None if number is None else _named(text)
        if isinstance(value, type) and is_own(value):
            return _named(f"{value.__name__} {self._follow_methods(value)}")
        written = _attribute(value, "__name__")
        if isinstance(value, type) or written is not None:
            alias = isinstance(node, ast.Name) and isinstance(written, str)  # mean = ops.mean
            return self._library_name(node) or (_named(f"library {written}") if alias else None)
        if is_plain(value):
            varying = isinstance(node, ast.Name) and name in self._file.varying
            irrelevant = varying or _is_irrelevant_setting(name, value)
            return None if irrelevant else ast.Constant(value)
        # a loss or a layer: the computation does not depend on its name
        return _named(self._describe_object(value)) if isinstance(node, ast.Name) else None

    def _resolve(self, node: ast.AST) -> tuple[Any, str, object]:
        """
        The value of a non-local name, attribute or item; its last name; its holder, if any.

        Raises:
            LookupError: it is none of these, of a library, or changes while the program runs.
        """
        if isinstance(node, ast.Name) and not any(node.id in each.changed for each in self._files):
            return self._values[node.id], node.id, None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            holder, key = self._resolve(node.value)[0], node.slice.value
            if type(holder) in (dict, list, tuple) and id(holder) not in self._restored:
                return holder[key], str(key), None
        if isinstance(node, ast.Attribute):
            holder, name = self._resolve(node.value)[0], node.attr
            if any(name in each.attributes for each in self._files):
                raise LookupError
            if isinstance(holder, ModuleType):
                path = _path_of(holder)
                own = _file(path) if is_own_file(path) else None
                if own is not None and name not in own.changed:
                    return vars(holder)[name], name, holder
            elif is_own(holder if isinstance(holder, type) else type(holder)) or (
                type(holder).__module__ in _NAMESPACES
            ):
                found = inspect.getattr_static(holder, name, LookupError)
                if isinstance(found, staticmethod):
                    found = found.__func__
                if isinstance(found, FunctionType | dict | list | tuple) or is_plain(found):
                    return found, name, holder
        raise LookupError

    def _describe_object(self, value: object) -> str:
        """A text for an object that a function uses; one of the program counts with its code."""
        kind = type(value)
        text = f"a {library_class(kind)}"
        if not is_own(kind):
            return text
        numbers = self._follow_methods(kind)
        if not numbers or _has_weights(value):  # the training changes its attributes
            return f"{text} {numbers}"
        return f"{text} {numbers} {plain_attributes(value, begins=False)}"

    def _follow_methods(self, kind: type) -> list[int | None]:
        """The indices of the methods that compute when a class or an object of it is called."""
        methods = [inspect.getattr_static(kind, each, None) for each in _CALLED]
        methods = [each.__func__ if isinstance(each, staticmethod) else each for each in methods]
        own = [unwrapped(each)[0] for each in methods if callable(each)]
        return [self._follow.number(each, kind) for each in own if each is not None]

    def _library_name(self, node: ast.AST) -> ast.expr | None:
        """The name of something in a library as `package.module.name`; None: keep it."""
        if isinstance(node, ast.Name):
            module, name = self._imported.get(node.id, ("", ""))
            return _named(f"{module}.{name}" if name else module) if module else None
        if not isinstance(node, ast.Attribute):
            return None
        holder = self.meaning(node.value)
        if not isinstance(holder, ast.Name) or " " in holder.id:
            return None
        return _named(f"{holder.id}.{node.attr}")

    def method(self, written: str) -> str | None:
        """A text for an attribute of `self`: a function of the program or a plain class value."""
        found = inspect.getattr_static(self._owner, written, None) if self._owner else None
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        inner = unwrapped(found)[0] if callable(found) else None
        if inner is None:
            moving = any(written in each.attributes for each in self._files)
            plain = found is not None and not moving and is_plain(found)
            return f"{found!r}" if plain and not _is_irrelevant_setting(written, found) else None
        number = self._follow.number(inner, self._owner)
        return None if number is None else f"method {number}"


def _named(text: str) -> ast.Name:
    return ast.Name(text, ast.Load())


def closure(function: FunctionType) -> dict[str, object]:
    """The values of the variables of outer functions that a function uses."""
    found = {}
    for name_, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name_] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def _defining_class(function: FunctionType) -> type | None:
    """The class that defines a method."""
    found: object = sys.modules.get(function.__module__)
    path = function.__qualname__.split(".")[:-1]
    if "<locals>" in path:  # a method that uses super() has the closure variable `__class__`
        found = closure(function).get("__class__")
        return found if isinstance(found, type) else None
    for each in path:
        found = inspect.getattr_static(found, each, None)
    return found if isinstance(found, type) else None


def _has_weights(thing: Any) -> bool:
    """Whether an object is a layer of Keras or a module of PyTorch with weights."""
    weights = _attribute(thing, "weights")  # a loss of the program may hold an array there
    if isinstance(weights, list) and weights:
        return True
    torch: Any = sys.modules.get("torch")
    is_module = torch is not None and isinstance(thing, torch.nn.Module)
    return is_module and any(True for _ in thing.parameters())


def _is_irrelevant_setting(key: str, value: object) -> bool:
    word = key.lower()
    return (
        word.endswith(("name", "seed", "path", "dir", "device"))
        or word in _RUN_SETTINGS
        or "accum" in word  # of gradients, as for smaller batches
        or arguments.is_benign_variable(word, str(value))
    )


def attributes_of(thing: object) -> dict[str, object]:
    """The attributes in an object's own dict; empty if it has none."""
    try:
        return dict(vars(thing))
    except Exception:  # it has no dict, or its class raises
        return {}


def _attribute(thing: object, key: str) -> object:
    try:
        return getattr(thing, key, None)
    except Exception:  # an object of the program may raise
        return None


def _normalized_hash(node: ast.AST, names: _Names | None = None) -> str:
    return text_hash(ast.dump(Normalizer(node, names).tree, annotate_fields=False))


def _file_of(code: CodeType) -> str:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    path = os.path.realpath(code.co_filename)
    if not isinstance(main, str) or code.co_filename.startswith("<"):
        return os.path.basename(path)
    folder = os.path.join(os.path.dirname(os.path.realpath(main)), "")
    return path.removeprefix(folder) if path.startswith(folder) else os.path.basename(path)


def text_hash(text: str) -> str:
    """The first digits of the hash of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]


def _source(filename: str) -> str | None:
    with contextlib.suppress(OSError):  # the cells of a kernel have the names of no files
        if not filename.startswith("<") and os.path.getsize(filename) > _MOST_BYTES:
            return None
    linecache.checkcache(filename)
    return "".join(linecache.getlines(filename)) or None


@functools.lru_cache(maxsize=1024)
def is_own_file(filename: str) -> bool:
    """Whether a file, cell or prompt belongs to the program, not to a library."""
    if filename.startswith("<"):
        return not filename.startswith(("<frozen", "<__array_function__"))
    path = os.path.realpath(filename)
    return not path.startswith(_WATCHDOG) and not is_library_file(path)
