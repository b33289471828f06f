"""All that is remembered of every resource and every task: histories, forecasts, usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from watchdog_app.core.forecast import Forecaster
from watchdog_app.core.forecast.stages import ResourceMonitor, forecaster_for
from watchdog_app.core.model import devices
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import (
    NOBODY,
    Assessment,
    Attribution,
    Observation,
    Stage,
    TaskOutlook,
)
from watchdog_app.core.model.history import History, SwapTraffic
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.attribution import attribute
from watchdog_app.core.policy.danger import costs


def outlooks(
    tasks: Sequence[Task],
    usage: Mapping[ProcessKey, TaskUsage],
    readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    blamed: Mapping[ResourceKey, Attribution],
) -> dict[ProcessKey, TaskOutlook]:
    """
    An outlook for each task.

    A resource concerns the tasks that make it fill up. Those that would merely die with it are
    shown its stage from `rescue` on, when that is what matters for them: an idle notebook has
    no time to exhaustion only because something else is growing.
    """

    def urgency(reading: Reading) -> tuple[int, float]:
        found = assessments[reading.key]
        return -found.stage, float("inf") if found.forecast is None else found.forecast.eta_s

    nearest: dict[ProcessKey, Reading] = {}
    for reading in sorted(readings, key=urgency):
        assessment = assessments[reading.key]
        if assessment.forecast is None and assessment.stage is Stage.OK:
            continue
        growing = {each.task for each in blamed.get(reading.key, NOBODY).contributors}
        deadly = reading.fatal and assessment.stage >= Stage.RESCUE and assessment.notify
        for key in reading.tasks:
            if deadly or key in growing:
                nearest.setdefault(key, reading)
    found = {}
    for task in tasks:
        own = usage[task.key]
        at = nearest.get(task.key)
        known = None if at is None else assessments[at.key]
        found[task.key] = TaskOutlook(
            key=task.key,
            trend_bytes_per_s=own.trend_bytes_per_s,
            cpu_percent=own.cpu_percent,
            resource=None if at is None else at.key,
            forecast=None if known is None else known.forecast,
            stage=Stage.OK if known is None else known.stage,
            why=None if known is None else known.why,
            level=Level.OK if known is None else known.level,
        )
    return found


_TREND_WINDOWS_S = (20.0, 5.0)
_CPU_S = 1.0  # processor time is counted in hundredths: shorter spans are noise


class TaskUsage:
    """One task's."""

    __slots__ = ("_cpu_from", "cpu_percent", "memory")

    def __init__(self) -> None:
        self.memory = History()
        self.cpu_percent: float | None = None
        self._cpu_from: tuple[float, float] | None = None

    def add(self, mono_s: float, task: Task) -> None:
        """Take one look at it."""
        self.memory.add(mono_s, held_bytes(task))
        if self._cpu_from is None:
            self._cpu_from = (mono_s, task.cpu_s)
            return
        passed = mono_s - self._cpu_from[0]
        if passed >= _CPU_S:
            # A worker that ended took its time out of the sum: that is no negative work.
            self.cpu_percent = max(0.0, 100.0 * (task.cpu_s - self._cpu_from[1]) / passed)
            self._cpu_from = (mono_s, task.cpu_s)

    @property
    def trend_bytes_per_s(self) -> float | None:
        """Growth of what it holds, over the longest window that is known; None: too early."""
        for window in _TREND_WINDOWS_S:
            rate = self.memory.rate(window)
            if rate is not None:
                return rate
        return None


def held_bytes(task: Task) -> int:
    """
    What a task holds in RAM and swap that the kernel cannot reclaim.

    Without pages of files: whoever walks through a mapped data set fills no group and no machine
    by it, and must not be blamed for what a neighbour does. With swap: a task that is being
    swapped out does not shrink. Pages that members share are counted once, as in
    `core.model.tasks.resident_bytes`.
    """
    private = shmem = 0
    for member in task.members:
        own = max(0, member.rss_bytes - (member.shared_bytes or 0))
        private += own if member is task.members[0] else max(0, own - (member.cow_bytes or 0))
        shmem = max(shmem, member.shmem_bytes or 0)
    return private + shmem + (task.swap_bytes or 0)


class Tracker:
    """
    Every series of one machine.

    Args:
        settings: may be replaced by assigning to `settings`; histories are kept.
    """

    def __init__(self, settings: Settings) -> None:
        self.swap = SwapTraffic()
        self.usage: dict[ProcessKey, TaskUsage] = {}
        self._settings = settings
        # The forecaster outlives its monitor when the settings change.
        self._watches: dict[ResourceKey, tuple[ResourceMonitor, Forecaster]] = {}
        self._growths: dict[ResourceKey, History] = {}
        self._unwatched: dict[ResourceKey, History] = {}  # under these, who is not watched
        # What each task holds on each card, by card and task.
        self._devices: dict[str, dict[ProcessKey, History]] = {}
        self._measured: dict[ResourceKey, float] = {}  # readings that are older than the tick

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._settings = settings
        for key, (monitor, forecaster) in list(self._watches.items()):
            renewed = self._monitor(key.kind, forecaster)
            renewed.next_look_s = monitor.next_look_s
            self._watches[key] = renewed, forecaster

    def follow(self, look: Observation) -> None:
        """Append to every series; forget those that have ended."""
        snapshot, readings, tasks = look.snapshot, look.readings, tuple(look.tasks.values())
        now = snapshot.mono_s
        self.swap.add(now, snapshot.host)
        keys = {reading.key for reading in readings}
        for gone in self._growths.keys() - keys:
            del self._growths[gone]
            self._watches.pop(gone, None)
            self._unwatched.pop(gone, None)
        self._measured = {}
        for reading in readings:
            at = now
            if SPECS[reading.key.kind].by_sensor:
                at = self._measured[reading.key] = _measured_mono_s(reading, look)
            self._growths.setdefault(reading.key, History()).add(at, reading.used)
            if reading.unwatched is not None:
                self._unwatched.setdefault(reading.key, History()).add(at, reading.unwatched)
            else:
                self._unwatched.pop(reading.key, None)
        for ended in self.usage.keys() - look.tasks.keys():
            del self.usage[ended]
        for task in tasks:
            self.usage.setdefault(task.key, TaskUsage()).add(now, task)
        self._follow_devices(snapshot, tasks)

    def reset_trends(self) -> None:
        """Forget all trends: no sample was taken for a while, and a gap is no trend."""
        self.swap = SwapTraffic()
        self.usage.clear()
        self._watches.clear()
        self._growths.clear()
        self._devices.clear()

    def assess(
        self, reading: Reading, agents: Mapping[ProcessKey, Sequence[AgentState]], now: float
    ) -> Assessment:
        """
        Where a resource stands and where it is going; `agents` are those under it, by task.

        Args:
            reading: of the resource.
            agents: under it, by task.
            now: monotonic seconds.
        """
        if reading.key not in self._watches:
            forecaster = forecaster_for(reading)
            self._watches[reading.key] = self._monitor(reading.key.kind, forecaster), forecaster
        monitor, _ = self._watches[reading.key]
        at = self._measured.get(reading.key, now)
        return monitor.step(at, reading.used, reading.limit, costs(agents))

    def attribute(
        self, reading: Reading, assessment: Assessment, tasks: Mapping[ProcessKey, Task]
    ) -> Attribution:
        """
        Who makes a resource fill up, among the tasks under it.

        Args:
            reading: of the resource.
            assessment: of the reading.
            tasks: under it.
        """
        growths: Mapping[ProcessKey, History] = {key: self.usage[key].memory for key in tasks}
        if reading.key.kind is ResourceKind.GPU_MEMORY:
            growths = self._devices.get(reading.key.subject, {})
        return attribute(
            reading,
            assessment.slope_per_s,
            self._growths[reading.key],
            tuple(tasks.values()),
            growths,
            cpu_percent={key: self.usage[key].cpu_percent for key in tasks},
            unwatched=self._unwatched.get(reading.key),
        )

    def rate(self, key: ResourceKey, window_s: float) -> float | None:
        """
        How fast a resource has been filling lately.

        Args:
            key: of the resource.
            window_s: over the last so many seconds.
        """
        return self._growths[key].rate(window_s)

    @property
    def next_look_s(self) -> float:
        """How soon the most pressing resource wants to be looked at again."""
        rest = self._settings.watch.interval_s
        return min(
            (monitor.next_look_s for key, (monitor, _) in self._watches.items()
             if not SPECS[key.kind].by_sensor),
            default=rest,
        )  # fmt: skip

    def _monitor(self, kind: ResourceKind, forecaster: Forecaster) -> ResourceMonitor:
        # What is about to happen to a machine takes people longer to mend: its stages begin sooner.
        spec, stages = SPECS[kind], self._settings.stages
        stages = replace(
            stages,
            warn_s=max(stages.warn_s, spec.warn_s),
            save_floor_s=max(stages.save_floor_s, spec.save_s),
        )
        return ResourceMonitor(self._settings.watch, stages, forecaster, spec.unit)

    def _follow_devices(self, snapshot: Snapshot, tasks: Sequence[Task]) -> None:
        hardware = snapshot.hardware
        if not hardware.gpus:
            self._devices.clear()
            return
        at = snapshot.mono_s if hardware.gpus_mono_s is None else hardware.gpus_mono_s
        held: dict[str, dict[ProcessKey, int | None]] = {}
        for key, on_cards in devices.by_task(hardware, tasks).items():
            for use in on_cards.uses:
                held.setdefault(use.id, {})[key] = use.memory_bytes
        alive = {task.key for task in tasks}
        kept: dict[str, dict[ProcessKey, History]] = {}
        for gpu in hardware.gpus:
            before = self._devices.get(gpu.id, {})
            known = {key: growth for key, growth in before.items() if key in alive}
            here = held.get(gpu.id, {})
            listed_mono_s = gpu.processes_mono_s
            # Who is on no list that could be made holds nothing there; a list that could not be
            # made says nothing of anybody.
            for key in known.keys() | here.keys() if here or listed_mono_s is not None else ():
                size = here.get(key, 0)
                if size is not None:
                    known.setdefault(key, History()).add(
                        at if listed_mono_s is None else listed_mono_s, size
                    )
            kept[gpu.id] = known
        self._devices = kept


def _measured_mono_s(reading: Reading, look: Observation) -> float:
    """When a reading was taken: the same figure shown twice is one sample, and no plateau."""
    now, hardware = look.snapshot.mono_s, look.snapshot.hardware
    if reading.key.kind is ResourceKind.GPU_ALLOCATOR:
        reported = [
            agent.reported_mono_s
            for key in reading.tasks
            for agent in look.agents.get(key, ())
            if agent.reported_mono_s is not None and agent.allocators
        ]
        return min(now, max(reported, default=now))
    if hardware.gpus_mono_s is not None and any(
        reading.key.subject.startswith(gpu.id) for gpu in hardware.gpus
    ):
        return min(now, hardware.gpus_mono_s)
    return now
