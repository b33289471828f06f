"""Fingerprints of what a function computes: harmless edits keep it, others change it."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from watchdog_app.agent.identity import code

LOSS = '''
import time
import logging
import math as m
from functools import lru_cache

SCALE = 0.5
BATCH_SIZE = 32
seen = 0
log = logging.getLogger(__name__)


def squared(value):
    """A square."""
    return value * value


def other_helper(value):
    return value + 1


class Net:
    def __init__(self):
        self.width = 4

    def hidden(self, x):
        return x * 2

    def call(self, x, training=False):
        """One pass."""
        h = self.hidden(x)  # the first layer
        print("h", h)
        if training:
            h = h - 1
        return m.sqrt(squared(h)) * SCALE


def loss(truth, guess):
    """Mean of squares."""
    global seen
    error = truth - guess  # the difference
    print("error", error)
    seen += 1
    assert error is not None
    total = 0.0
    for each in (error, error):
        total = total + squared(each)
    return SCALE * total / seen
'''


def hashes(function: Any) -> list[str]:
    found = code.fingerprint(function)
    assert found is not None
    return [each[1] for each in found]


LEGAL = {
    "comment": ("# the difference", "# truth less guess"),
    "formatting": ("truth - guess", "(truth   -  guess)"),
    "docstring": ("Mean of squares.", "MSE"),
    "no docstring": ('    """Mean of squares."""\n', ""),
    "no print": ('    print("error", error)\n', ""),
    "another print": ('print("error", error)', 'print(f"{error:.3f} of", truth)'),
    "a log line": ("    seen += 1", '    seen += 1\n    log.info("%s", error)'),
    "tensorboard": ("    seen += 1", '    seen += 1\n    writer.add_scalar("e", error.item())'),
    "a print on a condition": (
        "    seen += 1",
        "    seen += 1\n    if len(truth) > 3:\n        print(truth)",
    ),
    "timing": (
        "    error = truth",
        "    began = time.perf_counter()\n    error = truth",
    ),
    "timing that is printed": (
        "    total = 0.0",
        "    began = time.time()\n    print(time.time() - began)\n    total = 0.0",
    ),
    "a breakpoint": ("    total = 0.0", "    breakpoint()\n    total = 0.0"),
    "an assertion": ("assert error is not None", "assert error is not None, 'no error'"),
    "a local renamed": ("error", "difference"),
    "parameters renamed": ("guess", "prediction"),
    "a loop variable renamed": ("each", "item"),
    "annotations": ("loss(truth, guess):", "loss(truth: float, guess: float) -> float:"),
    "an annotated local": ("total = 0.0", "total: float = 0.0"),
    "the helper renamed": ("squared", "to_the_second"),
    "the helper's docstring": ("A square.", "The second power."),
    "the function renamed": ("def loss(", "def criterion("),
    "another helper": ("return value + 1", "return value + 2"),
    "a line above": ("SCALE = 0.5", "import json\n\n\nSCALE = 0.5"),
    "another batch size": ("BATCH_SIZE = 32", "BATCH_SIZE = 16"),
    "a pass": ("    total = 0.0", "    pass\n    total = 0.0"),
    "a decorator that compiles": ("def loss(", "@lru_cache\ndef loss("),
    "a number written otherwise": ("SCALE = 0.5", "SCALE = 5e-1"),
    "a number for a constant": ("return SCALE", "return 0.5"),
    "a line for a value": (
        "    return SCALE * total / seen",
        "    y = SCALE * total / seen\n    return y",
    ),
    "an unused parameter": ("loss(truth, guess):", "loss(truth, guess, weight=None, **more):"),
    "an unused pair": ("    total = 0.0", "    first, (second, *rest) = truth\n    total = 0.0"),
}


@pytest.mark.parametrize("edit", LEGAL)
def test_a_harmless_edit_of_a_loss_leaves_its_fingerprint(
    program: Callable[[str], ModuleType], edit: str
):
    """Text that changes no number does not count."""
    before, after = LEGAL[edit]
    assert before in LOSS
    text = LOSS.replace(before, after)

    changed = program(text)
    function = getattr(changed, "loss", None) or changed.criterion

    assert hashes(program(LOSS).loss) == hashes(function)


IMPORTED = """
GAIN = 2.0

def squared(x, weight=1.0):
    return x * x * weight * GAIN
"""
CALLS = """
import math
import functional
from types import SimpleNamespace

root = math.sqrt
cfg = SimpleNamespace(alpha=0.5)


class Settings:
    TEMPERATURE = 0.5


class Scaled:
    @staticmethod
    def forward(x, gain):
        return x * gain


class Net:
    power = 2

    def inner(self, x, rate):
        return x * rate

    def call(self, x):
        x = functional.squared(x, 0.5) * cfg.alpha
        return Scaled.apply(self.inner(x, 0.1) ** self.power, 2) / Settings.TEMPERATURE


def loss(x):
    from functional import squared as other
    import functional as f
    return f.squared(x) + other(x, weight=0.3) + root(x)
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("", "", True),
        ("functional.squared(x, 0.5)", "functional.squared(x, weight=0.5)", True),
        ("self.inner(x, 0.1)", "self.inner(rate=0.1, x=x)", True),
        ("other(x, weight=0.3)", "other(x, weight=0.4)", False),
        ("x * x", "x * x * x", False),
        ("import squared as other", "import cubed as other", False),
        ("TEMPERATURE = 0.5", "TEMPERATURE = 0.7", False),
        ("x * gain", "x + gain", False),
        ("power = 2", "power = 3", False),
        ("root", "square_root", True),
        ("math.sqrt", "math.exp", False),
        ("alpha=0.5", "alpha=0.7", False),
    ],
)
def test_calls_count_by_what_they_call_and_pass(
    program: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    same: bool,
):
    """Also through imports inside a function, keywords, classes, and drawn settings."""

    def load(*edit: str) -> list[list[str]]:
        helper, train = (text.replace(*edit) for text in (IMPORTED, CALLS))
        monkeypatch.setitem(sys.modules, "functional", program(helper))
        module = program(train)
        return [hashes(module.loss), hashes(module.Net.call)]

    assert before in IMPORTED + CALLS
    assert same == (load("", "") == load(before, after))


@pytest.mark.parametrize(
    ("edit", "same"),
    [
        (("x * x", "x * x * x"), False),
        (("GAIN = 2.0", "GAIN = 3.0"), False),
        (("    return", "    print(x)\n    return"), True),
    ],
)
def test_functions_imported_in_a_function_count_before_they_are_loaded(
    program: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    edit: tuple[str, str],
    same: bool,
):
    """A training that continues has not run the import yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    loss = program(CALLS.replace("import functional\n", "", 1)).loss
    (tmp_path / "functional.py").write_text(IMPORTED.replace(*edit))
    edited = hashes(loss)
    (tmp_path / "functional.py").write_text(IMPORTED)

    unloaded = hashes(loss)
    import_module("functional")

    assert unloaded == hashes(loss)
    assert same == (unloaded == edited)
    del sys.modules["functional"]


LOCAL_IMPORT = """
def loss(x):
    from math import {} as f
    return f(x)
"""


def test_imports_within_a_function_count_by_what_they_import(
    program: Callable[[str], ModuleType],
):
    """The local names do not count."""
    first, renamed, other = (
        hashes(program(text).loss)
        for text in (
            LOCAL_IMPORT.format("exp"),
            LOCAL_IMPORT.format("exp").replace("f(x)", "g(x)").replace("as f", "as g"),
            LOCAL_IMPORT.format("log"),
        )
    )

    assert first == renamed != other


OTHERS = {
    "sign": ("truth - guess", "guess + truth"),
    "order": ("truth - guess", "guess - truth"),
    "helper": ("value * value", "value * value * value"),
    "constant of the module": ("SCALE = 0.5", "SCALE = 0.25"),
    "constant": ("total = 0.0", "total = 1.0"),
    "other helper": ("squared(each)", "other_helper(each)"),
    "more": ("    total = 0.0", "    error = error * 2\n    total = 0.0"),
    "less": ("        total = total + squared(each)\n", "        total = squared(each)\n"),
    "a call that computes": ("    total = 0.0", "    _ = squared.update(error)\n    total = 0.0"),
}


@pytest.mark.parametrize("edit", OTHERS)
def test_what_changes_the_numbers_changes_the_fingerprint(
    program: Callable[[str], ModuleType], edit: str
):
    """Called functions and constants of the module count too."""
    before, after = OTHERS[edit]
    assert before in LOSS

    assert hashes(program(LOSS).loss) != hashes(program(LOSS.replace(before, after)).loss)


HELPERS = """
import numpy

POWER = 2
LOG = "a"

def squared(x):
    return x**POWER

class Penalty:
    def __init__(self, weight):
        self.weight = weight
        self.weights = numpy.array([0.5, 0.5])

    def __call__(self, x):
        return squared(x) * self.weight

    def parameters(self, which):
        return self.weights[which]
"""
OUTER = """
import helpers
from types import SimpleNamespace

cfg = SimpleNamespace(alpha=0.5, epochs=3)
options = {"beta": 0.5, "note": 1}
moving = {"gamma": 0.5}
penalty = helpers.Penalty(0.5)
for step in range(3):
    annealed = step / 10
    moving["gamma"] = step

def loss(x):
    y = helpers.squared(x) * cfg.alpha * options["beta"] * moving["gamma"]
    return y + penalty(x) * annealed
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("x**POWER", "x**POWER + 1", False),
        ("POWER = 2", "POWER = 3", False),
        ("squared(x) * self", "squared(x) / self", False),
        ("Penalty(0.5)", "Penalty(0.7)", False),
        ("alpha=0.5", "alpha=0.7", False),
        ('"beta": 0.5', '"beta": 0.7', False),
        ("import helpers", "import helpers_2 as helpers", False),
        ("helpers.squared(x)", "squared(x)", True),
        ("import helpers", "import helpers\nh = helpers", True),
        ('LOG = "a"', 'LOG = "b"', True),
        ("epochs=3", "epochs=4", True),
        ('"note": 1', '"note": 2', True),
        ("step / 10", "step / 5", True),  # a resumed loop has another value, too
        ('["gamma"] = step', '["gamma"] = 2 * step', True),
    ],
)
def test_what_a_module_or_an_object_of_the_program_computes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, same: bool
):
    """Helpers and constants of other files, of namespaces and of dictionaries are followed."""

    def load(*edit: str) -> list[str]:
        files = {"helpers": HELPERS, "helpers_2": HELPERS.replace("**", "*"), "train": OUTER}
        assert not edit or any(before in text for text in files.values())
        for name, written in files.items():
            text = written.replace(*edit) if edit else written
            path = tmp_path / f"{len(edit)}" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            module = ModuleType(name)
            module.__file__ = str(path)
            monkeypatch.setitem(sys.modules, name, module)
            linecache.clearcache()
            if name == "train":
                vars(module)["squared"] = sys.modules["helpers"].squared
            exec(compile(text, str(path), "exec"), vars(module))
        return hashes(sys.modules["train"].loss)

    assert same == (load() == load(before, after))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("hidden", "first", True),
        ('print("h", h)', "pass", True),
        ("# the first layer", "# x", True),
        ("import math as m", "import math\nm = math", True),
        ("return x * 2", "return x * 3", False),
        ("h - 1", "h + 1", False),
        ("m.sqrt", "m.exp", False),
    ],
)
def test_methods_of_a_class_are_followed(
    program: Callable[[str], ModuleType], before: str, after: str, same: bool
):
    """Methods called on `self` count, whatever their names."""
    first, second = (hashes(program(text).Net.call) for text in (LOSS, LOSS.replace(before, after)))

    assert same == (first == second)


def test_the_function_that_changed_is_named(program: Callable[[str], ModuleType]):
    """The list has each function separately, the outermost first."""
    found = code.fingerprint(program(LOSS).Net.call)

    assert found is not None
    assert ["Net.call", "Net.hidden", "squared"] == [each[0] for each in found]


def test_lambdas_in_one_line_are_told_apart(program: Callable[[str], ModuleType]):
    """Their bytecode distinguishes them."""
    text = "pair = (lambda x: x * 2, lambda y: y * 3)\n"
    first, second = program(text).pair

    assert hashes(first) == hashes(program(f"# edited\n\n{text}").pair[0]) != hashes(second)


def test_values_of_closures_and_partials_count(program: Callable[[str], ModuleType]):
    """`make(0.5)` and `make(0.9)` compute different things."""
    text = "def make(alpha):\n    def loss(x):\n        return alpha * x\n    return loss\n"
    make = program(text).make

    assert hashes(make(0.5)) == hashes(make(0.5)) != hashes(make(0.9))


def test_a_value_of_an_outer_loop_does_not_count(program: Callable[[str], ModuleType]):
    """A resumed loop has another value; a function's own loop leaves a global of that name."""
    text = """
def make(values):
    for alpha in values:
        def loss(x):
            return alpha * x
    return loss

beta = {}
def scaled(x):
    return beta * x
def other():
    for beta in (1, 2):
        print(beta)
"""
    first, second = program(text.format(0.5)), program(text.format(0.7))

    assert hashes(first.make([0.5])) == hashes(first.make([0.9]))
    assert hashes(first.scaled) != hashes(second.scaled)


def test_wrappers_are_seen_through(program: Callable[[str], ModuleType]):
    """Wrappers are partials, bound methods and `functools.wraps`."""
    module = program(LOSS)

    @functools.wraps(module.loss)
    def wrapper(*given):
        return module.loss(*given)

    plain = hashes(module.loss)

    assert plain == hashes(functools.partial(module.loss)) == hashes(wrapper)
    assert hashes(module.Net.call) == hashes(module.Net().call)


def test_a_file_that_was_edited_after_its_import_is_not_believed(
    program: Callable[[str], ModuleType],
):
    """The running code counts, so the fingerprint uses the bytecode and reports that."""
    module = program(LOSS)
    Path(str(module.__file__)).write_text(LOSS.replace("truth - guess", "guess - truth"))

    found = hashes(module.loss)

    assert found[0].startswith(code.BYTECODE)
    Path(str(module.__file__)).write_text(LOSS.replace("# the difference", "#"))
    assert not hashes(module.loss)[0].startswith(code.BYTECODE)


def test_without_source_the_bytecode_counts():
    """Examples are `exec`, a prompt and a deleted file."""
    first, same, other = {}, {}, {}
    exec("def f(x):\n    return x * 2", first)
    exec("def f(x):\n    return x * 2", same)
    exec("def f(x):\n    return x * 3", other)

    assert hashes(first["f"])[0].startswith(code.BYTECODE)
    assert hashes(first["f"]) == hashes(same["f"]) != hashes(other["f"])


def test_a_cell_of_a_kernel_counts_by_its_source(monkeypatch: pytest.MonkeyPatch):
    """Its file name is of no file; only Python's cache of lines holds it."""

    def cell(number: int, text: str) -> list[str]:
        name = f"/tmp/ipykernel_1/{number}.py"
        lines = text.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
        found: dict[str, Any] = {}
        exec(compile(text, name, "exec"), found)
        return hashes(found["f"])

    first, printed = "def f(x):\n    return x * 2", "def f(x):\n    print(x)\n    return x * 2"

    assert cell(1, first) == cell(2, printed) != cell(3, first.replace("2", "3"))
    assert not cell(1, first)[0].startswith(code.BYTECODE)


@pytest.mark.parametrize("thing", [len, Path.exists, functools.wraps, code.fingerprint, 7, None])
def test_what_is_not_of_the_program_has_no_fingerprint(thing: object):
    """Versions identify libraries."""
    assert code.fingerprint(thing) is None


def test_objects_that_fail_when_looked_at_do_no_harm(program: Callable[[str], ModuleType]):
    """Attributes may raise, and names may be missing."""

    class Odd:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __call__(self):
            pass

    module = program("odd = None\ndef loss(x):\n    return odd(x) + missing(x)\n")
    module.odd = Odd()

    assert hashes(module.loss)
    assert code.fingerprint(Odd()) is None


def test_plain_attributes_of_an_object_are_those_that_decide_what_it_computes():
    """Seeds, names, folders, time stamps and values that differ in each run do not count."""

    class Layer:
        def __init__(self):
            self.temperature, self.kind, self.size, self.flag = 0.5, "relu", (1, 2), True
            self.seed, self.run_name, self.log_dir, self.began = 7, "a", "x/y", 1.7e9
            self.batch_size, self.learning_rate, self._count, self.things = 32, 0.1, 3, [1]

    assert {"temperature": 0.5, "kind": "relu", "size": (1, 2), "flag": True} == (
        code.plain_attributes(Layer())
    )


def test_what_a_training_of_a_notebook_changes_is_no_plain_attribute(
    monkeypatch: pytest.MonkeyPatch,
):
    """Its classes are in cells, and the changed object is held by the model (d2l's trainer)."""
    text = (
        "class Trainer:\n    def __init__(self):\n        self.seen, self.width = 0, 4\n"
        "    def fit(self):\n        self.seen += 1\n"
        "class Net:\n    def __init__(self):\n        self.trainer, self.calls = Trainer(), 0\n"
        "    def forward(self):\n        self.calls += self.trainer.seen * self.trainer.width\n"
    )
    cell, made = "<ipython-input-1-cell>", {"__name__": "__main__"}
    monkeypatch.setitem(linecache.cache, cell, (len(text), None, text.splitlines(True), cell))
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    exec(compile(text, cell, "exec"), made)

    found = [code.plain_attributes(made["Net"](), begins=begins) for begins in (True, False)]

    assert [{"calls": 0, "trainer.seen": 0, "trainer.width": 4}, {"trainer.width": 4}] == found


def test_statements_of_a_program_are_told_without_comments(tmp_path: Path):
    """The list has each top-level statement with its lines; an unreadable file gives nothing."""
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("x = 1\ny = 2  # two\n")
    second.write_text("\nx = 1\n\ny = (2)\nz = [\n    3]\n")

    told = code.statements(str(second))

    assert [text for text, *_ in code.statements(str(first))] == [text for text, *_ in told[:2]]
    assert (5, 6) == told[2][1:]
    assert [] == code.statements(str(tmp_path / "none.py")) == code.statements(None)


def test_the_statements_of_a_text_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Near a limit each publication of a loop may need them."""
    program, read = tmp_path / "a.py", []
    program.write_text("only = 1\nonce = 2\n")
    dump = code.ast.dump
    monkeypatch.setattr(code.ast, "dump", lambda node: read.append(node) or dump(node))

    told = [code.statements(str(program)) for _ in range(3)]
    program.write_text("only = 1\nonce = 3\n")
    told.append(code.statements(str(program)))

    assert told[0] == told[1] == told[2] != told[3]
    assert 4 == len(read)


def test_a_number_that_nobody_wrote_does_not_count():
    """Another run may draw or measure another one."""
    assert all(map(code.is_plain, (0.1, 1e-5, 0.48145466, 3, -2.5)))
    assert not code.is_plain(0.5794830000000123)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time.time() % 100", True),
        ("random.randint(1, 9)", True),
        ("1 / len(loader)", True),
        ("total / args.batch_size", True),
        ("args.weight * 2", False),
        ("0.1", False),
    ],
)
def test_values_that_vary_between_runs(text: str, expected: bool):
    """The time, random numbers, and what follows from the size of a batch."""
    assert expected == code.varies(ast.parse(text, mode="eval").body)
