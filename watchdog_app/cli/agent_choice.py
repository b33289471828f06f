"""The environments in which saving can be turned on: find them, list them, ask for one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchdog_app.base.children import is_frozen
from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.terminal import Table, plain
from watchdog_app.client.client import find_status
from watchdog_app.core.explain.saving import typed_path
from watchdog_app.core.explain.selection import RUN_CELLS
from watchdog_app.core.model.status import Task

_ANSWER_S = 3.0
_MOST_NAMED = 3  # tasks and kernels in one line
_NOTHING = (
    "No Python environment with IPython was found here. Name one: watchdog agent enable "
    "--python PATH. A script needs no environment: watchdog exec -- python train.py"
)


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


def environments(tasks: Iterable[Task], env: Mapping[str, str] = os.environ) -> list[Environment]:
    """
    Return the environments that can run kernels: with running trainings first, watchdog's own last.

    Args:
        tasks: from `running_tasks`.
        env: environment of this command.
    """
    from watchdog_app.install import pythons

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
        if env.get(name):
            add(os.path.normpath(env[name])).is_active = True
    for kernel in pythons.kernels(env):
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
    from watchdog_app.install import pythons

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
