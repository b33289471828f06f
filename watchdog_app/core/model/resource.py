"""What can run out: kinds, keys, readings, and the one table of how each kind differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from watchdog_app.core.model.machine import ProcessKey


class ResourceKind(StrEnum):
    """Something that can run out."""

    RAM = "ram"  # MemTotal; reaching it means swapping where there is swap
    RAM_SWAP = "ram_swap"  # RAM and swap together; reaching it kills
    CGROUP = "cgroup"  # a limited memory group above a process, swap of the group included
    GUARD = "guard"  # the limit of `watchdog exec`: at it a program is stopped, not killed
    RLIMIT_AS = "rlimit_as"
    SHM = "shm"
    DISK = "disk"
    GPU_MEMORY = "gpu_memory"
    GPU_ALLOCATOR = "gpu_allocator"
    TEMPERATURE = "temperature"
    BATTERY = "battery"
    # Incidents without a level: something is broken, or brakes. No reading has these kinds.
    GPU_HEALTH = "gpu_health"
    THROTTLING = "throttling"
    STALLED = "stalled"  # a training that makes no steps any more; the subject is its agent


@dataclass(frozen=True, slots=True, order=True)
class ResourceKey:
    """Identity of a resource: kind and what it belongs to (a path, a pid, a GPU's UUID or '')."""

    kind: ResourceKind
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One resource at one tick."""

    key: ResourceKey
    label: str  # as a person reads it: "RAM", "memory limit of the group jupyter"
    used: float  # in `unit`
    limit: float
    fatal: bool  # reaching it kills; False: it only slows down (RAM where there is swap)
    tasks: tuple[ProcessKey, ...]  # whom it can hit, by task root
    note: str | None = None  # e.g. "3 groups up", "counts swap"
    swapped: float = 0.0  # of `used`, what a group has in swap
    unwatched: float | None = None  # what processes hold there that are not watched
    held_mono_s: float | None = None  # when it was listed who holds how much; None: with `used`
    device: str | None = None  # the card that it is on: its UUID, else the framework's name of it
    throttles: bool = False  # who reaches it stands still there (memory.high, memory.swap.high)
    stalled: bool = False  # ... and does so now; of the machine: next to nothing is left

    @property
    def unit(self) -> str:
        """Of `used` and `limit`: "bytes", "celsius" or "ratio"."""
        return SPECS[self.key.kind].unit


def is_condition(key: ResourceKey) -> bool:
    """Whether incidents of this key follow what is broken or brakes, and not a level."""
    broken = (ResourceKind.GPU_HEALTH, ResourceKind.THROTTLING, ResourceKind.STALLED)
    return key.kind in broken or key == UNPLUGGED


UNPLUGGED = ResourceKey(ResourceKind.BATTERY, "unplugged")


class Scope(StrEnum):
    """What kind of thing runs out; one cause is reported once for each task, scope and device."""

    MEMORY = "memory"
    CARD = "gpu"
    HEAT = "heat"
    BATTERY = "battery"
    DISK = "disk"


class Blame(Enum):
    """How those who make it run out are found."""

    GROWTH = "growth"  # by what each task holds more than before, of RAM and swap or on the card
    OWNER = "owner"  # it belongs to one task
    WORK = "work"  # by processor time
    NOBODY = "nobody"


class Pause(Enum):
    """Whether a task may be paused on its account."""

    ALLOWED = "allowed"
    BY_RULE = "by_rule"  # only where a rule names the resource
    NEVER = "never"


class Save(Enum):
    """Whose training is saved."""

    CONTRIBUTORS = "contributors"  # then those that the kernel may kill in their stead
    EVERYBODY = "everybody"  # it takes everything with it
    NOBODY = "nobody"


class Display(StrEnum):
    """When screens list a resource without being asked for all."""

    ALWAYS = "always"
    USUAL = "usual"  # the first few
    HALF_FULL = "half_full"  # the first few that are at least half full
    IN_DANGER = "in_danger"  # above level ok
    COUNTED = "counted"  # above level ok; else it is counted among those far from their limits


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """One row. Times are in seconds."""

    title: str  # of a notification: "RAM full"
    scope: Scope = Scope.MEMORY
    unit: str = "bytes"  # "bytes", "celsius" or "ratio"
    of_ram: bool = False  # RAM, or a limit on the use of it
    of_group: bool = False  # the limit of a memory group
    forecaster: str = "trend"  # key of `forecasters.FORECASTERS`
    blame: Blame = Blame.GROWTH
    pause: Pause = Pause.ALLOWED
    save: Save = Save.CONTRIBUTORS
    by_sensor: bool = False  # measured at its sensor's pace, not at each look
    in_steps: bool = False  # its level jumps from step to step: over some seconds it shows no pace
    warn_s: float = 0.0  # the stages begin no later than this
    save_s: float = 0.0
    pause_s: float = 0.0
    least_left_s: float = 0.0  # which of the last moments is the end is not known
    resume_headroom: float = 0.0  # in its unit: with less it would be reached again at once
    display: Display = Display.HALF_FULL
    on_icon: bool = False  # the gauge of the tray icon shows it while nothing is in danger
    exhausted: str = "full"  # what it is at its limit: "full in 4 min"


_RAM = ResourceSpec("RAM full", of_ram=True, display=Display.ALWAYS, on_icon=True)
_GROUP = replace(_RAM, title="Memory limit reached", display=Display.USUAL, of_group=True)
_CARD = ResourceSpec(
    "GPU memory full",
    Scope.CARD,
    forecaster="device_memory",
    # A full card is an error in the program and no kill: its state is saved, and the notebook
    # lives. A pause would keep the memory of the card taken for as long as it lasts.
    pause=Pause.BY_RULE,
    by_sensor=True,
)
_FAULT = ResourceSpec("", blame=Blame.NOBODY, pause=Pause.NEVER, save=Save.NOBODY)
SPECS: dict[ResourceKind, ResourceSpec] = {
    ResourceKind.RAM: _RAM,
    ResourceKind.RAM_SWAP: replace(_RAM, title="RAM and swap full", display=Display.COUNTED),
    ResourceKind.CGROUP: _GROUP,
    ResourceKind.GUARD: _GROUP,
    ResourceKind.RLIMIT_AS: ResourceSpec("Address space used up", blame=Blame.OWNER),
    ResourceKind.SHM: ResourceSpec("Shared memory full"),
    ResourceKind.DISK: ResourceSpec(
        "Disk for rescues full",
        Scope.DISK,
        blame=Blame.NOBODY,
        pause=Pause.NEVER,
        save=Save.NOBODY,  # a rescue would go to this disk, and make it worse
    ),
    ResourceKind.GPU_MEMORY: _CARD,
    ResourceKind.GPU_ALLOCATOR: replace(
        _CARD,
        title="GPU memory of the framework full",
        blame=Blame.OWNER,
        display=Display.USUAL,
        on_icon=True,  # a framework takes the whole GPU for itself: only this says what it uses
    ),
    ResourceKind.TEMPERATURE: ResourceSpec(
        "Too hot",
        Scope.HEAT,
        "celsius",
        forecaster="heat",
        blame=Blame.WORK,
        save=Save.EVERYBODY,
        by_sensor=True,
        resume_headroom=10.0,
        display=Display.IN_DANGER,
        exhausted="switches off from heat",
    ),
    ResourceKind.BATTERY: ResourceSpec(
        "Battery empty",
        Scope.BATTERY,
        "ratio",
        forecaster="discharge",
        blame=Blame.WORK,
        pause=Pause.NEVER,
        save=Save.EVERYBODY,
        by_sensor=True,
        in_steps=True,
        # Who is told two minutes before has no time to fetch the charger, and the system may put
        # the machine to sleep at some percent.
        warn_s=900.0,
        save_s=240.0,
        pause_s=60.0,  # nobody is paused, but from here on it is told in quiet hours as well
        # The last part lasts minutes: the work of one minute is what an empty battery may cost.
        least_left_s=60.0,
        display=Display.USUAL,
        exhausted="empty",
    ),
    ResourceKind.GPU_HEALTH: replace(_FAULT, title="GPU out of order"),
    ResourceKind.THROTTLING: replace(_FAULT, title="Clocked down"),
    ResourceKind.STALLED: replace(_FAULT, title="Stalled"),
}
