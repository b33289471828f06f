"""Cards, heat and power in the sentences of `watchdog explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.diagnosis import clock_events, gpu_faults
from watchdog_app.core.model import devices
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.hardware import Gpu, GpuState, Hardware, gpu_label
from watchdog_app.core.model.machine import Task

# Normal while nothing runs, or at full load.
_USUAL = clock_events.IDLE | clock_events.APPLICATION_CLOCKS | clock_events.SOFTWARE_POWER_CAP


def of_task(task: Task, agent: AgentState | None, hardware: Hardware) -> Iterator[str]:
    """
    What a task holds on the cards, and what its framework has given out of that.

    Args:
        task: to describe.
        agent: its agent; None without one.
        hardware: of the latest sample.
    """
    found = devices.by_task(hardware, (task,)).get(task.key)
    for use in found.uses if found is not None else ():
        amount = "an unknown amount" if use.memory_bytes is None else format_bytes(use.memory_bytes)
        yield f"It holds {amount} of memory on GPU {use.index}."
    for memory in agent.allocators if agent is not None else ():
        yield (
            f"Its framework has given out {format_bytes(memory.used_bytes)} of "
            f"{format_bytes(memory.limit_bytes)} on {plain(memory.device)}"
            + ("" if memory.peak_bytes is None else f", {format_bytes(memory.peak_bytes)} at most")
            + ("" if not memory.retries else f"; {memory.retries} allocations had to be retried")
            + "."
        )


def of_machine(hardware: Hardware, tasks: Sequence[Task]) -> Iterator[str]:
    """
    A sentence a card, and one on the battery where it is in use.

    Args:
        hardware: of the latest sample.
        tasks: to name who is on a card.
    """
    for gpu in hardware.gpus:
        yield _card(gpu, tasks)
    for battery in hardware.batteries:
        if battery.discharging:
            yield f"It runs on its battery ({plain(battery.name)}): {battery.percent:.0f} % left."


def _card(gpu: Gpu, tasks: Sequence[Task]) -> str:
    fault = gpu_faults.STATES.get(gpu.state)
    if gpu.state is GpuState.ASLEEP:
        parts = ["asleep, and left alone"]
    elif fault is not None:
        parts = [f"{fault.title.removeprefix('is ')}: {fault.text}"]
    else:
        total = gpu.memory_total_bytes
        if total is not None:
            total -= gpu.memory_reserved_bytes or 0
        parts = [
            f"{format_bytes(gpu.memory_used_bytes)} of {format_bytes(total)}"
            + (" (it shares the machine's RAM)" if gpu.unified_memory else "")
        ]
        if gpu.utilization_percent is not None:
            parts.append(f"{gpu.utilization_percent:.0f} % busy")
        if gpu.temperature_c is not None:
            parts.append(f"{gpu.temperature_c:.0f} °C")
        if gpu.power_w is not None:
            parts.append(f"{gpu.power_w:.0f} W")
        braked = clock_events.words((gpu.throttle_reasons or 0) & ~_USUAL)
        if braked:
            parts.append("held back by " + ", ".join(braked).replace("_", " "))
    names = [plain(task.name) for task in devices.on_card(gpu, tasks)]
    strangers = sum(1 for process in gpu.processes if process.foreign)
    if strangers:
        names.append(f"{strangers} process{'es' if strangers > 1 else ''} of others")
    if names:
        parts.append("on it: " + ", ".join(names))
    codes = list(dict.fromkeys(event.code for event in gpu.xids))
    if codes:
        parts.append(
            "in the last hour " + "; ".join(gpu_faults.describe(code) for code in codes[:3])
        )
    return f"{gpu_label(gpu)}: {'; '.join(parts)}."
