"""
A training whose steps compute nothing, and which then stalls in the requested way.

Usage: standstill.py WAY [PATH]. With the way `grows` it continues and keeps some memory of each
step. It uses only the agent's link, so it needs no framework and starts in 0.2 s.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time

from watchdog_app.agent.runtime.link import Link
from watchdog_app.rescue.checkpoint.stream import Worker

STEP_S = 0.02


def train(link: Link, first: int, count: int) -> None:
    for step in range(first, first + count):
        time.sleep(STEP_S)
        link.report(training=True, step=step, step_s=STEP_S)
    time.sleep(1.2)  # the link sends the last step


def wait_for_a_queue() -> None:
    queue.Queue().get()


def read_a_fifo(path: str) -> None:
    with open(path) as pipe:
        pipe.read()


def call_a_library() -> None:
    """PyDLL holds the GIL during the call."""
    ctypes.PyDLL(None).sleep(600)


lock = threading.Lock()


def use_the_lock() -> int:
    with lock:
        return os.getpid()


def fork_with_a_held_lock() -> None:
    taken = threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            time.sleep(2.0)

    threading.Thread(target=hold, name="holder").start()
    taken.wait()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(use_the_lock)


def be_killed() -> None:
    time.sleep(2.5)  # long enough for the daemon to sample it
    os.kill(os.getpid(), signal.SIGKILL)


def lose_a_worker() -> None:
    """The result never arrives: the pool starts another worker, which does not know the task."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(be_killed)


def pace(start: object, answers: object) -> None:
    for number in iter(start.get, None):  # type: ignore[attr-defined]
        answers.put(number)  # type: ignore[attr-defined]


def wait_for_a_stopped_worker() -> None:
    context = multiprocessing.get_context("fork")
    start, answers = context.SimpleQueue(), context.SimpleQueue()
    worker = context.Process(target=pace, args=(start, answers), daemon=True)
    worker.start()
    start.put(1)
    answers.get()
    os.kill(worker.pid or 0, signal.SIGSTOP)
    start.put(2)
    answers.get()


def take_a_lock_of_the_dead() -> None:
    other = threading.Lock()
    thread = threading.Thread(target=other.acquire)
    thread.start()
    thread.join()
    other.acquire()


def take_a_lock_twice() -> None:
    """Deadlock the training while the rescue thread of the agent runs."""
    Worker()
    with lock, lock:
        pass


def fill_a_pipe() -> None:
    _, end = os.pipe()
    while True:
        os.write(end, b"x" * 65536)


def turn_in_circles() -> None:
    while True:
        pass


def main() -> None:
    way, argument = sys.argv[1], sys.argv[2:]
    link = Link("test", os.getcwd())
    link.start()
    train(link, 1, 20)
    if way == "grows":
        kept: list[bytearray] = []
        for step in range(21, 10**6):
            kept.append(bytearray(b"x" * 200_000))  # the line that holds what grows
            time.sleep(STEP_S)
            link.report(training=True, step=step, step_s=STEP_S)
    {
        "queue": wait_for_a_queue,
        "fifo": lambda: read_a_fifo(argument[0]),
        "library": call_a_library,
        "fork": fork_with_a_held_lock,
        "killed": lose_a_worker,
        "stopped": wait_for_a_stopped_worker,
        "lock": take_a_lock_of_the_dead,
        "twice": take_a_lock_twice,
        "pipe": fill_a_pipe,
        "busy": turn_in_circles,
    }[way]()


if __name__ == "__main__":
    main()
