"""The function of a program that begins a training, and its distinguishing plain arguments."""

from __future__ import annotations

import linecache
import os
import sys
import tempfile
import types
from fractions import Fraction
from types import FrameType

import numpy as np
import pytest

from watchdog_app.rescue.identity.call_site import CallSite, call_site


class Odd:
    """An object whose class cannot be read."""

    @property
    def __class__(self):
        raise RuntimeError("lazy")


def begin() -> CallSite:
    return begin_at(sys._getframe(1))


def begin_at(frame: FrameType) -> CallSite:
    found = call_site(frame)
    assert found is not None
    # A worker of pytest-xdist passes its own id.
    given = tuple(each for each in found.given if each[0] != "id")
    return CallSite(found.function, given)


def test_plain_arguments_are_told_by_function_and_name():
    """Arguments that do not distinguish trainings, and values that are not plain, are left out."""

    def train(model, fold, /, data, *folds, wd=0.1, epochs=5, resume="force", verbose=True, **more):
        local = 1
        return local and begin()

    found = train(object(), np.int64(3), "mnist", 1, 2, epochs=7, more=4)

    here = "test_plain_arguments_are_told_by_function_and_name.<locals>.train"
    assert f"{__name__}.{here}" == found.function
    folds, more = (("folds.0", "1"), ("folds.1", "2")), (("more.more", "4"),)
    assert (("data", "mnist"), ("fold", "3"), *folds, *more, ("wd", "0.1")) == found.given


def test_a_sweep_s_variable_counts_and_the_number_of_an_epoch_does_not():
    """In `for lr in ...` each value begins a separate training."""

    def train(lr):
        return begin()

    for epoch in range(1):
        for lr in (0.1, 0.01):
            assert ("loop variable lr", str(lr)) == train(lr).given[-1]
        assert () == train(lr=epoch).given


def test_callers_count_too():
    """`run` gets the fold, and the function that it calls begins the training."""

    def build(model):
        return begin()

    def run(fold):
        return build(object())

    assert build(None) != run(1) != run(2)
    again = [run(1) for _ in range(2)]
    assert again[0] == again[1]


def test_two_calls_in_the_text_of_a_caller_are_two():
    """A helper trains one object after the other; a rerun may skip the first."""

    def train(model):
        return begin()

    def run(*, skip):
        first = None if skip else train(object()).function
        return first, train(object()).function

    (first, second), rest = [run(skip=skip) for skip in (False, True)]
    assert first != second
    assert (None, second) == rest


def test_a_function_that_makes_the_model_counts():
    """By its name, which is the same in another run."""

    def small():
        return 1

    def train(build):
        return begin()

    first, second, again = [train(build) for build in (small, Odd, small)]
    assert first != second
    assert first == again


def test_values_of_one_name_count_in_their_order():
    """A caller that passes on its own value adds nothing."""

    def train(name):
        return begin()

    def run(name, other):
        return train(other)

    assert (("name", "a"), ("other", "a")) == run("a", "a").given
    assert (("name", "b"), ("name", "a"), ("other", "b")) == run("a", "b").given


def test_variables_of_the_loops_around_count():
    """Earlier loops and epoch counters do not count."""
    begun = []
    for before in range(2):
        str(before)
    for _ in range(1):
        begun.append(begin())
    assert () == begun.pop().given
    for fold, _data in enumerate(["a", "b"]):
        for epoch in range(1):
            str((fold, epoch))
            begun.append(begin())

    folds = [[name for name, _ in each.given] for each in begun]
    assert [["_data", "fold"]] * 2 == folds
    assert begun[0] != begun[1]
    assert 2 == len({begin() for fold in range(2)})


def test_two_calls_in_the_text_of_one_function_are_two():
    """A rerun may skip the first, and lines may change around them."""
    source = """
def train(skip, odd):
    {line}
    if not skip:
        first = begin()
        (lambda: begin)()
    return [first if not skip else None, (
        odd
        .begin(1,
               begin))]

found = train(skip, odd)
"""

    def trained(line, *, skip):
        def call(*_):
            return begin_at(sys._getframe(1))

        name = f"<{line!r}>"
        text = source.format(line=line)
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        told = {"begin": call, "__name__": "__main__", "skip": skip}
        told["odd"] = types.SimpleNamespace(begin=call)
        exec(compile(text, name, "exec"), told)
        return [each and each.function for each in told["found"]]

    second = "__main__.train#2"
    assert ["__main__.train", second] == trained("", skip=False)
    assert [None, second] == trained("print(begin)", skip=True)


def test_a_name_of_one_letter_is_no_option():
    """`j` may be a fold; `-j` is the number of workers."""

    def train(j):
        return begin()

    assert train(1) != train(2)


def test_what_cannot_be_compared_is_left_out():
    """The program is not harmed, and the other arguments still count."""

    def train(*, odd, some, listed, third, folder, fold):
        return begin()

    folder = os.path.join(tempfile.gettempdir(), "tmpab12_xyz")
    others = {"odd": Odd(), "some": object(), "listed": [1], "third": Fraction(1, 3)}
    given = train(**others, folder=folder, fold=1).given
    assert ["1", "tmp"] == sorted(value for _, value in given)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("a", "b", False),
        ("data/fold-1", "data/fold-2", False),
        ("tmpab12_xyz/a", "tmp345678_q/a", True),
        ("tmpab12_xyz/a", "tmpab12_xyz/b", False),
        ("pytorch-errorfile-ab12_xyz.pickle", "pytorch-errorfile-345678_q.pickle", True),
    ],
)
def test_a_path_in_the_temporary_folder_counts_without_random_names(before, now, same):
    """Names from `tempfile` differ in each run; a name from the user means other data."""

    def train(data):
        return begin()

    def counted(name):
        given = dict(train(os.path.join(tempfile.gettempdir(), name)).given)
        return next(text for key, text in given.items() if key.endswith("data"))

    assert same == (counted(before) == counted(now))


def test_values_are_not_in_what_is_printed_of_it():
    """They may be secrets."""

    def train(token):
        return begin()

    assert "hunter" not in repr(train("hunter2"))
