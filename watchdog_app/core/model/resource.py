"""Resources that can run out: kinds, keys, readings, and a table of how kinds differ."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, StrEnum

from watchdog_app.base.records import dataclass
from watchdog_app.core.model.machine import ProcessKey


class ResourceKind(StrEnum):
    """The kind of a resource that can run out."""

    RAM = "ram"  # limit MemTotal; the machine swaps at the limit if it has swap
    RAM_SWAP = "ram_swap"  # RAM and swap together; the kernel kills at the limit
    CGROUP = "cgroup"  # a limited memory cgroup above a process, with the group's swap
    GUARD = "guard"  # the limit of `watchdog exec`, which stops a program instead of killing it
    RLIMIT_AS = "rlimit_as"
    SHM = "shm"
    DISK = "disk"
    GPU_MEMORY = "gpu_memory"
    GPU_ALLOCATOR = "gpu_allocator"
    TEMPERATURE = "temperature"
    BATTERY = "battery"
    WALLTIME = "walltime"  # of a program that is ended at a known time
    # Kinds of incidents about broken or slow devices. No reading has these kinds.
    GPU_HEALTH = "gpu_health"
    THROTTLING = "throttling"
    STALLED = "stalled"  # a training that makes no more steps; the subject is its agent


@dataclass(frozen=True, slots=True, order=True)
class ResourceKey:
    """Identity of a resource: its kind and its owner (a path, a pid, a GPU's UUID or '')."""

    kind: ResourceKind
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One resource in one sample."""

    key: ResourceKey
    label: str  # name for the user: "RAM", "memory limit of the group jupyter"
    used: float  # level in `unit`
    limit: float
    fatal: bool  # the limit kills; False: it only slows down (RAM with swap)
    tasks: tuple[ProcessKey, ...]  # keys of the tasks that the limit affects
    note: str | None = None  # how it was measured, "counts swap"
    swapped: float = 0.0  # the part of `used` that is a group's swap
    unwatched: float | None = None  # memory of a group's unwatched processes
    listed_mono_s: float | None = None  # time of the GPU's process list; None: same as `used`
    device: str | None = None  # card of the resource: its id, else the framework's name
    throttles: bool = False  # the kernel throttles programs at the limit (memory.high)
    stalled: bool = False  # throttled programs stall now; RAM: almost no memory is available

    @property
    def unit(self) -> str:
        """The unit of `used` and `limit`: "bytes", "celsius", "ratio" or "seconds"."""
        return SPECS[self.key.kind].unit


def is_condition(key: ResourceKey) -> bool:
    """Whether incidents of this key are about a broken or slow device, not about a level."""
    return key.kind in (ResourceKind.GPU_HEALTH, ResourceKind.THROTTLING, ResourceKind.STALLED)


class Scope(StrEnum):
    """A group of kinds; one cause is reported once for each task, scope and device."""

    MEMORY = "memory"
    CARD = "gpu"
    HEAT = "heat"
    BATTERY = "battery"
    DISK = "disk"
    TIME = "time"


class Blame(Enum):
    """How watchdog finds the tasks that use up a resource."""

    GROWTH = "growth"  # by each task's growth in RAM and swap, or on the card
    OWNER = "owner"  # the resource belongs to one task
    WORK = "work"  # by CPU time
    NOBODY = "nobody"


class Pause(Enum):
    """Whether a shortage of the resource may pause a task."""

    ALLOWED = "allowed"
    BY_RULE = "by_rule"  # only if a rule names the resource
    NEVER = "never"


class Save(Enum):
    """Which trainings to save."""

    CONTRIBUTORS = "contributors"  # then the tasks that the kernel may kill instead
    EVERYBODY = "everybody"  # exhaustion ends every task
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """Properties of one kind of resource. Times are in seconds."""

    title: str  # title of a notification: "RAM full"
    scope: Scope = Scope.MEMORY
    unit: str = "bytes"  # "bytes", "celsius", "ratio" or "seconds"
    of_ram: bool = False  # RAM, or a limit on its use
    of_group: bool = False  # limit of a memory cgroup
    forecaster: str = "forecaster.TrendForecaster"  # module and class in `core.forecast`
    blame: Blame = Blame.GROWTH
    pause: Pause = Pause.ALLOWED
    save: Save = Save.CONTRIBUTORS
    by_sensor: bool = False  # measured at its sensor's pace, not in each sample
    in_steps: bool = False  # its level changes in steps: some seconds show no slope
    warn_s: float = 0.0  # latest start of stage warn, before exhaustion
    save_s: float = 0.0  # latest start of stage save
    pause_s: float = 0.0  # latest start of stage pause
    least_left_s: float = 0.0  # shortest assumed time to the end, which is not known exactly
    resume_headroom: float = 0.0  # free amount that a resume needs, in the resource's unit
    display: str = "half_full"  # when screens list it; the values are in `status.Resource`
    on_icon: bool = False  # the tray icon's gauge shows it while nothing is in danger
    exhausted: str = "full"  # word for its state at the limit: "full in 4 min"


_RAM = ResourceSpec("RAM full", of_ram=True, display="always", on_icon=True)
_GROUP = replace(_RAM, title="Memory limit reached", display="usual", of_group=True)
_CARD = ResourceSpec(
    "GPU memory full",
    Scope.CARD,
    forecaster="slow.DeviceMemoryForecaster",
    # A full card raises an error in the program; nothing is killed. The training's state is saved
    # and the notebook survives. A paused program would keep its memory on the card.
    pause=Pause.BY_RULE,
    by_sensor=True,
)
_FAULT = ResourceSpec("", blame=Blame.NOBODY, pause=Pause.NEVER, save=Save.NOBODY)
SPECS: dict[ResourceKind, ResourceSpec] = {
    ResourceKind.RAM: _RAM,
    ResourceKind.RAM_SWAP: replace(_RAM, title="RAM and swap full", display="counted"),
    ResourceKind.CGROUP: _GROUP,
    ResourceKind.GUARD: _GROUP,
    # Programs reserve address space in large pieces and then use it.
    ResourceKind.RLIMIT_AS: ResourceSpec("Address space used up", blame=Blame.OWNER, in_steps=True),
    ResourceKind.SHM: ResourceSpec("Shared memory full"),
    ResourceKind.DISK: ResourceSpec(
        "Disk for rescues full",
        Scope.DISK,
        blame=Blame.NOBODY,
        pause=Pause.NEVER,
        save=Save.NOBODY,  # a rescue would fill this disk further
    ),
    ResourceKind.GPU_MEMORY: _CARD,
    ResourceKind.GPU_ALLOCATOR: replace(
        _CARD,
        title="GPU memory of the framework full",
        blame=Blame.OWNER,
        display="usual",
        on_icon=True,  # a framework may reserve the whole GPU: only its allocator knows the use
    ),
    ResourceKind.TEMPERATURE: ResourceSpec(
        "Too hot",
        Scope.HEAT,
        "celsius",
        forecaster="heat.HeatForecaster",
        blame=Blame.WORK,
        save=Save.EVERYBODY,
        by_sensor=True,
        resume_headroom=10.0,
        display="in_danger",
        exhausted="switches off from heat",
    ),
    ResourceKind.BATTERY: ResourceSpec(
        "Battery empty",
        Scope.BATTERY,
        "ratio",
        forecaster="slow.DischargeForecaster",
        blame=Blame.WORK,
        pause=Pause.NEVER,
        save=Save.EVERYBODY,
        by_sensor=True,
        in_steps=True,
        # A warning two minutes before the end leaves the user no time to fetch the charger. The
        # system may also suspend the machine at some percent.
        warn_s=900.0,
        save_s=240.0,
        pause_s=60.0,  # no task is paused, but this stage notifies in quiet hours as well
        # The last percent lasts minutes: saving a minute before the end loses a minute of work.
        least_left_s=60.0,
        display="usual",
        exhausted="empty",
    ),
    ResourceKind.WALLTIME: ResourceSpec(
        "Time is over",
        Scope.TIME,
        "seconds",
        forecaster="slow.ClockForecaster",
        blame=Blame.OWNER,
        pause=Pause.NEVER,
        save=Save.NOBODY,  # the agent knows the time and saves, also without a daemon
        warn_s=600.0,
        display="usual",
        exhausted="ends",
    ),
    ResourceKind.GPU_HEALTH: replace(_FAULT, title="GPU out of order"),
    ResourceKind.THROTTLING: replace(_FAULT, title="Clocked down"),
    ResourceKind.STALLED: replace(_FAULT, title="Stalled"),
}
