"""Which batch, buffer or line of a training to change, by what its agent tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.core.explain.memory import (
    OVERHEAD,
    USABLE,
    Filling,
    about_filling,
    about_growth,
    rounded,
)
from watchdog_app.core.model.agent import AgentState, MemoryGrowth, MemoryParts
from watchdog_app.core.model.decisions import Regime
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import Scope
from watchdog_app.core.policy.danger import Danger

# What of the activations does not depend on the batch: measured 40 to 120 MB on a CPU.
_KERNELS_BYTES = 128 * 1024**2
_PART = 0.15  # of the limit: smaller activations are not what makes it run out
_SOON_S = 300.0  # growth that fills less than that part of the limit in this time is slow
_GROWING = frozenset((Regime.LINEAR, Regime.ACCELERATING, Regime.STAIRCASE))


class Known(NamedTuple):
    """What is known of the tasks from inside, by task."""

    filling: Mapping[ProcessKey, Filling]
    growth: Mapping[ProcessKey, MemoryGrowth]


def lines(danger: Danger, known: Known) -> Iterator[str]:
    """
    Sentences about the first of the culprits that an agent tells of, the most useful first.

    Args:
        danger: the resource.
        known: what agents reported.
    """
    room = max(0.0, USABLE * danger.reading.limit - danger.reading.used)
    for culprit in danger.incident.attribution.culprits:
        filling = known.filling.get(culprit.task)
        if filling is not None and danger.spec.scope is not Scope.CARD:
            yield about_filling(filling, room)
        growth = known.growth.get(culprit.task)
        if growth is not None:
            yield from about_growth(growth, culprit.slope_bytes_per_s)
        # What grows from step to step is no matter of the batch; noise beside its activations is.
        fast = _SOON_S * danger.assessment.slope_per_s >= _PART * danger.reading.limit
        grows = danger.assessment.regime in _GROWING and fast and filling is None
        for agent in danger.agents.get(culprit.task, ()):
            if agent.memory is not None and not grows:
                yield from _about_batch(danger, culprit.task, agent, agent.memory)


def _about_batch(
    danger: Danger, task: ProcessKey, agent: AgentState, parts: MemoryParts
) -> Iterator[str]:
    batch, activations = parts.batch_size, parts.activations_bytes
    limit = danger.reading.limit
    if not batch or not activations or activations < _PART * limit:
        return
    if danger.reading.unit != "bytes":
        return
    need = f"Batch {batch} needs {format_bytes(activations)} of activations"
    if danger.spec.scope is Scope.CARD:
        # What a card holds at the end of a step is without them.
        allocated = [each.used_bytes for each in agent.allocators]
        if len(allocated) != 1:
            return
        budget = USABLE * limit - allocated[0]
    else:
        # Of what is used now, all but the activations stays, whoever holds it.
        own = danger.tasks[task].rss_bytes if task in danger.tasks else 0
        rest = (parts.gradients_bytes or 0) + (parts.optimizer_bytes or 0)
        rest += sum(each.bytes for each in parts.buffers)
        held = 0 if parts.base_bytes is None else max(0, own - parts.base_bytes - rest)
        budget = USABLE * limit - (danger.reading.used - min(held, activations)) - _KERNELS_BYTES
    fits = rounded(batch * budget / (OVERHEAD * activations))
    if fits < 1:
        yield f"{need}, and even batch 1 may not fit: the model may be too large for what is left."
    elif fits < batch:
        yield f"{need}; {fits} fits."
