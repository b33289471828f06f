"""Advice from what an agent knows of its training's memory."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from simulation import Machine, Program, flat

from watchdog_app.core.explain import advice, status
from watchdog_app.core.explain.advice import Filling
from watchdog_app.core.model.agent import (
    AgentState,
    BufferMemory,
    GrowingLine,
    MemoryGrowth,
    MemoryParts,
    MoreTensors,
)
from watchdog_app.core.model.decisions import Regime
from watchdog_app.core.model.resource import SPECS

GIB = 1024**3


@pytest.mark.parametrize("count", [500, 2000, 4000, 100_000])
@pytest.mark.parametrize("base", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("filled", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("each", [0.6, 0.8, 1.0, 1.2])
def test_what_is_advised_fits_with_the_overhead_of_its_elements_and_the_first_step(
    count, base, filled, each
):
    """In a group of 1,100 MiB the number that is said leaves room for the training."""
    limit = 1100 * 1024**2
    bytes_ = 3.0 * GIB
    taken = filled * limit
    room = max(0.0, 0.9 * limit - base * limit - taken)

    said = advice.about_filling(
        Filling(f"the shuffle buffer of {count:,} examples", taken, bytes_), room
    )

    found = re.search(r"shuffle\((\d+)\)", said)
    buffer = 0.0 if found is None else int(found[1]) * bytes_ / count * each
    assert base * limit + buffer + 256 * 1024**2 <= 0.9 * limit + 1
    assert "Shuffle buffer still filling" in said


def test_the_same_number_is_advised_however_far_the_buffer_has_filled():
    """What it has taken by now is given back by another run."""
    told = {
        advice.about_filling(
            Filling("the shuffle buffer of 4,000 examples", filled * GIB, 3 * GIB),
            (0.8 - filled) * GIB,
        ).rpartition(":")[2]
        for filled in (0.0, 0.2, 0.5, 0.8)
    }

    assert 1 == len(told)


def test_a_buffer_that_has_filled_and_leaves_too_little_is_named():
    """The second death names it as the first did."""
    said = advice.about_filling(
        Filling("the shuffle buffer of 4,000 examples", 0.8 * GIB, 0.8 * GIB), 0.05 * GIB
    )

    assert (
        "Shuffle buffer has filled: 819 MiB; it leaves too little for the training: "
        "shuffle(2400) would fit."
    ) == said


@pytest.mark.parametrize(
    ("filling", "room_gib", "expected"),
    [
        (
            Filling("the shuffle buffer of 40,000 examples", 4.1 * GIB, 12 * GIB), 2,
            ("Shuffle buffer still filling: 4.10 GiB of 12.0 GiB; it will not fit: "
            "shuffle(15000) would."),
        ),
        (
            Filling("the shuffle buffer of 40,000 examples", 4.1 * GIB, 12 * GIB), 11,
            "Shuffle buffer still filling: 4.10 GiB of 12.0 GiB; the rest fits.",
        ),
        (
            Filling("the cache in memory of 50,000 examples and more", GIB, 12 * GIB), 2,
            ("Cache in memory still filling: 1.00 GiB of 12.0 GiB; it will not fit: "
            "9,100 examples would."),
        ),
        (
            Filling("my own buffer", GIB, 12 * GIB), 2,
            "My own buffer still filling: 1.00 GiB of 12.0 GiB; it will not fit: make it smaller.",
        ),
        (
            Filling("the shuffle buffer of 3 batches", 0.0, 12 * GIB), 1,
            "Shuffle buffer still filling: 0 B of 12.0 GiB; it will not fit: make it smaller.",
        ),
    ],
)  # fmt: skip
def test_a_buffer_that_fills_is_told_with_what_would_fit(filling, room_gib, expected):
    """Room is what may be planned with; the number is one that a person would choose."""
    assert expected == advice.about_filling(filling, room_gib * GIB)


LINE = GrowingLine("/home/me/train.py", 42, 31 * 1024**2 * 100, 31.0 * 1024**2)
LIBRARY = GrowingLine("/venv/site-packages/torch/nn/linear.py", 134, 5000, 50.0, own=False)
SMALL = GrowingLine("/home/me/train.py", 57, 800, 8.0)


def grown(*lines: GrowingLine, tensors: tuple[MoreTensors, ...] = ()) -> MemoryGrowth:
    return MemoryGrowth(10.0, 100, None, lines, tensors, True)


@pytest.mark.parametrize(
    ("growth", "slope", "expected"),
    [
        (
            grown(LINE), 300e6,
            ["Python objects grow 31.0 MiB a step: line train.py:42 holds them."],
        ),
        (
            grown(LIBRARY, SMALL, tensors=(MoreTensors("Tensor", (64, 128), 4812),)), 100e6,
            ["4,812 more tensors of (64, 128) live than 10 s ago: a list or dict holds them."],
        ),
        (
            grown(tensors=(MoreTensors("EagerTensor", (7,), 50), MoreTensors("Tensor", (), 90))),
            1e6,
            ["50 more tensors of (7,) live than 10 s ago: a list or dict holds them.",
             "90 more tensors of () live than 10 s ago: a list or dict holds them."],
        ),
        (  # the second is neither made in each step nor large
            grown(LINE, tensors=(MoreTensors("Tensor", (999, 999), 5), MoreTensors("T", (), 9))),
            1e6,
            ["Python objects grow 31.0 MiB a step: line train.py:42 holds them.",
             "5 more tensors of (999, 999) live than 10 s ago: a list or dict holds them."],
        ),
        (grown(), 1e6, []),
        (grown(SMALL), 100e6, []),  # it explains nothing
        (
            MemoryGrowth(10.0, None, None, (replace(LINE, bytes_per_step=None),), (), True), None,
            ["Python objects grow 3.03 GiB in 10 s: line train.py:42 holds them."],
        ),
    ],
)  # fmt: skip
def test_what_grows_is_told_where_it_explains_the_growth(growth, slope, expected):
    """A line of the program before one of a library, where both are found."""
    assert expected == list(advice.about_growth(growth, slope))


def test_the_parts_are_told_largest_first_and_what_is_unknown_is_left_out():
    """And what they leave over, which is Python and libraries."""
    parts = MemoryParts(
        batch_size=256, weights_bytes=GIB, gradients_bytes=GIB, optimizer_bytes=None,
        activations_bytes=4 * GIB, resident_bytes=9 * GIB,
        buffers=(BufferMemory("the shuffle\nbuffer", 2 * GIB),), python_blocks_per_step=24.4,
    )  # fmt: skip

    assert [
        (
            "Its memory at batch 256: activations 4.00 GiB, the shuffle buffer 2.00 GiB, "
            "weights 1.00 GiB, gradients 1.00 GiB."
        ),
        "Besides: 1.00 GiB of Python, libraries and what is not known.",
        "Python keeps 24 more objects with each step.",
    ] == list(status.about_parts(parts))
    assert [] == list(status.about_parts(MemoryParts()))


def shortage(parts: MemoryParts, used_gib: float, limit_gib: float):
    """A stand-in with the parts of a shortage that are looked at."""
    machine = Machine(Program(10, "train.py", flat(100), save_s=1.0))
    reading = next(each for each in machine.readings() if each.key.kind.value == "ram")
    reading = replace(reading, used=used_gib * GIB, limit=limit_gib * GIB)
    agent = AgentState(machine._task(machine.programs[0]).key, "torch", "/r", memory=parts)
    task = machine._task(machine.programs[0])
    task = replace(task, rss_bytes=parts.resident_bytes)
    return SimpleNamespace(
        reading=reading, tasks={task.key: task}, spec=SPECS[reading.key.kind]
    ), agent


@pytest.mark.parametrize(
    ("activations_gib", "others_gib", "limit_gib", "expected"),
    [
        (9.8, 0.0, 8.0, ["Batch 256 needs 9.80 GiB of activations; 56 fits."]),
        (9.8, 1.5, 8.0, ["Batch 256 needs 9.80 GiB of activations; 24 fits."]),
        (9.8, 0.0, 40.0, []),  # they fit
        (0.5, 0.0, 14.0, []),  # they are not what it is about
        (9.8, 0.0, 3.0, [("Batch 256 needs 9.80 GiB of activations, and even batch 1 may not fit: "
                          "the model may be too large for what is left.")]),
    ],
)  # fmt: skip
def test_a_batch_that_is_too_large_is_told_with_one_that_fits(
    activations_gib, others_gib, limit_gib, expected
):
    """What the machine's other programs hold and what does not depend on the batch is kept."""
    parts = MemoryParts(
        batch_size=256, weights_bytes=GIB, gradients_bytes=GIB, optimizer_bytes=GIB,
        activations_bytes=int(activations_gib * GIB), resident_bytes=13 * GIB,
        base_bytes=int(2.2 * GIB),  # weights, and what Python and its libraries hold
    )  # fmt: skip
    about, agent = shortage(parts, 13 + others_gib, limit_gib)

    assert expected == list(advice._about_batch(about, agent.key, agent, parts))


@pytest.mark.parametrize(("slope_per_s", "told"), [(50e6, True), (0.0, False)])
def test_who_was_seen_growing_too_shortly_to_say_how_is_told_of_a_loop(slope_per_s, told):
    """A fast leak ends in some readings; without anybody who grew nothing is claimed."""
    contributor = SimpleNamespace(slope_bytes_per_s=slope_per_s)
    about = SimpleNamespace(
        regime=Regime.UNKNOWN,
        attribution=SimpleNamespace(contributors=(contributor,)),
    )

    assert told == any("keep float(loss)" in each for each in advice._by_regime(about))
