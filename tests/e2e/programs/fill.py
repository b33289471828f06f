"""A fit whose shuffle buffer fills slowly: `fill.py --out CSV --rescues FOLDER --fill-mb N`."""

import argparse
import os
import shlex
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import tensorflow as tf

from watchdog_app.agent.keras import Rescue

options = argparse.ArgumentParser()
options.add_argument("--out")
options.add_argument("--rescues")
options.add_argument("--fill-mb", type=float)
options.add_argument("--mb-s", type=float, default=25.0)
options.add_argument("--shuffle", type=int, help="examples in the buffer; default: all")
options.add_argument("--cache", type=int, help="keep so many examples in memory instead")
given = options.parse_args([*sys.argv[1:], *shlex.split(os.environ.get("TRAINING_WORDS", ""))])

ELEMENT_MB = 1.0
count = int(given.fill_mb / ELEMENT_MB)


def wait(index):
    time.sleep(ELEMENT_MB / given.mb_s)
    return index


def picture(index):
    shown = tf.numpy_function(wait, [index], tf.int64)
    image = tf.zeros((250_000,)) + tf.cast(tf.ensure_shape(shown, ()), tf.float32)
    return image, tf.zeros((1,))


model = keras.Sequential([keras.Input((250_000,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
dataset = tf.data.Dataset.range(count).map(picture)
if given.cache:
    dataset = dataset.take(given.cache).cache()
else:
    dataset = dataset.shuffle(given.shuffle or count, seed=1)
dataset = dataset.batch(4)
time.sleep(8)  # memory stays level so that the daemon can see it
steps = None if given.cache else 4
model.fit(dataset, steps_per_epoch=steps, verbose=0, callbacks=[Rescue(given.rescues)])
print("trained", flush=True)
time.sleep(3)
