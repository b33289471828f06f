"""
More small data science programs for recorded traces, written after the rules were fixed.

    python bench/forecast_more_failing.py KIND LIMIT_MB SEED

As forecast_programs.py: in a memory group of LIMIT_MB, each program grows until the kernel kills
it. The programs that end normally are in forecast_more_healthy.py. They need NumPy, pandas,
scikit-learn, Pillow, torch or TensorFlow.
"""

from __future__ import annotations

import io
import json
import multiprocessing as mp
import os
import queue
import random
import sqlite3
import sys
import threading
import time

MB = 1 << 20


def until(s):
    end = time.monotonic() + s
    while time.monotonic() < end:
        yield


# These end in a kill
def oom_merge_explosion(m):
    """Joins of a table with itself on keys with fewer and fewer values."""
    import numpy as np
    import pandas as pd

    n = 20000
    df = pd.DataFrame(
        {"k": np.random.randint(0, 4000, n), "v": np.random.rand(n), "w": np.random.rand(n)}
    )
    keep = []
    card = 4000
    while True:
        time.sleep(random.uniform(0.5, 2.0))
        df["k"] = np.random.randint(0, card, n)
        out = df.merge(df, on="k")
        keep.append(out.groupby("k").sum())
        card = max(2, int(card * 0.87))


def oom_dicts(m):
    """A scraper with a list of dicts, at varying speed."""
    rows = []
    i = 0
    while True:
        rows.append(
            {"id": i, "name": f"user-{i}", "tags": [f"t{i % 100}", f"u{i}"], "score": i * 0.5}
        )
        i += 1
        if i % 2000 == 0:
            time.sleep(random.uniform(0.01, 0.12))


def oom_forest(m):
    """Random forests with growing n_estimators, all kept; n_jobs=2."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    X = np.random.rand(6000, 20)
    y = np.random.rand(6000)
    models = []
    n = 4
    while True:
        models.append(RandomForestRegressor(n_estimators=n, n_jobs=2).fit(X, y))
        n += 1


def oom_shuffle(m):
    """A tf.data shuffle buffer larger than the memory."""
    import tensorflow as tf

    def gen():
        import numpy as np

        while True:
            yield np.random.rand(96, 96, 3).astype("float32")

    ds = (
        tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec((96, 96, 3), tf.float32))
        .shuffle(1000000)
        .batch(8)
    )
    for _ in ds:
        time.sleep(0.02)


def oom_retrace(m):
    """A tf.function retraced with a Python scalar at each step, and a kept history."""
    import tensorflow as tf

    v = tf.Variable(tf.random.normal((512, 512)))
    hist = []

    @tf.function
    def f(x, k):
        for _ in range(12):
            x = tf.matmul(x, v) * k
            x = tf.tanh(x)
        return x

    k = 0
    while True:
        k += 1
        hist.append(f(tf.random.normal((512, 512)), float(k)))


def oom_augment_queue(m):
    """Threads decode images into an unbounded queue; the trainer's speed varies."""
    import numpy as np
    from PIL import Image

    buf = io.BytesIO()
    Image.fromarray((np.random.rand(256, 256, 3) * 255).astype("uint8")).save(buf, "JPEG")
    q = queue.Queue()

    def work():
        while True:
            im = Image.open(io.BytesIO(buf.getvalue())).rotate(random.uniform(-20, 20))
            q.put(np.asarray(im, dtype="float32") / 255)
            time.sleep(0.02)

    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(5)
    while True:
        time.sleep(random.choice([0.02, 0.03, 0.04, 0.05]))
        q.get()


def oom_json(m):
    """Many JSON files, parsed and concatenated."""
    data = json.dumps(
        [{"a": i, "b": f"text {i}", "c": [i, i + 1, i + 2], "d": {"x": i / 3}} for i in range(4000)]
    )
    every = []
    while True:
        every.extend(json.loads(data))
        time.sleep(random.uniform(0.05, 0.35))


def oom_sqlite_mem(m):
    """An SQLite database in memory: bulk load with index and transactions."""
    db = sqlite3.connect(":memory:")
    db.execute("create table t(a integer, b text, c blob)")
    db.execute("create index i on t(b)")
    i = 0
    while True:
        with db:
            db.executemany(
                "insert into t values(?,?,?)",
                ((i + k, f"k{random.random()}", os.urandom(200)) for k in range(3000)),
            )
        i += 3000
        time.sleep(random.uniform(0.0, 0.08))


def oom_train_then_eval(m):
    """A healthy training with validation peaks; a callback keeps predictions of each epoch."""
    import numpy as np

    w = np.random.rand(int(m * MB * 0.3 / 8))
    kept = []
    while True:
        for _ in until(6):
            g = np.random.rand(int(m * MB * 0.03 / 8))
            w[: len(g)] -= g * 1e-9
            time.sleep(0.05)
        v = np.random.rand(int(m * MB * 0.2 / 8))
        time.sleep(1.5)
        kept.append(v[: int(m * MB * 0.045 / 8)].copy())
        del v


def oom_pool(m):
    """A pool whose workers grow and are never replaced."""
    ps = [mp.Process(target=_grow, args=(m * random.uniform(0.005, 0.012),)) for _ in range(3)]
    for p in ps:
        p.start()
    for p in ps:
        p.join()
    sys.exit(137)


def _grow(step):
    random.seed(os.getpid())
    keep = []
    time.sleep(random.uniform(0, 10))
    while True:
        keep.append(bytearray(os.urandom(1 << 10) * int(step * 1024)))
        time.sleep(random.uniform(0.3, 1.0))


def oom_concat(m):
    """df = pd.concat([df, chunk]) in a loop (quadratic), after some other work."""
    import numpy as np
    import pandas as pd

    for _ in until(20):
        np.random.rand(500, 500) @ np.random.rand(500, 500)
        time.sleep(0.05)
    df = pd.DataFrame()
    while True:
        df = pd.concat([df, pd.DataFrame(np.random.rand(int(m * MB * 0.006 / 160), 20))])
        time.sleep(random.uniform(0.1, 0.5))


def oom_torch_workers(m):
    """DataLoader workers that cache their items, and a loop that keeps the loss graph."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class D(Dataset):
        def __init__(s):
            s.cache = {}

        def __len__(s):
            return 10**7

        def __getitem__(s, i):
            s.cache[i] = torch.rand(3, 64, 64)
            time.sleep(0.002)
            return s.cache[i]

    total = 0
    net = torch.nn.Conv2d(3, 8, 3)
    for x in DataLoader(D(), batch_size=16, num_workers=2, shuffle=True):
        total = total + net(x).mean()
        time.sleep(0.01)


if __name__ == "__main__":
    kind, m, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    random.seed(seed)
    globals()[kind](m)
