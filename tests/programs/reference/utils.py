import time
from collections import defaultdict, deque


class SmoothedValue:
    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    @property
    def global_avg(self):
        return self.total / self.count


class MetricLogger:
    def __init__(self, delimiter):
        self.meters = defaultdict(SmoothedValue)
        self.delimiter = delimiter

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value)

    def __str__(self):
        return self.delimiter.join(f"{k}: {v.global_avg:.4f}" for k, v in self.meters.items())

    def log_every(self, iterable, print_freq, header):
        i = 0
        start = time.time()
        for obj in iterable:
            yield obj
            if i % print_freq == 0:
                print(header, f"[{i}/{len(iterable)}]", str(self), f"{time.time() - start:.1f} s")
            i += 1


def write_line(path, line):
    with open(path, "a") as file:
        file.write(line + "\n")
