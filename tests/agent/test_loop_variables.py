"""The variables of a loop in a rescue: which values the agent reads, and how they come back."""

from __future__ import annotations

import itertools
import linecache
import os
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import zygote

from watchdog_app.agent.found.loop_variables import LoopVariables
from watchdog_app.agent.identity import source_loops
from watchdog_app.agent.identity.audit import Audit
from watchdog_app.agent.identity.source_loops import draws_after, enclosing_loops, program_places
from watchdog_app.agent.state import values

pytestmark = pytest.mark.timeout(200)

# `step()` is the optimizer's step, and `ends()` the event that ends the iteration before.
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "changed after the step": ("n = 0\nwhile n < 4:\n ends()\n step()\n n += 1", {"n": 3}),
    "changed before the step": ("n = 0\nwhile n < 4:\n n += 1\n ends()\n step()", {"n": 3}),
    "changed before and after": (
        "n = 0\nwhile n < 9:\n n += 1\n ends()\n step()\n n += 1",
        {},
    ),
    "changed after the end of the iteration is seen": (
        "n = 0\nwhile n < 4:\n step()\n ends()\n n += 1",
        {},
    ),
    "a batch drawn ahead in a loop over parts of a step": (
        "x = 0\nfor i in range(4):\n for part in (0, 1):\n  part or ends()\n  x += 1\n step()",
        {"x": 6},
    ),
    "the counter of iterations that do not all step": (
        "for i in range(8):\n ends()\n if i % 2:\n  step()",
        {"i": 5},
    ),
    "the counters of turns that end early": (
        "for e in range(1, 4):\n for t in range(7):\n  ends()\n  if t % 2:\n   step()",
        {"e": 1, "t": 5},
    ),
    "the counters where an inner loop has begun again": (
        "for e in range(1, 4):\n for t in range(9):\n  ends()\n  step()\n  if t == 2:\n   break",
        {"e": 2, "t": -1},
    ),
    "a replay buffer that grows before the end": (
        "x = []\nfor i in range(4):\n x.append((i, 1))\n ends()\n step()",
        {"x": [(0, 1), (1, 1), (2, 1)]},
    ),
    "what a call before the end changes in its line": (
        "n = 0\ndef f():\n nonlocal n\n n += 1\nfor i in range(4):\n use(f(), ends())\n step()",
        {"n": 3},
    ),
    "a list that a closure changes in a step": (
        "n = [0]\nfor i in range(4):\n def f():\n  n[0] += 1\n ends()\n step(f)",
        {"n": [3]},
    ),
    "at the head of the loop": (
        "n = 0\nfor i in source():\n n += 1\n step()\n use(n)",
        {"n": 3},
    ),
    "of the epoch, behind its inner loop": (
        "lr = 8.0\nfor epoch in range(2):\n lr /= 2\n for i in source():\n  step()\n lr += 1",
        {"lr": 4.0},
    ),
    "under a condition, and read after the loop": (
        "best = 0\nfor i in range(4):\n ends()\n step()\n if i % 2:\n  best = i\nuse(best)",
        {"best": 1},
    ),
    "under a condition, and only printed after the loop": (
        "for i in range(4):\n ends()\n step()\n if i % 2:\n  best = i\nprint(best)",
        {"best": 1},
    ),
    "what a method draws for an epoch": (
        "for epoch in range(2):\n meter.draw()\n for i in source():\n  step()",
        {"meter.drawn": [0]},
    ),
    "an attribute that a method changes after the step": (
        "for i in range(4):\n ends()\n step()\n meter.add(i)",
        {"meter.n": 3, "meter.best": 2},
    ),
    "an attribute that a method changes before the end": (
        "for i in range(4):\n meter.add(i)\n ends()\n step()",
        {"meter.n": 3, "meter.best": 2},
    ),
    "an attribute that a method sets under a condition": (
        "for i in range(4):\n ends()\n step()\n meter.fill(i)",
        {"meter.full": 2},
    ),
    "a tensor that a method changes in place": (
        "for i in range(4):\n ends()\n step()\n meter.put(i)",
        {"meter.held": [2]},
    ),
    "a tensor that a method may change before the end": (
        "for i in range(4):\n meter.put(i)\n ends()\n step()",
        {},
    ),
    "an object that a rescue cannot hold": (
        "it = object()\nfor i in range(4):\n ends()\n step()\n use(it)\n it = object()",
        {},
    ),
    "a global variable that a function counts": (
        "for i in range(4):\n count()\n ends()\n step()",
        {"counted": 3},
    ),
    "an attribute that a method reads before it sets it": (
        "for i in range(4):\n ends()\n step()\n walk(meter)",
        {"meter.n": 3, "meter.best": 2},
    ),
    "a random order of an epoch": (
        "for epoch in range(2):\n rows = permutation(4)\n for i in rows:\n  step()\n  ends()",
        {"rows": (3, 2, 1, 0)},
    ),
    "data that is set anew before each step": (
        "x = (0,)\nfor i in range(4):\n x = (x[0] + i,)\n ends()\n x = (x[0], )\n step()",
        {"x": (3,)},
    ),
    "a list": (
        "seen = []\nfor i in range(4):\n ends()\n step()\n seen.append(i)",
        {"seen": [0, 1, 2]},
    ),
    "the losses of many steps, and as many numbers of another kind": (
        "a, b = [0.5] * 5000, [1] * 5000\nfor i in source():\n step()\n a += [0.5]\n b += [1]",
        {"a": [0.5] * 5003},
    ),
    "an object that logs": (
        "log = meter\nfor i in range(4):\n ends()\n step()\n log(i)",
        {"log.n": 3, "log.best": 2},
    ),
    "an attribute that a call changes unseen": (
        "for i in range(4):\n ends()\n step()\n getattr(meter, 'keep')(i)",
        {"meter.top": 2},
    ),
    "a closure that counts": (
        "n = [0]\nfor i in range(4):\n def f(): n[0] += 1\n f()\n ends()\n step()",
        {"n": [3]},
    ),
}
HEAD = """
from random import sample
class Meter:
    def __init__(self):
        self.n, self.best, self.full, self.held, self.top = 0, -1, 0, [-1], 0
    def __call__(self, value):
        self.add(value)
    def keep(self, value):
        self.top = max(self.top, value)
    def add(self, value):
        self.n += 1
        if value > self.best:
            self.best = value
    def fill(self, value):
        if value == 2:
            self.full = value
    def put(self, value):
        self.held.__setitem__(0, value)
    def draw(self):
        self.drawn = sample((0,), 1)
    def walk(self):
        before = self.n
        self.n, self.best = before + 1, before + 0 * self.best
def walk(walker):
    walker.walk()
def permutation(n):
    return tuple(range(n))[::-1]
def count():
    global counted
    counted += 1
counted = 0
def source():
    for number in range(4):
        ends()
        yield number
meter = Meter()
"""


@pytest.mark.parametrize("case", LOOPS)
def test_a_value_is_read_only_where_the_next_iteration_begins_with_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The fourth end of an iteration comes after three steps; a wrong value is worse than none."""
    text, expected = LOOPS[case]
    path = tmp_path / "train.py"
    inside = "".join(f"    {line}\n" for line in text.splitlines())
    path.write_text(f"{HEAD}def train():\n{inside}")
    module = ModuleType("looped")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "looped", module)
    linecache.clearcache()
    found: list[LoopVariables] = []
    read: list[dict[str, Any]] = []
    steps = 0

    def step(closure: Any = lambda: None) -> None:
        nonlocal steps
        steps += 1
        closure()
        if not found:
            frame = sys._getframe(1)
            audit = Audit(
                frame, object(), {}, unused=True,
                watchable=lambda each: ["meter.held", "meter.top"]
                * (each.f_code.co_name == "train"),
            )  # fmt: skip
            watched, loops = audit.watched.values(), enclosing_loops(program_places(frame))
            counters = [each for each in audit.counters if each and "counter" in case]
            carried = [*audit.carried.values(), *counters]
            found.append(LoopVariables(carried, _no_tensors, loops, watched, _sum))
            found[0].find_changed(frame)
        found[0].read_after_step(sys._getframe(1))

    def ends() -> None:
        if steps == 3 and not read:
            read.append({
                name: list(each) if isinstance(each, list) else each
                for name, each in found[0].read(sys._getframe(1)).items()
            })  # fmt: skip

    module.__dict__.update(step=step, ends=ends, use=lambda *_: None)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    module.train()

    assert [expected] == read


def test_a_failed_iteration_leaves_no_list_that_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The list of the iteration before is the same object; a number is not."""
    path = tmp_path / "train.py"
    path.write_text(
        "def train():\n n, held, late = 0, [], []\n for i in source():\n  n += 1\n"
        "  held.append(i)\n  step(i)\n  use()\n  late.append(i)\n"
    )
    read: list[dict[str, Any]] = []

    def source() -> Any:
        for number in range(3):
            if number == 2:
                read.append(variables[0].read(sys._getframe(1)))
            yield number

    def step(number: int) -> None:
        frame = sys._getframe(1)
        if not variables:
            carried = Audit(frame, object(), {}, unused=True).carried.values()
            variables.append(LoopVariables(carried, _no_tensors))
        if number == 2:
            assert {"n", "held", "late"} == read[0].keys()
            read.append(deepcopy(variables[0].read_failed(frame, read[0])))

    variables: list[LoopVariables] = []
    module = ModuleType("failed")
    module.__file__ = str(path)
    module.__dict__.update(source=source, step=step, use=lambda: None)
    monkeypatch.setitem(sys.modules, "failed", module)
    linecache.clearcache()
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    module.train()

    assert {"n": 2, "late": [0, 1]} == read[1]


@pytest.mark.parametrize("kib", [1500, 3000])
def test_a_replay_array_that_changes_before_the_step_is_copied_if_it_is_small(
    kib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The end of the iteration is seen behind the next change; a large copy takes too long."""
    copies: list[Any] = []

    def step() -> None:
        frame = sys._getframe(1)
        audit = Audit(frame, object(), {}, unused=True)
        loops = enclosing_loops(program_places(frame))
        found = LoopVariables(audit.carried.values(), lambda each: each.nbytes, loops)
        found.read_after_step(frame)
        copies.append(found.after_step[0])

    path = tmp_path / "train.py"
    path.write_text("def train(rows):\n for i in range(3):\n  rows[i] = 1\n  step()")
    module = ModuleType("arrays")
    module.__file__ = str(path)
    module.__dict__.update(step=step)
    monkeypatch.setitem(sys.modules, "arrays", module)
    linecache.clearcache()
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    module.train(np.zeros((kib, 128)))

    known = [[1, 1, 0]] if kib == 1500 else []
    assert known == [list(each[:3, 0]) for each in copies[1].values()]


def _sum(value: Any) -> int | None:
    return sum(value) if type(value) is list else None


def _no_tensors(value: Any) -> int:
    values.encode(value, "", lambda *_: None)
    return 0


# The first run dies after the fourth step, the first one of its second epoch.
PROGRAM = """
import os, sys
IMPORTS
best, state, kept = None, (make([9.0]), None), []
alias = kept
rescue = Rescue("rescues", model=model)
kept = rescue.variables(kept=kept)
for epoch in rescue.epochs(3):
    total = 0
    best, total, state = rescue.variables(best=best, total=total, state=state)
    print(best, total, float(state[0][0]), state[0].dtype == make([0.0]).dtype, alias)
    for number in rescue.data(range(3)):
        total, state = total + 1, (make([float(number)]), None)
        rescue.step(total=total, state=state)
        if rescue.step_number == 4 and not rescue.resumed:
            rescue.save()
            sys.stdout.flush()
            os._exit(9)
    best = {"epoch": epoch, "loss": float("inf")}
    kept.append(epoch)
"""
IMPORTS = {
    "torch": "import torch\nfrom watchdog_app.agent.torch import Rescue\n"
    "model, make = torch.nn.Linear(1, 1), lambda x: torch.tensor(x, dtype=torch.float64)",
    "tensorflow": "import keras, tensorflow as tf\n"
    "from watchdog_app.agent.tensorflow import Rescue\n"
    "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
    "make = lambda x: tf.constant(x, tf.float64)",
}


@pytest.mark.parametrize(
    "framework",
    [pytest.param(each, marks=getattr(pytest.mark, each)) for each in IMPORTS],
)
def test_each_place_of_a_program_gets_the_saved_variables_once(framework: str, tmp_path: Path):
    """They come back before the first step after a resume, with types; lists in place."""
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("IMPORTS", IMPORTS[framework]))
    env = {**os.environ, "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run")}
    runs = [zygote.run(str(path), cwd=tmp_path, env=env, framework=framework) for _ in range(2)]

    assert [9, 0] == [run.returncode for run in runs], runs[1].stderr
    assert [
        "None 0 9.0 True []",
        "{'epoch': 0, 'loss': inf} 0 2.0 True [0]",
        "{'epoch': 0, 'loss': inf} 1 0.0 True [0]",
        "{'epoch': 1, 'loss': inf} 0 2.0 True [0, 1]",
    ] == [line for run in runs for line in run.stdout.splitlines()]


@pytest.mark.parametrize(
    ("now", "saved"),
    [
        (defaultdict(lambda: defaultdict(list), b=1), defaultdict(len, a=defaultdict(len, b=[2]))),
        (Counter("ab"), Counter("b")),
        (OrderedDict(a=1), OrderedDict(b=1)),
        (deque([1], 3), deque([2], 3)),
        ({1}, {2}),
    ],
)
def test_a_container_stays_the_object_of_the_program(now: Any, saved: Any):
    """Other objects may hold it, and its factory is known to the program only."""
    held = values.decode(values.encode(saved, "", lambda *_: None), lambda *_: None)

    back = values.put_back(now, held)

    assert back is now
    assert saved == now
    if isinstance(now, defaultdict):
        assert [] == now["a"]["c"]


LOGS = itertools.count()


def log_count(kept: list[int]) -> None:
    kept.append(int(str(len(kept) + LOGS.__next__())))


def log_number(kept: list[float]) -> None:
    kept.append(random.random())


def log_inside(kept: list[float]) -> None:
    log_number(kept)


@pytest.mark.parametrize(
    ("log", "draws"),
    [(log_count, False), (log_number, True), (log_inside, True), (os.path.exists, True)],
)
def test_functions_of_the_program_after_a_step_are_read_for_random_numbers(
    log: Callable[[Any], object], draws: bool
):
    """A function of a library may draw some."""
    for _ in range(1):
        places = program_places(sys._getframe())
        log([] if log is not os.path.exists else "/")

    assert draws is draws_after(places, sys._getframe())


def test_the_calls_after_a_step_are_searched_once(monkeypatch: pytest.MonkeyPatch):
    """Near a limit the agent asks for them after each step; the text may be long."""
    read, source, counts = [], source_loops.source, []
    monkeypatch.setattr(source_loops, "source", lambda code: read.append(code) or source(code))
    for _ in range(3):
        places = program_places(sys._getframe())
        draws_after(places, sys._getframe())
        counts.append(len(read))

    assert 0 < counts[0] == counts[1] == counts[2]


def test_the_tensors_of_a_replay_buffer_are_estimated_by_its_ends():
    """Near a limit this is done after each step; a tuple of a buffer is like the others."""
    counted = []

    def tensor_bytes(value: Any) -> int:
        counted.extend(value)
        return 100 * len(value)

    variables = LoopVariables((), tensor_bytes)
    buffer = deque([(1, 0.5)] * 4000)

    assert variables._is_storable(buffer)
    assert not variables._is_storable(buffer, 100 * 3999)
    assert variables._is_storable(buffer, 100 * 4000)
    assert not variables._is_storable(deque([(1, 0.5)] * 5000))
    assert 6 == len(counted)
    assert variables._is_storable({1: 2}, 100)
    assert variables._is_storable({}, 0)


class Values:
    """As a tensor: it can be referenced weakly, and has a stamp."""

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp


def test_a_new_object_with_the_id_of_an_old_one_has_not_changed():
    """A function makes its tensors anew in each call, and Python gives their ids again."""

    def look(value: Any) -> int:
        found.find_changed(sys._getframe())
        return id(value)

    value: Any = SimpleNamespace(expression="value", code=look.__code__)
    found = LoopVariables([], _no_tensors, [], [value], lambda each: each.stamp)
    same = look(Values(1)) == look(Values(2))
    kept = Values(3)
    look(kept)
    assert same
    assert [] == found.changed

    kept.stamp = 4
    look(kept)
    assert ["value"] == found.changed
