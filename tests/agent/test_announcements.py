"""What a training announces, and how long it waits for the daemon's word."""

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
    """A line to a stand-in of the daemon, and a thread that asks as `save_before_growth` does."""

    def __init__(self, path: str) -> None:
        self.link = Link("keras", "/rescues", socket_path=path)
        self.announcements = Announcements(
            self.link, Breakdown(time.monotonic), Guard(), time.monotonic
        )
        self.answers: list[bool] = []
        self.thread = threading.Thread(target=self._ask)

    def announce(self, daemon: StandIn) -> int:
        """Announce, and ask in a thread; the number of the announcement."""
        self.link.start()
        daemon.until(lambda: self.link.connected)
        self.announcements.expect(LARGE, "a buffer", at_most=False)
        number = daemon.wait_for("agent.report")["expected_number"]
        self.thread.start()
        return number

    def waits(self) -> bool:
        """Whether it still waits when a second has passed, in which it used to give up."""
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
    """Nothing against it: the buffer fills. The word on an earlier announcement is not taken."""
    number = training.announce(considerate)
    considered(considerate, number - 1)
    waited = training.waits()
    considered(considerate, number)

    assert waited
    assert not training.answer()


def test_a_save_that_a_busy_daemon_asks_for_late_is_made(training, considerate):
    """It asks before it says that it has looked."""
    number = training.announce(considerate)
    waited = training.waits()
    considerate.ask("r1")
    considered(considerate, number)

    assert waited
    assert training.answer()
    assert "r1" == training.link.pending_request.id


def test_a_daemon_that_stands_still_is_not_waited_for_for_ever(training, considerate):
    """The training is the user's; and it waits so long for it once."""
    training.announce(considerate)
    began = time.monotonic()
    assert not training.answer()
    first_s, began = time.monotonic() - began, time.monotonic()
    training.announcements.expect(LARGE, "the next one", at_most=False)

    assert not training.announcements.wait_for_save_request(LARGE)
    assert time.monotonic() - began < first_s


def test_a_daemon_that_ends_is_not_waited_for(training, considerate):
    """No daemon: no waiting."""
    training.announce(considerate)
    considerate.drop_all()

    assert not training.answer()


def test_an_older_daemon_is_waited_for_a_second(training, path):
    """It says nothing where it has nothing against it."""
    daemon = StandIn(path)
    try:
        training.announce(daemon)
        assert not training.waits()
        assert not training.answer()
    finally:
        daemon.close()


def test_little_memory_is_not_worth_a_wait(training, considerate):
    """What fills within a moment is not waited for."""
    training.link.start()
    considerate.until(lambda: training.link.connected)

    assert not training.announcements.wait_for_save_request(1 << 20)
    training.thread.start()
