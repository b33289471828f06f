"""
The program of this process, and which of its trainings begins: the key for a resume.

A program is a script, module, notebook or command with its arguments. Its trainings differ by
`name=`, or by three properties. These are the function that begins the training, the plain values
passed to it (`call_site`), and how often it has begun one with them. In a notebook the text of the
cell counts too. `arguments` defines how arguments and values are compared.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import re
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

from watchdog_app.rescue.identity import arguments, cells, notebook
from watchdog_app.rescue.identity.arguments import Arguments
from watchdog_app.rescue.identity.call_site import CallSite

# Interpreter options that take the next word as their value (python(1)).
_WITH_VALUE = frozenset("WX")
_RANKS = (
    *("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"),
    *("HOROVOD_RANK", "SLURM_PROCID", "LOCAL_RANK"),
)
_WORLD_SIZES = (
    *("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    *("HOROVOD_SIZE", "SLURM_NTASKS"),
)
_NUMBER = re.compile("[0-9]{1,9}")
_TASKS = (
    *("SLURM_ARRAY_TASK_ID", "SGE_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "LSB_JOBINDEX"),
    *("JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX", "CLOUD_RUN_TASK_INDEX"),
)
_NO_TASK = ("", "undefined")  # SGE sets "undefined" for a job that is not an array
_SIMPLE = (bool, int, float, str, bytes, type(None))
_TRANSPARENT = frozenset(("multiprocessing", "threading", "_thread", "queue", "_multiprocessing"))
SALT_BYTES = arguments.SALT_BYTES
# Stored among the arguments.
_CELL, _COMMAND, _PROCESS, _THREAD = "cell", "command", "process", "thread"
_LABELS = {
    _CELL: "the text of the cell",
    _COMMAND: "the text of the command",
    _PROCESS: "the arguments of the process",
    _THREAD: "the arguments of the thread",
}


@dataclass(frozen=True, slots=True)
class Program:
    """The program of this process."""

    kind: str  # "script", "module", "notebook", "command", "prompt"
    path: str | None  # real path of script, module or notebook
    arguments: Arguments
    pooled: bool  # a worker that gets one task after another from a pool, in unknown order

    @property
    def shown(self) -> str:
        """The program's name in messages."""
        return _program_label(self.kind, self.path)


@dataclass(frozen=True, slots=True)
class Training:
    """One training of a program."""

    name: str | None  # as given by the user
    site: CallSite | None  # where it begins; None: the agent found it while it ran
    # number of trainings that this call site, or this name, has begun, including this one
    turn: int
    place: int  # the same count for the whole process
    rank: str = "0"
    task: str | None = None  # of a job array


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Why a saved training is not this one, as a phrase."""

    text: str
    same_program: bool = False  # it is another training of this program
    is_later: bool = False  # one that the program begins after this one


def program(*, skip_cells: bool = False) -> Program:
    """
    This process's current program. Never raises.

    Args:
        skip_cells: omit the text of cells, which takes time per cell.
    """
    shell = notebook.ipython_shell()
    if shell is not None and not _runs_script(shell):
        path = notebook.notebook_path()
        found = Arguments({}, {}, {}) if skip_cells else _read_cells(shell, whole=path is None)
        kind = "prompt" if path is None else "notebook"
        return Program(kind, None if path is None else os.path.realpath(path), found, pooled=False)
    if shell is None:
        kind, path, tokens = _read_started_program()
    else:
        kind, path, tokens = "script", os.path.realpath(sys.argv[0]), sys.argv[1:]
    found = arguments.parse([each for each in tokens if each is not None])
    others = dict(found.others)
    if kind == "command":
        began, text, _ = _command_line(list(getattr(sys, "orig_argv", ())))
        others[_COMMAND] = cells.normalise(text if began == "command" else "")
    elif kind == "prompt":
        others[_COMMAND] = _read_stdin_program()
    process, pooled = _process_key()
    if process is not None:
        others[_PROCESS] = process
    thread, alike = thread_key()
    if thread is not None:
        others[_THREAD] = thread
    pooled = pooled or alike
    shown = {name: name for name in (_COMMAND, _PROCESS, _THREAD) if name in others}
    written = {**found.written, **shown}
    return Program(kind, path, Arguments(found.clear, others, written, found.paths), pooled)


def started_program(argv: Sequence[str], cwd: str, script: str | None) -> Program:
    """
    The program of another process; its path is None if its file is not known.

    Args:
        argv: command line of the process.
        cwd: its current folder.
        script: path of its script; None: it may be a module in `cwd`.
    """
    kind, given, tokens = _command_line(list(argv))
    base = os.path.join(cwd, *given.split(".")) if kind == "module" else ""
    paths = [each for each in (script, f"{base}.py", f"{base}/__main__.py") if each]
    path = next((os.path.realpath(each) for each in paths if os.path.isfile(each)), None)
    return Program(kind, path, arguments.parse(tokens), pooled=False)


def cell_checksum() -> int | None:
    """
    A number for the training cell of this notebook and the constants that its cells set.

    None outside notebooks. It has 32 bits: enough to recognize the cell, too few to guess a secret.
    """
    found = program()
    in_notebook = found.kind in ("notebook", "prompt")
    return int(digest(found, b"cell")[:8], 16) if in_notebook else None


def cell_text(program: Program) -> str | None:
    """The normalised text of the cell that trains; None outside notebooks."""
    return program.arguments.others.get(_CELL)


def started_cell(path: str | None, cell: int | None) -> Program:
    """The program of a training cell: path of its notebook, checksum of the cell's source."""
    found = Arguments({}, {_CELL: str(cell)}, {})
    return Program(
        "notebook", None if path is None else os.path.realpath(path), found, pooled=False
    )


def digest(program: Program, secret: bytes, *more: str) -> str:
    """Keyed hash of a program, all its arguments and `more`; tells nothing without the secret."""
    options = sorted((*program.arguments.clear.items(), *program.arguments.others.items()))
    text = repr((program.kind, program.path, options, more)).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, key=secret, digest_size=16).hexdigest()


def training(
    name: str | None,
    site: CallSite | None,
    turn: int,
    place: int,
    env: Mapping[str, str] = os.environ,
) -> Training:
    """The training that begins now; launchers set the variables for rank and task."""
    rank = _first_set(_RANKS, env) or "0"
    task = next((env[each] for each in _TASKS if env.get(each, "") not in _NO_TASK), None)
    return Training(name, site, turn, place, rank, task)


def rank_and_world_size(env: Mapping[str, str] = os.environ) -> tuple[int | None, int | None]:
    """Rank and number of the processes that a launcher started. None: the launcher set none."""
    found = (_first_set(names, env) or "" for names in (_RANKS, _WORLD_SIZES))
    rank, world_size = (int(each) if _NUMBER.fullmatch(each) else None for each in found)
    return rank, world_size


def _first_set(names: Sequence[str], env: Mapping[str, str]) -> str | None:
    return next((env[each] for each in names if env.get(each)), None)


def record(program: Program, training: Training, salt: bytes) -> dict[str, Any]:
    """Program and training as JSON values, for a rescue; without values that may be secrets."""
    return {
        "kind": program.kind,
        "path": program.path,
        "arguments": arguments.record(program.arguments, salt),
        "name": training.name,
        "site": None if training.site is None else training.site.function,
        "given": arguments.record(_call_arguments(training), salt),
        "turn": training.turn,
        "place": training.place,
        "functions": _defined_functions(),
        "rank": training.rank,
        "task": training.task,
    }


def mismatch_reason(
    saved: Mapping[str, Any], program: Program, training: Training | None
) -> Mismatch | None:
    """
    Why the saved training is not this one; None: it is this one.

    Args:
        saved: the result of `record`, from an untrusted file.
        program: of this process.
        training: that begins now; None: any training of this program.
    """
    try:
        reason = _other_program_reason(saved, program)
        if reason is not None:
            return Mismatch(reason)
        return None if training is None else _other_training(saved, program, training)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return Mismatch("is of a program that cannot be read from it")


def relocate(saved: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """The key of a saved run with the current path of its program."""
    told = {
        name: {**saved[name], "paths": {}}
        for name in ("arguments", "given")
        if isinstance(saved.get(name), dict)
    }
    return {**saved, **told, "path": program.path}


def describe_changes(saved: Mapping[str, Any], program: Program) -> list[str]:
    """Sentences about benign options that differ from the saved run. Never raises."""
    try:
        found = arguments.changed_options(saved["arguments"], program.arguments)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [f"started with {', '.join(found)}."] if found else []


def describe_program(saved: Mapping[str, Any]) -> str | None:
    """The program of a saved run with its plain options: `train.py --epochs 20`."""
    try:
        clear = saved["arguments"]["clear"].items()
        options = [arguments.option_text(str(name), str(value)) for name, value in clear]
        hidden = [
            f"{arguments.option_text(str(name))} ..." for name in saved["arguments"]["hashed"]
        ]
        shown = _program_label(str(saved["kind"]), saved["path"])
        return " ".join((shown, *options, *(each for each in hidden if each.startswith("-"))))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _other_program_reason(saved: Mapping[str, Any], program: Program) -> str | None:
    kind, path = saved["kind"], saved["path"]
    same_kind = kind == program.kind or {kind, program.kind} == {"script", "module"}
    if not same_kind or path != program.path:
        before, now = _program_label(kind, path), program.shown
        if before == now and path != program.path:
            before, now = str(path), str(program.path)
        return f"is of {before}, and this is {now}"
    notebooks = program.kind in ("notebook", "prompt")
    differing = arguments.differing_options(saved["arguments"], program.arguments, common=notebooks)
    if _CELL in differing:
        return f"is of another cell of {program.shown}, or of this cell before an edit"
    if differing:
        return f"is of {program.shown} with another value of {_join_names(differing)}"
    return None


def _other_training(
    saved: Mapping[str, Any], program: Program, training: Training
) -> Mismatch | None:
    if saved["rank"] != training.rank or saved["task"] != training.task:
        return Mismatch(f"is of another worker or task of {program.shown}")
    another = f"belongs to another training of {program.shown}"
    if saved["name"] != training.name:
        return Mismatch(another, same_program=True)
    begun = training.site
    if training.name is not None:
        same = saved["turn"] == training.turn
    elif begun is None or saved["site"] is None:
        same = saved["place"] == training.place
    else:
        renamed = _is_renamed(saved, begun.function) and saved["place"] == training.place
        same = saved["turn"] == training.turn and (renamed or saved["site"] == begun.function)
        other = same and arguments.differing_options(saved["given"], _call_arguments(training))
        if other:
            text = f"{another} (another value of {_join_names(other)})"
            return Mismatch(text, same_program=True)
    if same:
        return None
    if training.place < saved["place"]:
        later = f"is of a later training of {program.shown}"
        return Mismatch(later, same_program=True, is_later=True)
    return Mismatch(another, same_program=True)


def _is_renamed(saved: Mapping[str, Any], now: str) -> bool:
    """Whether the function that began a training no longer exists, and this one is new."""
    before, functions = saved["site"], saved.get("functions")
    if not isinstance(functions, list) or " < " in before or " < " in now:
        return False
    module, _, old = before.partition(".")
    own, _, new = now.partition(".")
    old, new = (each.partition(".")[0].partition("#")[0] for each in (old, new))
    there = _defined_functions()
    gone, is_new = old in functions and old not in there, new in there and new not in functions
    return module == own == "__main__" and gone and is_new


def _defined_functions() -> list[str]:
    """The names of the program's functions and classes that are defined by now."""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    return sorted(
        name
        for name, value in list(main.items())
        if isinstance(value, FunctionType | type)
        and getattr(value, "__module__", None) == "__main__"
    )


def _join_names(differing: list[str]) -> str:
    listed = ", ".join(_LABELS.get(each, each) for each in differing[:4])
    return f"{listed} and {len(differing) - 4} more" if len(differing) > 4 else listed


def _call_arguments(training: Training) -> Arguments:
    """
    The plain values passed to the training; empty if it has a name, which identifies it alone.
    """
    if training.site is None or training.name is not None:
        return Arguments({}, {}, {})
    return arguments.parse_values(training.site.given)


def _program_label(kind: str, path: object) -> str:
    if isinstance(path, str):
        return os.path.basename(path)
    return {"command": "python -c", "prompt": "a prompt"}.get(kind, str(kind))


def _read_started_program() -> tuple[str, str | None, Sequence[str]]:
    """Kind, real path and arguments with which the process was started."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    named = isinstance(file, str) and not file.startswith("<")  # a pipe gives <stdin>
    path = os.path.realpath(str(file)) if named else None
    spec = getattr(getattr(main, "__spec__", None), "name", None)
    kind, given, tokens = _command_line(list(getattr(sys, "orig_argv", ())))
    module = isinstance(spec, str)
    # A debugger, a launcher or a fork may have replaced the first program.
    if path is None:
        return (kind if kind == "command" else "prompt"), None, tokens
    if kind == "module" and module:
        if given in (spec, str(spec).removesuffix(".__main__")):
            return "module", path, tokens
    elif kind == "script" and os.path.basename(given) == os.path.basename(str(file)):
        return "script", path, tokens
    argv = getattr(sys, "argv", None)
    words = argv[1:] if isinstance(argv, list) else []
    return ("module" if module else "script"), path, [str(each) for each in words]


def _command_line(words: list[str]) -> tuple[str, str, list[str]]:
    """Kind, its value, and the remaining arguments of an interpreter's command line."""
    place = 1
    while place < len(words):
        word = words[place]
        place += 1
        if word == "-" or not word.startswith("-"):
            return ("prompt" if word == "-" else "script"), word, words[place:]
        if word.startswith("--"):
            place += word == "--check-hash-based-pycs"
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter in "cm":
                value = word[at:]
                if not value and place < len(words):
                    value = words[place]
                    place += 1
                return ("command" if letter == "c" else "module"), value, words[place:]
            if letter in _WITH_VALUE:
                place += not word[at:]
                break
    return "prompt", "", []


def _runs_script(shell: Any) -> bool:
    """Whether IPython was started for a script, and no cell has run in it."""
    try:
        cells = "_i1" in shell.user_ns or int(shell.execution_count) > 1
    except Exception:  # a custom shell may lack these attributes
        return False
    argv = list(getattr(sys, "argv", None) or ())
    if cells or not argv or getattr(shell, "kernel", None) is not None:
        return False
    return str(argv[0]).endswith((".py", ".ipy")) and os.path.isfile(str(argv[0]))


def _read_stdin_program() -> str:
    """The text of a program read from a pipe; at a prompt a text that no other session has."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    if hasattr(sys, "ps1") or frame is None or sys.flags.interactive:
        return secrets.token_hex(16)
    return marshal.dumps(frame.f_code).hex()


def _process_key() -> tuple[str | None, bool]:
    """What a multiprocessing process was given to do; whether it takes tasks from a pool."""
    module = sys.modules.get("multiprocessing.process")
    process = module.current_process() if module is not None else None
    if process is None or getattr(process, "name", "MainProcess") == "MainProcess":
        return None, False
    target = getattr(process, "_target", None)
    of = str(getattr(target, "__module__", ""))
    if of.startswith(("multiprocessing.pool", "concurrent.futures", "joblib", "billiard")):
        return "", True
    if "Pool" in process.name or "Loky" in process.name:
        return "", True
    given = [target, getattr(process, "_args", ()), getattr(process, "_kwargs", {})]
    own = {name: value for name, value in vars(process).items() if not name.startswith("_")}
    try:
        return f"{type(process).__qualname__} {_to_comparable((given, own))!r}", False
    except TypeError:  # nothing distinguishes it from its siblings: only `name=` allows a resume
        return "", True


def thread_key() -> tuple[str | None, bool]:
    """
    What this thread of the program was given to do, and whether it is unknown. Never raises.

    None in the main thread.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return None, False
    given = [getattr(thread, f"_{name}", None) for name in ("target", "args", "kwargs")]
    try:
        return repr(_to_comparable(given)), False
    except TypeError:  # a pool thread, or arguments that look the same
        return type(thread).__qualname__, True


def _to_comparable(value: Any, depth: int = 0) -> Any:
    """
    The parts of `value` that are the same in another run.

    Raises:
        TypeError: it contains something that cannot be compared.
    """
    if isinstance(value, str):
        return arguments.strip_temporary_path(value)
    if isinstance(value, _SIMPLE):
        return value
    kind = type(value)
    if depth < 6 and isinstance(value, dict):
        return {str(key): _to_comparable(item, depth + 1) for key, item in value.items()}
    if depth < 6 and isinstance(value, list | tuple):
        return [_to_comparable(item, depth + 1) for item in value]
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return f"{value.__module__}.{value.__qualname__}"
    if kind.__module__.partition(".")[0] in _TRANSPARENT:
        return kind.__qualname__  # queues, locks, pipes: they contain no settings
    if depth < 6 and hasattr(kind, "__dataclass_fields__"):
        return [kind.__qualname__, _to_comparable(dict(vars(value)), depth + 1)]
    raise TypeError(kind.__qualname__)


def _read_cells(shell: Any, *, whole: bool) -> Arguments:
    """
    Arguments of a notebook: the cell that trains, and the constants that its cells set.

    Args:
        shell: IPython's.
        whole: use all cells as the program, because the notebook is unknown.
    """
    try:
        running = notebook.running_cell_number(shell)
        inputs = [shell.user_ns.get(f"_i{number}") for number in range(1, running + 1)]
        texts = [_to_python(shell, each) if isinstance(each, str) else "" for each in inputs]
    except Exception:  # a custom shell may lack these attributes
        return Arguments({}, {}, {})
    # The last value counts.
    values = dict(pair for text in texts for pair in cells.constants(text))
    found = arguments.parse_values(values.items())
    text = "\0".join(map(cells.normalise, texts if whole else texts[-1:]))
    others = {**found.others, _CELL: text}
    return Arguments(found.clear, others, {**found.written, _CELL: _CELL}, found.paths)


def _to_python(shell: Any, text: str) -> str:
    try:
        return str(shell.transform_cell(text))
    except Exception:  # not Python, such as a cell of HTML
        return text
