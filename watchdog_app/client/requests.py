"""
The parameters of each method, one record each. The daemon validates them strictly.

Null and absent mean the same. packaging/protocol_tables.py prints the tables of docs/protocol.md
from these records: a docstring describes the answer, a comment behind a field describes that field.
"""

from __future__ import annotations

from functools import cache

from watchdog_app.base.errors import RequestError
from watchdog_app.client.jsonrpc import INVALID_PARAMS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, Self

ROLES = ("cli", "tray", "agent", "phone")
TOPICS = ("status", "notifications")
KINDS = ("incident", "decision", "outcome", "exit", "restart", "daemon", "run")

_MAX_INT = 2**53  # the largest whole number that JSON readers keep exact
_MOST_PID = 2**31 - 1
_MOST_UNIX_S = 1e11
_PATH_BYTES = 4096  # longest path of a file
_REQUIRED: Any = object()


class _InvalidValue(Exception):
    """A value is not valid for its field; the message says why."""


class Field:
    """
    A parameter.

    Args:
        read: validates and converts a value; raises _InvalidValue with the reason.
        default: the value if the parameter is absent.
    """

    __slots__ = ("default", "read")

    def __init__(self, read: Callable[[Any], Any], default: Any) -> None:
        self.read = read
        self.default = default


class Params:
    """The parameters of a message. A subclass declares its fields."""

    FIELDS: ClassVar[dict[str, Field]] = {}

    def __init_subclass__(cls, method: str = "") -> None:
        """Collect the fields; `method` is the name of the message."""
        cls.FIELDS = {name: each for name, each in vars(cls).items() if isinstance(each, Field)}
        if method:
            METHODS[method] = cls

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Self:
        """
        The parameters of one message.

        Raises:
            RequestError: -32602; the message names the invalid parameter.
        """
        record = object.__new__(cls)
        for name, each in cls.FIELDS.items():
            value = raw.get(name)
            if value is None and each.default is _REQUIRED:
                raise RequestError(f"Parameter {name} is missing.", INVALID_PARAMS)
            try:
                record.__dict__[name] = each.default if value is None else each.read(value)
            except _InvalidValue as error:
                raise RequestError(f"Parameter {name} {error}.", INVALID_PARAMS) from None
        return record

    def values(self) -> dict[str, Any]:
        """The values by name; nested records become dictionaries."""
        return {name: _to_plain(value) for name, value in self.__dict__.items()}


def _to_plain(value: Any) -> Any:
    if isinstance(value, Params):
        return value.values()
    return tuple(map(_to_plain, value)) if isinstance(value, tuple) else value


METHODS: dict[str, type[Params]] = {}


def _require(right: bool, wrong: str) -> None:
    """Raise _InvalidValue with the message `wrong` unless `right`."""
    if not right:
        raise _InvalidValue(wrong)


@cache  # share one Field for equal arguments: saves 0.1 MB
def text(
    most_chars: int = 4096,
    *,
    default: Any = _REQUIRED,
    ascii_only: bool = False,
    most_bytes: int | None = None,
) -> Any:
    """
    A text parameter.

    Args:
        most_chars: maximum length in characters.
        default: the value if the parameter is absent.
        ascii_only: replace other characters by question marks, for words of a framework or driver.
        most_bytes: maximum length in UTF-8; None: only `most_chars` applies.
    """

    def read(value: Any) -> str:
        _require(isinstance(value, str), "must be a text")
        found: str = value
        _require(len(found) <= most_chars, f"is longer than {most_chars} characters")
        if most_bytes is not None:
            size = len(found.encode("utf-8", "replace"))
            _require(size <= most_bytes, f"is longer than {most_bytes} bytes")
        return found.encode("ascii", "replace").decode() if ascii_only else found

    return Field(read, default)


def word(allowed: tuple[str, ...]) -> Any:
    """A parameter that must be one of these words."""

    def read(value: Any) -> str:
        _require(
            isinstance(value, str) and value in allowed, f"must be one of {', '.join(allowed)}"
        )
        return str(value)

    return Field(read, _REQUIRED)


@cache
def integer(low: int = 0, high: int = 2**63 - 1, *, default: Any = _REQUIRED) -> Any:
    """
    A whole number within [low, high].

    Args:
        low: the minimum.
        high: the maximum.
        default: the value if the parameter is absent.
    """

    def read(value: Any) -> int:
        right = isinstance(value, int) and not isinstance(value, bool)
        _require(right, "must be a whole number")
        _require(low <= value <= high, f"must be between {low} and {high}")
        return int(value)

    return Field(read, default)


@cache
def number(
    low: float = -1.7e308, high: float = 1.7e308, *, default: Any = None, lenient: bool = False
) -> Any:
    """
    A finite number within [low, high].

    Args:
        low: the minimum.
        high: the maximum.
        default: the value if the parameter is absent.
        lenient: read any other value as absent, because JSON cannot represent an infinite loss.
    """

    def read(value: Any) -> Any:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        inside = right and low <= value <= high  # False for NaN
        if lenient and not inside:
            return default
        _require(right, "must be a number")
        _require(inside, f"must be between {low:g} and {high:g}")
        return float(value)

    return Field(read, default)


@cache
def flag(*, default: Any = False) -> Any:
    """True or false."""

    def read(value: Any) -> bool:
        _require(isinstance(value, bool), "must be true or false")
        return bool(value)

    return Field(read, default)


def nested(record: type[Params], *, default: Any = None) -> Any:
    """
    An object parameter.

    Args:
        record: the class that reads the object.
        default: the value if the parameter is absent.
    """

    def read(value: Any) -> Params:
        _require(isinstance(value, dict), "must be an object")
        return record.read(value)

    return Field(read, default)


def list_of(each: Field, most: int) -> Any:
    """
    A list parameter; empty if absent.

    Args:
        each: the field that reads an entry.
        most: maximum number of entries.
    """

    def read(value: Any) -> tuple[Any, ...]:
        _require(isinstance(value, list), "must be a list")
        _require(len(value) <= most, f"has more than {most} entries")
        return tuple(map(each.read, value))

    return Field(read, ())


_AMOUNT: Any = integer(0, _MAX_INT, default=None)

# What clients ask the daemon


class Hello(Params, method="hello"):
    """`protocol`, `version`, `pid`."""

    protocol: int = integer(1, 1_000_000)  # 2
    role: str = word(ROLES)  # cli, tray, agent or phone
    version: str = text(100, default="?")  # of the client


class Status(Params, method="status"):
    """The [status](status-json.md)."""


class Subscribe(Params, method="subscribe"):
    """
    `{}`; then messages `status` and `notification`.

    The daemon sends the status after a sample, at most once a second.
    """

    topics: tuple[str, ...] = list_of(word(TOPICS), 10)  # status, notifications


class NotificationShown(Params, method="notification.shown"):
    """`{}`; a tray acknowledges a `notification` within 2 s."""

    id: str = text(200)  # of the notification
    delivered: bool = flag()  # whether it was shown
    detail: str = text(default="")  # how, or why not


class NotificationAnswer(Params, method="notification.answer"):
    """
    The answer of the action that was offered with this one-time token.

    Refused with -32002: the daemon did not offer it, or it was answered before.
    """

    token: str = text(200)


class SendTestNotification(Params, method="notify.test"):
    """`channels[]`: `{name, delivered, detail}`; sends a notification through each channel."""

    channels: tuple[str, ...] = list_of(text(40), 20)  # names; empty: all that are on


class PauseTask(Params, method="task.pause"):
    """`task`, `name`, `kind`, `pids`, `method`."""

    task: str = text()


class ResumeTask(Params, method="task.resume"):
    """`resumed`: list of `{task, name, kind, pids}`; `failures`: list of texts."""

    task: str | None = text(default=None)  # null: all


class CheckpointTask(Params, method="task.checkpoint"):
    """
    `requests`: list of `{task, name, status, detail, rescue}`.

    `status` is requested, done, failed or refused. `rescue` is a [Rescue](status-json.md#rescue),
    null until the save is done.
    """

    task: str | None = text(default=None)  # null: all
    wait: bool = flag()  # answer when all have saved or failed
    timeout_s: float | None = number(0.1, 600.0)


class DumpStacks(Params, method="task.stacks"):
    """
    `task`, `name`, `answered`, `last_seen`, `last_seen_s`, `processes[]`, `reasons[]`; within 3 s.

    `answered` is null without an agent, false if the agent could not run. `last_seen` is the place
    in the program that the agent reported last. `processes[]`: `{pid, ppid, name, state,
    thread_count, agent, threads[]: {tid, name, state, wchan, syscall, kernel[], trains, frames[]:
    {file, line, function}}}`. `reasons[]`: `{kind, text, facts[], remedy}`, the most likely first.
    """

    task: str = text()


class FindLeaks(Params, method="task.leaks"):
    """
    `task`, `name`, `seconds`, `steps`, `refused`, `complete`, `lines[]`, `tensors[]`, `advice[]`.

    `refused` says why the lines are unknown. `tensors_counted` is false if workers share the
    memory. `cut_short` is true if the search stopped early because the traces took too much memory.
    `lines[]`: `{file, line, own, bytes, bytes_per_step}`; `tensors[]`: `{type, shape, more}`.
    """

    task: str = text()
    seconds: float = number(1.0, 120.0, default=10.0)  # duration of the search


class Explain(Params, method="explain"):
    """
    `text`, `incidents[]`, `pid` (of a running task, else null); for a death `death`, `death_text`.

    The death is the one that `task` names, or the last within 12 h. `plot` shows the time before
    it: `begin_unix_s`, `end_unix_s`, `name`, `points` as in `series`, `resource` (`kind`, `label`,
    `limit`, `points`, or null), `marks[]` (`unix_s`, `kind`: saved, warned, paused, resumed or
    death). Without a death all three are null.
    """

    task: str | None = text(default=None)  # running or ended: pid, name, path, kernel id, incident
    minutes: float = number(0.1, 1440.0, default=10.0)  # time span of the plot


class History(Params, method="history"):
    """
    `entries`: newest first, `{unix_s, kind, ...}`.

    An incident has the fields of [Incident](status-json.md#incident). A series of saves is one
    entry, see below.
    """

    since_unix_s: float | None = number(0, _MOST_UNIX_S)
    until_unix_s: float | None = number(0, _MOST_UNIX_S)
    task: str | None = text(default=None)
    limit: int = integer(1, 1000, default=100)
    # Any of incident, decision, outcome, exit, restart, daemon, run; empty: all.
    kinds: tuple[str, ...] = list_of(word(KINDS), 10)
    all_exits: bool = flag()  # exits that are not notable and runs, too


class ForgetRuns(Params, method="runs.forget"):
    """`forgotten`: the number of deleted runs."""

    program: str | None = text(default=None)  # name or path; null: every program


class Series(Params, method="series"):
    """
    `series[]`: `{kind, ident, name, path, pid, unit, points}`, the series of the task first.

    The series of the resources that can limit the task follow. `points` are `[unix_s, used, limit,
    swap]`, oldest first.
    """

    task: str | None = text(default=None)  # pid, or part of a name or path; null: every series
    since_unix_s: float | None = number(0, _MOST_UNIX_S)
    until_unix_s: float | None = number(0, _MOST_UNIX_S)
    limit: int = integer(1, 10_000, default=10_000)  # points in total; the newest are kept


class Config(Params, method="config"):
    """`settings`: list of `{key, value, source, help, accepted}`."""


class Reload(Params, method="reload"):
    """`{}`, or the error in the configuration file."""


class SetProtection(Params, method="protection.set"):
    """`on`, `until_unix_s` (when protection turns on again, or null)."""

    on: bool = flag(default=_REQUIRED)
    for_s: float | None = number(1, 30 * 86400.0)  # only with on false; null: until turned on


class SnoozeNotifications(Params, method="snooze"):
    """`incident`, `task` (pid), `name`, `until_unix_s` (null: ended)."""

    incident: str | None = text(200, default=None)  # id of an incident
    task: str | None = text(default=None)  # without incident and task: every notification
    for_s: float = number(0, 86400.0, default=_REQUIRED)  # 0 ends the snooze


class LimitGuard(Params, method="guard.limit"):
    """`task`, `name`, `text` (what the guard did); refused without a [guard](exec.md)."""

    task: str = text()
    limit_bytes: int | None = integer(1, _MAX_INT, default=None)  # give one of these four
    more: bool = flag()  # raise the limit by a step
    unlimited: bool = flag()  # remove the limit
    end: bool = flag()  # end the training


class Stop(Params, method="stop"):
    """`{}`; then the daemon ends."""


# What agents send to the daemon


class Rescue(Params):
    """A rescue on disk, as its agent reports it."""

    path: str = text(most_bytes=_PATH_BYTES)
    step: int = integer(0, _MAX_INT)
    bytes: int = integer(0, _MAX_INT)
    seconds: float = number(0, 1e7, default=0.0)
    saved_unix_s: float | None = number(0, _MOST_UNIX_S)
    exact: bool | None = flag(default=None)
    missing: tuple[str, ...] = list_of(text(300), 16)
    reason: str | None = text(default=None)


class Frame(Params):
    """A line of a Python stack."""

    file: str = text(300)
    line: int | None = integer(0, 2**31 - 1, default=None)
    function: str = text(200)


class Buffer(Params):
    """A buffer of the input pipeline."""

    what: str = text(100)
    bytes: int = integer(0, _MAX_INT)


class MemoryParts(Params):
    """The parts of a training's memory."""

    batch_size: int | None = integer(1, _MAX_INT, default=None)
    weights_bytes: int | None = _AMOUNT
    gradients_bytes: int | None = _AMOUNT
    optimizer_bytes: int | None = _AMOUNT
    activations_bytes: int | None = _AMOUNT
    resident_bytes: int | None = _AMOUNT
    base_bytes: int | None = _AMOUNT
    buffers: tuple[Buffer, ...] = list_of(nested(Buffer), 16)
    python_blocks: int | None = _AMOUNT
    python_blocks_per_step: float | None = number(-1e12, 1e12)


class Allocator(Params):
    """The state of a framework's allocator on one device."""

    device: str = text(100, ascii_only=True)
    used_bytes: int = integer(0, _MAX_INT)
    limit_bytes: int = integer(1, _MAX_INT)
    gpu_uuid: str | None = text(100, default=None, ascii_only=True)
    peak_bytes: int | None = _AMOUNT
    retries: int | None = _AMOUNT
    ooms: int | None = _AMOUNT


class RegisterAgent(Params, method="agent.register"):
    """
    `segments`, `grace_s`.

    `segments` is the path of a socket, or null. There the agent hands over the memory in which it
    publishes its state ([guard](exec.md#what-is-copied-from-outside)).
    """

    pid: int = integer(1, _MOST_PID)  # of this process; the daemon checks it with the kernel
    start_time: int = integer()  # see below
    framework: str = text(100)  # keras, torch, tensorflow ...
    directory: str = text(most_bytes=_PATH_BYTES)  # folder of its rescues
    notebook: str | None = text(default=None)
    # false: a user must run lines that its next run names
    resumes_itself: bool = flag(default=True)
    rank: int | None = integer(default=None)  # of this process, as its launcher set it
    world_size: int | None = integer(default=None)  # processes of the launcher
    cell: int | None = integer(default=None)  # number for the notebook's cell that trains
    rescue: Rescue | None = nested(Rescue)  # the last rescue before this connection


class Report(Params, method="agent.report"):
    """At most once a second; a new phase or announcement within 0.25 s."""

    training: bool = flag()
    state_bytes: int | None = _AMOUNT
    step_s: float | None = number(0, 1e7)
    save_s: float | None = number(0, 1e7)
    step: int | None = _AMOUNT
    epoch: int | None = _AMOUNT
    batch: int | None = _AMOUNT
    steps_left: int | None = _AMOUNT  # iterations of the program's loops that have not begun
    epoch_steps: int | None = _AMOUNT  # iterations in one pass over the data
    loss: float | None = number(lenient=True)
    phase: str | None = text(40, default=None)  # train, validate, save, epoch_end, or another word
    expected_bytes: int | None = _AMOUNT  # announced growth, after which the memory stays constant
    expected_for: str | None = text(100, default=None)  # reason for the growth
    expected_number: int | None = _AMOUNT  # a new number is a new announcement
    expected_at_most: bool = flag()  # an upper bound: it explains growth, but does not predict it
    allocators: tuple[Allocator, ...] = list_of(nested(Allocator), 64)  # as in the status
    not_restored: tuple[str, ...] = list_of(text(300), 16)  # parts that a resume will not restore
    memory: MemoryParts | None = nested(MemoryParts)  # as in the status
    place: Frame | None = nested(Frame)  # current place in the program


class AgentNotebook(Params, method="agent.notebook"):
    """
    For kernels that alone know the name of their notebook (VS Code). No registration is needed.
    """

    pid: int = integer(1, _MOST_PID)
    start_time: int = integer()
    notebook: str = text()


class Thread(Params):
    """A thread as Python knows it, without the values of variables."""

    native_id: int | None = integer(0, _MOST_PID, default=None)
    name: str = text(100, default="?")
    trains: bool = flag()
    frames: tuple[Frame, ...] = list_of(nested(Frame), 40)


class Stacked(Params, method="agent.stacked"):
    """The answer to `agent.stacks`, without the values of variables."""

    request: str = text(200)
    threads: tuple[Thread, ...] = list_of(nested(Thread), 64)  # native_id, name, trains, frames


class Line(Params):
    """A line whose allocations grow."""

    file: str = text(300)
    line: int = integer(0, 2**31 - 1)
    bytes: int = integer(0, _MAX_INT)
    bytes_per_step: float | None = number(0, 1e16)
    own: bool = flag(default=True)


class Tensors(Params):
    """Tensors of one type and shape whose number grows."""

    type: str = text(100)
    shape: tuple[int, ...] = list_of(integer(0, _MAX_INT), 16)
    more: int = integer(1, _MAX_INT)


class Leaked(Params, method="agent.leaked"):
    """The answer to `agent.leaks`, as in `task.leaks`."""

    request: str = text(200)
    interim: bool = flag()  # first answer; another follows
    seconds: float = number(0, 1e6, default=0.0)
    steps: int | None = integer(1, _MAX_INT, default=None)
    refused: str | None = text(200, default=None)
    complete: bool = flag()
    tensors_counted: bool = flag(default=True)
    cut_short: bool = flag()
    lines: tuple[Line, ...] = list_of(nested(Line), 20)  # as in `task.leaks`
    tensors: tuple[Tensors, ...] = list_of(nested(Tensors), 20)  # as in `task.leaks`


class Progress(Params, method="agent.progress"):
    """A save begins."""

    request: str | None = text(200, default=None)


class Saved(Params, method="agent.saved"):
    """A rescue is complete. Extra fields are allowed."""

    request: str | None = text(200, default=None)  # null: the agent saved without a request
    rescue: Rescue = nested(Rescue, default=_REQUIRED)  # as in the status


class Failed(Params, method="agent.failed"):
    """A save has failed."""

    request: str | None = text(200, default=None)
    error: str = text(default="The agent did not say why.")
    remedy: str | None = text(default=None)


class Bye(Params, method="agent.bye"):
    """The training or the interpreter ends."""

    finished: bool = flag(default=True)  # the training succeeded; false: the interpreter exits
    failed: bool = flag()  # an uncaught exception ends the training
