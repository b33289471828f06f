"""
More small data science programs for recorded traces, written after the rules were fixed.

    python bench/forecast_more_healthy.py KIND LIMIT_MB SEED

As forecast_programs.py: in a memory group of LIMIT_MB, each program is meant to end normally; some
do not. The programs that grow until the kernel kills them are in forecast_more_failing.py. They
need NumPy, pandas, scikit-learn, Pillow, torch or TensorFlow.
"""

from __future__ import annotations

import gc
import json
import mmap
import multiprocessing as mp
import os
import queue
import random
import sqlite3
import sys
import tempfile
import threading
import time

MB = 1 << 20


def until(s):
    end = time.monotonic() + s
    while time.monotonic() < end:
        yield


# These end normally
def ok_torch_train(m):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    n = int(m * MB * 0.3 / (3 * 32 * 32 * 4))
    ds = TensorDataset(torch.rand(n, 3, 32, 32), torch.randint(0, 10, (n,)))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    )
    opt = None
    end = time.time() + 80
    while time.time() < end:
        for k, (x, y) in enumerate(
            DataLoader(ds, batch_size=random.choice([32, 64, 128]), num_workers=2, shuffle=True)
        ):
            loss = torch.nn.functional.cross_entropy(net(x), y)
            opt = opt or torch.optim.Adam(net.parameters())
            opt.zero_grad()
            loss.backward()
            opt.step()
            if time.time() > end or k > 40:
                break
        with torch.no_grad():
            net(ds.tensors[0][: int(len(ds) * 0.3)][:600])


def ok_memmap(m):
    import numpy as np

    f = tempfile.NamedTemporaryFile()  # noqa: SIM115
    n = int(m * MB * 1.5 / 8)
    a = np.memmap(f.name, dtype="float64", mode="w+", shape=(n,))
    for i in range(0, n, 1 << 18):
        a[i : i + (1 << 18)] = i
        if i % (1 << 20) == 0:
            time.sleep(0.02)
    a.flush()
    for _ in until(50):
        i = random.randrange(0, n - (1 << 19))
        a[i : i + (1 << 19)].sum()
        time.sleep(0.02)


def ok_mmap80(m):
    f = tempfile.NamedTemporaryFile()  # noqa: SIM115
    f.truncate(int(m * MB * 0.8))
    mm = mmap.mmap(f.fileno(), 0)
    for i in range(0, len(mm), MB):
        mm[i : i + MB] = os.urandom(1024) * 1024
        time.sleep(0.03)
    for _ in until(40):
        i = random.randrange(0, len(mm) - MB)
        bytes(mm[i : i + MB])
        time.sleep(0.03)


def ok_sqlite(m):
    f = tempfile.NamedTemporaryFile(suffix=".db")  # noqa: SIM115
    db = sqlite3.connect(f.name)
    db.execute(f"pragma cache_size=-{int(m * 1024 * 0.4)}")
    db.execute("create table t(a integer primary key, b text, c blob)")
    db.execute("create index i on t(b)")
    i = 0
    for _ in until(75):
        with db:
            db.executemany(
                "insert into t values(?,?,?)",
                ((i + k, f"k{random.random()}", os.urandom(300)) for k in range(4000)),
            )
        i += 4000
        time.sleep(0.05)


def ok_forest(m):
    import numpy as np
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    X = np.random.rand(int(m * 25), 20)
    y = np.random.randint(0, 3, len(X))
    for _ in until(60):
        cross_val_score(RandomForestClassifier(n_estimators=25, n_jobs=2), X, y, cv=3)
        time.sleep(1)


def ok_gc(m):
    """Reference cycles with arrays: sawtooth of the garbage collector."""
    import numpy as np

    class N:
        pass

    gc.set_threshold(400, 5, 5)
    np.random.rand(int(m * MB * 0.35 / 8))
    for _ in until(80):
        a = N()
        a.me = a
        a.x = np.ones(int(m * MB * 0.002 / 8))
        del a
        [N() for _ in range(2)]
        time.sleep(0.02)


def ok_pool(m):
    """Process pools that start and end."""

    for _ in until(75):
        with mp.Pool(3) as p:
            p.map(_job, [m * random.uniform(0.08, 0.2)] * 6)
        time.sleep(random.uniform(1, 4))


def _job(mb):
    import numpy as np

    a = []
    for _ in range(10):
        a.append(np.random.rand(int(mb * MB / 80)))
        time.sleep(0.12)
    return sum(x[0] for x in a)


def ok_validation(m):
    """A long training with validation peaks every 9 s and a checkpoint."""
    import numpy as np

    w = [np.random.rand(int(m * MB * 0.25 / 8))]
    time.sleep(2)
    [np.zeros_like(w[0])]
    end = time.time() + 90
    while time.time() < end:
        for _ in until(9):
            np.random.rand(int(m * MB * random.uniform(0.02, 0.08) / 8))
            time.sleep(0.06)
        preds = []
        for _ in range(20):
            preds.append(np.random.rand(int(m * MB * 0.017 / 8)))
            time.sleep(0.12)
        np.concatenate(preds[:4])
        del preds
        with tempfile.TemporaryFile() as f:
            f.write(w[0].tobytes())


def ok_keras(m):
    import numpy as np
    import tensorflow as tf

    x = np.random.rand(int(m * MB * 0.12 / 4 / 784), 784).astype("float32")
    y = np.random.randint(0, 10, len(x))
    mod = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(512, "relu"),
            tf.keras.layers.Dense(512, "relu"),
            tf.keras.layers.Dense(10, "softmax"),
        ]
    )
    mod.compile("adam", "sparse_categorical_crossentropy")
    end = time.time() + 80
    while time.time() < end:
        mod.fit(x, y, epochs=1, batch_size=64, validation_split=0.2, verbose=0, steps_per_epoch=150)
        mod.predict(x[:2000], verbose=0)


def ok_shuffle_fits(m):
    import numpy as np
    import tensorflow as tf

    one = 64 * 64 * 3 * 4
    n = int(m * MB * 0.35 / one)

    def gen():
        while True:
            yield np.random.rand(64, 64, 3).astype("float32")
            time.sleep(0.0005)

    ds = (
        tf.data.Dataset.from_generator(gen, output_signature=tf.TensorSpec((64, 64, 3), tf.float32))
        .shuffle(n)
        .batch(8)
    )
    end = time.time() + 75
    for _ in ds:
        time.sleep(0.01)
        if time.time() > end:
            break


def ok_json_etl(m):
    data = json.dumps([{"a": i, "b": f"text {i}", "c": [i, i + 1]} for i in range(int(m * 400))])
    for _ in until(70):
        rows = json.loads(data)
        time.sleep(random.uniform(0.5, 2))
        out = [dict(r, d=r["a"] * 2) for r in rows]
        time.sleep(0.5)
        json.dumps(out)
        del rows, out
        time.sleep(random.uniform(0, 2))


def ok_describe(m):
    """A notebook that adds one column after another, up to two thirds of the limit."""
    import numpy as np
    import pandas as pd

    n = int(m * MB * 0.25 / 8 / 10)
    df = pd.DataFrame(np.random.rand(n, 10), columns=[f"c{i}" for i in range(10)])
    for i in range(10):
        time.sleep(random.uniform(1, 5))
        df[f"f{i}"] = df[f"c{i}"].rolling(5).mean()
    for _ in until(30):
        df.describe()
        time.sleep(2)


def ok_augment(m):
    """A bounded queue of decoded images; it fills in the first minute."""
    import numpy as np

    q = queue.Queue(int(m * MB * 0.5 / (256 * 256 * 3 * 4)))

    def work():
        while True:
            q.put(np.random.rand(256, 256, 3).astype("float32"))
            time.sleep(0.03)

    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    for _ in until(80):
        q.get()
        time.sleep(0.08)


def ok_cuts(m):
    """An image training with progressive resizing: a larger size every 15 s."""
    import numpy as np

    [np.random.rand(int(m * MB * 0.2 / 8))]
    for f in (0.1, 0.18, 0.27, 0.38, 0.5):
        for _ in until(15):
            b = np.random.rand(int(m * MB * f / 8))
            b *= 2
            time.sleep(0.2)


if __name__ == "__main__":
    kind, m, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    random.seed(seed)
    globals()[kind](m)
