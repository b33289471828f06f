"""
Command lines of watchdog's own child processes, for any kind of installation.

A Python interpreter with the package runs its modules with `-m`. In a PyInstaller program
`sys.executable` is the program itself and has no `-m`. There the module follows the word CHILD,
and packaging/pyinstaller/entry.py passes it to `run_module`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

CHILD = "--child"
# The only modules that a frozen program runs by name, so that it cannot run arbitrary modules.
MODULES = (
    "watchdog_app.daemon.logind_helper",
    "watchdog_app.daemon.notify.apprise",
    "watchdog_app.daemon.notify.desktop_helper",
    "watchdog_app.daemon.notify.ntfy_helper",
    "watchdog_app.daemon.program_hash",
    "watchdog_app.guard.copier",
    "watchdog_app.guard.process",
    "watchdog_app.machine.gpu.reader",
)


def is_frozen() -> bool:
    """Whether this program was built with PyInstaller and contains its interpreter."""
    return bool(getattr(sys, "frozen", False))


def module_argv(module: str) -> tuple[str, ...]:
    """
    The command line that runs one of MODULES in a new process; the caller may add arguments.

    Raises:
        ValueError: the module is not in MODULES.
    """
    if module not in MODULES:
        raise ValueError(f"{module} is not run as a process of its own")
    if is_frozen():
        return (sys.executable, CHILD, module)
    # -P: do not import files such as json.py from the current folder.
    return (sys.executable, "-P", "-m", module)


def bare_module_argv(module: str) -> tuple[str, ...]:
    """
    The same as `module_argv`, for a module that needs neither site nor the package: saves 3 MB.

    Raises:
        ValueError: the module is not in MODULES.
    """
    if is_frozen() or module not in MODULES:
        return module_argv(module)
    # -I: do not import files of the user. -I also ignores PYTHONHOME, without which some
    # interpreters find no modules, so use -P -s if PYTHONHOME is set.
    flags = ["-I"] if "PYTHONHOME" not in os.environ else ["-P", "-s"]
    if sys.dont_write_bytecode:
        flags.append("-B")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(package, *module.split(".")[1:]) + ".py"
    return (sys.executable, *flags, "-S", path)


def watchdog_argv(words: Sequence[str]) -> list[str]:
    """The command line that runs `watchdog WORDS`."""
    if is_frozen():
        return [sys.executable, *words]
    return [sys.executable, "-P", "-m", "watchdog_app", *words]


def reset_priority(pid: int) -> None:
    """
    Reset oom_score_adj and nice value of a process that watchdog started for the user.

    The process inherits both from watchdog. The kernel always allows a reset to 0.
    """
    with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("0")
    with suppress(AttributeError, OSError):  # Windows has no nice values
        os.setpriority(os.PRIO_PROCESS, pid, 0)


def run_module(words: Sequence[str]) -> None:
    """
    Run one of MODULES in this process of a frozen program.

    Args:
        words: arguments after CHILD: the module, then its arguments.

    Raises:
        SystemExit: always, with the exit status of the module; 2: unknown module.
    """
    import runpy

    module = words[0] if words else ""
    if module not in MODULES:
        sys.stderr.write(f"watchdog: there is no part {module!r} to run\n")
        raise SystemExit(2)
    sys.argv = [module, *words[1:]]
    runpy.run_module(module, run_name="__main__")
    raise SystemExit(0)
