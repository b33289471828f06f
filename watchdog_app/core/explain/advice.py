"""Advice for people on an incident: one sentence per cause, most likely first."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice
from typing import NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.text.plain import capitalize_first, clean
from watchdog_app.base.text.quantities import format_bytes, limit_above
from watchdog_app.base.text.terminal import counted
from watchdog_app.core.explain import phrases
from watchdog_app.core.explain.selection import KERNELS
from watchdog_app.core.model.agent import AgentState, MemoryGrowth
from watchdog_app.core.model.decisions import Attribution, Regime
from watchdog_app.core.model.history import SwapTraffic, is_thrashing
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.resource import SPECS, Reading, ResourceKind, ResourceSpec, Scope
from watchdog_app.core.model.status import MemoryParts

_MOST = 4
_WORKER = 0.05  # share of a task's memory; smaller workers do not explain its growth
_MOSTLY = 0.5  # least share of a task's memory in its workers
_GENTLER = 0.8  # share of a GPU's power limit; removes most of the heat for little speed
# Part of the activations that does not depend on the batch. Measured: 40 to 120 MB on a CPU.
_KERNELS_BYTES = 128 * 1024**2
_PART = 0.15  # share of the limit; smaller activations do not exhaust it
_SOON_S = 300.0  # growth is slow if it takes longer to fill that share of the limit
_USABLE = 0.9  # share of a limit that a batch or a buffer may fill
# Memory of an element or an activation relative to its own bytes. The rest is rounding by the
# allocator, intermediate results and prefetching. Chosen with a margin, because a training dies if
# the advised number does not fit.
_OVERHEAD = 1.25
# Memory that a training takes after its buffer is full: tracing, kernels, threads, first steps.
FIRST_STEP_BYTES = 128 * 1024**2
# Twice as much for advice, because a training dies if the advised number does not fit.
_FIRST_STEP_MARGIN_BYTES = 2 * FIRST_STEP_BYTES
_SHARE = 0.2  # share of the task's growth, or tensors per step; smaller values explain nothing
_ELEMENT_BYTES = 4  # usual size of a tensor element
_OWN = 0.3  # weight of a line in a library; people can change a line of the program
FULL = 0.95  # a buffer is full from this share of its announced size
# Advice for resources where the cause does not matter.
_ALWAYS = {
    ResourceKind.SHM: (
        "Shared memory is filled by workers (DataLoader, multiprocessing): use fewer of them, "
        "smaller batches, or memory-mapped files. In a container: docker run --shm-size=8g."
    ),
    ResourceKind.RLIMIT_AS: "The shell's own limit stops it: raise `ulimit -v` before the start.",
    ResourceKind.DISK: "Free space there, or save to another folder: no more can be saved.",
    ResourceKind.BATTERY: "Plug the machine in. Trainings with an agent are saved before the end.",
}
_COUNT = re.compile(r"\b(\d[\d,]*) (examples|batches)\b")
_GPU = re.compile(r"GPU (\d+)")
_GROWING = frozenset((Regime.LINEAR, Regime.STAIRCASE))


class Filling(NamedTuple):
    """An announced buffer that is not full yet."""

    what: str
    filled_bytes: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Shortage:
    """A resource that runs out, with all input for its advice."""

    reading: Reading
    attribution: Attribution
    regime: Regime  # kind of the growth
    slope_per_s: float
    tasks: Mapping[ProcessKey, Task]  # tasks under the resource
    agents: Mapping[ProcessKey, Sequence[AgentState]]  # by task
    swap: SwapTraffic  # swap traffic of the machine
    power_limit_w: float | None = None  # power limit in force for the hot device
    # announced buffers, by task
    filling: Mapping[ProcessKey, Filling] = field(default_factory=dict)
    # measured growth, by task
    growth: Mapping[ProcessKey, MemoryGrowth] = field(default_factory=dict)

    @property
    def spec(self) -> ResourceSpec:
        """Properties of this kind of resource."""
        return SPECS[self.reading.key.kind]


def build_advice(shortage: Shortage) -> tuple[str, ...]:
    """Return at most four sentences, most useful first."""
    kind, scope = shortage.reading.key.kind, shortage.spec.scope
    lines: Iterator[str] = iter(())
    if shortage.spec.of_ram:
        lines = chain(_agent_advice(shortage), _memory_advice(shortage))
    elif scope is Scope.CARD:
        lines = chain(_agent_advice(shortage), _gpu_memory_advice(shortage))
    elif scope is Scope.HEAT:
        lines = _heat_advice(shortage)
    elif kind in _ALWAYS:
        lines = iter((_ALWAYS[kind],))
    return tuple(islice(lines, _MOST))


def _gpu_memory_advice(shortage: Shortage) -> Iterator[str]:
    if shortage.regime in _GROWING:
        yield (
            "It grows from step to step: look for losses or outputs that are kept with their graph "
            "(in PyTorch use loss.item() or detach(), in TensorFlow float(loss))."
        )
    yield "Halve the batch, or train in mixed precision: activations take most of it."
    if shortage.reading.key.kind is ResourceKind.GPU_MEMORY and len(shortage.tasks) > 1:
        yield (
            "Others are on this card, too: close notebooks that you do not need, and switch memory "
            "growth on in TensorFlow (TF_FORCE_GPU_ALLOW_GROWTH=true): else it takes all it finds."
        )
    blamed = (each.task for each in shortage.attribution.contributors)
    agents = [agent for key in blamed for agent in shortage.agents.get(key, ())]
    if not agents or any("torch" in agent.framework.lower() for agent in agents):
        yield (
            "In PyTorch, del what you do not need and call torch.cuda.empty_cache() between "
            "phases; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against pieces."
        )


def _heat_advice(shortage: Shortage) -> Iterator[str]:
    gpu = _GPU.search(shortage.reading.label)
    if gpu is None:
        yield "Clear the air ways and the fans; use fewer workers, and write less to a hot disk."
        return
    if re.search(r"\((AMD|Intel) ", shortage.reading.label):
        yield "Look at the card's fans and the air in front of them; a lower power limit helps too."
        return
    watts = f"{_GENTLER * shortage.power_limit_w:.0f}" if shortage.power_limit_w else "WATTS"
    yield (
        "Look at the card's fans and the air in front of them; a lower power limit cools it at "
        f"once, for a few percent of speed: sudo nvidia-smi -i {gpu[1]} -pl {watts}"
    )


def _memory_advice(shortage: Shortage) -> Iterator[str]:
    kind, swap = shortage.reading.key.kind, shortage.swap
    # A buffer that fills explains the growth, so skip the search for other causes.
    blamed = [each.task for each in shortage.attribution.contributors]
    filling = any(key in shortage.filling for key in blamed[:1])
    if is_thrashing(swap) and SPECS[kind].of_group and shortage.reading.swapped > 0:
        yield (
            f"The group swaps ({format_bytes(swap.in_per_s)}/s read back): it works with more than "
            "the RAM that its limit allows. Make batch, buffers or workers smaller, or raise the "
            "limit."
        )
    elif is_thrashing(swap):
        yield (
            f"The machine is thrashing ({format_bytes(swap.in_per_s)}/s read back from swap): "
            "everything is slow until a program ends. Close what you can spare."
        )
    attribution = shortage.attribution
    if attribution.mostly_unwatched and attribution.unaccounted > attribution.others:
        yield (
            "What grows belongs to no process, so ps and top do not show it. Files in RAM: see "
            "`df -h -t tmpfs`. Ending what wrote them does not free them: delete them."
        )
        return
    if attribution.mostly_unwatched:
        yield (
            "Most of the growth comes from programs that are not Python: see them with "
            "`ps aux --sort=-rss | head`. Pausing a training would not help."
        )
        return
    if kind is ResourceKind.GUARD:
        yield from _guard_advice(shortage)
    workers = list(_worker_advice(shortage))
    yield from workers or (() if filling else _regime_advice(shortage))
    if kind is ResourceKind.GUARD:
        return
    if blamed and not any(key in shortage.agents for key in blamed):
        yield (
            "It has no agent. If it trains: start it with `watchdog exec -- python ...`; in a "
            "notebook %load_ext watchdog_app.agent, or once for all `watchdog agent enable`."
        )
    if kind is ResourceKind.CGROUP:
        yield (
            "The limit belongs to a group (a container, a service, a session), not to the "
            "machine: raise it where it was set, if the machine has more."
        )
    elif any(task.kind in KERNELS and key not in blamed for key, task in shortage.tasks.items()):
        yield "Shut down notebooks that you do not need: an idle kernel keeps its memory."


def _guard_advice(shortage: Shortage) -> Iterator[str]:
    """Advice for a guard: its limit can be raised, and at its limit a program only stops."""
    limit = limit_above(shortage.reading.limit, shortage.reading.used)
    keys = [*(each.task for each in shortage.attribution.contributors), *shortage.tasks]
    pid = keys[0].pid if keys else "TASK"
    yield (
        f"{phrases.WHILE_IT_RUNS}, give it more: watchdog limit {pid} {limit} "
        "(this only postpones the end of a leak)"
    )


def _worker_advice(shortage: Shortage) -> Iterator[str]:
    """
    Advice if most of a task's memory is in its workers, so that its own lines are not the cause.
    """
    for contributor in shortage.attribution.contributors[:1]:
        task = shortage.tasks.get(contributor.task)
        if task is None:
            return
        # If a launcher started the training, the training itself is a child process.
        trainings = {agent.key for agent in shortage.agents.get(task.key, ())}
        own = [
            max(0, each.rss_bytes - (each.shared_bytes or 0) - (each.cow_bytes or 0))
            for each in task.members[1:]
            if each.key not in trainings
        ]
        large = [size for size in own if size >= _WORKER * task.rss_bytes]
        if not large or sum(large) < _MOSTLY * task.rss_bytes:
            return
        yield (
            f"{format_bytes(sum(large))} of {format_bytes(task.rss_bytes)} are copies in "
            f"{counted(len(large), 'worker')}: use fewer workers, keep no cache in the data set, "
            "and arrays instead of lists."
        )


_PEAKS = "Single peaks are too large: use smaller batches or chunks, or fewer workers."
_STEADY = (
    "It grows steadily: in a loop, look for tensors, losses or frames that are appended to a list; "
    "keep float(loss) instead of the tensor."
)
# FLAT and FALLING are left out: the resource may have been full before the first sample, so the
# cause is unknown.
_BY_REGIME = {
    Regime.STAIRCASE: "It grows in steps, often once an epoch: look for what is kept at the end of "
    "one (histories, predictions, a dataset that is cached again).",
    Regime.BURST: _PEAKS,
    Regime.SAWTOOTH: _PEAKS,
    Regime.LINEAR: _STEADY,
}


def _regime_advice(shortage: Shortage) -> Iterator[str]:
    """Advice for the kind of the growth."""
    text = _BY_REGIME.get(shortage.regime)
    if shortage.regime is Regime.UNKNOWN and any(
        each.slope_bytes_per_s > 0 for each in shortage.attribution.contributors
    ):
        text = _STEADY  # observed too briefly to know the kind of the growth
    if text is not None:
        yield text


def _agent_advice(shortage: Shortage) -> Iterator[str]:
    """Name the batch, buffer or line to change, if an agent reports it."""
    room = max(0.0, _USABLE * shortage.reading.limit - shortage.reading.used)
    for contributor in shortage.attribution.contributors:
        filling = shortage.filling.get(contributor.task)
        if filling is not None and shortage.spec.scope is not Scope.CARD:
            yield filling_advice(filling, room)
        growth = shortage.growth.get(contributor.task)
        if growth is not None:
            yield from growth_advice(growth, contributor.slope_bytes_per_s)
        # The batch does not explain memory that grows from step to step. Slow growth is only noise
        # next to the activations.
        fast = _SOON_S * shortage.slope_per_s >= _PART * shortage.reading.limit
        grows = shortage.regime in _GROWING and fast and filling is None
        for agent in shortage.agents.get(contributor.task, ()):
            if agent.memory is not None and not grows:
                yield from _batch_advice(shortage, contributor.task, agent, agent.memory)


def _batch_advice(
    shortage: Shortage, task: ProcessKey, agent: AgentState, parts: MemoryParts
) -> Iterator[str]:
    batch, activations = parts.batch_size, parts.activations_bytes
    limit = shortage.reading.limit
    if not batch or not activations or activations < _PART * limit:
        return
    need = f"Batch {batch} needs {format_bytes(activations)} of activations"
    if shortage.spec.scope is Scope.CARD:
        # The memory on the GPU at the end of a step does not contain the activations.
        allocated = [each.used_bytes or 0 for each in agent.allocators]
        if len(allocated) != 1:
            return
        budget = _USABLE * limit - allocated[0]
    else:
        # All memory in use stays in use, except for the activations of this task.
        own = shortage.tasks[task].rss_bytes if task in shortage.tasks else 0
        rest = (parts.gradients_bytes or 0) + (parts.optimizer_bytes or 0)
        rest += sum(each.bytes or 0 for each in parts.buffers)
        held = 0 if parts.base_bytes is None else max(0, own - parts.base_bytes - rest)
        budget = _USABLE * limit - (shortage.reading.used - min(held, activations)) - _KERNELS_BYTES
    fits = _round_down(batch * budget / (_OVERHEAD * activations))
    if fits < 1:
        yield f"{need}, and even batch 1 may not fit: the model may be too large for what is left."
    elif fits < batch:
        yield f"{need}; {fits} fits."


def filling_advice(filling: Filling, room: float) -> str:
    """
    Describe a buffer that is filling, and whether it will fit.

    A count that "fits" leaves room for the overhead of the elements and for the first step.

    Args:
        filling: current state of the buffer.
        room: bytes that may still be taken.
    """
    name = capitalize_first(filling.what.removeprefix("the ").partition(" of ")[0])
    rest = max(0.0, filling.bytes - filling.filled_bytes)
    is_full = filling.filled_bytes >= FULL * filling.bytes
    size = format_bytes(filling.bytes)
    state = f"{name} still filling: {format_bytes(filling.filled_bytes)} of {size}"
    if is_full:
        state = f"{name} has filled: {size}"
    if _OVERHEAD * rest + _FIRST_STEP_MARGIN_BYTES <= room:
        return f"{state}; what is left fits." if is_full else f"{state}; the rest fits."
    if is_full:
        state += "; it may leave too little for the training"
    else:
        state += f"; it {'will' if rest > room else 'may'} not fit"
    counted = _COUNT.search(filling.what)
    if counted is None or not filling.bytes:
        return f"{state}: make it smaller."
    count = int(counted[1].replace(",", ""))
    budget = filling.filled_bytes + room - _FIRST_STEP_MARGIN_BYTES
    fits = _round_down(count * budget / (_OVERHEAD * filling.bytes))
    if fits < 1:
        return f"{state}: make it smaller."
    call = f"shuffle({fits})" if "shuffle" in filling.what else f"{fits:,} {counted[2]}"
    return f"{state}: {call} would{' fit' if is_full else ''}."


def growth_advice(growth: MemoryGrowth, slope_bytes_per_s: float | None = None) -> Iterator[str]:
    """
    Yield what grows, and where.

    Args:
        growth: report of the agent.
        slope_bytes_per_s: growth of the task. None: name all findings, however small.
    """
    first = max(growth.lines, key=lambda each: each.bytes * (1 if each.own else _OWN), default=None)
    expected = (slope_bytes_per_s or 0.0) * growth.seconds
    if first is not None and first.bytes >= _SHARE * expected:
        place = clean(f"{os.path.basename(first.file)}:{first.line}", 80)
        rate = f"{format_bytes(first.bytes)} in {growth.seconds:.0f} s"
        if first.bytes_per_step is not None:
            rate = f"{format_bytes(first.bytes_per_step)} a step"
        yield f"Python objects grow {rate}: line {place} holds them."
    for each in growth.tensors[:2]:
        often = each.more >= _SHARE * (growth.steps or 0)
        size_bytes = _ELEMENT_BYTES * math.prod(each.shape) * each.more
        if not often and size_bytes < _SHARE * expected:
            continue
        yield (
            f"{each.more:,} more tensors of {tuple(each.shape)} live than {growth.seconds:.0f} s "
            "ago: a list or dict holds them."
        )


def _round_down(count: float) -> int:
    """Round down to a convenient number: two digits, or a multiple of 8."""
    whole = max(0, int(count))
    if whole < 1000:
        return whole if whole < 16 else whole - whole % 8
    step = int(10 ** (len(str(whole)) - 2))
    return whole - whole % step
