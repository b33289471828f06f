"""
Command lines of our own processes: of this very installation, whatever made it.

A Python that has the package runs its modules by `-m`. In a program made by PyInstaller
`sys.executable` is the program itself and knows no `-m`: there a module follows the word CHILD,
which packaging/pyinstaller/entry.py hands to `run_module`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

CHILD = "--child"
# What a frozen program runs by name: it must not become a way to run just anything.
MODULES = (
    "watchdog_app.daemon.notify.desktop_helper",
    "watchdog_app.guard.copier",
    "watchdog_app.guard.process",
    "watchdog_app.machine.gpu.reader",
)


def is_frozen() -> bool:
    """Whether this program was made by PyInstaller and has an interpreter of its own."""
    return bool(getattr(sys, "frozen", False))


def module_argv(module: str) -> tuple[str, ...]:
    """
    What runs one of MODULES as a process of its own; further words may follow.

    Raises:
        ValueError: it is none of them.
    """
    if module not in MODULES:
        raise ValueError(f"{module} is not run as a process of its own")
    if is_frozen():
        return (sys.executable, CHILD, module)
    # -P: a json.py in the folder that it starts in must not become ours.
    return (sys.executable, "-P", "-m", module)


def bare_module_argv(module: str) -> tuple[str, ...]:
    """
    As `module_argv`, for a module that needs neither site nor the rest of the package: 3 MB less.

    Raises:
        ValueError: it is none of MODULES.
    """
    if is_frozen() or module not in MODULES:
        return module_argv(module)
    # -I: nothing of the user's is imported in it. It would also leave out PYTHONHOME, without
    # which a Python that needs it finds nothing.
    flags = ["-I"] if "PYTHONHOME" not in os.environ else ["-P", "-s"]
    if sys.dont_write_bytecode:
        flags.append("-B")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(package, *module.split(".")[1:]) + ".py"
    return (sys.executable, *flags, "-S", path)


def watchdog_argv(words: Sequence[str]) -> list[str]:
    """What runs `watchdog WORDS`."""
    if is_frozen():
        return [sys.executable, *words]
    return [sys.executable, "-P", "-m", "watchdog_app", *words]


def reset_priority(pid: int) -> None:
    """
    Reset oom_score_adj and nice value of a process that we started for the user.

    It inherits our oom_score_adj and our nice value; to give both back is always allowed.
    """
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("0")
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, 0)


def run_module(words: Sequence[str]) -> None:
    """
    Run one of MODULES in this process of a frozen program.

    Args:
        words: those after CHILD: the module, then its own.

    Raises:
        SystemExit: always, with its exit status; 2 where there is no such module.
    """
    import runpy

    module = words[0] if words else ""
    if module not in MODULES:
        sys.stderr.write(f"watchdog: there is no part {module!r} to run\n")
        raise SystemExit(2)
    sys.argv = [module, *words[1:]]
    runpy.run_module(module, run_name="__main__")
    raise SystemExit(0)
