"""
The status as clients read it: records whose annotations are version 2 of the JSON schema.

A comment behind or above a field says what it means; docs/status-json.md is printed from both.
Reading never fails: what does not fit its annotation is None or empty.
"""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_duration, number_or_none
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar, Self

    Reader = Callable[[Any], Any]

SCHEMA_VERSION = 2
_OLD_S = 10.0  # a reading older than this, and than five intervals, says nothing about now


def _read_int(value: Any) -> int | None:
    known = number_or_none(value)  # a pid of 4.5 is no pid
    return int(known) if known is not None and known == int(known) else None


def _read_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tuple_reader(read: Reader) -> Reader:
    def items(value: Any) -> tuple[Any, ...]:
        found = (read(each) for each in value) if isinstance(value, list | tuple) else ()
        return tuple(each for each in found if each is not None)

    return items


_READERS: dict[str, Reader] = {
    "float | None": number_or_none,
    "int | None": _read_int,
    "bool | None": lambda value: value if isinstance(value, bool) else None,
    "bool": lambda value: value is True,
    "str": _read_text,
    "str | None": lambda value: value if isinstance(value, str) else None,
    "tuple[str, ...]": _tuple_reader(lambda value: value if isinstance(value, str) else None),
    "tuple[int, ...]": _tuple_reader(_read_int),
}


def _to_json(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, Level):
        return value.name.lower()
    return number_or_none(value) if isinstance(value, float) else value


class Record:
    """An object of the status. A subclass declares its fields by annotations."""

    FIELDS: ClassVar[tuple[tuple[str, Reader | None], ...]] = ()

    def __init__(self, **values: Any) -> None:
        """
        A record of these values.

        Args:
            values: by field; a field that is left out is null, false, empty or level ok.
        """
        fields = self.__dict__
        for name, read in self.FIELDS:
            fields[name] = Level.OK if read is None else read(None)
        if unknown := values.keys() - fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        fields.update(values)

    @classmethod
    def from_object(cls, source: object, **values: Any) -> Self:
        """
        The record with what an object has under the same names.

        Args:
            source: any object.
            values: of the other fields; they count where both are given.
        """
        same = {
            name: value
            for name, _ in cls.FIELDS
            if name not in values and (value := getattr(source, name, None)) is not None
        }
        return cls(**same, **values)

    def to_json(self) -> dict[str, Any]:
        """The record as an object of JSON, without infinite numbers."""
        return {name: _to_json(value) for name, value in self.__dict__.items()}

    def __init_subclass__(cls) -> None:
        """Prepare the readers of the fields, and those of fields that hold this record."""
        cls.FIELDS = tuple(
            (name, None if form == "Level" else _READERS[form])
            for name, form in cls.__annotations__.items()
            if not form.startswith("ClassVar")
        )
        _READERS[cls.__name__] = cls.read
        _READERS[f"{cls.__name__} | None"] = cls.read_object
        _READERS[f"tuple[{cls.__name__}, ...]"] = _tuple_reader(cls.read_object)

    @classmethod
    def read(cls, raw: Any) -> Self:
        """
        The record in a value out of JSON.

        Args:
            raw: an object; of anything else every field is unknown.
        """
        values = raw if isinstance(raw, dict) else {}
        record = object.__new__(cls)
        fields = record.__dict__
        for name, read in cls.FIELDS:
            fields[name] = Level.from_json(values) if read is None else read(values.get(name))
        return record

    @classmethod
    def read_object(cls, raw: Any) -> Self | None:
        """As `read`; None for what is no object."""
        return cls.read(raw) if isinstance(raw, dict) else None

    def __eq__(self, other: object) -> bool:
        """Whether every field is equal."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class Host(Record):
    """The machine, or what of it a container may see."""

    name: str | None  # its host name
    memory_total_bytes: int | None  # MemTotal
    memory_available_bytes: int | None  # what can be had without swapping (MemAvailable)
    swap_total_bytes: int | None  # 0 where there is no swap
    swap_free_bytes: int | None  # of it unused
    swap_in_bytes_per_s: float | None  # read back from swap
    swap_out_bytes_per_s: float | None  # written to swap
    shm_used_bytes: int | None  # files in /dev/shm
    shm_limit_bytes: int | None  # the size of /dev/shm
    pressure_some_avg10_percent: float | None  # time in which a task waited for memory (PSI)
    pressure_full_avg10_percent: float | None  # time in which all tasks waited for memory (PSI)

    @property
    def swap_slope_bytes_per_s(self) -> float | None:
        """How fast swap fills up."""
        out, back = self.swap_out_bytes_per_s, self.swap_in_bytes_per_s
        return None if out is None or back is None else out - back


class Delivery(Record):
    """What became of the notifications since the daemon started."""

    shown: int | None  # brought to a person
    undelivered: int | None  # no channel could show them
    suppressed: int | None  # by a snooze, quiet hours or a rule
    last_failure: str | None  # why the last undelivered one was not shown
    tray_connected: bool | None  # a tray shows them
    quiet_hours: bool | None  # they are on now


class Protection(Record):
    """Whether watchdog warns, saves and pauses."""

    on: bool | None  # false: it only watches
    until_unix_s: float | None  # when it switches on again; null: never without a request


class Snooze(Record):
    """Notifications that a person does not want for a while."""

    incident: str | None  # id of the incident; null: another choice, or all
    task: int | None  # pid of the task; null: another choice, or all
    name: str | None  # of that task
    until_unix_s: float | None  # when it ends


class Daemon(Record):
    """The daemon that measured."""

    pid: int | None  # of its process
    version: str | None  # of watchdog
    uptime_s: float | None  # since it started
    interval_s: float | None  # between two samples now
    rss_bytes: int | None  # its own memory
    cpu_percent: float | None  # of one core
    samples: int | None  # taken since it started
    missed_samples: int | None  # that came more than an interval late
    max_lag_s: float | None  # the most that a sample was late
    locked_memory: bool | None  # its memory cannot be swapped out
    locked_memory_detail: str | None  # why not, or how much
    notifications: Delivery | None  # null: this daemon does not say
    protection: Protection | None  # null: this daemon does not say
    snoozed: tuple[Snooze, ...]  # what is snoozed now


class Resource(Record):
    """Something that can run out: RAM, a cgroup limit, a GPU's memory, a temperature."""

    # ram, ram_swap, cgroup, guard, rlimit_as, shm, disk, gpu_memory, gpu_allocator, temperature or
    # battery.
    kind: str
    subject: str  # which of its kind: a cgroup path, a pid, the id of a GPU; may be empty
    device: str | None  # id of the GPU that it is on
    label: str | None  # as a person reads it: "memory limit of the group jupyter"
    used: float | None  # in its unit
    limit: float | None  # in its unit; reaching it exhausts the resource
    unit: str  # bytes, celsius, watts or ratio
    ratio: float | None  # used / limit
    fatal: bool  # reaching the limit kills; false: it only slows down
    # When screens list it: always, usual, half_full, in_danger or counted (among those far away).
    display: str
    on_icon: bool  # the tray icon shows it while nothing is in danger
    exhausted: str  # what it is at its limit: "full", "empty", "switches off from heat"
    note: str | None  # how it was measured, where that is not obvious
    stage: str  # of the policy: ok, watch, warn, save or pause
    level: Level  # how urgent it is for people
    # unknown, flat, falling, linear, saturating (heat), staircase, sawtooth or burst.
    growth: str
    slope_per_s: float | None  # in its unit
    eta_s: float | None  # time to exhaustion, median; null: none is foreseen
    eta_low_s: float | None  # 80 % interval, lower end
    eta_high_s: float | None  # 80 % interval, upper end; null beside eta_s: open
    reason: str | None  # how the forecast was made, or why there is none
    tasks: tuple[int, ...]  # pids of the tasks that it can hit

    def end(self, *, interval: bool = True) -> str:
        """
        What it comes to and when: `full in 4 min (3-7 min)`; empty where nothing is foreseen.

        Args:
            interval: whether to say the 80 % interval as well.
        """
        low, high = (self.eta_low_s, self.eta_high_s) if interval else (None, None)
        when = quantities.eta(self.eta_s, low, high)
        return "" if when == quantities.NONE else f"{self.exhausted or 'full'} in {when}"


class Health(Record):
    """How a GPU is, by its state and by its open incidents."""

    severity: str  # ok, note, warning or critical
    title: str | None  # "is lost"; null while it is well
    reason: str | None  # what was seen
    remedy: str | None  # what to do
    device_works: bool | None  # false: nothing can compute on it now
    work_lost: bool  # what trained on it has to be restarted


class GpuEvent(Record):
    """A fault that the driver reported."""

    code: int | None  # of NVIDIA the Xid
    text: str | None  # what it means; null: not known
    at_unix_s: float | None  # when it was reported
    pid: int | None  # of the process that it hit, where the driver says so


class GpuProcess(Record):
    """A process that has memory on a GPU."""

    pid: int | None  # of the process
    task: int | None  # pid of the task that it belongs to; null: it is not watched
    name: str | None  # of that task
    memory_bytes: int | None  # on this GPU; null: the driver does not say
    foreign: bool  # its pid is of another namespace


class Gpu(Record):
    """A GPU, or a partition of one (MIG)."""

    id: str | None  # PCI address; of a partition that and its instance
    index: int | None  # the driver's number
    uuid: str | None  # the driver's UUID
    name: str | None  # model
    parent_id: str | None  # of a partition: id of its GPU
    partition: str | None  # "GI 3 / CI 0"; null: a whole GPU
    state: str | None  # ok, asleep, lost, needs_reset, silent or unreadable
    level: Level  # how urgent it is for people
    health: Health | None  # how it is, in words
    memory_used_bytes: int | None  # by programs
    memory_reserved_bytes: int | None  # by the driver; nobody can have it
    memory_total_bytes: int | None  # of the GPU, reserved memory included
    unified_memory: bool  # it shares the RAM of the machine
    utilization_percent: float | None  # time in which a kernel ran
    temperature_c: float | None  # of the chip
    slowdown_c: float | None  # it lowers its clocks from here on
    shutdown_c: float | None  # it switches off here
    fan_percent: float | None  # of its full speed
    power_w: float | None  # drawn now
    power_limit_w: float | None  # it lowers its clocks to stay below
    throttling: tuple[str, ...]  # why its clocks are lowered now
    ecc_uncorrected: int | None  # memory errors since the last reset
    remap_pending: bool | None  # a reset will replace broken rows of memory
    remap_failed: bool | None  # no spare row was left
    recovery_action: str | None  # what the driver asks for
    events: tuple[GpuEvent, ...]  # of the last hour
    processes: tuple[GpuProcess, ...]  # most memory first
    notes: tuple[str, ...]  # why a figure is null

    @property
    def usable_bytes(self) -> int | None:
        """Memory that programs can have: all but what the driver keeps for itself."""
        total = self.memory_total_bytes
        return None if total is None else total - (self.memory_reserved_bytes or 0)

    @property
    def title(self) -> str:
        """`is lost`: what is wrong with it; empty while it is well."""
        return (self.health.title if self.health else None) or ""


class Temperature(Record):
    """A temperature sensor of the machine."""

    key: str  # which sensor
    label: str | None  # as the system calls it
    celsius: float | None  # now
    slowdown_c: float | None  # the machine lowers its clocks from here on
    shutdown_c: float | None  # the machine switches off here
    is_cpu: bool  # of the processor


class Battery(Record):
    """A battery of the machine."""

    name: str | None  # as the system calls it
    percent: float | None  # left
    discharging: bool | None  # the machine runs on it
    energy_j: float | None  # left
    full_j: float | None  # when it is full
    power_w: float | None  # what it gives


class Hardware(Record):
    """Heat and power of the machine itself."""

    driver_version: str | None  # of the GPUs
    gpus_age_s: float | None  # how old the figures of the GPUs are
    temperatures: tuple[Temperature, ...]  # one entry a sensor
    batteries: tuple[Battery, ...]  # one entry a battery
    on_mains: bool | None  # null: not known
    cpu_throttle_events: int | None  # since the machine started


class GpuUse(Record):
    """What a task has on one GPU."""

    id: str | None  # of the GPU
    uuid: str | None  # of the GPU
    index: int | None  # of the GPU
    memory_bytes: int | None  # of the task on this GPU; null: the driver does not say


class Allocator(Record):
    """What a framework's own allocator says of a GPU."""

    device: str | None  # "GPU:0", "cuda:0"
    gpu_uuid: str | None  # null: the framework does not say
    used_bytes: int | None  # by tensors
    limit_bytes: int | None  # the most that it will take
    peak_bytes: int | None  # the most by tensors so far
    retries: int | None  # allocations that succeeded only after its cache was freed
    ooms: int | None  # allocations that failed


class Buffer(Record):
    """A buffer of the input pipeline."""

    what: str | None  # which buffer
    bytes: int | None  # when it is full


class MemoryParts(Record):
    """What a training's memory is for."""

    batch_size: int | None  # of the training
    weights_bytes: int | None  # of the model
    gradients_bytes: int | None  # of the model
    optimizer_bytes: int | None  # state of the optimizer
    activations_bytes: int | None  # kept from the forward for the backward pass
    resident_bytes: int | None  # all memory of the process when this was measured
    base_bytes: int | None  # before the training began
    buffers: tuple[Buffer, ...]  # of the input pipeline
    python_blocks: int | None  # allocated Python objects
    python_blocks_per_step: float | None  # how many are added at each step


class Rescue(Record):
    """A state on disk that a training can resume from."""

    path: str | None  # its folder
    step: int | None  # that it was saved at
    bytes: int | None  # on disk
    seconds: float | None  # that saving took
    saved_unix_s: float | None  # when it was complete
    exact: bool | None  # a resume repeats every bit; false: see missing
    missing: tuple[str, ...]  # what a resume will not restore
    reason: str | None  # why it was saved


class Agent(Record):
    """The agent in a training."""

    pid: int | None  # of the process that it is in
    framework: str | None  # keras, torch, tensorflow ...
    directory: str | None  # where its rescues are
    training: bool  # a training runs now
    step: int | None  # of the training, counted over its resumes
    epoch: int | None  # counted from 0
    batch: int | None  # in the epoch
    loss: float | None  # of the last step that reported one
    step_s: float | None  # time of a step
    save_s: float | None  # time of the last save
    state_bytes: int | None  # what a save writes
    saving: bool  # it saves now
    outdated: bool  # it speaks an older protocol: restart its kernel to save it
    resumes_itself: bool | None  # false: a person has to run lines that it names
    not_restored: tuple[str, ...]  # what a resume will not bring back
    rank: int | None  # of this process in a distributed training
    world_size: int | None  # processes of the distributed training
    memory: MemoryParts | None  # null before the first step
    allocators: tuple[Allocator, ...]  # one entry a GPU
    rescue: Rescue | None  # the last complete one


class Guard(Record):
    """The guard of a task that was started with `watchdog exec`."""

    pid: int | None  # of the first process in it
    kind: str | None  # cgroup v1, cgroup v2, systemd scope ...
    # running, copying, finishing, stopped, refusing, exiting, unlimited or ending.
    state: str | None
    stopped: bool  # at its limit, until a person decides
    since_unix_s: float | None  # when the state began; null while it just runs
    used_bytes: int | None  # in its group
    limit_bytes: int | None  # of its group
    reserve_bytes: int | None  # given to a step that has to end before it can be saved
    automatic_limit: bool  # the limit follows the free memory of the machine
    reason: str | None  # of its state
    rescue: str | None  # path of the newest copy


class Task(Record):
    """A notebook or script with all its child processes."""

    pid: int | None  # of the root process
    start_time: int | None  # of the root process; with the pid it is unique
    started_unix_s: float | None  # when the root process started
    name: str | None  # "train.ipynb"; untrusted text
    kind: str  # notebook, kernel, console, script, server ...
    notebook: str | None  # path
    script: str | None  # path
    kernel_id: str | None  # of Jupyter
    user: str | None  # of the root process
    state: str | None  # running, sleeping, disk, paused, stopped or zombie
    paused_by_watchdog: bool  # false: a pause is of somebody else
    children: int | None  # processes besides the root
    ram_bytes: int | None  # resident, shared pages counted once
    swap_bytes: int | None  # swapped out
    gpu_memory_bytes: int | None  # on all GPUs; null: on none, or not known
    gpus: tuple[GpuUse, ...]  # empty: on none
    cpu_percent: float | None  # of one core
    slope_bytes_per_s: float | None  # of RAM and swap
    eta_s: float | None  # until the nearest resource is exhausted; null: none is foreseen
    eta_low_s: float | None  # 80 % interval, lower end
    eta_high_s: float | None  # 80 % interval, upper end; null beside eta_s: open
    resource: str | None  # kind of the resource that eta_s is of
    stage: str  # of the policy: ok, watch, warn, save or pause
    level: Level  # how urgent it is for people
    reason: str | None  # of its level
    python: str | None  # the environment that it runs in
    framework: str | None  # that it has loaded; null: none, or not known
    can_save: bool | None  # null: no training was seen in it
    agent: Agent | None  # null: it has none
    guard: Guard | None  # null: it was not started with `watchdog exec`

    @property
    def key(self) -> tuple[int | None, int | None]:
        """Its identity, although pids are used again."""
        return self.pid, self.start_time

    @property
    def waits(self) -> bool:
        """Paused by watchdog, or stopped by its guard: a person has to decide."""
        return self.paused_by_watchdog or (self.guard is not None and self.guard.stopped)


class Contributor(Record):
    """A task that takes part in an incident."""

    pid: int | None  # of the task
    name: str | None  # of the task
    slope_bytes_per_s: float | None  # its own growth; null for a fault
    share: float | None  # of all growth, or of the work; null for a fault


class Incident(Record):
    """A danger or a fault that is open."""

    id: str  # names it in requests
    resource: str  # kind of the resource, or gpu_fault, throttling, stalled, unplugged
    subject: str  # which of its kind
    label: str | None  # as a person reads it
    blame: str  # what the contributors have a share of: growth, owner, work or nobody
    stage: str  # of the policy now: ok, watch, warn, save or pause
    peak: str  # the highest stage so far
    level: Level  # how urgent it is for people
    severity: str | None  # of a fault: note, warning or critical; null: it follows a resource
    device_works: bool | None  # of a GPU fault: false: nothing can compute on it now
    work_lost: bool  # of a GPU fault: what trained on it has to be restarted
    opened_unix_s: float | None  # when it began
    closed_unix_s: float | None  # null while it is open
    reason: str | None  # what was seen
    advice: tuple[str, ...]  # what to do, the most useful first
    contributors: tuple[Contributor, ...]  # most growth first; of a fault whom it hits

    @property
    def is_fault(self) -> bool:
        """Whether something is broken or slowed down, and no resource runs out."""
        return self.resource in ("gpu_fault", "throttling", "stalled", "unplugged")

    @property
    def is_gpu_fault(self) -> bool:
        """Whether a GPU or its driver is broken."""
        return self.resource == "gpu_fault"

    @property
    def is_calm(self) -> bool:
        """Whether the danger is over, and it closes soon."""
        return Level.from_stage(self.stage) < Level.WARNING


class Problem(Record):
    """Something that is not watched, and why."""

    source: str  # which part of watchdog says so
    message: str  # what is not watched, and what that means
    remedy: str | None  # what to do


class Button(Record):
    """What a person can answer to a notification."""

    key: str  # of the table of actions
    label: str  # on the button
    command: str  # what does the same in a terminal


class Notification(Record):
    """A message of the daemon for a person."""

    id: str | None  # names it in `notification.shown`
    incident: str  # notifications of one incident and task replace each other; empty: it is alone
    # warning, rescued, rescue_failed, paused, stopped, pause_failed, resumed, resolved,
    # stalled, exited, restarted, gpu_lost, fault or slowed.
    topic: str
    level: Level  # how urgent its subject is for people
    stage: str  # of the policy: ok, watch, warn, save or pause
    urgency: str  # low, normal or critical: how a desktop shows it
    title: str  # one line
    body: str  # plain text, several lines
    task: int | None  # pid of the task
    start_time: int | None  # of the task: a button never reaches a process that got its pid
    name: str | None  # of the task
    actions: tuple[Button, ...]  # at most four, the most useful first
    unix_s: float | None  # when it was made


class Status(Record):
    """One reading of everything."""

    schema_version: int | None  # 2
    time: str | None  # when it was measured, as text (RFC 3339, UTC); of the command only
    time_unix_s: float | None  # when it was measured
    level: Level  # of what is most urgent
    headline: str  # what that is, one sentence without a full stop
    host: Host  # the machine
    daemon: Daemon | None  # null: none runs; problems says so
    resources: tuple[Resource, ...]  # everything that can run out
    gpus: tuple[Gpu, ...]  # one entry a GPU, and one a partition (MIG); empty: none is watched
    hardware: Hardware | None  # null before the first reading
    tasks: tuple[Task, ...]  # at most 500, the largest
    incidents: tuple[Incident, ...]  # open ones
    problems: tuple[Problem, ...]  # what is not watched

    def age_s(self, now_unix_s: float) -> float | None:
        """Seconds since the daemon measured; None where it does not say."""
        return None if self.time_unix_s is None else max(0.0, now_unix_s - self.time_unix_s)

    def summary(self, now_unix_s: float) -> tuple[Level, str]:
        """
        Level and headline; UNKNOWN where the reading is too old.

        Args:
            now_unix_s: what its age is counted to.
        """
        age_s = self.age_s(now_unix_s)
        pace_s = (self.daemon.interval_s if self.daemon else None) or 1.0
        if age_s is not None and age_s > max(_OLD_S, 5 * pace_s):
            old = format_duration(age_s)
            return Level.UNKNOWN, f"this reading is {old} old; the daemon is stopped or overloaded"
        if not self.headline:
            return (
                Level.UNKNOWN,
                "this daemon sends no summary; restart it: watchdog stop, then start",
            )
        return self.level, self.headline

    def task(self, pid: int | None) -> Task | None:
        """The task with this pid."""
        return next((one for one in self.tasks if one.pid == pid), None)
