"""
Identify what a Python process runs from its command line. Pure: arguments in, values out.

The grammar is that of python(1), "Command line and environment". The tables list programs whose own
name tells the user nothing about the task.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import shortened
from watchdog_app.core.model.machine import TaskKind

# Interpreter options that take the next argument if no value follows in the same word.
_WITH_VALUE = "WX"
_INTERPRETER = re.compile(r"\.?(python|pypy|graalpy)", re.IGNORECASE)

_OWN_PACKAGE = "watchdog_app"
# Watchdog's files that are started by path. A guard's supervisor starts this way because a search
# for packages would take time; the doctor's probe because other interpreters run it.
_OWN_SCRIPTS = tuple(
    f"{_OWN_PACKAGE}/{each}" for each in ("__main__.py", "guard/process.py", "doctor/probe.py")
)
_CONNECTION = re.compile(r"--?f|--(?:[A-Za-z]+\.)?connection[-_]file")
_KERNEL_FILE = re.compile(r"kernel-.+\.json")
_LONGEST_FILE_NAME = 255
LONGEST_PATH = 4096  # PATH_MAX
# One more character than a path can have, so that a truncated word is never a valid path.
_LONGEST_WORD = LONGEST_PATH + 1
_MAX_CHARS = 4 * LONGEST_PATH  # of all words together

# Python programs that run the user's script. Their name tells the user nothing: the user waits for
# the script.
LAUNCHERS = {
    "accelerate", "coverage", "cprofile", "debugpy", "deepspeed", "horovodrun", "ipdb",
    "ipython", "ipython3", "kernprof", "launcher", "memory_profiler", "memray", "mprof", "pdb",
    "profile", "pudb", "pydevd", "pyinstrument", "runpy", "scalene", "streamlit",
    "torch.distributed.launch", "torch.distributed.run", "torchrun", "trace", "viztracer",
}  # fmt: skip
# Processes that these programs start are tasks of their own: Jupyter servers, supervisors,
# terminals, desktops.
SERVERS = {
    "circusd", "guake", "honcho", "jupyter-enterprisegateway", "jupyter-kernel",
    "jupyter-kernelgateway", "jupyter-lab", "jupyter-labhub", "jupyter-nbclassic",
    "jupyter-notebook", "jupyter-server", "jupyter-voila", "jupyter_client.kernelapp",
    "jupyter_server", "jupyterhub", "jupyterhub-singleuser", "jupyterhub.singleuser",
    "jupyterlab", "kernel_gateway", "nbclassic", "notebook", "qtile", "spyder", "supervisord",
    "terminator", "voila", "xonsh",
}  # fmt: skip
# Programs with a prompt at which a user types.
CONSOLES = {
    "bpython", "jupyter-console", "jupyter-qtconsole", "jupyter_console", "ptipython",
    "ptpython", "pydevconsole", "qtconsole",
}  # fmt: skip
# The only known programs whose names end in .py: a user may well call a script trace.py or
# notebook.py.
KNOWN_FILES = frozenset(("pydevd.py", "pydevconsole.py"))


@dataclass(frozen=True, slots=True)
class Program:
    """What a command line says: enough to name the process before anything else is read."""

    kind: TaskKind
    name: str
    script: str | None = None  # as on the command line: may be relative to the working directory
    notebook: str | None = None  # as on the command line: may be relative to the working directory
    connection_file: str | None = None  # of a kernel, as on the command line
    own: bool = False  # a process of watchdog itself, which is never a task


@dataclass(frozen=True, slots=True)
class _Target:
    """What the interpreter was asked to run, and the arguments that follow."""

    how: str  # "script", "module", "code", "stdin", "nothing", "title"
    what: str
    rest: tuple[str, ...] = ()


def truncate_argv(argv: Iterable[str]) -> tuple[str, ...]:
    """
    Truncate a command line to the part that identifies a program.

    A process may overwrite its own command line with any text, and watchdog keeps it for the life
    of the process.
    """
    words: list[str] = []
    left = _MAX_CHARS
    for word in argv:
        part = word[:_LONGEST_WORD]
        left -= len(part) + 1
        if left < 0:
            break
        words.append(part)
    return tuple(words)


def is_interpreter(path: str) -> bool:
    """Return whether a path is a Python interpreter, by its file name: python3.11, pypy3, ..."""
    return _INTERPRETER.match(os.path.basename(path)) is not None


def _parse_target(argv: Sequence[str]) -> _Target:
    """Find what an interpreter with these arguments runs."""
    if len(argv) == 1 and not is_interpreter(argv[0]):
        return _Target("title", argv[0])  # setproctitle writes one string over all arguments
    index = 1
    while index < len(argv):
        argument = argv[index]
        index += 1
        if argument == "-":
            return _Target("stdin", "-", tuple(argv[index:]))
        if not argument.startswith("-"):
            return _Target("script", argument, tuple(argv[index:]))
        if argument.startswith("--"):
            index += argument == "--check-hash-based-pycs"
            continue
        for place, letter in enumerate(argument[1:], start=2):
            value = argument[place:]
            if letter in "cm":
                if not value:
                    value = argv[index] if index < len(argv) else ""
                    index += 1
                how = "module" if letter == "m" else "code"
                return _Target(how, value, tuple(argv[index:]))
            if letter in _WITH_VALUE:
                index += not value
                break
    return _Target("nothing", "")


def _find_connection_file(argv: Sequence[str]) -> str | None:
    """Return the value of the last connection file option, in any spelling; None: not given."""
    found = None
    for index, argument in enumerate(argv):
        option, equals, value = argument.partition("=")
        if _CONNECTION.fullmatch(option):
            if equals:
                found = value
            elif index + 1 < len(argv):
                found = argv[index + 1]
        elif argument.startswith("-f") and argument.endswith(".json"):
            found = argument[2:]
    return found


def kernel_id(connection_file: str) -> str | None:
    """Extract Jupyter's kernel id from the name of a connection file; None: the name has no id."""
    name = os.path.basename(connection_file)
    # A longer name cannot be a file name.
    fits = len(name) <= _LONGEST_FILE_NAME and _KERNEL_FILE.fullmatch(name)
    return name[7:-5] if fits else None


def is_spyder_kernel(argv: Sequence[str]) -> bool:
    """Return whether a command line starts the kernel behind one of Spyder's consoles."""
    return _parse_target(argv).what.startswith("spyder_kernels")


def identify(argv: Sequence[str], exe: str | None = None) -> Program:
    """
    Identify what a Python process runs.

    Args:
        argv: its command line; empty when it cannot be read.
        exe: its executable.
    """
    program = _identify_program(argv, exe)
    return replace(program, name=shortened(program.name))


def _identify_program(argv: Sequence[str], exe: str | None) -> Program:
    if not argv:
        return Program(TaskKind.PYTHON, os.path.basename(exe or "python"))
    target = _parse_target(argv)
    base = os.path.basename(target.what.rstrip("/"))
    program = _own_program(target, base) or _kernel_program(argv, target, base)
    if program is not None:
        return program
    match target.how:
        case "script":
            return _script_program(target, base)
        case "module":
            return _module_program(target)
        case "code":
            return Program(TaskKind.PYTHON, _code_name(target.what))
        case "title":
            return Program(TaskKind.PYTHON, target.what)
        case "stdin":
            return Program(TaskKind.PYTHON, "python -")
    return Program(TaskKind.PYTHON, "python")


def _own_program(target: _Target, base: str) -> Program | None:
    package, _, inner = target.what.partition(".")
    if target.how == "module" and package == _OWN_PACKAGE:
        # Treat the demo's training like any other training.
        own = not inner.startswith("demo.")
        return Program(TaskKind.MODULE, target.what, own=True) if own else None
    if target.how == "script":
        # Match the installed command only, not a user's script of the same name.
        folder = os.path.basename(os.path.dirname(target.what))
        installed = base == "watchdog" and folder in ("bin", "Scripts")
        if installed or base == _OWN_PACKAGE or target.what.endswith(_OWN_SCRIPTS):
            return Program(TaskKind.SCRIPT, "watchdog", script=target.what, own=True)
    return None


def _kernel_program(argv: Sequence[str], target: _Target, base: str) -> Program | None:
    connection = _find_connection_file(argv)
    # Many programs have an option -f. So require "kernel" in the name of the program, or a file
    # name of the form kernel-ID.json.
    named_kernel = target.how in ("script", "module") and "kernel" in target.what.lower()
    if connection is not None and (named_kernel or kernel_id(connection)):
        return Program(TaskKind.KERNEL, "kernel", connection_file=connection)
    subcommand = target.rest[0] if target.rest else ""
    if base in ("ipython", "ipython3", "IPython") and subcommand == "kernel":
        return Program(TaskKind.KERNEL, "kernel")
    if target.how == "module" and target.what in ("ipykernel_launcher", "ipykernel"):
        return Program(TaskKind.KERNEL, "kernel")
    return None


def _script_program(target: _Target, base: str) -> Program:
    if base == "__main__.py":
        base = "/".join(target.what.split("/")[-2:])  # the folder says more than __main__.py
    if not base.endswith(".py") or base in KNOWN_FILES:
        program = _known_program(base.removesuffix(".py"), target.rest)
        if program is not None:
            return program
    return Program(TaskKind.SCRIPT, base or target.what, script=target.what)


def _module_program(target: _Target) -> Program:
    program = _known_program(target.what, target.rest)
    return program or Program(TaskKind.MODULE, target.what or "python -m")


def _known_program(name: str, rest: Sequence[str]) -> Program | None:
    """Find a program in the tables of known names, whether started as a script or a module."""
    word = name.lower()
    subcommand = next((part for part in rest if not part.startswith("-")), "")
    if word == "jupyter" and subcommand:
        word = f"jupyter-{subcommand}"
    if word in SERVERS:
        return Program(TaskKind.SERVER, word)
    if word in CONSOLES:
        return Program(TaskKind.CONSOLE, word)
    if word == "marimo":
        book = next((part for part in rest if part.endswith((".py", ".md"))), None)
        if book is not None:
            return Program(TaskKind.NOTEBOOK, os.path.basename(book), notebook=book)
        return Program(TaskKind.SERVER, "marimo")
    if word in LAUNCHERS:
        script = next((part for part in rest if part.endswith(".py")), None)
        if script is not None:
            return Program(TaskKind.SCRIPT, os.path.basename(script), script=script)
        if word in ("ipython", "ipython3"):
            return Program(TaskKind.CONSOLE, "ipython")
    return None


def _code_name(code: str) -> str:
    """Shorten the code of `python -c` to a few words; name workers of multiprocessing by role."""
    for mark, name in (
        ("multiprocessing.spawn import", "multiprocessing worker"),
        ("multiprocessing.forkserver import", "multiprocessing fork server"),
        ("multiprocessing.resource_tracker import", "multiprocessing resource tracker"),
        ("multiprocessing.semaphore_tracker import", "multiprocessing semaphore tracker"),
    ):
        if mark in code:
            return name
    words = " ".join(code.split())
    return f"python -c {words[:39]}…" if len(words) > 40 else f"python -c {words}"
