"""
A training whose data are larger than its RAM: it swaps pages out and in all the time.

    sudo python examples/swap_thrash.py

Needs swap. If the machine has no free swap and you are root, the example makes a swap file and
removes it again. The bug: one float64 array with the whole dataset, read in random order.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

SWAP_MIB = 600


def train() -> None:
    fixed = "EXAMPLE_FIXED" in os.environ
    import keras
    import numpy as np

    from watchdog_app.agent.keras import Rescue

    class Rows(keras.utils.PyDataset):
        """Batches of rows in random order, from parts that are loaded during the training."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = []

        def __len__(self) -> int:
            return 150

        def __getitem__(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
            rng = np.random.default_rng(batch)
            if fixed:
                x = rng.normal(size=(64, 256)).astype("float32")
            else:
                # The bug: each batch adds 4 MiB, and every batch reads all old rows again.
                self.parts.append(np.ones((2**11, 256)) * batch)
                time.sleep(0.08)
                for part in self.parts:
                    part.sum()
                x = rng.normal(size=(64, 256))
            return x, x[:, :4].sum(axis=1)

    class Ready(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                print("READY", flush=True)  # the sandbox now limits the memory

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((256,)), keras.layers.Dense(256, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    history = model.fit(Rows(), epochs=2, verbose=0, callbacks=[Ready(), Rescue("rescues")])
    print(f"finished: loss {history.history['loss'][-1]:.3f}", flush=True)


@contextmanager
def swap() -> Iterator[None]:
    """Use the machine's swap, or make a swap file for this example."""
    with open("/proc/swaps") as file:
        free_kib = sum(int(line.split()[2]) - int(line.split()[3]) for line in list(file)[1:])
    if free_kib >= SWAP_MIB * 1024:
        yield
        return
    if os.geteuid() != 0:
        raise SystemExit("This needs 600 MiB of free swap. As root, the example makes a file.")
    descriptor, path = tempfile.mkstemp(prefix="watchdog-swap-", dir="/var/tmp")
    try:
        os.posix_fallocate(descriptor, 0, (SWAP_MIB + 100) * 2**20)
        os.close(descriptor)
        subprocess.run(["mkswap", path], check=True, capture_output=True)
        subprocess.run(["swapon", path], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", path], check=False)
    finally:
        with suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    if "--train" in sys.argv:
        train()
    else:
        from situation import play

        with swap():
            code = play(
                __file__,
                room_mib=150,
                swap_mib=SWAP_MIB - 350,
                gone_wrong="Data that do not fit into RAM are read again and again.",
                advice_followed="Only what a batch needs is made; the same command again.",
            )
        sys.exit(code)
