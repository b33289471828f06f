"""
A training without a framework: NumPy weights, the agent's session, and a leak on request.

Usage:
    train.py --folder FOLDER [--leak-mb-s 10] [--jump-mb 400] ...

It writes FOLDER/pid, one line per step into FOLDER/steps, and rescues below FOLDER/rescues. The
first weight is the number of steps. A jump allocates and fills one array as soon as FOLDER/jump
exists.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import NoReturn

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore


class ByHand(ChangeMarker):
    """A marker that the loop below calls when it begins to change its weights."""

    def covers(self, name: str, address: int) -> bool:
        """Any memory counts."""
        return True


def leak(mb_s: float, after_s: float) -> NoReturn:
    """Leak for ever, in a worker."""
    held = []
    time.sleep(after_s)
    while True:
        held.append(np.ones(int(mb_s * 1e5), np.uint8))
        time.sleep(0.1)


def main() -> None:
    """Train until something ends it, or all steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--leak-mb-s", type=float, default=0)
    parser.add_argument("--leak-after-s", type=float, default=8, help="steps without a leak first")
    parser.add_argument("--hold-mb", type=float, default=0, help="held from the start")
    parser.add_argument("--touch", action="store_true", help="what is held is used at each step")
    parser.add_argument("--stop-at-mb", type=float, default=1e9, help="the leak ends there")
    parser.add_argument("--state-mb", type=float, default=4)
    parser.add_argument("--step-s", type=float, default=0.2)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--no-agent", action="store_true")
    parser.add_argument("--rescues", help="where they go; FOLDER/rescues")
    parser.add_argument("--publish", action="store_true", help="for a copy from outside")
    parser.add_argument("--jump-mb", type=float, default=0)
    parser.add_argument("--in-step", action="store_true", help="the jump is within a step")
    parser.add_argument("--worker-mb-s", type=float, default=0, help="a worker that leaks")
    options = parser.parse_args()

    with open(os.path.join(options.folder, "pid"), "w") as file:
        file.write(str(os.getpid()))
    if options.worker_mb_s and not os.fork():
        leak(options.worker_mb_s, options.leak_after_s)
    weights = np.zeros(int(options.state_mb * 1e6) // 4, np.float32)
    held = np.ones(int(options.hold_mb * 1e6), np.uint8)

    def capture() -> Capture:
        entry = TensorEntry(
            "weights", "F32", weights.shape, weights.nbytes, lambda: memoryview(weights).cast("B")
        )
        return Capture([entry], {"kind": "plain"})

    session = None
    if not options.no_agent:
        directory = options.rescues or os.path.join(options.folder, "rescues")
        session = Session(
            RescueStore(directory, 2),
            Link("numpy", directory),
            capture,
            marker=ByHand if options.publish else None,
        )
        session.prepare()
        session.measure()
    jump = os.path.join(options.folder, "jump")
    jumped = b""

    def leap() -> bytes:
        if options.jump_mb and not jumped and os.path.exists(jump):
            return b"x" * int(options.jump_mb * 1e6)
        return jumped

    leaked: list[np.ndarray] = []
    leaked_mb = 0.0
    began = last = time.monotonic()
    step = 0
    with open(os.path.join(options.folder, "steps"), "a", buffering=1) as diary:
        while time.monotonic() < began + options.seconds:
            step += 1
            if session is not None:
                session.step_begins()
            weights[:1000] += 1.0
            if options.in_step:
                jumped = leap()
            if options.touch:
                held[::4096] += 1
            now = time.monotonic()
            # A late step leaks no more than a few steps do.
            passed, last = min(now - last, 5 * options.step_s), now
            if (
                options.leak_mb_s
                and now - began > options.leak_after_s
                and leaked_mb < options.stop_at_mb
            ):
                leaked.append(np.ones(int(options.leak_mb_s * 1e6 * passed), np.uint8))
                leaked_mb += options.leak_mb_s * passed
            diary.write(f"{step} {time.time():.3f}\n")
            if session is not None:
                session.boundary(step, loss=1 / step)
            if not options.in_step:
                jumped = leap()
            time.sleep(max(0.0, options.step_s - (time.monotonic() - now)))
    if session is not None:
        session.end()
    print(f"made {step} steps, leaked {leaked_mb:.0f} MB, held {held.nbytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
