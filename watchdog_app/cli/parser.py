"""The parser of a command: argparse with texts that are the same on every Python."""

from __future__ import annotations

import argparse
import sys

from watchdog_app.base.text.terminal import wrap
from watchdog_app.cli.terminal import columns_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

    from watchdog_app.base.text.terminal import When

COLOR_CHOICES: tuple[When, ...] = ("auto", "always", "never")


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help with an option's word shown once, as Python 3.13 does, in 3.11 as well."""

    def __init__(self, prog: str) -> None:
        # Given here, because argparse would import shutil (bz2, lzma) to find the width.
        super().__init__(prog, width=min(100, columns_of() or 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """A description is folded, paragraph by paragraph; examples stay as they are."""
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        paragraphs = text.split("\n\n")
        return "\n\n".join("\n".join(wrap(one, width, first=indent)) for one in paragraphs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        word = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {word}"


class Parser(argparse.ArgumentParser):
    """argparse's parser that names the nearest option when one is mistyped."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, the nearest option if there is one, and end with the usage code."""
        marker = "unrecognized arguments: "
        if message.startswith(marker):
            from difflib import get_close_matches

            word = message.removeprefix(marker).split("=")[0].split()[0]
            known = [text for action in self._actions for text in action.option_strings]
            near = get_close_matches(word, known, n=1, cutoff=0.6)
            if word in known:  # an option of the command, behind the word for a part of it
                message = f"{word} does not go with what was asked for"
            elif word.startswith("-") and near:
                message = f"there is no option {word}; did you mean {near[0]}?"
        message += _nearest_choice(message)
        from watchdog_app.base.text.terminal import plain

        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {plain(message)}\nMore: {self.prog} --help\n")


def build(module: ModuleType) -> Parser:
    """The parser that a command's module describes."""
    parser = Parser(
        prog=f"watchdog {module.NAME}",
        description=getattr(module, "DESCRIPTION", None) or _sentence(module.HELP),
        epilog=getattr(module, "EPILOG", None),
        formatter_class=Formatter,
        allow_abbrev=False,  # a later option must not change what an old script means
    )
    # Python 3.14 would colour it by rules of its own.
    setattr(parser, "color", False)  # noqa: B010 - no attribute before 3.14
    module.add_arguments(parser)
    return parser


def add_color(parser: argparse.ArgumentParser) -> None:
    """The option that every command with colours has."""
    parser.add_argument(
        "--color",
        choices=COLOR_CHOICES,
        default="auto",
        metavar="WHEN",
        help="auto (default: on a terminal), always or never; NO_COLOR and FORCE_COLOR count too",
    )


def duration(text: str) -> float:
    """An argument such as 2h or 500ms, in seconds."""
    from watchdog_app.base.text.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_duration(text: str) -> float:
    """An argument such as 2s that has to be more than nothing."""
    seconds = duration(text)
    if seconds <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def size(text: str) -> int:
    """An argument such as 12G, in bytes."""
    from watchdog_app.base.text.quantities import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_integer(text: str) -> int:
    """An argument such as 20."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _nearest_choice(message: str) -> str:
    """What was meant, where argparse says `invalid choice: 'chekc' (choose from 'check', ...)`."""
    import re

    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if found is None:
        return ""
    from difflib import get_close_matches

    # In quotes up to Python 3.11, without from 3.12 on.
    known = [word.strip().strip("'") for word in found[2].split(",")]
    near = get_close_matches(found[1].lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
