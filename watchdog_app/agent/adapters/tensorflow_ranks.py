"""
The workers of one `MultiWorkerMirroredStrategy` agree on a rescue when a training begins.

A collective of the strategy carries the choice of worker 0. It is the only one: at a save each
worker reads its own copies of the variables.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from watchdog_app.agent.adapters.together import Together, from_numbers, to_numbers


class TensorFlowRanks(Together):
    """The agreement of this worker with the others of a strategy."""

    ignores_sigterm = True  # for its PreemptionCheckpointHandler

    def __init__(self, strategy: Any) -> None:
        workers = strategy.cluster_resolver.cluster_spec().as_dict()
        chief = len(workers.get("chief", ()))
        of_workers = strategy.cluster_resolver.task_type == "worker"
        rank = strategy.cluster_resolver.task_id + (chief if of_workers else 0)
        super().__init__(rank, sum(map(len, workers.values())))
        self._strategy = strategy

    def _send(self, value: Any) -> Any:
        mine = tf.constant(to_numbers(value))
        values = self._strategy.experimental_distribute_values_from_function(lambda _: mine)
        return from_numbers(self._strategy.reduce("SUM", values, axis=None))


def ranks_of(strategy: Any) -> TensorFlowRanks | None:
    """The agreement of the workers of a distribution strategy; None if one process trains."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    made = TensorFlowRanks(strategy)
    return made if made.count > 1 else None
