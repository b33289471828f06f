"""The whole machine runs out of memory: the daemon keeps its rate, and a rescue completes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from guest import swap_on, until

MANY_PAGES = 10_000  # 40 MB: the machine reads back pages that it has just swapped out


class Pulse:
    """The daemon's number of samples, read about every second."""

    def __init__(self, me) -> None:
        self._me = me
        self.seen: list[tuple[float, int, float]] = []  # (mono_s, ticks, seconds the answer took)
        self.missed = 0

    def feel(self) -> None:
        began = time.monotonic()
        daemon = self._me.status()["daemon"]
        now = time.monotonic()
        self.seen.append((now, daemon["samples"], now - began))
        self.missed = daemon["missed_samples"]

    def rate(self) -> float:
        """Samples per second over the whole time."""
        (begin, first, _), (end, last, _) = self.seen[0], self.seen[-1]
        return (last - first) / (end - begin)


def calm(me) -> Pulse:
    """A pulse of some seconds with enough memory."""
    pulse = Pulse(me)
    for _ in range(8):
        pulse.feel()
        time.sleep(1)
    pulse.feel()
    return pulse


def follow(me, training, timeout_s: float, enough: Callable[[], bool] = bool) -> Pulse:
    """Record the pulse until the training has ended or `enough` is true."""
    pulse = Pulse(me)
    end = time.monotonic() + timeout_s
    while training.ended() is None and not enough():
        assert time.monotonic() < end, training.log() + me.daemon_log()
        pulse.feel()
        time.sleep(1)
    pulse.feel()
    return pulse


def write_figures(record_property, me, training, pulse: Pulse) -> None:
    died = training.last_sign_unix_s()
    saved = me.first("checkpoint")
    record_property("looks a second", round(pulse.rate(), 2))
    record_property("missed looks", pulse.missed)
    record_property("answers of status, median s", round(median(s for *_, s in pulse.seen), 3))
    record_property("answers of status, longest s", round(max(s for *_, s in pulse.seen), 3))
    record_property("saved, s before the end", round(died - (saved or died), 1))
    record_property("rescues asked for", len(me.history("decision")))


def assert_alive(me, first: int, before: Pulse, pulse: Pulse) -> None:
    """The same daemon still samples; its rate depends on the host's other work."""
    assert first == me.daemon_pid()
    assert pulse.rate() > before.rate() / 4


@pytest.mark.timeout(1500)
def test_without_swap_the_daemon_looks_on_and_the_work_is_saved(me, record_property):
    """The kernel kills the training, not the daemon; the rescue and the reason exist."""
    me.start_daemon()
    first = me.daemon_pid()
    training = me.train("--leak-mb-s", "12", "--leak-after-s", "30", "--seconds", "1200")
    pid = training.pid
    me.until_watched(training)
    before = calm(me)

    pulse = follow(me, training, 1000)

    write_figures(record_property, me, training, pulse)
    assert training.wait() in (-signal.SIGKILL, 128 + signal.SIGKILL), training.log()
    assert training.rescues(), me.daemon_log()
    assert_alive(me, first, before, pulse)
    (death,) = until(lambda: [e for e in me.history("exit") if e["pid"] == pid], "the death")
    assert death["memory"], death


@pytest.mark.timeout(1500)
def test_while_it_thrashes_the_daemon_looks_on_and_the_work_is_saved(me, record_property):
    """With swap, and more memory in constant use than RAM."""
    swap_on(300)
    me.start_daemon()
    first = me.daemon_pid()
    other = me.train("--no-agent", "--hold-mb", "380", "--touch", "--seconds", "1400", name="other")
    until(other.steps, "the other program begins")
    training = me.train("--hold-mb", "150", "--touch", "--leak-mb-s", "8", "--leak-after-s", "30",
                        "--seconds", "1400")  # fmt: skip
    me.until_watched(training)
    before, swapped_in = calm(me), _swapped_in()

    def thrashed() -> bool:
        return _swapped_in() - swapped_in > MANY_PAGES and bool(training.rescues())

    pulse = follow(me, training, 1000, thrashed)

    write_figures(record_property, me, training, pulse)
    record_property("pages swapped in meanwhile", _swapped_in() - swapped_in)
    status = Path(f"/proc/{first}/status").read_text()
    record_property(
        "of the daemon",
        [x for x in status.splitlines() if x.startswith(("VmLck", "VmSwap", "VmRSS"))],
    )
    assert training.rescues(), me.daemon_log()
    assert _swapped_in() - swapped_in > MANY_PAGES // 10
    assert_alive(me, first, before, pulse)


def _swapped_in() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("pswpin ")))
