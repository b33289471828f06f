"""
The private names of frameworks that the agent relies on, and what a user loses without each.

The agent uses public names for everything else. A test checks every row on the installed versions
and refuses private names without a row. `watchdog doctor` checks the rows in the user's
environments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Internal:
    """Names that one part of a framework does not promise to keep."""

    files: str  # defining files, below site-packages or Python's library; `*` is allowed
    names: tuple[str, ...]
    lost: str  # what a user loses without the names, as the end of a sentence

    @property
    def package(self) -> str:
        """The framework, e.g. "keras", or a module of Python's own library."""
        return self.files.partition("/")[0].removesuffix(".py")


_PLACE = "the place within the epoch: its batches are trained again after a resume"
_OPTIMIZER = "the state of the optimizers"
_CALLBACKS = "what callbacks of Keras remember"
_FOUND = "rescues of trainings that name no Rescue"
_RANDOM = "random numbers of TensorFlow that are drawn without a seed"
_BUFFERS = "the forecast of buffers that a tf.data pipeline fills"
_PARTS = "a batch that does not fit is not trained in parts"
_ARRAYS = "the order of arrays that are shuffled without a seed"
_IDENTITY = "a changed program is noticed less often"
_LOADER = "batches of a DataLoader are loaded again on the way to their place"

EPOCH_ITERATOR = Internal(
    "keras/src/trainers/epoch_iterator.py",
    ("_enumerate_iterator", "_current_iterator", "_steps_seen", "_get_iterator"),
    _PLACE,
)
DATA_HANDLER = Internal(
    "tf_keras/src/engine/data_adapter.py",
    (
        *("_adapter", "_dataset", "_inferred_steps", "_initial_step", "_steps_per_epoch"),
        "_steps_per_execution",
    ),
    _PLACE,
)

INTERNALS: tuple[Internal, ...] = (
    # Keras 3: the position of a fit.
    EPOCH_ITERATOR,
    Internal("keras/src/trainers/trainer.py", ("_distribute_strategy",), _ARRAYS),
    Internal(
        "keras/src/backend/tensorflow/trainer.py",
        ("_initial_epoch", "_get_metrics_result_or_logs"),
        "the epoch that a resume begins with, and its logs",
    ),
    Internal(
        "keras/src/backend/tensorflow/trainer.py",
        ("_distributed_dataset", "_symbolic_build"),
        _ARRAYS,
    ),
    Internal(
        "keras/src/trainers/data_adapters/array_data_adapter.py",
        ("_inputs", "_shuffle", "_batch_size", "_num_samples"),
        _ARRAYS,
    ),
    Internal(
        "keras/src/trainers/data_adapters/torch_data_loader_adapter.py", ("_dataloader",), _PLACE
    ),
    # Keras 3: its state.
    Internal("keras/src/layers/layer.py", ("_flatten_layers",), _OPTIMIZER),
    Internal("keras/src/optimizers/base_optimizer.py", ("_trainable_variables",), _OPTIMIZER),
    Internal(
        "keras/src/layers/layer.py",
        ("_seed_generators", "_layers"),
        "random numbers of layers that a data set holds",
    ),
    Internal(
        "keras/src/backend/jax/trainer.py",
        ("_jax_state", "_jax_state_synced", "_get_jax_state"),
        "rescues of Keras on JAX",
    ),
    Internal("keras/src/random/seed_generator.py", ("global_seed_generator",), "Keras's seed"),
    Internal("keras/src/backend/common/global_state.py", ("get_global_attribute",), "Keras's seed"),
    # Keras 3: callbacks.
    Internal(
        "keras/src/callbacks/callback_list.py",
        ("CallbackList", "_async_train", "_futures"),
        "rescues after a step on PyTorch and JAX",
    ),
    Internal(
        "keras/src/utils/python_utils.py",
        ("_is_default",),
        "the names of callbacks that a rescue cannot bring back",
    ),
    Internal(
        "keras/src/callbacks/model_checkpoint.py",
        ("_batches_seen_since_last_saving", "_last_batch_seen"),
        _CALLBACKS,
    ),
    Internal("keras/src/callbacks/swap_ema_weights.py", ("_ema_weights_in_model",), _CALLBACKS),
    Internal(
        "keras/src/callbacks/tensorboard.py",
        ("_global_train_batch", "_global_test_batch"),
        _CALLBACKS,
    ),
    # Keras 3: a batch in parts.
    Internal(
        "keras/src/backend/tensorflow/trainer.py",
        ("_loss_tracker",),
        _PARTS,
    ),
    Internal("keras/src/layers/layer.py", ("_losses",), _PARTS),
    Internal("keras/src/backend/common/masking.py", ("_keras_mask",), _PARTS),
    # Keras 3: the identity of the training.
    Internal("keras/src/ops/operation.py", ("_inbound_nodes",), _IDENTITY),
    Internal("keras/src/trainers/trainer.py", ("_compile_loss",), _IDENTITY),
    Internal("keras/src/trainers/compile_utils.py", ("_user_loss_weights",), _IDENTITY),
    Internal("keras/src/utils/module_utils.py", ("_available",), _IDENTITY),
    # Keras 3: trainings that name no Rescue.
    Internal("keras/src/trainers/trainer.py", ("model_supports_jit",), _FOUND),
    Internal("keras/src/optimizers/base_optimizer.py", ("BaseOptimizer",), _FOUND),
    # Keras 2.
    DATA_HANDLER,
    Internal(
        "tf_keras/src/engine/data_adapter.py",
        ("_keras_sequence", "_shuffle_sequence", "_shuffle"),
        "the order of a Sequence that is shuffled",
    ),
    Internal(
        "tf_keras/src/engine/training.py",
        ("_train_counter", "_test_counter", "_predict_counter", "_initial_epoch"),
        "the counters of batches",
    ),
    Internal("tf_keras/src/engine/training.py", ("_flatten_layers",), _OPTIMIZER),
    Internal("tf_keras/src/optimizers/optimizer.py", ("_built",), _OPTIMIZER),
    Internal(
        "tf_keras/src/optimizers/legacy/optimizer_v2.py", ("_create_all_weights",), _OPTIMIZER
    ),
    Internal("tf_keras/src/engine/base_layer.py", ("_random_generator",), "seeds of Dropout"),
    Internal("tf_keras/src/backend.py", ("_generator",), "seeds of Dropout"),
    Internal(
        "tf_keras/src/callbacks.py",
        ("_supports_tf_logs", "UpdateEmbeddingCallback"),
        _FOUND,
    ),
    # TensorFlow: random numbers and variables.
    Internal("tensorflow/python/eager/context.py", ("_seed", "_rng", "global_seed"), _RANDOM),
    Internal("tensorflow/python/ops/stateful_random_ops.py", ("global_generator",), _RANDOM),
    Internal(
        "tensorflow/python/framework/config.py",
        ("is_op_determinism_enabled",),
        "whether operations are deterministic, as a resume says it",
    ),
    Internal("tensorflow/python/trackable/base.py", ("_trackable_children",), "plain tf.Variables"),
    Internal(
        "tensorflow/python/eager/polymorphic_function/polymorphic_function.py",
        ("_list_all_concrete_functions",),
        "the names of random operations that a rescue cannot bring back",
    ),
    Internal(
        "tensorflow/python/framework/ops.py",
        ("_functions",),
        "the names of random operations that a rescue cannot bring back",
    ),
    # TensorFlow: data.
    Internal(
        "tensorflow/python/data/ops/*.py",
        ("_inputs", "_seed", "_seed2", "_batch_size", "_ShuffleDataset", "_RepeatDataset"),
        "the order of tf.data pipelines that are shuffled without a seed",
    ),
    Internal("tensorflow/python/data/ops/*.py", ("_functions", "_func", "_tensors"), _IDENTITY),
    Internal("tensorflow/python/data/ops/iterator_ops.py", ("_dataset",), _PLACE),
    Internal(
        "tensorflow/python/data/ops/*.py",
        (
            *("_buffer_size", "_filename", "_BatchDataset", "_ConcatenateDataset"),
            *("_DirectedInterleaveDataset", "_IgnoreErrorsDataset", "_MapDataset"),
            *("_OptionsDataset", "_PaddedBatchDataset", "_ParallelBatchDataset"),
            *("_ParallelMapDataset", "_PrefetchDataset", "_ShardDataset", "_SkipDataset"),
            *("_TakeDataset", "_ZipDataset"),
        ),
        _BUFFERS,
    ),
    # TensorFlow: trainings that name no Rescue, and reports.
    Internal("tensorflow/python/data/ops/iterator_ops.py", ("OwnedIterator",), _FOUND),
    Internal("tensorflow/python/eager/backprop.py", ("GradientTape",), _FOUND),
    Internal(
        "tensorflow/python/eager/polymorphic_function/polymorphic_function.py",
        ("Function", "_python_function"),
        _FOUND,
    ),
    Internal("tensorflow/python/distribute/distribute_lib.py", ("has_strategy",), _FOUND),
    Internal(
        "tensorflow/python/eager/context.py",
        ("_context_handle", "context_safe"),
        "what TensorFlow holds of each GPU",
    ),
    Internal(
        "tensorflow/python/ops/script_ops.py",
        ("_py_funcs",),
        "allocation traces next to functions of Python in a graph",
    ),
    # PyTorch.
    Internal(
        "torch/utils/data/dataloader.py",
        (
            *("_sampler_iter", "_num_yielded", "_SingleProcessDataLoaderIter", "_iterator"),
            "_dataset",
        ),
        _LOADER,
    ),
    Internal("torch/utils/data/dataloader.py", ("_MultiProcessingDataLoaderIter",), _FOUND),
    Internal(
        "torch/_C/__init__.pyi",
        ("_version",),
        "whether a step that ran out of memory has changed the weights",
    ),
    Internal("torch/_C/__init__.pyi", ("_indices", "_values"), "gradients that are sparse"),
    Internal(
        "torch/nn/modules/module.py",
        ("_modules", "_parameters", "_buffers"),
        "rescues at a limit",
    ),
    Internal(
        "torch/optim/lr_scheduler.py",
        ("_schedulers",),
        "the hint that a scheduler was not named",
    ),
    Internal("torch/_dynamo/eval_frame.py", ("_torchdynamo_orig_callable",), _IDENTITY),
    # NumPy and Python.
    Internal(
        "numpy/*core/_exceptions.py",
        ("_ArrayMemoryError",),
        "rescues after an array of NumPy did not fit",
    ),
    Internal("numpy/random/mtrand.pyi", ("_rand",), "own random generators of the data"),
    Internal("random.py", ("_inst",), "own random generators of the data"),
    Internal("threading.py", ("_active",), "names of threads in a thread dump"),
)


def has_names(thing: object, row: Internal) -> bool:
    """Whether an object of the framework has all names of a row."""
    return all(hasattr(thing, name) for name in row.names)


def missing(package: str, folder: Path) -> Iterator[tuple[Internal, list[str]]]:
    """
    Rows with names that an installed version does not have.

    Args:
        package: framework, e.g. "keras".
        folder: the folder that contains the package; its files are read, nothing is imported.

    Yields:
        Rows, each with the missing names.
    """
    for row in INTERNALS:
        if row.package == package:
            texts = [path.read_text("utf-8", "replace") for path in folder.glob(row.files)]
            gone = [
                name
                for name in row.names
                if not any(re.search(rf"\b{name}\b", text) for text in texts)
            ]
            if gone:
                yield row, gone
