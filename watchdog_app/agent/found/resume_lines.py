"""
Print the lines of code that resume a loop which the agent saved automatically.

The agent cannot resume a user's own loop without a change to its code, because it does not know
where the loop begins. So the rescue holds the names of the saved objects, and the next run of the
program prints the lines to write. Until then no run resumes from that rescue or replaces it.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from watchdog_app.agent.contain import print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.runtime import kernel_cells, run_choice
from watchdog_app.agent.runtime.kernel_cells import Cells
from watchdog_app.agent.source import edits
from watchdog_app.agent.source.program import Called
from watchdog_app.base import codec
from watchdog_app.base.errors import RescueError
from watchdog_app.base.text.plain import few_names
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.rescue.checkpoint import inventory
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.identity.notebook import program_path

KEY = "found"  # key in the meta of a rescue
_told = set[str]()  # the waiting rescues that this process has reported: once for all its loops
Source = str | Mapping[str, str]  # the text of a program, or of its files by their names
# Libraries that resume by their own function: its import and its call.
_LIBRARIES = {
    "lightning": (
        "from watchdog_app.agent.lightning import resumed",
        "trainer.fit(model, **resumed({folder}, {data}))",
    ),
    "transformers": (
        "from watchdog_app.agent.transformers import checkpoint",
        "trainer.train(resume_from_checkpoint=checkpoint({folder}))",
    ),
}


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """The record in a rescue of a loop that the agent found."""

    framework: str  # "tensorflow" or "torch", or the library that runs the loop
    directory: str  # argument of Rescue
    names: Mapping[str, str]  # keyword: expression in the program
    data: list[str]  # names of the data sets, in the order of their passes in an epoch
    where: str = ""  # file and function of the loop
    # keyword of `rescue.step`: function and expression in the program
    variables: Mapping[str, list[str]] = field(default_factory=dict)
    calls: list[Called] = field(default_factory=list)  # from the step to the outermost loop
    files: list[str] = field(
        default_factory=list
    )  # of the program, relative to its folder; empty: the program itself
    is_elsewhere: bool = False  # whether the last step was in another loop than the calls

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WaitingRescue:
    """An unfinished rescue of this program from which a run can resume."""

    path: str
    step: int
    epoch: int | None  # counted from 0
    created_unix_s: float
    found: LoopRecord | None  # None: the program named the Rescue itself
    lost: tuple[str, ...] = ()  # what a resume will not bring back
    cells: Cells | None = None  # of a notebook; None if an older version saved it
    program: str | None = None  # path of the notebook or script


def choose_folder() -> tuple[str, list[WaitingRescue]]:
    """
    The folder for the next loop, and the waiting rescues in earlier folders, newest first.

    A loop does not use a folder with a waiting rescue, because its own rescues would replace it.
    A library that resumes uses the folder that it resumes from.
    """
    if (adopted := run_choice.adopted_folder()) is not None:
        return adopted, []
    directory, known = folders.rescue_folder()
    left: list[WaitingRescue] = []
    for number in range(1, folders.MOST_PLACES):
        root = directory if number == 1 else f"{directory}-{number}"
        if not known or not run_choice.may_resume(root, True):
            break
        run = run_choice.waiting_run(root)
        waits = None if run is None else newest(run.directory, run.run)
        if waits is not None:
            left.append(waits)
    return root, sorted(left, key=lambda one: one.created_unix_s, reverse=True)


def newest(folder: str, run: str | None) -> WaitingRescue | None:
    """The newest unfinished rescue of a run whose process has ended, if it can be read."""
    waiting = (read_waiting(one) for one in reversed(inventory.rescues_in(folder))
               if one.name.run == run)  # fmt: skip
    return next(filter(None, waiting), None)


def read_waiting(one: inventory.Found) -> WaitingRescue | None:
    """The rescue in this folder, if it is unfinished and its process has ended."""
    if one.training != "unfinished" or one.condition != "complete":
        return None
    with suppress(RescueError, OSError), LoadedRescue(one.path) as loaded:
        created, meta = loaded.created_unix_s, loaded.meta
        found, cells = read_record(meta), kernel_cells.read(meta)
        lost = tuple(map(str, meta.get("not_restored", ())))
        return WaitingRescue(
            one.path, loaded.step, one.epoch, created, found, lost, cells, one.program
        )
    return None


def read_record(meta: Mapping[str, Any]) -> LoopRecord | None:
    """The record of a found loop in a rescue's meta; None if it has none or a damaged one."""
    try:
        found: LoopRecord = codec.decode(LoopRecord, meta[KEY])
    except (KeyError, ValueError):
        return None
    is_known = found.framework in ("tensorflow", "torch", *_LIBRARIES)
    names = all(map(str.isidentifier, (*found.names, *found.variables)))
    if not (is_known and names and all(not each or _is_source(each) for each in found.files)):
        return None
    own = Called(found.where.rpartition(", ")[2], "", 0, found.names)
    return found if found.calls else replace(found, calls=[own])


def resume_code(
    found: LoopRecord, source: Source, lost: Sequence[str] = (), *, epoch: int | None = 0
) -> list[str]:
    """
    The lines of code that resume from a rescue, ready to paste, and comments on what they lack.

    Args:
        found: the record in the rescue.
        source: text of the program, or of its files by their names; lines that do not follow from
            it are general ones.
        lost: what the rescue lacks.
        epoch: the epoch in the rescue, from 0; None: it has none.
    """
    folder = folders.display_path(found.directory)
    with suppress(Exception):  # of any text that a program may have
        edited = _edited(source, folder, found, lost, epoch=epoch)
        program = folders.display_path(program_path() or "")
        if (lines := edited.lines(program)) or edited.refused or "LightningCLI(" in edited.after:
            return [*lines, *(f"# {note}" for note in edited.notes)]
    data = found.data[0] if found.data else "your_data"
    if found.framework in _LIBRARIES:
        return [each.format(folder=repr(folder), data=data) for each in _LIBRARIES[found.framework]]
    shown = {**found.names, **(found.calls[-1].names if found.calls else {})}
    # The program has no name for `<the Adam>`, which a library keeps.
    is_named = not any(each.startswith("<") for each in shown.values())
    if not is_named and (why := refusal(found, source, epoch=epoch)):
        return [f"# {why}"]
    given = "".join(f", {name}={value}" for name, value in shown.items())
    return [
        f"from watchdog_app.agent.{found.framework} import Rescue",
        f"rescue = Rescue({folder!r}{given})",
        "for epoch in rescue.epochs(EPOCHS):  # instead of: for epoch in range(EPOCHS)",
        f"    for batch in rescue.data({data}):",
        "        ...  # your step; EPOCHS and batch stand for your own names",
        "        rescue.step()",
    ]


def with_lines(found: LoopRecord, source: Source) -> edits.Edited:
    """The program with the lines for a record, or nothing."""
    with suppress(Exception):  # of any text that a program may have
        return _edited(source, found.directory, found, ())
    return edits.Edited({}, ())


def refusal(found: LoopRecord, source: Source, *, epoch: int | None = 0) -> str:
    """Why no lines can resume a loop with this text; empty if some can, or if it is unknown."""
    with suppress(Exception):  # of any text that a program may have
        edited = _edited(source, found.directory, found, (), epoch=epoch)
        text = edited.after
        of_cli = "LightningCLI(" in text and "watchdog_app.agent." not in text
        is_known = text and "Rescue" not in text and (found.framework not in _LIBRARIES or of_cli)
        return "; ".join(edited.notes) if is_known and not edited.changed else ""
    return ""


def edit_program(program: str, folder: str) -> edits.Edited:
    """
    A program with the lines that resume its training from the newest rescue in a folder, if any.

    Args:
        program: path of the program.
        folder: the folder with its rescues.

    Raises:
        OSError: the program cannot be read.
        SyntaxError: a text is no Python.
        ValueError: a text is no UTF-8.
    """
    waits = _newest_waiting(folder)
    if waits is None or waits.found is None:
        return _edited({"": _read(program)}, folder, None, ())
    files = read_files(waits.found, program)
    return _edited(files, folder, waits.found, waits.lost, epoch=waits.epoch)


def read_files(
    found: LoopRecord, program: str, cells: Mapping[str, str] | None = None
) -> dict[str, str]:
    """
    The texts of the files of a saved loop, by their names.

    Args:
        found: the record in the rescue.
        program: path of the program.
        cells: the texts of the cells of a notebook, by their names.

    Raises:
        OSError: a file cannot be read.
        ValueError: a text is no UTF-8.
    """
    beside, texts = os.path.dirname(program), dict(cells or {})
    return {
        name: texts[name]
        if name in texts
        else _read(os.path.join(beside, name) if name else program)
        for name in found.files or [""]
    }


def _is_source(name: str) -> bool:
    is_file = name.endswith(".py") and not os.path.isabs(name) and "\0" not in name
    return is_file or re.fullmatch(r"Cell In\[\d+\]", name) is not None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _edited(
    files: Source,
    folder: str,
    found: LoopRecord | None,
    lost: Sequence[str],
    *,
    epoch: int | None = 0,
) -> edits.Edited:
    if found is not None and found.is_elsewhere:
        edited = edits.Edited(
            {}, (edits.ALSO_TRAINS.format("which it was saved", found.where),), refused=True
        )
    elif found is None or found.framework in _LIBRARIES:
        edited = edits.edit(files, folder)
    else:
        edited = edits.edit(
            files,
            folder,
            found.names,
            found.variables,
            found.calls,
            epoch=epoch,
            framework=found.framework,
        )
    shown = "; ".join(map(few_names, lost))
    notes = [f"a resume will not bring back: {shown}"] if lost else []
    if found is not None and not edited.changed and not edited.refused:
        notes.insert(0, f"the saved loop is in {found.where}")
    return replace(edited, notes=(*edited.notes, *notes))


def find_training(file: str) -> tuple[str, str]:
    """
    The program that a file belongs to, and the folder with its newest rescue.

    Args:
        file: a program, run with any arguments, or a file of its loop.
    """
    beside, name = os.path.split(os.path.abspath(file))
    usual, path = os.path.join(beside, "rescues", name), os.path.realpath(file)
    own = re.compile(re.escape(usual) + r"(-[0-9a-f]{8})?(-\d+)?")  # also of a moved program
    found, newest_unix_s = (file, usual), 0.0
    for root in dict.fromkeys((os.path.dirname(usual), os.path.abspath("rescues"))):
        for folder in glob.glob(os.path.join(glob.escape(root), "*")):
            waits = _newest_waiting(folder)
            if waits is None or waits.created_unix_s < newest_unix_s:
                continue
            main = waits.program or os.devnull
            of_loop = () if waits.found is None else waits.found.files
            files = [os.path.join(os.path.dirname(main), each) for each in of_loop]
            if path in map(os.path.realpath, files):
                found, newest_unix_s = (os.path.relpath(main), folder), waits.created_unix_s
            elif path == os.path.realpath(main) or own.fullmatch(folder):
                found, newest_unix_s = (file, folder), waits.created_unix_s
    return found[0], folders.display_path(found[1])


def _newest_waiting(folder: str) -> WaitingRescue | None:
    """The newest waiting rescue in a folder: of a loop, else of a fit."""
    waiting = list(filter(None, map(read_waiting, reversed(inventory.rescues_in(folder)))))
    return next((one for one in waiting if one.found is not None), next(iter(waiting), None))


def report_waiting(rescues: Sequence[WaitingRescue], directory: str, source: Source = "") -> None:
    """
    Print which rescue waits and the lines that resume from it; this run has started over.

    Args:
        rescues: all waiting rescues, newest first; the lines are those of the first one.
        directory: folder for the rescues of this run.
        source: text of the file that holds the loop, or of several files by their names.
    """
    waiting, found, lines = rescues[0], rescues[0].found, list[str]()
    if not folders.is_resume_enabled() or waiting.path in _told:
        return
    _told.add(waiting.path)
    if found is None:
        then = "It was saved by a Rescue(...) in the program: resume from it with the same one."
    else:
        lines = resume_code(found, source, waiting.lost, epoch=waiting.epoch)
        then = "To resume from it, stop this run and write:"
        if all(each.startswith("#") for each in lines):
            then = "No lines resume the program as it is:"
    print_message(
        f"{describe_waiting(waiting)} waits in {folders.display_path(waiting.path)}. This run has "
        "started over and leaves it alone; its own rescues go to "
        f"{folders.display_path(directory)}. {then}"
    )
    print_code(lines)
    furthest = max(rescues, key=lambda one: one.step)
    if furthest.step > waiting.step:
        progress = format_progress(furthest.step, furthest.epoch)
        where = folders.display_path(os.path.dirname(furthest.path))
        print_message(f"Another unfinished rescue ({progress}) is in {where}.")


def describe_waiting(waiting: WaitingRescue) -> str:
    """`a rescue of step 1200, epoch 4, saved 3 min ago`."""
    ago = format_duration(max(0.0, time.time() - waiting.created_unix_s))
    return f"a rescue of {format_progress(waiting.step, waiting.epoch)}, saved {ago} ago,"


def format_progress(step: int, epoch: int | None) -> str:
    """
    `step 1200, epoch 4`.

    Args:
        step: number of complete steps.
        epoch: counted from 0; None: unknown, so the text has no epoch.
    """
    return f"step {step}" if epoch is None else f"step {step}, epoch {epoch + 1}"


def print_code(lines: Sequence[str]) -> None:
    """Print the lines to stderr, with only spaces before them, so that the user can copy them."""
    shown = ("".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in lines)
    text = "".join(f"    {line}\n" for line in shown)
    with suppress(Exception):  # stderr may be closed, replaced or None
        sys.stderr.write(text)
        sys.stderr.flush()
