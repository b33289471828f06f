"""Who is on which graphics card: the driver's list of processes, brought to tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.core.hardware import Gpu, GpuProcess, Hardware
from watchdog_app.core.records import ProcessKey, Task


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a task holds on one card."""

    uuid: str
    index: int
    memory_bytes: int | None  # over its processes; None: the driver does not say of one of them


@dataclass(frozen=True, slots=True)
class TaskDevices:
    """The cards of one task."""

    uses: tuple[DeviceUse, ...]  # by index

    @property
    def memory_bytes(self) -> int | None:
        """Over all cards; None when a part is not known."""
        parts = [use.memory_bytes for use in self.uses]
        return None if None in parts else sum(part for part in parts if part is not None)


def holders(tasks: Sequence[Task]) -> dict[int, Task]:
    """Which task a process belongs to, by pid."""
    return {member.key.pid: task for task in tasks for member in task.members}


def by_task(hardware: Hardware, tasks: Sequence[Task]) -> dict[ProcessKey, TaskDevices]:
    """
    The cards of every task that is on one.

    A process that is listed on a part of a card (MIG) and on the card itself is counted once, on
    the part. One pid on one card is one process, however often the driver lists it.
    """
    if not any(gpu.processes for gpu in hardware.gpus):
        return {}
    owners = holders(tasks)
    found: dict[ProcessKey, list[DeviceUse]] = {}
    for gpu in sorted(hardware.gpus, key=lambda each: (each.index, each.parent_uuid or "")):
        amounts: dict[ProcessKey, int | None] = {}
        for process in listed(gpu, hardware):
            task = owners.get(process.pid)
            if task is None or process.foreign:
                continue
            known, more = amounts.get(task.key, 0), process.memory_bytes
            amounts[task.key] = None if known is None or more is None else known + more
        for key, amount in amounts.items():
            found.setdefault(key, []).append(DeviceUse(gpu.uuid, gpu.index, amount))
    return {key: TaskDevices(tuple(uses)) for key, uses in found.items()}


def on_card(gpu: Gpu, tasks: Sequence[Task] | Mapping[int, Task]) -> tuple[Task, ...]:
    """The tasks with a process on this card, in the driver's order, each once."""
    owners = tasks if isinstance(tasks, Mapping) else holders(tasks)
    found: dict[ProcessKey, Task] = {}
    for process in gpu.processes:
        task = None if process.foreign else owners.get(process.pid)
        if task is not None:
            found.setdefault(task.key, task)
    return tuple(found.values())


def listed(gpu: Gpu, hardware: Hardware) -> Iterator[GpuProcess]:
    """The processes of a card, each pid once, without those that are on a part of it."""
    inside = {
        process.pid
        for part in hardware.gpus
        if part.parent_uuid == gpu.uuid
        for process in part.processes
    }
    for process in gpu.processes:
        if process.pid not in inside:
            inside.add(process.pid)
            yield process
