"""
A training without a framework, to which a signal announces the end of the process.

Arguments: folder, case. It prints "ready" when the signal may come.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from watchdog_app.agent.runtime import ends, run_choice
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Session
from watchdog_app.base import signals
from watchdog_app.base.linux import process
from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore

FOLDER, CASE = sys.argv[1:3]
LONG_S = 300.0
step = 0


def say(text: object) -> None:
    print(text, flush=True)


def capture() -> Capture:
    data = step.to_bytes(8, "little") * 128
    return Capture([TensorEntry("a", "U8", (1024,), 1024, lambda: memoryview(data))])


def open_session(name: str = "it") -> Session:
    begun = run_choice.begin(FOLDER, "newest" if "newest" in CASE else True, name=name)
    store = RescueStore(begun.directory, run=begun.run)
    save_on = signals.parse(["USR1"] if CASE == "asked" else [])
    link = Link("torch", store.directory)
    session = Session(store, link, capture, save_on=save_on)
    run_choice.resume(begun, store, link, lambda rescue: say(f"resumed from step {rescue.step}"))
    session.prepare()
    return session


def train(session: Session, seconds: float = LONG_S) -> None:
    """Train until the signal ends the process, for `seconds` at most."""
    global step
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        step += 1
        session.boundary(step)
        if step == 3:
            Path(FOLDER, "third-step").touch()
            say("ready")
    say("trained")


def on_signal(*_: object) -> None:
    say("own handler")
    os._exit(7)


def own_handler_before() -> None:
    signal.signal(signal.SIGTERM, on_signal)
    train(open_session())


def own_handler_later() -> None:
    session = open_session()
    signal.signal(signal.SIGTERM, on_signal)
    train(session)


def ignored() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    train(open_session(), 1.0)


def blocked() -> None:
    session = open_session()
    session.boundary(1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    time.sleep(0.6)  # the time between two reports
    session.boundary(2)
    say(f"handled: {process.own_signal_masks('SigCgt') >> (signal.SIGTERM - 1) & 1}")
    say("ready")
    say(f"waited for {signal.sigwait([signal.SIGTERM])}")


def in_c() -> None:
    """Stay in one call without the GIL, as a long operation of a framework."""
    session = open_session()
    session.boundary(1)
    say("ready")
    held = threading.Lock()
    held.acquire()
    held.acquire()


def in_c_with_gil() -> None:
    """Stay in one call that holds the GIL for a while, and train on."""
    session = open_session()
    session.boundary(1)
    say("ready")
    sum(range(10**8))
    train(session)


def wakeup_fd() -> None:
    """Have Python write its signals to a file of the program."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    signal.set_wakeup_fd(theirs.fileno())
    session = open_session()
    session.boundary(1)
    os.kill(os.getpid(), signal.SIGUSR2)
    woken = list(ours.recv(16))
    kept = signal.set_wakeup_fd(theirs.fileno()) == theirs.fileno()
    say(f"woken by {woken}, the file stays: {kept}")
    train(session)


def workers() -> None:
    """Start processes of `multiprocessing` that the parent terminates, and train on."""
    session = open_session()
    session.boundary(1)
    codes = {}
    for method in ("fork", "spawn", "forkserver"):
        worker = multiprocessing.get_context(method).Process(target=time.sleep, args=(LONG_S,))
        worker.start()
        worker.terminate()
        worker.join()
        codes[method] = worker.exitcode
    say(f"workers ended with {codes}")
    train(session)


def in_thread() -> None:
    worker = threading.Thread(target=train, args=(open_session(),))
    worker.start()
    worker.join()


def in_thread_of_c() -> None:
    """Get the signal in a thread that runs no Python."""
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    library.pthread_create(ctypes.byref(thread), None, library.pause, None)

    def send() -> None:
        while not Path(FOLDER, "third-step").exists():
            time.sleep(0.01)
        signal.pthread_kill(thread.value, signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()
    train(open_session())


def two_in_turn() -> None:
    """Train two models in turn, each with rescues of its own."""
    sessions = [open_session("one"), open_session("other")]
    for count in range(1, 10000):
        for session in sessions:
            time.sleep(0.01)
            session.boundary(count)
        if count == 3:
            say("ready")


def in_asyncio(*, handles: bool) -> None:
    async def main() -> None:
        told = asyncio.Event()
        if handles:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        asyncio.get_running_loop().run_in_executor(None, train, session)
        await told.wait()
        on_signal()

    session = open_session()
    asyncio.run(main())


def children() -> None:
    """Fork children that the parent ends at once, and train on."""
    session, statuses = open_session(), set()
    for _ in range(50):
        child = os.fork()
        if child == 0:
            time.sleep(LONG_S)
        os.kill(child, signal.SIGTERM)
        statuses.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    say(f"children ended with {statuses}")
    train(session)


def exits() -> None:
    """Leave with another status while the signal waits, as after the death of a worker."""
    open_session().boundary(1)
    say("ready")
    time.sleep(0.4)
    sys.exit(3)


class AtTheVeryEnd:
    """Takes long when the interpreter removes what is left, and no other thread can run."""

    def __del__(self) -> None:
        say("ready")
        time.sleep(LONG_S)


def left() -> None:
    """Leave a training without its end, as an interrupt does in a kernel that is shut down."""
    global late
    late = AtTheVeryEnd()
    open_session().boundary(1)


def ended() -> None:
    session = open_session()
    session.boundary(1)
    session.end()
    say(f"handled: {process.own_signal_masks('SigCgt') >> (signal.SIGTERM - 1) & 1}")
    say("ready")
    time.sleep(LONG_S)


def ended_by_signal() -> None:
    """Survive the signal and end the training at it, as at an interrupt in a kernel."""
    session = open_session()
    session.boundary(1)
    say("ready")
    while ends._ends.pending is None:
        time.sleep(0.001)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    session.end()
    time.sleep(1.0)
    say(f"handled: {process.own_signal_masks('SigCgt') >> (signal.SIGHUP - 1) & 1}")


def test_training() -> None:
    train(open_session())


def under_pytest() -> None:
    import pytest

    say(pytest.main([__file__, "-qs", "-p", "no:cacheprovider"]))


CASES: dict[str, Callable[[], None]] = {
    "training": lambda: train(open_session()),
    "short": lambda: train(open_session(), 0.1),
    "short newest": lambda: train(open_session(), 0.1),
    "asked": lambda: train(open_session()),
    "asyncio": lambda: in_asyncio(handles=False),
    "asyncio handles": lambda: in_asyncio(handles=True),
    **{
        each.__name__: each
        for each in (
            own_handler_before, own_handler_later, ignored, blocked, in_c, in_c_with_gil,
            wakeup_fd, workers, in_thread, in_thread_of_c, two_in_turn, children, exits, left,
            ended, ended_by_signal, under_pytest,
        )
    },
}  # fmt: skip
if __name__ == "__main__":
    CASES[CASE]()
