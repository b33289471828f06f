"""What an agent reports about its training's memory."""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from support.waiting import until

from watchdog_app.agent.telemetry import diagnose, memory
from watchdog_app.agent.telemetry.memory import Breakdown

MIB = 2**20


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch):
    """Hide frameworks that other tests imported: see `traceable`."""
    for name in ("tensorflow.python.ops.script_ops", "torch", "jax"):
        if name in sys.modules:
            monkeypatch.delitem(sys.modules, name)


class Process:
    """A fake process whose memory and clock the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rss = 500 * MIB
        self.peak = 900 * MIB  # of the imports, long ago

    def memory(self):
        return self.rss, max(self.peak, self.rss)


class Sized:
    """The parts of a tensor that the agent reads."""

    itemsize = 4

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, self


class Module:
    """An object shaped like a PyTorch module."""

    def __init__(self) -> None:
        self.weight = Sized(1024, 1024)
        self.weight.requires_grad = True

    def parameters(self):
        return [self.weight]

    def named_parameters(self):
        return [("weight", self.weight)]

    def buffers(self):
        return []


@pytest.fixture
def process():
    return Process()


@pytest.fixture
def parts(process):
    return Breakdown(lambda: process.now, process.memory)


def test_activations_are_the_peak_of_the_first_steps_less_what_is_known(process, parts):
    """Earlier memory, gradients, announced buffers and later leaks do not count as activations."""
    module = Module()
    parts.set_objects([module, "a word", 7])
    parts.add_buffer(100 * MIB, "the shuffle buffer of 9 examples")
    parts.start()
    process.rss, process.peak = 1000 * MIB, 1504 * MIB
    process.now = 1.0
    first = parts.read(1)
    process.rss = process.peak = 9000 * MIB
    process.now = 200.0
    later = parts.read(500)

    expected = (1504 - 500 - 100 - 4) * MIB
    assert expected == first["activations_bytes"] == later["activations_bytes"]
    assert (4 * MIB, 4 * MIB) == (first["weights_bytes"], first["gradients_bytes"])
    assert [{"what": "the shuffle buffer of 9 examples", "bytes": 100 * MIB}] == first["buffers"]
    assert 9000 * MIB == later["resident_bytes"]


def test_a_peak_of_before_the_training_is_none_of_its_own(process, parts):
    """Imports and data loading may have used more."""
    parts.start()
    process.rss = 510 * MIB

    assert parts.read(1)["activations_bytes"] is None


def test_a_gpu_knows_its_own_peak(parts):
    """The value is the allocator's peak minus the memory held between two steps."""
    parts.start()
    cards = [
        {"device": "cuda:0", "used_bytes": 300 * MIB, "limit_bytes": 1, "peak_bytes": 900 * MIB}
    ]

    assert 600 * MIB == parts.read(1, cards)["activations_bytes"]


def test_where_nothing_can_be_measured_nothing_is_said():
    """The system is not Linux, or /proc is not readable."""
    found = Breakdown(lambda: 0.0, lambda: None)
    found.start()

    figures = found.read(1)

    assert figures["resident_bytes"] is figures["activations_bytes"] is None
    assert figures["weights_bytes"] is figures["batch_size"] is None


def test_objects_that_become_more_are_told_by_the_step(process, parts):
    """The agent counts objects only every ten seconds, because counting takes time."""
    parts.start()
    parts.read(0)
    kept = [object() for _ in range(50_000)]
    process.now = 11.0

    found = parts.read(100)

    assert 400 < found["python_blocks_per_step"] < 700, len(kept)
    process.now = 12.5
    assert found["python_blocks"] == parts.read(110)["python_blocks"]


def test_what_the_program_lets_go_of_is_freed(parts):
    """The agent must not keep a model in memory."""
    import weakref

    module = Module()
    parts.set_objects([module])
    gone = weakref.ref(module)
    del module
    gc.collect()

    assert gone() is None
    assert parts.read(1)["weights_bytes"] is None


@pytest.mark.parametrize(
    ("size", "expected"), [(32, 32), (None, None), (0, None), (True, None), ("32", None)]
)
def test_the_batch_is_what_the_loader_says(parts, size, expected):
    """The value is a number of examples or unknown."""
    loader = type("Loader", (), {"batch_size": size})()

    parts.set_dataset(loader)

    assert expected == parts.read(1)["batch_size"]


def test_this_process_is_measured():
    """The values come from the kernel."""
    found = memory.resident()
    if sys.platform != "linux":
        assert found is None
        return
    assert found is not None
    assert MIB < found[0] <= found[1]


@contextmanager
def training(step: Callable[[], object]) -> Iterator[None]:
    """A thread that makes steps, until the block ends."""
    over = threading.Event()

    def train() -> None:
        while not over.wait(0.002):
            step()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Tensor:
    """A fake tensor that the agent recognises by name and module, as it does real ones."""

    __module__ = "torch"

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.me = self  # makes the garbage collector track it


def test_lines_and_tensors_that_become_more_are_found(monkeypatch):
    """The search runs in another thread during the training, and tracing is off afterwards."""
    kept, steps = [], [0]

    def step() -> None:
        steps[0] += 1
        kept.append(bytearray(20_000))
        kept.append(Tensor(3, steps[0] % 2 + 1))

    with training(step):
        found = diagnose.trace(1.0, lambda: steps[0])

    assert not tracemalloc.is_tracing()
    first = found["lines"][0]
    line = step.__code__.co_firstlineno + 2
    assert (__file__, line, True) == (first["file"], first["line"], first["own"])
    assert 18_000 < first["bytes_per_step"] < 30_000
    assert {(3, 1), (3, 2)} == {tuple(each["shape"]) for each in found["tensors"]}
    assert {"Tensor"} == {each["type"] for each in found["tensors"]}
    assert (None, False) == (found["refused"], found["cut_short"])
    assert found["steps"] > 10


def test_what_a_library_makes_is_told_by_the_line_that_asked_for_it():
    """A line in NumPy's own file would tell the user nothing."""
    text = json.dumps(list(range(1000, 1100)))
    kept = []

    def step() -> None:
        kept.append(json.loads(text))

    with training(step):
        found = diagnose.trace(1.0, lambda: None)

    line = step.__code__.co_firstlineno + 1
    assert (__file__, line, True) == tuple(
        found["lines"][0][key] for key in ("file", "line", "own")
    )
    assert [] == [each for each in found["lines"] if "decoder" in each["file"]]


def test_a_program_that_traces_itself_is_left_as_it_is():
    """The program's traces stay; the agent still counts tensors."""
    tracemalloc.start(7)
    try:
        found = diagnose.trace(1.0, lambda: None)
        assert tracemalloc.is_tracing()
        assert 7 == tracemalloc.get_traceback_limit()
    finally:
        tracemalloc.stop()

    assert "the program uses tracemalloc itself" == found["refused"]
    assert [] == found["lines"]
    assert found["steps"] is None


def test_many_traces_end_the_look_before_its_time():
    """The search runs when memory is short, so traces must not use too much of it."""
    kept = []

    def step() -> None:
        if len(kept) < 400_000:
            kept.extend([number] for number in range(20_000))

    with training(step):
        found = diagnose.trace(60.0, lambda: None)

    assert found["seconds"] < 30
    assert found["cut_short"]
    assert not tracemalloc.is_tracing()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_that_is_forked_meanwhile_is_not_traced():
    """The worker would be slower for its whole life."""
    thread = threading.Thread(target=diagnose.trace, args=(1.5, lambda: None))
    thread.start()
    end = time.monotonic() + 60
    while not tracemalloc.is_tracing():
        assert time.monotonic() < end
        time.sleep(0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork while threads run
        child = os.fork()
    if child == 0:
        os._exit(3 if tracemalloc.is_tracing() else 0)
    thread.join()

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Hostile:
    """An object that raises on every access."""

    __slots__ = ()

    def __getattr__(self, name: str):
        raise RuntimeError(name)


def test_objects_that_fail_when_they_are_looked_at_cost_nothing_but_their_figures(parts):
    """The training continues unaffected."""

    class Broken(Module):
        def parameters(self):
            raise RuntimeError("not now")

    broken = Broken()

    parts.set_objects([Hostile(), broken])
    parts.set_dataset(Hostile())

    found = parts.read(1)
    assert found["weights_bytes"] is found["batch_size"] is None


def test_a_look_at_the_live_objects_ends_when_its_time_is_over():
    """The result says that it is incomplete."""
    kept = [[number] for number in range(200_000)]

    _, whole = diagnose.tensors(budget_s=0.0)
    _, all_seen = diagnose.tensors(budget_s=math.inf)

    assert not whole, len(kept)
    assert all_seen


def test_a_training_that_holds_the_interpreter_does_not_use_that_time_up(monkeypatch):
    """The limit counts processor time of the search itself."""
    waited = itertools.count(0, 100)
    with monkeypatch.context() as busy:
        busy.setattr(diagnose.time, "monotonic", lambda: next(waited))

        _, whole = diagnose.tensors(budget_s=60.0)

    assert whole


def test_no_line_of_watchdog_itself_is_named():
    """Allocations of the agent and the guard must not look like a leak of the program."""
    from watchdog_app.client.jsonrpc import encode

    kept, message = [], {"text": "x" * 10_000}

    with training(lambda: kept.append(encode(message))):
        found = diagnose.trace(1.0, lambda: None)

    assert not [each for each in found["lines"] if "protocol" in each["file"]]


def test_what_grows_is_told_before_the_time_is_over(monkeypatch):
    """The process may be killed before the end, so tensors and lines are reported early."""
    kept, told, waits = [], [], []

    def step() -> None:
        kept.append((bytearray(20_000), Tensor(3, 7)))

    def wait(seconds: float) -> bool:
        """Wait for twenty steps of the training: a busy machine makes few in a second."""
        waits.append(seconds)
        enough = len(kept) + 20
        until(lambda: len(kept) >= enough)
        return False

    monkeypatch.setattr(diagnose, "_wait", wait)
    # Processes that other tests forked share this process's pages.
    monkeypatch.setattr(diagnose, "shared_bytes", lambda: 0)
    monkeypatch.setattr(diagnose, "tensors", partial(diagnose.tensors, 20.0))
    with training(step):
        diagnose.trace(2.0, lambda: None, told.append)

    (first,) = told
    assert sum(waits[:2]) < 0.5 * sum(waits)
    assert [(3, 7)] == [tuple(each["shape"]) for each in first["tensors"]]
    line = step.__code__.co_firstlineno + 1
    assert (__file__, line) == (first["lines"][0]["file"], first["lines"][0]["line"])
