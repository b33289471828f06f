"""
What a resume of a loop will not restore, read from the source of the loop at its first step.

The audit reports only sure cases: a counter of `enumerate`, variables that an iteration leaves to
the next one, containers that it changes, and unnamed objects whose state it advances. Values that
are only printed or logged do not count.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import math
import re
import time
from collections import Counter, deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSet,
)
from dataclasses import dataclass
from datetime import datetime
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from watchdog_app.agent.identity import code
from watchdog_app.agent.identity.loop_text import (
    base_name,
    body_events,
    carried_variables,
    changed_name,
    is_set_before,
    is_used,
    kept_attributes,
    kept_for_later,
    leading_to,
    loaded_names,
    loops_around,
    made_before,
    may_change,
    may_skip,
    name_events_of,
    only_added_to,
    own_nodes,
    own_parts,
    without_subscripts,
    written_files,
)
from watchdog_app.agent.identity.normalize import without_logging
from watchdog_app.agent.source.program import changes_length
from watchdog_app.agent.state.keras_model import optimizers_of
from watchdog_app.agent.state.values import is_metric
from watchdog_app.agent.telemetry.stacks import frame_locals

_MOST_FRAMES = 8  # frames of the program to read
_MOST_FUNCTIONS = 64  # functions called by the loop that the audit follows
_AHEAD = "what a step makes for the next one, such as a batch drawn ahead"
KEPT = "the place of iterators that the program keeps"
_UNHELD = "objects that a rescue cannot hold"
COUNTED = "values that the loop keeps, such as counters, histories and buffers"
_GIVE = " (give them to Rescue(...), or to rescue.variables() and rescue.step(), by name)"
# Modules of iterators that may read what the Rescue reads.
_WRAPPING = ("builtins", "itertools", "tqdm", "watchdog_app")
_CONTAINERS = (list, deque, bytearray, MutableMapping, MutableSet)
# methods with which an object advances its own state
_ADVANCING_METHODS = frozenset(
    (
        *("step", "update", "update_parameters", "load_state_dict", "update_state"),
        *("assign", "assign_add", "assign_sub", "apply_gradients", "apply", "minimize"),
    )
)
# attributes of a Rescue that give the position of the training
_POSITION_ATTRIBUTES = frozenset(("step_number", "epoch"))
_COUNTING = re.compile(r"\b(t?range|count)\(")
_COPYING = re.compile(r"\b(get_weights|state_dict|deepcopy|clone)\(")
_DRAWING = re.compile(r"(rand\w*|perm\w*|shuffle|sample|choices?|normal|uniform|integers)\(")
_MAKING = re.compile(f"{_COPYING.pattern}|{_DRAWING.pattern}")
_CLOCKS = (time.time, time.perf_counter, time.monotonic, time.process_time, vars(datetime)["now"])
_PLACES = ast.Name | ast.Attribute | ast.Subscript
_Place = tuple[int, str]  # id of an object, and its attribute; 0, and a name


@dataclass(frozen=True, slots=True)
class Carried:
    """A variable or an attribute that one iteration leaves to the next."""

    expression: str
    code: CodeType  # of the function with the loop
    loop: ast.AST  # the innermost loop of this function around the step
    step: ast.stmt  # the statement of the loop's body that leads to the step
    changes: tuple[ast.stmt, ...]  # statements of the loop that change it
    is_outer: bool  # whether a function that the loop calls has a loop around the step, too

    def sets(self, change: ast.stmt) -> bool:
        """Whether a statement changes it itself, and not in a function that it calls."""
        return any(may_change(node, self.expression, ()) for node in own_parts(change))


class Audit:
    """What the audit finds in the loops around one `rescue.step()`."""

    def __init__(
        self,
        frame: FrameType | None,
        rescue: object,
        named: Mapping[str, Any],
        *,
        unused: bool = False,
        watchable: Callable[[FrameType], Iterable[str]] = lambda _: (),
        made_in: CodeType | None = None,
    ) -> None:
        """
        Args:
            frame: the frame that calls `rescue.step()`, or one that it called.
            rescue: the Rescue whose `data` gives the batches.
            named: the objects given to the Rescue, by name.
            unused: also report variables that influence nothing, such as a list of losses.
            watchable: gives expressions in a frame of what calls in the loop may change unseen.
            made_in: the function that made the Rescue: loops of its callers are over trainings,
                and those that have ended train again.
        """
        self._unused = unused
        self._watchable = watchable
        self.watched: dict[str, Carried] = {}  # of these, by expression
        self.reads_position = False  # through rescue.step_number or rescue.epoch
        self.iterators: dict[str, None] = {}  # attributes that hold one: its place is not restored
        self.reads_next = False  # whether the loop calls next() on what comes from the Rescue
        self.fetches = False  # whether the loop calls next() on data that is not the Rescue's
        # Whether the place in the innermost loop does not follow from the number of steps.
        self.iterates = False
        self.begins_again = ""  # what has no place in a `while`, whose own one variables give
        self._rescue = rescue
        self._known = set(ids_within(named.values()))
        self._counters: dict[str, None] = {}
        self._names: dict[str, None] = {}
        self._environments: dict[str, None] = {}  # of a library
        self._ahead: dict[str, None] = {}
        self.carried: dict[str, Carried] = {}  # by expression
        # Of the loops from the innermost outwards; None: it is not over a range.
        self.counters: list[Carried | None] = []
        self.has_source = False
        self._owners: dict[str, object] = {}  # of the variables and attributes in `carried`
        self._attributes: dict[_Place, str] = {}  # expression
        self._read_for: dict[_Place, set[_Place | None]] = {}  # what it changes; None: other things
        self._places: dict[str, _Place] = {}  # of expressions that functions change
        # Given to the Rescue in the innermost loop of a function, and elsewhere.
        self._given, self._restored = set[_Place](), set[_Place]()
        self._values: dict[str, int] = {}  # id of the value of such an expression
        self._around: Mapping[str, Any] = {}  # the names where the loop is
        self._frame: Any = None  # of this function
        self._whole: set[int] = set()  # ids of objects that are named as a whole
        self.classes: set[type] = set()  # of these objects
        self.renewed: set[int] = set()  # ids of objects that get a state by load_state_dict
        self._has_inner = False  # whether a function inside the present one has a loop
        frames = list(frames_with_source(frame))
        codes = [each.f_code for each, _, _ in frames]
        if made_in in codes:
            at = codes.index(made_in)
            # One in a global may be made once and used in each turn of the callers' loops.
            if any(each is rescue for each in frame_locals(frames[at][0]).values()):
                del frames[at + 1 :]
        for each, text, values in frames if not unused else ():
            self._find_given(text, each.f_lineno, values)
        self.has_source = bool(frames)
        nested = [each for at, text, _ in frames for each in loops_around(text, at.f_lineno)[::-1]]
        self._outer = nested[1:]  # the loops around the innermost one
        self._may_skip = may_skip(frames, min(2, len(nested)))
        self._looped: list[tuple[FrameType, list[ast.AST], Mapping[str, Any]]] = []
        for each, text, values in frames:
            self._audit_text(each, text, values)
        overs = [ast.unparse(each.iter) for each in nested[:-1] if isinstance(each, ast.For)]
        is_while = bool(overs) and isinstance(nested[-1], ast.While) and not self.fetches
        if is_while and all(map(_COUNTING.search, overs)):
            turns = " and of that over ".join(overs)
            self.begins_again = f"the turn of the loop over {turns}, which begins again"
        for number, (each, around, self._around) in enumerate(self._looped):  # noqa: B020
            self._has_inner = number > 0
            self._watch(each, around)
        self._has_inner = False
        for each, around, known in self._looped[:1] if unused else ():
            # A resume at the end of a pass has no iteration that sets these.
            whole = code.source_tree(each.f_code) or ast.Pass()
            last = kept_for_later(around[-1], without_logging(whole), sometimes=False)
            for name in sorted(last - self._owners.keys()):
                if not self._is_known(known.get(name)):
                    self._carry(name, _function_of(name, each.f_code), each, around)
        self._looped.clear()
        self._around, self._frame = {}, None  # keep no object of the program alive

    def names(self, restored: Container[str] = ()) -> list[str]:
        """The variables and objects that a resume will not restore."""
        owners = {owner for owner, _ in self._attributes}  # their attributes count
        names = (*self._counters, *self._names)
        return [
            each for each in names if each not in restored and self._values.get(each) not in owners
            and (self._unused or each not in self._places or self._decides(self._places[each]))
        ]  # fmt: skip

    def add_names(self, names: Iterable[str]) -> None:
        """Record further variables that a resume will not restore."""
        self._names |= dict.fromkeys(each for each in names if each not in self.carried)

    def drawn_ahead(self, restored: Container[str] = ()) -> list[str]:
        """The tensors and arrays that an iteration makes for the next one, as a text."""
        names = ", ".join(each for each in self._ahead if each not in restored)
        return [f"{_AHEAD}: {names}"] if names else []

    def lost(self, restored: Container[str] = (), further: Iterable[str] | None = ()) -> list[str]:
        """
        The findings as sentences for `not_restored` of a rescue; empty if there are none.

        Args:
            restored: variables that a resume restores.
            further: names of others that it does not restore; None: only iterators and batches.
        """
        found = self.drawn_ahead(restored)
        if not self._unused:
            found = [
                f"the counter {name} of enumerate(), which counts from 0 again (use "
                "rescue.enumerate() in its place)"
                for name in self._counters
            ] + found
        if self.iterators:
            found.append(f"{KEPT}: {', '.join(self.iterators)}")
        counted = COUNTED + ("" if self._unused else _GIVE)
        names = [] if further is None else [*self.names(restored), *further]
        for text, are_held in ((_UNHELD, False), (counted, True)):
            shown = [each for each in names if (each not in self._environments) is are_held]
            found += [f"{text}: {', '.join(shown)}"] if shown else []
        return found

    def _find_given(self, text: ast.AST, line: int, values: Mapping[str, Any]) -> None:
        """Record what a function gives to `rescue.step()` and `rescue.variables()`."""
        inside = {node for loop in loops_around(text, line)[-1:] for node in ast.walk(loop)}
        for call in ast.walk(text):
            func = call.func if isinstance(call, ast.Call) else None
            if isinstance(func, ast.Attribute) and self._is_rescue(func.value, values):
                into = self._given if call in inside else self._restored
                for each in getattr(call, "keywords", ()):
                    into.add((0, each.arg))
                    into.update(_place(node, values) for node in ast.walk(each.value))

    def _decides(self, place: _Place) -> bool:
        """Whether a value influences anything except values that decide nothing."""
        seen, waiting = set[_Place](), [place]
        while waiting:
            seen.add(place := waiting.pop())
            for each in self._read_for.get(place, ()):
                if each is None:
                    return True
                waiting += [each] if each not in seen else []
        return False

    def _find_reads(self, text: ast.AST, values: Mapping[str, Any], of: CodeType) -> None:
        """Record what the statements of a function read, and which values these change."""
        local = (*of.co_varnames, *of.co_cellvars)
        for each in own_nodes(text):
            if not isinstance(each, ast.stmt):
                continue
            nodes = [one for one in own_parts(each) if isinstance(one, _PLACES)]
            stored = [] if isinstance(each, ast.FunctionDef) else nodes
            changed = [without_subscripts(one) for one in stored if isinstance(one.ctx, ast.Store)]
            if isinstance(each, ast.Expr):
                changed = [code.changed_container(each.value)]
            into = {None if one is None or ast.unparse(one) in local else _place(one, values)
                    for one in changed or [None]}  # fmt: skip
            for one in nodes:
                if isinstance(one.ctx, ast.Load) and ast.unparse(one) not in local:
                    self._read_for.setdefault(_place(one, values), set()).update(into)

    def _audit_text(self, frame: FrameType, text: ast.AST, values: Mapping[str, Any]) -> None:
        self._around = values
        whole, line = without_logging(text), frame.f_lineno
        loops, around = loops_around(whole, line), loops_around(text, line)
        self.reads_position = self.reads_position or any(
            isinstance(each, ast.Attribute)
            and each.attr in _POSITION_ATTRIBUTES
            and self._is_rescue(each.value, values)
            for each in ast.walk(text)
        )
        placed = self._names_set_from_rescue(whole, values)
        if not self._unused:
            self._find_reads(whole, values, frame.f_code)
        # A `while` has no place but its variables; a range may begin at one.
        counts_itself = bool(placed and loops) and isinstance(loops[-1], ast.While)
        counts_itself &= all(isinstance(n, ast.While) or ".epochs(" in ast.unparse(n.iter)  # type: ignore[attr-defined]
                             for n in loops)  # fmt: skip
        counts_itself |= any(".variables(" in ast.unparse(getattr(n, "iter", n)) for n in loops)
        self.reads_position = self.reads_position or counts_itself
        clocks = _set_by_clock(text, values)
        late = set[str]()  # restored, but as they were before the loop
        for loop in loops[-1:] if not self._has_inner else ():
            given = self._restored - self._given
            late = {name for name in carried_variables(loop) if (0, name) in given}
        for loop, full in zip(loops, around, strict=False):
            self._find_enumerate_counter(loop, values)
            # `whole` lacks `total = 0` where only a log reads the total.
            carried = carried_variables(full) & carried_variables(loop)
            carried -= only_added_to(around[0]) - values.keys()
            # The name must exist even where only a log reads it.
            carried.update(kept_for_later(*((full, text) if self._unused else (loop, whole))))
            is_called = len(loops) == 1 and self._outer and not self._has_inner
            # A Rescue draws the same numbers again in its epoch.
            making = _MAKING if self._unused else _COPYING
            text_before = whole if is_called else loop
            first = 0 if loops[-1] is text_before else getattr(loops[-1], "lineno", 0)
            first = line if self._has_inner else first  # of the call that leads to the step
            carried.update(made_before(text_before, first, making))
            carried.difference_update(
                name for name in clocks if is_set_before(clocks[name], loop, text)
            )
            for name in dict.fromkeys((*sorted(carried), *_changed_containers(loop, values))):
                known = name in placed or self._is_known(values.get(name))
                known &= name not in late
                if not known and (self._unused or is_used(name, whole)):
                    is_data = hasattr(values.get(name), "shape")
                    (self._ahead if is_data else self._names)[name] = None
                    self._carry(name, _function_of(name, frame.f_code), frame, around)
        fetched = [
            each.args[0]
            for loop in loops
            for each in ast.walk(loop)
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "next" and each.args
        ]
        self.reads_next |= any(ast.unparse(each) in placed for each in fetched)
        if self._unused:  # the lines read these through the rescue
            made = [each for each in ast.walk(text) if isinstance(each, ast.Assign)]
            made = [each for each in made if ast.unparse(each.value).startswith("iter(")]
            placed |= {ast.unparse(target) for each in made for target in each.targets}
        self.fetches |= any(ast.unparse(each) not in placed for each in fetched)
        if not loops:
            return
        self._names |= dict.fromkeys(written_files(text, loops[0]))
        self.counters += self._counters_of(around, frame)
        if not self._has_inner:
            self.iterates = not self._follows(loops, set(frame.f_code.co_varnames), values)
        self._audit_attributes(frame, loops, around, values, placed)
        self._looped.append((frame, around, values))
        self._has_inner = True

    def _counters_of(self, around: list[ast.AST], frame: FrameType) -> Iterator[Carried | None]:
        """The counters of the loops of a function, the innermost first; None: it has none."""
        for each in around[::-1]:
            if not isinstance(each, ast.For) or not _COUNTING.search(ast.unparse(each.iter)):
                yield None
                continue
            # The lines continue behind the turn of the innermost loop, and repeat one of an outer.
            is_inner = not self._has_inner and each is around[-1]
            step = leading_to(frame.f_lineno, each) if is_inner else each.body[-1]
            changes = (each,) if is_inner else ()
            name = ast.unparse(each.target)
            yield Carried(name, frame.f_code, each, step, changes, is_outer=False)

    def _audit_attributes(
        self,
        frame: FrameType,
        loops: list[ast.AST],
        around: list[ast.AST],
        values: Mapping[str, Any],
        placed: Container[str],
    ) -> None:
        """Record the attributes and objects that the loops of a function change."""
        attributes: dict[str, set[str]] = {}  # with the calls that change them
        for place in kept_attributes(loops[0]):
            if kept := self._name_attribute(place, values, ast.unparse(place)):
                attributes.setdefault(kept, set())
        self._calls, self._frame = 0, frame
        begins = getattr(loops[-1], "lineno", 0)
        within = {each for each in ast.walk(loops[-1]) if not self._has_inner}
        made = {
            ast.unparse(each.targets[0]) for each in own_nodes(loops[-1])
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
            and isinstance(value_of(each.value.func, values), type)
        }  # fmt: skip
        for name, call in self._find_stateful_objects(
            (around if self._unused else loops)[0], values, (), {}, begins
        ):
            is_restored = name in placed
            if self._places.get(name, (0, name)) in self._restored:
                is_restored = call not in within
            if not is_restored and name.partition(".")[0] not in made:
                attributes.setdefault(name, set()).add(ast.unparse(call))
        for name, calls in attributes.items():
            self._names[name] = None
            node, owner = ast.parse(name, mode="eval").body, _function_of(name, frame.f_code)
            if isinstance(node, ast.Attribute):
                owner = id(value_of(node.value, values))
            self._carry(name, owner, frame, around, calls)

    def _watch(self, frame: FrameType, loops: list[ast.AST]) -> None:
        """Record what a call with its owner may change unseen: tensors, attributes of objects."""
        texts = [ast.unparse(each) for each in own_nodes(loops[-1]) if isinstance(each, ast.Call)]
        counters = [ast.unparse(getattr(each, "target", each)) for each in loops]
        for text in sorted({*self._watchable(frame)}):
            name, node = text, ast.parse(text, mode="eval").body
            if isinstance(node, ast.Attribute):
                thing = value_of(node.value, self._around)
                if code.is_own(type(thing)) and not self._is_known(thing):
                    name = self._name_attribute(node, self._around, text) or ""
            owner = re.compile(rf"\b{re.split('[^a-zA-Z0-9_]', text)[0]}\b")
            if name and name not in (*counters, *self._names, *self._owners):
                self._carry(name, frame.f_code, frame, loops, {*filter(owner.search, texts)})
                self.watched[name] = self.carried.pop(name)

    def _follows(
        self, loops: list[ast.AST], local: Container[str], values: Mapping[str, Any]
    ) -> bool:
        """Whether the place in the innermost loop follows from the steps, or from variables."""
        loop, is_nested = loops[-1], bool(self._outer)
        epochs = ast.unparse(getattr(self._outer[0], "iter", ast.Pass())) if is_nested else "count("
        if not isinstance(loop, ast.For):
            return _COUNTING.search(epochs) is not None
        if epochs == "pass":  # the lines do not place an outer `while`
            return False
        if len(loops) > 1:
            local = {name for name, is_load in body_events(loops[0]) if not is_load}
        pure = is_nested and _is_pure(loop.iter, values, local)
        if len(loops) > 1 and changes_length(loop.iter, loops[-2]):
            return False
        return not self._may_skip and (pure or bool(_COUNTING.search(ast.unparse(loop.iter))))

    def _carry(
        self,
        expression: str,
        owner: object,
        frame: FrameType,
        loops: list[ast.AST],
        calls: Container[str] = (),
    ) -> None:
        """
        Record what a resume could restore, unless an inner function has the same name for another.

        Args:
            expression: the variable or attribute.
            owner: the function of a variable, or the object of an attribute.
            frame: the frame of the loop.
            loops: the loops around the step in this function.
            calls: the calls that change it, too.
        """
        if self._owners.setdefault(expression, owner) != owner:
            where = frame.f_code.co_name.strip("<>")  # "module" for the top level
            self._names[f"{expression} of {where}"] = None
            return
        if expression in self.carried:
            return
        statements = [each for each in own_nodes(loops[-1]) if isinstance(each, ast.stmt)]
        changing = [
            each
            for each in statements
            if any(may_change(node, expression, calls) for node in own_parts(each))
        ]
        # A function in the loop changes it where it is called or given: `optimizer.step(closure)`.
        functions = {each.name for each in changing if isinstance(each, ast.FunctionDef)}
        changing = [each for each in statements
                    if (each in changing and not isinstance(each, ast.FunctionDef))
                    or not functions.isdisjoint(loaded_names(each))]  # fmt: skip
        step = leading_to(frame.f_lineno, loops[-1])
        self.carried[expression] = Carried(
            expression, frame.f_code, loops[-1], step, tuple(changing), is_outer=self._has_inner
        )

    def _find_enumerate_counter(self, loop: ast.AST, values: Mapping[str, Any]) -> None:
        """Find `for i, batch in enumerate(rescue.data(...))` whose body uses `i`."""
        if not isinstance(loop, ast.For | ast.AsyncFor):
            return
        counted = []
        for each in ast.walk(loop.iter):
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "enumerate":
                read = {
                    inner.attr
                    for inner in ast.walk(each)
                    if isinstance(inner, ast.Attribute) and self._is_rescue(inner.value, values)
                }
                counted += [each] if "data" in read and "batch" not in read else []
        target = loop.target
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
        if not counted or not isinstance(first, ast.Name):
            return
        loaded = {name for name, is_load in name_events_of(loop.body) if is_load}
        if first.id in loaded:
            self._counters[first.id] = None

    def _find_stateful_objects(
        self,
        text: ast.AST,
        values: Mapping[str, Any],
        within: tuple[Any, ...],
        written: Mapping[str, str],
        first: float,
    ) -> Iterator[tuple[str, ast.Call]]:
        """
        Find unnamed objects whose state the loop, or a function that it calls, advances.

        Args:
            text: of a loop or a function.
            values: of its names, as far as known.
            within: the functions around it.
            written: how the loop writes the arguments of the function.
            first: the line from which a resume continues; it runs calls before it again.

        Yields:
            What the program calls it, and the call in the loop.
        """

        def shown(node: ast.AST, written: Mapping[str, str] = written) -> str:
            return re.sub(r"^\w+", lambda word: written.get(word[0], word[0]), ast.unparse(node))

        for each in ast.walk(text):
            if not isinstance(each, ast.Call):
                continue
            whose = each.func.value if isinstance(each.func, ast.Attribute) else each.func
            called = value_of(each.func, values)
            whose = each.func if is_metric(called) else whose
            if is_metric(called) or getattr(each.func, "attr", "") in _ADVANCING_METHODS:
                thing = value_of(whose, values)
                if getattr(each.func, "attr", "") == "load_state_dict":
                    self.renewed.add(id(thing))
                # Of the program's own classes, the attributes count.
                is_read = self._unused and code.library_class(type(thing)) == "object"
                is_environment = _is_environment(thing)
                has_state = is_environment or _has_state(thing)
                if not is_read and has_state and not self._is_known(thing):
                    self._environments |= {shown(whose): None} if is_environment else {}
                    self._whole.add(id(thing))
                    yield shown(whose), each
            # An object of the program that can be called, also a module or a layer.
            methods = [getattr(type(called), one, None) for one in ("__call__", "forward", "call")]
            calls: Any = next(filter(code.is_own, methods), None)
            if calls is not None and not self._is_known(called):
                called, whose = MethodType(calls, called), each.func
            plain = code.unwrapped(called)[0] if callable(called) else None
            thing = getattr(called, "__self__", None)
            if plain is None or plain in within or self._calls >= _MOST_FUNCTIONS:
                continue
            self._calls += 1
            inner = code.source_tree(plain.__code__)
            if inner is None:
                continue
            known = code.outer_values(plain)
            names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
            bound = isinstance(called, MethodType) and bool(names)
            given = dict(zip(names[bound:], each.args, strict=False))
            given |= {str(one.arg): one.value for one in each.keywords if one.arg in names}
            given |= {names[0]: whose} if bound else {}
            for name in plain.__code__.co_varnames:
                known.pop(name, None)
            known |= {name: value_of(one, values) for name, one in given.items()}
            for name in self._declared_names(plain, inner, known):
                yield name, each
            again = each.lineno < first
            texts = {name: shown(one) for name, one in given.items()}
            if bound:
                known[names[0]] = thing
            draws = bound and again and _DRAWING.search(ast.unparse(inner)) is not None
            if not self._unused:
                self._find_reads(inner := without_logging(inner), known, plain.__code__)
            for place in kept_attributes(inner, names[0] if draws else ""):
                if kept := self._name_attribute(place, known, shown(place, texts)):
                    yield kept, each
            for name, _ in self._find_stateful_objects(
                inner, known, (*within, plain), texts, math.inf if again else 0
            ):
                yield name, each

    def _declared_names(
        self, function: FunctionType, text: ast.AST, known: Mapping[str, Any]
    ) -> Iterator[str]:
        """Names outside of a called function that it changes; records those out of reach."""
        stored = {
            getattr(node, "id", "")
            for node in own_nodes(text)
            if isinstance(getattr(node, "ctx", None), ast.Store)
        }
        found = {
            name: self._has_here(function, node)
            for node in own_nodes(text)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in filter(stored.__contains__, node.names)
        }
        of, outer = function.__code__, function.__globals__
        own = (*of.co_varnames, *of.co_cellvars, *of.co_freevars)
        filled = [each for each in _changed_containers(text, known) if each in outer.keys() - own]
        whole = "".join(linecache.getlines(of.co_filename)) if filled else ""
        for name in filled:  # one that nothing reads, such as a log, decides nothing
            if is_used(name, without_logging(ast.parse(whole))):
                found[name] = outer is self._frame.f_globals
        for name, is_here in found.items():
            if (0, name) in self._given or self._is_known(known.get(name)):
                continue
            label = name if is_here else f"{name} of {function.__name__}"
            self._places[label] = 0, name
            if is_here:
                yield name
            else:
                self._names[label] = None

    def _has_here(self, function: FunctionType, node: ast.Global | ast.Nonlocal) -> bool:
        """Whether the function of the loop reaches what another one declares by the same name."""
        if isinstance(node, ast.Global):
            return function.__globals__ is self._frame.f_globals
        own = self._frame.f_code
        is_inside = function.__qualname__.startswith(f"{own.co_qualname}.<locals>.")
        return is_inside and {*node.names} <= {*own.co_cellvars}

    def _names_set_from_rescue(self, whole: ast.AST, values: Mapping[str, Any]) -> set[str]:
        """Variables whose values come from the Rescue."""
        found: set[str] = set()
        for each in ast.walk(whole):
            if isinstance(each, ast.Assign | ast.AugAssign):
                names = {n.id for n in ast.walk(each.value) if isinstance(n, ast.Name)}
                if names & found or any(values.get(name) is self._rescue for name in names):
                    places = each.targets if isinstance(each, ast.Assign) else [each.target]
                    targets = [n for target in places for n in ast.walk(target)]
                    found |= {n.id for n in targets if isinstance(n, ast.Name)}
        return found

    def _is_rescue(self, node: ast.AST, values: Mapping[str, Any]) -> bool:
        return value_of(node, values) is self._rescue

    def _name_attribute(
        self, place: ast.Attribute, values: Mapping[str, Any], text: str
    ) -> str | None:
        """
        What the audit calls an attribute of an object of the program: always the same.

        Args:
            place: the attribute.
            values: of the names there.
            text: what the loop calls it.

        Returns:
            None for what is no such attribute, is known, or holds an iterator.
        """
        owner, value = value_of(place.value, values), value_of(place, values)
        kind: Any = owner if isinstance(owner, type | FunctionType) else type(owner)
        if not code.is_own(kind) or self._is_known(owner) or id(value) in self._known:
            return None
        if (id(owner), place.attr) in self._given or id(owner) in self._whole:
            return None
        node = ast.parse(text, mode="eval").body
        while isinstance(node, ast.Attribute):  # an object in one that is given saves it
            node = node.value
            thing = value_of(node, self._around)
            if code.is_own(getattr(type(thing), "state_dict", None)) and self._is_known(thing):
                return None
        if _keeps_time(kind, place.attr):
            return None
        if hasattr(value, "load_state_dict") and not _has_state(value):
            return None  # a disabled GradScaler
        self.classes.add(kind)
        text = ast.unparse(_shortest(ast.parse(text, mode="eval").body, self._around))
        name = self._attributes.setdefault((id(owner), place.attr), text)
        self._places[name] = id(owner), place.attr
        self._values[name] = id(value)
        if isinstance(value, Iterator) and not hasattr(value, "write"):
            if self._unused or type(value).__module__.partition(".")[0] not in _WRAPPING:
                self.iterators[name] = None
            return None
        return name

    def _is_known(self, thing: object) -> bool:
        thing = unwrapped(thing)[0]
        if thing is self._rescue or id(thing) in self._known:
            return True
        return isinstance(thing, Iterator) or callable(getattr(thing, "__next__", None))


def frames_with_source(
    frame: FrameType | None,
) -> Iterator[tuple[FrameType, ast.AST, dict[str, Any]]]:
    """The frames of the program with known source, from `frame` outwards, and their variables."""
    for each in code.program_frames(frame, _MOST_FRAMES):
        text = code.source_tree(each.f_code)
        if text is not None:
            own = frame_locals(each) if each.f_code.co_flags & inspect.CO_NEWLOCALS else {}
            yield each, text, {**each.f_globals, **own}
        if each.f_code.co_name == "<module>":
            return


def _changed_containers(loop: ast.AST, values: Mapping[str, Any]) -> Iterator[str]:
    """Containers, arrays and tensors that iterations change in place and never create again."""
    stored = {name for name, is_load in body_events(loop) if not is_load}
    found: list[str | None] = []
    for each in ast.walk(loop):  # also in a closure that a step calls
        if isinstance(each, ast.Call):
            name = changed_name(each)
            found.append(name if isinstance(values.get(name or ""), _CONTAINERS) else None)
        elif isinstance(each, ast.Assign | ast.AugAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found += [base_name(target) for target in targets if isinstance(target, ast.Subscript)]
    yield from (name for name in found if name is not None and name not in stored)


def kept_by(kind: type) -> set[str]:
    """The attributes that the methods of a class keep, see `kept_attributes`."""
    texts = [(each.co_varnames[:1], code.source_tree(each)) for each in code.method_codes(kind)
             if each.co_name != "__init__"]  # fmt: skip
    return {
        one.attr for owner, text in texts if text is not None
        for one in kept_attributes(text) if (ast.unparse(one.value),) == owner
    }  # fmt: skip


def _set_by_clock(text: ast.AST, values: Mapping[str, Any]) -> dict[str, list[ast.Assign]]:
    """What a text sets from a clock only, which is no state of a training; with the statements."""
    nodes = list(own_nodes(text))
    made: dict[str, list[ast.Assign]] = {}
    for each in nodes:
        if isinstance(each, ast.Assign):
            for target in each.targets:
                made.setdefault(ast.unparse(target), []).append(each)
    stores = [each for each in nodes if isinstance(getattr(each, "ctx", None), ast.Store)]
    count = Counter(map(ast.unparse, stores))

    def is_time(value: ast.AST) -> bool:
        called = value_of(value.func, values) if isinstance(value, ast.Call) else None
        return ast.unparse(value) in found or any(called is each for each in _CLOCKS)

    found: dict[str, list[ast.Assign]] = {}
    for _ in range(2):  # t1 = time.time(); t0 = t1
        found = {
            name: each for name, each in made.items()
            if len(each) == count[name] and all(is_time(one.value) for one in each)
        }  # fmt: skip
    return found


def _keeps_time(kind: type, attribute: str) -> bool:
    """Whether a class sets an attribute from a clock only, also when it is made."""
    found: dict[str, bool] = {}
    for method in vars(kind).values():
        text = code.source_tree(method.__code__) if inspect.isfunction(method) else None
        if text is None:
            continue
        for each in own_nodes(text):
            is_store = isinstance(getattr(each, "ctx", None), ast.Store)
            if is_store and isinstance(each, ast.Attribute) and each.attr == attribute:
                clocks = _set_by_clock(text, method.__globals__)
                found[method.__name__] = ast.unparse(each) in clocks
    return "__init__" in found and all(found.values())


def _is_pure(data: ast.AST, values: Mapping[str, Any], changing: Container[str]) -> bool:
    """Whether a loop reads a generator of the program that repeats its items when called again."""
    while isinstance(data, ast.Call) and isinstance(data.func, ast.Name):
        called = value_of(data.func, values)
        plain = code.unwrapped(called)[0] if callable(called) else None
        if plain is not None and inspect.isgeneratorfunction(plain):
            text = code.source_tree(plain.__code__)
            read = {each.id for each in ast.walk(data) if isinstance(each, ast.Name)}
            draws = text is None or _DRAWING.search(ast.unparse(text))
            return not draws and not any(each in changing for each in read)
        if data.func.id not in ("enumerate", "tqdm") or not data.args:
            break
        data = data.args[0]
    return False


def _function_of(name: str, function: CodeType) -> object:
    """The function of a local variable; None: it is a global one."""
    is_local = name in (*function.co_varnames, *function.co_cellvars, *function.co_freevars)
    return function if is_local else None


def _shortest(node: Any, values: Mapping[str, Any]) -> Any:
    """`self.a` for `self.child.parent.a`: the way to an attribute, without ways back on it."""
    if isinstance(node, ast.Attribute):
        node.value = shorter = _shortest(node.value, values)
        owner = value_of(shorter, values)
        while isinstance(shorter, ast.Attribute) and owner is not None:
            shorter = shorter.value
            if value_of(shorter, values) is owner:
                node.value = shorter
    return node


def _place(node: ast.AST, values: Mapping[str, Any]) -> _Place:
    """The place of the value of a name or an attribute."""
    if isinstance(node, ast.Attribute):
        return id(value_of(node.value, values)), node.attr
    return 0, ast.unparse(node)


def value_of(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """The value of `name` or `name.attribute`, without running code of the program."""
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, ast.Attribute):
        thing = value_of(node.value, values)
        found = getattr(thing, "__dict__", {}).get(node.attr)
        if found is None and code.is_own(type(thing)):
            method = getattr(type(thing), node.attr, None)
            plain = code.unwrapped(method)[0] if callable(method) else None
            return None if plain is None else MethodType(plain, thing)
        return found
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        thing, key = value_of(node.value, values), node.slice.value
        if type(thing) in (list, tuple) and type(key) is int:
            return thing[key] if key < len(thing) else None
        return thing.get(key) if type(thing) is dict else None
    return None


def _has_state(thing: object) -> bool:
    """Whether `state_dict` saves a state of it, or it has variables of TensorFlow or Keras."""
    try:
        if callable(getattr(thing, "load_state_dict", None)):
            return bool(thing.state_dict())  # type: ignore[attr-defined]
        return bool(getattr(thing, "variables", None)) or hasattr(thing, "assign_add")
    except Exception:  # an object of the program may raise
        return False


def _is_environment(thing: object) -> bool:
    """Whether it is a library's environment, such as Gymnasium's, whose state nothing restores."""
    kind = type(thing)
    names = ("step", "reset", "state_dict")
    return not code.is_own(kind) and [hasattr(kind, each) for each in names] == [True, True, False]


def unwrapped(thing: Any) -> tuple[Any, str]:
    """What a wrapper of accelerate or Fabric holds, and the attribute that leads to it."""
    if type(thing).__module__.startswith(("accelerate.", "lightning.fabric.", "lightning_fabric.")):
        for name in ("scheduler", "optimizer"):
            if name in vars(thing) or hasattr(type(thing), name):
                return getattr(thing, name), f".{name}"
    return thing, ""


def ids_within(things: Iterable[Any]) -> Iterator[int]:
    """The ids of the named objects and of the objects that belong to them."""
    for thing in things:
        found = [thing]
        try:
            if isinstance(thing, dict | list):
                found += thing.values() if isinstance(thing, dict) else thing
            for name in ("modules", "_flatten_layers"):
                found += getattr(thing, name)() if hasattr(thing, name) else ()
            is_layer = hasattr(thing, "_flatten_layers")
            if is_layer or hasattr(thing, "_trackable_children"):  # TensorFlow variables, too
                holders = thing._flatten_layers() if is_layer else [thing]
                held = [each for holder in holders for each in vars(holder).values()]
                found += [each for each in held if hasattr(each, "assign_add")]
            found += optimizers_of(thing) if is_layer else []
            for name in ("metrics", "variables", "optimizer"):
                each = getattr(thing, name, None)
                found += each if isinstance(each, list | tuple) else [each]
        except Exception:  # noqa: S110 - an object of the program may raise
            pass
        yield from (id(each) for each in found if not code.is_plain(each))
