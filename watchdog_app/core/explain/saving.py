"""How the trainings without an agent can be saved the next time. Pure."""

from __future__ import annotations

import os

from watchdog_app.base.text.terminal import Table, counted, plain, shorten, width, wrap
from watchdog_app.core.explain.selection import RUN_CELLS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from watchdog_app.core.model.status import Task

MAGIC = "%load_ext watchdog_app.agent"
_JAX_NOTE = "On JAX this saves Keras fits only: nothing saves a loop in plain JAX yet."
_MOST_TASKS = 4
_NAME_COLUMNS = 30


def typed_path(path: str) -> str:
    """Return a path as a person types it in a shell: `~/venvs/tf`."""
    import shlex

    home = os.path.join(os.path.expanduser("~"), "")
    if path.startswith(home):
        return "~/" + shlex.quote(plain(path.removeprefix(home)))
    return shlex.quote(plain(path))


def unsaved_trainings(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that seem to train and cannot be saved."""
    return [task for task in tasks if task.can_save is False]


def unsaved_sentence(tasks: Sequence[Task]) -> str:
    """
    Return `2 possible trainings cannot be saved`; empty if all can.

    Args:
        tasks: tasks of a status.
    """
    number = len(unsaved_trainings(tasks))
    return f"{counted(number, 'possible training')} cannot be saved" if number else ""


def enable_command(python: str | None) -> str:
    """
    Return the command that turns saving on for all new kernels of an environment.

    Args:
        python: folder of the environment; None: the command asks which.
    """
    return "watchdog agent enable" + (f" --python {typed_path(python)}" if python else "")


def next_start_command(
    kind: str | None,
    name: str | None,
    python: str | None,
    type_program: Callable[[str], str] = typed_path,
) -> str:
    """
    Return the command after which a training can be saved from its next start on.

    Args:
        kind: kind of the task.
        name: name of the task; untrusted.
        python: folder of its environment; None: unknown.
        type_program: how a program is typed in the reader's shell: by its name or its path. If the
            shell is not known, by its path.
    """
    import shlex  # `watchdog status` needs it for unsaved trainings only

    if kind in RUN_CELLS:
        return enable_command(python).replace("watchdog", type_program("watchdog"), 1)
    interpreter = "python"
    if python is not None and type_program(os.path.join(python, "bin", "python")) != "python":
        interpreter = type_program(os.path.join(python, "bin", "python3"))
    module = "-m " if kind == "module" else ""
    script = shlex.quote(plain(name or "train.py"))
    return f"{type_program('watchdog')} exec -- {interpreter} {module}{script}"


def saving_notes(framework: str | None) -> list[str]:
    """Return what the command of `next_start_command` cannot save, as far as known."""
    return [_JAX_NOTE] if framework == "jax" else []


def saving_paragraph(
    tasks: Sequence[Task],
    columns: int | None,
    has_agent: Callable[[str], bool],
    type_program: Callable[[str], str] = typed_path,
) -> list[str]:
    """
    Return the lines of `watchdog status` on trainings that cannot be saved; empty if all can.

    Args:
        tasks: the tasks to name.
        columns: width of the terminal; None: unlimited.
        has_agent: whether watchdog can be imported in the environment in this folder.
        type_program: how a program is typed in the reader's shell.
    """
    found = [task for task in unsaved_trainings(tasks) if task.agent is None]
    if not found:
        return []
    these, they = ("it", "it trains") if len(found) == 1 else (f"these {len(found)}", "they train")
    names: dict[tuple[tuple[str, str], ...], list[str]] = {}  # by what to do: when and command
    for task in found[:_MOST_TASKS]:
        ways = tuple(_ways(task, has_agent, type_program))
        names.setdefault(ways, []).append(plain(task.name or "?"))
    rows = [
        ["" if number else shorten(", ".join(those), _NAME_COLUMNS), *way]
        for ways, those in names.items()
        for number, way in enumerate(ways)
    ]
    text = f"If memory runs out, {these} can be paused but not saved. If {they}, change that:"
    more = len(found) - _MOST_TASKS
    notes = {note: None for task in found for note in saving_notes(task.framework)}
    return [
        *wrap(text, columns),
        *_fit_rows(rows, columns),
        *([f"  and {more} more"] if more > 0 else []),
        *(line for note in notes for line in wrap(note, columns)),
        *wrap("Do not show this again: watchdog config set hints.saving false", columns),
    ]


def _ways(
    task: Task, has_agent: Callable[[str], bool], type_program: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Yield when to do what."""
    command = next_start_command(task.kind, task.name, task.python, type_program)
    if task.kind not in RUN_CELLS:
        yield "at its next start:", command
    elif task.python is not None and has_agent(task.python):
        yield "before its next fit, in a cell:", MAGIC
        yield "or every kernel, from its next start:", command
    else:
        yield "every kernel, from its next start:", command


def _fit_rows(rows: list[list[str]], columns: int | None) -> list[str]:
    """Return the rows as a table, or on a narrow terminal each command on a line of its own."""
    lines = [f"  {line}" for line in Table(rows, set(), gives_way=0, gap=2).lines(None)]
    if columns is None or all(width(line) <= columns for line in lines):
        return lines
    lines = []
    for name, when, command in rows:
        lines += wrap(f"{name}, {when}" if name else when, columns, first="  ")
        lines += wrap(command, columns, first="    ")
    return lines
