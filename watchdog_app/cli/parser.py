"""The parser of a command: argparse with the same help text on every Python version."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from argparse import Namespace as Args
from difflib import get_close_matches

from watchdog_app.base.text.quantities import parse_bytes, parse_duration
from watchdog_app.base.text.terminal import plain, wrap
from watchdog_app.cli.output import terminal_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, NoReturn, TypeVar

    from watchdog_app.cli.output import When

    T = TypeVar("T")

__all__ = ["Args", "Parser", "build_parser"]

COLOR_CHOICES: tuple[When, ...] = ("auto", "always", "never")
TASK_HELP = "pid, notebook, script, path, kernel id, or a part of a name that fits one task"
EXAMPLES = "examples:"  # begins the second part of the docstring of a command
_EXIT_CODES = (
    # for commands whose docstring names no exit codes
    "\n\nexit codes: 0 done, 1 failure, 2 usage, 3 daemon not running"
)
_DATES = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d")
_CLOCKS = ("%H:%M:%S", "%H:%M")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that shows an option's metavar once, as Python 3.13 does."""

    def __init__(self, prog: str) -> None:
        # Set the width here, because argparse would import shutil (bz2, lzma) to find it.
        super().__init__(prog, width=min(100, terminal_columns() or 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap a description paragraph by paragraph; keep examples as they are."""
        if text.startswith(EXAMPLES):
            return super()._fill_text(text, width, indent)
        paragraphs = text.split("\n\n")
        return "\n\n".join("\n".join(wrap(one, width, first=indent)) for one in paragraphs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        word = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {word}"


class Parser(argparse.ArgumentParser):
    """
    argparse's parser with the options that commands share. Suggests the nearest word for a typo.
    """

    def __init__(self, **more: Any) -> None:
        # Allow no abbreviations: a new option must not change the meaning of an old script.
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **more)
        # Python 3.14 would otherwise colour the help.
        setattr(self, "color", False)  # noqa: B010 - no attribute before 3.14

    def flag(self, names: str, text: str, **more: Any) -> None:
        """
        Add an option without a value.

        Args:
            names: as the help prints them: `-a, --all`.
            text: help text of the option.
            more: further arguments of `add_argument`.
        """
        self.add_argument(*names.split(", "), action="store_true", help=text, **more)

    def option(self, names: str, text: str, kind: Callable[[str], Any] = str, **more: Any) -> None:
        """
        Add an option with a value.

        Args:
            names: as the help prints them: `-o, --output FILE`.
            text: help text of the option.
            kind: function that converts the typed word to the value.
            more: further arguments of `add_argument`.
        """
        options, _, metavar = names.rpartition(" ")
        self.add_argument(*options.split(", "), metavar=metavar, type=kind, help=text, **more)

    def positional(self, metavar: str, text: str, **more: Any) -> None:
        """Add a positional argument, stored under its metavar in lower case."""
        self.add_argument(metavar.lower(), metavar=metavar, help=text, **more)

    def task(self, text: str = TASK_HELP, *, optional: bool = False) -> None:
        """Add the argument TASK, which shells complete with the running tasks."""
        self.positional("TASK", text, type=task_argument, nargs="?" if optional else None)

    def subcommands(self, **more: Any) -> Callable[[str, str], Parser]:
        """Return a function that adds a subcommand; `more`: arguments of `add_subparsers`."""
        verbs = self.add_subparsers(metavar="VERB", **more)

        def add(name: str, text: str) -> Parser:
            child: Parser = verbs.add_parser(
                name,
                help=text,
                description=f"{text[:1].upper()}{text[1:]}.",
                epilog=f"examples and exit codes: {' '.join(self.prog.split()[:2])} --help",
            )
            return child

        return add

    def json(self, text: str = "print the result as JSON", **more: Any) -> None:
        """Add --json, which every command with a result has."""
        self.flag("--json", text, **more)

    def color_option(self) -> None:
        """Add --color, which every command with colours has."""
        self.option(
            "--color WHEN",
            "auto (default: on a terminal), always or never; NO_COLOR and FORCE_COLOR count too",
            choices=COLOR_CHOICES,
            default="auto",
        )

    def error(self, message: str) -> NoReturn:
        """Print the mistake and the nearest option, and exit with the usage code."""
        marker = "unrecognized arguments: "
        if message.startswith(marker):
            word = message.removeprefix(marker).split("=")[0].split()[0]
            known = [text for action in self._actions for text in action.option_strings]
            near = get_close_matches(word, known, n=1, cutoff=0.6)
            if word in known:  # an option of the command, given after a verb that does not take it
                message = f"{word} does not go with what was asked for"
            elif word.startswith("-") and near:
                message = f"there is no option {word}; did you mean {near[0]}?"
        message += _suggest_choice(message)
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {plain(message)}\nMore: {self.prog} --help\n")


def build_parser(name: str, module: ModuleType) -> Parser:
    """Return the parser of a command. Its help is the docstring of its module."""
    text = (module.__doc__ or "").strip()
    description, _, rest = text.partition(f"\n\n{EXAMPLES}")
    epilog = f"{EXAMPLES}{rest}{'' if 'exit codes:' in rest else _EXIT_CODES}"
    parser = Parser(prog=f"watchdog {name}", description=description, epilog=epilog)
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    return parser


def task_argument(text: str) -> str:
    """Return the typed task. A relative path becomes absolute: the daemon has another folder."""
    return os.path.abspath(text) if text.startswith(("./", "../")) else text


def duration(text: str) -> float:
    """Parse an argument such as 2h or 500ms; return seconds."""
    return _parse_argument(parse_duration, text)


def wall_time(text: str) -> float:
    """Parse a duration above 0, also as Slurm writes it (1-12:00:00); return seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if found is None:
        try:
            return positive_duration(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error}, or 1-12:00:00") from None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((24.0 * days + hours) * 60 + minutes) * 60 + seconds


def positive_duration(text: str) -> float:
    """Parse a duration above 0, such as 2s; return seconds."""
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def size(text: str) -> int:
    """Parse an argument such as 12G; return bytes."""
    return _parse_argument(parse_bytes, text)


def positive_integer(text: str) -> int:
    """Parse a whole number above 0, such as 20."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def timestamp(text: str) -> float:
    """Parse a duration before now, a time of today, or a date; return Unix time in seconds."""
    now_unix_s = time.time()
    try:
        return now_unix_s - parse_duration(text)
    except ValueError:
        pass
    today = time.strftime("%Y-%m-%d ", time.localtime(now_unix_s))
    forms = [(text, form) for form in _DATES]
    forms += [(today + text, f"%Y-%m-%d {clock}") for clock in _CLOCKS]
    for candidate, form in forms:
        try:
            return time.mktime(time.strptime(candidate, form))
        except (ValueError, OverflowError):
            continue
    raise argparse.ArgumentTypeError(
        f"{text!r} is no time; write a span such as 2h, a clock time such as 14:30, "
        "or a date such as 2026-11-21"
    )


def _parse_argument(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _suggest_choice(message: str) -> str:
    """Suggest a choice for argparse's `invalid choice: 'chekc' (choose from 'check', ...)`."""
    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if found is None:
        return ""
    # argparse quotes the choices up to Python 3.11, and not from 3.12.
    known = [word.strip().strip("'") for word in found[2].split(",")]
    near = get_close_matches(found[1].lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
