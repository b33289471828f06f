"""
One training of TensorFlow or Keras in two processes, which can be killed and run again.

    python keras_ranks.py FOLDER KIND ROLE...

KIND is `keras2` (a fit) or `loop`, both under MultiWorkerMirroredStrategy, or `jax` (a fit of
Keras 3). The roles run one after the other, in forks that have already imported everything.
`reference` runs to the end in a folder of its own. `interrupted`: one process is asked to save, and
later both are killed. `resumed` runs to the end. `asked`: the second process gets SIGTERM. `short`:
it is killed before the step at which both save. Each process writes its losses and metrics, with
every bit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import nullcontext
from typing import Any

FOLDER, KIND, *ROLES = sys.argv[1:]
os.environ.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu")
os.environ["TF_USE_LEGACY_KERAS" if KIND == "keras2" else "KERAS_BACKEND"] = {
    "keras2": "1", "loop": "tensorflow", "jax": "jax",
}[KIND]  # fmt: skip

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from watchdog_app.agent.runtime.link import CheckpointRequest  # noqa: E402

if KIND == "keras2":
    import tf_keras as keras

    from watchdog_app.agent.tf_keras import Rescue
else:
    import jax
    import keras

    if KIND == "jax":
        from watchdog_app.agent.keras import Rescue
    else:
        from watchdog_app.agent.tensorflow import Rescue

EPOCHS, COUNT = 4, 2
ASK_AT, KILL_AT = 15, 19
rng = np.random.default_rng(0)
rows = rng.normal(size=(96, 6)).astype("float32")
rank = port = 0  # no arguments of functions: with others it is another training


def data() -> Any:
    options = tf.data.Options()
    shard = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = shard
    pairs = tf.data.Dataset.from_tensor_slices((rows, rows.sum(1, keepdims=True)))
    return pairs.shuffle(96, seed=4).batch(8).with_options(options)


def made() -> tuple[Any, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((6,)), layers.Dense(9, activation="relu"), layers.BatchNormalization(),
            layers.Dropout(0.2, seed=5), layers.Dense(1),
        ]
    )  # fmt: skip
    return model, keras.optimizers.Adam(0.01)


def stepped(step: int, rescue: Any, told: Any, *values: float) -> None:
    """Write the values of a step; then what happens at it in this role."""
    print(step, *(float(each).hex() for each in values), file=told, flush=True)
    role, last = ROLES[0], rank == COUNT - 1
    if role in ("interrupted", "short") and step == ASK_AT and last:
        request = CheckpointRequest(None, "asked", time.monotonic())
        rescue._session.link.pending_request = request
    if role == "asked" and step == ASK_AT and last:
        os.kill(os.getpid(), signal.SIGTERM)
    if role == "asked":
        time.sleep(0.05)
    if (role == "interrupted" and step == KILL_AT) or (
        role == "short" and step == ASK_AT + 1 and last
    ):
        os.kill(os.getpid(), signal.SIGKILL)


def place() -> str:
    return os.path.join(FOLDER, "reference" if ROLES[0] == "reference" else "rescues")


def fit(told: Any, scope: Any) -> None:
    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            stepped(rescue._steps_before + batch + 1, rescue, told, logs["loss"], logs["mae"])

    with scope:
        model, optimizer = made()
        model.compile(optimizer, "mse", metrics=["mae"])
    rescue = Rescue(place())
    checked = data() if KIND == "keras2" else None
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=[Tell(), rescue], validation_data=checked)
    print([each.tobytes().hex() for each in model.get_weights()], file=told)


def loop(told: Any, strategy: Any) -> None:
    with strategy.scope():
        model, optimizer = made()
        mean = keras.metrics.Mean()

    def train(features: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(features, training=True) - targets) ** 2) / 8.0
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean.update_state(loss)
        return loss

    @tf.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train, args=batch), axis=None)

    batches = strategy.experimental_distribute_dataset(data())
    rescue = Rescue(place(), model=model, optimizer=optimizer, mean=mean)
    for _ in rescue.epochs(EPOCHS):
        for batch in rescue.data(batches):
            loss = step(batch)
            stepped(rescue.step_number + 1, rescue, told, loss)
            rescue.step(loss)
        print(float(mean.result()).hex(), file=told)


def train_together() -> None:
    keras.utils.set_random_seed(3)
    with open(os.path.join(FOLDER, f"{ROLES[0]}.{rank}.txt"), "w") as told:
        if KIND == "jax":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            keras.distribution.initialize(f"127.0.0.1:{port}", COUNT, rank)
            keras.distribution.set_distribution(keras.distribution.DataParallel())
            fit(told, nullcontext())
            jax.distributed.shutdown()  # waits for the other process
            return
        workers = [f"127.0.0.1:{port + each}" for each in range(COUNT)]
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        if KIND == "loop":
            loop(told, strategy)
            return
        keras.backend.experimental.enable_tf_random_generator()
        fit(told, strategy.scope())


def two_free_ports() -> int:
    """The first of two ports in a row that nobody listens at."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            found = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", found + 1))
            except (OSError, OverflowError):
                continue
            return int(found)


def run() -> list[int]:
    """Run both processes; their exit statuses."""
    global rank, port
    started, ended = {}, {}
    port = two_free_ports()
    for rank in range(COUNT):
        pid = os.fork()
        if pid == 0:
            try:
                train_together()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        started[pid] = rank
    while len(ended) < COUNT:  # in any order: a killed one must not look alive
        pid, status = os.wait()
        ended[started[pid]] = os.waitstatus_to_exitcode(status)
    return [ended[each] for each in range(COUNT)]


if __name__ == "__main__":
    while ROLES:
        print(ROLES[0], *run(), flush=True)
        del ROLES[0]
