"""
All exceptions of watchdog, in one tree.

The code that calls the operating system or a driver translates its errors and keeps the cause.
Each message says what happened, what it means and what to do. An exception has its exit code, so
that the command line handles all of them in one place.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NO_DAEMON = 3


class WatchdogError(Exception):
    """Root of the tree: an error with a message for the user."""

    exit_code = EXIT_FAILURE


class ConfigError(WatchdogError):
    """A configuration file has an unknown key or an invalid value."""

    exit_code = EXIT_USAGE


class UsageError(WatchdogError):
    """The arguments of a command are invalid."""

    exit_code = EXIT_USAGE


class DaemonNotRunning(WatchdogError):
    """No daemon listens on the socket."""

    exit_code = EXIT_NO_DAEMON


class AlreadyRunning(WatchdogError):
    """Another daemon of this user holds the lock."""


class ProtocolError(WatchdogError):
    """A peer sent bytes that are not a valid message, or too many of them."""


class DaemonFull(ProtocolError):
    """The daemon has no room for another connection, so it does not answer."""


class RequestError(WatchdogError):
    """
    The daemon understood a request and refused it.

    Args:
        message: text for the user.
        code: code of the error in the protocol.
    """

    def __init__(self, message: str, code: int = -32000) -> None:
        super().__init__(message)
        self.code = code


NOT_FOUND, SEVERAL_FIT = -32002, -32003  # codes of the protocol


class TaskNotFound(RequestError):
    """
    No watched task, or more than one, matches the named pid, notebook or script.

    Args:
        message: text for the user.
        code: `NOT_FOUND` or `SEVERAL_FIT`.
        candidates: tasks that the user may have meant: pid and name.
    """

    def __init__(
        self, message: str, code: int = NOT_FOUND, candidates: tuple[dict[str, object], ...] = ()
    ) -> None:
        super().__init__(message, code)
        self.candidates = candidates  # {"pid", "name"} of each possible task


class SensorError(WatchdogError):
    """Root of the errors while reading the machine."""


class Gone(SensorError):
    """The process or device disappeared during the read: normal, not logged as an error."""


class Denied(SensorError):
    """This user may not read the figure."""


class Unsupported(SensorError):
    """This machine, kernel or driver does not have the figure."""


class ActionError(WatchdogError):
    """An action failed and changed nothing."""


class TargetGone(ActionError):
    """The process ended between the decision and the action; nothing to undo."""


class TargetDenied(ActionError):
    """Watchdog must not act on the process: another user's, watchdog itself, or the kernel's."""


class RescueError(WatchdogError):
    """A rescue could not be written, or one on disk cannot be used."""


class RescueDamaged(RescueError):
    """A rescue on disk is incomplete or its checksums do not match."""


class RescueMismatch(RescueError):
    """
    A rescue is complete, but does not fit the program; the message names the differences.

    Attributes:
        differences: the differences in words.
        may_be_forced: whether `resume="force"` resumes in spite of them.
    """

    def __init__(
        self, message: str, differences: tuple[str, ...] = (), *, may_be_forced: bool = False
    ) -> None:
        super().__init__(message)
        self.differences = differences
        self.may_be_forced = may_be_forced
