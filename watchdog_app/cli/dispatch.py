"""
Find and run the command of a command line.

The table of commands is plain text, so that `watchdog --help` imports no command. The module of a
command is imported only when the user runs that command. Its docstring is the help: description and
examples. It offers `run(args, out) -> exit code`, and `add_arguments(parser)` if it has arguments.

Only this module turns errors into messages and exit codes.
"""

from __future__ import annotations

import os
import sys

from watchdog_app import __version__
from watchdog_app.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_USAGE,
    NOT_FOUND,
    RequestError,
    TaskNotFound,
    WatchdogError,
)
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, remark

TYPE_CHECKING = False  # importing typing takes longer than running this whole file
if TYPE_CHECKING:
    from types import ModuleType
    from typing import TextIO

    from watchdog_app.cli.parser import Parser

EXIT_INTERRUPTED = 130  # 128 + SIGINT, the convention of shells
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE

GROUPS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "look",
        (
            ("status", "show every Python task, its memory, and how long that lasts"),
            ("top", "live view: trends, forecasts, keys to save and to pause"),
            ("explain", "say why a task died, and what watchdog sees now"),
            ("report", "write one HTML page that says why a task died"),
            ("stacks", "show what each thread of a task is doing"),
            ("leaks", "find the lines of a training where memory grows"),
            ("watch", "print notifications as lines of text as they arrive"),
            ("history", "list past incidents, decisions and deaths"),
            ("metrics", "print the status as metrics for Prometheus"),
            ("rescues", "list saved rescues; show, verify and prune them"),
            ("estimate", "estimate the memory of a training: will this batch fit?"),
            ("doctor", "find what would make GPU trainings crash, and how to fix it"),
        ),
    ),
    (
        "act",
        (
            ("checkpoint", "ask a training to save a rescue now"),
            ("pause", "stop a task; it keeps its memory and its state"),
            ("resume", "resume a paused task"),
            ("forget", "delete what is known about the past runs of a program"),
            ("snooze", "suppress notifications for a while, not saves and pauses"),
            ("protect", "turn warnings, saves and pauses off, or on again"),
            ("agent", "save trainings in notebooks whose code names no Rescue"),
            ("exec", "run a program with a limit at which it is saved, not killed"),
            ("limit", "change the limit of a program started by exec, or end it"),
            ("slurm", "print a batch script for Slurm; requeue a job"),
        ),
    ),
    (
        "daemon",
        (
            ("start", "start the daemon in the background"),
            ("stop", "stop the daemon"),
            ("reload", "make the daemon read its configuration again"),
            ("run", "run the daemon in the foreground"),
            ("notify", "send a test notification through each channel"),
            ("config", "show and change settings, and where each comes from"),
        ),
    ),
    (
        "try and learn",
        (
            ("demo", "watch a real training run out of memory and lose nothing"),
            ("replay", "play a trace through the forecast and the policy"),
            ("completion", "print a shell completion script"),
        ),
    ),
    (
        "desktop",
        (
            ("tray", "show a tray icon, and notifications with buttons"),
            ("desktop", "add watchdog to this user's menus and login, or remove it"),
        ),
    ),
)

COMMANDS = {name: help_ for _, commands in GROUPS for name, help_ in commands}

_OPTIONS = """\
options:
  -h, --help      show this help, or with a command that command's
  -V, --version   show the version

exit codes: 0 done, 1 failure, 2 usage, 3 daemon not running
Each command says more: watchdog COMMAND --help
Topics: watchdog help saving, exit-codes or colours
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return the exit code. Prints every WatchdogError."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    _open_closed_streams()
    _escape_unencodable_output()
    try:
        code = _run_command(arguments)
        # flush here, where an error (full disk, closed pipe) can still be reported
        sys.stdout.flush()
    except WatchdogError as error:
        remark(str(error))
        if isinstance(error, RequestError):
            _print_candidates(error)
        return error.exit_code
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        remark(f"The command could not be carried out: {error}")
        _discard_output()
        return EXIT_FAILURE
    return code


def _open_closed_streams() -> None:
    """
    Open /dev/null for each standard stream that this process was started without.

    Otherwise one of our files could get the number of a standard stream. Python closes these
    descriptors at exec, so a program that replaces this process also starts without them.
    """
    missing = [
        (fd, name)
        for fd, name in enumerate(("stdin", "stdout", "stderr"))
        if getattr(sys, name) is None
    ]
    for fd, _ in missing:
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # open() returns the lowest free number, which is fd
    for fd, name in missing:
        setattr(sys, name, open(os.devnull, "w" if fd else "r", encoding="utf-8"))  # noqa: SIM115


def overview() -> str:
    """Return the text of `watchdog --help`."""
    lines = ["usage: watchdog COMMAND [OPTION ...]", ""]
    for title, commands in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {name:<17} {help_}" for name, help_ in commands]
        lines.append("")
    return "\n".join(lines) + "\n" + _OPTIONS


def load_command(name: str) -> tuple[ModuleType, Parser]:
    """Import the module of a command and build its parser."""
    from importlib import import_module

    from watchdog_app.cli.parser import build_parser

    full = f"watchdog_app.cli.{name.replace('-', '_')}"
    try:
        module = import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        raise WatchdogError(f"This installation has no command {name}.") from error
    return module, build_parser(name, module)


def _run_command(arguments: list[str]) -> int:
    if not arguments:
        from watchdog_app.cli import hello

        print("\n".join(hello.lines()))
        return EXIT_OK
    name, *rest = arguments
    if name in ("-h", "--help") or (name == "help" and not rest):
        sys.stdout.write(overview())
        return EXIT_OK
    if name in ("-V", "--version"):
        print(f"watchdog {__version__}")
        return EXIT_OK
    if name == "help" and rest[0] not in COMMANDS:
        from watchdog_app.cli.hello import TOPICS

        if rest[0] in TOPICS:
            print(TOPICS[rest[0]])
            return EXIT_OK
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        return _report_unknown_command(name)
    quick = _run_without_argparse(name, rest)
    if quick is not None:
        return quick
    module, parser = load_command(name)
    try:
        mixed = getattr(module, "MIXED", False)  # words may stand between and after options
        args = parser.parse_intermixed_args(rest) if mixed else parser.parse_args(rest)
    except SystemExit as end:  # argparse has already printed its help or the error
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        return int(module.run(args, Output(args)))
    except TaskNotFound as error:
        from watchdog_app.history import past

        death, task = None, getattr(args, "task", None)
        if isinstance(task, str) and error.code == NOT_FOUND and name != "explain":
            death = past.HistorySource().find_end(task)
        if death is None:
            raise
        message = f"{error} {past.describe_end(death)}"
        if name == "resume":
            message = f"{past.describe_restart(death)}\n{message}"
        raise TaskNotFound(message, error.code, error.candidates) from error


def _run_without_argparse(name: str, rest: list[str]) -> int | None:
    """
    Run `status` or `run` without argparse, and return the exit code.

    Importing argparse takes a third of the time of `status`, and would stay in the daemon's memory.

    Returns:
        The exit code; None if there are other words than plain flags. Then argparse parses them and
        reports mistakes.
    """
    if name not in ("status", "run"):
        return None
    from importlib import import_module
    from types import SimpleNamespace

    module = import_module(f"watchdog_app.cli.{name}")
    if not all(word in module.FLAGS for word in rest):
        return None
    given = {module.FLAGS[word]: True for word in rest}
    args = SimpleNamespace(**{**module.DEFAULTS, **given})
    return int(module.run(args, Output(args)))


def _report_unknown_command(name: str) -> int:
    from difflib import get_close_matches

    if name.startswith("-"):
        remark(f"There is no option {name} before a command. Options follow the command.")
    else:
        near = get_close_matches(name.lower(), COMMANDS, n=1, cutoff=0.5)
        hint = f" Did you mean: watchdog {near[0]}" if near else ""
        remark(f"There is no command {name!r}.{hint}")
    remark("All commands and topics: watchdog --help")
    return EXIT_USAGE


def _print_candidates(error: RequestError) -> None:
    for candidate in getattr(error, "candidates", ())[:20]:
        what = (
            f"{candidate.get('pid')}  {candidate.get('name')}"
            if isinstance(candidate, dict)
            else str(candidate)
        )
        remark(plain(what), lead="  ")  # escape newlines in names


def _escape_unencodable_output() -> None:
    """Escape characters that the terminal's encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Send buffered output to /dev/null, because the interpreter flushes again at exit."""
    stream: TextIO | None = sys.stdout
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass  # stdout is not a file, as in a test
