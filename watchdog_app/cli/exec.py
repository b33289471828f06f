"""`watchdog exec`: one script with the agent switched on, in the place of this process."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from watchdog_app.errors import UsageError, WatchdogError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

NAME = "exec"
HELP = "run one program with the agent switched on in it"
DESCRIPTION = """\
Run a program so that Keras fits in it, and in every Python that it starts, are saved when
memory runs out, without touching its code. The program takes the place of this command: exit
code, signals, terminal and pid are its own."""
EPILOG = """\
examples:
  watchdog exec -- python train.py --epochs 50
  watchdog exec --no-resume -- python train.py
  watchdog exec -- ./run-all-folds.sh

exit codes: those of the program; 126 it cannot be run, 127 there is none, 2 usage"""

_CANNOT_RUN = 126  # as shells say it
_NOT_FOUND = 127


class _NotRun(WatchdogError):
    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The program and its words."""
    parser.add_argument(
        "--no-resume", action="store_true", help="begin anew, although a rescue is unfinished"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Become the program."""
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        raise UsageError("Name a program: watchdog exec -- python train.py")
    env = dict(os.environ)
    env["PYTHONPATH"] = _python_path(env.get("PYTHONPATH", ""))
    if args.no_resume:
        env["WATCHDOG_AGENT_RESUME"] = "no"
    _become(words, env)


def _python_path(before: str) -> str:
    import watchdog_app

    root = os.path.dirname(os.path.abspath(watchdog_app.__file__ or ""))
    shim = os.path.join(root, "enable", "shim")
    if not os.path.isfile(os.path.join(shim, "sitecustomize.py")):
        raise WatchdogError(
            "This watchdog is one program without a package that other Pythons could import. "
            "Install it where the script runs: python -m pip install watchdog-app"
        )
    # No empty part: that would mean the current folder.
    rest = [part for part in before.split(os.pathsep) if part != shim] if before else []
    return os.pathsep.join([shim, *rest])


def _become(words: list[str], env: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
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
