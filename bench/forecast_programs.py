"""
Small real data science programs for recorded traces: a test set, never used for fitting.

    python bench/forecast_programs.py KIND LIMIT_MB SEED

Run it in a memory group of LIMIT_MB. Kinds that start with "oom_" grow until the kernel kills them.
Kinds that start with "ok_" look similar and end normally. Unlike `forecast_workloads.py`, which
sets the memory curve itself, these run NumPy, pandas, scikit-learn, torch and TensorFlow, and their
memory behaves as those libraries do. All sizes are fractions of the limit, drawn from SEED.
"""

from __future__ import annotations

import collections
import gc
import multiprocessing
import queue
import random
import sys
import tempfile
import threading
import time

MB = 1 << 20


def until(seconds):
    """Yield until `seconds` have passed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def frame(megabytes):
    """Return a table of about this size, a third of it words."""
    import numpy as np
    import pandas as pd

    rows = max(100, int(megabytes * MB / 100))
    words = np.array([f"user-{i:07d}" for i in range(1000)], dtype=object)
    return pd.DataFrame(
        {f"x{i}": np.random.rand(rows) for i in range(9)} | {"who": np.random.choice(words, rows)}
    )


def array(megabytes):
    import numpy as np

    return np.random.default_rng(0).random(max(1, int(megabytes * MB / 8)))


# These end in a kill


def oom_chunks(m):
    """Chunks of a table collected in a list, to be joined at the end."""
    kept, part = [], m * random.uniform(0.004, 0.012)
    while True:
        kept.append(frame(part))
        kept[-1].groupby("who").x0.mean()
        time.sleep(random.uniform(0.1, 0.9))


def oom_merge(m):
    """A table joined with a part of itself again and again."""
    whole = frame(0.03 * m)
    while True:
        import pandas as pd

        whole = pd.concat([whole, whole.sample(frac=random.uniform(0.04, 0.09))], ignore_index=True)
        time.sleep(random.uniform(0.5, 1.2))


def oom_models(m):
    """Every model of a search is kept, with its predictions."""
    import numpy as np
    from sklearn.neighbors import KNeighborsRegressor

    kept, x = [], np.random.rand(int(m * random.uniform(0.005, 0.012) * MB / 80), 10)
    while True:
        model = KNeighborsRegressor(algorithm="brute").fit(x + 0.0, x[:, 0] + 0.0)
        kept.append((model, model.predict(x[:50])))
        time.sleep(random.uniform(0.2, 0.8))


def oom_gradients(m):
    """The gradients of every step are kept for a plot."""
    import tensorflow as tf

    side = int((m * random.uniform(0.002, 0.006) * MB / 4) ** 0.5)
    w, kept = tf.Variable(tf.random.normal((side, side))), []
    while True:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * w)
        kept.append(tape.gradient(loss, w))
        w.assign_sub(1e-3 * kept[-1])
        time.sleep(random.uniform(0.05, 0.3))


def oom_losses(m):
    """A running sum of the loss that keeps every step's graph."""
    import torch

    w = torch.zeros(int(m * random.uniform(0.001, 0.003) * MB / 4), requires_grad=True)
    total = torch.zeros(())
    while True:
        total = total + (torch.exp(w) * torch.rand_like(w)).sum()
        if random.random() < 0.05:
            torch.rand(int(0.1 * m * MB / 4)).sum().item()
        time.sleep(random.uniform(0.05, 0.3))


def oom_stack(m):
    """An array that is copied by np.vstack to grow."""
    import numpy as np

    rows = np.zeros((1, 512))
    while True:
        rows = np.vstack([rows, np.random.rand(int(m * random.uniform(8, 20) / 4), 512)])
        time.sleep(random.uniform(0.3, 0.8))


def oom_memo(m):
    """Results cached by argument; fewer new arguments over time."""
    memo, part = {}, m * random.uniform(0.004, 0.008)
    seen = 0
    while True:
        key = int(random.paretovariate(0.35))
        seen += 1
        if key not in memo:
            memo[key] = array(part)
        time.sleep(0.12)


def oom_workers(m):
    """Two workers that each collect their results."""

    def work(seed):
        random.seed(seed)
        kept = []
        while True:
            kept.append(array(m * random.uniform(0.002, 0.006)))
            time.sleep(random.uniform(0.1, 0.5))

    workers = [multiprocessing.Process(target=work, args=(i,), daemon=True) for i in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()


def oom_backlog(m):
    """A reader faster than the trainer, and an unbounded queue."""
    waiting, part = queue.Queue(), m * random.uniform(0.004, 0.01)

    def read():
        while True:
            waiting.put(array(part))
            time.sleep(random.uniform(0.1, 0.25))

    threading.Thread(target=read, daemon=True).start()
    while True:
        waiting.get().sum()
        time.sleep(random.uniform(0.2, 0.5))


def oom_words(m):
    """Millions of small strings and counts."""
    counts, i = collections.Counter(), 0
    pace = m * random.uniform(40, 110)
    while True:
        counts.update(f"token-{random.random()}" for _ in range(int(pace * 0.25)))
        i += 1
        time.sleep(0.2)


def oom_cycles(m):
    """Reference cycles that wait for the garbage collector, and a part that is never freed."""
    kept, part = [], m * random.uniform(0.003, 0.006)
    gc.disable()
    beat = random.randrange(25, 60)
    for i in range(10**9):
        ring = {"data": array(part)}
        ring["self"] = ring
        if i % 3 == 0:
            kept.append(array(part))
        if i % beat == 0:
            gc.collect()
        time.sleep(0.15)


def oom_cells(m):
    """A notebook: every cell makes a table, and no table is deleted."""
    tables = []
    while True:
        tables.append(frame(m * random.uniform(0.05, 0.16)))
        tables[-1].describe()
        time.sleep(random.uniform(1, 7))


def oom_beam(m):
    """A search whose frontier widens by a fraction with every level."""
    frontier, share = array(0.03 * m), random.uniform(0.06, 0.15)
    import numpy as np

    while True:
        frontier = np.concatenate([frontier, frontier[: int(share * len(frontier))] + 1])
        time.sleep(random.uniform(0.5, 1.5))


def oom_after_quiet(m):
    """A healthy training for a while, then a history that is never emptied."""
    import numpy as np

    base, kept = array(m * random.uniform(0.2, 0.45)), []
    for _ in until(random.uniform(15, 40)):
        np.sort(base[: int(m * MB * random.uniform(0, 0.08) / 8)])
        time.sleep(0.2)
    while True:
        kept.append(array(m * random.uniform(0.001, 0.006)))
        np.sort(base[: int(m * MB * random.uniform(0, 0.05) / 8)])
        time.sleep(0.2)


# These end normally


def ok_groups(m):
    """Occasional large joins over a table that stays."""
    table = frame(m * random.uniform(0.15, 0.25))
    for _ in until(70):
        part = table.sample(frac=random.uniform(0.3, 0.9))
        part.merge(part.groupby("who").x1.mean().rename("mean"), on="who").sort_values("x0")
        del part
        time.sleep(random.uniform(1, 6))


def ok_preload(m):
    """Shards loaded at disk speed, then epochs over them."""
    import numpy as np

    shards, top, pace = [], random.uniform(0.5, 0.85) * m, random.uniform(0.01, 0.05) * m
    while sum(s.nbytes for s in shards) < top * MB:
        shards.append(array(pace * 0.4))
        time.sleep(0.4)
    for _ in until(40):
        np.concatenate([s[:1000] for s in shards]).std()
        random.choice(shards) * 2
        time.sleep(0.3)


def ok_keras(m):
    """A training with a validation set that is larger than its batches."""
    import numpy as np
    import tensorflow as tf

    m -= 350
    x = np.random.rand(int(m * 0.1 * MB / 400), 100).astype("float32")
    model = tf.keras.Sequential([tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(1)])
    model.compile("adam", "mse")
    big = int(m * random.uniform(0.2, 0.5) * MB / 1424)
    for _ in until(70):
        model.fit(x, x[:, :1], batch_size=2048, epochs=random.randint(1, 3), verbose=0)
        model.predict(np.random.rand(big, 100).astype("float32"), batch_size=big, verbose=0)


def ok_window(m):
    """A fixed number of recent samples, kept for replay."""
    kept = collections.deque(maxlen=random.randint(80, 200))
    part = m * random.uniform(0.5, 0.88) / kept.maxlen
    for _ in until(80):
        kept.append(array(part))
        random.choice(kept).sum()
        time.sleep(random.uniform(0.05, 0.4))


def ok_lru(m):
    """A bounded cache, filled by keys some of which are frequent."""
    kept, most = collections.OrderedDict(), random.randint(60, 150)
    part = m * random.uniform(0.5, 0.85) / most
    for _ in until(80):
        key = int(random.paretovariate(0.4))
        if key in kept:
            kept.move_to_end(key)
        else:
            kept[key] = array(part)
            if len(kept) > most:
                kept.popitem(last=False)
        time.sleep(0.12)


def ok_lists(m):
    """Lists of small objects, created and deleted; the allocator keeps the memory."""
    for _ in until(60):
        rows = [{"i": i, "name": f"row {i}"} for i in range(int(m * random.uniform(300, 1500)))]
        time.sleep(random.uniform(0.5, 3))
        del rows
        time.sleep(random.uniform(0.5, 2))


def ok_cells(m):
    """A notebook that stops in time."""
    tables, top = [], random.uniform(0.55, 0.8) * m
    total = 0.0
    while total < top:
        size = m * random.uniform(0.04, 0.12)
        tables.append(frame(size))
        total += size * 1.3
        time.sleep(random.uniform(1, 6))
    for _ in until(30):
        tables[0].x0.mean()
        time.sleep(0.5)


def ok_pool(m):
    """Workers that import libraries, work, and are replaced."""

    def work(seed):
        import pandas  # noqa: F401

        random.seed(seed)
        held = []
        for _ in range(random.randint(10, 40)):
            held.append(array(m * random.uniform(0.002, 0.006)))
            time.sleep(0.2)

    for k in range(4):
        workers = [multiprocessing.Process(target=work, args=(4 * k + i,)) for i in range(4)]
        for w in workers:
            w.start()
            time.sleep(random.uniform(0, 1))
        for w in workers:
            w.join()


def ok_files(m):
    """Large files written and read again: page cache."""
    with tempfile.TemporaryDirectory() as folder:
        for k in range(12):
            data = array(0.1 * m)
            data.tofile(f"{folder}/{k}.bin")
            time.sleep(2)
            for j in range(0, k + 1, 3):
                with open(f"{folder}/{j}.bin", "rb") as f:
                    while f.read(MB):
                        pass
            time.sleep(random.uniform(1, 4))


def ok_vocabulary(m):
    """Words of a natural text: fewer and fewer are new."""
    words = {}
    for _ in until(80):
        for _ in range(int(m * 8)):
            w = int(random.paretovariate(0.7))
            words[w] = words.get(w, 0) + 1
        time.sleep(0.15)


def ok_lengths(m):
    """Batches padded to their longest sentence."""
    import torch

    layer = torch.nn.Linear(256, 256)
    for _ in until(70):
        long = min(1.0, random.lognormvariate(-1.6, 0.7))
        x = torch.rand(int(m * 0.2 * long * MB / 1024), 256)
        layer(x).relu().sum().backward()
        time.sleep(random.uniform(0.05, 0.4))


def ok_search(m):
    """A grid search: models fitted one after another, with a copy of the data for each."""
    import numpy as np
    from sklearn.decomposition import PCA

    x = np.random.rand(int(m * random.uniform(0.08, 0.15) * MB / 400), 50)
    for _ in until(70):
        copy = np.vstack([x] * random.randint(1, 4))
        PCA(5).fit(copy)
        del copy
        time.sleep(random.uniform(0.2, 2))


def ok_etl(m):
    """Read, convert, write, delete: one file after another, of different sizes."""
    for _ in until(75):
        table = None
        size = m * random.uniform(0.15, 0.45)
        parts = []
        for _ in range(10):
            parts.append(frame(size / 10))
            time.sleep(random.uniform(0.1, 0.5))
        import pandas as pd

        table = pd.concat(parts)
        del parts
        time.sleep(random.uniform(0.5, 3))
        del table


def ok_warm(m):
    """Buffers, caches and pools that grow in a training's first minute and then stop."""
    base = array(m * random.uniform(0.2, 0.4))
    pools, top, tau = [], m * random.uniform(0.2, 0.4), random.uniform(8, 25)
    began = time.monotonic()
    held = 0.0
    for _ in until(90):
        passed = time.monotonic() - began
        want = top * (1 - 2.718 ** (-passed / tau))
        if want > held:
            pools.append(array(want - held))
            held = want
        base[:100000].sort()
        time.sleep(0.25)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    random.seed(f"{sys.argv[1]} {sys.argv[3]}")
    KINDS[sys.argv[1]](float(sys.argv[2]) - 40.0)
