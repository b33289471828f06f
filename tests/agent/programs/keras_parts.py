"""
Models trained by Keras on whole batches and on parts of them:

prints their difference as JSON.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.oom.micro import FIELD, MicroBatches
from watchdog_app.agent.oom.micro_keras import Parts, obstacle

layers, losses = keras.layers, keras.losses
rows = np.random.default_rng(0).normal(size=(70, 6)).astype("float32")
words = np.random.default_rng(1).integers(0, 9, size=(70, 5)).astype("int32")
words[:, 2:] *= np.random.default_rng(2).integers(0, 2, size=(70, 3))
targets = rows.sum(axis=1, keepdims=True)
weights = np.random.default_rng(3).uniform(0.1, 3.0, 70).astype("float32")


def dense(**options):
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "tanh", **options), layers.Dense(1)]
    )


def masked():
    inputs = keras.Input((5,), dtype="int32")
    found = layers.Embedding(9, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, layers.Dense(1)(layers.LSTM(4, return_sequences=True)(found)))


def two():
    inputs = keras.Input((6,))
    shared = layers.Dense(8, "tanh")(inputs)
    outputs = {"a": layers.Dense(1, name="a")(shared), "b": layers.Dense(1, name="b")(shared)}
    return keras.Model(inputs, outputs)


def half():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return dense()
    finally:
        keras.mixed_precision.set_global_policy("float32")


def fixed():
    inputs = keras.Input(batch_shape=(20, 6))
    return keras.Model(inputs, layers.Dense(1)(inputs))


def remembers():
    inputs = keras.Input((5, 1), batch_size=None)
    recurrent = layers.SimpleRNN(2, name="recurrent")
    model = keras.Model(inputs, layers.Dense(1)(recurrent(inputs)))
    recurrent.stateful = True
    return model


def contrastive(_, y_pred):
    likeness = tf.matmul(y_pred, y_pred, transpose_b=True)
    own = tf.range(tf.shape(y_pred)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(own, likeness)


class SumOverBatch(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_sum(tf.square(y - y_pred))


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


PLAIN = (rows, targets)
WEIGHTED = (rows, targets, weights)
adam = keras.optimizers.Adam
CASES = {
    "mean": (dense, PLAIN, {}),
    "sum": (dense, PLAIN, {"loss": losses.MeanSquaredError(reduction="sum")}),
    "weighted": (dense, WEIGHTED, {"weighted_metrics": ["mae"]}),
    "weighted mean": (
        dense,
        WEIGHTED,
        {"loss": losses.MeanSquaredError(reduction="mean_with_sample_weight")},
    ),
    "regularized": (lambda: dense(kernel_regularizer="l2"), PLAIN, {}),
    "masked": (
        masked,
        (words, np.repeat(targets[:, None], 5, axis=1)),
        {"optimizer": keras.optimizers.SGD(0.1)},
    ),
    "two outputs": (
        two,
        (rows, {"a": targets, "b": -targets}),
        {
            "loss": {"a": "mse", "b": "mae"},
            "loss_weights": {"a": 1.0, "b": 0.3},
            "metrics": {"a": ["mae"], "b": ["mae"]},
        },
    ),
    "accumulating": (dense, PLAIN, {"optimizer": adam(1e-2, gradient_accumulation_steps=2)}),
    "clipped": (dense, PLAIN, {"optimizer": adam(1e-2, global_clipnorm=0.5)}),
    "scaled": (
        dense,
        PLAIN,
        {"optimizer": keras.optimizers.LossScaleOptimizer(adam(1e-2), initial_scale=1024.0)},
    ),
    "averaged": (dense, PLAIN, {"optimizer": adam(1e-2, use_ema=True)}),
    "scheduled": (
        dense,
        PLAIN,
        {"optimizer": adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5))},
    ),
    "half": (half, (rows, targets / 2), {}),
    "eager": (dense, PLAIN, {"run_eagerly": True}),
    "compiled by XLA": (dense, PLAIN, {"jit_compile": True}),
}
# With a length of two rows the loss is known not to be the mean of its parts.
COUPLED = {
    "contrastive": lambda: compiled(dense(), loss=contrastive),
    "circle": lambda: compiled(dense(), loss=losses.Circle()),
    "sum over the batch": lambda: compiled(SumOverBatch(*two_ends())),
}
REFUSED = {
    "fixed": lambda: compiled(fixed()),
    "remembers": lambda: compiled(remembers()),
    "own step": lambda: compiled(OwnStep(*two_ends())),
    "activity": lambda: compiled(dense(activity_regularizer="l2")),
    "no reduction": lambda: compiled(dense(), loss=losses.MeanSquaredError(reduction=None)),
    "sum and penalty": lambda: compiled(
        dense(kernel_regularizer="l2"), loss=losses.MeanSquaredError(reduction="sum")
    ),
}


def two_ends():
    inputs = keras.Input((6,))
    return inputs, layers.Dense(1)(inputs)


def compiled(model, **options):
    model.compile(**{"optimizer": adam(1e-2), "loss": "mse", "jit_compile": False, **options})
    return model


def numbers(model):
    return [each.value.numpy() for each in [*model.variables, *model.optimizer.variables]]


def apart(make, data, options):
    batches = list(tf.data.Dataset.from_tensor_slices(data).batch(20))  # the last batch is smaller
    ended = []
    for parts_of in (None, 7):
        keras.utils.set_random_seed(3)
        given = dict(options)
        if "optimizer" in given:
            given["optimizer"] = type(given["optimizer"]).from_config(
                given["optimizer"].get_config()
            )
        model = compiled(make(), **given)
        micro = MicroBatches()
        micro.restore_size({FIELD: parts_of})
        parts = Parts(model, micro)
        logs = []
        for batch in batches * 2:
            parts.build(batch)
            model.reset_metrics()
            if parts_of is None:
                logs.append(model.train_on_batch(*batch, return_dict=True))
            else:
                logs.append(parts.train(batch, parts.count(batch)))
        ended.append((numbers(model), [{k: float(v) for k, v in each.items()} for each in logs]))
    (whole, whole_logs), (split, split_logs) = ended
    return {
        "variables": max(
            float(np.max(np.abs(a - b) / (np.abs(a) + 1e-3), initial=0.0))
            for a, b in zip(whole, split, strict=True)
        ),
        "logs": max(
            abs(a[key] - b[key]) / abs(a[key])
            for a, b in zip(whole_logs, split_logs, strict=True)
            for key in a
            if not key.endswith("_loss")  # for one output Keras averages these per call
        ),
    }


def couples(model, data):
    """Return the findings on the first half of a batch of 20."""
    batch = next(iter(tf.data.Dataset.from_tensor_slices(data).batch(20)))
    micro = MicroBatches()
    micro.halve(20)
    return Parts(model, micro).couples_samples(batch, 20)


if __name__ == "__main__":
    found = {name: apart(*case) for name, case in CASES.items()}
    refused = {name: obstacle(make()) for name, make in REFUSED.items()}
    coupled = {name: couples(make(), PLAIN) for name, make in COUPLED.items()}
    alone = {name: couples(compiled(case[0](), **case[2]), case[1]) for name, case in CASES.items()}
    print(json.dumps({"apart": found, "refused": refused, "coupled": coupled, "alone": alone}))
