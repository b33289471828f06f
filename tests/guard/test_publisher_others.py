"""Other users of a training's segment: forked children, wrappers, watchers that start later."""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys

import pytest
from support.finished import finished

from watchdog_app.agent.snapshot import publisher as publishing
from watchdog_app.agent.snapshot.change_marker import ChangeMarker, changed_values
from watchdog_app.agent.snapshot.publisher import Publisher
from watchdog_app.guard import copier
from watchdog_app.rescue.checkpoint.format import Capture
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.exchange import Registry
from watchdog_app.rescue.segment.segment import Segment, SegmentReader

ABOUT = {"directory": "/rescues", "keep": 2}
PROGRAM = """
import os
from watchdog_app.agent.snapshot.change_marker import ChangeMarker
from watchdog_app.agent.snapshot.publisher import Publisher
from watchdog_app.rescue.segment.segment import Segment

class Told(ChangeMarker):
    def begin(self, step_begins):
        self.step_begins = step_begins

guards = Told()
page = Segment(65536)
publisher = Publisher(page, None, {}, guards, dict)
publisher._publish = lambda step: page.publish(step, 1, lambda view: 0)
publisher.boundary(3)
child = os.fork()
if child == 0:
    guards.step_begins()
    publisher.boundary(4)
    os._exit(0)
os.waitpid(child, 0)
after_child = page.sequence % 2
guards.step_begins()
own = page.sequence % 2
publisher.end()
guards.step_begins()
print(after_child, own)
"""


def test_only_the_training_itself_says_that_its_step_begins():
    """A forked worker's optimizer does not, and the end of the training causes no error."""
    done = finished([sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONWARNINGS": "ignore"})

    assert ("0 1\n", "", 0) == (done.stdout, done.stderr, done.returncode)


LOSSES = [1.0, 0.5, 0.25, 0.125, 1.0, 0.5, 0.25, 0.125, 1.0]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": 1, "b": LOSSES}, {"a": 1, "b": LOSSES[:]}, []),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, [(("b",), 3)]),
        ({"a": 1}, {"a": 1.0}, [(("a",), 1.0)]),
        ({"a": 0.0}, {"a": -0.0}, [(("a",), -0.0)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, [((), {"b": 2, "a": 1})]),
        ([1, True, 3], [1, 1, 3], [((1,), 1)]),
        (LOSSES, [*LOSSES, 2.0], [(([9],), [2.0])]),
        (LOSSES, LOSSES[1:], [((), LOSSES[1:])]),
        (LOSSES, [1, *LOSSES[1:], 2.0], [((), [1, *LOSSES[1:], 2.0])]),
    ],
)
def test_a_snapshot_says_only_which_values_have_changed(before, now, expected):
    """Also of a list that has grown, and of values that `==` takes for the same."""
    seen = list(changed_values(before, now, ()))
    assert repr(expected) == repr(seen)

    meta = json.loads(json.dumps({"held": before}))
    for path, value in seen:
        tables.set_value(meta, ["held", *path], value)
    assert repr(now) == repr(meta["held"])


@pytest.fixture
def publisher():
    made = Publisher(Segment(65536), None, ABOUT, ChangeMarker(), dict)
    yield made
    made.end()


def listening(path):
    found = Registry(4)
    found.listen(path)
    return found


@pytest.mark.parametrize("trusted", [True, False])
def test_a_step_that_does_not_show_when_it_begins_is_never_copied(publisher, tmp_path, trusted):
    """Its guard asks it to save itself, instead of waiting for a boundary to copy."""
    path = str(tmp_path / "segments.sock")
    watcher = listening(path)
    publisher.offer(path)
    watcher.receive()
    publisher._marker.trusted = trusted
    publisher._capture = lambda step: Capture([], {"step": step})

    publisher.boundary(1)

    seen = copier.check(watcher.offers[os.getpid()])
    assert ("ready" if trusted else "none") == seen.state, seen.why
    watcher.close()


@pytest.mark.parametrize("clock", ["monotonic", "process_time"])
def test_a_training_that_is_not_asked_publishes_only_when_its_share_of_the_time_allows(
    publisher, monkeypatch, clock
):
    """Otherwise what was published becomes invalid; if asked, it publishes."""
    publisher._capture = lambda step: Capture([], {"step": step})
    segment, at = publisher._segment, {"monotonic": 100.0, "process_time": 100.0}
    monkeypatch.setattr(publishing.time, "monotonic", lambda: at["monotonic"])
    reads = []
    monkeypatch.setattr(
        publishing.time, "process_time", lambda: reads.append(1) or at["process_time"]
    )
    reader = SegmentReader(segment.fd)
    publisher._usual.next_s = publisher._usual.next_cpu_s = 100.0
    assert publisher.needs_boundary(100.0)
    publisher.boundary(1)
    publisher._usual.next_s = 101.0 if clock == "monotonic" else 100.0
    publisher._usual.next_cpu_s = 101.0 if clock == "process_time" else 100.0

    assert reader.fresh
    assert (False, False) == (publisher.needs_boundary(100.0), reader.fresh)
    reads.clear()
    assert not any(publisher.needs_boundary(100.0) for _ in range(9))
    assert not reads, "this clock is slow"
    at.update(monotonic=101.0, process_time=101.0)
    assert publisher.needs_boundary(101.0)
    reader.ask_every_batch(True)
    publisher.boundary(3)
    assert publisher.needs_boundary(101.0)
    reader.ask_every_batch(False)
    assert publisher.needs_boundary(101.0), "what is asked for uses up the share"
    publisher.boundary(4)
    assert not publisher.needs_boundary(101.0)
    publisher.is_slow = True
    assert publisher.needs_boundary(101.0)
    publisher.is_slow = False
    reader.ask_every_batch(True)
    assert publisher.needs_boundary(101.0)


@pytest.mark.parametrize(
    ("asked", "seconds", "published"),
    [
        ("near", (0.1, 0.0), range(45, 57)),  # half of the steps: 10 ms are 5 % of two
        ("near", (0.1, 0.01), range(20, 33)),  # the agent's other work counts as well
        ("near", (0.21, 0.0), range(100, 101)),
        ("waits", (0.1, 0.0), range(100, 101)),  # for three seconds of publishing
        ("slow", (0.1, 0.0), range(45, 57)),
        ("", (0.1, 0.0), range(2, 5)),
    ],
)
def test_near_a_limit_publishing_takes_a_small_share_of_the_time(
    publisher, monkeypatch, asked, seconds, published
):
    """Steps that are longer than twenty publications are all published."""
    at, taken, (step_s, other_s) = [100.0], [], seconds

    def capture(step):
        taken.append(step)
        at[0] += 0.01
        return Capture([], {"step": step})

    publisher._capture = capture
    publisher._marker.refresh = lambda *_: None
    for clock in ("monotonic", "process_time", "thread_time"):
        monkeypatch.setattr(publishing.time, clock, lambda: at[0])
    reader = SegmentReader(publisher._segment.fd)
    reader.ask_every_batch(asked in ("near", "waits"), waits=asked == "waits")
    publisher.is_slow = asked == "slow"
    for step in range(100):
        at[0] += step_s - 0.01 * (taken[-1:] == [step - 1])
        if publisher.needs_boundary(at[0]):
            began = at[0]
            publisher.boundary(step)
            at[0] += other_s
            publisher.count_boundary(at[0] - began)

    assert len(taken) in published


def test_a_training_that_cannot_be_copied_still_prepares_for_a_step_that_fails(publisher):
    """Near a limit the agent keeps what the iteration has left."""
    publisher._can_publish = False
    assert not publisher.needs_boundary(1e9)
    SegmentReader(publisher._segment.fd).ask_every_batch(True, waits=False)
    assert publisher.needs_boundary(1e9)


def test_each_watcher_gets_the_segment_once_also_one_that_starts_later(publisher, tmp_path):
    """A daemon that was restarted, or another supervisor of the guard."""
    path = str(tmp_path / "segments.sock")
    publisher.offer(path)  # nobody listens
    first = listening(path)
    publisher.offer(path)
    publisher.offer(path)
    offers = first.receive()
    first.close()
    publisher.offer(path)  # the file is left over
    later = listening(path)
    publisher.offer(path)

    assert [os.getpid()] == [each.pid for each in offers]
    assert [os.getpid()] == [each.pid for each in later.receive()]
    later.close()


def test_the_end_of_a_pass_may_be_published_once_ahead_of_the_share(publisher, monkeypatch):
    """The average stays: the next publications wait for longer."""
    taken, at = [], [100.0]
    publisher._capture = lambda step: taken.append(step) or Capture([], {"step": step})
    publisher._marker.refresh = lambda *_: None
    monkeypatch.setattr(publishing.time, "monotonic", lambda: at[0])
    monkeypatch.setattr(publishing.time, "process_time", lambda: at[0])
    cpu = itertools.count()
    monkeypatch.setattr(publishing.time, "thread_time", lambda: next(cpu) / 1000)
    publisher._usual.next_s = publisher._usual.next_cpu_s = 100.0

    for step in range(1, 9):
        publisher.boundary(step, borrows=step % 2 == 0)

    assert [1, 2] == taken
    at[0] += publisher._usual.wait_s
    publisher.boundary(9)
    publisher.boundary(10, borrows=True)
    assert [1, 2, 10] == taken


def test_a_watcher_without_room_gets_the_segment_later(publisher, tmp_path, monkeypatch):
    """It had too many trainings or no free descriptors; some seconds later it has."""
    path = str(tmp_path / "segments.sock")
    watcher = listening(path)
    watcher._most = 0
    publisher.offer(path)
    refused = watcher.receive()
    watcher._most = 1
    publisher.offer(path)
    too_early = watcher.receive()
    publisher._next_offer_s = 0.0

    publisher.offer(path)

    assert ([], []) == (refused, too_early)
    assert [os.getpid()] == [each.pid for each in watcher.receive()]
    watcher.close()


def test_twenty_trainings_of_a_process_leave_no_descriptors(tmp_path):
    """Neither in the training nor in its watcher."""
    path = str(tmp_path / "segments.sock")
    watcher = listening(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        each = publishing.open_publisher(path, None, {"directory": "/x"}, ChangeMarker())
        each.offer(path)
        watcher.receive()
        assert list(watcher.offers) == [os.getpid()]
        each.end()

    watcher.remove_ended()

    assert before == len(os.listdir("/proc/self/fd"))
    watcher.close()


def test_a_forked_child_offers_only_a_training_of_its_own(publisher, tmp_path):
    """A worker that a preloaded parent forked: its segment is another one."""
    path = str(tmp_path / "segments.sock")
    watcher = listening(path)
    parent = publishing.open_publisher(path, None, {"directory": "/parent"}, ChangeMarker())
    began, end = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        publisher.offer(path)
        parent.offer(path)
        own = publishing.open_publisher(path, None, {"directory": "/child"}, ChangeMarker())
        os.write(began[1], b"yes" if own is not None else b"no")
        os.read(end[0], 1)
        os._exit(0)
    assert b"yes" == os.read(began[0], 3)

    found = [(each.pid, each.directory) for each in watcher.receive()]

    os.write(end[1], b"x")
    os.waitpid(child, 0)
    for fd in (*began, *end):
        os.close(fd)
    watcher.close()
    parent.end()
    assert [(os.getpid(), "/parent"), (child, "/child")] == found


def test_a_process_without_free_descriptors_offers_its_segment_later(publisher, tmp_path):
    """It trains on; nothing is printed or raised."""
    path = str(tmp_path / "segments.sock")
    watcher = listening(path)
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        publisher.offer(path)
        none = publishing.open_publisher(path, None, {}, ChangeMarker())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    before = watcher.receive()
    publisher.offer(path)

    (offer,) = watcher.receive()
    watcher.close()
    assert (None, []) == (none, before)
    assert offer.memory_fd is not None


def test_a_process_that_may_not_read_itself_says_so(publisher, tmp_path, monkeypatch):
    """It has changed its user or forbidden dumps: it is saved on request only."""
    watcher = listening(str(tmp_path / "segments.sock"))
    real_open = os.open

    def refused(path, *words, **more):
        if path == "/proc/self/mem":
            raise PermissionError(path)
        return real_open(path, *words, **more)

    monkeypatch.setattr(os, "open", refused)
    publisher.offer(str(tmp_path / "segments.sock"))
    monkeypatch.undo()
    publisher.boundary(3)

    (offer,) = watcher.receive()
    watcher.close()
    assert offer.memory_fd is None
    assert ("none", False) == (copier.check(offer).state, publisher.due)
    assert "forbidden dumps" in copier.check(offer).why
