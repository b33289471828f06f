"""The `watchdog` command. Each subcommand has one module."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """
    Run one command line and return its exit code.

    Args:
        argv: the words after `watchdog`; None: the arguments of this process.
    """
    from watchdog_app.cli.dispatch import main as dispatch

    return dispatch(argv)
