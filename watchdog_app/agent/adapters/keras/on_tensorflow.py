"""
Keras on TensorFlow: its variables, its steps, its workers, a repeatable order of shuffled arrays.

Without a seed, Keras shuffles arrays with an operation that draws from the machine's entropy. Then
a later process cannot know which rows of an epoch were trained. For such a fit this module draws
the permutation of each epoch from its own seed and the number of the epoch. The order is as random
as before, and a rescue can hold the seed. Programs with a seed stay unchanged, because Keras
repeats their order.

The pipeline is Keras's own (`ArrayDataAdapter.get_tf_dataset`, Keras 3.8 to 3.15) with another
permutation. It uses the existing tensors of the data, because new ones would copy all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from watchdog_app.agent.adapters.keras.backend import TENSORFLOW, Backend, Kept
from watchdog_app.agent.adapters.passes import pipeline_parts
from watchdog_app.agent.adapters.together import Together, from_numbers, to_numbers
from watchdog_app.agent.state import variables
from watchdog_app.agent.state.rows import METRIC, NamedVariable

# Random operations of a compiled step whose counters cannot be read. Keras's layers draw from seed
# generators instead, which are variables.
_STATEFUL_OPERATIONS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
# The permutation needs a sort: 4 million rows take half a second, in the background.
_MOST_ROWS = 4_000_000


class TensorFlowRanks(Together):
    """
    The agreement of this worker with the others of a `MultiWorkerMirroredStrategy`.

    A collective of the strategy carries the choice of worker 0. It is the only one: at a save each
    worker reads its own copies of the variables.
    """

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


class OnTensorFlow(Backend):
    """See `Backend`."""

    name = TENSORFLOW
    data_ended = (StopIteration, tf.errors.OutOfRangeError)
    reads_in_python = False

    def own_variables(self, model: Any) -> list[Any]:
        """See `Backend`; plain `tf.Variable`s in the model."""
        return variables.plain_variables(model)

    def variables(self, model: Any, extra: Iterable[Any]) -> list[NamedVariable]:
        """See `variables.model_variables`."""
        return [*variables.model_variables(model, extra)]

    def metrics(self, model: Any) -> list[NamedVariable]:
        """The variables of the model's metrics."""
        return [*variables.collect([(METRIC, model.metrics_variables)])]

    def keep_metric(self, item: NamedVariable) -> Kept:
        """
        See `Backend`; holds a reference, which costs nothing.

        While a reference to a buffer exists, TensorFlow writes the variable to a new buffer.
        """
        value = item.holder.read_value()
        return lambda: np.asarray(value)

    def together(self, model: Any) -> TensorFlowRanks | None:
        """See `Backend`; the workers of a MultiWorkerMirroredStrategy."""
        return ranks_of(getattr(model, "distribute_strategy", None))

    def build(self, model: Any, iterator: Any) -> None:
        """See `Backend`; variables that cannot be created this way stay missing."""
        spec = getattr(getattr(iterator, "_distributed_dataset", None), "element_spec", None)
        if spec is not None and model._distribute_strategy is None:
            try:
                model._symbolic_build(data_batch=spec)
            except Exception:  # noqa: S110 - a model with its own step is built by that step
                pass

    def repeatable_order(self, iterator: Any, model: Any) -> EpochOrder | None:
        """See `make_repeatable`."""
        return make_repeatable(iterator, model)

    def unrepeatable_order_reason(self, iterator: Any) -> str | None:
        """See `Backend`; adds arrays that Keras shuffles without a seed."""
        return unseeded_shuffle_reason(iterator) or super().unrepeatable_order_reason(iterator)

    def stateful_operations(self, model: Any) -> list[str]:
        """See `stateful_operations`."""
        return stateful_operations(model.train_function)

    def train_on(self, model: Any, source: Any) -> None:
        """See `Backend`; the step draws from the iterator itself."""
        model.train_function(source)

    def record(self, model: Any) -> Any:
        """See `Backend`; None if the model is distributed over several devices."""
        if getattr(model, "_distribute_strategy", None) is not None:
            return None
        from watchdog_app.agent.oom.on_tensorflow import TensorFlowRecord

        return TensorFlowRecord()

    def micro_batch_obstacle(self, model: Any) -> str | None:
        """See `micro_keras`."""
        if model._distribute_strategy is not None:
            return "the model is spread over several devices"
        from watchdog_app.agent.oom import micro_keras

        return micro_keras.obstacle(model)

    def parts(self, model: Any, micro: Any) -> Any:
        """See `micro_keras`."""
        from watchdog_app.agent.oom import micro_keras

        return micro_keras.Parts(model, micro)


class EpochOrder:
    """Permutations of the rows, computed from `seed` and the number of the epoch."""

    def __init__(self) -> None:
        self._seed = tf.Variable(
            int.from_bytes(os.urandom(7), "little"), dtype=tf.int64, trainable=False
        )
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)

    @property
    def seed(self) -> int:
        """The seed, which a rescue must hold."""
        return int(self._seed.numpy())

    @seed.setter
    def seed(self, value: int) -> None:
        self._seed.assign(value)

    def epoch_begins(self, epoch: int) -> None:
        """Set the epoch; call it before the draw of the epoch's first batch."""
        self._epoch.assign(epoch)

    def permutation(self, rows: int) -> Any:
        """All rows in the order of the epoch, as a tensor."""
        return tf.random.experimental.stateless_shuffle(
            tf.range(rows, dtype=tf.int64), seed=tf.stack([self._seed, self._epoch])
        )


def make_repeatable(iterator: Any, model: Any) -> EpochOrder | None:
    """
    Replace the order of a fit that shuffles arrays without a seed.

    Args:
        iterator: the fit's EpochIterator, before its first epoch.
        model: the model of the fit.

    Returns:
        The new order; None if the fit needs none or cannot get one, and is unchanged.
    """
    adapter: Any = getattr(iterator, "data_adapter", None)
    if type(adapter).__name__ != "ArrayDataAdapter" or adapter._shuffle is not True:
        return None
    if _is_seeded() or model._distribute_strategy is not None or iterator.steps_per_epoch:
        return None
    arrays = _find_repeated_arrays(iterator._distributed_dataset)
    if arrays is None or adapter._num_samples > _MOST_ROWS:
        return None
    order = EpochOrder()
    made = _build_pipeline(order, arrays, adapter._num_samples, adapter._batch_size)
    if made.element_spec != iterator._distributed_dataset.element_spec:
        return None
    iterator._distributed_dataset = made
    return order


def unseeded_shuffle_reason(iterator: Any) -> str | None:
    """A text if Keras shuffles arrays in an order that cannot be repeated; otherwise None."""
    adapter: Any = getattr(iterator, "data_adapter", None)
    if type(adapter).__name__ == "ArrayDataAdapter" and adapter._shuffle and not _is_seeded():
        return "the shuffled order of arrays without a seed (keras.utils.set_random_seed)"
    return None


def _is_seeded() -> bool:
    from tensorflow.python.eager import context

    return context.global_seed() is not None


def _find_repeated_arrays(dataset: Any) -> Any:
    """The part of Keras's pipeline that repeats the whole arrays; None: unknown structure."""
    found = [each for each in pipeline_parts(dataset) if type(each).__name__ == "_RepeatDataset"]
    if len(found) != 1:
        return None
    dense = all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(found[0].element_spec))
    return found[0] if dense else None


def _build_pipeline(order: EpochOrder, arrays: Any, rows: int, batch_size: int) -> Any:
    whole = rows // batch_size * batch_size

    def batches(indices: Any) -> Any:
        found = tf.data.Dataset.from_tensor_slices(
            tf.reshape(indices[:whole], [whole // batch_size, batch_size])
        )
        if whole < rows:
            found = found.concatenate(tf.data.Dataset.from_tensors(indices[whole:]))
        return found

    def gather(indices: Any, data: Any) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices, axis=0), data)

    def permutation(_: Any) -> Any:
        return order.permutation(rows)

    # AutoGraph has nothing to convert in these functions, and took 50 to 150 ms.
    as_it_is = tf.autograph.experimental.do_not_convert
    indices = tf.data.Dataset.range(1).map(as_it_is(permutation)).prefetch(1)
    made = tf.data.Dataset.zip((indices.flat_map(as_it_is(batches)), arrays))
    made = made.map(as_it_is(gather), num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    # The same options as Keras's: serialising the pipeline would copy the arrays.
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return made.with_options(options).prefetch(tf.data.AUTOTUNE)


def stateful_operations(train_function: Callable[..., Any] | None) -> list[str]:
    """
    Names of random operations in a traced training function whose state cannot be read, sorted.

    The function is a tf.function, or one that closes over some.

    Empty also if the function has no graph: it runs eagerly, or is not traced yet. What only
    another graph calls counts there; a data set's `map` draws again when its pass is repeated.

    Source: `TensorFlowTrainer._make_function` closes over its tf.functions, Keras 3.
    """
    seen: set[int] = set()
    found = {
        operation
        for concrete in _concrete_functions(train_function)
        if not isinstance(concrete.graph.outer_graph, type(concrete.graph))
        for operation in _operations(concrete.graph, seen)
        if operation in _STATEFUL_OPERATIONS
    }
    return sorted(found)


def random_draws(functions: Iterable[Any]) -> list[str]:
    """The random numbers in traced functions that a resume will not restore, as a text."""
    # The counters of these operations are in the step's graph, where we cannot read them.
    found = ", ".join(sorted({name for each in functions for name in stateful_operations(each)}))
    remedy = "draw them with a tf.random.Generator"
    return [f"random numbers that the training step draws with {found} ({remedy})"] * bool(found)


def _concrete_functions(function: Any) -> Iterator[Any]:
    listing = getattr(function, "_list_all_concrete_functions", None)
    if listing is not None:
        yield from listing()
        return
    for cell in getattr(function, "__closure__", None) or ():
        yield from _concrete_functions(cell.cell_contents)


def _operations(graph: Any, seen: set[int]) -> Iterator[str]:
    if id(graph) in seen:
        return
    seen.add(id(graph))
    for operation in graph.get_operations():
        yield operation.type
    for nested in getattr(graph, "_functions", {}).values():
        inner = getattr(nested, "graph", None)
        if inner is not None:
            yield from _operations(inner, seen)
