"""The watchdog command: one file a subcommand."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """
    Carry out one command line; the exit code.

    Args:
        argv: the words after `watchdog`; None: those of this process.
    """
    from watchdog_app.cli.dispatch import main as dispatch

    return dispatch(argv)
