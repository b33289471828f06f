"""`watchdog exec`: one script with the agent switched on, in the place of this process."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

from watchdog_app.base.errors import UsageError, WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NAME = "exec"
HELP = "run a program with a limit at which it is saved, not killed"
DESCRIPTION = """\
Run a program so that its trainings are saved when memory runs out, without a change to its
code: Keras fits, loops in TensorFlow and PyTorch, in every Python that it starts. The program
replaces this command: exit code, signals, terminal and pid are its own.

It runs in a memory group of its own (the guard). At the limit of that group the program is
stopped, not killed, and its training is saved from outside. Then it continues, gets no more
memory, stays stopped, or ends (--at-limit). One array that cannot fit is a MemoryError.

Without --limit it may use the machine's memory, less a margin. Where no group can be made,
each process gets a limit on what it may reserve, and a message says so."""
EPILOG = """\
examples:
  watchdog exec -- python train.py --epochs 50
  watchdog exec --limit 12G -- python train.py
  watchdog exec --limit 12G --at-limit hold -- jupyter lab
  watchdog exec --no-resume -- ./run-all-folds.sh
  watchdog exec --kernel
  watchdog exec --kernel --undo

Raise the limit of what runs: watchdog limit train.py 16G

exit codes: those of the program; 126 it cannot be run, 127 there is none, 2 usage"""

_CANNOT_RUN = 126  # as shells say it
_NOT_FOUND = 127


class _NotRun(WatchdogError):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The program and its words, and its guard."""
    from watchdog_app.cli.parser import duration, size

    parser.add_argument(
        "--limit", type=size, metavar="SIZE", help="memory that it may hold (default: what is free)"
    )
    parser.add_argument(
        "--reserve", type=size, metavar="SIZE", help="kept back for saving (default: 256M or more)"
    )
    parser.add_argument(
        "--swap", type=size, default=0, metavar="SIZE", help="swap that it may use (default: 0)"
    )
    parser.add_argument(
        "--at-limit",
        choices=("auto", "go-on", "refuse", "hold", "end"),
        default="auto",
        help="after saving: remove the limit; refuse more memory; stay stopped; end. auto: a "
        "saved script is refused more, all else stays stopped",
    )
    parser.add_argument(
        "--hold-for",
        type=duration,
        metavar="TIME",
        help="end a program that was stopped for this long",
    )
    parser.add_argument("--no-refuse", action="store_true", help="let it reserve more than can fit")
    parser.add_argument("--no-guard", action="store_true", help="no memory group: the agent alone")
    parser.add_argument(  # its name in earlier versions
        "--no-bag", dest="no_guard", action="store_true", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--no-resume",
        action="store_true",
        help="start from the beginning although there is an unfinished rescue",
    )
    parser.add_argument(
        "--kernel", action="store_true", help="make a Jupyter kernel that starts this way"
    )
    parser.add_argument(
        "--name", metavar="KERNEL", help="with --kernel: the kernel to start so (default: python3)"
    )
    parser.add_argument(
        "--undo", action="store_true", help="with --kernel: take that kernel away again"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Become the program."""
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.kernel:
        from watchdog_app.cli import exec_kernel
        from watchdog_app.guard import launch

        if sys.platform == "linux" and not args.undo:
            launch.check(args.limit, args.reserve, args.swap)
        return exec_kernel.run(args, words)
    if args.name or args.undo:
        raise UsageError("--name and --undo go with --kernel.")
    if not words:
        raise UsageError("Name a program: watchdog exec -- python train.py")
    from watchdog_app.install import trust

    trust.refuse_untrusted()
    env = dict(os.environ)
    env["PYTHONPATH"] = _python_path(env.get("PYTHONPATH", ""))
    if args.no_resume:
        env["WATCHDOG_AGENT_RESUME"] = "no"
    if not args.no_guard:
        _enter_guard(args, words, env)
    return _become(words, env)


def _enter_guard(args: argparse.Namespace, words: list[str], env: dict[str, str]) -> None:
    from watchdog_app.base.text.terminal import plain_block
    from watchdog_app.guard import launch

    if not _can_run(words[0], env):
        return  # it is said in a moment, and nothing needs a guard for that
    entered = launch.enter(
        launch.Options(
            limit_bytes=args.limit,
            reserve_bytes=args.reserve,
            swap_bytes=args.swap,
            at_limit=args.at_limit,
            hold_s=args.hold_for,
            refuse=not args.no_refuse,
            notebook=launch.is_notebook(words),
            name=launch.name_of(words, env, _folder()),
        )
    )
    env.update(entered.environment)
    with contextlib.suppress(OSError):  # nobody reads it, or its disk is full: the program runs
        sys.stderr.write(f"{plain_block(entered.line)}\n")


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed meanwhile
        return "a folder that is gone"


def _can_run(word: str, env: dict[str, str]) -> bool:
    import shutil

    return shutil.which(word, path=env.get("PATH", os.defpath)) is not None


def _python_path(before: str) -> str:
    from watchdog_app.install import trust

    shim = os.path.join(trust.package_folder(), "agent", "shim")
    if not os.path.isfile(os.path.join(shim, "sitecustomize.py")):
        raise WatchdogError(
            "This watchdog is one program without a package that other Pythons could import. "
            "Install it where the script runs: python -m pip install watchdog-app"
        )
    # No empty part: that would mean the current folder.
    rest = [part for part in before.split(os.pathsep) if part != shim] if before else []
    return os.pathsep.join([shim, *rest])


def _become(words: list[str], env: dict[str, str]) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if sys.platform == "win32":  # an exec there would leave the terminal to both
        import subprocess

        raise SystemExit(subprocess.call(words, env=env))
    # Python ignores these in itself; what it starts is to have them as everybody else.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(words[0], words, env)  # noqa: S606 - a shell would stand between
    except FileNotFoundError as error:
        raise _NotRun(f"There is no program {words[0]}.", _NOT_FOUND) from error
    except OSError as error:
        raise _NotRun(f"{words[0]} cannot be run: {error.strerror}.", _CANNOT_RUN) from error
