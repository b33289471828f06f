"""
Edit the text of a program so that its training is saved and resumes.

`edit` derives the lines from the program's own names: the objects that its loop changes, its
counters, and the epochs as it counts them. It runs nothing.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from watchdog_app.agent.source.program import (
    Called,
    Calls,
    Function,
    Level,
    Loop,
    Program,
    changes_length,
    leaving,
    lines_of,
    names_among,
)
from watchdog_app.agent.source.text_edits import TextEdits

_RANGES = ("range", "trange", "count")
_EXITS = {f"{name}({code})" for name in ("exit", "quit", "sys.exit") for code in ("", 0)}
_AROUND = ("tqdm", "track", "enumerate")  # calls around data and ranges
_EAGER = ("zip", "map", "itertools.islice")  # they begin the passes of loaders where they are made
# Libraries that run the loop themselves and resume only from their own checkpoints.
OWN_CHECKPOINTS = {
    package: f"{package} runs the loop, so no lines resume it: use its {own}"
    for package, own in (("stable_baselines3", "CheckpointCallback"), ("ignite", "Checkpoint"),
                         ("skorch", "Checkpoint"), ("fastai", "SaveModelCallback"))
}  # fmt: skip
_STRATEGY = re.compile(r"\bdistribute\.\w*Strategy\b")
_DISTRIBUTED = (
    "its loop runs under tf.distribute, which is not saved automatically. "
    "Rescue(folder, model=..., optimizer=...) and rescue.step() around it do that"
)
_ENDLESS = "2**31"
_NO_PLACE = (
    "the place in what the loop in {} reads does not follow from the steps: write a loop over "
    "epochs, and in it one over the loader"
)
ALSO_TRAINS = (
    "the loop in {} trains as well as that in {}, and the lines place only one of them: write "
    "Rescue(...), rescue.epochs(...) and one rescue.step() at the end of each turn around both"
)
# Calls that count what all passes give, and their last argument after a resume.
_COUNTERS = {
    "enumerate": "{} + {}",
    "islice": "{} - {}",
    "range": "{1}, {0}",
}
_SHOW = ("print", "info", "log", "write", "add_scalar", "set_postfix", "set_description")
_LEAVING = ast.Break | ast.Continue | ast.Return
_CONDITIONAL = ast.If | ast.IfExp | ast.Match | ast.Try
_INNER = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp | ast.Lambda


@dataclass(frozen=True)
class Edited:
    """A program with the lines that resume its training."""

    files: Mapping[str, tuple[str, str]]  # the text of each file before and after
    notes: tuple[str, ...]  # what the lines do not do, and why
    refused: bool = False  # whether no lines can resume the program as it is
    left_out: tuple[str, ...] = ()  # variables that the lines do not restore
    set_again: tuple[str, ...] = ()  # those among them that earlier trainings set again

    @property
    def outer(self) -> list[str]:
        """The loops around those that the lines resume, which begin at their start, as texts."""
        found = [each.partition(OUTER_BEGINS) for each in self.notes]
        return [f"the place in {loop}, which begins again" for loop, begins, _ in found if begins]

    @property
    def after(self) -> str:
        """The text of all files after the edit."""
        return "".join(after for _, after in self.files.values())

    @property
    def changed(self) -> list[str]:
        """The files that get lines."""
        return [name for name, (before, after) in self.files.items() if before != after]

    def root(self, program: str) -> str:
        """The folder where `patch -p0` applies the diff: this one, or one above all files."""
        paths = [os.path.abspath(_path(name, program)) for name in self.changed]
        return os.path.commonpath([os.getcwd(), *map(os.path.dirname, paths)])

    def diff(self, program: str) -> str:
        """
        The difference as a unified diff for `patch -p0` in `root`; empty without one.

        Args:
            program: path of the program.
        """
        found: list[str] = []
        root = self.root(program)
        for name in self.changed:
            path = os.path.relpath(_path(name, program), root)
            before, after = map(lines_of, self.files[name])
            found += difflib.unified_diff(before, after, path, path)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in found
        )

    def lines(self, program: str = "") -> list[str]:
        """
        The lines to paste, each group below a comment that says where it belongs.

        Args:
            program: path of the program, for the paths of several files.
        """
        shown = []
        for name in self.changed:
            before, after = ([each.rstrip("\r\n") for each in lines_of(text)]
                             for text in self.files[name])  # fmt: skip
            matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
            file = f"{_path(name, program)}, " if name or len(self.changed) > 1 else ""
            for kind, first, last, begin, end in matcher.get_opcodes():
                if kind != "equal":
                    where = "before line" if first == last else "instead of line"
                    number = f"{first + 1}" if last <= first + 1 else f"{first + 1}-{last}"
                    shown += [f"# {file}{where} {number}:", *after[begin:end]]
        return shown


def _path(name: str, program: str) -> str:
    """The path of a file of a program; the name of a cell."""
    if name.startswith("Cell "):
        return name
    return os.path.normpath(os.path.join(os.path.dirname(program), name)) if name else program


def edit(
    files: str | Mapping[str, str],
    directory: str,
    names: Mapping[str, str] | None = None,
    variables: Mapping[str, Sequence[str]] | None = None,
    calls: Sequence[Called] = (),
    *,
    epoch: int | None = 0,
    framework: str = "",
) -> Edited:
    """
    The program with the lines that save and resume its training.

    Args:
        files: text of the program, or of its files by their names.
        directory: the folder of the rescues.
        names: keyword of each object in the rescue of a loop, and the program's expression for it;
            None: no loop's rescue waits, and only a library's call gets lines.
        variables: keyword of each variable in a rescue, and its function and expression.
        calls: the calls from the step outwards, when the loop was saved.
        epoch: the epoch in the rescue, from 0; None: it has none.
        framework: "torch" or "tensorflow"; empty: the one that the text imports.

    Raises:
        SyntaxError: the text is no Python.
    """
    files = {"": files} if isinstance(files, str) else files
    program = Program(files, calls)
    framework = framework or ("torch" if program.imports_from("torch") else "tensorflow")
    editor = _Editor(program, directory, variables or {}, epoch=epoch, framework=framework)
    unchanged = {name: (text, text) for name, text in files.items()}
    try:
        if any("watchdog_app.agent." in files[each] for each in program.loop_files):
            editor.notes.append("the program names watchdog already; nothing is added")
        elif not ((names is None and editor.edit_library()) or editor.edit_loop(names or {})):
            if own := next(filter(program.imports_from, OWN_CHECKPOINTS), None):
                return Edited(unchanged, (OWN_CHECKPOINTS[own],), refused=True)
            texts = "".join(files.values())
            if _STRATEGY.search(texts) and ".run(" in texts:
                return Edited(unchanged, (_DISTRIBUTED,), refused=True)
            editor.notes.append("no training loop and no fit was found in the text")
        elif names is None and "rescue = Rescue(" in "".join(editor.result().values()):
            editor = _Editor(program, directory, {})
            editor.notes.append(
                f"no rescue waits in {directory}, and the lines name what one holds: run the "
                "program under watchdog exec first"
            )
        edited = {name: (files[name], after) for name, after in editor.result().items()}
        for before, after in edited.values():
            if after != before:
                ast.parse(after)
    except SyntaxError as error:
        edited = unchanged
        editor.notes.append(f"the lines do not fit the text: {error.msg}")
    except _NoLinesError as error:
        return Edited(unchanged, (str(error),), refused=True)
    notes = tuple(dict.fromkeys(editor.notes))
    left_out, set_again = tuple(editor.left_out), tuple(editor.set_again)
    return Edited(edited, notes, left_out=left_out, set_again=set_again)


MADE_AGAIN = "the loop makes another"
OUTER_BEGINS = " begins again: let it begin"


class _NoLinesError(Exception):
    """No lines could resume the program; the text says why."""


class _Editor(TextEdits):
    """Collects the edits of one program."""

    def __init__(
        self,
        program: Program,
        directory: str,
        variables: Mapping[str, Sequence[str]],
        *,
        epoch: int | None = 0,
        framework: str = "",
    ) -> None:
        super().__init__(program)
        self._directory, self._saved_epoch = directory, epoch
        self._framework = framework
        self._variables = dict(variables)  # those that the lines restore
        self.notes: list[str] = []
        self._early: list[str] = []  # lines before the Rescue
        self._filled = set[str]()  # keywords of global lists and dicts, which are filled in place
        self.left_out: list[str] = []  # variables that the lines do not restore
        self.set_again: list[str] = []
        # Names that need a value before a loop, with the loop and that value.
        self._unset: dict[str, tuple[Loop, str]] = {}
        self._iterators: list[ast.stmt] = []  # statements that make what the loop reads by next()
        self._trained: list[list[Level]] = []  # the loops around each step
        self._is_read_elsewhere = False  # whether a generator reads data through the rescue

    def _share(self, loop: Loop) -> None:
        """Let functions in other files than the one with this loop ask for the Rescue."""
        program, functions = self.program, dict[Function, None]()
        for begin, _, text in self._spans:
            line = self._line_of(begin)
            function = program.function_at(line)
            if b"rescue" in text and function and program.file_at(line) != program.file_at(
                    loop.lineno):  # fmt: skip
                functions[function] = None
        for each in functions:
            first = each.body[ast.get_docstring(each) is not None and len(each.body) > 1]
            self._insert(first, "rescue = Rescue.current()")
            self._spans.insert(0, self._spans.pop())

    def edit_library(self) -> bool:
        """Edit the call with which a library trains; whether there is one."""
        program, folder = self.program, self._directory
        calls = [] if "fit" in program.functions else program.calls("fit")
        fits = [call for call in calls if isinstance(call.func, ast.Attribute)
                and not program.maker(call.func.value).startswith("sklearn.")]  # fmt: skip
        if program.imports_from("lightning", "pytorch_lightning"):
            clis = self._calls_of_lightning_cli()
            if fits:
                self._edit_lightning(fits[0])
            elif clis:
                self._edit_lightning_cli(clis[0])
            return bool(fits or clis)
        if trains := self._trains_of_transformers():
            # The example scripts of transformers have a variable `checkpoint`.
            is_taken = re.search(r"\bcheckpoint\b", program.source) is not None
            name = "rescue_checkpoint" if is_taken else "checkpoint"
            self._give(trains[0], "resume_from_checkpoint", f"{name}({folder!r})")
            self._import("transformers", f"checkpoint as {name}" if is_taken else name)
            return True
        is_old = program.imports_from("tf_keras") or "TF_USE_LEGACY_KERAS" in program.source
        for call in fits if program.imports_from("keras", "tensorflow", "tf_keras") else ():
            given = next((e.value for e in call.keywords if e.arg == "callbacks"), None)
            if isinstance(given, ast.List) and given.elts:
                end = self._span(given.elts[-1])[1]
                self._put(end, end, f", Rescue({folder!r})")
            else:
                old = "" if given is None else f"*{ast.unparse(given)}, "
                self._give(call, "callbacks", f"[{old}Rescue({folder!r})]")
            if call is fits[0]:
                self._import("tf_keras" if is_old else "keras", "Rescue")
                self.notes.append("under watchdog exec these fits resume without the lines")
        return bool(self._spans)

    def _trains_of_transformers(self) -> list[ast.Call]:
        """The calls of `train` of a Trainer of transformers; all calls of it where none is sure."""
        program, sure = self.program, []
        calls = [call for call in program.calls("train") if isinstance(call.func, ast.Attribute)]
        for call in calls if program.imports_from("transformers") else ():
            owner = getattr(call.func, "value", call)
            made = program.value(owner) or owner
            if isinstance(made, ast.Call) and program.root_class(made.func).endswith("Trainer"):
                sure.append(call)
        is_likely = program.imports_from("transformers") and program.calls("TrainingArguments")
        return sure or (calls if is_likely else [])

    def _edit_lightning(self, call: ast.Call) -> None:
        """`trainer.fit(model, loader)` becomes `trainer.fit(model, **resumed(folder, loader))`."""
        names = ("model", "train_dataloaders", "val_dataloaders", "datamodule", "ckpt_path")
        given = dict(zip(names, map(ast.unparse, call.args), strict=False))
        given |= {str(each.arg): ast.unparse(each.value) for each in call.keywords}
        model, loader = given.pop("model", "model"), given.pop("train_dataloaders", None)
        data = given.pop("datamodule", None) or loader or model
        given.pop("ckpt_path", None)
        more = "".join(f", {name}={value}" for name, value in given.items())
        text = f"{model}{more}, **resumed({self._directory!r}, {data})"
        self._replace(call, f"{ast.unparse(call.func)}({text})")
        self._import("lightning", "resumed")

    def _calls_of_lightning_cli(self) -> list[ast.Call]:
        """The calls of LightningCLI and of the program's classes that derive from it."""
        program = self.program
        own = [name for name in program.classes
               if program.root_class(ast.Name(name)).endswith("LightningCLI")]  # fmt: skip
        return [call for name in ("LightningCLI", *own) for call in program.calls(name)]

    def _edit_lightning_cli(self, call: ast.Call) -> None:
        """Let a LightningCLI, which calls fit itself, only make the objects; then call fit."""
        statement = next(self.program.ancestors(call))
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        given = {each.arg for each in call.keywords}
        name = ast.unparse(targets[0]) if targets else "cli"
        has_data = len(call.args) > 1 or "datamodule_class" in given
        data = f"{name}.datamodule" if has_data else f"{name}.datamodule or {name}.model"
        fit = f"{name}.trainer.fit({name}.model, **resumed({self._directory!r}, {data}))"
        if (
            not isinstance(statement, ast.Assign | ast.Expr)
            or any(not isinstance(each, ast.Name) for each in targets)
            or given & {"run", "args", None}
        ):
            self.notes.append(
                "LightningCLI calls fit itself: write cli = LightningCLI(..., run=False), "
                f"import resumed from watchdog_app.agent.lightning, and write {fit}"
            )
            return
        if not targets:
            begin = self._span(call)[0]
            self._put(begin, begin, f"{name} = ")
        # The same command line, as a rescue belongs to the arguments of its program.
        self._give(call, "run", "False, args=[each for each in sys.argv[1:] if each != 'fit']")
        self._insert(statement, fit, after=True)
        self._import("lightning", "resumed")
        self._import_line("import sys")
        self.notes.append(
            "with these lines the program can only fit, without options of fit such as --ckpt_path"
        )

    def edit_loop(self, names: Mapping[str, str]) -> bool:
        """Edit the program's own loop; whether there is one."""
        program = self.program
        path = program.path()
        levels = self._find_levels(path)
        if not levels:
            return False
        reads = [each for each in levels if not self._counting(each)]
        inner = next((each for each in reads if each is not levels[-1]), (reads or levels)[0])
        if inner is not levels[0]:
            self._refuse_parts(inner)
        self._refuse_earlier(inner, levels[levels.index(inner) + 1 :])
        around = levels[levels.index(inner) + 1 :]
        epoch = around[0] if around else None
        first = epoch or inner
        within = levels[-1] is not first and self._trains_what_is_made_before(levels[-1], names)
        counters = [self._take_counter(each.loop) for each in levels]
        counter = counters[levels.index(inner)]
        if within:
            first, epoch = levels[-1], None
        if within and not self._continue_counter(first, counters[-1], repeats=True):
            self.notes.append(
                f"the loop in {program.place(first.loop)}{OUTER_BEGINS} at the place "
                "that follows from rescue.step_number, which counts the steps of the optimizer"
            )
        elif levels[-1] is not first:
            self._refuse_rounds(levels[-1])
            self.notes.append(
                f"each turn of the loop in {program.place(levels[-1].loop)} is a training: those "
                "that have ended train again, and the rescue resumes in its own"
            )
        self._refuse_evaluation(path[: len(inner.calls)], inner, first)
        places = self._places_of_variables(levels, inner, first)
        if (
            epoch is not None
            and counter is not None
            and self._continue_counter(epoch, counters[-1])
        ):
            epoch = None
        under_condition = self._place_step(inner, first, counter)
        steps = "" if epoch is None or under_condition else self._steps_argument(inner, epoch)
        if epoch is not None and self._saved_epoch is None and counter is None and not steps:
            within = self._continue_counter(epoch, counters[levels.index(epoch)], repeats=True)
            epoch = None if within else epoch
        if not within and self._edit_iterators(inner, first) and epoch and self._counting(inner):
            self._count_both(inner, epoch, under_condition=under_condition)
            epoch = None
        elif not within:
            self._edit_ranges(inner, epoch, counter, steps, under_condition=under_condition)
        self._insert_rescue(inner, first, names)
        for name, (loop, value) in self._unset.items():
            self._insert(loop, f"{name} = {value}")
        for statement, keywords in places.items():
            self._insert_variables(statement, keywords)
        self._insert_finish(first.loop, always=epoch is None or isinstance(first.loop, ast.While))
        self._share(first.loop)
        self._note_emptied(first.loop)
        self._import(self._framework, "Rescue")
        return True

    def _note_emptied(self, loop: Loop) -> None:
        """Name the logs that the program empties before its loop and appends to later."""
        program = self.program
        opened = [(each, ast.unparse(each.args[0]), ast.unparse(each.args[1]))
                  for each in program.calls("open") if len(each.args) > 1]  # fmt: skip
        kept = {path for _, path, mode in opened if mode.startswith("'a")}
        for call, path, mode in opened:
            tests = [ast.unparse(each.test)
                     for each in program.ancestors(call) if isinstance(each, ast.If)]  # fmt: skip
            new = any(word in each for each in tests for word in ("exists(", "is_file(", "isfile("))
            if mode.startswith("'w") and path in kept and call.lineno < loop.lineno and not new:
                self.notes.append(
                    f"a resume empties the file {path} in {program.place(call)}: open it with 'a'"
                )

    def _find_levels(self, path: list[ast.Call]) -> list[Level]:
        """The loops around the steps of the training that gets the lines; empty without one."""
        program = self.program
        known: dict[Any, list[ast.Call]] = {}  # the calls around the steps of a function
        for call in path[:1]:
            known = {program.called(call) or call: path, program.function_of(call): path[1:]}
        found = [
            levels
            for step in program.steps()
            if (levels := program.levels(step, known.get(program.function_of(step), ())))
        ]
        if path and (levels := program.levels(path[0], path[1:])):
            found.append(levels)
        elif not found:
            return []
        else:
            saved = [one for one in found if program.names_in(one[0].loop, {})]
            outer = max(saved or found, key=len)[-1].loop
            # The last of the steps of an iteration ends it.
            levels = [each for each in found if each[-1].loop is outer][-1]
        self._trained = found
        if any(each[-1].loop is not levels[-1].loop for each in found):
            self.notes.append(
                "the lines are for one of several training loops; those before it train again"
            )
        return levels

    def _insert_rescue(self, inner: Level, first: Level, names: Mapping[str, str]) -> None:
        """Make the Rescue before the loops, or before what they read by `next`."""
        program, scope = self.program, self.program.function_of(first.loop)
        owner, block = program.block_of(first.loop)
        place = next((each for each in self._iterators if each in (owner, *block)), first.loop)
        given = self._objects(first, place, names)
        words = ", ".join([repr(self._directory), *(f"{k}={each}" for k, each in given.items())])
        file = program.file_at(first.loop.lineno)
        is_shared = (first.calls != inner.calls and program.file_at(inner.loop.lineno) == file
                     ) or self._is_read_elsewhere  # fmt: skip
        self._insert(
            place,
            *(["global rescue"] if scope is not None and is_shared else []),
            *self._early,
            f"rescue = Rescue({words})",
        )

    def _insert_variables(self, statement: ast.stmt, keywords: Iterable[str]) -> None:
        """Restore variables before a statement; no assignment makes a global list a local one."""
        texts = {each: self._variables[each][1] for each in keywords}
        assigned = {each: text for each, text in texts.items() if each not in self._filled}
        for restored in (assigned, {k: texts[k] for k in texts if k in self._filled}):
            words = ", ".join(f"{each}={text}" for each, text in restored.items())
            left = f"{', '.join(restored.values())} = " if restored is assigned else ""
            if restored:
                self._insert(statement, f"{left}rescue.variables({words})")

    def _insert_finish(self, loop: Loop, *, always: bool) -> None:
        """Call `finish` where the program leaves its loop; `always`: at its end, too."""
        program, scope = self.program, self.program.function_of(loop)
        if always or any(isinstance(node, ast.Break) for node in ast.walk(loop)):
            self._insert(loop, "rescue.finish()", after=True)
        for each in ast.walk(loop):
            handled = any(isinstance(up, ast.ExceptHandler) for up in program.ancestors(each))
            returns = isinstance(each, ast.Return) and program.function_of(each) is scope
            if (
                isinstance(each, ast.stmt)
                and not handled
                and (returns or ast.unparse(each) in _EXITS)
            ):
                self._insert(each, "rescue.finish()")

    def _refuse_rounds(self, outer: Level) -> None:
        """Raise if each turn of an outer loop trains a copy of what the turns before have made."""
        text = ast.unparse(outer.loop)
        for each in ast.walk(outer.inside):
            name = re.escape(ast.unparse(each)) if isinstance(each, ast.Name) else None
            if name and re.search(rf"(?<![\w.]){name}\.(load_state_dict|set_weights)\(", text):
                raise _NoLinesError(
                    f"each turn of the loop in {self.program.place(outer.loop)} trains from "
                    f"{name}, which it changes at its end, and a rescue holds one such training: "
                    f"save {name} at the end of each turn"
                )

    def _refuse_parts(self, level: Level) -> None:
        """Raise if each turn of a loop trains the object that it reads: `layer.train()`."""
        read = names_among(ast.walk(getattr(level.loop, "target", ast.Pass())), ast.Store)
        called = names_among(ast.walk(getattr(level.inside, "func", level.inside)), ast.Load)
        for each in read & called:
            raise _NoLinesError(
                f"each turn of the loop in {self.program.place(level.loop)} trains another {each}, "
                f"and a rescue holds one such training: save {each} at the end of each turn"
            )

    def _refuse_earlier(self, inner: Level, around: Sequence[Level]) -> None:
        """Raise if another loop trains before the innermost one in each turn of a loop."""
        for each in self._trained:
            pairs = [(a, b) for a in around for b in each[1:] if a.loop is b.loop]
            if all(one.loop is not inner.loop for one in each) and any(
                other.inside.lineno < own.inside.lineno for own, other in pairs
            ):
                first, second = map(self.program.place, (each[0].loop, inner.loop))
                raise _NoLinesError(ALSO_TRAINS.format(first, second))

    def _refuse_evaluation(self, deeper: Sequence[ast.Call], inner: Level, first: Level) -> None:
        """Raise if functions that a loop calls decide whether it trains or evaluates."""
        program, function = self.program, self.program.function_of(inner.loop)
        uses = [] if function is None else program.calls_of(function)
        outside = (takewhile(lambda up: not isinstance(up, Function), program.ancestors(each))
                   for each in deeper)  # fmt: skip
        is_conditional = any(isinstance(up, ast.If) for ups in outside for up in ups)
        if is_conditional and sum(first.loop in program.ancestors(each) for each in uses) > 1:
            raise _NoLinesError(
                f"the loop in {program.place(inner.loop)} trains and evaluates: give the "
                "evaluation a function of its own"
            )

    def _places_of_variables(
        self, levels: Sequence[Level], inner: Level, first: Level
    ) -> dict[ast.stmt, list[str]]:
        """
        The statements before which variables are restored, and the keywords of these.

        A resume runs again what an epoch does before its inner loop. So a variable that this part
        names is restored before and behind it.
        """
        program, found = self.program, dict[ast.stmt, list[str]]()
        used = levels[: levels.index(first) + 1]
        for keyword, (function, text) in list(self._variables.items()):
            own = [each for each in used if program.name_around(each.loop) == function]
            place: ast.stmt = inner.loop
            if own and program.name_around(place) != function:
                place = next(each for each in own[0].loop.body if own[0].inside in ast.walk(each))
            is_outer = program.function_of(first.loop) is None and program.is_global(text, place)
            if own and is_outer and program.is_set_before(text, first.loop):
                found.setdefault(first.loop, []).append(keyword)
                continue
            if own and program.is_global(text, place) and self._is_filled(text):
                found.setdefault(place, []).append(keyword)
                self._filled.add(keyword)
                continue
            is_made = any(name == text and program.function_of(at) is None
                          for name, _, at in program.assignments)  # fmt: skip
            is_declared = is_made and f"global {text}\n" in program.source
            if own and is_declared and program.is_global(text, place):
                scope: Any = program.function_of(place)
                has_text = ast.get_docstring(scope) is not None and len(scope.body) > 1
                self._insert(scope.body[has_text], f"global {text}")
                self._spans.insert(0, self._spans.pop())
                found.setdefault(place, []).append(keyword)
                continue
            if own and not program.is_set_before(text, place) and self._may_be_unset(text, own[-1]):
                self._unset[text] = own[-1].loop, "None"
            elif not own or not program.is_set_before(text, place):
                del self._variables[keyword]
                self.left_out.append(text)
                if not own and self._is_of_trainings(text, function, levels[-1]):
                    self.set_again.append(text)
                    continue
                self.notes.append(f"{text} is not restored: it may have no value before the loop")
                continue
            outer = own[-1].loop
            before = [each for each in ast.walk(outer)
                      if isinstance(each, ast.expr) and each.lineno < place.lineno]  # fmt: skip
            is_set = program.is_set_before(text, outer) or text in self._unset
            is_named = is_set and text in map(ast.unparse, before)
            if is_named and not self._is_made_again(text, outer, place):
                found.setdefault(outer, []).append(keyword)
            branch = program.block_of(place)[0]  # its condition may read what an epoch changes
            if isinstance(branch, ast.If) and program.is_set_before(text, branch):
                found.setdefault(branch, []).append(keyword)
            found.setdefault(place, []).append(keyword)
        return found

    def _is_of_trainings(self, text: str, function: str, outer: Level) -> bool:
        """Whether a loop over trainings changes a variable, outside of the call that trains."""
        is_theirs = self.program.name_around(outer.loop) == function and text.isidentifier()
        inside = map(ast.unparse, ast.walk(outer.inside))
        return is_theirs and self.program.is_set_before(text, outer.loop) and text not in inside

    def _is_made_again(self, text: str, outer: Loop, place: ast.stmt) -> bool:
        """Whether a branch before a place in a loop sets a variable, and what no rescue holds."""
        held = {each for _, each in self._variables.values()}
        for branch in ast.walk(outer):
            if isinstance(branch, ast.If) and (branch.end_lineno or 0) < place.lineno:
                inside = {*ast.walk(branch)}
                if text in (made := names_among(inside, ast.Store)):
                    others = {*ast.walk(outer)} - inside
                    lost = made - held - names_among(others, ast.Store)
                    if not lost.isdisjoint(names_among(others, ast.Load)):
                        return True
        return False

    def _is_filled(self, text: str) -> bool:
        """Whether a global name is always the same list or dict, which is restored in place."""
        made = [value for name, value, _ in self.program.assignments if name == text]
        is_same = len(made) == 1 and f"global {text}" not in self.program.source
        kinds = ast.List | ast.Dict | ast.ListComp | ast.DictComp
        calls = ("list", "dict", "defaultdict", "OrderedDict")
        return is_same and (isinstance(made[0], kinds) or self.program.name_of(made[0]) in calls)

    def _may_be_unset(self, text: str, outer: Level) -> bool:
        """Whether only the loop sets a name, so that a value before it changes nothing."""
        program, scope = self.program, self.program.function_of(outer.loop)
        stores = [each for each in ast.walk(scope or program.tree) if isinstance(each, ast.Name)
                  and each.id == text and isinstance(each.ctx, ast.Store)
                  and program.function_of(each) is scope]  # fmt: skip
        asks = re.search(r"\bin (locals|globals|vars|dir)\(|NameError", program.source)
        return not asks and bool(stores) and all(outer.loop in program.ancestors(e) for e in stores)

    def _trains_what_is_made_before(self, outer: Level, names: Mapping[str, str]) -> bool:
        """Whether an outer loop is a part of the training, and not a loop over trainings."""
        own = self.program.names_in(outer.loop, names)
        texts = [own.get(name, "<") for name in names]
        if any("<" in each for each in texts):
            return False
        used = {
            n.id for text in texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)
        }
        return bool(used) and used.isdisjoint(names_among(ast.walk(outer.loop), ast.Store))

    def _objects(self, first: Level, place: ast.stmt, names: Mapping[str, str]) -> dict[str, str]:
        """
        The keyword arguments of the Rescue, as the program writes them before its place.

        Raises:
            _NoLinesError: the program has no name for an object there.
        """
        given, program, scope = {}, self.program, self.program.function_of(first.loop)
        own = program.names_in(first.loop, names)
        for name, text in names.items():
            shown = own.get(name, "<")
            base = re.split(r"\W", shown)[0]
            lines = [node.lineno for node in ast.walk(scope or program.tree)
                     if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                     and node.id == base and program.function_of(node) is scope]  # fmt: skip
            is_late = min(lines, default=0) > place.lineno
            is_late &= not program.is_set_before(base, place)
            if "<" in shown or is_late or self._is_filled_late(shown, place):
                is_loop, reads = place is first.loop, ", which makes what the loop reads"
                what, more = ("loop", "") if is_loop else ("statement", reads)
                raise _NoLinesError(
                    f"{text.strip('<>')} has no name before the {what} in "
                    f"{program.place(place)}{more}, so a Rescue "
                    f"there cannot restore it: make it before that {what}"
                )
            if (made := self._made_again(shown, first.loop)) is not None:
                raise _NoLinesError(
                    f"{MADE_AGAIN} {shown} in {program.place(made)}, and a Rescue before "
                    f"the loop saves the first one: make one {shown} before the loop, and change "
                    "its settings in place"
                )
            given[name] = shown
        return given

    def _made_again(self, text: str, loop: Loop) -> ast.stmt | None:
        """The statement in a loop that makes a new object for a name, but not of the old one."""
        scope = self.program.function_of(loop)
        for each in ast.walk(loop):
            if (
                isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Call)
                and text in map(ast.unparse, each.targets)
                and text not in names_among(ast.walk(each.value), ast.Load)
                and self.program.function_of(each) is scope
            ):
                return each
        return None

    def _is_filled_late(self, text: str, place: ast.stmt) -> bool:
        """Whether an expression is an item of a list that a function fills in the first step."""
        program, kept = self.program, re.search(r"(\w+)\[\d+\]$", text)
        fills = [] if kept is None else [
            program.name_around(each) for each in program.calls("append")
            if ast.unparse(each.func).endswith(f".{kept[1]}.append")
        ]  # fmt: skip
        early = ("__init__", "<module>", program.name_around(place))
        calls = [each for name in fills for each in program.calls(name)]
        called = {program.name_around(each) for each in calls if each.lineno < place.lineno
                  or program.name_around(each) != early[-1]}  # fmt: skip
        return bool(fills) and {*fills, *called}.isdisjoint(early)

    def _place_step(self, inner: Level, first: Level, counter: str | None) -> bool:
        """
        Write `rescue.step()` behind the step; whether it is under a condition.

        Args:
            inner, first: the innermost loop, and the first one that gets lines.
            counter: keyword of the innermost loop's counter, to be restored; None: it is not.
        """
        program = self.program
        node: ast.AST = inner.inside
        owner, block = program.block_of(node)
        changed = max((
            each.lineno for _, text in self._variables.values() for each in ast.walk(inner.loop)
            if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store)
            and ast.unparse(each) == text
        ), default=0)  # fmt: skip
        branch, conditions = None, list[str]()
        while not isinstance(owner, Function | ast.Module) and owner is not inner.loop:
            if conditions and isinstance(owner, Loop):
                break  # each of its turns has conditions of its own
            if isinstance(owner, ast.If):
                is_last = changed <= (owner.end_lineno or 0)
                branch = owner if is_last or not owner.orelse else branch
                if block is owner.body and self._can_repeat(owner, inner.loop):
                    conditions.insert(0, ast.unparse(owner.test))
                elif is_last:
                    break
            node = owner
            owner, block = program.block_of(node)
        last = block[-1]
        # A counter does not show that its loop was left: that step is no place to continue.
        leaves = isinstance(last, _LEAVING) or (
            counter is None and isinstance(last, ast.If) and isinstance(last.body[-1], ast.Break)
        )
        words = [f"{name}={text}" for name, (function, text) in self._variables.items()
                 if function == program.name_around(inner.loop)
                 and program.changes_in(text, inner.loop)]  # fmt: skip
        if counter is not None and isinstance(inner.loop, ast.For):
            words.append(f"{counter}={ast.unparse(inner.loop.target)}")
        when = f"if {' and '.join(conditions)}: " if conditions else ""
        self._insert(last, f"{when}rescue.step({', '.join(words)})", after=not leaves)
        if branch is not None:
            self._set_unset(branch, first.loop)
        elif inner is not first:
            self._set_unset(inner.loop, first.loop if inner.calls == first.calls else inner.loop)
        return branch is not None

    def _can_repeat(self, branch: ast.If, loop: Loop) -> bool:
        """Whether a condition is the same at the end of a loop, behind what follows the branch."""
        program = self.program
        follow = [each for each in ast.walk(loop) if isinstance(each, ast.stmt)
                  and each.lineno > (branch.end_lineno or 0)]  # fmt: skip
        test = list(ast.walk(branch.test))
        later = (each for each in ast.walk(loop) if getattr(each, "lineno", 0) >= branch.lineno)
        is_same = names_among(later, ast.Store).isdisjoint(names_among(test, ast.Load)) and all(
            program.name_of(each) == "len" for each in test if isinstance(each, ast.Call)
        )
        return bool(follow) and not branch.orelse and is_same

    def _set_unset(self, within: ast.AST, loop: Loop) -> None:
        """Give a value to names that a loop or its function reads, and that only a part sets."""
        program, inside, others = self.program, set[str](), set[str]()
        scope = program.function_of(loop)
        for node in ast.walk(scope or program.tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
                continue
            if program.function_of(node) is scope:
                (inside if within in program.ancestors(node) else others).add(node.id)
        kinds = {"torch": "{}.tensor({}.nan)", "tensorflow": '{}.constant(float("nan"))'}
        own = [(kinds[full], name) for name, full in program.imports.items() if full in kinds]
        for name in sorted(inside - others):
            reads = [
                list(program.ancestors(node))
                for node in ast.walk((scope or program.tree) if loop is within else loop)
                if isinstance(node, ast.Name) and node.id == name
                if isinstance(node.ctx, ast.Load) and within not in program.ancestors(node)
            ]
            reads = [each for each in reads if not any(isinstance(up, _INNER) for up in each)]
            is_shown = all(any(self._shows(up) for up in each) for each in reads)
            if reads and own and is_shown:
                self._unset[name] = loop, own[0][0].format(*[own[0][1]] * 2)
            elif reads and name not in self._unset:
                self.notes.append(
                    f"{name} may have no value until a step sets it: set it before the loop"
                )

    def _shows(self, node: ast.AST) -> bool:
        """Whether a node only prints or logs."""
        words = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        return words.rpartition(".")[2] in _SHOW

    def _count_both(self, inner: Level, epoch: Level, *, under_condition: bool) -> None:
        """Let two ranges continue at the step of the rescue: data may end in any of their turns."""
        calls = [self._counting(epoch), self._counting(inner)]
        outer, steps = [[] if each is None else each.args for each in calls]
        if (
            under_condition
            or self._may_skip(inner, epoch)
            or inner.calls != epoch.calls
            or len(steps) != 1
            or not (
                0 < len(outer) < 3
                and not isinstance(epoch.loop, ast.While)
                and self._can_follow_rescue(epoch.loop)
            )
        ):
            raise _NoLinesError(_NO_PLACE.format(self.program.place(epoch.loop)))
        each, *ends = (f"({ast.unparse(one)})" for one in (steps[0], *outer[1:]))
        done, first = f"rescue.step_number // {each}", ast.unparse(outer[0])
        self._replace(outer[0], f"{first} + {done}" if ends else f"{done}, {first}")
        self._replace(steps[0], f"rescue.step_number % {each}, {ast.unparse(steps[0])}")

    def _edit_iterators(self, inner: Level, first: Level) -> bool:
        """Read what `next` reads in a loop through the rescue; whether there is any."""
        program, found, loop = self.program, set[str](), inner.loop
        has_data = isinstance(loop, ast.For) and self._counting(inner) is None
        asked = [] if has_data else [
            program.called(each) for each in ast.walk(loop)  # `loader.next()`
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute)
        ]  # fmt: skip
        within = {loop, *asked}.difference(program.ancestors(loop))
        calls = [(ast.unparse(call.args[0]), call) for call in program.calls("next") if call.args]
        read = {text for text, call in calls if not within.isdisjoint(program.ancestors(call))
                and not isinstance(call.args[0], ast.Call)}  # fmt: skip
        for name, value, place in program.assignments:
            if name not in read or not isinstance(value, ast.Call):
                continue
            made_in, around = program.function_of(place), program.function_of(loop)
            makers = self._makers(program.class_of(made_in), first)
            if ast.unparse(value.func) == "iter" and (made_in is around or makers):
                self._is_read_elsewhere |= bool(makers)
                self._iterators += makers
                ahead = 0 if makers else sum(
                    text == name and place.lineno < each.lineno < loop.lineno
                    for text, each in calls)  # fmt: skip
                words = ast.unparse(value.args[0]) + (f", ahead={ahead}" if ahead else "")
                self._replace(value.args[0], f"rescue.data({words})")
                self._iterators.append(place)
                found.add(name)
            # The generator begins at the first `next`: then there must be a rescue.
            elif all(
                text != name or loop in program.ancestors(each) for text, each in calls
            ) and self._read_inside(value):
                found.add(name)
        if read - found:
            self.notes.append("what next() reads begins again: its place is not restored")
        return bool(found)

    def _makers(self, kind: ast.ClassDef | None, first: Level) -> list[ast.stmt]:
        """The statement before a loop that makes the only object of a class, in a list."""
        made = [] if kind is None else self.program.calls(kind.name)
        block = self.program.block_of(first.loop)[1]
        found = [each for each in block if isinstance(each, ast.Assign) and each.value in made]
        is_only = len(made) == len(found) == 1 and found[0].lineno < first.loop.lineno
        return [*found] if is_only else []

    def _read_inside(self, call: ast.Call) -> bool:
        """Read the data in a generator of the program through the rescue; whether it can be."""
        passes = self.program.read_in(call)
        if passes is None or len(self.program.calls(self.program.name_of(call))) != 1:
            return False
        self._replace(passes, f"rescue.data({passes.id})")
        self._is_read_elsewhere = True
        return True

    def _edit_ranges(
        self,
        inner: Level,
        epoch: Level | None,
        counter: str | None,
        steps: str,
        *,
        under_condition: bool,
    ) -> None:
        """
        Let the loops begin at the place of the rescue.

        Args:
            inner, epoch: the innermost loop, and the one around it.
            counter: keyword of the innermost loop's counter.
            steps: see `_steps_argument`.
            under_condition: whether not each iteration makes a step.
        """
        loop, counting = inner.loop, self._counting(inner)
        if epoch is not None:
            self._edit_epochs(epoch, steps)
        if isinstance(loop, ast.While):
            return
        if epoch is None and counting is not None:
            texts = [ast.unparse(each) for each in counting.args]
            if under_condition and counter is None:
                raise _NoLinesError(
                    f"the loop in {self.program.place(loop)} counts iterations, and not each of "
                    "them makes a step, and no rescue holds its counter: run the program under "
                    "watchdog exec first, or write a `while` loop"
                )
            if len(texts) > 2 or not self._can_follow_rescue(loop):
                self.notes.append("the counter of the loop does not follow from the steps")
                return
            begins = len(texts) == 2 or (texts and ast.unparse(counting.func).endswith("count"))
            start = texts.pop(0) if begins else ""
            first = f"{start} + rescue.step_number" if start else "rescue.step_number"
            if counter is not None:
                before = f"{start} - 1" if start else "-1"
                first = f"rescue.variables({counter}={before}) + 1"
            words = ", ".join([first, *texts, *map(ast.unparse, counting.keywords)])
            text = f"{ast.unparse(counting.func)}({words})"
            self._replace(counting, text)
        else:
            self._edit_data(loop, epoch, under_condition=under_condition)

    def _take_counter(self, loop: Loop) -> str | None:
        """The keyword of a loop's counter, which is restored in its range and nowhere else."""
        target = [self.program.name_around(loop), ast.unparse(getattr(loop, "target", loop))]
        found = next((k for k, each in self._variables.items() if [*each] == target), None)
        if found is not None:
            del self._variables[found]
        return found

    def _continue_counter(
        self, level: Level, keyword: str | None, *, repeats: bool = False
    ) -> bool:
        """
        Let a loop over a range begin with the turn in which it was saved; whether it can.

        Args:
            level: the loop.
            keyword: of its counter; None: it is not known.
            repeats: whether the loops inside begin again in that turn.
        """
        loop, call = level.loop, self._counting(level)
        if call is None or isinstance(loop, ast.While) or keyword is None:
            return False
        texts, name = [ast.unparse(each) for each in call.args], ast.unparse(loop.target)
        if len(texts) not in (1, 2) or call.keywords or not self._can_follow_rescue(loop):
            return False
        first = texts[0] if len(texts) == 2 else "0"
        words = f"rescue.variables({keyword}={first}), {texts[-1]}"
        self._replace(call, f"{ast.unparse(call.func)}({words})")
        self._insert(loop.body[0], f"rescue.variables({keyword}={name})")
        if repeats:
            place = self.program.place(loop)
            self.notes.append(f"the turn of the loop in {place} in which it was saved begins again")
        return True

    def _edit_data(
        self, loop: ast.For | ast.AsyncFor, epoch: Level | None, *, under_condition: bool
    ) -> None:
        """
        Let a loop over data begin at the place of the rescue.

        Raises:
            _NoLinesError: the place does not follow from the rescue.
        """
        program, data = self.program, self._inside(loop.iter)
        made = self._made(loop) and program.value(data)
        calls = [each for each in ast.walk(made or loop.iter) if isinstance(each, ast.Call)]
        calls += [each for each in ast.walk(loop.iter) if made and isinstance(each, ast.Call)]
        endless = [each for each in calls if program.begins_again(each)]
        counters = [each for each in calls if program.name_of(each) in _COUNTERS]
        eager = [each for each in calls if program.full_name(each.func) in _EAGER]
        made_early = (program.value(part) for each in eager for part in each.args)
        early = [each for each in made_early if isinstance(each, ast.Call)]
        skips = any(program.name_of(each) == "islice" and len(each.args) > 2 for each in calls)
        keeps = any(program.full_name(each.func) == "itertools.cycle" for each in (*calls, *early))
        keeps |= any(program.full_name(each.func) == "iter" for each in early)
        begins_again = bool(self._saved_epoch) and not endless  # in an object of the program
        if (
            skips
            or (endless and (epoch is not None or not self._read_inside(endless[0])))
            or (epoch is None and (begins_again or (endless and counters and under_condition)))
            or (keeps and (epoch is None or eager))
        ):
            raise _NoLinesError(_NO_PLACE.format(self.program.place(loop)))
        for each in counters if endless else ():  # they count all passes
            self._count_on(each)
        if endless:
            return
        # Some begin a pass where they are made: `bar = tqdm(enumerate(loader))`.
        begins = any(program.name_of(each) == "enumerate" for each in ast.walk(made or data))
        if (
            made
            and (begins or self._inside(made) in eager)
            and (epoch is not None or self._can_follow_rescue(loop))
        ):
            data = self._inside(made)
        text = f"lambda: {ast.unparse(data)}" if data in eager else ast.unparse(data)
        parent = next(program.ancestors(data))
        if program.name_of(parent) == "enumerate":
            self._replace(parent.func, "rescue.enumerate")  # type: ignore[attr-defined]
            if data in eager:
                self._replace(data, text)
            return
        self._replace(data, f"rescue.data({text})")
        for call in program.ancestors(data):
            if isinstance(call, ast.Call) and program.name_of(call) == "enumerate":
                self._count_on(call, "rescue.batch")

    def _count_on(self, call: ast.Call, place: str = "rescue.step_number") -> None:
        """Let `enumerate`, `islice` or `range` continue at the place of the rescue."""
        name, given = self.program.name_of(call), [*call.args, *(e.value for e in call.keywords)]
        if name == "enumerate" and len(given) == 1:
            self._give(call, "start", place)
        else:
            self._replace(given[-1], _COUNTERS[name].format(ast.unparse(given[-1]), place))

    def _can_follow_rescue(self, loop: ast.For | ast.AsyncFor) -> bool:
        """Whether the statement that makes the range of a loop, if any, may follow the Rescue."""
        made, (owner, block) = self._made(loop), self.program.block_of(loop)
        if made is None:
            return True
        if made not in (owner, *block):
            return False
        first = 0 if made is owner else block.index(made) + 1
        between = block[first : block.index(loop)]
        if any(isinstance(node, ast.Call) for each in between for node in ast.walk(each)):
            return False  # it may make an object of the Rescue
        self._iterators.append(made)
        return True

    def _edit_epochs(self, epoch: Level, steps: str) -> None:
        """`rescue.epochs(...)` instead of what the outer loop counts."""
        loop, call = epoch.loop, self._counting(epoch)
        if isinstance(loop, ast.While):
            return  # its variables are restored
        place, made = self._inside(loop.iter), self._made(loop)
        if call is None:
            raise _NoLinesError(
                f"the loop in {self.program.place(loop)} is over no range, and a rescue counts "
                "epochs: write it as `for i in range(...)`"
            )
        if self._saved_epoch is None and not steps:
            raise _NoLinesError(
                "the rescue has no place in its data, and the text does not show the steps of an "
                "epoch: a condition, `break`, `while` or data that an epoch makes hide them. All "
                "epochs would be trained again. Make a Rescue(...) yourself, loop over "
                "range(rescue.variables(i=0), n) and call rescue.variables(i=i) in the loop: a "
                "resume then begins with the turn of the save"
            )
        texts = [ast.unparse(each) for each in call.args]
        if ast.unparse(call.func).endswith("count"):
            texts = [*(texts or ["0"])[:1], _ENDLESS]
        whole = f"range({', '.join(texts)})" if len(texts) > 1 else texts[0]
        if (
            made is not None
            and self.program.value(place) is call
            and (ast.unparse(call.func) == "range")
        ):
            whole = ast.unparse(place)  # self.epochs = range(n)
        given = self.program.names_in(loop, {}).values()
        if any(re.search(rf"(?<![\w.]){re.escape(each)}(?!\w)", whole) for each in given):
            self._early.append(f"all_epochs = {whole}")  # as the program counts them at its start
            whole = "all_epochs"
        self._replace(place, f"rescue.epochs({whole}{steps})")

    def _may_skip(self, inner: Level, epoch: Level) -> bool:
        """Whether a turn of the outer loop may end without all steps of the inner one."""
        program = self.program
        for node in (inner.loop, *(call for _, call in epoch.calls[len(inner.calls) :])):
            around = [*program.ancestors(node)]
            is_outermost = epoch.loop in around
            whole = epoch.loop if is_outermost else program.function_of(node)
            between = around[: around.index(whole)] if whole in around else around
            if any(isinstance(each, _CONDITIONAL) for each in between):
                return True
            ends = ast.Continue if is_outermost else ast.Return
            before = leaving(whole or program.tree, own=is_outermost)
            if any(isinstance(each, ends) and each.lineno < node.lineno for each in before):
                return True
        return any(leaving(inner.loop))

    def _steps_argument(self, inner: Level, epoch: Level) -> str:
        """`, steps=...` where no pass over data shows the epoch, and each epoch makes all steps."""
        if self._may_skip(inner, epoch):
            return ""
        counting = self._counting(inner)
        if counting is None:
            return self._steps_of_data(inner, epoch)
        if inner.calls != epoch.calls and self._reads_own(counting):
            steps = self._outside(counting.args, epoch.calls[len(inner.calls) :])
        else:
            steps = ast.unparse(counting.args[0] if len(counting.args) == 1 else counting)
        is_same = steps and not changes_length(ast.parse(steps), epoch.loop)
        return f", steps={steps}" if is_same else ""

    def _steps_of_data(self, inner: Level, epoch: Level) -> str:
        """What a pass reads to its end, unless the rescue has an epoch, or the epoch makes it."""
        if isinstance(inner.loop, ast.While) or self._saved_epoch is not None:
            return ""
        data, program = self._inside(inner.loop.iter), self.program
        made = [(text, value, place) for text, value, place in program.assignments
                if epoch.loop in program.ancestors(place)]  # fmt: skip
        for name, value, place in made:  # `order = torch.randperm(n)`, in each epoch
            is_only = [text for text, *_ in made].count(name) == 1 and place in epoch.loop.body
            call = value if isinstance(value, ast.Call) and value.args else None
            if is_only and call and ast.unparse(call.func) == "torch.randperm":
                # As long, and it draws no random numbers.
                length = f"torch.arange({ast.unparse(call.args[0])})"
                parts = re.split(rf"(?<![\w.]){re.escape(name)}(?!\w)", ast.unparse(data))
                data = ast.parse(length.join(parts), mode="eval").body
        names = [each.id for each in ast.walk(data) if isinstance(each, ast.Name)]
        is_late = any(program.changes_in(each, epoch.loop) for each in names)
        is_own = inner.calls != epoch.calls and self._reads_own(inner.loop.iter)
        return "" if is_own or is_late else f", steps={ast.unparse(data)}"

    def _outside(self, counted: Sequence[ast.expr], calls: Calls) -> str | None:
        """What a range ends at, as the callers of its function write it; None if unknown."""
        if len(counted) != 1:
            return None
        made = [value for text, value, place in self.program.assignments
                if text == ast.unparse(counted[0])
                and self.program.function_of(place) is calls[0][0]]  # fmt: skip
        end = made[0] if len(made) == 1 else counted[0]
        is_name = isinstance(end, ast.Name | ast.Attribute)
        return self.program.translated(ast.unparse(end), calls) if is_name else None

    def _reads_own(self, node: ast.AST) -> bool:
        """Whether an expression reads variables of its function."""
        function = self.program.function_of(node)
        own = {text for text, _, place in self.program.assignments
               if self.program.function_of(place) is function}  # fmt: skip
        own |= {each.arg for each in function.args.args} if function is not None else set()
        return any(isinstance(each, ast.Name) and each.id in own for each in ast.walk(node))

    def _inside(self, node: ast.expr) -> ast.expr:
        """`loader` in `tqdm(enumerate(loader))`, and in a call of a generator that reads it."""
        while isinstance(node, ast.Call):
            name, given = self.program.name_of(node), self.program.read_by(node)
            if given is None and (name not in _AROUND or not node.args):
                break
            node = given or node.args[0]
        return node

    def _counting(self, level: Level) -> ast.Call | None:
        """The call of `range` or the like that a loop counts by."""
        if isinstance(level.loop, ast.While):
            return None
        made = self._made(level.loop) and self.program.value(self._inside(level.loop.iter))
        return self._range_in(made or level.loop.iter)  # pbar = tqdm(range(9))

    def _made(self, loop: ast.For | ast.AsyncFor) -> ast.stmt | None:
        """The statement that makes what a loop runs over, if that has a name."""
        text, scope = ast.unparse(self._inside(loop.iter)), self.program.function_of(loop)
        found = [(value, place) for name, value, place in self.program.assignments
                 if name == text
                 and ("." in text or self.program.function_of(place) in (scope, None))]  # fmt: skip
        # `bar = enumerate(loader)`, then `bar = tqdm(bar)`
        are_bars = all(ast.unparse(self._inside(value)) == text for value, _ in found[1:])
        return found[0][1] if found and are_bars else None

    def _range_in(self, node: ast.expr) -> ast.Call | None:
        found = self._inside(node)
        is_range = self.program.name_of(found) in _RANGES
        return found if isinstance(found, ast.Call) and is_range else None
