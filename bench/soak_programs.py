"""
Programs of a soak: `python bench/soak_programs.py KIND ...`, one small program for each kind.

No framework: a Python without imports starts in 20 ms, so that many can start and end.
"""

from __future__ import annotations

import os
import sys
import time


def main() -> None:
    kind, *words = sys.argv[1:]
    {"grow": grow, "fork": fork, "train": train}[kind](*words)


def grow(mb_per_s: str, most_mb: str, stay_s: str) -> None:
    """Grow to a size, stay for a while, and end. In a smaller group the kernel kills it."""
    held = []
    step_s = 0.1
    while len(held) * float(mb_per_s) * step_s < float(most_mb):
        held.append(b"\1" * int(float(mb_per_s) * 1e6 * step_s))
        time.sleep(step_s)
    time.sleep(float(stay_s))


def fork(workers: str, stay_s: str) -> None:
    """Fork workers that share their parent's memory and end before it; some wait to be reaped."""
    held = b"\1" * 20_000_000
    for number in range(int(workers)):
        if os.fork() == 0:
            time.sleep(float(stay_s) * (number + 1) / (int(workers) + 1))
            os._exit(len(held) % 2)
    time.sleep(float(stay_s))  # the workers are zombies by now: the parent does not reap them


def train(folder: str, stay_s: str, end: str, leak_mb_s: str) -> None:
    """
    Train in steps of 20 ms, with a real agent and a state of 1 MB, and end in one of several ways.

    "well"; "exit" without a message; "error"; "kill"; "again": the agent ends and starts again.
    """
    from watchdog_app.agent.runtime.link import Link
    from watchdog_app.agent.runtime.session import Session
    from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
    from watchdog_app.rescue.checkpoint.store import RescueStore

    state = bytearray(1_000_000)
    held: list[bytes] = []

    def capture() -> Capture:
        return Capture(
            [TensorEntry("a", "U8", (len(state),), len(state), lambda: memoryview(state))]
        )

    def session() -> Session:
        made = Session(RescueStore(folder), Link("soak", folder), capture)
        made.prepare()
        return made

    step = 0
    training = session()
    over = time.monotonic() + float(stay_s)
    while time.monotonic() < over:
        time.sleep(0.02)
        step += 1
        held.append(b"\1" * int(float(leak_mb_s) * 1e6 * 0.02))
        training.boundary(step, epoch=step // 100, loss=1.0 / step)
        if end == "again" and step % 100 == 0:
            training.end()
            training = session()
    if end == "exit":
        os._exit(3)
    if end == "kill":
        os.kill(os.getpid(), 9)
    if end == "error":
        raise MemoryError("as if")
    training.end()


if __name__ == "__main__":
    main()
