"""A training in a separate process that publishes its state, seen from outside."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from watchdog_app.guard import copier
from watchdog_app.rescue.segment.exchange import SOCKET, Registry

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 120.0


class Training:
    """One run of a program of `programs/`; a context manager that ends it."""

    def __init__(self, program, rescues, watcher, *words, guard=True):
        self.rescues = str(rescues)
        self.registry = Registry(1)
        env = {**os.environ, "PYTHONPATH": str(PROGRAMS), "WATCHDOG_RUNTIME_DIR": str(watcher)}
        env["PYTHONUNBUFFERED"] = "1"
        if guard:
            env["WATCHDOG_GUARD"] = str(watcher)
            self.registry.listen(os.path.join(watcher, SOCKET))
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / program), self.rescues, *map(str, words)],
            stdout=subprocess.PIPE,
            env=env,
        )
        self.pid = self.process.pid
        self._waiting = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(30)
        self.process.stdout.close()
        self.registry.close()

    @property
    def offer(self):
        """What it has handed over."""
        self.registry.receive()
        return self.registry.offers.get(self.pid)

    def asked(self):
        """Make it publish after every batch, as it does near a limit."""
        end = time.monotonic() + DEADLINE_S
        while self.offer is None:
            assert self.process.poll() is None, "it ended before it offered its segment"
            assert time.monotonic() < end, "no segment was offered"
            time.sleep(0.005)
        self.offer.segment.ask_every_batch(True)
        return self

    def line(self, begin="", deadline_s=DEADLINE_S):
        """The next line of its output that starts with `begin`."""
        end = time.monotonic() + deadline_s
        while True:
            line, found, rest = self._waiting.partition(b"\n")
            if found:
                self._waiting = rest
                if line.decode().startswith(begin):
                    return line.decode()
                continue
            left = end - time.monotonic()
            assert left > 0, f"{begin!r} did not come in time"
            if select.select([self.process.stdout], [], [], left)[0]:
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, f"it ended with {self.process.wait(60)} before {begin!r}"
                self._waiting += more

    def lines_to(self, begin):
        """Every line up to and including the one that starts with `begin`."""
        while True:
            line = self.line()
            yield line
            if line.startswith(begin):
                return

    def stop(self):
        """Stop it, and wait until it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + 10
        while True:
            with open(f"/proc/{self.pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "Tt":
                    return
            assert time.monotonic() < end
            time.sleep(0.001)

    def stop_between(self):
        """Stop it where it can be copied; its data may be made while a step still runs."""
        end = time.monotonic() + 30
        while True:
            self.stop()
            seen = self.check()
            if seen.state == "ready":
                return seen
            assert time.monotonic() < end, seen
            self.go_on()
            time.sleep(0.02)

    def go_on(self, place=None):
        """Resume it, and let it leave the place where it waits."""
        if place is not None:
            Path(f"{self.rescues}.{place}").touch()
        os.kill(self.pid, signal.SIGCONT)

    def check(self):
        """See `copier.check`."""
        return copier.check(self.offer)

    def copy(self, **words):
        """See `copier.copy`."""
        return copier.copy(self.offer, **words)
