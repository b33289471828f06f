"""
Turn the agent on or off for the future kernels of a Python environment. It saves trainings whose
code names no Rescue when memory runs out: Keras fits, TensorFlow and PyTorch loops. After a
kernel has died, watchdog.resume() continues the notebook. enable places one IPython startup
file in the environment; disable removes it. enable without options lists the environments and
asks; without a terminal, name one with --python or --kernel.

status shows in which environments the agent is on, with their kernels. What it saves now is in
`watchdog status`.

lines prints the change to a program with which its training resumes, as a diff for patch. It reads
the text of the program and its newest rescue, and runs nothing.

For one notebook: %load_ext watchdog_app.agent. For one script: watchdog exec.

examples:
  watchdog agent status
  watchdog agent enable
  watchdog agent enable --python ~/venvs/tf
  watchdog agent enable --kernel python3
  watchdog agent disable --kernel python3
  watchdog agent enable --user          every environment of yours, default profile
  watchdog agent lines train.py         what to write, so that train.py resumes
  watchdog agent lines train.py | patch -p0

Kernels that run already are left as they are.

exit codes: 0 done, 1 failure or a file of yours is in the way, 2 usage
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from watchdog_app.base import paths
from watchdog_app.base.children import is_frozen
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.jupyter import environment_startup_file, user_startup_file
from watchdog_app.base.text.terminal import Table, plain
from watchdog_app.cli.output import Output, remark
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import find_status
from watchdog_app.core.explain.saving import typed_path
from watchdog_app.core.explain.selection import RUN_CELLS
from watchdog_app.core.model.status import Task
from watchdog_app.install import pythons, trust
from watchdog_app.install.placed_files import PlacedFiles, read_regular_file

_ANSWER_S = 3.0
_MOST_NAMED = 3  # tasks and kernels in one line
_NOTHING = (
    "No Python environment with IPython was found here. Name one: watchdog agent enable "
    "--python PATH. A script needs no environment: watchdog exec -- python train.py"
)


def add_arguments(parser: Parser) -> None:
    """Add the verb and the options that name an environment."""
    parser.add_argument(
        "verb", choices=("status", "enable", "disable", "lines"), metavar="VERB", nargs="?",
        default="status", help="status (default), enable, disable or lines",
    )  # fmt: skip
    parser.positional("PROGRAM", "lines: the program to change", nargs="?")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--python", metavar="PATH", help="the environment of this Python, or in this folder"
    )
    where.add_argument("--kernel", metavar="NAME", help="the environment of this Jupyter kernel")
    where.add_argument(
        "--user", action="store_true", help="every environment, by your default IPython profile"
    )
    parser.json("status, lines: print the result as JSON")


def run(args: Args, out: Output) -> int:
    """Show the agent's state, enable it or disable it, or print lines for a program."""
    if (args.verb == "lines") != (args.program is not None):
        raise UsageError("A program belongs to: watchdog agent lines PROGRAM")
    if args.verb == "status":
        return _status(args, out)
    if args.verb == "lines":
        return _lines(args.program, out)
    if args.json:
        raise UsageError("--json belongs to: watchdog agent status, watchdog agent lines")
    return _enable(args, out) if args.verb == "enable" else _disable(args, out)


def _lines(program: str, out: Output) -> int:
    """Print the change to a program with which its training resumes."""
    from watchdog_app.agent.found import resume_lines

    if program.endswith(".ipynb"):
        raise WatchdogError(
            f"{program} is a notebook: write watchdog.resume() in a cell of its new kernel. It "
            "runs the cells before the training and prints the lines."
        )
    try:
        program, folder = resume_lines.find_training(program)
        edited = resume_lines.edit_program(program, folder)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise WatchdogError(f"{program} cannot be read as a Python program: {error}") from error
    diff = edited.diff(program)
    if not diff:
        raise WatchdogError(f"No lines for {program}: {'; '.join(edited.notes)}")
    root = edited.root(program)
    if root != os.getcwd():
        remark(f"apply it with: patch -d {shlex.quote(root)} -p0")
    for note in edited.notes:
        remark(note)
    told = {"program": program, "diff": diff, "lines": edited.lines(program), "notes": edited.notes}
    out.result(told, lambda: [diff.removesuffix("\n")])
    return EXIT_OK


def _enable(args: Args, out: Output) -> int:
    trust.importable_package("__init__.py")
    trust.refuse_untrusted()
    if not (args.python or args.kernel or args.user):
        # Never watchdog's own environment unasked: with pipx no kernel runs in it.
        args.python = ask(enabled_environments())
    with out.progress("asking that Python"):
        path = _find_startup_file(args, to_enable=True)
    report = _open_placed_files().place({path: trust.startup_file()})
    whose = _describe_environment(path)
    if not report.written:
        out.lines(f"Saving is on already in {whose}.")
        return EXIT_OK
    out.lines(
        f"Saving is on in {whose} for every kernel started from now on.",
        *_without_agent_lines(path),
        f"Placed: {plain(path)}",
        f"Undo: watchdog agent disable{_target_options(args)}",
    )
    return EXIT_OK


def _without_agent_lines(path: str) -> list[str]:
    """Return the kernels of the environment that run already: they have no agent."""
    names = [
        f"{plain(task.name or '?')} ({task.pid})"
        for task in running_tasks()
        if task.kind in RUN_CELLS
        and task.agent is None
        and path in (user_startup_file(), environment_startup_file(task.python or ""))
    ]
    if not names:
        return []
    return [f"Running now without it: {', '.join(names)}. Restart the kernel to have it saved."]


def _disable(args: Args, out: Output) -> int:
    _choose_enabled(args)
    path = _find_startup_file(args, to_enable=False)
    report = _open_placed_files().remove([path])
    if report.kept:
        out.lines(f"{plain(path)} was changed by somebody since; it was left as it is.")
        return EXIT_OK
    whose = _describe_environment(path)
    if _is_enabled(path):
        raise WatchdogError(
            f"{plain(path)} was placed by another watchdog: the agent is still on in "
            f"{whose}. Disable it with that one, or remove the file."
        )
    out.lines(
        f"The agent is off in every new kernel of {whose}; kernels that run keep it."
        if report.removed
        else f"It was not on in {whose}. Nothing was changed."
    )
    return EXIT_OK


def _choose_enabled(args: Args) -> None:
    """Without options, choose the only environment that is on; the same file is removed."""
    on = [] if args.python or args.kernel or args.user else enabled_environments()
    if len(on) > 1:
        commands = [
            "  watchdog agent disable "
            + ("--user" if each == user_startup_file() else f"--python {typed_path(each)}")
            for each in on
        ]
        raise UsageError("\n".join(["Saving is on in several environments:", *commands]))
    if on and on[0] == user_startup_file():
        args.user = True
    elif on:
        args.python = on[0]


def _status(args: Args, out: Output) -> int:
    # path of the startup file: its environment, its kernels
    rows: dict[str, tuple[str, str]] = {}
    if args.python or args.kernel or args.user:
        path = _find_startup_file(args, to_enable=False)
        what = "every environment" if args.user else _startup_file_prefix(path)
        rows[path] = (what, args.kernel or "")
    else:
        for known in environments(running_tasks()):
            path = environment_startup_file(known.prefix)
            rows[path] = (known.prefix, ", ".join(known.kernels))
        rows[user_startup_file()] = ("every environment of yours, by profile_default", "")
        for path in _open_placed_files().files:
            rows.setdefault(path, (_startup_file_prefix(path), ""))
    found = [
        {
            "environment": what, "kernels": names, "startup_file": path,
            "exists": os.path.lexists(path), "on": _is_enabled(path),
        }
        for path, (what, names) in rows.items()
    ]  # fmt: skip
    out.result(
        {"environments": found},
        lambda: [
            *_environment_lines(found),
            "",
            "What is saved now: watchdog status. How to get saved: watchdog help saving",
        ],
    )
    return EXIT_OK


def _environment_lines(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in found:
        kernels = f"  (kernels: {row['kernels']})" if row["kernels"] else ""
        lines.append(
            f"{'on ' if row['on'] else 'off'}  {plain(row['environment'])}{plain(kernels)}"
        )
        if row["on"]:
            lines.append(f"     by {plain(row['startup_file'])}")
        elif row["exists"]:
            lines.append(f"     {plain(row['startup_file'])} is there, and is not ours")
    return lines


def _find_startup_file(args: Args, *, to_enable: bool) -> str:
    if args.user:
        return user_startup_file()
    python = pythons.python_of(args.python) if args.python else sys.executable
    if args.kernel:
        python = pythons.find_kernel(args.kernel).python or ""
    elif not args.python and is_frozen():
        raise UsageError("Name the environment: --python PATH or --kernel NAME")
    if not to_enable:
        prefix = pythons.environment_prefix(python)
        if prefix is not None:
            return environment_startup_file(prefix)
    found = pythons.query_environment(python)
    if to_enable:
        if found.version < (3, 11):
            raise WatchdogError(
                f"{python} is Python {found.version[0]}.{found.version[1]}; the agent needs 3.11 "
                "or newer. Nothing was changed."
            )
        if found.startup is None:
            raise WatchdogError(
                f"The environment of {python} has no IPython, so that no kernel runs in it. For a "
                "script: watchdog exec -- python train.py. Kernels of other environments: watchdog "
                "agent status. Nothing was changed."
            )
        if not found.startup:
            raise WatchdogError(
                f"The IPython of {python} is too old for startup files of an environment. Update "
                "it, or use --user. Nothing was changed."
            )
    return environment_startup_file(found.prefix)


def _startup_file_prefix(path: str) -> str:
    return path.partition(os.path.join(os.sep, "etc", "ipython"))[0] or path


def _open_placed_files() -> PlacedFiles:
    return PlacedFiles(os.path.join(paths.state_dir(), "agent.json"), "watchdog agent disable")


def enabled_environments() -> list[str]:
    """
    Return the environments whose new kernels load the agent, as far as this watchdog enabled them.

    Raises:
        WatchdogError: the list of placed files cannot be read.
    """
    placed = _open_placed_files().files
    return [_startup_file_prefix(path) for path in placed if _is_enabled(path)]


def _is_enabled(path: str) -> bool:
    try:
        return b"watchdog_app.agent.hook" in (read_regular_file(path) or b"")
    except WatchdogError:
        return False


def _describe_environment(path: str) -> str:
    """Return the folder of the environment of a startup file, as it is typed."""
    if path == user_startup_file():
        return "every environment of yours"
    return typed_path(_startup_file_prefix(path))


def _target_options(args: Args) -> str:
    if args.user:
        return " --user"
    name, value = ("--python", args.python) if args.python else ("--kernel", args.kernel)
    if not value:
        return ""
    typed = typed_path(os.path.expanduser(value)) if args.python else shlex.quote(plain(value))
    return f" {name} {typed}"


# The environments in which saving can be turned on.


@dataclass(slots=True)
class Environment:
    """One environment of the list."""

    prefix: str
    tasks: list[str] = field(default_factory=list)  # programs that run in it
    kernels: list[str] = field(default_factory=list)  # kernelspecs that start it
    loaded: set[str] = field(default_factory=set)  # frameworks of those programs
    has_kernel: bool = False  # one runs in it, or a kernelspec starts one
    is_active: bool = False  # in the shell of this command

    @property
    def use(self) -> str:
        """What the environment is known for, as one text."""
        names = self.tasks[:_MOST_NAMED]
        if names:
            return f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'} in it"
        if self.kernels:
            noun = "kernel" if len(self.kernels) == 1 else "kernels"
            return f"{noun} {', '.join(self.kernels[:_MOST_NAMED])}"
        return "active in this shell" if self.is_active else "watchdog itself runs in it"


def running_tasks() -> list[Task]:
    """Return the tasks of this user that the daemon watches; empty without a daemon."""
    status = find_status(_ANSWER_S)
    return [] if status is None else own_tasks(status.tasks)


def own_tasks(tasks: Iterable[Task]) -> list[Task]:
    """
    Return the tasks of this user whose environment is known.

    A daemon of root watches every user, and root must not start another user's Python.

    Args:
        tasks: tasks of a status.
    """
    return [each for each in tasks if each.python is not None and each.user in (None, _user())]


def environments(tasks: Iterable[Task]) -> list[Environment]:
    """
    Return the environments that can run kernels: with running trainings first, watchdog's own last.

    Args:
        tasks: from `running_tasks`.
    """
    found: dict[str, Environment] = {}

    def add(prefix: str) -> Environment:
        return found.setdefault(prefix, Environment(prefix))

    for task in sorted(
        tasks, key=lambda one: (one.can_save is not False, one.kind not in RUN_CELLS)
    ):
        if task.python is not None and (task.kind in RUN_CELLS or task.framework is not None):
            each = add(task.python)
            each.tasks.append(plain(task.name or "?"))
            each.loaded.update(filter(None, [task.framework]))
            each.has_kernel |= task.kind in RUN_CELLS
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(name):
            add(os.path.normpath(os.environ[name])).is_active = True
    for kernel in pythons.kernels():
        if kernel.python is not None:
            # A Python outside environments, such as /usr/bin/python3: its folder is close enough.
            folder = os.path.dirname(os.path.dirname(kernel.python))
            prefix = pythons.environment_prefix(kernel.python) or folder
            each = add(prefix)
            each.kernels.append(plain(kernel.name))
            each.has_kernel = True
    if not is_frozen():
        add(sys.prefix)
    return [
        each
        for each in found.values()
        if each.has_kernel or pythons.has_package(each.prefix, "IPython")
    ]


def list_lines(found: Iterable[Environment], enabled: Iterable[str]) -> list[str]:
    """
    Return the list, one environment a line: number, folder, frameworks, use.

    Args:
        found: from `environments`.
        enabled: folders of the environments in which saving is on.
    """
    on = set(enabled)
    rows = [
        [
            str(number),
            typed_path(each.prefix),
            ", ".join(sorted(each.loaded | pythons.installed_frameworks(each.prefix)))
            or "no framework",
            each.use + (" (saving is on)" if each.prefix in on else ""),
        ]
        for number, each in enumerate(found, 1)
    ]
    return [f"  {line}" for line in Table(rows, {0}, gives_way=1, gap=2).lines(None)]


def ask(enabled: Iterable[str]) -> str:
    """
    Let the user choose an environment; return its folder.

    Args:
        enabled: folders of the environments in which saving is on.

    Raises:
        UsageError: there is no terminal, nothing was chosen, or there is no environment.
    """
    found = environments(running_tasks())
    if not found:
        raise UsageError(_NOTHING)
    lines = list_lines(found, enabled)
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr and sys.stderr.isatty()):
        command = f"watchdog agent enable --python {typed_path(found[0].prefix)}"
        raise UsageError("\n".join(["Name the environment:", *lines, f"For example: {command}"]))
    heading = "Saving can be turned on for the notebooks of these Python environments:"
    sys.stderr.write("\n".join([heading, *lines, "Which one? Number, or Enter for none: "]))
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not answer:
        raise UsageError("Nothing was changed.")
    if not (answer.isascii() and answer.isdigit() and 1 <= int(answer) <= len(found)):
        raise UsageError(f"There is no environment {plain(answer)[:40]}. Nothing was changed.")
    return found[int(answer) - 1].prefix


def _user() -> str | None:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):  # not Unix; a container's uid without an entry
        return None
