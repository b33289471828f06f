"""
`watchdog.resume()`: a killed and restarted notebook continues where it was saved.

It runs the earlier cells again, in order, up to and including the cell that trained. The fit or
Rescue in that cell then resumes from the rescue. It runs nothing that the user did not ask for.
"""

from __future__ import annotations

import ast
import os
import re
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from watchdog_app.agent.found import folders, resume_lines
from watchdog_app.agent.found.resume_lines import WaitingRescue
from watchdog_app.agent.runtime import kernel_cells, run_choice
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint import inventory
from watchdog_app.rescue.identity import notebook
from watchdog_app.rescue.identity.cells import normalise

_CHOICES = ("training", "all", None)
# below the notebook's folder, after a call of resume(); at a start only `rescues` is searched
_MOST_FOLDERS = 2000
_WIDTH = 60  # characters of a cell's first line in the list
# Magics that run other programs or overwrite the user's files.
_OUTSIDE_CELLS = frozenset(
    {
        *("bash", "sh", "script", "cmd", "perl", "ruby", "system", "sx", "!"),
        *("writefile", "file", "powershell", "pwsh", "zsh", "fish"),
        *("python", "python2", "python3", "pypy"),
    }
)
_OUTSIDE_LINES = frozenset(
    {
        *("system", "sx", "sc", "pip", "conda", "mamba", "uv", "micromamba", "killbgscripts"),
        *("save", "notebook", "edit", "reset", "reset_selective", "logstart"),
    }
)
_LOADS = "%load_ext watchdog_app.agent"
_OURS = ("watchdog", "watchdog_app")
# A line that begins with `!`, `x = !` or a magic, also behind options of the magic before it.
_COMMAND = re.compile(r"^\s*(?:-\S+\s+)*(?:[\w, ]+=\s*)?(?:!|%%?(\w+))", re.MULTILINE)
_SHELL = 'left out: shell commands (run="all" runs them)'


def resume(run: str | None = "training", *, skip: Collection[int] = ()) -> None:
    """
    Run the cells of the session that died, up to and including the one that trained.

    Args:
        run: "training": skip failed cells and shell commands; "all": run those too; None: list the
            cells and run nothing.
        skip: numbers of cells to leave out.

    Raises:
        ValueError: `run` is not one of the three.
    """
    if run not in _CHOICES:
        raise ValueError(f'run must be "training", "all" or None, not {run!r}')
    shell = notebook.ipython_shell()
    if shell is None:
        _print(
            "watchdog.resume() is for notebooks. A script resumes automatically when it is run "
            "again in the same way: watchdog exec -- python train.py  (to start over: watchdog "
            "exec --no-resume -- python train.py)"
        )
        return
    searched: list[str] = []
    what = unfinished(searched, thorough=True)
    name = os.path.basename(notebook.program_path() or "this kernel")
    if what is None:
        places = ", ".join(map(folders.display_path, searched))
        _print(
            f"{name} has no unfinished training to resume from. Looked in: "
            f"{places or 'nothing, there is no such folder'}."
        )
        return
    if not folders.is_resume_enabled():
        _print(f"{folders.RESUME} says that nothing is to be resumed: take it out first.")
        return
    steps = _steps(what, shell, everything=run == "all", skip=tuple(skip))
    if steps is None:
        return
    _print_cells(what, name, steps)
    if run is None:
        _print("nothing was run. To run them: watchdog.resume()")
        return
    _run_cells(what, shell, steps)


def unfinished(
    searched: list[str] | None = None, *, thorough: bool = False
) -> WaitingRescue | None:
    """
    The newest rescue of this notebook or kernel with an unfinished training and an ended process.

    Args:
        searched: receives the folders that were searched.
        thorough: search everything below the notebook's folder, not only its `rescues` folder.
    """
    program, kernel = notebook.program_path(), kernel_cells.kernel_id()
    # by run: a copied folder may contain an older rescue of the same run
    left: dict[str, WaitingRescue] = {}
    finished: set[str | None] = set()
    search = inventory.Search(most_folders=_MOST_FOLDERS)
    for root in _roots(program, thorough=thorough):
        if searched is not None:
            searched.append(root)
        for folder in inventory.find_rescue_folders(root, search):
            for one in inventory.rescues_in(folder):
                if one.training == "finished":
                    finished.add(one.name.run)
                if run_choice.is_of_this_process(one.path) or inventory.foreign_content(one.path):
                    # this process has a newer state in memory; or another user owns the rescue: do
                    # not trust it
                    continue
                waits, run = resume_lines.read_waiting(one), one.name.run or one.path
                if waits is None:
                    continue
                of_kernel = None if waits.cells is None else waits.cells.kernel
                same = kernel is not None and of_kernel == kernel
                if not same and (program is None or one.program != program):
                    continue
                if run not in left or waits.created_unix_s > left[run].created_unix_s:
                    left[run] = waits
    waiting = [each for run, each in left.items() if run not in finished]
    return max(waiting, key=lambda each: each.created_unix_s, default=None)


def offer_text(what: WaitingRescue) -> str:
    """One line: what died, when it was saved, and how to continue."""
    name = os.path.basename(notebook.program_path() or "this notebook")
    then = "resumes from there" if what.found is None else "shows the lines that resume it"
    return (
        f"a training of {name} was left when its kernel ended; {_saved_text(what)}. "
        f"watchdog.resume() {then}, watchdog.resume(run=None) lists what it would run."
    )


def _saved_text(what: WaitingRescue) -> str:
    ago = format_duration(max(0.0, time.time() - what.created_unix_s))
    return f"it was saved {ago} ago at {resume_lines.format_progress(what.step, what.epoch)}"


def _roots(program: str | None, *, thorough: bool) -> list[str]:
    directory, _ = folders.rescue_folder()
    beside = os.getcwd() if program is None else os.path.dirname(program)
    roots = [
        os.path.dirname(directory),
        os.path.join(beside, "rescues"),
        os.path.abspath("rescues"),
    ]
    if thorough:
        roots.append(beside)
    return [each for each in dict.fromkeys(roots) if os.path.isdir(each)]


def _steps(
    what: WaitingRescue, shell: Any, *, everything: bool, skip: Sequence[int]
) -> list[Step] | None:
    if what.cells is None:
        _print(
            f"{folders.display_path(what.path)} does not say which cells had run. Run them "
            "again up to the training: it resumes from there automatically."
        )
        return None
    cells = what.cells
    if not _is_ipython_history(cells.history, shell):
        cells = replace(cells, history="")  # a rescue may come from an untrusted place
    texts = kernel_cells.cell_texts(cells, notebook.notebook_path())
    running = what.cells.running
    if running not in texts:
        _print(
            f"the text of the cell that trained, [{running}], is not known any more: IPython's "
            "history is off or was cleared, and the notebook's file does not hold it under this "
            "number. Run your cells again up to the training: it resumes from there automatically."
        )
        return None
    return plan(
        list(texts.items()), running, what.cells.failed,
        everything=everything, skip=skip, transform=shell.transform_cell,
        aliases=[name for name, _ in getattr(shell.alias_manager, "aliases", ())],
    )  # fmt: skip


def _is_ipython_history(history: str, shell: Any) -> bool:
    """Whether IPython itself writes this history database for this user."""
    path = os.path.realpath(history)
    if path == os.path.realpath(str(shell.history_manager.hist_file)):
        return True
    return path.startswith(os.path.join(os.path.realpath(str(shell.ipython_dir)), ""))


def _print_cells(what: WaitingRescue, name: str, steps: Sequence[Step]) -> None:
    _print(f"{name}: {_saved_text(what)}. Its cells:")
    for step in steps:
        lines = step.text.strip().splitlines()
        first = lines[0] if len(lines) == 1 else f"{lines[0]} ..."
        shown = "".join(char if char.isprintable() else " " for char in first)[:_WIDTH]
        trains = "trains" if what.found is None else "trains: it needs lines of code, see below"
        why = step.why or (trains if step.trains else "")
        print(f"  [{step.number}]  {shown:{_WIDTH}}  {why}".rstrip())
    known = {step.number for step in steps}
    cells = what.cells
    if cells is not None:
        gone = [number for number in range(1, cells.running) if number not in known]
        if gone:
            print(f"  {gone}  empty, or not known any more")


def _run_cells(what: WaitingRescue, shell: Any, steps: Sequence[Step]) -> None:
    from watchdog_app.agent import hook

    root = os.path.dirname(what.path)
    hook.switch_on()
    if os.path.basename(root).startswith("unnamed-"):
        folders.resume_in(root)  # the notebook is unknown: each kernel has its own folder
    texts = {step.number: shell.transform_cell(step.text) for step in steps}
    trained = {normalise(texts[step.number]) for step in steps if step.trains}
    others = {*map(normalise, texts.values())} - trained
    for step in steps:
        if step.run is None or (step.trains and what.found is not None):
            continue
        if notebook.running_cell_number(shell) == shell.execution_count:
            # in an older IPython this cell keeps the number until it ends
            shell.execution_count += 1
        run_choice.allow_resume_from(what.path, others)
        try:
            result = shell.run_cell(step.run, store_history=True)
        finally:
            run_choice.allow_resume_from(None)
        if not result.success:
            _print(
                f"cell [{step.number}] ended with an error; nothing after it was run. To leave it "
                f"out: watchdog.resume(skip=[{step.number}])"
            )
            return
    if what.found is not None:
        run_choice.allow_resume_from(what.path, others)  # the lines are another text of its cell
        cell = what.cells.running if what.cells else "?"
        _print(
            f"the cells before are done. The loop in [{cell}] is your own. Write these lines, and "
            f"run the cells that get some, [{cell}] last."
        )
        files = {f"Cell In[{number}]": text for number, text in texts.items()}
        files[""] = next((step.text for step in steps if step.trains), "")
        source: resume_lines.Source = files[""]
        with suppress(OSError, ValueError):
            source = resume_lines.read_files(what.found, notebook.program_path() or "", files)
        lines = resume_lines.resume_code(what.found, source, what.lost, epoch=what.epoch)
        print("\n".join(f"    {line}" for line in lines))


def _print(message: str) -> None:
    print("watchdog: " + "".join(char if char.isprintable() else " " for char in message))


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of a resume."""

    number: int  # its number in the session that died
    text: str  # original text
    run: str | None  # text to run; None: the cell is left out
    why: str | None  # message: why the cell, or a part of it, is left out
    trains: bool = False


def plan(
    texts: Sequence[tuple[int, str]],
    running: int,
    failed: Sequence[int],
    *,
    everything: bool,
    skip: Sequence[int],
    transform: Callable[[str], str],
    aliases: Collection[str] = (),
) -> list[Step]:
    """
    Decide what to do with each cell.

    IPython first turns a cell into Python, so a line with `!` inside a string is not taken for a
    shell command. A resume skips shell commands unless the user asks for them. They ran once
    already, and a second run may do harm.

    Args:
        texts: number and text of the cells that had run, in order.
        running: the number of the cell that trained.
        failed: numbers of the cells that ended with an error.
        everything: leave out only the cells in `skip`.
        skip: numbers of cells to leave out.
        transform: turns a cell into Python, like IPython's `transform_cell`.
        aliases: magics that run programs: `rm`, `mv`, ...
    """
    reader = _Reader(transform, frozenset(aliases) | _OUTSIDE_LINES)
    found = []
    for number, text in texts:
        run: str | None = text
        why = None
        if number in skip:
            run, why = None, "left out, as you said"
        elif not text.strip():
            continue
        elif text.strip() == _LOADS:
            run, why = None, "left out: it is on already"
        elif number in failed and number != running and not everything:
            run, why = None, "left out: it ended with an error"
        else:
            run, why = reader.read(text, everything=everything)
        found.append(Step(number, text, run, why, number == running))
    return found


class _Reader:
    """Turns cells into Python and finds the commands in them."""

    def __init__(self, transform: Callable[[str], str], outside: Collection[str]) -> None:
        self._transform = transform
        self._outside = outside

    def read(self, text: str, *, everything: bool) -> tuple[str | None, str | None]:
        """The text to run and a message about it; text None: run nothing of the cell."""
        tree = self._tree(text)
        if tree is None:
            return text, None  # it fails with the same error as before
        if any(_is_resume_call(node) for node in ast.walk(tree)):
            return None, "left out: it was a resume itself"
        if everything:
            return text, None
        commands = sum(map(self._starts_command, ast.walk(tree)))
        if not commands:
            asks = any(_called_name(node) in ("input", "getpass") for node in ast.walk(tree))
            return text, "it asks for an answer" if asks else None
        if text.lstrip().startswith("%%"):
            return None, _SHELL
        lines = text.splitlines()
        taken = [line for line in lines if self._is_command(line)]
        lines = [
            f"{line[: len(line) - len(line.lstrip())]}pass" if line in taken else line
            for line in lines
        ]
        kept = self._tree("\n".join(lines))
        # A command that is part of a longer line or of a text, or that spans several lines.
        others = len(taken) != commands or any(each.endswith("\\") for each in taken)
        if kept is None or others:
            return None, 'left out: it needs what a shell command prints (run="all" runs it)'
        if all(isinstance(each, ast.Pass) for each in kept.body):
            return None, _SHELL
        return "\n".join(lines), 'without its shell commands (run="all" runs them)'

    def _tree(self, text: str) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # IPython shows them when the cell runs
                return ast.parse(self._transform(text))
        except (SyntaxError, ValueError, RecursionError):
            return None

    def _is_command(self, line: str) -> bool:
        text = line.strip()
        tree = self._tree(text) if text[:1] in ("!", "%") else None
        return tree is not None and any(map(self._starts_command, ast.walk(tree)))

    def _starts_command(self, node: ast.AST) -> bool:
        """`get_ipython().system(...)`, `getoutput`, or a magic that starts a command."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if _called_name(node.func.value) != "get_ipython":
            return False
        if node.func.attr in ("system", "getoutput"):
            return True
        magic, *code = [
            each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else ""
            for each in (*node.args, ast.Constant(""))
        ]
        outside = _OUTSIDE_CELLS if node.func.attr == "run_cell_magic" else self._outside
        # The code of a magic may start a command: `%time !rm x`, or a line below `%%time`.
        return magic in outside or any(
            name is None or name in self._outside or name in _OUTSIDE_CELLS
            for each in code
            for name in (found[1] for found in _COMMAND.finditer(each))
        )


def _is_resume_call(node: ast.AST) -> bool:
    """Whether a node is `watchdog.resume(...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return node.func.attr == "resume" and isinstance(owner, ast.Name) and owner.id in _OURS


def _called_name(node: ast.AST) -> str | None:
    """The function name in a call; `getpass` for `getpass.getpass` as well."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else None
