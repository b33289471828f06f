"""
The status as clients read it: records whose annotations are version 2 of the JSON schema.

The comment at a field explains it; docs/status-json.md is generated from fields and comments.
Reading never fails: a value that does not fit its annotation becomes None or empty.
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
_OLD_S = 10.0  # older readings (and older than five intervals) say nothing about the present


def _read_int(value: Any) -> int | None:
    known = number_or_none(value)  # a pid of 4.5 is invalid
    return int(known) if known is not None and known == int(known) else None


def _read_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tuple_reader(read: Reader) -> Reader:
    def items(value: Any) -> tuple[Any, ...]:
        found = (read(each) for each in value) if isinstance(value, list | tuple) else ()
        return tuple(each for each in found if each is not None)

    return items


_read_texts = _tuple_reader(lambda value: value if isinstance(value, str) else None)
_READERS: dict[str, Reader] = {
    "float | None": number_or_none,
    "int | None": _read_int,
    "bool | None": lambda value: value if isinstance(value, bool) else None,
    "bool": lambda value: value is True,
    "str": _read_text,
    "str | None": lambda value: value if isinstance(value, str) else None,
    "tuple[str, ...]": _read_texts,
    "tuple[str, ...] | None": lambda value: None if value is None else _read_texts(value),
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
        Create a record.

        Args:
            values: values by field; a missing field is null, false, empty or level ok.
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
        A record with the attributes of an object that have the same names.

        Args:
            source: any object.
            values: values of other fields; they override the attributes.
        """
        same = {
            name: value
            for name, _ in cls.FIELDS
            if name not in values and (value := getattr(source, name, None)) is not None
        }
        return cls(**same, **values)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object, without infinite numbers."""
        return {name: _to_json(value) for name, value in self.__dict__.items()}

    def __init_subclass__(cls) -> None:
        """Prepare the readers of the fields, and readers of fields that contain this record."""
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
        A record from a decoded JSON value.

        Args:
            raw: a JSON object; any other value gives a record of unknown fields.
        """
        values = raw if isinstance(raw, dict) else {}
        record = object.__new__(cls)
        fields = record.__dict__
        for name, read in cls.FIELDS:
            fields[name] = Level.from_json(values) if read is None else read(values.get(name))
        return record

    @classmethod
    def read_object(cls, raw: Any) -> Self | None:
        """The same as `read`, but None if the value is not an object."""
        return cls.read(raw) if isinstance(raw, dict) else None

    def __eq__(self, other: object) -> bool:
        """Whether every field is equal."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


class Host(Record):
    """The machine, or the part of it that a container can see."""

    name: str | None  # host name
    memory_total_bytes: int | None  # size of RAM (MemTotal)
    memory_available_bytes: int | None  # available without swapping (MemAvailable)
    swap_total_bytes: int | None  # size of all swap; 0: no swap
    swap_free_bytes: int | None  # unused swap
    swap_in_bytes_per_s: float | None  # traffic from swap to RAM
    swap_out_bytes_per_s: float | None  # traffic from RAM to swap
    shm_used_bytes: int | None  # size of the files in /dev/shm
    shm_limit_bytes: int | None  # size of /dev/shm
    pressure_some_avg10_percent: float | None  # time in which some task waited for memory (PSI)
    pressure_full_avg10_percent: float | None  # time in which all tasks waited for memory (PSI)

    @property
    def swap_slope_bytes_per_s(self) -> float | None:
        """How fast swap fills up, in bytes per second."""
        out, back = self.swap_out_bytes_per_s, self.swap_in_bytes_per_s
        return None if out is None or back is None else out - back


class Delivery(Record):
    """Notifications since the daemon started, by outcome."""

    shown: int | None  # notifications shown to the user
    undelivered: int | None  # notifications that no channel could show
    suppressed: int | None  # notifications held back by a snooze, quiet hours or a rule
    last_failure: str | None  # why the last undelivered notification was not shown
    tray_connected: bool | None  # a tray shows notifications
    quiet_hours: bool | None  # quiet hours are active now


class Protection(Record):
    """Whether watchdog warns, saves and pauses."""

    on: bool | None  # false: watchdog only watches
    until_unix_s: float | None  # when protection switches on again; null: only on request


class Snooze(Record):
    """Notifications that the user has silenced for a while."""

    incident: str | None  # id of the silenced incident; null: a task, or everything
    task: int | None  # pid of the silenced task; null: an incident, or everything
    name: str | None  # name of that task
    until_unix_s: float | None  # when the snooze ends


class Count(Record):
    """How often something happened since the daemon started."""

    what: str  # kind of an action (notify, checkpoint, pause, resume), or cause of an end
    result: str | None  # done, failed, skipped or undelivered; null for an end
    count: int | None  # how often


class Daemon(Record):
    """The daemon that measured the status."""

    pid: int | None  # pid of the daemon
    version: str | None  # version of watchdog
    uptime_s: float | None  # time since the daemon started
    interval_s: float | None  # current time between two samples
    rss_bytes: int | None  # resident memory of the daemon
    cpu_percent: float | None  # percent of one core
    samples: int | None  # samples since the daemon started
    missed_samples: int | None  # samples that came more than an interval late
    max_lag_s: float | None  # longest delay of a sample
    locked_memory: bool | None  # the daemon's memory cannot be swapped out
    locked_memory_detail: str | None  # why memory is not locked, or how much is locked
    notifications: Delivery | None  # null: this daemon does not report it
    protection: Protection | None  # null: this daemon does not report it
    snoozed: tuple[Snooze, ...]  # active snoozes
    actions: tuple[Count, ...]  # actions since the daemon started, by result
    deaths: tuple[Count, ...]  # unwanted ends of tasks since the daemon started, by cause


class Contributor(Record):
    """A task that makes a resource grow, or that a fault affects."""

    pid: int | None  # pid of the task
    name: str | None  # name of the task
    slope_bytes_per_s: float | None  # growth of the task; null for a fault
    share: float | None  # share of all growth, or of the work; null for a fault


class Resource(Record):
    """A resource that can run out: RAM, a cgroup limit, a GPU's memory, a temperature."""

    # Kind: ram, ram_swap, cgroup, guard, rlimit_as, shm, disk, gpu_memory, gpu_allocator,
    # temperature, battery or walltime.
    kind: str
    subject: str  # identity within its kind: a cgroup path, a pid, a GPU id; may be empty
    device: str | None  # id of the GPU of this resource
    label: str | None  # name for the user: "memory limit of the group jupyter"
    used: float | None  # amount in `unit`
    limit: float | None  # limit in `unit`; the resource is exhausted there
    unit: str  # bytes, celsius, ratio or seconds
    ratio: float | None  # used / limit
    fatal: bool  # the limit kills; false: it only slows down
    # When screens list it: always, usual, half_full, in_danger or counted (only in a count).
    display: str
    on_icon: bool  # the tray icon shows it while nothing is in danger
    exhausted: str  # word for its state at the limit: "full", "empty", "switches off from heat"
    note: str | None  # how it was measured, if not obvious
    stage: str  # stage of the policy: ok, watch, warn, save or pause
    level: Level  # urgency for the user
    # Kind of movement: unknown, flat, falling, linear, saturating (heat), staircase, sawtooth or
    # burst.
    growth: str
    slope_per_s: float | None  # change in `unit` per second
    eta_s: float | None  # time to exhaustion, median; null: no forecast
    eta_low_s: float | None  # 80 % interval, lower end
    eta_high_s: float | None  # 80 % interval, upper end; null with a known eta_s: unbounded
    reason: str | None  # basis of the forecast, or why there is no forecast
    tasks: tuple[int, ...]  # pids of the tasks that this resource limits
    contributors: tuple[Contributor, ...]  # tasks that make it grow, most growth first

    def end(self, *, interval: bool = True) -> str:
        """
        The forecast in words: `full in 4 min (3-7 min)`; empty without a forecast.

        Args:
            interval: whether to add the 80 % interval.
        """
        low, high = (self.eta_low_s, self.eta_high_s) if interval else (None, None)
        when = quantities.eta(self.eta_s, low, high)
        return "" if when == quantities.NONE else f"{self.exhausted or 'full'} in {when}"


class Health(Record):
    """The condition of a GPU, from its state and its open incidents."""

    severity: str  # ok, note, warning or critical
    title: str | None  # "is lost"; null: the GPU works
    reason: str | None  # the observation behind it
    remedy: str | None  # what to do
    device_works: bool | None  # false: the GPU cannot compute now
    work_lost: bool  # trainings on the GPU must be restarted


class GpuEvent(Record):
    """A fault that the driver reported."""

    code: int | None  # code of the fault; NVIDIA: the Xid
    text: str | None  # meaning of the code; null: unknown
    at_unix_s: float | None  # when the driver reported it
    pid: int | None  # pid of the affected process, if the driver reports it


class GpuProcess(Record):
    """A process with memory on a GPU."""

    pid: int | None  # pid of the process
    task: int | None  # pid of its task; null: the process is not watched
    name: str | None  # name of its task, else of its program; null: foreign, or unreadable
    memory_bytes: int | None  # memory on this GPU; null: the driver does not report it
    # Percent of the time in which it used the GPU's processors (SM); null: not reported.
    utilization_percent: float | None
    foreign: bool  # the pid belongs to another pid namespace


class Gpu(Record):
    """A GPU, or a partition of one (MIG)."""

    id: str | None  # PCI address; of a partition: PCI address and instance
    index: int | None  # number in the driver's order
    uuid: str | None  # UUID from the driver
    name: str | None  # model of the GPU
    parent_id: str | None  # id of a partition's GPU
    partition: str | None  # "GI 3 / CI 0"; null: a whole GPU
    state: str | None  # ok, asleep, lost, needs_reset, silent or unreadable
    level: Level  # urgency for the user
    health: Health | None  # its condition in words
    memory_used_bytes: int | None  # memory that programs use
    memory_reserved_bytes: int | None  # memory that the driver keeps from programs
    memory_total_bytes: int | None  # all memory, reserved memory included
    unified_memory: bool  # the GPU shares the RAM of the machine
    utilization_percent: float | None  # time in which a kernel ran
    memory_utilization_percent: float | None  # time in which memory was read or written
    graphics_clock_mhz: float | None  # clock of the processors (SM)
    graphics_clock_max_mhz: float | None  # highest clock of the processors
    memory_clock_mhz: float | None  # clock of the memory
    memory_clock_max_mhz: float | None  # highest clock of the memory
    performance_state: str | None  # P0, the fastest, to P15
    temperature_c: float | None  # temperature of the chip
    slowdown_c: float | None  # temperature at which the GPU lowers its clocks
    shutdown_c: float | None  # temperature at which the GPU switches off
    fan_percent: float | None  # percent of the full fan speed
    power_w: float | None  # current power
    power_limit_w: float | None  # power limit; the GPU lowers its clocks to stay below it
    throttling: tuple[str, ...] | None  # why the clocks are lowered now; null: not reported
    pcie_generation: int | None  # PCIe generation in use; an idle GPU lowers it
    pcie_generation_max: int | None  # highest PCIe generation of GPU and slot
    pcie_width: int | None  # PCIe lanes in use
    pcie_width_max: int | None  # most PCIe lanes of GPU and slot
    pcie_rx_bytes_per_s: float | None  # data that the GPU received, in the last sample
    pcie_tx_bytes_per_s: float | None  # data that the GPU sent, in the last sample
    ecc_corrected: int | None  # corrected memory errors since the driver was loaded
    ecc_uncorrected: int | None  # uncorrected memory errors since the driver was loaded
    ecc_corrected_aggregate: int | None  # corrected memory errors in the life of the GPU
    ecc_uncorrected_aggregate: int | None  # uncorrected memory errors in the life of the GPU
    remap_pending: bool | None  # a reset will replace broken rows of memory
    remap_failed: bool | None  # no spare row of memory was left
    recovery_action: str | None  # action that the driver asks for
    events: tuple[GpuEvent, ...]  # faults of the last hour
    processes: tuple[GpuProcess, ...]  # its processes, most memory first
    notes: tuple[str, ...]  # why figures are null

    @property
    def label(self) -> str:
        """`GPU 1`; of a partition `GPU 1 GI 3 / CI 0`."""
        number = "N/A" if self.index is None else self.index
        return f"GPU {number} {self.partition or ''}".rstrip()

    @property
    def usable_bytes(self) -> int | None:
        """Memory that programs can use: all except the memory that the driver reserves."""
        total = self.memory_total_bytes
        return None if total is None else total - (self.memory_reserved_bytes or 0)

    @property
    def title(self) -> str:
        """The fault in words: `is lost`; empty: the GPU works."""
        return (self.health.title if self.health else None) or ""


class Temperature(Record):
    """A temperature sensor of the machine."""

    key: str  # id of the sensor
    label: str | None  # name from the system
    celsius: float | None  # current temperature
    slowdown_c: float | None  # temperature at which the machine lowers its clocks
    shutdown_c: float | None  # temperature at which the machine switches off
    is_cpu: bool  # a sensor of the CPU


class Battery(Record):
    """A battery of the machine."""

    name: str | None  # name from the system
    percent: float | None  # remaining charge
    discharging: bool | None  # the machine draws power from the battery
    energy_j: float | None  # remaining energy
    full_j: float | None  # energy of the full battery


class Hardware(Record):
    """Temperatures and power of the machine."""

    driver_version: str | None  # version of the GPU driver
    gpus_age_s: float | None  # age of the GPU figures
    temperatures: tuple[Temperature, ...]  # one entry per sensor
    batteries: tuple[Battery, ...]  # one entry per battery
    on_mains: bool | None  # the machine runs on mains power; null: unknown


class GpuUse(Record):
    """A task's use of one GPU."""

    id: str | None  # id of the GPU
    uuid: str | None  # UUID of the GPU
    index: int | None  # index of the GPU
    memory_bytes: int | None  # memory of the task on this GPU; null: the driver does not report it


class Allocator(Record):
    """GPU memory as the framework's allocator reports it."""

    device: str | None  # "GPU:0", "cuda:0"
    gpu_uuid: str | None  # UUID of the GPU; null: the framework does not report it
    used_bytes: int | None  # memory of tensors
    limit_bytes: int | None  # most memory that the allocator can get
    peak_bytes: int | None  # highest use by tensors so far
    retries: int | None  # allocations that first failed and were retried after freeing the cache
    ooms: int | None  # allocations that failed


class Buffer(Record):
    """A buffer of the input pipeline."""

    what: str | None  # description of the buffer
    bytes: int | None  # size when full


class MemoryParts(Record):
    """The memory of a training by use."""

    batch_size: int | None  # batch size of the training
    weights_bytes: int | None  # weights of the model
    gradients_bytes: int | None  # gradients of the model
    optimizer_bytes: int | None  # state of the optimizer
    activations_bytes: int | None  # tensors that the forward pass keeps for the backward pass
    resident_bytes: int | None  # resident memory of the process at the measurement
    base_bytes: int | None  # resident memory before the training began
    buffers: tuple[Buffer, ...]  # buffers of the input pipeline
    python_blocks: int | None  # memory blocks of Python objects
    python_blocks_per_step: float | None  # blocks that each step adds


class Rescue(Record):
    """A saved state on disk from which a training can resume."""

    path: str | None  # folder of the rescue
    step: int | None  # step of the training that was saved
    bytes: int | None  # size on disk
    seconds: float | None  # time that the save took
    saved_unix_s: float | None  # when the save was complete
    exact: bool | None  # a resumed training is bit for bit the same; false: see `missing`
    missing: tuple[str, ...]  # state that a resume does not restore
    reason: str | None  # why the state was saved


class Agent(Record):
    """The agent in a training."""

    pid: int | None  # pid of the agent's process
    framework: str | None  # keras, torch, tensorflow ...
    directory: str | None  # folder of the agent's rescues
    training: bool  # a training runs now
    step: int | None  # step of the training, counted over its resumes
    epoch: int | None  # epoch, counted from 0
    batch: int | None  # batch in the epoch
    loss: float | None  # last reported loss
    step_s: float | None  # time of a step
    save_s: float | None  # time of the last save
    state_bytes: int | None  # size of the state that a save writes
    saving: bool  # the agent saves now
    outdated: bool  # older protocol: restart the kernel so that the agent can save
    resumes_itself: bool | None  # false: the user has to run lines that the agent names
    not_restored: tuple[str, ...]  # state that a resume does not restore
    rank: int | None  # rank of this process, as its launcher set it (RANK, SLURM_PROCID ...)
    world_size: int | None  # number of processes that the launcher started
    memory: MemoryParts | None  # null before the first step
    allocators: tuple[Allocator, ...]  # one entry per GPU
    rescue: Rescue | None  # last complete rescue


class Guard(Record):
    """The guard of a task that was started with `watchdog exec`."""

    pid: int | None  # pid of the first process in the guard
    kind: str | None  # cgroup v1, cgroup v2, systemd scope ...
    # running, copying, finishing, stopped, refusing, exiting, unlimited or ending.
    state: str | None
    stopped: bool  # the task is stopped at the limit until the user decides
    since_unix_s: float | None  # when the state began; null while state is running
    used_bytes: int | None  # memory that the guard's cgroup uses
    limit_bytes: int | None  # limit of the guard's cgroup
    reserve_bytes: int | None  # extra memory so that the current step can end before the save
    automatic_limit: bool  # the limit follows the free memory of the machine
    reason: str | None  # reason for the state
    rescue: str | None  # path of the newest rescue from the guard


class Task(Record):
    """A notebook or script with all its child processes."""

    pid: int | None  # pid of the root process
    start_time: int | None  # start time of the root process; unique together with the pid
    started_unix_s: float | None  # when the root process started
    name: str | None  # name, "train.ipynb"; untrusted text
    kind: str  # notebook, kernel, console, script, server ...
    notebook: str | None  # path of the notebook
    script: str | None  # path of the script
    kernel_id: str | None  # Jupyter's kernel id
    user: str | None  # user of the root process
    state: str | None  # running, sleeping, disk, paused, stopped or zombie
    paused_by_watchdog: bool  # false: not paused, or stopped by another program
    children: int | None  # number of processes without the root
    ram_bytes: int | None  # resident memory, shared pages counted once
    swap_bytes: int | None  # swapped-out memory
    gpu_memory_bytes: int | None  # memory on all GPUs; null: no GPU, or unknown
    gpus: tuple[GpuUse, ...]  # use of each GPU; empty: no GPU
    cpu_percent: float | None  # percent of one core
    slope_bytes_per_s: float | None  # growth of RAM and swap
    eta_s: float | None  # time until the first resource is exhausted; null: no forecast
    eta_low_s: float | None  # 80 % interval, lower end
    eta_high_s: float | None  # 80 % interval, upper end; null with a known eta_s: unbounded
    resource: str | None  # kind of the resource of eta_s
    stage: str  # stage of the policy: ok, watch, warn, save or pause
    level: Level  # urgency for the user
    reason: str | None  # reason for the level
    python: str | None  # folder of its Python environment; null: unknown
    framework: str | None  # loaded framework; null: none, or unknown
    can_save: bool | None  # false: it trains and no agent can save it; null: no training seen
    agent: Agent | None  # null: no agent
    guard: Guard | None  # null: not started with `watchdog exec`
    past: str | None  # what its earlier runs say; null: none is known
    past_verdict: str | None  # fits, beyond, short, killed or silent; null: none is known
    expected_bytes: int | None  # highest level of its earlier runs; null: unknown

    @property
    def key(self) -> tuple[int | None, int | None]:
        """The task's identity, safe against pid reuse."""
        return self.pid, self.start_time

    @property
    def waits(self) -> bool:
        """Paused by watchdog, or stopped by its guard: the user has to decide."""
        return self.paused_by_watchdog or (self.guard is not None and self.guard.stopped)


class Incident(Record):
    """An open danger or fault."""

    id: str  # id in requests
    resource: str  # kind of the resource, or gpu_fault, throttling, stalled
    subject: str  # identity within its kind
    label: str | None  # name for the user
    blame: str  # measure of the contributors' share: growth, owner, work or "nobody"
    stage: str  # current stage of the policy: ok, watch, warn, save or pause
    peak: str  # the highest stage so far
    level: Level  # urgency for the user
    severity: str | None  # severity of a fault: note, warning or critical; null: not a fault
    device_works: bool | None  # GPU faults only; false: the GPU cannot compute now
    work_lost: bool  # GPU faults only: trainings on the GPU must be restarted
    opened_unix_s: float | None  # when the incident began
    closed_unix_s: float | None  # when it closed; null while it is open
    reason: str | None  # the observation behind it
    advice: tuple[str, ...]  # what to do, the most useful first
    # Tasks with the most growth first; for a fault the affected tasks.
    contributors: tuple[Contributor, ...]

    @property
    def is_fault(self) -> bool:
        """Whether a device or training is broken or slow, as opposed to a resource running out."""
        return self.resource in ("gpu_fault", "throttling", "stalled")

    @property
    def is_gpu_fault(self) -> bool:
        """Whether a GPU or its driver is broken."""
        return self.resource == "gpu_fault"

    @property
    def is_calm(self) -> bool:
        """Whether the danger is over, so that the incident closes soon."""
        return Level.from_stage(self.stage) < Level.WARNING


class Problem(Record):
    """Something that watchdog cannot watch, and why."""

    source: str  # part of watchdog that reports it
    message: str  # what is not watched, and the consequence
    remedy: str | None  # what to do


class Button(Record):
    """An answer that the user can give to a notification."""

    key: str  # key in the table of actions
    label: str  # text of the button
    command: str  # equivalent command line


_TRANSIENT_TOPICS = frozenset(
    ("warning", "paused", "stopped", "pause_failed", "stalled", "rescue_failed")
)


class Notification(Record):
    """A message of the daemon to the user."""

    id: str | None  # id in `notification.shown`
    incident: str  # id; notifications of one incident and task replace each other; may be empty
    # warning, rescued, rescue_failed, paused, stopped, pause_failed, resumed, resolved,
    # stalled, exited, restarted, gpu_lost, fault, slowed, unsaved or summary.
    topic: str
    level: Level  # urgency of its subject for the user
    stage: str  # stage of the policy: ok, watch, warn, save or pause
    urgency: str  # urgency on a desktop: low, normal or critical
    title: str  # title, one line
    body: str  # text, several lines
    task: int | None  # pid of the task
    # Start time of the task: a button never reaches a process with a reused pid.
    start_time: int | None
    name: str | None  # name of the task
    actions: tuple[Button, ...]  # at most four buttons, the most useful first
    unix_s: float | None  # when the daemon made it

    @property
    def is_transient(self) -> bool:
        """Whether it stays on the screen while it is true, and no longer."""
        return self.topic in _TRANSIENT_TOPICS

    def is_over(self, status: Status) -> bool:
        """Whether a transient notification is no longer true."""
        of_incident = self.topic in ("warning", "stalled")
        if of_incident and all(each.id != self.incident for each in status.incidents):
            return True
        if self.task is None:
            return False
        task = status.task(self.task)
        if task is None or self.start_time not in (None, task.start_time):
            return True
        return self.topic == "paused" and not task.waits


class Status(Record):
    """The status of the machine, the tasks and the daemon."""

    schema_version: int | None  # version of this schema: 2
    time: str | None  # time of measurement as text (RFC 3339, UTC); only from the command
    time_unix_s: float | None  # time of measurement
    level: Level  # highest level of all parts
    headline: str  # the most urgent fact, one sentence without a full stop
    host: Host  # the machine
    daemon: Daemon | None  # null: no daemon runs; see problems
    resources: tuple[Resource, ...]  # all resources that can run out
    gpus: tuple[Gpu, ...]  # one entry per GPU and partition (MIG); empty: no GPU is watched
    hardware: Hardware | None  # null before the first reading
    tasks: tuple[Task, ...]  # as many as fit into the message, those in danger first
    incidents: tuple[Incident, ...]  # open incidents
    problems: tuple[Problem, ...]  # parts that are not watched

    def age_s(self, now_unix_s: float) -> float | None:
        """Seconds since the measurement; None: the daemon does not report its time."""
        return None if self.time_unix_s is None else max(0.0, now_unix_s - self.time_unix_s)

    def summary(self, now_unix_s: float) -> tuple[Level, str]:
        """
        Level and headline; level UNKNOWN if the reading is too old.

        Args:
            now_unix_s: current time, for the age of the reading.
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

    def headline_level(self, now_unix_s: float) -> Level:
        """
        Level at the start of the headline: OK where only notes about devices raise the level.

        Args:
            now_unix_s: current time, for the age of the reading.
        """
        level = self.summary(now_unix_s)[0]
        watched = any(each.level is Level.WATCH for each in self.resources)
        return Level.OK if level is Level.WATCH and not watched else level

    def task(self, pid: int | None) -> Task | None:
        """The task with this pid."""
        return next((one for one in self.tasks if one.pid == pid), None)
