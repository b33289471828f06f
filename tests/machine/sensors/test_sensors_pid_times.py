"""A time for each of many pids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchdog_app.machine.sensors.pid_times import PidTimes

PIDS = st.integers(1, 40)


@given(
    st.lists(st.tuples(PIDS, st.none() | st.floats(0, 1e9))),
    st.sets(st.integers(1, 50)),
)
def test_it_holds_what_a_dict_holds(steps: list[tuple[int, float | None]], asked: set[int]):
    """Put, replaced, dropped, dropped again; in order."""
    times, expected = PidTimes(), dict[int, float]()
    for pid, time_s in steps:
        if time_s is None:
            times.drop(pid)
            expected.pop(pid, None)
        else:
            times.put(pid, time_s)
            expected[pid] = time_s

    assert sorted(expected) == list(times)
    assert len(expected) == len(times)
    assert [expected.get(pid) for pid in range(60)] == [times.get(pid) for pid in range(60)]
    assert [pid in expected for pid in range(60)] == [pid in times for pid in range(60)]
    assert sorted(asked - expected.keys()) == times.absent(sorted(asked))


def test_what_is_dropped_meanwhile_does_not_disturb_a_round():
    """Each is met once, those that are gone too: whoever goes round asks for them."""
    times = PidTimes()
    for pid in (5, 3, 9):
        times.put(pid, 1.0)
    met = []
    for pid in times:
        met.append(pid)
        times.drop(pid)

    assert [3, 5, 9] == met
    assert 0 == len(times)
