"""
Trains many small models of different kinds and records every number.

    ROLE=reference CASES='xla arrays' fit_cases.py FOLDER

ROLE `reference` trains each case without interruption; `interrupted` saves at the case's position
and leaves the fit there; `again` resumes, saves later and leaves; `resumed` resumes and trains to
the end. Each writes FOLDER/CASE.ROLE.txt, and rescues go to FOLDER/CASE.rescues.
"""

import hashlib
import math
import os
import sys
import threading

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["WATCHDOG_AGENT_STRICT"] = "1"

import keras
import numpy as np
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

ROWS, BATCH = 152, 16  # ten batches, the last one smaller
layers = keras.layers
images = np.random.default_rng(0).normal(size=(ROWS, 6, 6, 1)).astype("float32")
labels = np.random.default_rng(1).integers(0, 5, ROWS).astype("int32")


class Left(Exception):
    """Simulates the kill: the fit ends at once."""


class Log(keras.callbacks.Callback):
    """Writes each batch's and epoch's numbers bit for bit."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.file.write(f"{self.epoch} {batch} {exact(logs)}\n")

    def on_epoch_end(self, epoch, logs=None):
        self.file.write(f"{epoch} end {exact(logs)}\n")


class Leave(keras.callbacks.Callback):
    """Saves at one position and then leaves. Comes after Rescue in the list of callbacks."""

    def __init__(self, rescue, epoch, batch, validation=None):
        super().__init__()
        self.rescue, self.place, self.validation = rescue, (epoch, batch), validation
        self.epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        size = self.model.steps_per_execution  # Keras 3.8 tells the first step of an execution
        here = self.epoch, batch // size * size + size - 1
        if self.validation is None and here == self.place:
            self.leave()

    def on_test_batch_begin(self, batch, logs=None):
        if self.epoch == self.place[0] and batch == self.validation:
            self.leave()

    def leave(self):
        assert self.rescue.save() is not None
        raise Left


class Cycle(keras.callbacks.Callback):
    """Sets the learning rate from what it has counted and kept, as one-cycle schedules do."""

    def __init__(self):
        super().__init__()
        self.step, self.rates = 0, []

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch = []

    def on_train_batch_begin(self, batch, logs=None):
        self.step += 1
        self.of_epoch.append(self.step)
        self.rates.append(1e-3 * (1 + self.step % 7 + sum(self.of_epoch)) / (1 + len(self.rates)))
        self.model.optimizer.learning_rate = self.rates[-1]


def exact(logs):
    return " ".join(f"{name}={float(value).hex()}" for name, value in sorted(logs.items()))


def network(*, lazy=False, width=5):
    return keras.Sequential(
        [
            *([] if lazy else [keras.Input((6, 6, 1))]),
            layers.RandomFlip(seed=4),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(width),
        ]
    )


def compiled(model=None, optimizer=None, **options):
    model = network() if model is None else model
    model.compile(
        optimizer or keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def small(**options):
    """Return a model that is traced quickly, for cases that do not concern the layers."""
    parts = [keras.Input((6, 6, 1)), layers.Flatten(), layers.Dropout(0.3), layers.Dense(5)]
    return compiled(keras.Sequential(parts), **options)


def arrays(**options):
    return {"x": images, "y": labels, "batch_size": BATCH, **options}


def pipeline():
    source = tf.data.Dataset.from_tensor_slices((images, labels))
    return source.shuffle(50, seed=11, reshuffle_each_iteration=True).batch(BATCH)


class Files(keras.utils.PyDataset):
    """Shuffles itself after each epoch with its own generator."""

    def __init__(self, **options):
        super().__init__(**options)
        self.random = np.random.default_rng(3)
        self.order = self.random.permutation(ROWS)

    def __len__(self):
        return math.ceil(ROWS / BATCH)

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return images[rows], labels[rows]

    def on_epoch_end(self):
        self.order = self.random.permutation(ROWS)


class GloballyShuffledFiles(Files):
    def __init__(self):
        super().__init__()
        del self.random

    def on_epoch_end(self):
        np.random.shuffle(self.order)


class ShuffledPart(GloballyShuffledFiles):
    """Which rows its batches have depends on the order."""

    def __len__(self):
        return 4


class NoisyPart(ShuffledPart):
    def __getitem__(self, index):
        pictures, classes = super().__getitem__(index)
        return pictures + np.float32(np.random.random()), classes


def stream():
    own = np.random.default_rng(9)
    while True:
        rows = own.integers(0, ROWS, BATCH)
        yield images[rows], labels[rows]


def own_generator():
    """Return a generator function that draws each pass's order from its closure."""
    own = np.random.default_rng(13)

    def rows():
        for row in own.permutation(ROWS):
            yield images[row], labels[row]

    shape = tf.nest.map_structure(tf.type_spec_from_value, (images[0], labels[0]))
    return tf.data.Dataset.from_generator(rows, output_signature=shape).batch(BATCH)


class Noisy(Files):
    """Also draws in `__getitem__`."""

    def __getitem__(self, index):
        pictures, classes = super().__getitem__(index)
        return pictures + self.random.normal(size=pictures.shape).astype("float32"), classes


def noisy_pipeline():
    noise = keras.layers.GaussianNoise(0.3, seed=5)
    return pipeline().map(lambda picture, label: (noise(picture, training=True), label))


class Pair(keras.Model):
    """Two networks, each with its own optimizer and step, as in a GAN."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential(
            [keras.Input((4,)), layers.Dense(36), layers.Reshape((6, 6, 1))]
        )
        self.critic = keras.Sequential([keras.Input((6, 6, 1)), layers.Flatten(), layers.Dense(1)])
        self.maker_optimizer = keras.optimizers.Adam(1e-3)
        self.critic_optimizer = keras.optimizers.SGD(1e-2, momentum=0.9)
        self.noise = keras.random.SeedGenerator(7)
        self.steps = tf.Variable(0)
        self.mean = keras.metrics.Mean(name="loss")

    def train_step(self, data):
        real = data[0]
        noise = keras.random.normal((tf.shape(real)[0], 4), seed=self.noise)
        with tf.GradientTape(persistent=True) as tape:
            made = self.maker(noise)
            judged_real, judged_made = self.critic(real), self.critic(made)
            critic_loss = tf.reduce_mean(judged_made**2 + (1 - judged_real) ** 2)
            maker_loss = tf.reduce_mean((1 - judged_made) ** 2)
        for optimizer, part, loss in (
            (self.critic_optimizer, self.critic, critic_loss),
            (self.maker_optimizer, self.maker, maker_loss),
        ):
            found = tape.gradient(loss, part.trainable_variables)
            optimizer.apply_gradients(zip(found, part.trainable_variables, strict=True))
        self.steps.assign_add(1)
        self.mean.update_state(critic_loss)
        return {"loss": self.mean.result(), "steps": self.steps}


def pair():
    model = Pair()
    model.compile()
    return model


def mirrored():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return compiled()


def mixed():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return small()
    finally:
        keras.config.set_dtype_policy("float32")


def remembering():
    return [
        keras.callbacks.ReduceLROnPlateau(factor=0.3, patience=1, min_delta=0.05),
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]


def sliding():
    rate = keras.optimizers.schedules.CosineDecay(2e-3, 30)
    return keras.optimizers.Adam(rate, gradient_accumulation_steps=4)


def adapted():
    """Return frozen 8-bit weights with a small trained low-rank addition (LoRA)."""
    model = network()
    model.layers[-1].enable_lora(2)
    model.layers[-1].quantize("int8")
    return compiled(model)


VALIDATION = {"validation_data": (images[:64], labels[:64])}


def validated(make):
    return lambda: arrays(validation_data=make())


# Name: model, arguments of fit, callbacks, position of the end (epoch, batch, validation batch).
CASES = {
    # First, because XLA rejects what deterministic operations forbid.
    "xla": (lambda: small(jit_compile=True), arrays, None, (1, 4)),
    "arrays": (compiled, arrays, None, (1, 4)),
    "weighted_from_epoch_2": (
        small,
        lambda: arrays(class_weight={0: 1, 1: 2, 2: 3, 3: 4, 4: 5}, initial_epoch=1),
        None,
        (2, 3),
    ),
    "initial_epoch_of_its_own_checkpoint": (
        small,
        lambda: arrays(initial_epoch=int(os.environ["ROLE"] == "resumed")),
        None,
        (0, 4),
    ),
    "own_generator": (small, lambda: {"x": own_generator()}, None, (2, 6)),
    "noisy_py_dataset": (small, lambda: {"x": Noisy()}, None, (2, 6)),
    "noisy_pipeline": (small, lambda: {"x": noisy_pipeline()}, None, (2, 6)),
    "tf_data": (compiled, lambda: {"x": pipeline()}, None, (2, 6)),
    "tf_data_last_batch": (small, lambda: {"x": pipeline()}, None, (1, 9)),
    "tf_data_of_unknown_size": (
        small,
        lambda: {"x": pipeline().filter(lambda image, label: True)},
        None,
        (2, 5),
    ),
    "tf_data_without_end": (
        small,
        lambda: {"x": pipeline().repeat(), "steps_per_epoch": 7},
        None,
        (1, 4),
    ),
    "py_dataset": (small, lambda: {"x": Files()}, None, (2, 5)),
    "globally_shuffled_py_dataset": (
        small,
        lambda: {"x": GloballyShuffledFiles()},
        lambda: [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: np.random.random())],
        (2, 5),
    ),
    "py_dataset_with_workers": (small, lambda: {"x": Files(workers=2)}, None, (1, 5)),
    "generator_with_cosine_and_accumulation": (
        lambda: small(optimizer=sliding()),
        lambda: {"x": stream(), "steps_per_epoch": 8},
        None,
        (1, 5),
    ),
    "five_steps_per_execution": (
        lambda: small(steps_per_execution=5),
        arrays,
        None,
        (1, 4),
    ),
    "lazy_model_with_moving_average": (
        lambda: compiled(network(lazy=True), keras.optimizers.AdamW(use_ema=True)),
        arrays,
        None,
        (0, 0),  # the first batch of all
    ),
    "mixed_precision": (mixed, arrays, lambda: [Cycle()], (1, 9)),  # the last batch of an epoch
    "quantized_with_lora": (adapted, arrays, None, (1, 3)),
    "callbacks_and_validation": (compiled, lambda: arrays(**VALIDATION), remembering, (2, 3)),
    "during_validation": (small, lambda: arrays(**VALIDATION), remembering, (1, 9, 1)),
    "validation_shuffled_by_itself": (small, validated(ShuffledPart), None, (2, 5)),
    "during_shuffled_validation": (small, validated(ShuffledPart), None, (1, 9, 1)),
    "validation_that_draws": (small, validated(NoisyPart), None, (1, 5)),
    "validation_pipeline": (small, validated(lambda: pipeline().take(4)), remembering, (2, 3)),
    "mirrored_strategy": (mirrored, arrays, None, (1, 3)),
    "two_optimizers": (pair, lambda: {"x": pipeline()}, None, (1, 3)),
    "run_eagerly": (lambda: compiled(run_eagerly=True), lambda: arrays(epochs=2), None, (1, 2)),
    "in_a_thread": (compiled, arrays, None, (1, 4)),
    "twice": (small, arrays, None, (0, 7)),
}
AGAIN = {"twice": (2, 3)}


def train(name, folder):
    role = os.environ["ROLE"]  # as an argument it would make another training
    make, data, callbacks, place = CASES[name]
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = make()
    with open(f"{folder}/{name}.{role}.txt", "w") as file:
        used = [Log(file), *(callbacks() if callbacks else [])]
        if role != "reference":
            rescue = Rescue(f"{folder}/{name}.rescues")
            used.append(rescue)
            if role != "resumed":
                used.append(Leave(rescue, *(place if role == "interrupted" else AGAIN[name])))
        try:
            history = model.fit(**{"epochs": 4, "verbose": 0, **data()}, callbacks=used)
        except Left:
            return
        file.write(f"history {history.epoch}\n")
        for key, values in sorted(history.history.items()):
            file.write(f"{key} {[float(value).hex() for value in values]}\n")
        file.write(f"state {digest(model)}\n")


def digest(model):
    """Return a digest of weights, seeds and slots."""
    kept = list(model.variables)
    for optimizer in (
        getattr(model, "optimizer", None),
        *(value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)),
    ):
        kept += optimizer.variables if optimizer is not None else []
    found = hashlib.sha256()
    for variable in kept:
        found.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return found.hexdigest()


def main():
    folder, names = sys.argv[1], os.environ["CASES"].split()
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    for name in names:
        if name != "xla":
            tf.config.experimental.enable_op_determinism()
        if name == "in_a_thread":
            worker = threading.Thread(target=train, args=(name, folder))
            worker.start()
            worker.join()
        else:
            train(name, folder)
        print(name, flush=True)


if __name__ == "__main__":
    main()
