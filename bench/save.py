"""
Measure a save compared with a plain write with fsync of the same bytes.

    python bench/save.py [--sizes 10 100 500] [--rounds 9] [--tensors 20] [--folder FOLDER]

Both methods alternate in one process in a memory group (root and cgroup v1; "-" elsewhere).
Columns: median seconds of each, their ratio, and the ratio of the fastest of each, which other load
affects less; the peak that each adds to the group, including page cache; and a save that starts
when the group is at its limit. The last line is the cost of each step of a training without a
request to save.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base.errors import ActionError
from watchdog_app.base.text.quantities import KIB, MIB
from watchdog_app.guard.backends import create
from watchdog_app.guard.cgroup_v1 import CgroupV1
from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore

PIECE_BYTES = MIB
TARGET_RATIO = 1.5
TARGET_PEAK_BYTES = 8 * MIB
SLACK_BYTES = 64 * KIB  # any program needs some pages to wake up


def child(folder, size, tensors):
    """Hold the tensors; run the commands on stdin, one letter each; answer with the seconds."""
    length = size // tensors
    noise = os.urandom(MIB)
    held = []
    for _ in range(tensors):
        memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, length, MIB):
            memory[at : at + MIB] = noise[: min(MIB, length - at)]
        held.append(memory)
    store = RescueStore(os.path.join(folder, "rescues"), keep=1)
    store.prepare(tensors)
    step = 0
    os.write(1, b"ready\n")
    while order := os.read(0, 1):
        if order == b"p":
            seconds = plain(os.path.join(folder, "plain"), held)
        else:
            entries = [
                TensorEntry(f"layer_{n}/kernel", "U8", (length,), length, _view(memory))
                for n, memory in enumerate(held)
            ]
            store.release_reserve()
            saved = store.save(entries, {"step": step})
            seconds = saved.seconds
            step += 1
            shutil.rmtree(saved.path)  # outside the measured time
            store.hold_reserve(tensors)
        os.write(1, f"{seconds}\n".encode())


def _view(memory):
    return lambda: memoryview(memory)


def plain(path, held):
    """Write piece by piece, then fsync; return the seconds."""
    began = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for memory in held:
        with memoryview(memory) as view:
            for at in range(0, len(view), PIECE_BYTES):
                os.write(fd, view[at : at + PIECE_BYTES])
    os.fsync(fd)
    seconds = time.perf_counter() - began
    os.close(fd)
    os.unlink(path)
    return seconds


class Meter:
    """The memory group of the child, if one can be made."""

    def __init__(self, name, limit_bytes):
        try:
            group = create(name, limit_bytes)
        except ActionError:
            group = None
        self.group = group if isinstance(group, CgroupV1) else None
        if group is not None and self.group is None:
            group.close()

    def command(self, argv):
        return argv if self.group is None else self.group.command(argv)

    def put(self, name, value):
        fd = os.open(f"{self.group.path}/{name}", os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)

    def get(self, name):
        with open(f"{self.group.path}/{name}") as file:
            return int(file.read())

    def before(self):
        if self.group is None:
            return None
        self.put("memory.max_usage_in_bytes", 0)
        return self.get("memory.usage_in_bytes")

    def peak(self, before):
        return None if before is None else self.get("memory.max_usage_in_bytes") - before

    def squeeze(self):
        limit = self.get("memory.usage_in_bytes") // 4096 * 4096
        step = MIB
        while step >= 4096:
            try:
                self.put("memory.limit_in_bytes", limit - step)
                limit -= step
            except OSError:
                step //= 2
        self.put("memory.limit_in_bytes", limit + SLACK_BYTES)

    def close(self):
        if self.group is not None:
            self.group.close()


def measure(folder, size, tensors, rounds):
    """Measure one line of the table."""
    meter = Meter(f"watchdog-bench-save-{os.getpid()}-{size}", 4 * size + 512 * MIB)
    argv = [sys.executable, __file__, "--child", str(size), "--folder", folder]
    process = subprocess.Popen(
        meter.command([*argv, "--tensors", str(tensors)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    def do(order):
        before = meter.before()
        process.stdin.write(order)
        process.stdin.flush()
        answer = process.stdout.readline()
        return (float(answer) if answer else None), meter.peak(before)

    try:
        assert process.stdout.readline() == "ready\n"
        do("p"), do("s")  # warm up the file system
        turns = [(do("p"), do("s")) for _ in range(rounds)]
        at_limit = None
        if meter.group is not None:
            meter.squeeze()
            at_limit, _ = do("s")
        return turns, at_limit, meter.group is not None
    finally:
        process.kill()
        process.communicate()
        meter.close()


def boundary_s(folder, steps=200_000):
    """Return the seconds of one `Session.boundary`, the best of five runs."""
    link = Link("bench", folder, socket_path=os.path.join(folder, "none.sock"))
    session = Session(RescueStore(folder), link, lambda: Capture([]))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for step in range(steps):
            session.boundary(step, epoch=0, batch=step)
        best = min(best, (time.perf_counter() - began) / steps)
    session.end()
    return best


def mib(value):
    return "-" if value is None else f"{value / MIB:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 500], help="in MB")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tensors", type=int, default=20)
    parser.add_argument("--folder", default=None, help="on the disk to be measured")
    parser.add_argument("--child", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.folder, options.child, options.tensors)
        return 0
    folder = tempfile.mkdtemp(prefix="watchdog-bench-", dir=options.folder or os.getcwd())
    print("state MB | plain + fsync s | save s | ratio | of the fastest | peak plain MiB | peak save MiB | at the limit")  # fmt: skip # noqa: E501
    good = True
    try:
        for size in options.sizes:
            turns, at_limit, counted = measure(
                folder, size * 10**6, options.tensors, options.rounds
            )
            plain_s = statistics.median(each[0][0] for each in turns)
            save_s = statistics.median(each[1][0] for each in turns)
            fastest = min(each[1][0] for each in turns) / min(each[0][0] for each in turns)
            peak_plain = max((each[0][1] for each in turns), default=0) if counted else None
            peak_save = max((each[1][1] for each in turns), default=0) if counted else None
            told = "-" if not counted else "KILLED" if at_limit is None else f"{at_limit:.3f} s"
            good &= save_s / plain_s <= TARGET_RATIO and told != "KILLED"
            good &= peak_save is None or peak_save <= TARGET_PEAK_BYTES
            print(
                f"{size:8} | {plain_s:15.3f} | {save_s:6.3f} | {save_s / plain_s:5.2f} | "
                f"{fastest:14.2f} | {mib(peak_plain):>14} | {mib(peak_save):>13} | {told}",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"A step boundary without a request: {boundary_s(folder) * 1e6:.2f} µs")
    print(f"Targets (ratio {TARGET_RATIO}, peak 8 MiB, saved at the limit): {'met' if good else 'MISSED'}")  # fmt: skip # noqa: E501
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
