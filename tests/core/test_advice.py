"""Advice from what an agent knows, for memory in workers, and for groups that swap."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.records import GIB, process, task

from watchdog_app.core.explain import advice, status
from watchdog_app.core.explain.advice import Filling, Shortage
from watchdog_app.core.model.agent import AgentState, GrowingLine, MemoryGrowth, MoreTensors
from watchdog_app.core.model.decisions import Attribution, Contributor, Regime
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessSample
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.status import Buffer, MemoryParts


@pytest.mark.parametrize("count", [500, 2000, 4000, 100_000])
@pytest.mark.parametrize("base", [0.2, 0.3, 0.5])
@pytest.mark.parametrize("filled", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("each", [0.6, 0.8, 1.0, 1.2])
def test_what_is_advised_fits_with_the_overhead_of_its_elements_and_the_first_step(
    count, base, filled, each
):
    """In a group of 1,100 MiB the advised buffer size leaves room for the training."""
    limit = 1100 * 1024**2
    bytes_ = 3.0 * GIB
    taken = filled * limit
    room = max(0.0, 0.9 * limit - base * limit - taken)

    said = advice.filling_advice(
        Filling(f"the shuffle buffer of {count:,} examples", taken, bytes_), room
    )

    found = re.search(r"shuffle\((\d+)\)", said)
    buffer = 0.0 if found is None else int(found[1]) * bytes_ / count * each
    assert base * limit + buffer + 256 * 1024**2 <= 0.9 * limit + 1
    assert "Shuffle buffer still filling" in said


def test_the_same_number_is_advised_however_far_the_buffer_has_filled():
    """What the buffer holds so far does not count, because the next run starts without it."""
    told = {
        advice.filling_advice(
            Filling("the shuffle buffer of 4,000 examples", filled * GIB, 3 * GIB),
            (0.8 - filled) * GIB,
        ).rpartition(":")[2]
        for filled in (0.0, 0.2, 0.5, 0.8)
    }

    assert 1 == len(told)


def test_a_buffer_that_has_filled_and_leaves_too_little_is_named():
    """The second death gives the same advice as the first."""
    said = advice.filling_advice(
        Filling("the shuffle buffer of 4,000 examples", 0.8 * GIB, 0.8 * GIB), 0.05 * GIB
    )

    assert (
        "Shuffle buffer has filled: 819 MiB; it may leave too little for the training: "
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
    """The room is what the training may plan with; the advice is a round number."""
    assert expected == advice.filling_advice(filling, room_gib * GIB)


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
        (  # the second line neither allocates in each step nor is large
            grown(LINE, tensors=(MoreTensors("Tensor", (999, 999), 5), MoreTensors("T", (), 9))),
            1e6,
            ["Python objects grow 31.0 MiB a step: line train.py:42 holds them.",
             "5 more tensors of (999, 999) live than 10 s ago: a list or dict holds them."],
        ),
        (grown(), 1e6, []),
        (grown(SMALL), 100e6, []),  # too small to explain the growth
        (
            MemoryGrowth(10.0, None, None, (replace(LINE, bytes_per_step=None),), (), True), None,
            ["Python objects grow 3.03 GiB in 10 s: line train.py:42 holds them."],
        ),
    ],
)  # fmt: skip
def test_what_grows_is_told_where_it_explains_the_growth(growth, slope, expected):
    """A line of the program comes before a line of a library if both were found."""
    assert expected == list(advice.growth_advice(growth, slope))


def test_the_parts_are_told_largest_first_and_what_is_unknown_is_left_out():
    """The remainder is Python and its libraries."""
    parts = MemoryParts(
        batch_size=256, weights_bytes=GIB, gradients_bytes=GIB, optimizer_bytes=None,
        activations_bytes=4 * GIB, resident_bytes=9 * GIB,
        buffers=(Buffer(what="the shuffle\nbuffer", bytes=2 * GIB),), python_blocks_per_step=24.4,
    )  # fmt: skip

    assert [
        (
            "Its memory at batch 256: activations 4.00 GiB, the shuffle buffer 2.00 GiB, "
            "weights 1.00 GiB, gradients 1.00 GiB."
        ),
        "Besides: 1.00 GiB of Python, libraries and what is not known.",
        "Python keeps 24 more objects with each step.",
    ] == list(status.memory_part_lines(parts))
    assert [] == list(status.memory_part_lines(MemoryParts()))


def shortage(
    *members: ProcessSample,
    kind: ResourceKind = ResourceKind.CGROUP,
    agent: MemoryParts | bool = True,
    slope: float = 1.0,
    per_s: float = 0.0,
    **reading: float,
) -> Shortage:
    """
    A task of these processes that grows steadily in 3 of 4 GiB; its agent runs in the first
    process.
    """
    about = replace(task(*members), rss_bytes=sum(each.rss_bytes for each in members))
    parts = agent if isinstance(agent, MemoryParts) else None
    known = (AgentState(about.key, "torch", "/r", memory=parts),)
    values = {"used": 3.0 * GIB, "limit": 4.0 * GIB, **reading}
    return Shortage(
        Reading(ResourceKey(kind, "x"), "x", fatal=True, tasks=(about.key,), **values),
        Attribution((Contributor(about.key, about.name, slope, 1.0),), 0.0, 2.0),
        Regime.LINEAR, 0.0, {about.key: about}, {about.key: known} if agent else {},
        SwapTraffic(per_s, per_s),
    )  # fmt: skip


@pytest.mark.parametrize(("framework", "expected"), [("torch", True), ("tensorflow", False)])
def test_a_full_card_is_told_of_pytorch_only_where_it_may_be_used(framework, expected):
    """Without an agent the framework is not known."""
    given = shortage(member(3), kind=ResourceKind.GPU_MEMORY)
    agents = {key: (AgentState(key, framework, "/r"),) for key in given.agents}

    assert expected is ("In PyTorch, del" in told(given, agents=agents))
    assert "In PyTorch, del" in told(given, agents={})


def member(gib: float, shared: float = 0.0, cow: float = 0.0, pid: int = 4711) -> ProcessSample:
    """A process; sizes in GiB."""
    return process(pid, rss=gib * GIB, shared_bytes=int(shared * GIB), cow_bytes=int(cow * GIB))


def told(given: Shortage, **changes: object) -> str:
    return " ".join(advice.build_advice(replace(given, **changes)))


@pytest.mark.parametrize(
    ("activations_gib", "others_gib", "limit_gib", "expected"),
    [
        (9.8, 0.0, 8.0, ["Batch 256 needs 9.80 GiB of activations; 56 fits."]),
        (9.8, 1.5, 8.0, ["Batch 256 needs 9.80 GiB of activations; 24 fits."]),
        (9.8, 0.0, 40.0, []),  # the activations fit
        (0.5, 0.0, 14.0, []),  # the activations are not the cause
        (9.8, 0.0, 3.0, [("Batch 256 needs 9.80 GiB of activations, and even batch 1 may not fit: "
                          "the model may be too large for what is left.")]),
    ],
)  # fmt: skip
def test_a_batch_that_is_too_large_is_told_with_one_that_fits(
    activations_gib, others_gib, limit_gib, expected
):
    """The advice reserves what other programs hold and what does not depend on the batch size."""
    parts = MemoryParts(
        batch_size=256, weights_bytes=GIB, gradients_bytes=GIB, optimizer_bytes=GIB,
        activations_bytes=int(activations_gib * GIB), resident_bytes=13 * GIB,
        base_bytes=int(2.2 * GIB),  # weights, Python and its libraries
    )  # fmt: skip
    used = {"used": (13 + others_gib) * GIB, "limit": limit_gib * GIB}
    found = advice.build_advice(shortage(member(13), kind=ResourceKind.RAM, agent=parts, **used))

    assert expected == [each for each in found if each.startswith("Batch")]


@pytest.mark.parametrize(("slope", "named"), [(50e6, True), (0.0, False)])
def test_who_was_seen_growing_too_shortly_to_say_how_is_told_of_a_loop(slope, named):
    """A fast leak may end after a few samples; without a growing task the advice blames no loop."""
    said = told(shortage(member(3.0), slope=slope), regime=Regime.UNKNOWN)

    assert named is ("keep float(loss)" in said)


def test_a_task_whose_workers_hold_its_memory_is_told_so():
    """The workers hold the memory, so the advice does not mention tensors in lists."""
    said = told(shortage(member(0.5), *[member(0.75, pid=pid) for pid in range(4712, 4716)]))

    assert "3.00 GiB of 3.50 GiB are copies in 4 workers" in said
    assert "fewer workers" in said
    assert "keep float(loss)" not in said


@pytest.mark.parametrize(
    "members",
    [
        (member(3.0), member(0.2, pid=4712), member(0.2, pid=4713)),
        (member(3.0), member(3.0, shared=2.9, pid=4712)),
        (member(3.0), member(3.0, cow=2.9, pid=4712)),  # a fork shares the pages of its parent
        (member(3.0),),
    ],
)
def test_workers_that_hold_little_of_their_own_are_not_blamed(members):
    """Pages that a worker shares with the task are not a copy."""
    said = told(shortage(*members))

    assert "worker" not in said
    assert "keep float(loss)" in said


def test_one_worker_is_one():
    """The sentence uses the singular."""
    assert "2.00 GiB of 2.50 GiB are copies in 1 worker:" in told(
        shortage(member(0.5), member(2.0, pid=4712))
    )


def test_a_worker_that_is_the_training_is_not_blamed():
    """Below a launcher the worker is the training itself, so fewer workers would not help."""
    worker = member(2.0, pid=4712)
    given = shortage(member(0.1), worker)
    agents = {key: (AgentState(worker.key, "torch", "/r"),) for key in given.agents}

    said = told(given, agents=agents)

    assert "worker" not in said
    assert "keep float(loss)" in said


def test_a_group_that_swaps_is_told_of_the_group_and_not_of_the_machine():
    """The user need not close other programs if the machine has room."""
    said = told(shortage(member(3.0), swapped=1.0 * GIB, per_s=40e6))

    assert said.startswith("The group swaps (38.1 MiB/s read back)")
    assert "The machine is thrashing" not in said
    assert "raise the limit" in said


def test_a_machine_that_thrashes_is_told_of_as_such():
    """This holds for the machine's own RAM, and for a group that has nothing in swap."""
    assert told(shortage(member(3.0), kind=ResourceKind.RAM, per_s=40e6)).startswith(
        "The machine is thrash"
    )
    assert told(shortage(member(3.0), per_s=40e6)).startswith("The machine is thrashing")


def test_a_task_without_an_agent_is_told_how_to_get_one():
    """The advice is one line and works for any framework."""
    assert "watchdog exec -- python" in told(shortage(member(3.0), agent=False))
    assert "has no agent" not in told(shortage(member(3.0)))


@pytest.mark.parametrize("regime", [Regime.UNKNOWN, Regime.FLAT, Regime.FALLING])
def test_a_group_that_is_full_and_that_nobody_is_known_to_have_filled_is_not_said_to_grow(regime):
    """
    A group that was full at the first sample has no known culprit: blame no loop and no missing
    agent.
    """
    said = told(shortage(member(3.0), agent=False), regime=regime, attribution=Attribution())

    assert "grows" not in said
    assert "watchdog exec" not in said
    assert "The limit belongs to a group" in said


def test_a_buffer_that_fills_is_the_growth():
    """The filling buffer explains the growth, so the advice does not mention tensors in lists."""
    given = shortage(member(3.0))
    buffer = Filling("the shuffle buffer of 100 examples", GIB, 9.0 * GIB)

    said = told(given, filling=dict.fromkeys(given.tasks, buffer))

    assert "Shuffle buffer still filling" in said
    assert "keep float(loss)" not in said


@pytest.mark.parametrize("agent", [True, False])
def test_at_the_limit_of_a_guard_the_words_to_type_come_first(agent):
    """watchdog exec started it and set its limit, so the advice starts with `watchdog limit`."""
    given = shortage(member(3.0), kind=ResourceKind.GUARD, agent=agent, used=3.9 * GIB)

    said = told(given)

    assert said.startswith("While it runs or is stopped, give it more: watchdog limit 4711 6G")
    assert "watchdog exec" not in said
    assert "belongs to a group" not in said
