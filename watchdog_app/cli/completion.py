"""
Print the completion script of a shell. It completes commands, options, their values, and
the names of the tasks that are running.

examples:
  bash: d=~/.local/share/bash-completion/completions
        mkdir -p $d && watchdog completion bash > $d/watchdog
  zsh:  watchdog completion zsh > ~/.zfunc/_watchdog
        with fpath+=~/.zfunc before compinit in ~/.zshrc
  fish: watchdog completion fish > ~/.config/fish/completions/watchdog.fish

exit codes: 0 printed, 2 usage
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.dispatch import COMMANDS, load_command
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import find_status

# The shell completes the words that `watchdog completion words` prints. If it prints nothing, the
# shell completes file names.
SCRIPTS = {"bash": "watchdog.bash", "zsh": "_watchdog", "fish": "watchdog.fish"}
_WORDS_COMMAND = "words"  # the scripts call this verb with the typed words, the last one incomplete
_TASK_VALUES = ("TASK", "PID")  # metavars whose value is a running task


def add_arguments(parser: Parser) -> None:
    """Add the shell."""
    parser.add_argument(
        "shell",
        choices=(*SCRIPTS, _WORDS_COMMAND),
        metavar="SHELL",
        help=f"one of {', '.join(SCRIPTS)}",
    )
    parser.add_argument("typed", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: Args, out: Output) -> int:
    """Print the script, or the words that can follow."""
    if args.shell == _WORDS_COMMAND:
        found = candidates(args.typed or [""])
        out.lines(*(f"{word}\t{text}" if text else word for word, text in found))
        return EXIT_OK
    if args.typed:
        raise UsageError(f"watchdog completion {args.shell} takes no further words.")
    sys.stdout.write(script(args.shell))
    return EXIT_OK


def script(shell: str) -> str:
    """Return the completion script of a shell, one of `SCRIPTS`."""
    return (Path(__file__).parent / "completions" / SCRIPTS[shell]).read_text("utf-8")


def candidates(typed: Sequence[str]) -> list[tuple[str, str]]:
    """
    Return the completions of the last word.

    Args:
        typed: the words after `watchdog`; the last one is incomplete and may be empty.

    Returns:
        Words and their meanings. Empty if a file name or free text belongs there.
    """
    # bash splits --task=TASK into three words, one of them "=".
    *before, current = (typed[0], *(word for word in typed[1:] if word != "="))
    if not before or before == ["help"]:
        found = [*COMMANDS.items(), ("help", "show the help of a command")]
        if current.startswith("-"):
            found = [("--help", "show the help"), ("--version", "show the version")]
    else:
        try:
            module, parser = load_command(before[0])
        except (WatchdogError, ImportError):
            return []
        found = _complete_command(parser, getattr(module, "VERBS", ()), before[1:], current)
    return [(word, text) for word, text in found if word.startswith(current)]


def _complete_command(
    parser: argparse.ArgumentParser, verbs: Sequence[str], before: Sequence[str], current: str
) -> list[tuple[str, str]]:
    shown = [one for one in parser._actions if one.help != argparse.SUPPRESS]
    by_name = {name: one for one in shown for name in one.option_strings}
    positional = [one for one in shown if not one.option_strings]
    position = 0
    waiting: argparse.Action | None = None  # the option whose value comes next
    for at, word in enumerate(before):
        if waiting is None and word.startswith("-"):
            option = by_name.get(word)
            waiting = option if option is not None and option.nargs != 0 else None
        elif waiting is not None:
            waiting = None
        else:
            verb = _subcommand_parser(positional[position:], word)
            if verb is not None:
                return _complete_command(verb, (), before[at + 1 :], current)
            position += 1
    if waiting is not None and not (waiting.nargs == "?" and current.startswith("-")):
        return _complete_value(waiting)
    if current.startswith("-"):
        return [(name, _help_text(one)) for name, one in by_name.items()]
    if not positional:
        return []
    words = [(verb, "") for verb in verbs] if position == 0 else []
    return words + _complete_value(positional[min(position, len(positional) - 1)])


def _subcommand_parser(
    positional: Sequence[argparse.Action], word: str
) -> argparse.ArgumentParser | None:
    """Return the parser of a verb that has its own options; None: the word is not such a verb."""
    verbs = positional[0].choices if positional else None
    found = verbs.get(word) if isinstance(verbs, dict) else None
    return found if isinstance(found, argparse.ArgumentParser) else None


def _complete_value(action: argparse.Action) -> list[tuple[str, str]]:
    if action.choices:
        return [(str(one), "") for one in action.choices if one != _WORDS_COMMAND]
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if metavar == "KEY":
        from watchdog_app.core.model.settings import SETTINGS

        return [(key, "") for key in SETTINGS]
    return _running_tasks() if metavar in _TASK_VALUES else []


def _help_text(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default))


def _running_tasks() -> list[tuple[str, str]]:
    """Return the names of the running tasks, then their pids; empty without a daemon."""
    status = find_status(timeout_s=1.0)
    tasks = () if status is None else status.tasks
    # Skip names that a shell would split or interpret. The user can type the pid instead.
    names = dict.fromkeys(one.name or "" for one in tasks)
    safe = [
        name
        for name in names
        if name and name.isprintable() and not set(name) & set(" '\"\\$`:;&|<>*?")
    ]
    pids = [(str(one.pid), one.name or "") for one in tasks if one.pid is not None]
    return [(name, "") for name in safe] + [(pid, plain(name)) for pid, name in pids]
