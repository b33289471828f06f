"""A training at its step boundaries, without a framework."""

from __future__ import annotations

import os
import statistics
import threading
import time

import numpy as np
import pytest
from daemon_stand_in import StandIn

from watchdog_app.agent.contain import STRICT
from watchdog_app.agent.oom import refused
from watchdog_app.agent.runtime import ends
from watchdog_app.agent.runtime.link import CheckpointRequest, Link
from watchdog_app.agent.runtime.session import SaveCost, Session
from watchdog_app.agent.snapshot.change_marker import ChangeMarker, NoMarker
from watchdog_app.agent.snapshot.publisher import Publisher
from watchdog_app.guard.record import CopiedRescue, GuardRecord
from watchdog_app.rescue.checkpoint.format import Capture, TensorEntry
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.segment.segment import Segment, SegmentReader

MIB = 1024 * 1024


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


class Training:
    """Two tensors that change at every step."""

    def __init__(self):
        self.step = 0
        self.captures = 0
        self.error = None

    def capture(self):
        self.captures += 1
        if self.error is not None:
            raise self.error
        data = bytes([self.step % 256]) * 1000
        entries = [TensorEntry(n, "U8", (1000,), 1000, lambda: memoryview(data)) for n in "ab"]
        return Capture(entries, {"epoch": self.step // 10})


@pytest.fixture
def training():
    return Training()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def session(tmp_path, training, clock):
    link = Link("test", str(tmp_path / "r"), socket_path=str(tmp_path / "none.sock"))
    made = Session(RescueStore(str(tmp_path / "r")), link, training.capture, clock)
    yield made
    made.end()


def request(clock, id_="r1", deadline_s=60.0):
    return CheckpointRequest(id_, "memory", clock(), deadline_s)


class Told(Link):
    """A fake link that records messages instead of sending them."""

    def __init__(self):
        super().__init__("test", "/r")
        self.posted = []

    def start(self):
        pass

    def _post(self, method, **params):
        self.posted.append((method, params))


@pytest.fixture
def told(session):
    session.link = Told()
    return session.link.posted


@pytest.mark.parametrize(
    ("more", "shown"),
    [({}, True), ({"used_bytes": 700}, False), ({"at_limit": "end"}, False),
     ({"notebook": False}, False)],
)  # fmt: skip
def test_a_cell_says_near_the_limit_that_its_notebook_is_stopped_there(
    session, monkeypatch, capsys, more, shown
):
    """It says so once, with the command that continues it: a stopped kernel shows nothing."""
    values = {"limit_bytes": 1000 * MIB, "used_bytes": 900, "notebook": True, **more}
    values["used_bytes"] *= MIB
    guard = GuardRecord(
        pid=7, start_time=70, name="fit.ipynb", kind="v1", group=None, reserve_bytes=0, **values
    )
    monkeypatch.setenv("WATCHDOG_GUARD", "/run/guard/7.70")
    monkeypatch.setattr(refused, "_current_guard", lambda: guard)
    monkeypatch.setattr(ends, "kernel", object)

    for step in range(3):
        session._next_report = 0.0
        session.boundary(step)
    before = capsys.readouterr().err
    guard.rescues.append(CopiedRescue(os.getpid(), "rescue", 2))
    session._announce_stop(at_limit=False, saved=None)

    assert shown == before.count("watchdog limit fit.ipynb 1.5G\n")
    assert shown == before.count("hen this notebook reaches its memory limit of 1000 MiB")
    assert shown == capsys.readouterr().err.count("the work is saved up to step 2. When")


def test_a_request_is_answered_at_the_next_boundary(session, training, clock, told):
    """The agent saves once, with step, position and reason."""
    for training.step in range(3):
        assert session.boundary(training.step) is None
    session.link.pending_request = request(clock)
    training.step = 42

    saved = session.boundary(42, epoch=4, loss=np.float32(0.5))

    found = session.store.newest()
    assert (saved.path, 42) == (found.path, found.step)
    told_of_it = {"step": 42, "reason": "memory", "epoch": 4, "loss": 0.5}
    assert told_of_it.items() <= found.meta.items()
    assert os.path.isabs(found.meta["program_path"])  # the program that runs these tests
    assert bytes([42]) * 1000 == found.read("a")
    assert ["agent.progress", "agent.saved"] == [method for method, _ in told]
    assert "r1" == told[1][1]["request"]
    assert session.boundary(43) is None
    assert saved == session.saved


@pytest.mark.parametrize("loss", [None, "low", float("nan"), [1.0, 2.0], object()])
def test_a_loss_that_is_no_number_costs_nobody_the_rescue(session, clock, loss):
    """The loss is then unknown."""
    session.link.pending_request = request(clock)

    session.boundary(1, loss=loss)

    assert session.store.newest().meta["loss"] is None


def test_a_request_that_came_too_late_is_declined(session, clock, told):
    """A save after the deadline would only delay the training."""
    session.link.pending_request = request(clock, deadline_s=5)
    clock.now_s += 6

    assert session.boundary(1) is None
    assert session.store.newest() is None
    assert "agent.failed" == told[0][0]
    assert "6.0 s after the request, which was good for 5 s" in told[0][1]["error"]
    assert session.link.pending_request is None


def test_a_save_on_ones_own_initiative_has_no_request(session, told):
    """An example is the end of an epoch, or the moment before a risky operation."""
    saved = session.save_now("the end of an epoch", 9)

    assert 9 == saved.step
    assert [("agent.saved", None)] == [(method, each["request"]) for method, each in told]
    why = {"reason": "the end of an epoch", "exact": True, "missing": []}
    assert why.items() <= told[0][1]["rescue"].items()


def test_a_save_that_the_disk_refuses_is_told_and_the_training_goes_on(
    session, training, clock, told, capsys
):
    """The daemon gets each failure with a remedy, the user gets one message."""
    os.makedirs(os.path.dirname(session.store.directory), exist_ok=True)
    with open(session.store.directory, "w"):
        pass  # a file at the folder's path

    for count in range(3):
        session.link.pending_request = request(clock, f"r{count}")
        assert session.boundary(count) is None

    failed = [params for method, params in told if method == "agent.failed"]
    assert ["r0", "r1", "r2"] == [each["request"] for each in failed]
    assert "is a file, not a folder" in failed[0]["error"]
    assert "another folder" in failed[0]["remedy"]
    err = capsys.readouterr().err
    assert 1 == err.count("watchdog: no rescue was saved; the training continues.")

    os.unlink(session.store.directory)
    session.link.pending_request = request(clock)
    assert session.boundary(4) is not None


@pytest.fixture
def guard_segment(session):
    """What a guard sees of a training that it cannot copy from outside."""
    segment = Segment(65536)
    about = {"directory": session.store.directory, "keep": 2}
    session.publisher = Publisher(segment, lambda _: None, about, NoMarker(), dict)
    reader = SegmentReader(os.dup(segment.fd))
    yield reader
    os.close(reader.fd)


def test_a_guard_that_cannot_copy_a_training_asks_for_a_save(session, guard_segment):
    """The answer names the rescue; the next boundaries save nothing more."""
    session.boundary(1)
    number = guard_segment.request_save()

    saved = session.boundary(2)

    answer = guard_segment.save_answer(number)
    assert (2, saved.bytes, os.path.basename(saved.path)) == (
        answer.step,
        answer.bytes,
        answer.text,
    )
    assert "memory limit of watchdog exec" == session.store.newest().meta["reason"]
    assert session.boundary(3) is None
    assert 2000 == guard_segment.state_bytes


def test_a_guard_learns_why_its_save_failed(session, training, guard_segment, monkeypatch):
    """A refused disk, and an error of the agent itself."""
    os.makedirs(os.path.dirname(session.store.directory), exist_ok=True)
    with open(session.store.directory, "w"):
        pass  # a file at the folder's path
    monkeypatch.delenv(STRICT, raising=False)

    number = guard_segment.request_save()
    assert session.boundary(1) is None
    assert "is a file, not a folder" in guard_segment.save_answer(number).text

    training.error = ValueError("the capture failed")
    number = guard_segment.request_save()
    assert session.boundary(2) is None
    answer = guard_segment.save_answer(number)
    assert (False, True) == (answer.saved, "the capture failed" in answer.text)


def test_an_error_of_the_framework_is_contained_and_told(
    session, training, told, capsys, monkeypatch
):
    """The daemon need not wait for its deadline, and the step continues."""
    monkeypatch.delenv(STRICT)
    clock = session._clock
    session.boundary(0)
    training.error = RuntimeError("variable was deleted")
    session.link.pending_request = request(clock)

    assert session.boundary(1) is None
    assert ("agent.failed", "RuntimeError: variable was deleted") == (
        told[-1][0],
        told[-1][1]["error"],
    )
    assert "your training is not affected" in capsys.readouterr().err
    training.error = None
    session.link.pending_request = request(clock)
    assert session.boundary(2) is not None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_during_a_save_is_the_users(session, training, clock, kind):
    """The interrupt reaches the program, and no partial rescue remains."""
    training.error = kind()
    session.link.pending_request = request(clock)

    with pytest.raises(kind):
        session.boundary(1)

    assert session.store.newest() is None


def test_the_step_time_follows_the_steps(session, clock):
    """The first interval does not count; the value follows a slow change."""
    session.boundary(0)
    assert session.step_s is None
    for step in range(1, 50):
        clock.now_s += 0.2
        session.boundary(step)
    assert pytest.approx(0.2) == session.step_s
    for step in range(50, 150):
        clock.now_s += 0.5
        session.boundary(step)
    assert pytest.approx(0.5, rel=0.01) == session.step_s


def test_pauses_and_own_saves_are_no_steps(session, clock):
    """A validation of a minute, an announced gap and a save hardly change the step time."""
    for step in range(50):
        clock.now_s += 0.2
        session.boundary(step)
    clock.now_s += 60
    session.boundary(51)
    assert session.step_s < 0.3

    session.reset_step_timer()
    clock.now_s += 60
    session.boundary(52)
    before = session.step_s

    store_save = session.store.save

    def slow(*args, **kwargs):
        clock.now_s += 30
        return store_save(*args, **kwargs)

    session.store.save = slow
    session.save_now("test", 53)
    clock.now_s += 0.2
    session.boundary(54)
    assert pytest.approx(before, rel=0.2) == session.step_s


def test_size_and_cost_are_known_before_they_are_needed(session, training, clock):
    """
    Both are known from the first boundary on.

    The agent does not read the state again in every step.
    """
    session.prepare()
    assert session.save_s is None
    for step in range(100):
        clock.now_s += 1
        session.boundary(step)

    assert 2000 == session.state_bytes
    assert session.save_s > 0
    assert 1 == training.captures


@pytest.mark.parametrize(("step_s", "each"), [(0.1, False), (0.3, True)])
def test_each_step_is_published_only_if_steps_are_long(session, training, clock, step_s, each):
    """A jump of memory, which no forecast predicts, then finds a snapshot of the last step."""
    about = {"directory": session.store.directory, "keep": 2}
    take = lambda _: training.capture()  # noqa: E731
    session.publisher = Publisher(segment := Segment(65536), take, about, ChangeMarker(), dict)
    session.publisher._next_s = float("inf")
    for step in range(9):
        clock.now_s += step_s
        session.boundary(step)

    assert each is SegmentReader(segment.fd).fresh


def test_what_is_reported_reaches_the_daemon(tmp_path, training):
    """The test uses a real socket for values, request, save and goodbye."""
    daemon = StandIn(str(tmp_path / "run" / "daemon.sock"))
    link = Link("test", str(tmp_path / "r"), socket_path=daemon.path)
    session = Session(RescueStore(str(tmp_path / "r")), link, training.capture)
    session.prepare()
    daemon.wait_for("agent.register")
    daemon.ask("r1")
    saved = None
    end = time.monotonic() + 60
    while saved is None and time.monotonic() < end:
        training.step += 1
        saved = session.boundary(training.step, epoch=1, batch=training.step, loss=0.5)
        time.sleep(0.002)
    told = daemon.wait_for("agent.saved")
    daemon.until(lambda: daemon.last("agent.report").get("step") is not None)
    report = daemon.last("agent.report")
    session.end()
    daemon.wait_for("agent.bye")

    assert (saved.path, saved.step, "r1") == (
        told["rescue"]["path"],
        told["rescue"]["step"],
        told["request"],
    )
    assert {
        "training",
        "state_bytes",
        "step_s",
        "save_s",
        "step",
        "epoch",
        "batch",
        "loss",
        "allocators",
        "memory",
    } == set(report)
    assert (True, 2000, 1, 0.5) == tuple(
        report[key] for key in ("training", "state_bytes", "epoch", "loss")
    )
    daemon.close()


def test_a_training_in_another_thread_is_served(tmp_path, training):
    """The boundary is in the thread of the training."""
    link = Link("test", str(tmp_path / "r"), socket_path=str(tmp_path / "none.sock"))
    session = Session(RescueStore(str(tmp_path / "r")), link, training.capture)
    found = []

    def train():
        session.prepare()
        link.pending_request = CheckpointRequest("r", "memory", time.monotonic())
        found.append(session.boundary(5))
        session.end()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(30)

    assert 5 == found[0].step


def test_a_long_text_of_what_is_lost_is_told_whole(session):
    """The text may be as long as the daemon accepts."""
    session.report_not_restored(["a" * 250, "b" * 350])

    assert ["a" * 250, "b" * 300] == session.link.fields["not_restored"]


def test_a_folder_that_cannot_be_written_is_told_when_the_training_starts(session, capsys):
    """The user must not learn it only at the end of a long run."""
    with open(session.store.directory, "w"):
        pass

    session.prepare()

    assert "watchdog: no rescue can be saved as things are:" in capsys.readouterr().err
    assert session.boundary(1) is None


def test_a_boundary_costs_next_to_nothing(session):
    """The limit is a few times the cost of an empty function, on any machine."""
    session._clock = time.monotonic
    session.boundary(0)

    def empty(step, **position):
        return time.monotonic()

    def cost(function):
        times = []
        for _ in range(7):
            began = time.perf_counter()
            for step in range(5000):
                function(step, epoch=0, batch=step, loss=0.1)
            times.append(time.perf_counter() - began)
        return min(times)

    ratio = statistics.median(cost(session.boundary) / cost(empty) for _ in range(3))

    assert ratio < 20


def test_the_cost_of_a_save_is_rather_guessed_too_high():
    """The estimate is high for an unknown disk, and never below the measured last saves."""
    cost = SaveCost()
    assert cost.predict(100 * 10**6) > 1

    cost.rehearsal = 4 << 20, 3.0
    assert cost.predict(0) == pytest.approx(3.0, rel=0.1)

    for nbytes, seconds in ((100, 0.1), (200, 1.0), (100, 0.2)):
        cost.add_save(nbytes, seconds)
    assert cost.predict(100) == 1.0
    assert cost.predict(400) > 1.0
    for _ in range(3):
        cost.add_save(100, 0.1)
    assert cost.predict(100) == 0.1
    cost.add_save(0, 0.0)
    assert cost.predict(10**9) > 0.5


def test_the_newest_step_is_reported_though_figures_are_passed_on_once_a_second(tmp_path, training):
    """A training that hangs after many fast steps must be reported with its last step."""
    daemon = StandIn(str(tmp_path / "run" / "daemon.sock"))
    link = Link("test", str(tmp_path / "r"), socket_path=daemon.path)
    session = Session(RescueStore(str(tmp_path / "r")), link, training.capture, Clock())
    try:
        session.prepare()
        for step in range(1, 51):  # the clock does not move: only the first step sends values
            session.boundary(step)

        daemon.until(lambda: daemon.received and daemon.received[-1][1].get("step") == 50)

        assert "agent.report" == daemon.received[-1][0]
    finally:
        session.end()
        daemon.close()
