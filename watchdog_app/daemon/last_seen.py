"""
What the last looks said of each task: who dies is asked after when it cannot be looked at any more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set

from watchdog_app.core.diagnosis.causes import address_space_full, device_full, level_of
from watchdog_app.core.model.agent import MemoryGrowth
from watchdog_app.core.model.machine import HostMemory, ProcessInfo, ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind
from watchdog_app.daemon.status import Look

_UNWINDING_S = 10.0  # a large heap takes its time to be given back


class LastSeen:
    """
    By task, of those that live and of those that are missing in the last look.

    `limits`: of memory groups; `devices`: full cards and allocators; `spaces`: how full a limited
    address space was; `growth`: bytes a second.
    """

    def __init__(self) -> None:
        self.memory: HostMemory | None = None
        self.infos: Mapping[ProcessKey, ProcessInfo] = {}  # of the look before, while one goes on
        self.tasks: tuple[Task, ...] = ()
        self.card_faults: Mapping[ProcessKey, str] = {}
        self.gpus_mono_s: float | None = None  # when the GPUs were read
        self.on_gpu: set[ProcessKey] = set()  # tasks that used one, or did when last seen
        self.limits: dict[ProcessKey, Reading] = {}
        self.high: dict[ProcessKey, bool] = {}  # that limit is memory.high, or high lies below it
        self.devices: dict[ProcessKey, str] = {}
        self.spaces: dict[ProcessKey, str] = {}
        self.growth: dict[ProcessKey, float | None] = {}
        self.grew: dict[ProcessKey, MemoryGrowth] = {}  # what the agents saw growing
        # Those that are used up or were a moment ago: how full, and when that was seen.
        self._full_spaces: dict[ProcessKey, tuple[str, float]] = {}

    def learn(self, look: Look, missing: Set[ProcessKey]) -> None:
        """
        One more look.

        Args:
            look: that was taken just now.
            missing: tasks that were there before; what is known of them is kept.
        """
        self.memory = look.snapshot.host
        self.card_faults = look.result.card_faults
        hardware = look.snapshot.hardware
        self.gpus_mono_s = hardware.gpus_mono_s
        using = {each.pid for gpu in hardware.gpus for each in gpu.processes or ()}
        self.on_gpu &= {*(task.key for task in look.tasks), *missing}
        self.on_gpu |= {
            task.key for task in look.tasks if using and using & {m.key.pid for m in task.members}
        }
        self.limits = {key: at for key, at in self.limits.items() if key in missing}
        self.high = {key: at for key, at in self.high.items() if key in missing}
        self.devices = {key: at for key, at in self.devices.items() if key in missing}
        self.spaces = {key: at for key, at in self.spaces.items() if key in missing}
        self.tasks = look.tasks
        there = {task.key for task in look.tasks} | missing
        kept = {key: each for key, each in self.grew.items() if key in there}
        self.grew = {**kept, **look.result.growth}
        self.growth = {key: outlook.trend_bytes_per_s for key, outlook in look.result.tasks.items()}
        slowed = {
            group.path
            for group in look.snapshot.cgroups
            if group.high_bytes is not None
            and (group.limit_bytes is None or group.high_bytes < group.limit_bytes)
        }
        for reading in look.readings:
            if SPECS[reading.key.kind].of_group:
                for key in reading.tasks:
                    self.limits[key] = reading
                    self.high[key] = reading.key.subject in slowed
            elif reading.key.kind is ResourceKind.RLIMIT_AS:
                self.spaces.update((key, level_of(reading)) for key in reading.tasks)
                space = address_space_full(reading)
                if space is not None:
                    now = look.snapshot.mono_s
                    self._full_spaces.update((key, (space, now)) for key in reading.tasks)
        if look.snapshot.hardware.gpus or any(view.allocators for view in look.agents.values()):
            for task in look.tasks:
                full = device_full(task, look.readings)
                if full is not None:
                    self.devices[task.key] = full

    def full_space(self, key: ProcessKey) -> str | None:
        """
        How full its address space was at its end; None: it was not.

        A MemoryError unwinds what held the memory: the last look may find half of it free again.
        """
        space, seen_mono_s = self._full_spaces.get(key, ("", float("-inf")))
        return space if time.monotonic() - seen_mono_s <= _UNWINDING_S else None

    def forget(self, key: ProcessKey) -> None:
        """It has ended, and that is written down."""
        self._full_spaces.pop(key, None)
