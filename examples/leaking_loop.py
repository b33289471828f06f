"""
A custom loop that keeps a tensor of every step, and grows until the kernel kills it.

    python examples/leaking_loop.py

The bug: a list of tensors "for a plot later". After a few hundred steps they fill all memory.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def train() -> None:
    fixed = "EXAMPLE_FIXED" in os.environ
    import time

    import keras
    import tensorflow as tf

    from watchdog_app.agent.tensorflow import Rescue

    keras.utils.set_random_seed(1)
    x = tf.random.normal((4096, 64))
    y = tf.reduce_sum(x[:, :8], axis=1, keepdims=True)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1).batch(256)
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    kept = []

    rescue = Rescue("rescues", model=model, optimizer=optimizer)
    loss = float("nan")  # printed if the rescue was saved after the last step of an epoch
    for epoch in rescue.epochs(30):
        for features, targets in rescue.data(dataset):
            with tf.GradientTape() as tape:
                hidden = model.layers[0](features)
                loss = tf.reduce_mean((model.layers[1](hidden) - targets) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            if not fixed:
                kept.append(tf.tile(hidden, (4, 1)))  # the bug: 2 MiB of every step
            rescue.step(loss)
            if rescue.step_number == 5:
                print("READY", flush=True)  # the sandbox now limits the memory
            time.sleep(0.02)
        print(f"epoch {epoch + 1} of 30: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    else:
        from situation import play

        sys.exit(
            play(
                __file__,
                room_mib=450,
                gone_wrong="A loop keeps 2 MiB of every step.",
                advice_followed="The line that keeps them is taken out; the same command again.",
            )
        )
