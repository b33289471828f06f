"""The last sample of each task, for the diagnosis after its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from typing import Any

from watchdog_app.core.diagnosis.causes import address_space_full, device_full, format_level
from watchdog_app.core.model.agent import MemoryGrowth
from watchdog_app.core.model.machine import ProcessInfo, ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind
from watchdog_app.daemon.status import AssessedSample

# A MemoryError unwinds the frames that held the memory: the last sample may find half of it free.
_UNWINDING_S = 10.0


class LastSeen:
    """
    The running tasks, and those that the last sample missed.

    While `update` handles a sample, `infos` still belongs to the sample before.
    """

    def __init__(self) -> None:
        self.infos: Mapping[ProcessKey, ProcessInfo] = {}
        self.card_faults: Mapping[ProcessKey, str] = {}
        self.shutdown = False  # logind has announced that the machine is shut down
        self.gpus_mono_s: float | None = None  # time of the last GPU reading
        self._latest: AssessedSample | None = None
        self._samples: dict[ProcessKey, AssessedSample] = {}  # last sample that contains the task
        self._growth: dict[ProcessKey, MemoryGrowth] = {}  # growth that the agent traced
        self._on_gpu: set[ProcessKey] = set()  # tasks that use or used a GPU
        self._full_space: dict[ProcessKey, tuple[str, float]] = {}  # full address space, and when

    def update(self, sample: AssessedSample, missing: Set[ProcessKey]) -> None:
        """
        Update from a new sample.

        Args:
            sample: the new sample.
            missing: tasks of earlier samples that it lacks; their data is kept.
        """
        hardware = sample.snapshot.hardware
        self._latest = sample
        self.card_faults, self.gpus_mono_s = sample.result.card_faults, hardware.gpus_mono_s
        known = {key: self._samples[key] for key in missing & self._samples.keys()}
        self._samples = {**known, **{task.key: sample for task in sample.tasks}}
        using = {each.pid for gpu in hardware.gpus for each in gpu.processes}
        self._on_gpu &= self._samples.keys()
        self._on_gpu |= {
            task.key for task in sample.tasks if any(each.key.pid in using for each in task.members)
        }
        growth = {**self._growth, **sample.result.growth}
        self._growth = {key: each for key, each in growth.items() if key in self._samples}
        for reading in sample.readings:
            if reading.key.kind is ResourceKind.RLIMIT_AS:
                full = address_space_full(reading)
                if full is not None:
                    seen = full, sample.snapshot.mono_s
                    self._full_space.update(dict.fromkeys(reading.tasks, seen))
        for key in self._full_space.keys() - self._samples.keys():
            del self._full_space[key]

    def update_growth(self, task: ProcessKey, growth: MemoryGrowth) -> None:
        """
        Record growth that an agent reported; its task may end before the next sample.

        Args:
            task: the growing task.
            growth: the reported growth.
        """
        if task in self._samples:
            self._growth[task] = growth

    def growth(self, task: ProcessKey) -> tuple[MemoryGrowth | None, float | None]:
        """The growth in a task, and its slope in bytes per second."""
        sample = self._samples.get(task)
        outlook = None if sample is None else sample.result.tasks.get(task)
        return self._growth.get(task), None if outlook is None else outlook.trend_bytes_per_s

    def sample_of(self, task: Task | None) -> AssessedSample | None:
        """The last sample that contains a task; without one, the last sample."""
        return (None if task is None else self._samples.get(task.key)) or self._latest

    def used_gpu(self, task: ProcessKey) -> bool:
        """Whether a task has used a GPU."""
        return task in self._on_gpu

    def facts(self, task: Task | None) -> dict[str, Any]:
        """Fields of `ExitFacts`: the machine's memory, and the limits, GPUs and stall of a task."""
        sample = self.sample_of(task)
        if sample is None:
            return {}
        memory = sample.snapshot.host
        found: dict[str, Any] = {
            "shutdown": self.shutdown,
            "host_total_bytes": memory.total_bytes,
            "host_available_bytes": memory.available_bytes,
            "stalled_percent": memory.pressure.some_avg10 if memory.pressure else None,
            "swap_total_bytes": memory.swap_total_bytes,
            "swap_free_bytes": memory.swap_free_bytes,
        }
        if task is None:
            return found
        groups = [kind for kind, spec in SPECS.items() if spec.of_group]
        limit = _find_reading(sample, task.key, *groups)
        if limit is not None:
            found |= {
                "group_high": _is_throttled(sample, limit.key.subject),
                "group_label": limit.label,
                "group_limit_bytes": limit.limit,
                "group_used_bytes": limit.used,
            }
        space, seen_mono_s = self._full_space.get(task.key, (None, float("-inf")))
        # A paused task allocates nothing, so a full address space did not end it.
        full = not task.paused and time.monotonic() - seen_mono_s <= _UNWINDING_S
        limit = _find_reading(sample, task.key, ResourceKind.RLIMIT_AS)
        return {
            **found,
            "card_fault": self.card_faults.get(task.key),
            "device_full": device_full(task, sample.readings),
            "address_space_full": space if full else None,
            "address_space": None if limit is None else format_level(limit),
            "stall": _stall(sample, task.key),
        }


def _stall(sample: AssessedSample, task: ProcessKey) -> str | None:
    """Why the training of a task made no steps when last seen; None: it made steps."""
    for incident in sample.result.incidents:
        affected = any(each.task == task for each in incident.contributors)
        if affected and incident.resource.kind is ResourceKind.STALLED:
            return incident.why
    return None


def _find_reading(sample: AssessedSample, task: ProcessKey, *kinds: ResourceKind) -> Reading | None:
    """The last reading of these kinds that includes a task."""
    found = [each for each in sample.readings if each.key.kind in kinds and task in each.tasks]
    return found[-1] if found else None


def _is_throttled(sample: AssessedSample, group: str) -> bool:
    """Whether memory.high, which throttles, limits a group before memory.max does."""
    return any(
        each.path == group
        and each.high_bytes is not None
        and (each.limit_bytes is None or each.high_bytes < each.limit_bytes)
        for each in sample.snapshot.cgroups
    )
