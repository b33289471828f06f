"""
Usual days of data science for recorded traces: joins, fits, loaders, models, notebooks.

    python bench/forecast_usual.py KIND LIMIT_MB SEED

As forecast_fresh.py: the oom_ programs end in a kill, the ok_ programs end well. They need NumPy,
pandas, scikit-learn, torch and Keras.
"""

from __future__ import annotations

import itertools
import multiprocessing as mp
import os
import queue
import random
import sys
import tempfile
import threading
import time

from forecast_fresh import MB, until


def array(megabytes):
    """Return random numbers of this size, computed in part only."""
    import numpy as np

    some = np.random.default_rng(random.randrange(1 << 30)).random(1 << 14)
    return np.resize(some, max(1, int(megabytes * MB / 8)))


def table(megabytes, keys=2000):
    """Return a table of about this size with a column of keys."""
    import numpy as np
    import pandas as pd

    rows = max(100, int(megabytes * MB / 88))
    columns = {f"x{i}": np.resize(np.random.rand(4096), rows) for i in range(10)}
    return pd.DataFrame({"key": np.random.randint(0, keys, rows)} | columns)


def think(seconds):
    """Do nothing, as a person does between two cells."""
    time.sleep(seconds * random.uniform(0.5, 1.5))


def train(seconds, model=None, pace=0.15):
    """Train a small network; return it."""
    import torch

    model = model or torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1))
    steps = torch.optim.Adam(model.parameters())
    for _ in until(seconds):
        steps.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        steps.step()
        time.sleep(pace)
    return model


# These end in a kill


def oom_monthly_joins(m):
    """Joins two tables of every month and keeps the results for a last concat."""
    kept, part = [], m * random.uniform(0.01, 0.025)
    customers = table(m * 0.04, keys=3000).drop_duplicates("key")
    while True:
        orders = table(part, keys=3000)
        kept.append(orders.merge(customers, on="key", how="left"))
        kept[-1].groupby("key").x0_x.mean()
        think(random.choice([0.4, 0.8, 1.2]))


def oom_notebook(m):
    """A notebook with runs of cells; every derived table stays."""
    kept = [table(m * random.uniform(0.08, 0.15))]
    while True:
        think(random.uniform(2, 9))
        for _ in range(random.randint(1, 4)):
            extra = kept[random.randrange(len(kept))]
            kept.append(extra.sample(frac=random.uniform(0.3, 0.9)).assign(y=lambda d: d.x0 * 2))
            think(0.8)


def oom_validation(m):
    """A training whose validation keeps the outputs of every batch."""
    kept, model = [array(m * 0.1)], None
    part, batches = m * random.uniform(0.003, 0.006), random.randint(8, 16)
    while True:
        model = train(random.uniform(1.5, 4.0), model)
        for _ in range(batches):
            kept.append(array(part))
            time.sleep(0.1)


def oom_total_loss(m):
    """Adds up the loss with its graph; evaluation every now and then."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(192, 192) for _ in range(4)])
    total, rows = torch.zeros(()), int(m / random.uniform(5, 12))
    for i in itertools.count():
        total = total + model(torch.randn(rows, 192)).square().mean()
        if i % 200 == 199:
            with torch.no_grad():
                model(torch.randn(rows * 40, 192))
            time.sleep(1.0)
        time.sleep(0.08)


def oom_embeddings(m):
    """Embeds documents into a list and stacks all of it from time to time."""
    import numpy as np

    kept, rate = [], m / random.uniform(100, 180)
    while True:
        for _ in range(random.randint(60, 100)):
            kept.append(array(rate * 0.12).reshape(1, -1)[:, : int(rate * 14000)])
            time.sleep(0.12)
        index = np.concatenate(kept, axis=1)
        time.sleep(0.5)
        del index


def oom_groups(m):
    """Collects rows by key in a dict of lists; sources become larger."""
    groups, rows = {}, m * random.uniform(10, 20)
    while True:
        for i in range(int(rows)):
            groups.setdefault(i % 5000, []).append((i * 1.5, str(i)))
        rows *= 1.004
        time.sleep(random.uniform(0.1, 0.3))


def oom_item_cache(m):
    """Two loader workers cache items while the main process trains."""
    for _ in range(2):
        pace = m / random.uniform(160, 260)
        mp.Process(target=_cache_items, args=(pace, random.randrange(99)), daemon=True).start()
    train(1e6, pace=0.25)


def _cache_items(per_s, seed):
    random.seed(seed)
    kept = {}
    for i in itertools.count():
        kept[i] = array(per_s * 0.2 * random.uniform(0.3, 1.7))
        time.sleep(0.2)


def oom_best_models(m):
    """Fits trees of growing depth and keeps each with its predictions."""
    import numpy as np
    from sklearn.ensemble import ExtraTreesRegressor

    x, kept = np.random.rand(2500, 8), [array(m * random.uniform(0.1, 0.3))]
    for _ in itertools.count():
        model = ExtraTreesRegressor(random.randint(6, 18)).fit(x, x[:, 0])
        kept.append((model, array(m * random.uniform(0.004, 0.012))))
        think(0.5)


def oom_crawl(m):
    """Keeps pages as text; the source answers at changing speed."""
    kept, pace = [], 1.0
    while True:
        if random.random() < 0.02:
            pace = random.choice([0.4, 0.7, 1.0, 1.6])
        kept.append("x" * int(m * MB * random.uniform(0.0005, 0.004)))
        time.sleep(0.2 * pace)


def oom_metrics(m):
    """A quiet training, from its second half on with tensors in its log."""
    kept, model = [array(m * random.uniform(0.2, 0.45))], train(random.uniform(20, 50))
    rate, spike = m / random.uniform(60, 130), m * random.uniform(0.03, 0.1)
    for i in itertools.count():
        kept.append(array(rate * 0.3))
        time.sleep(0.3)
        if i % 40 == 39:
            copy = array(spike)
            model = train(1.0, model)
            del copy


def oom_encode_all(m):
    """Encodes a text as one-hot columns from the first second on."""
    import numpy as np

    seconds, kept = random.uniform(45, 120), []
    for _ in itertools.count():
        codes = np.random.randint(0, 64, max(1, int(m / seconds * 0.15 * MB / 64)))
        kept.append(np.eye(64, dtype="int8")[codes])
        time.sleep(0.15 * random.uniform(0.6, 1.4))


def oom_larger_batches(m):
    """A search for the largest batch: every few seconds a larger one, nothing freed."""
    kept, size = [], m * random.uniform(0.02, 0.04)
    while True:
        for _ in range(6):
            kept.append(array(size / 6))
            time.sleep(0.15)
        train(random.uniform(1.5, 5.0))
        size *= random.uniform(1.02, 1.12)


def oom_keras_weights(m):
    """A Keras callback keeps the weights of every batch."""
    import keras
    import numpy as np

    width = int((m * random.uniform(0.0015, 0.003) * MB / 4) ** 0.5)
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kept = []

    def keep(batch, logs):
        kept.append(model.get_weights())
        time.sleep(0.12)

    x = np.random.rand(640, width).astype("float32")
    model.fit(
        x, x[:, :1], batch_size=32, epochs=9999, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=keep)],
    )  # fmt: skip


def oom_producer(m):
    """A reader fills a queue without a bound; the consumer loses speed."""
    work, size = queue.Queue(), m * random.uniform(0.004, 0.008)

    def read():
        while True:
            work.put(array(size * random.uniform(0.5, 1.5)))
            time.sleep(random.uniform(0.1, 0.25))

    threading.Thread(target=read, daemon=True).start()
    pace = 0.18
    while True:
        work.get().sum()
        time.sleep(pace)
        pace = min(0.9, pace * 1.01)


def oom_append_slow(m):
    """np.append on one long history, at a pace that a person would not notice."""
    import numpy as np

    history, rate = array(m * 0.12), m / random.uniform(150, 220)
    while True:
        history = np.append(history, array(rate * 0.7))
        time.sleep(0.7)


# These end well


def ok_reports(m):
    """Every report reads two tables, joins, groups and writes."""
    for _ in range(random.randint(6, 10)):
        left = table(m * random.uniform(0.08, 0.22))
        think(1.5)
        right = table(m * 0.03).drop_duplicates("key")
        joined = left.merge(right, on="key")
        think(2.0)
        joined.groupby("key").mean()
        del left, right, joined
        think(3.0)


def ok_grid(m):
    """A grid of fits on one data set; each copies what it trains on."""
    import numpy as np
    from sklearn.linear_model import Ridge

    x = array(m * random.uniform(0.15, 0.3)).reshape(-1)[: int(m * 12000)].reshape(-1, 10)
    for _ in range(random.randint(18, 28)):
        fold = np.random.choice(len(x), int(len(x) * random.uniform(0.5, 0.9)))
        Ridge().fit(x[fold], x[fold, 0])
        held = x[fold].copy()
        think(2.5)
        del held


def ok_pca(m):
    """Loads a matrix in parts, standardises it, decomposes it, clusters the scores."""
    import numpy as np
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import PCA

    parts = []
    for _ in range(random.randint(15, 40)):
        parts.append(array(m * 0.3 / 40).reshape(-1)[: int(m * 900)].reshape(-1, 20))
        time.sleep(random.uniform(0.15, 0.5))
    x = np.concatenate(parts)
    parts.clear()
    think(2.0)
    x = (x - x.mean(0)) / (x.std(0) + 1)
    think(2.0)
    scores = PCA(4).fit_transform(x)
    for k in range(4, 20):
        MiniBatchKMeans(k, n_init=1, max_iter=5).fit(scores[:20000])
        think(2.0)


def ok_loader(m):
    """A loader with a bounded queue and two workers; training and validation."""
    work = mp.Queue(12)
    readers = [
        mp.Process(target=_decode, args=(work, m * random.uniform(0.002, 0.006))) for _ in range(2)
    ]
    for each in readers:
        each.start()
    base, model = array(m * random.uniform(0.1, 0.3)), None
    for i in range(24):
        model = train(3.0, model)
        for _ in range(8):
            work.get()
        if i % 6 == 5:
            held = [array(m * random.uniform(0.02, 0.05)) for _ in range(4)]
            model = train(2.0, model)
            del held
    for each in readers:
        each.terminate()
    base.sum()


def _decode(work, size):
    while True:
        work.put(array(size * random.uniform(0.4, 1.6)))
        time.sleep(0.1)


def ok_checkpoint_load(m):
    """Loads a model shard by shard, adds the optimizer's state, trains and validates."""
    shards, state, model = [], [], None
    count, share = random.randint(6, 16), random.uniform(0.12, 0.25)
    for _ in range(count):
        raw = array(m * share / count)
        time.sleep(random.uniform(0.3, 1.5))
        shards.append(raw.copy())
        del raw
    model = train(3.0)
    for each in shards:
        state += [each * 0.0, each * 0.0]
        time.sleep(0.1)
    for _ in range(6):
        model = train(random.uniform(7, 12), model)
        held = array(m * 0.1)
        model = train(1.5, model)
        del held


def ok_notebook(m):
    """A person at a notebook: tables come, some are deleted, at the end most of it stays."""
    kept = [table(m * random.uniform(0.1, 0.2))]
    for _ in range(random.randint(10, 16)):
        think(random.uniform(2, 9))
        fresh = kept[0].sample(frac=random.uniform(0.2, 0.6))
        think(0.5)
        fresh = fresh.assign(y=fresh.x0 + fresh.x1)
        kept.append(fresh)
        del fresh
        if sum(len(each) for each in kept) * 96 > 0.6 * m * MB:
            del kept[1 : 1 + len(kept) // 2]


def ok_one_hot(m):
    """Chunks are encoded into a list, joined into one array; then a fit."""
    import numpy as np

    chunks = []
    for _ in range(random.randint(30, 90)):
        chunks.append(array(m * random.uniform(0.1, 0.16) / 40))
        time.sleep(random.uniform(0.2, 0.6))
    whole = np.concatenate(chunks)
    time.sleep(1.0)
    chunks.clear()
    train(25)
    whole.sum()


def ok_windows(m):
    """Adds one rolling column after another, drops the raw ones, and fits."""
    frame = table(m * random.uniform(0.1, 0.2))
    for i in range(random.randint(10, 25)):
        frame[f"r{i}"] = frame.x1.rolling(i + 2).mean()
        think(1.2)
    frame = frame.dropna().drop(columns=["x0", "x1", "x2"])
    think(3.0)
    train(30)
    frame.mean()


def ok_cached_epochs(m):
    """The first epoch fills a cache of the data set; the others read it."""
    cache, seconds = [], random.uniform(25, 60)
    total = m * random.uniform(0.35, 0.8)
    for _ in until(seconds):
        cache.append(array(total / seconds * 0.2 * random.uniform(0.7, 1.3)))
        time.sleep(0.2)
    train(50)
    for each in cache:
        each.sum()


def ok_bootstrap(m):
    """Bootstrap samples with a few kept figures each."""
    base, kept = table(m * random.uniform(0.15, 0.3)), []
    for _ in range(random.randint(40, 60)):
        sample = base.sample(frac=1.0, replace=True)
        kept.append(sample.mean())
        think(0.8)
        del sample
        think(0.8)


def ok_distinct(m):
    """Counts distinct users of a stream: fewer and fewer are new."""
    seen, top = {}, int(m * random.uniform(1500, 3200))
    for _ in until(random.uniform(70, 110)):
        for _ in range(4000):
            seen[f"user-{int(random.triangular(0, top, 0))}"] = [1.0, 2.0]
        time.sleep(0.08)


def ok_distances(m):
    """Distances of batches against all points: a large block that comes and goes."""
    base = array(m * random.uniform(0.1, 0.35))
    for _ in range(random.randint(30, 50)):
        block = array(m * random.uniform(0.1, 0.45))
        time.sleep(random.uniform(0.2, 1.2))
        del block
        think(1.2)
    base.sum()


def ok_replay_buffer(m):
    """A replay buffer that fills up to its capacity, then replaces."""
    buffer, model = [], None
    count = random.randint(150, 300)
    size = m * random.uniform(0.2, 0.6) / count
    for _ in range(count):
        buffer.append(array(size))
        time.sleep(0.2)
    for _ in range(5):
        model = train(5.0, model)
        for _ in range(30):
            buffer[random.randrange(count)] = array(size)


def ok_keras(m):
    """A Keras fit with validation data and a checkpoint an epoch."""
    import keras
    import numpy as np

    width = int((m * 0.01 * MB / 4) ** 0.5)
    model = keras.Sequential([keras.layers.Dense(width) for _ in range(6)])
    model.compile("adam", "mse")
    x = np.random.rand(1024, width).astype("float32")
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: time.sleep(0.15))
    path = os.path.join(tempfile.mkdtemp(), "model.weights.h5")
    save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    model.fit(x, x, validation_data=(x, x), epochs=14, verbose=0, callbacks=[slow, save])


def ok_trials(m):
    """Trials one after another, each in a process of its own."""
    for _ in range(random.randint(5, 8)):
        size = m * random.uniform(0.15, 0.7)
        one = mp.Process(target=_trial, args=(size, random.uniform(5, 14)))
        one.start()
        one.join()
        think(1.0)


def _trial(size, seconds):
    kept = []
    for _ in range(20):
        kept.append(array(size / 20))
        time.sleep(seconds / 60)
    time.sleep(seconds * 0.66)


def ok_shards(m):
    """Writes shards to disk and reads them again, with one in memory at a time."""
    folder = tempfile.mkdtemp()
    for i in range(random.randint(12, 18)):
        shard = table(m * random.uniform(0.05, 0.3))
        think(1.0)
        shard.to_pickle(os.path.join(folder, f"{i % 3}"))
        del shard
        think(3.0)


KINDS = {k: f for k, f in globals().items() if k.startswith(("oom_", "ok_"))}

if __name__ == "__main__":
    import zlib

    random.seed(zlib.crc32(f"{sys.argv[1]} {sys.argv[3]}".encode()))
    KINDS[sys.argv[1]](float(sys.argv[2]) - 40.0)
