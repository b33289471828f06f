"""Detection of the end of an iteration from lists of events, without a framework."""

from __future__ import annotations

import pytest

from watchdog_app.agent.found.detector import COMPUTE, DRAW, Detector

# The events of each loop. d: the loop draws a batch; c: the model computes; a number: that
# optimizer steps; |: the iteration ends here, and the detector reports it at the next event.
LOOPS = {
    "plain": ("dc1", DRAW),
    "no model is known": ("d1", DRAW),
    "accumulation": ("dcdcdc1", DRAW),
    "adversarial": ("dc1c2", DRAW),
    "critic steps five times": ("dc1dc1dc1dc1dc1c2", DRAW),
    "a batch for each of two": ("dc1dc2", DRAW),
    "three in turn": ("dc123", DRAW),
    "no loader": ("c1", COMPUTE),
    "no loader, adversarial": ("c1c2", COMPUTE),
    "no loader, a generator twice": ("c1c2c2", COMPUTE),
    "drawn ahead in the middle": ("cd1", COMPUTE),
    "drawn ahead, accumulation": ("cdcd1", COMPUTE),
}


def play(detector: Detector, events: str) -> list[int]:
    """Return the positions in `events` at which the detector reports the end of an iteration."""
    told = []
    for at, event in enumerate(events):
        if (event == "d" and detector.drawn()) or (event == "c" and detector.computes()):
            told.append(at)
        elif event.isdigit():
            detector.stepped(int(event))
    return told


@pytest.mark.parametrize("loop", LOOPS)
def test_the_end_of_an_iteration_is_told_at_the_first_event_of_the_next_alone(loop: str) -> None:
    """
    The detector never reports in the middle, and once it knows the loop it reports every iteration.
    """
    events, head = LOOPS[loop]
    detector = Detector()
    assert [] == play(detector, events * 3)
    detector.start_watching()

    told = play(detector, events * 40)

    assert head is detector.head
    assert {0} == {at % len(events) for at in told}
    assert len(told) >= 36


@pytest.mark.parametrize("loop", LOOPS)
def test_the_watch_may_begin_at_any_event(loop: str) -> None:
    """The agent can find a training in the middle of an iteration."""
    events, _ = LOOPS[loop]
    for first in range(len(events)):
        detector = Detector()
        play(detector, events * 3 + events[:first])
        detector.start_watching()

        told = play(detector, events[first:] + events * 40)

        assert {0} == {(at + first) % len(events) for at in told}, first


@pytest.mark.parametrize("loop", [each for each in LOOPS if not each.startswith("critic")])
def test_iterations_are_counted_from_the_first(loop: str) -> None:
    """The count includes iterations before the detector knows all optimizers."""
    detector = Detector()

    play(detector, LOOPS[loop][0] * 9)

    assert 9 == detector.iterations


def test_nothing_is_told_of_a_loop_whose_beginning_is_not_clear() -> None:
    """The loop computes before and after it draws, so its start is unknown."""
    detector = Detector()
    detector.start_watching()

    assert [] == play(detector, "cdc1" * 80)
    assert detector.head is None


def test_a_loop_that_takes_to_a_loader_or_leaves_it_is_learned_anew() -> None:
    """A loop may keep its batches, or read a loader again later."""
    detector = Detector()
    detector.start_watching()
    play(detector, "dc1" * 5)

    kept = play(detector, "c1" * 10)
    again = play(detector, "dc1" * 10)

    assert DRAW is detector.head
    assert {0} == {at % 2 for at in kept}
    assert {0} == {at % 3 for at in again[2:]}


def test_what_was_learned_stays_where_it_is_not_always_told_that_the_model_computes() -> None:
    """Otherwise a loop that draws ahead would look like one that draws first."""
    detector = Detector()
    detector.start_watching()
    play(detector, "cd1" * 5)
    detector.stop_watching()

    assert [] == play(detector, "d1" * 10)
    assert [0] == play(detector, "cd1")


def test_an_optimizer_that_comes_later_ends_the_iteration_where_it_is_the_last() -> None:
    """Unfrozen layers have their own optimizer, after the first one or before it."""
    for events in ("dc12", "dc21"):
        detector = Detector()
        detector.start_watching()
        play(detector, "dc1" * 20)
        before = detector.iterations

        told = play(detector, events * 20)

        assert {0} == {at % 4 for at in told}
        assert 20 == detector.iterations - before


def test_one_that_steps_no_more_is_waited_for_no_more() -> None:
    """A warm-up's optimizer stays alive after its last step."""
    detector = Detector()
    detector.start_watching()
    play(detector, "dc1" * 20)

    told = play(detector, "dc2" * 400)

    assert detector.has_idle_optimizer
    assert told
    assert {0} == {at % 3 for at in told[-10:]}


def test_whether_a_step_is_under_way_is_known() -> None:
    """If memory runs out between two optimizers of one iteration, the state is inconsistent."""
    detector = Detector()
    play(detector, "dc1c2" * 4)

    seen = [detector.is_between_iterations]
    for event in "1", "2", "d":
        play(detector, event)
        seen.append(detector.is_between_iterations)

    assert [True, False, True, True] == seen


@pytest.mark.parametrize("events", ["c1", "dc1"])
def test_an_optimizer_that_goes_on_alone_makes_the_iterations(events: str) -> None:
    """The layers of a network are trained one after the other, each with its own optimizer."""
    detector = Detector()
    detector.start_watching()
    play(detector, events * 12)

    told = play(detector, events.replace("1", "2") * 20)

    assert len(told) >= 9
    assert detector.is_between_iterations
