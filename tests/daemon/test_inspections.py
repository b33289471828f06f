"""Thread dumps and memory reports from agents are checked, bounded and merged."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from support import records

from watchdog_app.base import codec
from watchdog_app.base.errors import RequestError
from watchdog_app.base.threads import Worker
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import encode
from watchdog_app.core.model.agent import (
    AgentState,
    Frame,
    MemoryGrowth,
    ProcessThreads,
    ThreadState,
)
from watchdog_app.core.model.decisions import Forecast
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.status import Buffer, MemoryParts
from watchdog_app.daemon.inspections import Inspections, trace_s
from watchdog_app.daemon.methods import Methods

KEY = ProcessKey(10, 500)
FRAME = {"file": "/x/train.py", "line": 42, "function": "step"}


class World:
    """One task with an agent, and a fake kernel that returns its threads."""

    def __init__(self, with_agent: bool = True, threads: int = 2) -> None:
        self.sent = []
        self.threads = threads
        self.view = AgentState(
            KEY,
            "test",
            "/r",
            training=True,
            reported_mono_s=1.0,
            place=Frame("/x/train.py", 7, "f"),
        )
        self.agent = SimpleNamespace(key=KEY, view=self.view)
        self.agents = SimpleNamespace(
            connected_in=lambda task: [self.agent] if with_agent else [],
            view_of=lambda task: self.view if with_agent else None,
            get=lambda key: self.agent,
            send=lambda agent, method, params: self.sent.append((method, params)),
        )
        self.task = records.task(records.process(10, start_time=500), name="train.py")
        self.now = 100.0
        self.held = None  # reads that wait until the test releases them
        self.grown = []
        self.inspections = self.made(
            SimpleNamespace(submit=self.dump_threads, collect=lambda: None, waiting=0)
        )
        self.seen = []

    def made(self, worker) -> Inspections:
        return Inspections(
            agents=self.agents,
            observer=SimpleNamespace(
                tasks=lambda: [self.task], latest=None, call_engine=lambda _: None
            ),
            pauses=SimpleNamespace(all=list),
            worker=worker,
            on_growth=lambda *each: self.grown.append(each),
            log=None,
        )

    def dumped(self):
        threads = tuple(
            ThreadState(10 + number, "python", "S", "futex_do_wait")
            for number in range(self.threads)
        )
        return (ProcessThreads(10, 1, "python", "S", threads, self.threads),)

    def dump_threads(self, _, done):
        dumped = self.dumped()
        if self.held is None:
            done((dumped, self.now), None)
        else:
            self.held.append(lambda: done((dumped, self.now), None))

    def expire(self, now: float) -> None:
        self.now = now
        self.inspections.expire(now)

    def ask(self, now: float = 100.0) -> str | None:
        self.now = now
        self.inspections.dump(self.task, now, self.seen.append)
        return self.sent[-1][1]["request"] if self.sent else None

    def answer(self, request: str, *threads: dict, now: float = 100.1, agent=None) -> None:
        params = requests.Stacked.read({"request": request, "threads": list(threads)})
        self.now = now
        self.inspections.receive_stacks(agent or self.agent, params)


MAIN = {"name": "MainThread", "native_id": 10, "trains": True, "frames": [FRAME]}


def test_what_python_and_the_kernel_say_of_a_thread_is_one():
    """By the kernel's thread id; a thread that only Python knows comes last."""
    world = World()
    request = world.ask()

    world.answer(request, MAIN, {"name": "raw", "native_id": None, "frames": []})

    (picture,) = world.seen
    first, second, third = picture.processes[0].threads
    assert ("MainThread", "S", "futex_do_wait", True) == (
        first.name, first.state, first.wchan, first.trains
    )  # fmt: skip
    assert (Frame("/x/train.py", 42, "step"),) == first.frames
    assert ("python", "raw", None) == (second.name, third.name, third.state)
    assert picture.answered is True
    assert picture.root is not None
    assert picture.root.main is first


def test_an_agent_that_does_not_answer_is_waited_for_three_seconds():
    """Its silence means that Python does not run; its last report gives its place."""
    world = World()
    world.ask(100.0)
    world.expire(102.9)
    assert [] == world.seen
    assert 103.0 == world.inspections.next_deadline_mono_s()

    world.expire(103.0)

    (picture,) = world.seen
    assert picture.answered is False
    assert (Frame("/x/train.py", 7, "f"), 102.0) == (picture.last_seen, picture.last_seen_s)
    assert world.inspections.next_deadline_mono_s() is None


def test_a_task_without_an_agent_is_told_at_once_by_the_kernel_alone():
    """No agent is asked."""
    world = World(with_agent=False)

    world.ask()

    assert world.seen[0].answered is None
    assert [] == world.sent


def test_an_answer_of_somebody_else_or_to_nothing_is_dropped():
    """An agent may answer only for its own process."""
    world = World()
    request = world.ask()

    world.answer("agent.stacks-999", MAIN)
    world.answer(request, MAIN, agent=SimpleNamespace(key=ProcessKey(11, 1)))
    assert [] == world.seen
    world.answer(request, MAIN)
    world.answer(request, MAIN)

    assert 1 == len(world.seen)


def test_a_look_that_has_to_wait_holds_up_nobody():
    """The dump arrives later; meanwhile nothing is due and nothing is reported twice."""
    world = World()
    world.held = []
    request = world.ask()

    world.answer(request, MAIN)
    world.answer(request, MAIN)
    world.expire(110.0)

    assert [] == world.seen
    assert world.inspections.next_deadline_mono_s() is None
    (finish,) = world.held
    finish()
    assert 1 == len(world.seen)
    assert world.seen[0].answered is True


def test_threads_are_read_beside_the_loop(monkeypatch):
    """The kernel may block that reader for as long as an exec takes."""
    from watchdog_app.machine.sensors import thread_dump

    begun, go, woken = (threading.Event() for _ in range(3))
    answers = []

    def slow(keys, **_):
        begun.set()
        go.wait(60)
        return World().dumped()

    monkeypatch.setattr(thread_dump, "dump", slow)
    world = World(with_agent=False)
    inspections = world.made(Worker(woken.set))
    observer = SimpleNamespace(tasks=lambda: [world.task])
    parts = SimpleNamespace(
        agents=world.agents, checkpoints=None, inspections=inspections, observer=observer
    )
    reply = SimpleNamespace(result=answers.append)

    Methods(parts, None).table["task.stacks"](requests.DumpStacks.read({"task": "10"}), reply)

    assert begun.wait(60)
    inspections.expire(100.0)
    assert [] == answers
    go.set()
    assert woken.wait(60)
    inspections.expire(100.1)
    assert [10] == [process["pid"] for process in answers[0]["processes"]]


def test_no_more_questions_are_asked_than_are_kept():
    """This includes a client that reconnects for each request; requests that end make room."""
    world, ended = World(), []
    for _ in range(32):
        world.inspections.trace(world.task, 1.0, 100.0, ended.append)
        world.ask()
    with pytest.raises(RequestError, match="Ask again"):
        world.ask()

    world.expire(1000.0)

    assert [None] * 32 == ended
    assert 32 == len(world.seen)
    world.ask()


@pytest.mark.parametrize(
    "thread",
    [
        {**MAIN, "native_id": -1},
        {**MAIN, "native_id": "10"},
        {**MAIN, "name": "x" * 101},
        {**MAIN, "name": 7},
        {**MAIN, "frames": "all"},
        {**MAIN, "frames": [FRAME] * 41},
        {**MAIN, "frames": [{**FRAME, "file": "x" * 301}]},
        {**MAIN, "frames": [{**FRAME, "line": -1}]},
        {**MAIN, "frames": [{**FRAME, "function": None}]},
    ],
    ids=lambda thread: str(thread)[:40],
)
def test_stacks_in_another_form_are_refused(thread):
    """The request keeps waiting."""
    world = World()
    request = world.ask()

    with pytest.raises(RequestError):
        world.answer(request, thread)

    assert [] == world.seen


def test_the_largest_picture_fits_into_a_message():
    """64 threads of 40 frames with the longest names, and as many that only the kernel knows."""
    world = World(threads=128)
    request = world.ask()
    frame = {"file": "ä" * 300, "line": 2**31 - 1, "function": "ö" * 200}
    threads = [
        {"name": "x" * 100, "native_id": 10 + number, "frames": [frame] * 40}
        for number in range(64)
    ]

    world.answer(request, *threads)

    line = encode({"jsonrpc": "2.0", "id": 1, "result": codec.encode(world.seen[0])})
    assert len(line) < 2**20


MEMORY = {"batch_size": 256, "weights_bytes": 10, "buffers": [{"what": "shuffle", "bytes": 7}],
          "python_blocks_per_step": -1.5, "news": "of a later version"}  # fmt: skip


def test_the_memory_of_a_training_is_read():
    """Absent values are unknown; unknown keys are ignored."""
    found = MemoryParts.read(requests.MemoryParts.read(MEMORY).values())

    assert (256, 10, None, -1.5) == (
        found.batch_size, found.weights_bytes, found.optimizer_bytes, found.python_blocks_per_step
    )  # fmt: skip
    assert (Buffer(what="shuffle", bytes=7),) == found.buffers


def test_paths_of_agents_are_those_of_files_and_devices_are_ascii():
    """A non-ASCII character takes up to twelve bytes of every answer."""
    long = "/" + "d" * 4095
    rescue, device = {"step": 1, "bytes": 1}, {"used_bytes": 1, "limit_bytes": 1}
    read = requests.Allocator.read({**device, "device": "GPU:\U0001f6000"})

    assert long == requests.Rescue.read({**rescue, "path": long}).path
    assert "GPU:?0" == read.device
    with pytest.raises(RequestError, match="longer than 4096 bytes"):
        requests.Rescue.read({**rescue, "path": "\U0001f600" * 1025})


GROWTH = {"seconds": 4.0, "steps": 60, "complete": True,
          "lines": [{"file": "a.py", "line": 1, "own": False, "bytes": 5, "bytes_per_step": None}],
          "tensors": [{"type": "Tensor", "shape": [3, 4], "more": 9}]}  # fmt: skip


def test_what_grows_is_read():
    """The report has lines and tensors."""
    answer = requests.Leaked.read({"request": "1", **GROWTH})
    found = codec.decode(MemoryGrowth, answer.values())

    assert ("a.py", 1, False) == (found.lines[0].file, found.lines[0].line, found.lines[0].own)
    assert ((3, 4), 9) == (found.tensors[0].shape, found.tensors[0].more)


@pytest.mark.parametrize(
    ("message", "known", "change"),
    [
        *(
            (requests.MemoryParts, MEMORY, change)
            for change in (
                {"batch_size": 0},
                {"weights_bytes": -1},
                {"weights_bytes": 1.5},
                {"activations_bytes": 2**60},
                {"buffers": [{"what": "x"}]},
                {"buffers": [{"what": "x" * 101, "bytes": 1}]},
                {"buffers": [{"what": "x", "bytes": 1}] * 17},
                {"python_blocks_per_step": float("nan")},
            )
        ),
        *(
            (requests.Leaked, {"request": "1", **GROWTH}, change)
            for change in (
                {"steps": 0},
                {"lines": [{"file": "a.py", "line": 1, "bytes": -5}]},
                {"tensors": [{"type": "T", "shape": [-1], "more": 1}]},
                {"tensors": [{"type": "T", "shape": [1] * 17, "more": 1}]},
                {"tensors": [{"type": "T", "shape": "big", "more": 1}]},
                {"tensors": [{"type": "T", "shape": [True], "more": 1}]},
                {"lines": [GROWTH["lines"][0]] * 21},
            )
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_figures_in_another_form_are_refused(message, known, change):
    """The error names the field."""
    with pytest.raises(RequestError):
        message.read({**known, **change})


def test_what_grows_is_known_from_the_first_answer_on():
    """The task may be killed before the last answer; only the last answer ends the request."""
    world, ended = World(), []
    world.inspections.trace(world.task, 5.0, 100.0, ended.append)
    said = {"request": world.sent[0][1]["request"], "lines": []}
    more = {"tensors": [{"type": "Tensor", "shape": [3], "more": 40}]}

    def tell(**params) -> None:
        world.inspections.receive_growth(world.agent, requests.Leaked.read({**said, **params}))

    tell(**more, seconds=1.0, interim=True)

    assert [(KEY, 1.0)] == [(key, growth.seconds) for key, growth in world.grown]
    assert [] == ended
    tell(tensors=[], seconds=4.0)
    assert [4.0] == [growth.seconds for growth in ended]
    assert 1 == len(world.grown)


@pytest.mark.parametrize(("eta_s", "expected"), [(None, 5.0), (60, 5.0), (4, 2.0), (0.5, 1.0)])
def test_what_grows_is_looked_for_in_the_time_that_is_left(eta_s, expected):
    """The answer must come before the predicted end."""
    forecast = None if eta_s is None else Forecast(eta_s, eta_s, eta_s)

    assert expected == trace_s(SimpleNamespace(forecast=forecast))
