"""`watchdog completion`: what makes a shell complete watchdog's words."""

from __future__ import annotations

import sys

from watchdog_app.base.errors import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

NAME = "completion"
HELP = "print what makes a shell complete watchdog's words"
DESCRIPTION = """\
Print the completion script of a shell. It completes commands, options, and the names of the
tasks that are running."""
EPILOG = """\
examples:
  bash: d=~/.local/share/bash-completion/completions
        mkdir -p $d && watchdog completion bash > $d/watchdog
  zsh:  watchdog completion zsh > ~/.zfunc/_watchdog
        with fpath+=~/.zfunc before compinit in ~/.zshrc
  fish: watchdog completion fish > ~/.config/fish/completions/watchdog.fish

exit codes: 0 printed, 2 usage"""

_SHELLS = ("bash", "zsh", "fish")
_TASKS = "tasks"  # asked by the scripts themselves: pids and names, a line each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument(
        "shell", choices=(*_SHELLS, _TASKS), metavar="SHELL", help=f"one of {', '.join(_SHELLS)}"
    )


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    if args.shell == _TASKS:
        for line in _tasks():
            print(line)
        return EXIT_OK
    from watchdog_app.cli.completion_scripts import script

    sys.stdout.write(script(args.shell))
    return EXIT_OK


def _tasks() -> list[str]:
    """Names of the running tasks, then their pids; nothing without a daemon."""
    from watchdog_app.base.errors import WatchdogError
    from watchdog_app.client.client import Client
    from watchdog_app.core.model.status import Status

    try:
        with Client.connect(timeout_s=1.0) as daemon:
            tasks = Status.read(daemon.call("status")).tasks
    except WatchdogError:
        return []
    names = dict.fromkeys(one.name or "" for one in tasks)
    # A name that a shell would split or act on is left to be typed as a pid.
    safe = [
        name for name in names if name.isprintable() and not set(name) & set(" '\"\\$`:;&|<>*?")
    ]
    return safe + [str(one.pid) for one in tasks if one.pid is not None]
