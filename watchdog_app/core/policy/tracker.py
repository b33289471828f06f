"""The histories, forecasts and usage of all resources and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from watchdog_app.base.records import dataclass
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
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings, StageSettings
from watchdog_app.core.model.tasks import is_stopped
from watchdog_app.core.policy.attribution import attribute
from watchdog_app.core.policy.danger import longest_save_cost


def without_stopped_growth(
    assessment: Assessment, attribution: Attribution, tasks: Mapping[ProcessKey, Task]
) -> Assessment:
    """
    Return the assessment without a forecast if all tasks that caused the growth are stopped.

    Args:
        assessment: assessment of a resource.
        attribution: the tasks that made it fill up.
        tasks: tasks of the latest sample.
    """
    growing = [tasks[each.task] for each in attribution.contributors if each.task in tasks]
    if growing and not attribution.mostly_unwatched and all(is_stopped(each) for each in growing):
        return replace(assessment, forecast=None, slope_per_s=0.0)
    return assessment


def build_outlooks(
    tasks: Sequence[Task],
    usage: Mapping[ProcessKey, TaskUsage],
    readings: Sequence[Reading],
    assessments: Mapping[ResourceKey, Assessment],
    blamed: Mapping[ResourceKey, Attribution],
) -> dict[ProcessKey, TaskOutlook]:
    """
    Return an outlook for each task.

    A resource concerns the tasks that make it fill up. Other tasks under it see its stage only from
    SAVE on, if its exhaustion would kill them. An idle notebook has no time to exhaustion just
    because something else grows.

    Args:
        tasks: tasks of one sample.
        usage: memory and CPU use, by task.
        readings: readings of the same sample.
        assessments: assessment of each reading.
        blamed: tasks that cause the growth, by resource.
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
        deadly = reading.fatal and assessment.stage >= Stage.SAVE and assessment.notify
        for key in reading.tasks:
            if deadly or key in growing:
                nearest.setdefault(key, reading)
    found = {}
    for task in tasks:
        own, at = usage[task.key], nearest.get(task.key)
        outlook = TaskOutlook(own.trend_bytes_per_s, own.cpu_percent)
        if is_stopped(task):
            outlook = TaskOutlook(0.0, own.cpu_percent)
        elif at is not None:
            outlook = replace(outlook, resource=at.key, assessment=assessments[at.key])
        found[task.key] = outlook
    return found


_TREND_WINDOWS_S = (20.0, 5.0)
_PACE_WINDOW_S = 2.0
_CPU_S = 1.0  # the kernel counts CPU time in hundredths of a second, so shorter spans are noise


class TaskUsage:
    """Memory and CPU use of one task."""

    __slots__ = ("_cpu_from", "cpu_percent", "memory")

    def __init__(self) -> None:
        self.memory = History()
        self.cpu_percent: float | None = None
        self._cpu_from: tuple[float, float] | None = None

    def add(self, mono_s: float, task: Task) -> None:
        """
        Add one sample of the task.

        Args:
            mono_s: time of the sample.
            task: the task in this sample.
        """
        self.memory.add(mono_s, unreclaimable_bytes(task))
        if self._cpu_from is None:
            self._cpu_from = (mono_s, task.cpu_s)
            return
        passed = mono_s - self._cpu_from[0]
        if passed >= _CPU_S:
            # A worker that ended no longer counts in the sum. The difference must not be negative.
            self.cpu_percent = max(0.0, 100.0 * (task.cpu_s - self._cpu_from[1]) / passed)
            self._cpu_from = (mono_s, task.cpu_s)

    @property
    def trend_bytes_per_s(self) -> float | None:
        """Growth of the task's memory over the longest window with data. None: too early."""
        rates = (self.memory.rate(window) for window in _TREND_WINDOWS_S)
        return next((rate for rate in rates if rate is not None), None)


def unreclaimable_bytes(task: Task) -> int:
    """
    Return the RAM and swap of a task that the kernel cannot reclaim.

    File pages are excluded because the kernel can reclaim them: they fill neither a group nor the
    machine. A task that reads a mapped data set must not be blamed for the growth of another task.
    Swap is included: a task that is swapped out does not shrink. Pages that members share are
    counted once, as in `core.model.tasks.resident_bytes`.
    """
    private = shmem = 0
    for member in task.members:
        own = max(0, member.rss_bytes - (member.shared_bytes or 0))
        private += own if member is task.members[0] else max(0, own - (member.cow_bytes or 0))
        shmem = max(shmem, member.shmem_bytes or 0)
    return private + shmem + (task.swap_bytes or 0)


@dataclass(slots=True)
class _Series:
    """History and forecaster of one resource."""

    monitor: ResourceMonitor
    used: History = field(default_factory=History)
    unwatched: History | None = None  # memory of processes that are not watched
    measured_mono_s: float = 0.0  # time of the last reading


class Tracker:
    """
    All histories of one machine.

    Args:
        settings: initial settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.swap = SwapTraffic()
        self.usage: dict[ProcessKey, TaskUsage] = {}
        self.settings = settings  # settings in force; see `configure`
        self._series: dict[ResourceKey, _Series] = {}
        # Memory of each task on each GPU, by GPU and task.
        self._devices: dict[str, dict[ProcessKey, History]] = {}

    def configure(self, settings: Settings) -> None:
        """Use these settings from now on; histories are kept."""
        self.settings = settings
        for key, series in self._series.items():
            series.monitor.configure(settings.watch, self._stage_settings(key.kind))

    def update(self, observation: Observation) -> None:
        """Add a sample to every history; forget resources and tasks that have ended."""
        now = observation.snapshot.mono_s
        self.swap = self.swap.updated(now, observation.snapshot.host)
        self._series = {
            each.key: self._series.get(each.key) or self._new_series(each)
            for each in observation.readings
        }
        for reading in observation.readings:
            series, at = self._series[reading.key], now
            if SPECS[reading.key.kind].by_sensor:
                at = _reading_mono_s(reading, observation)
            series.measured_mono_s = at
            series.used.add(at, reading.used)
            if reading.unwatched is None:
                series.unwatched = None
            else:
                series.unwatched = series.unwatched or History()
                series.unwatched.add(at, reading.unwatched)
        self.usage = {key: self.usage.get(key) or TaskUsage() for key in observation.tasks}
        for key, task in observation.tasks.items():
            self.usage[key].add(now, task)
        self._update_devices(observation.snapshot, tuple(observation.tasks.values()))

    def assess(
        self, reading: Reading, agents: Sequence[AgentState], *, early: bool = False
    ) -> Assessment:
        """
        Assess a resource by its own history.

        Args:
            reading: reading of the resource.
            agents: agents under the resource.
            early: whether earlier runs make an exhaustion likely.
        """
        series = self._series[reading.key]
        series.monitor.warn_early(early)
        return series.monitor.step(
            series.measured_mono_s, reading.used, reading.limit, longest_save_cost(agents)
        )

    def attribute(
        self, reading: Reading, assessment: Assessment, tasks: Mapping[ProcessKey, Task]
    ) -> Attribution:
        """
        Find the tasks that make a resource fill up.

        Args:
            reading: reading of the resource.
            assessment: assessment of the reading.
            tasks: tasks under the resource.
        """
        growths: Mapping[ProcessKey, History] = {key: self.usage[key].memory for key in tasks}
        if reading.key.kind is ResourceKind.GPU_MEMORY:
            growths = self._devices.get(reading.key.subject, {})
        series, slope_per_s = self._series[reading.key], assessment.slope_per_s
        cpu = {key: self.usage[key].cpu_percent for key in tasks}
        under, unwatched = tuple(tasks.values()), series.unwatched
        return attribute(
            reading, slope_per_s, series.used, under, growths, cpu_percent=cpu, unwatched=unwatched
        )

    def device_memory(self, task: ProcessKey) -> dict[str, int]:
        """Return the bytes that a task holds on each GPU, by the GPU's id."""
        return {
            gpu: int(held[task].last or 0) for gpu, held in self._devices.items() if task in held
        }

    def memory_of(self, key: ResourceKey, task: ProcessKey) -> History:
        """Return what a task holds in RAM, or what all tasks hold of another resource."""
        return self.usage[task].memory if SPECS[key.kind].of_ram else self._series[key].used

    def pace_per_s(self, key: ResourceKey) -> float | None:
        """Return how fast a resource has filled in the last seconds. None: not known."""
        in_steps = SPECS[key.kind].in_steps
        return None if in_steps else self._series[key].used.rate(_PACE_WINDOW_S)

    @property
    def next_sample_s(self) -> float:
        """Seconds until the most pressing resource needs the next sample."""
        intervals_s = [
            series.monitor.next_sample_s
            for key, series in self._series.items()
            if not SPECS[key.kind].by_sensor
        ]
        return min(intervals_s, default=self.settings.watch.interval_s)

    def _new_series(self, reading: Reading) -> _Series:
        stages = self._stage_settings(reading.key.kind)
        forecaster = forecaster_for(reading)
        return _Series(ResourceMonitor(self.settings.watch, stages, forecaster, reading.unit))

    def _stage_settings(self, kind: ResourceKind) -> StageSettings:
        # People need longer to fix a problem of the machine, so its stages begin sooner.
        spec, stages = SPECS[kind], self.settings.stages
        return replace(
            stages,
            warn_s=max(stages.warn_s, spec.warn_s),
            save_floor_s=max(stages.save_floor_s, spec.save_s),
        )

    def _update_devices(self, snapshot: Snapshot, tasks: Sequence[Task]) -> None:
        hardware = snapshot.hardware
        at = snapshot.mono_s if hardware.gpus_mono_s is None else hardware.gpus_mono_s
        memory_by_gpu: dict[str | None, dict[ProcessKey, int | None]] = {}
        for key, uses in devices.devices_by_task(hardware, tasks).items():
            for use in uses:
                memory_by_gpu.setdefault(use.id, {})[key] = use.memory_bytes
        alive = {task.key for task in tasks}
        kept: dict[str, dict[ProcessKey, History]] = {}
        for gpu in hardware.gpus:
            before = self._devices.get(gpu.id, {})
            known = {key: growth for key, growth in before.items() if key in alive}
            sizes = memory_by_gpu.get(gpu.id, {})
            listed_mono_s = gpu.processes_mono_s
            known_mono_s = at if listed_mono_s is None else listed_mono_s
            # A task that a list of GPU processes omits holds no memory there. If the driver gave no
            # list, nothing is known about any task.
            for key in known.keys() | sizes.keys() if sizes or listed_mono_s is not None else ():
                size = sizes.get(key, 0)
                if size is not None:
                    known.setdefault(key, History()).add(known_mono_s, size)
            kept[gpu.id] = known
        self._devices = kept


def _reading_mono_s(reading: Reading, observation: Observation) -> float:
    """Return when a reading was taken. A value shown twice is one sample, not a plateau."""
    now, hardware = observation.snapshot.mono_s, observation.snapshot.hardware
    if reading.key.kind is ResourceKind.GPU_ALLOCATOR:
        reported = [
            agent.reported_mono_s
            for key in reading.tasks
            for agent in observation.agents.get(key, ())
            if agent.reported_mono_s is not None and agent.allocators
        ]
        return min(now, max(reported, default=now))
    if hardware.gpus_mono_s is not None and reading.device is not None:
        return min(now, hardware.gpus_mono_s)
    return now
