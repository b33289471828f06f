"""Passes over data in a custom loop: a new process gets the batches that were not trained yet."""

from __future__ import annotations

import json

import numpy as np
import pytest

from watchdog_app.agent.adapters.passes import COUNTED, LAZY, Passes, repeat_pass
from watchdog_app.agent.found.tensorflow_passes import WatchedPasses
from watchdog_app.base.errors import RescueMismatch


class Shuffled:
    """Counts its passes as a reshuffling data set does: each pass has other values."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([10 * self.passes + index for index in range(4)])


def silent(_message: str) -> None:
    pass


def resumed(passes: Passes) -> Passes:
    """Restore the state through JSON, as another process would."""
    fresh = Passes(silent)
    fresh.continue_from(json.loads(json.dumps(passes.position())))
    return fresh


def arrivals() -> tuple[list[int], object]:
    seen: list[int] = []
    return seen, lambda: seen.append(1)


def test_a_pass_goes_on_after_the_batches_that_were_had():
    """In the second epoch after one batch: the same order and the other three batches."""
    passes, data = Passes(silent), Shuffled()
    list(passes.run(data, silent_arrival))
    passes.new_epoch()
    next(passes.run(data, silent_arrival))

    fresh = Shuffled()
    seen, arrived = arrivals()
    rest = list(resumed(passes).run(fresh, arrived))

    assert [21, 22, 23] == rest
    assert 2 == fresh.passes
    assert [1] == seen


@pytest.mark.parametrize("longer", [0, 1])
def test_what_zip_leaves_is_no_break(longer: int):
    passes = Passes(silent)
    sizes = (3, 5) if longer else (5, 3)
    both = [passes.run(list(range(size)), silent_arrival) for size in sizes]
    assert 3 == len(list(zip(*both, strict=False)))
    passes.new_epoch()

    assert not passes.lost
    for _ in zip(passes.run([1, 2, 3], silent_arrival), strict=True):
        break
    passes.new_epoch()
    assert [COUNTED] == passes.lost


class Counted(list):
    """Batches whose number is known."""

    __hash__ = object.__hash__


def test_another_number_of_batches_is_an_error_that_names_both():
    """With another batch size the position in the data has no meaning."""
    passes = Passes(silent)
    next(passes.run(Counted(range(20)), silent_arrival))

    with pytest.raises(RescueMismatch, match="10 batches in the program, 20 in the rescue"):
        next(resumed(passes).run(Counted(range(10)), silent_arrival))


def test_the_number_of_batches_of_a_pass_that_had_ended_does_not_matter():
    """A validation that is now shorter was complete then."""
    passes = Passes(silent)
    list(passes.run(Counted(range(4)), silent_arrival))
    next(passes.run(Counted(range(20)), silent_arrival))

    again = resumed(passes)

    assert [] == list(again.run(Counted(range(2)), silent_arrival))
    assert list(range(1, 20)) == list(again.run(Counted(range(20)), silent_arrival))


def test_a_finished_pass_of_the_epoch_gives_nothing_and_the_next_goes_on():
    """An epoch has two data sets, and the interruption comes in the second."""
    passes, first, second = Passes(silent), Shuffled(), Shuffled()
    list(passes.run(first, silent_arrival))
    running = passes.run(second, silent_arrival)
    next(running), next(running)

    again = resumed(passes)
    one, two = Shuffled(), Shuffled()

    assert [] == list(again.run(one, silent_arrival))
    assert [12, 13] == list(again.run(two, silent_arrival))


def test_passes_after_the_resumed_epoch_are_those_of_an_uninterrupted_loop():
    """The skipped data set has made as many passes as without the interruption."""
    passes, first, second = Passes(silent), Shuffled(), Shuffled()
    list(passes.run(first, silent_arrival))
    next(passes.run(second, silent_arrival))
    again, one, two = resumed(passes), Shuffled(), Shuffled()
    list(again.run(one, silent_arrival))
    list(again.run(two, silent_arrival))
    again.new_epoch()

    assert [20, 21, 22, 23] == list(again.run(one, silent_arrival))
    assert [20, 21, 22, 23] == list(again.run(two, silent_arrival))


def test_a_place_that_the_epoch_had_not_reached_keeps_its_passes():
    """Validation data of earlier epochs; the interruption comes before it in the next epoch."""
    passes, train, held_out = Passes(silent), Shuffled(), Shuffled()
    list(passes.run(train, silent_arrival))
    list(passes.run(held_out, silent_arrival))
    passes.new_epoch()
    next(passes.run(train, silent_arrival))
    again, train, held_out = resumed(passes), Shuffled(), Shuffled()
    seen, arrived = arrivals()
    list(again.run(train, silent_arrival))

    assert [20, 21, 22, 23] == list(again.run(held_out, arrived))
    assert [] == seen


def test_data_sets_set_again_in_each_epoch_start_at_their_first_pass():
    """Data sets that no longer exist at the save were made for one pass."""
    passes = Passes(silent)
    for _ in range(3):
        list(passes.run(Shuffled(), silent_arrival))
        passes.new_epoch()
    again = resumed(passes)

    assert [10, 11, 12, 13] == list(again.run(Shuffled(), silent_arrival))


def test_a_generator_goes_on_where_it_was_over_all_epochs():
    """The generator is never recreated, so every batch since its start is drawn again."""
    passes, numbers = Passes(silent), iter(range(100))
    for _ in range(2):
        running = passes.run(numbers, silent_arrival)
        assert [next(running) for _ in range(3)]
        passes.new_epoch()
    running = passes.run(numbers, silent_arrival)
    assert [6, 7] == [next(running), next(running)]
    again, numbers = resumed(passes), iter(range(100))

    assert 8 == next(again.run(numbers, silent_arrival))


def test_a_second_rescue_before_a_place_was_reached_knows_what_the_first_knew():
    """After two interruptions the second rescue keeps what the first one recorded."""
    passes, train, held_out = Passes(silent), Shuffled(), Shuffled()
    list(passes.run(train, silent_arrival))
    list(passes.run(held_out, silent_arrival))
    passes.new_epoch()
    next(passes.run(train, silent_arrival))
    second = resumed(passes)
    train = Shuffled()
    next(second.run(train, silent_arrival))
    third, train, held_out = resumed(second), Shuffled(), Shuffled()

    assert [22, 23] == list(third.run(train, silent_arrival))
    assert [20, 21, 22, 23] == list(third.run(held_out, silent_arrival))


def test_the_batch_is_counted_over_the_resume():
    """The reported batch counts from the start of the epoch, not of the process."""
    passes = Passes(silent)
    running = passes.run(Shuffled(), silent_arrival)
    next(running), next(running)
    again = resumed(passes)
    assert again.batch is None

    next(again.run(Shuffled(), silent_arrival))

    assert 3 == again.batch


def silent_arrival() -> None:
    pass


def shuffled_by_global_numbers():
    """A generator that draws a new order every four batches."""
    while True:
        yield from np.random.permutation(4)


@pytest.mark.parametrize("loop_draws", [False, True])
def test_an_order_that_depends_on_what_the_loop_draws_is_said_to_be_lost(loop_draws):
    """If only the data draws, it draws the same again; here the loop also draws in between."""
    np.random.seed(1)
    passes = Passes(silent)
    batches = passes.run(shuffled_by_global_numbers(), silent_arrival)
    for _ in range(9):
        next(batches)
        if loop_draws:
            np.random.rand()

    assert [LAZY] * loop_draws == passes.lost


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "build",
    [
        lambda rows: rows.shuffle(8, seed=1).batch(2),
        lambda rows: rows.shuffle(8, seed=1).map(lambda x: x + 1).shuffle(4, seed=2).batch(2),
        lambda rows: rows.shuffle(8, seed=1).repeat(2).batch(2),
    ],
    ids=["one shuffle", "a shuffle behind another one", "a repeated shuffle"],
)
def test_a_pass_that_is_not_read_advances_the_order_as_a_whole_one(build):
    """The third pass has the same batches after two that were read and after two that were not."""
    import tensorflow as tf

    read, repeated = (build(tf.data.Dataset.range(8)) for _ in range(2))
    for _ in range(2):
        list(read)
        repeat_pass(repeated)

    assert [each.tolist() for each in read.as_numpy_iterator()] == [
        each.tolist() for each in repeated.as_numpy_iterator()
    ]


class Endless(Shuffled):
    """Repeats without an end, as a tf.data set says it."""

    def _inputs(self) -> tuple[()]:
        return ()

    def cardinality(self) -> int:
        return -1


def test_what_counts_endless_data_is_named_unless_a_resume_continues_it():
    passes = Passes(silent)
    next(passes.run(Endless(), silent_arrival))
    assert [COUNTED] == passes.lost

    passes.set_numbered()

    assert not passes.lost


def test_a_found_loop_over_endless_data_names_no_counter():
    """Its lines continue the numbers, and the audit names counters that are lost."""
    passes, data = WatchedPasses(), Endless()
    made = passes.add_pass(data, "here")
    made.iterator = lambda: data
    passes.count_batch(made)

    passes.match_step()

    assert made.trains
    assert not passes.lost


def test_a_training_that_begins_in_a_pass_of_another_one_counts_it():
    """A second function may make the steps of the loop, from a later batch on."""
    passes, data, began = WatchedPasses(), Endless(), []
    for _epoch in range(2):
        made = passes.add_pass(data, "here")
        made.iterator = lambda: data
        for batch in range(3):
            passes.count_batch(made)
            passes.match_step()
            if not began and batch == 1:
                passes = WatchedPasses(passes)
                began.append(passes)
        made.finished = True

    (place,) = passes.position().values()
    assert (1, 3) == (place["passes"], place["drawn"])
