"""
What the last samples said of each task: who has ended cannot be looked at any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from watchdog_app.core.diagnosis.causes import address_space_full, device_full, level_of
from watchdog_app.core.model.agent import MemoryGrowth
from watchdog_app.core.model.machine import HostMemory, ProcessInfo, ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind
from watchdog_app.daemon.status import Look

# A MemoryError unwinds what held the memory: the last sample may find half of it free again.
_UNWINDING_S = 10.0


@dataclass(slots=True)
class _Seen:
    """One task as last seen."""

    limit: Reading | None = None  # of its memory group
    high: bool = False  # that limit is memory.high, or memory.high lies below it
    device: str | None = None  # a full GPU or allocator, in words
    space: str | None = None  # how full its address space was, where that is limited
    full_space: tuple[str, float] | None = None  # the same when it was used up, and when
    on_gpu: bool = False  # it uses a GPU, or did
    slope_bytes_per_s: float | None = None
    grew: MemoryGrowth | None = None  # what its agent saw growing


class LastSeen:
    """
    Tasks that live and those that are missing in the last sample.

    `infos` are of the sample before, while the next one is taken in.
    """

    def __init__(self) -> None:
        self.infos: Mapping[ProcessKey, ProcessInfo] = {}
        self.tasks: tuple[Task, ...] = ()
        self.card_faults: Mapping[ProcessKey, str] = {}
        self.gpus_mono_s: float | None = None  # when the GPUs were read
        self._memory: HostMemory | None = None
        self._seen: dict[ProcessKey, _Seen] = {}

    def learn(self, look: Look, missing: Set[ProcessKey]) -> None:
        """
        One more sample.

        Args:
            look: that was taken just now.
            missing: tasks that were there before; what is known of them is kept.
        """
        hardware = look.snapshot.hardware
        self._memory, self.tasks = look.snapshot.host, look.tasks
        self.card_faults, self.gpus_mono_s = look.result.card_faults, hardware.gpus_mono_s
        before = self._seen
        self._seen = {key: before[key] for key in missing & before.keys()}
        using = {each.pid for gpu in hardware.gpus for each in gpu.processes}
        allocators = any(view.allocators for view in look.agents.values())
        for task in look.tasks:
            known = before.get(task.key, _Seen())
            outlook = look.result.tasks.get(task.key)
            self._seen[task.key] = _Seen(
                device=device_full(task, look.readings) if hardware.gpus or allocators else None,
                full_space=known.full_space,
                on_gpu=known.on_gpu or any(each.key.pid in using for each in task.members),
                slope_bytes_per_s=None if outlook is None else outlook.trend_bytes_per_s,
                grew=look.result.growth.get(task.key, known.grew),
            )
        self._learn_limits(look)

    def _learn_limits(self, look: Look) -> None:
        slowed = {
            group.path
            for group in look.snapshot.cgroups
            if group.high_bytes is not None
            and (group.limit_bytes is None or group.high_bytes < group.limit_bytes)
        }
        for reading in look.readings:
            for seen in self._of(reading):
                if SPECS[reading.key.kind].of_group:
                    seen.limit, seen.high = reading, reading.key.subject in slowed
                elif reading.key.kind is ResourceKind.RLIMIT_AS:
                    seen.space = level_of(reading)
                    full = address_space_full(reading)
                    if full is not None:
                        seen.full_space = full, look.snapshot.mono_s

    def _of(self, reading: Reading) -> Iterator[_Seen]:
        return (self._seen[key] for key in reading.tasks if key in self._seen)

    def learn_growth(self, task: ProcessKey, growth: MemoryGrowth) -> None:
        """An agent has told what grows in its task, which may end before the next sample."""
        if task in self._seen:
            self._seen[task].grew = growth

    def growth(self, task: ProcessKey) -> tuple[MemoryGrowth | None, float | None]:
        """What grew in a task, and its slope in bytes a second."""
        seen = self._seen.get(task, _Seen())
        return seen.grew, seen.slope_bytes_per_s

    def slopes(self) -> dict[ProcessKey, float | None]:
        """Of all tasks, in bytes a second."""
        return {key: seen.slope_bytes_per_s for key, seen in self._seen.items()}

    def on_gpu(self, task: ProcessKey) -> bool:
        """Whether a task used a GPU."""
        return task in self._seen and self._seen[task].on_gpu

    def memory_facts(self, task: Task | None) -> dict[str, Any]:
        """Fields of `ExitFacts`: the memory of a task's group, and of the machine."""
        seen = _Seen() if task is None else self._seen.get(task.key, _Seen())
        limit, memory = seen.limit, self._memory
        found: dict[str, Any] = {"group_high": seen.high}
        if limit is not None:
            found |= {
                "group_label": limit.label,
                "group_limit_bytes": limit.limit,
                "group_used_bytes": limit.used,
            }
        if memory is not None:
            found |= {
                "host_total_bytes": memory.total_bytes,
                "host_available_bytes": memory.available_bytes,
                "stalled_percent": memory.pressure.some_avg10 if memory.pressure else None,
                "swap_total_bytes": memory.swap_total_bytes,
                "swap_free_bytes": memory.swap_free_bytes,
            }
        return found

    def device_facts(self, task: Task) -> dict[str, Any]:
        """Fields of `ExitFacts`: the GPUs and the address space of a task."""
        seen = self._seen.get(task.key, _Seen())
        space, seen_mono_s = seen.full_space or (None, float("-inf"))
        # What stands still asks for nothing: a paused task ended in another way.
        full = not task.paused and time.monotonic() - seen_mono_s <= _UNWINDING_S
        return {
            "card_fault": self.card_faults.get(task.key),
            "device_full": seen.device,
            "address_space_full": space if full else None,
            "address_space": seen.space,
        }
