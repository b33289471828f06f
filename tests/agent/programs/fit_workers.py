"""
A fit of Keras 2 in two processes, each with a Rescue; then a Rescue for a loop.

    python fit_workers.py RANK PORT RESCUES
"""

import json
import os
import sys

rank, port = int(sys.argv[1]), int(sys.argv[2])
workers = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
)
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before all other use of TensorFlow

import tf_keras  # noqa: E402

from watchdog_app.agent.tensorflow import Rescue as LoopRescue  # noqa: E402
from watchdog_app.agent.tf_keras import Rescue  # noqa: E402
from watchdog_app.base.errors import RescueError  # noqa: E402

features, labels = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
sharding = tf.data.Options()
sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(8).with_options(sharding)
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(4,))])
    model.compile("adam", "mse", metrics=["mae"])  # metrics are summed over the processes
    counter = tf.Variable(0)
history = model.fit(dataset, epochs=2, verbose=0, callbacks=[Rescue(sys.argv[3])])
print("epochs", len(history.history["loss"]), flush=True)
try:
    LoopRescue(sys.argv[3], counter=counter)
except RescueError as error:
    print("loop:", error, flush=True)
