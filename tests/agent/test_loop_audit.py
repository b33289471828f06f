"""At its first step, a loop's source text shows what a resume will not restore."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from watchdog_app.agent.identity.audit import Audit
from watchdog_app.rescue.checkpoint.store import RescueStore

PROGRAM = '''
import types
import datetime, functools, time

class Scaler:
    """With a state, as a GradScaler has."""

    def __init__(self):
        self.scale = 1

    def step(self):
        self.scale += 1

    def update(self):
        pass

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


class Meter:
    """Counts without a state, as many programs do."""

    def __init__(self):
        self.n = 0
        self.at = datetime.datetime.now()

    def tick(self):
        print(datetime.datetime.now() - self.at)
        self.at = datetime.datetime.now()

    def __call__(self):
        self.add()

    def add(self):
        self.n += 1

    def advance(self):
        self.inner.update()


class Buffer:
    """Keeps rows, and counts some that are only printed."""

    def __init__(self):
        self.rows, self.at, self.sum, self.mean = [], 0, 0, 0

    def put(self, row):
        self.rows.append(row)
        self.at += 1
        self.sum += row
        self.mean = self.sum / self.at if False else self.sum

    def row(self):
        return self.rows[self.at - 1]


class Shared:
    """Counts for all of its objects."""

    count = 0


def share():
    Shared.count += 1
    share.calls += 1


def fill(row):
    state["last"] = row
    ahead.append(row)
    logged.append(row)
    return state["last"], len(ahead)


class Environment:
    """Of a library, as those of Gymnasium."""

    def reset(self):
        pass

    def step(self, action):
        pass


Environment.__module__ = "json"
class Criterion:
    """Its `__call__` is a library's and calls `forward`, as that of a module."""

    n = 0
    __call__ = functools.partialmethod(lambda self, batch: self.forward(batch))

    def forward(self, batch):
        self.n += 1


criterion = Criterion()
environment = Environment()
scaler = Scaler()
meter = Meter()
buffer = Buffer()
at = ticks = share.calls = 0
state, ahead, logged = {}, [], []
disabled = types.SimpleNamespace(update=dict, state_dict=dict, load_state_dict=print)


def helper(batch):
    scaler.step()
    return batch


def draw():
    global at, ticks
    at += 1
    ticks += 1
    return at


def make_draw():
    at = 0
    def counted():
        nonlocal at
        at += 1
        return at
    return counted


def train(rescue, loader, model):
    BEFORE
    for epoch in rescue.epochs(2):
        EPOCH
        for batch in rescue.data(loader):
            STEP
            rescue.step(GIVEN)
        END
    AFTER
'''

COUNT = "n += 1\n            if n % 4 == 0: model.use(n)"
BEST = "\n        if batch < best:\n            best = batch; model.use(1)"
PATIENCE = """
        if batch < 0:
            patience = 0
        else:
            patience += 1
        if patience > 2:
            break"""
# Lines before the loops, in an epoch, in a step, after an epoch, at the end; and the findings.
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "nothing": ({}, []),
    "a name that a comprehension after the loop has for itself": (
        {
            "STEP": "if batch:\n                for x in range(2): model.use(x)",
            "AFTER": "model.use([x for x in range(3)])",
        },
        [],
    ),
    "a value of some iterations that the program reads after the loop": (
        {"STEP": "if batch: x = batch", "AFTER": "model.use(x)"},
        ["x"],
    ),
    "values of one iteration": ({"STEP": "loss = batch * 2; model.use(loss)"}, []),
    "a running mean that is printed": (
        {"EPOCH": "mean = 0.0", "STEP": "mean = 0.9 * mean + batch; print(mean)"},
        [],
    ),
    "a sum whose mean is logged": (
        {"EPOCH": "total, n = 0.0, 0", "STEP": "total += batch; n += 1", "END": "print(total / n)"},
        [],
    ),
    "a value that some steps set and the epoch reads": (
        {"STEP": "if batch % 2: top = batch", "END": "model.use(top)"},
        ["top"],
    ),
    "a value that an epoch sets and its steps read under one option": (
        {
            "BEFORE": "args = types.SimpleNamespace(bar=True)",
            "EPOCH": "if args.bar: top = 1",
            "STEP": "model.use(top if args.bar else 0)",
        },
        [],
    ),
    "a value that an epoch sets under an option that changes before its steps": (
        {
            "BEFORE": "top, args = 0, types.SimpleNamespace(bar=False)",
            "EPOCH": "if args.bar: top = 1",
            "STEP": "if args.bar: model.use(top)\n            args.bar = batch > 0",
        },
        ["top"],
    ),
    "a value that an epoch sets under another option than its steps read it": (
        {
            "BEFORE": "args = types.SimpleNamespace(bar=True, best=True)",
            "EPOCH": "if args.bar: top = 1",
            "STEP": "if args.best: model.use(top)",
        },
        ["top"],
    ),
    "a name that has no value and that a loop never sets": (
        {
            "BEFORE": "if model is None: rank = 0",
            "STEP": "if model is None: rank += 1; model.use(rank)",
        },
        [],
    ),
    "a value that both branches set": (
        {"STEP": "if batch % 2: top = 1\n            else: top = 2", "END": "model.use(top)"},
        [],
    ),
    "a sum of another loop whose mean is logged": (
        {
            "END": "right = 0\n        for each in (1, 2): right += len(str(each))\n"
            "        print(right)"
        },
        [],
    ),
    "losses that are only printed": (
        {"BEFORE": "losses = []", "STEP": "losses.append(batch)", "END": "print(losses)"},
        [],
    ),
    "losses that are used": (
        {"BEFORE": "losses = []", "STEP": "losses.append(batch)", "AFTER": "model.use(losses)"},
        ["losses"],
    ),
    "a list of the epoch that decides": (
        {"EPOCH": "losses = []", "STEP": "losses.append(batch)", "END": "model.use(sum(losses))"},
        ["losses"],
    ),
    "a list made in the iteration": (
        {"STEP": "rows = []; rows.append(batch); model.use(rows)"},
        [],
    ),
    "the last batch": ({"BEFORE": "last = 0", "STEP": "model.use(last); last = batch"}, ["last"]),
    "the patience of early stopping": (
        {"BEFORE": "patience = 0", "END": PATIENCE},
        ["patience"],
    ),
    "an object whose attribute the lines restore": (
        {"BEFORE": "scaler.scale = rescue.step_number", "STEP": "scaler.step()"},
        [],
    ),
    "a value that each branch sets": (
        {
            "STEP": "x = 1 if batch else 2\n            if x > 1: y = 1\n            else: y = 2\n"
            "            model.use(y)"
        },
        [],
    ),
    "a value that is set and read under one condition": (
        {"STEP": "if batch: g = batch; model.use(g)"},
        [],
    ),
    "the best one of some steps": (
        {"BEFORE": "g = 0", "STEP": "if batch: g = batch", "AFTER": "model.use(g)"},
        ["g"],
    ),
    "the best of all": (
        {"BEFORE": "best = 9", "END": BEST},
        ["best"],
    ),
    "a count that decides": ({"BEFORE": "n = 0", "STEP": COUNT}, ["n"]),
    "a count from the rescue": (
        {"BEFORE": "n = rescue.step_number", "STEP": COUNT},
        [],
    ),
    "a count that is printed": (
        {"BEFORE": "n = 0", "STEP": "n += 1\n            if n % 4 == 0: print(n)"},
        [],
    ),
    "an array in place": (
        {"BEFORE": "held = [0] * 9", "STEP": "held[batch] = 1", "AFTER": "model.use(held)"},
        ["held"],
    ),
    "a named container": (
        {"BEFORE": "held = rescue.named", "STEP": "held.append(batch)", "AFTER": "model.use(held)"},
        [],
    ),
    "an unnamed object": ({"STEP": "scaler.step()"}, ["scaler"]),
    "one that a function advances": ({"STEP": "helper(batch)"}, ["scaler"]),
    "a named object": ({"STEP": "model.step()"}, []),
    "a clock": (
        {
            "BEFORE": "import time as t; at = t.time()",
            "STEP": "print(t.time() - at); at = t.time()",
        },
        [],
    ),
    "what methods keep and read": (
        {"STEP": "buffer.put(batch); model.use(buffer.row())", "END": "print(buffer.mean)"},
        ["buffer.rows, buffer.at"],
    ),
    "what they keep and only count": ({"STEP": "buffer.put(batch)"}, []),
    "an object of one iteration": (
        {"STEP": "own = Buffer(); own.put(batch); model.use(own.row())"},
        [],
    ),
    "what they keep, restored": (
        {
            "BEFORE": "buffer.rows, buffer.at = rescue.variables(a=buffer.rows, b=buffer.at)",
            "STEP": "buffer.put(batch); model.use(buffer.row())",
            "GIVEN": "a=buffer.rows, b=buffer.at",
        },
        [],
    ),
    "what they keep, restored as it was before the loop": (
        {
            "BEFORE": "buffer.rows, buffer.at = rescue.variables(a=buffer.rows, b=buffer.at)",
            "STEP": "buffer.put(batch); model.use(buffer.row())",
        },
        ["buffer.at"],
    ),
    "a count restored": (
        {"BEFORE": "n = rescue.variables(n=0)", "STEP": COUNT, "GIVEN": "n=n"},
        [],
    ),
    "a count restored as it was before the loop": (
        {"BEFORE": "n = rescue.variables(n=0)", "STEP": COUNT},
        ["n"],
    ),
    "what an object in a given one keeps": (
        {
            "BEFORE": "model.held = buffer",
            "STEP": "model.held.put(batch); model.use(model.held.row())",
        },
        [],
    ),
    "a global that a function only reads": (
        {
            "BEFORE": "def reads():\n        global at\n        return at",
            "STEP": "model.use(reads())",
        },
        [],
    ),
    "a global that a function sets": ({"STEP": "model.use(draw())"}, ["at"]),
    "a global restored": (
        {
            "BEFORE": "global at; at = rescue.variables(at=at)",
            "STEP": "model.use(draw())",
            "GIVEN": "at=at",
        },
        [],
    ),
    "a global restored as it was before the loop": (
        {"BEFORE": "global at; at = rescue.variables(at=at)", "STEP": "model.use(draw())"},
        ["at"],
    ),
    "a variable that a closure sets": (
        {
            "BEFORE": "n = 0\n    def count():\n        nonlocal n\n        n += 1\n"
            "        return n",
            "STEP": "model.use(count())",
        },
        ["n"],
    ),
    "a variable of another function that a closure sets": (
        {"BEFORE": "count = make_draw()", "STEP": "model.use(count())"},
        ["at of counted"],
    ),
    "an iterator": (
        {"BEFORE": "more = iter([1, 2])", "STEP": "model.use(next(more)); more = iter([1])"},
        [],
    ),
}


class Rescue:
    """A fake Rescue that audits at the third step, when all names have values."""

    def __init__(self) -> None:
        self.named: list[Any] = []
        self.step_number = 0
        self.unused = False
        self.found: Audit | None = None
        self.given: dict[str, Any] = {}

    def epochs(self, count: int) -> Iterator[int]:
        yield from range(count)

    def data(self, loader: list[int]) -> Iterator[int]:
        yield from loader

    def variables(self, **now: Any) -> Any:
        self.given |= now
        return tuple(now.values()) if len(now) > 1 else next(iter(now.values()))

    def step(self, **_: Any) -> None:
        self.step_number += 1
        if self.found is None and self.step_number == 3:
            self.found = Audit(sys._getframe(1), self, self.given, unused=self.unused)


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Audit, Rescue]]:
    """Return the findings for a program with this text."""

    def run(text: str, *, unused: bool = False) -> tuple[Audit, Rescue]:
        path = tmp_path / "train.py"
        path.write_text(text)
        module = ModuleType("looped")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "looped", module)
        linecache.clearcache()
        exec(compile(text, str(path), "exec"), vars(module))
        model: Any = module.Scaler()
        model.use = lambda *_: None
        rescue = Rescue()
        rescue.unused = unused
        rescue.given = {"model": model, "named": rescue.named}
        module.train(rescue, [0, 1, 2], model)
        assert rescue.found is not None
        return rescue.found, rescue

    return run


def written(lines: dict[str, str]) -> str:
    text = PROGRAM
    for key in ("BEFORE", "EPOCH", "STEP", "END", "AFTER"):
        text = text.replace(key, lines.get(key, "pass"))
    return text.replace("GIVEN", lines.get("GIVEN", ""))


@pytest.mark.parametrize("case", CASES)
def test_what_an_iteration_leaves_to_the_next_is_found(
    audited: Callable[..., tuple[Audit, Rescue]], case: str
):
    """Values that are restored, recreated or only printed are not findings."""
    lines, expected = CASES[case]

    found, _ = audited(written(lines))

    shown = found.lost()
    assert len(expected) == len(shown), shown
    for name, text in zip(expected, shown, strict=True):
        assert text.endswith(f" by name): {name}")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("meter.add()", ["meter.n"]),
        ("environment.step(0)", ["environment"]),
        ("criterion(batch)", ["criterion.n"]),
        ("meter.inner = environment; meter.inner.step(0)", ["meter.inner"]),
        ("meter()", ["meter.n"]),  # within `__call__`
        ("scaler.state_dict()", []),
        ("scaler.step()", ["scaler.scale"]),  # its own class shows what it keeps
        ("meter.inner = scaler; meter.advance()", ["meter.inner"]),
        ("meter.inner = disabled; meter.advance()", []),
        ("meter.inner = scaler; meter.advance(); scaler.step()", ["scaler.scale"]),
        ("share()", ["Shared.count", "share.calls"]),
        ("Shared.count += 1; model.use(Shared.count)", ["Shared.count"]),
        ("fill(batch)", ["state", "ahead"]),  # what nothing reads decides nothing
        ("t1 = time.time(); seen.append(t1 - t0); t0 = t1", ["seen"]),
        ("t0 = time.time() + 1; model.use(t0)", []),
        ("model.use(t0); t0 = time.time() + batch", ["t0"]),
        ("if not batch: t2 = time.time()\n            model.use(t2)", ["t2"]),
        ("meter.tick()", []),
        ("meter.inner = model; meter.advance()", []),  # the rescue has the model
        ("meter.inner = scaler; scaler.owner = meter; meter.inner.owner.add()", ["meter.n"]),
        ("def closure(): seen[0] += 1\n            closure()", ["seen"]),
    ],
)
def test_what_objects_and_closures_count_is_named_for_a_loop_without_a_rescue(
    audited: Callable[..., tuple[Audit, Rescue]], body: str, expected: list[str]
):
    """A program that gives a Rescue knows which of its meters are only printed."""
    text = written({"BEFORE": "seen = [0]; t0 = time.time()", "STEP": body})

    assert expected == audited(text, unused=True)[0].names()
    assert ("environment" in body) == any("a rescue cannot" in e for e in audited(text)[0].lost())
    assert "meter.n" not in audited(text)[0].names()


def test_what_the_last_iteration_leaves_behind_is_saved_and_not_named(
    audited: Callable[..., tuple[Audit, Rescue]],
):
    """A resume at the end of a pass has no iteration that sets it; others need none of it."""
    text = written(
        {"STEP": "loss = batch; rows = batch; model = model", "END": "model.use(loss); print(rows)"}
    )

    found, _ = audited(text, unused=True)

    assert ["loss"] == [*found.carried]
    assert [] == found.names()


def test_a_rescue_without_the_variables_is_not_saved_over_one_that_has_them(
    audited: Callable[..., tuple[Audit, Rescue]], tmp_path: Path
):
    """More are lost than a message names, and a variable of each kind is lost anyway."""
    plain, ahead = [f"n{i}" for i in range(12)], ["a", "b", "z"]
    names = [*plain, *ahead]
    text = written(
        {
            "BEFORE": f"import numpy as np; {' = '.join(plain)} = 0; a = b = z = np.zeros(2)",
            "STEP": "; ".join(f"model.use({name}); {name} = {name} + 1" for name in names),
        }
    )
    found, messages = audited(text, unused=True)[0], list[str]()
    store = RescueStore(str(tmp_path / "rescues"), report=messages.append)

    def lost(restored: list[str]) -> list[str]:
        return [*found.drawn_ahead(restored), f"plain: {', '.join(found.names(restored))}"]

    better = store.save([], {"step": 7, "not_restored": lost([*plain[:-1], *ahead[:-1]])})
    again = store.save([], {"step": 8, "not_restored": lost([])})

    assert again.path == better.path
    assert messages[0].endswith("plain: n0, n1, n10, n2, n3, n4, n5, n6 and 3 more.")


@pytest.mark.parametrize(
    ("body", "expected"),
    [("model.use(number)", True), ("print(number)", False), ("if number % 2: print(batch)", False),
     ("if number % 2: model.step()", True)],
)  # fmt: skip
def test_a_counter_of_enumerate_counts_where_it_decides_something(
    audited: Callable[..., tuple[Audit, Rescue]], body: str, expected: bool
):
    """The index starts at 0 again after a resume; `rescue.enumerate` continues it."""
    text = written({"STEP": body}).replace(
        "for batch in rescue.data(loader)", "for number, batch in enumerate(rescue.data(loader))"
    )

    found, _ = audited(text)

    assert expected == any("the counter number of enumerate()" in each for each in found.lost())


def test_a_loop_that_asks_where_it_stands_finds_its_place(
    audited: Callable[..., tuple[Audit, Rescue]],
):
    """The loop uses rescue.step_number."""
    assert not audited(written({}))[0].reads_position
    assert audited(written({"BEFORE": "at = rescue.step_number"}))[0].reads_position
    inner = written({"BEFORE": "left = rescue.variables(left=9)"}).replace(
        "for batch in rescue.data(loader):", "while (left := left - 1) > 0:\n            batch = 0"
    )
    assert audited(inner)[0].reads_position
    counted = written({}).replace("rescue.epochs(2)", "range(len([rescue.variables(epoch=0)]))")
    found = audited(counted)[0]
    assert found.counters[-1] is not None
    assert ("epoch", True) == (found.counters[-1].expression, found.reads_position)


@pytest.mark.parametrize(("made", "lost"), [("iter([1, 2, 3])", False), ("model.endless()", True)])
def test_data_that_next_reads_has_a_place_if_the_loop_made_its_iterator(
    audited: Callable[..., tuple[Audit, Rescue]], made: str, lost: bool
):
    """The printed lines read `iter(...)` through the rescue, and no other iterator."""
    text = written({"BEFORE": f"model.endless = list; it = {made}", "STEP": "next(it, 0)"})
    text = text.replace("next(it, 0)", "next(it, 0) if not isinstance(it, list) else 0")

    assert lost is audited(text, unused=True)[0].fetches


@pytest.mark.parametrize("read", ["path", "other"])
def test_a_file_that_a_new_run_writes_again_is_named(
    audited: Callable[..., tuple[Audit, Rescue]], read: str
):
    """The best weights lie in a file; a resumed program overwrites it before its loop."""
    lines = {
        "BEFORE": "path = other = None; model.save = model.load = model.use; model.save(0, path)",
        "STEP": "model.save(batch, path)",
        "AFTER": f"model.load({read})",
    }
    text = written(lines)

    names = audited(text, unused=True)[0].names()

    assert ("the file path" in names) is (read == "path")


def test_weights_that_an_epoch_copies_before_its_steps_are_carried(
    audited: Callable[..., tuple[Audit, Rescue]],
):
    """As in Reptile; a resume in the middle of the epoch would copy other weights."""
    text = written({"EPOCH": "old = copy.deepcopy([1])", "END": "model.use(old)"})
    once = written({"EPOCH": "old = copy.deepcopy([1]); model.use(old)"})

    made = "def inner():\n        for each in loader:\n            rescue.step()"
    lines = {"BEFORE": made, "EPOCH": "old = copy.deepcopy([1])\n        inner()"}
    called = written({**lines, "END": "model.use(old)"})

    assert ["old"] == list(audited(f"import copy\n{text}", unused=True)[0].carried)
    assert ["old"] == list(audited(f"import copy\n{called}", unused=True)[0].carried)
    assert [] == list(audited(f"import copy\n{once}", unused=True)[0].carried)


@pytest.mark.parametrize(
    ("step", "data", "has_place"),
    [
        ("pass", "rescue.data(loader)", False),
        ("pass", "range(4)", True),
        ("pass", "enumerate(range(4))", True),
        ("pass", "batches(4)", True),
        ("pass", "drawn(4)", False),
        ("number = 4", "batches(number)", False),
        ("if batch == 1: continue", "range(4)", False),
        ("pass", "range(4 + epoch)", False),
        ("rows = [1]; rows.append(1)", "range(len(rows) if epoch else 4)", False),
        ("rows = [1]; rows.append(1)", "range(len(loader))", True),
    ],
)
def test_a_place_without_data_follows_from_the_steps_of_a_range_or_a_generator(
    audited: Callable[..., tuple[Audit, Rescue]], step: str, data: str, has_place: bool
):
    """Not if an iteration may make no step, or the generator draws its order or other arguments."""
    made = "number = 4\ndef batches(n): yield from range(n)\n"
    made += "def drawn(n): yield from sample(range(n), n)\nfrom random import sample\n"
    text = written({"STEP": step, "BEFORE": made.replace("\n", "\n    ")}).replace(
        "rescue.data(loader)", data
    )

    assert has_place is not audited(text, unused=True)[0].iterates


@pytest.mark.parametrize(
    ("lines", "loop", "has_place"),
    [
        ({"STEP": "if batch > 2: break"}, "for", False),
        ({"STEP": "for _ in (1, 2): break"}, "for", True),
        ({"EPOCH": "if epoch: continue"}, "for", False),
        ({"EPOCH": "for _ in (1, 2): continue"}, "for", True),
        ({"END": "if epoch: break"}, "for", True),
        ({}, "if epoch < 2:\n         for", False),
    ],
)
def test_steps_give_no_place_where_an_epoch_may_make_fewer(
    audited: Callable[..., tuple[Audit, Rescue]], lines: dict[str, str], loop: str, has_place: bool
):
    """Only jumps and conditions of the two loops count, and the counters are saved then."""
    text = written(lines).replace("for batch in rescue.data(loader)", f"{loop} batch in range(4)")

    found = audited(text, unused=True)[0]

    assert has_place is not found.iterates
    assert ["batch", None] == [each and each.expression for each in found.counters]


def test_a_loop_without_its_text_is_left_alone():
    """In a prompt or a compiled module the audit would be unreliable."""
    rescue = Rescue()
    code = compile("for batch in (1, 2, 3):\n    n = batch\n    rescue.step()\n", "<none>", "exec")

    exec(code, {"rescue": rescue})

    assert rescue.found is not None
    assert [] == rescue.found.lost()
