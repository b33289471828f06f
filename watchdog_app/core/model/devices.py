"""Tasks by card; readings of cards, allocators, temperatures and batteries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.hardware import Gpu, GpuProcess, Hardware, gpu_place
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.status import Allocator, GpuUse, Temperature


def total_memory_bytes(uses: Sequence[GpuUse]) -> int | None:
    """Sum over all cards; None if the memory on one of them is unknown."""
    parts = [use.memory_bytes for use in uses]
    return None if None in parts else sum(part for part in parts if part is not None)


def tasks_by_pid(tasks: Sequence[Task]) -> dict[int, Task]:
    """The task of each process, by pid."""
    return {member.key.pid: task for task in tasks for member in task.members}


def devices_by_task(hardware: Hardware, tasks: Sequence[Task]) -> dict[ProcessKey, list[GpuUse]]:
    """
    The cards that each task uses, sorted by index. Tasks that use no card are left out.

    The driver may list a process on a part of a card (MIG) and on the card itself. It then counts
    once, on the part. One pid on one card is one process, even if the driver lists it twice.

    Args:
        hardware: hardware of one sample.
        tasks: tasks of the same sample.
    """
    if not any(gpu.processes for gpu in hardware.gpus):
        return {}
    owners = tasks_by_pid(tasks)
    found: dict[ProcessKey, list[GpuUse]] = {}
    for gpu in sorted(hardware.gpus, key=lambda each: (each.index, each.parent_id or "")):
        amounts: dict[ProcessKey, int | None] = {}
        for process in listed_processes(gpu, hardware):
            task = owners.get(process.pid)
            if task is None or process.foreign:
                continue
            known, more = amounts.get(task.key, 0), process.memory_bytes
            amounts[task.key] = None if known is None or more is None else known + more
        for key, amount in amounts.items():
            use = GpuUse(id=gpu.id, uuid=gpu.uuid, index=gpu.index, memory_bytes=amount)
            found.setdefault(key, []).append(use)
    return found


def tasks_on_gpu(processes: Iterable[GpuProcess], tasks: Mapping[int, Task]) -> tuple[Task, ...]:
    """
    The tasks of these processes of a card, in the driver's order, each once.

    Args:
        processes: processes of the card.
        tasks: the task of each process of the same sample, by pid.
    """
    found = (None if process.foreign else tasks.get(process.pid) for process in processes)
    return tuple({task.key: task for task in found if task is not None}.values())


def listed_processes(gpu: Gpu, hardware: Hardware) -> Iterator[GpuProcess]:
    """
    The processes of a card, each pid once, without the processes on its parts (MIG).

    Args:
        gpu: the card.
        hardware: hardware of the same sample, with the parts of the card.
    """
    inside = {
        process.pid
        for part in hardware.gpus
        if part.parent_id == gpu.id
        for process in part.processes
    }
    for process in gpu.processes:
        if process.pid not in inside:
            inside.add(process.pid)
            yield process


BATTERY_RESERVE = 0.05  # of the full charge: systems switch off at 2 to 5 %
_IN_USE = 0.02  # of a card's memory; less than this belongs to the driver


def hardware_readings(
    hardware: Hardware, tasks: Sequence[Task], agents: Iterable[AgentState] = ()
) -> tuple[Reading, ...]:
    """
    Readings of device memory, framework allocators, temperatures and batteries, if known.

    Args:
        hardware: hardware of one sample.
        tasks: tasks of the same sample.
        agents: reports of the agents; agents without an allocator are ignored.
    """
    owners = tasks_by_pid(tasks)
    allocating = [
        (agent, owners[agent.key.pid])
        for agent in agents
        if agent.allocators and agent.key.pid in owners
    ]
    everyone = tuple(task.key for task in tasks)
    return (
        *_gpu_memory_readings(hardware, owners, everyone, allocating),
        *_allocator_readings(hardware, allocating),
        *_temperature_readings(hardware, owners, everyone),
        *_battery_reading(hardware, everyone),
    )


def _gpu_memory_readings(
    hardware: Hardware,
    owners: dict[int, Task],
    everyone: tuple[ProcessKey, ...],
    allocating: Sequence[tuple[AgentState, Task]],
) -> Iterator[Reading]:
    divided = {gpu.parent_id for gpu in hardware.gpus}
    for gpu in hardware.gpus:
        used = gpu.memory_used_bytes
        # The memory of a divided card belongs to its parts, which have readings of their own.
        # A card with unified memory runs out with the host's RAM, which has a reading already.
        if gpu.unified_memory or gpu.id in divided or used is None or not gpu.memory_total_bytes:
            continue
        if not _is_in_use(gpu):
            continue
        people, whose = _affected_tasks(gpu, owners, everyone)
        # The framework's figures allow a forecast: the driver only shows a high-water mark of them.
        known = {
            task.key
            for agent, task in allocating
            for memory in agent.allocators
            if _device_id(memory, hardware) == gpu.id
        }
        under = tuple(key for key in people if key not in known)
        if under:
            yield Reading(
                key=ResourceKey(ResourceKind.GPU_MEMORY, gpu.id),
                label=f"{gpu_place(gpu)} memory ({gpu.name})",
                used=used,
                limit=gpu.memory_total_bytes - (gpu.memory_reserved_bytes or 0),
                fatal=True,
                tasks=under,
                note=whose or ("shared by all who are on the card" if len(under) > 1 else None),
                listed_mono_s=gpu.processes_mono_s,
                device=gpu.id,
            )


def _allocator_readings(
    hardware: Hardware, allocating: Sequence[tuple[AgentState, Task]]
) -> Iterator[Reading]:
    cards = {gpu.id: gpu for gpu in hardware.gpus}
    for agent, task in allocating:
        seen: set[str] = set()
        for memory in agent.allocators:
            used, most, name = memory.used_bytes, memory.limit_bytes, memory.device
            if used is None or not most or name is None or name in seen:
                continue
            seen.add(name)
            device = _device_id(memory, hardware)
            gpu = cards.get(device or "")
            limit = _allocator_limit(used, most, gpu, agent.key.pid)
            place = name if gpu is None else f"{gpu_place(gpu)} ({gpu.name})"
            yield Reading(
                key=ResourceKey(ResourceKind.GPU_ALLOCATOR, f"{agent.key.pid}:{name}"),
                label=f"{agent.framework}'s memory on {place}",
                used=used,
                limit=limit,
                fatal=True,
                tasks=(task.key,),
                note="others hold part of the card" if limit < most else None,
                device=device or name,
            )


def _allocator_limit(used: int, most: int, gpu: Gpu | None, pid: int) -> int:
    """
    The most that an allocator can get, in bytes.

    TensorFlow with memory growth may take memory up to the limit that it got at its start. If
    other processes took part of that since, it only gets its own memory plus the free memory.
    """
    if gpu is None or not gpu.memory_total_bytes or gpu.unified_memory:
        return most
    on_card = _used_bytes(gpu)
    held = [each.memory_bytes for each in gpu.processes if each.pid == pid and not each.foreign]
    if on_card is None or not held or held[0] is None:
        return most
    reach = held[0] + max(0, gpu.memory_total_bytes - on_card)
    # The counters are from different moments: never report less than the memory in use.
    return min(most, max(reach, used))


def _temperature_readings(
    hardware: Hardware, owners: dict[int, Task], everyone: tuple[ProcessKey, ...]
) -> Iterator[Reading]:
    for gpu in hardware.gpus:
        # The parts of a card share its temperature sensor.
        if gpu.parent_id is None:
            parts = (part.processes for part in hardware.gpus if part.parent_id == gpu.id)
            people, _ = _affected_tasks(gpu, owners, everyone, tuple(chain.from_iterable(parts)))
            label = f"heat of {gpu_place(gpu)}"
            yield from _shutdown_reading(gpu, gpu.id, label, gpu.temperature_c, people)
    for each in hardware.temperatures:
        label = f"{each.label} heat" if each.is_cpu else f"heat of the {each.label}"
        yield from _shutdown_reading(each, each.key, label, each.celsius, everyone)


def _shutdown_reading(
    part: Gpu | Temperature,
    subject: str,
    label: str,
    celsius: float | None,
    people: tuple[ProcessKey, ...],
) -> Iterator[Reading]:
    """A reading up to the shutdown temperature; a mere slowdown loses no work."""
    limit = part.shutdown_c
    if people and celsius is not None and limit is not None and limit > 0.0:
        yield Reading(
            key=ResourceKey(ResourceKind.TEMPERATURE, f"{subject}/shutdown"),
            label=f"{label} (switches off at {limit:.0f} °C)",
            used=celsius,
            limit=limit,
            fatal=True,
            tasks=people,
            device=part.id if isinstance(part, Gpu) else None,
        )


def _battery_reading(hardware: Hardware, everyone: tuple[ProcessKey, ...]) -> Iterator[Reading]:
    """
    One reading for all batteries together, while one of them discharges.

    This holds on mains power as well: a weak power supply lets the battery run empty.
    """
    batteries = hardware.batteries
    if not any(each.discharging for each in batteries):
        return
    energies = [(each.energy_j, each.full_j) for each in batteries]
    if all(left is not None and full for left, full in energies):
        full_j = sum(full or 0.0 for _, full in energies)
        left = sum(left or 0.0 for left, _ in energies) / full_j
    else:
        left = sum(each.percent or 0.0 for each in batteries) / (100.0 * len(batteries))
    yield Reading(
        key=ResourceKey(ResourceKind.BATTERY),
        label="battery" if len(batteries) == 1 else "batteries",
        used=min(1.0, max(0.0, 1.0 - left)),
        limit=1.0 - BATTERY_RESERVE,
        fatal=True,
        tasks=everyone,
        note="plugged in, but the power supply is too weak" if hardware.on_mains else None,
    )


def _affected_tasks(
    gpu: Gpu,
    owners: dict[int, Task],
    everyone: tuple[ProcessKey, ...],
    on_parts: Sequence[GpuProcess] = (),
) -> tuple[tuple[ProcessKey, ...], str | None]:
    """The tasks on a card, and a note if this is a guess."""
    listed = (*gpu.processes, *on_parts)
    ours = tasks_on_gpu(listed, owners)
    if ours:
        return tuple(task.key for task in ours), None
    # In a container the driver lists pids of the host, so any task may be among them.
    if any(each.foreign for each in listed) or (not listed and _is_in_use(gpu)):
        return everyone, "the driver does not say who uses it"
    return (), None


def _device_id(memory: Allocator, hardware: Hardware) -> str | None:
    """The card of an allocator's device; None: unknown."""
    if memory.gpu_uuid is not None:
        ids = (gpu.id for gpu in hardware.gpus if gpu.uuid == memory.gpu_uuid)
        return next(ids, memory.gpu_uuid)
    # Frameworks seldom use the graphics in a processor.
    cards = [gpu for gpu in hardware.gpus if not gpu.unified_memory] or hardware.gpus
    return cards[0].id if len(cards) == 1 else None


def _used_bytes(gpu: Gpu) -> int | None:
    if gpu.memory_used_bytes is None:
        return None
    return gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)


def _is_in_use(gpu: Gpu) -> bool:
    """Whether programs use a card, judged by its memory; True if the memory is unknown."""
    used = _used_bytes(gpu)
    return used is None or used >= _IN_USE * (gpu.memory_total_bytes or 0)
