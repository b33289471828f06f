"""Announcements of memory growth, and how long a training waits for the daemon's answer."""

from __future__ import annotations

import threading
import time

import pytest
from daemon_stand_in import StandIn

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.runtime.link import Link
from watchdog_app.agent.runtime.session import Announcements
from watchdog_app.agent.telemetry.memory import Breakdown
from watchdog_app.client import jsonrpc

LARGE = 1 << 30


class Training:
    """A link to a fake daemon, and a thread that waits as `save_before_growth` does."""

    def __init__(self, path: str) -> None:
        self.link = Link("keras", "/rescues", socket_path=path)
        self.announcements = Announcements(
            self.link, Breakdown(time.monotonic), Guard(), time.monotonic
        )
        self.answers: list[bool] = []
        self.thread = threading.Thread(target=self._ask)

    def announce(self, daemon: StandIn) -> int:
        """Announce growth and wait in a thread; return the announcement's number."""
        self.link.start()
        daemon.until(lambda: self.link.connected)
        self.announcements.expect(LARGE, "a buffer", at_most=False)
        number = daemon.wait_for("agent.report")["expected_number"]
        self.thread.start()
        return number

    def waits(self) -> bool:
        """Return whether the thread still waits after the one second of the former timeout."""
        self.thread.join(1.5)
        return self.thread.is_alive()

    def answer(self) -> bool:
        self.thread.join(60)
        return self.answers[0]

    def _ask(self) -> None:
        self.answers.append(self.announcements.wait_for_save_request(LARGE))


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "run" / "daemon.sock")


@pytest.fixture
def training(path):
    made = Training(path)
    yield made
    made.thread.join(60)
    made.link.close()


@pytest.fixture
def considerate(path):
    made = StandIn(path, considers=True)
    yield made
    made.close()


def considered(daemon: StandIn, number: int) -> None:
    daemon.say(jsonrpc.notification("agent.acknowledged", {"number": number}))


def test_a_daemon_that_has_looked_is_not_waited_for_any_longer(training, considerate):
    """
    The daemon has no objection, so the buffer fills.

    An answer to an earlier announcement does not count.
    """
    number = training.announce(considerate)
    considered(considerate, number - 1)
    waited = training.waits()
    considered(considerate, number)

    assert waited
    assert not training.answer()


def test_a_save_that_a_busy_daemon_asks_for_late_is_made(training, considerate):
    """The daemon requests the save before it reports that it checked."""
    number = training.announce(considerate)
    waited = training.waits()
    considerate.ask("r1")
    considered(considerate, number)

    assert waited
    assert training.answer()
    assert "r1" == training.link.pending_request.id


def test_a_daemon_that_stands_still_is_not_waited_for_for_ever(training, considerate):
    """The training waits for the full timeout only once."""
    training.announce(considerate)
    began = time.monotonic()
    assert not training.answer()
    first_s, began = time.monotonic() - began, time.monotonic()
    training.announcements.expect(LARGE, "the next one", at_most=False)

    assert not training.announcements.wait_for_save_request(LARGE)
    assert time.monotonic() - began < first_s


def test_a_daemon_that_ends_is_not_waited_for(training, considerate):
    """Without a daemon the training does not wait."""
    training.announce(considerate)
    considerate.drop_all()

    assert not training.answer()


def test_an_older_daemon_is_waited_for_a_second(training, path):
    """An older daemon sends no answer if it has no objection."""
    daemon = StandIn(path)
    try:
        training.announce(daemon)
        assert not training.waits()
        assert not training.answer()
    finally:
        daemon.close()


def test_little_memory_is_not_worth_a_wait(training, considerate):
    """The training does not wait for growth that takes only a moment."""
    training.link.start()
    considerate.until(lambda: training.link.connected)

    assert not training.announcements.wait_for_save_request(1 << 20)
    training.thread.start()
