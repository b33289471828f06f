"""
Every error that watchdog raises, in one tree.

Operating system and driver errors are translated once, at the edge where they
happen, and keep their cause. Each message says what happened, what it means
now and what to do. The exit code rides in the error, so that the command line
turns any of them into text and a status in one place.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NO_DAEMON = 3


class WatchdogError(Exception):
    """Root of the tree: something that a person can be told in plain words."""

    exit_code = EXIT_FAILURE


class ConfigError(WatchdogError):
    """A configuration file holds an unknown key or a bad value."""

    exit_code = EXIT_USAGE


class UsageError(WatchdogError):
    """A command was given words that make no sense together."""

    exit_code = EXIT_USAGE


class DaemonNotRunning(WatchdogError):
    """No process listens on the socket."""

    exit_code = EXIT_NO_DAEMON


class AlreadyRunning(WatchdogError):
    """Another daemon of this user holds the lock."""


class ProtocolError(WatchdogError):
    """A peer sent bytes that are not a message of ours, or too many of them."""


class DaemonFull(ProtocolError):
    """The daemon runs and has no room for one more connection: it answers to nothing."""


class RequestError(WatchdogError):
    """The daemon understood a request and refused it."""

    def __init__(self, message: str, code: int = -32000) -> None:
        super().__init__(message)
        self.code = code


NOT_FOUND, SEVERAL_FIT = -32002, -32003  # codes of the protocol


class TaskNotFound(RequestError):
    """No watched task, or more than one, answers to the pid, notebook or script that was named."""

    def __init__(
        self, message: str, code: int = NOT_FOUND, candidates: tuple[dict[str, object], ...] = ()
    ) -> None:
        super().__init__(message, code)
        self.candidates = candidates  # {"pid", "name"} of each task that could have been meant


class SensorError(WatchdogError):
    """Root of what can go wrong while reading the machine."""


class Gone(SensorError):
    """The process or device ended while it was read: normal, never logged loudly."""


class Denied(SensorError):
    """The machine has the figure and does not let this user see it."""


class Unsupported(SensorError):
    """This machine, kernel or driver has no such figure."""


class ActionError(WatchdogError):
    """An action could not be carried out; nothing was half done."""


class TargetGone(ActionError):
    """The process ended between the decision and the action: a clean end, nothing to undo."""


class TargetDenied(ActionError):
    """The process is not ours to touch: another user's, watchdog itself, or the kernel's."""


class RescueError(WatchdogError):
    """A rescue could not be written, or one on disk cannot be used."""


class RescueDamaged(RescueError):
    """A rescue on disk is incomplete or its checksums do not match."""


class RescueMismatch(RescueError):
    """
    A rescue is whole, but does not fit the program; the message names the differences.

    Attributes:
        differences: each in words.
        may_be_forced: whether `resume="force"` resumes although they differ.
    """

    def __init__(
        self, message: str, differences: tuple[str, ...] = (), *, may_be_forced: bool = False
    ) -> None:
        super().__init__(message)
        self.differences = differences
        self.may_be_forced = may_be_forced
