"""
A shuffle buffer that is larger than the memory: it fills before it returns the first batch.

    python examples/shuffle_buffer.py

The bug: after a warm-up on part of the data, one buffer of decoded images shuffles all of them. The
agent reads the buffer's size from the pipeline, so it warns before the buffer fills.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

PICTURES = 4000
EDGE = 256


def train() -> None:
    buffer = 50 if "EXAMPLE_FIXED" in os.environ else PICTURES
    import keras
    import tensorflow as tf

    from watchdog_app.agent.tensorflow import Rescue

    keras.utils.set_random_seed(1)
    noise = tf.random.uniform((768, 768, 3), maxval=256, dtype=tf.int32, seed=1)
    png = tf.io.encode_png(tf.cast(noise, tf.uint8))

    def picture(index):
        """Decode and scale an image, and return it (768 KiB, float32) with its mean."""
        image = tf.image.resize(tf.io.decode_png(png, channels=3), (EDGE, EDGE)) / 255.0
        image *= tf.random.stateless_uniform((), (1, index))
        return image, tf.reduce_mean(image)

    indices = tf.data.Dataset.range(PICTURES)
    small = indices.take(200).map(picture).shuffle(20, seed=1).batch(10)
    large = indices.map(picture).shuffle(buffer, seed=1).batch(10).take(10)
    model = keras.Sequential(
        [
            keras.Input((EDGE, EDGE, 3)),
            keras.layers.AveragePooling2D(16),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-2)

    rescue = Rescue("rescues", model=model, optimizer=optimizer)
    for epoch in rescue.epochs(3):
        for images, targets in rescue.data(small if epoch < 2 else large):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(images)[:, 0] - targets) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            rescue.step(loss)
            if rescue.step_number == 5:
                print("READY", flush=True)  # the sandbox now limits the memory
        print(f"epoch {epoch + 1} of 3: loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    else:
        from situation import play

        sys.exit(
            play(
                __file__,
                room_mib=600,
                gone_wrong=f"All {PICTURES} pictures are to be shuffled in one buffer: 3 GB.",
                advice_followed="A buffer of 50 pictures; the same command again.",
            )
        )
