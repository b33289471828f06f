"""What a person can do about an incident: the likely causes first, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from watchdog_app.base.text.quantities import format_bytes, size_above
from watchdog_app.core.explain import phrases
from watchdog_app.core.model.decisions import Regime
from watchdog_app.core.model.history import SwapTraffic, thrashing
from watchdog_app.core.model.machine import TaskKind
from watchdog_app.core.model.readings import in_airbag
from watchdog_app.core.model.resource import ResourceKind, Scope
from watchdog_app.core.policy import memory_advice
from watchdog_app.core.policy.danger import Danger
from watchdog_app.core.policy.memory_advice import Known

_MOST = 4
_WORKER = 0.05  # of a task's memory: smaller ones are not what fills it
_MOSTLY = 0.5  # ... in its workers
_GENTLER = 0.8  # of a card's power limit: most of the heat, little of the speed


# Full, and nobody is known to have filled it: it may have been so before it was looked at.
_STILL = frozenset((Regime.UNKNOWN, Regime.FLAT, Regime.FALLING))


def for_danger(
    danger: Danger,
    swap: SwapTraffic,
    power_limit_w: float | None = None,
    known: Known | None = None,
) -> tuple[str, ...]:
    """
    At most four sentences, the most useful first.

    Args:
        danger: the resource.
        swap: of the machine.
        power_limit_w: in force for the device that gets hot; None: not known.
        known: what agents tell of their trainings.
    """
    # A buffer that fills is the growth: no other is to be looked for.
    blamed = danger.incident.attribution.culprits[:1]
    filling = known is not None and any(each.task in known.filling for each in blamed)
    lines = _lines(danger, swap, power_limit_w, filling)
    if known is not None and (danger.spec.of_ram or danger.spec.scope is Scope.CARD):
        lines = chain(memory_advice.lines(danger, known), lines)
    return tuple(line for line, _ in zip(lines, range(_MOST), strict=False))


def _lines(
    danger: Danger, swap: SwapTraffic, power_limit_w: float | None, filling: bool
) -> Iterator[str]:
    kind, scope = danger.reading.key.kind, danger.spec.scope
    if danger.spec.of_ram:
        yield from _memory(danger, swap, filling)
    elif kind is ResourceKind.SHM:
        yield (
            "Shared memory is filled by DataLoader or multiprocessing workers: use fewer workers "
            "or smaller batches, or pass arrays by memory-mapped files."
        )
        yield "In a container, give it more: docker run --shm-size=8g."
    elif kind is ResourceKind.RLIMIT_AS:
        yield "The shell's own limit stops it: see `ulimit -v`, and raise it before the start."
    elif scope is Scope.DISK:
        yield "Free space on that disk, or let rescues go to another folder: no more can be saved."
    elif scope is Scope.CARD:
        yield from _device_memory(danger)
    elif scope is Scope.HEAT:
        yield from _heat(danger, power_limit_w)
    elif scope is Scope.BATTERY:
        yield (
            "Plug the machine in. What holds an agent is saved before the battery is empty, and "
            "goes on from there when it is started again."
        )


def _device_memory(danger: Danger) -> Iterator[str]:
    blamed = [each.task for each in danger.incident.attribution.culprits]
    allocators = [
        (agent.framework, memory)
        for key in blamed
        for agent in danger.agents.get(key, ())
        for memory in agent.allocators
    ]
    if any(memory.retries for _, memory in allocators):
        yield (
            "Allocations fail and are tried again already: its memory is in pieces, or all but "
            "used up."
        )
    if danger.assessment.regime in (Regime.LINEAR, Regime.STAIRCASE, Regime.ACCELERATING):
        yield (
            "It grows from step to step: look for losses or outputs that are kept with their graph "
            "(in PyTorch use loss.item() or detach(), in TensorFlow float(loss))."
        )
    yield "Halve the batch, or train in mixed precision: activations take most of it."
    if danger.reading.key.kind is ResourceKind.GPU_MEMORY and len(danger.tasks) > 1:
        yield (
            "Others are on this card, too: close notebooks that you do not need, and switch memory "
            "growth on in TensorFlow (TF_FORCE_GPU_ALLOW_GROWTH=true): else it takes all it finds."
        )
    if any("torch" in framework.lower() for framework, _ in allocators) or not allocators:
        yield (
            "In PyTorch, del what you do not need and call torch.cuda.empty_cache() between "
            "phases; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps against pieces."
        )


def _heat(danger: Danger, power_limit_w: float | None) -> Iterator[str]:
    label = danger.reading.label
    if "GPU" in label:
        index = phrases.heated(label).removeprefix("GPU ").partition(" ")[0]
        which = f" -i {index}" if index.isdigit() else ""
        watts = "WATTS" if not power_limit_w else f"{_GENTLER * power_limit_w:.0f}"
        yield (
            "Look at the card's fans and the air in front of them; a lower power limit cools it "
            f"at once, for a few percent of speed: sudo nvidia-smi{which} -pl {watts}"
        )
    elif danger.reading.key.subject.startswith("nvme") or "disk" in label.lower():
        yield "Give the disk air or a heat sink, and write less to it for a while."
    else:
        yield "Clear the air ways and the fans, or use fewer worker processes."


def _memory(danger: Danger, swap: SwapTraffic, filling: bool) -> Iterator[str]:
    kind = danger.reading.key.kind
    if thrashing(swap) and kind is ResourceKind.CGROUP and danger.reading.swapped > 0:
        yield (
            f"The group swaps ({format_bytes(swap.in_per_s)}/s read back): what it works with is "
            "larger than the RAM that its limit allows, and all in it is slow. Make that smaller "
            "(batch, buffers, workers), or raise the limit."
        )
    elif thrashing(swap):
        yield (
            f"The machine is thrashing ({format_bytes(swap.in_per_s)}/s read back from swap): "
            "everything is slow until a program ends. Close what you can spare."
        )
    if danger.incident.attribution.foreign and danger.incident.attribution.mostly_unaccounted:
        yield (
            "What grows belongs to no process, so ps and top do not show it. See what it is: "
            f"{danger.reading.key.subject}/memory.stat counts files in RAM as shmem, and "
            "`df -h -t tmpfs` shows which. Ending what wrote them does not free them: delete them."
        )
        return
    if danger.incident.attribution.foreign:
        yield (
            "Most of the growth comes from programs that are not Python: see them with "
            "`ps aux --sort=-rss | head`. Pausing a training would not help."
        )
        return
    workers = list(_workers(danger))
    if kind is ResourceKind.CGROUP and in_airbag(danger.reading.key.subject):
        yield from _airbag(danger)
        yield from workers or (() if filling else _by_regime(danger))
        return
    yield from workers or (() if filling else _by_regime(danger))
    yield from _agent(danger)
    if kind is ResourceKind.CGROUP:
        yield (
            "The limit belongs to a group (a container, a service, a session), not to the "
            "machine: raise it where it was set, if the machine has more."
        )
    elif any(
        task.kind in (TaskKind.NOTEBOOK, TaskKind.KERNEL)
        for key, task in danger.tasks.items()
        if not any(each.task == key for each in danger.incident.attribution.culprits)
    ):
        yield "Shut down notebooks that you do not need: an idle kernel keeps its memory."


def _airbag(danger: Danger) -> Iterator[str]:
    """Its limit can be raised while it runs, and nothing is lost at it until somebody decides."""
    limit = size_above(max(danger.reading.limit, danger.reading.used))
    blamed = danger.incident.attribution.culprits
    known = next(iter(danger.tasks), None)
    pid = blamed[0].task.pid if blamed else "TASK" if known is None else known.pid
    yield f"Give it more, also while it runs or is held: watchdog limit {pid} {limit}"
    if not danger.agents:
        yield (
            "No training is seen in it by an agent, so nothing of it can be saved: at its limit it "
            "stands still until you decide."
        )


def _workers(danger: Danger) -> Iterator[str]:
    """Where a task's memory lies in its worker processes: its own lines are not to blame."""
    for culprit in danger.incident.attribution.culprits[:1]:
        task = danger.tasks.get(culprit.task)
        if task is None:
            return
        own = [
            max(0, each.rss_bytes - (each.shared_bytes or 0) - (each.cow_bytes or 0))
            for each in task.members[1:]
        ]
        large = [size for size in own if size >= _WORKER * task.rss_bytes]
        if not large or sum(large) < _MOSTLY * task.rss_bytes:
            return
        what = "its worker" if len(large) == 1 else f"its {len(large)} workers"
        each = "which holds a copy of its own" if len(large) == 1 else "each with a copy of its own"
        yield (
            f"{format_bytes(sum(large))} of {format_bytes(task.rss_bytes)} are in {what}, {each}: "
            "use fewer workers, keep no cache in the data set, and arrays instead of lists."
        )


def _agent(danger: Danger) -> Iterator[str]:
    blamed = danger.incident.attribution.culprits
    if blamed and not any(culprit.task in danger.agents for culprit in blamed):
        yield (
            "No training is seen in it by an agent, so nothing of it can be saved. If it trains: "
            "start it with `watchdog exec -- python ...`; in a notebook %load_ext "
            "watchdog_app.agent, or once for all `watchdog agent enable`."
        )


def _by_regime(danger: Danger) -> Iterator[str]:
    regime = danger.assessment.regime
    if regime is Regime.STAIRCASE:
        yield (
            "It grows in steps, often once an epoch: look for what is kept at the end of one "
            "(histories, predictions, a dataset that is cached again)."
        )
    elif regime is Regime.SATURATING and any(
        culprit.task in danger.agents for culprit in danger.incident.attribution.culprits
    ):
        # An agent tells of the buffers that it knows, and slower steps leak more slowly.
        yield (
            "The growth slows down: a cache that fills, or a loop that keeps something of every "
            "step while its steps get slower: keep float(loss) instead of the tensor. No shuffle "
            "buffer is known to fill."
        )
    elif regime is Regime.SATURATING:
        yield (
            "The growth slows down: it may be a shuffle buffer or a cache that fills. Make the "
            "buffer smaller (tf.data shuffle, cache) if it does not stop by itself."
        )
    elif regime in (Regime.BURST, Regime.SAWTOOTH):
        yield "Single peaks are too large: use smaller batches or chunks, or fewer workers."
    elif regime is Regime.ACCELERATING:
        yield "The growth gets faster: something doubles, such as a list or frame that is copied."
    elif regime not in _STILL:
        yield (
            "It grows steadily: in a loop, look for tensors, losses or frames that are appended "
            "to a list; keep float(loss) instead of the tensor."
        )
