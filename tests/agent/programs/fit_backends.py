"""
Trains small models of different kinds with Keras on PyTorch or JAX, or with Keras 2.

    KERAS_BACKEND=torch ROLE=both CASES='loader wrapped' fit_backends.py FOLDER

KERAS_BACKEND: torch, jax, or keras2.

ROLE `reference` trains each case without interruption; `interrupted` saves at the case's position
and leaves the fit there; `both` runs these two in turn; `resumed` trains to the end. Each writes
FOLDER/CASE.ROLE.txt, and rescues go to FOLDER/CASE.rescues. The case `killed` ends by kill -9 and
uses the import hook's Rescue. Run a copy of this program for it, because its rescues lie next to
the program.
"""

import hashlib
import os
import random
import signal
import sys
import threading

import numpy as np

os.environ["WATCHDOG_AGENT_STRICT"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from watchdog_app.agent import hook
from watchdog_app.agent.adapters.keras.position import calling_callback_list, calling_callbacks
from watchdog_app.base.errors import RescueMismatch

BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND == "keras2":
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import tf_keras as keras

    from watchdog_app.agent.tf_keras import Rescue
else:
    import keras

    from watchdog_app.agent.keras import Rescue

ROWS, BATCH = 152, 16  # ten batches, the last one smaller
layers = keras.layers
images = np.random.default_rng(0).normal(size=(ROWS, 6, 6, 1)).astype("float32")
labels = np.random.default_rng(1).integers(0, 5, ROWS).astype("int32")


IN_BACKGROUND = "in_background"


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


class EpochLog(Log):
    """Lets Keras call the callbacks in its own threads, where batches arrive in any order."""

    async_safe = True

    def on_train_begin(self, logs=None):
        assert calling_callback_list()._async_train

    def on_train_batch_end(self, batch, logs=None):
        pass


class Leave(keras.callbacks.Callback):
    """Saves at one position and then leaves. Comes after Rescue in the list of callbacks."""

    def __init__(self, rescue, leave, hook, epoch, batch):
        super().__init__()
        self.rescue, self.leave, self.place = rescue, leave, (hook, epoch, batch)
        self.epoch = 0
        self.postponed = threading.Event()  # a field that a rescue may omit

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.postponed.is_set():
            self.leave()
        self.at("begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.at("end", batch)

    def on_test_batch_begin(self, batch, logs=None):
        self.at("test", batch)

    def at(self, hook, batch):
        if (hook, self.epoch, batch) == self.place:
            rescue = self.rescue or next(
                each for each in calling_callbacks() if hasattr(each, "step_number")
            )
            if rescue.save() is not None:
                self.leave()
            # The loader already drew PyTorch's batch, so it is trained first.
            assert hook == "begin"
            assert BACKEND == "torch"
            self.postponed.set()


def exact(logs):
    return " ".join(f"{name}={float(value).hex()}" for name, value in sorted(logs.items()))


def compiled(model=None, optimizer=None, **options):
    model = model or keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(5),
        ]
    )
    model.compile(
        optimizer or keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    return model


def arrays(**options):
    return {"x": images, "y": labels, "batch_size": BATCH, **options}


def remembering():
    return [
        keras.callbacks.ReduceLROnPlateau(factor=0.3, patience=1, min_delta=0.05),
        keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
        Draws(),
    ]


class Draws(keras.callbacks.Callback):
    """Draws global random numbers between the batches."""

    def on_epoch_begin(self, epoch, logs=None):
        np.random.random()

    def on_train_batch_end(self, batch, logs=None):
        random.random()


def loader(**options):
    import torch

    class Noisy(torch.utils.data.Dataset):
        """Draws from the global generators and from its own."""

        def __init__(self):
            self.own = np.random.default_rng(3)

        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            picture = torch.from_numpy(images[row]) + 0.1 * torch.rand(6, 6, 1)
            return picture + float(self.own.random()), int(labels[row])

    return torch.utils.data.DataLoader(Noisy(), BATCH, shuffle=True, **options)


def seeded_loader():
    import torch

    return loader(num_workers=1, generator=torch.Generator().manual_seed(5))


class Files(keras.utils.Sequence if BACKEND == "keras2" else keras.utils.PyDataset):
    """Keras shuffles it, and it shuffles itself with its own generator."""

    def __init__(self, **options):
        super().__init__(**options)
        self.workers = options.get("workers", 1)
        self.random = np.random.default_rng(3)
        self.order = self.random.permutation(ROWS)

    def __len__(self):
        return (ROWS + BATCH - 1) // BATCH

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        noise = self.random.normal(size=(len(rows), 6, 6, 1)) if self.workers < 2 else 0
        return images[rows] + np.float32(noise), labels[rows]

    def on_epoch_end(self):
        self.order = self.random.permutation(ROWS)


class Part(Files):
    """Which rows its batches have depends on the order."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = self.order[index * BATCH : (index + 1) * BATCH]
        return images[rows], labels[rows]


def drawn():
    """Yield batches from global random numbers."""
    while True:
        rows = np.random.permutation(ROWS)[:BATCH]
        yield images[rows], labels[rows]


def pipeline():
    import tensorflow as tf

    source = tf.data.Dataset.from_tensor_slices((images, labels))
    return source.shuffle(50, seed=11, reshuffle_each_iteration=True).batch(BATCH)


def wrapped():
    """PyTorch modules in a Keras model: buffers, and numbers from PyTorch's global generator."""
    import torch

    inner = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.BatchNorm1d(36), torch.nn.Dropout(0.3), torch.nn.Linear(36, 5)
    )
    return keras.Sequential([keras.Input((6, 6, 1)), layers.TorchModuleWrapper(inner)])


def several_devices():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return compiled()


VALIDATION = {"validation_data": (images[:64], labels[:64])}

# Name: model, arguments of fit, callbacks, position of the end (hook, epoch, batch).
CASES = {
    "during_validation": (compiled, lambda: arrays(**VALIDATION), remembering, ("test", 1, 1)),
    "py_dataset": (
        compiled,
        lambda: {"x": Files(), "shuffle": True, "validation_data": Part()},
        None,
        ("begin", 2, 5),
    ),
}
if BACKEND == "keras2":
    # Otherwise Keras 2 draws with operations whose state cannot be read.
    keras.backend.experimental.enable_tf_random_generator()
    CASES |= {
        "last_of_an_epoch": (compiled, arrays, remembering, ("end", 1, 9)),
        "other_initial_epoch": (
            compiled,
            lambda: arrays(initial_epoch=2 if os.environ["ROLE"] == "resumed" else 0),
            None,
            ("begin", 1, 4),
        ),
        "tf_data": (
            compiled,
            lambda: {"x": pipeline(), "validation_data": pipeline().take(4)},
            None,
            ("begin", 2, 6),
        ),
        "legacy": (
            lambda: compiled(optimizer=keras.optimizers.legacy.Adam(1e-3)),
            arrays,
            None,
            ("begin", 1, 4),
        ),
    }
else:
    CASES["loader"] = (compiled, lambda: {"x": loader()}, None, ("begin", 2, 6))
    CASES[IN_BACKGROUND] = (
        compiled,
        lambda: arrays(**VALIDATION),
        lambda: [keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)],
        ("begin", 1, 4),
    )
if BACKEND == "torch":
    CASES["wrapped"] = (lambda: compiled(wrapped()), arrays, None, ("begin", 1, 4))
    CASES["loader_with_workers"] = (compiled, lambda: {"x": seeded_loader()}, None, ("end", 1, 4))
if BACKEND == "jax":
    CASES["several_devices"] = (
        several_devices,
        lambda: arrays(x=images[:128], y=labels[:128]),
        None,
        ("end", 1, 4),
    )
# This case is killed; an exception ends all others.
CASES["killed"] = (compiled, lambda: arrays(**VALIDATION), remembering, ("begin", 2, 3))
# These train only if named, because they cannot be repeated.
APART = {
    "left_over": (compiled, lambda: {"x": Files(workers=2)}, None, ("end", 1, 5)),
    "validated": (
        compiled,
        lambda: arrays(validation_data=drawn(), validation_steps=2),
        None,
        ("end", 1, 5),
    ),
    "disturbed": (compiled, lambda: {"x": drawn(), "steps_per_epoch": 8}, None, ("end", 1, 5)),
}


def seed():
    """Seed like `keras.utils.set_random_seed`, which would import TensorFlow if it is installed."""
    random.seed(1)
    np.random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)
    if BACKEND == "keras2":
        keras.utils.set_random_seed(1)


ROLES = []  # the process runs the first role; as an argument it would make another training


def leave(name):
    if name != "killed":
        raise Left
    os.kill(os.getpid(), signal.SIGKILL)


def train(name, folder):
    role = ROLES[0]
    make, data, callbacks, place = {**CASES, **APART}[name]
    keras.backend.clear_session()
    if name.startswith("loader"):
        import torch  # noqa: F401 - before its generator is seeded
    seed()
    model = make()
    with open(f"{folder}/{name}.{role}.txt", "w", buffering=1) as file:
        used = [EpochLog(file) if name == IN_BACKGROUND else Log(file)]
        rescue = None
        if role != "reference" and name == "killed":
            del sys.argv[1:]  # the name of the rescues' folder would contain them
            hook.switch_on()
        elif role != "reference":
            rescue = Rescue(f"{folder}/{name}.rescues")
            used.append(rescue)
        used += callbacks() if callbacks else []
        if role == "interrupted":
            used.append(Leave(rescue, lambda: leave(name), *place))
            used[-1].async_safe = name == IN_BACKGROUND
        try:
            history = model.fit(
                **{"epochs": 3, "verbose": 0, "shuffle": True, **data()}, callbacks=used
            )
        except Left:
            return
        except RescueMismatch as error:
            if name != "other_initial_epoch":
                raise
            file.write(str(error))
            return
        file.write(f"history {history.epoch}\n")
        for key, values in sorted(history.history.items()):
            file.write(f"{key} {[float(value).hex() for value in values]}\n")
        file.write(f"state {digest(model)}\n")
        file.write(f"{np.random.random()} {random.random()}\n")
        if BACKEND != "keras2":
            file.write(f"{float(keras.random.uniform(()))}\n")


def digest(model):
    """Return a digest of weights, seeds, slots and buffers."""
    found = hashlib.sha256()
    slots = model.optimizer.variables
    for variable in (*model.variables, *(slots() if callable(slots) else slots)):
        if BACKEND == "keras2":
            found.update(variable.numpy().tobytes())
            continue
        found.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    if BACKEND == "torch":
        for buffer in model.buffers():
            found.update(buffer.numpy().tobytes())
    return found.hexdigest()


def main():
    role = os.environ["ROLE"]
    ROLES[:] = ("reference", "interrupted") if role == "both" else (role,)
    folder, names = sys.argv[1], os.environ["CASES"].split()
    if BACKEND == "keras2":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
    while ROLES:
        for name in names or CASES:
            train(name, folder)
            print(name, flush=True)
        del ROLES[0]
    if BACKEND != "keras2":
        assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main()
