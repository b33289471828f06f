"""A supervisor's view of a segment without its snapshot: whether it is fresh, and its size."""

from __future__ import annotations

import zlib

import pytest

from watchdog_app.rescue.segment.segment import Segment, SegmentReader, open_request


@pytest.fixture
def page():
    with Segment(65536) as found:
        yield found


@pytest.fixture
def seen(page):
    return SegmentReader(page.fd)


def publish(page, step):
    def write(view):
        view[:] = b"table"
        return zlib.crc32(b"table")

    assert page.publish(step, 5, write)


def test_a_segment_is_fresh_at_the_boundary_that_was_published_and_never_in_a_step(page, seen):
    """A copier would find the same."""
    fresh = [seen.fresh]
    publish(page, 1)
    fresh.append(seen.fresh)
    page.step_begins()
    fresh.append(seen.fresh)

    assert [False, True, False] == fresh


def test_the_size_of_what_would_be_saved_is_known_without_reading_the_table(page, seen):
    """A training that cannot be copied from outside gives its size, too."""
    before = seen.state_bytes
    page.set_state_bytes(400_000_000)

    assert (0, 400_000_000) == (before, seen.state_bytes)


def test_a_request_to_save_is_answered_once_and_may_be_withdrawn(page, seen):
    """The agent answers with the rescue, or with the reason why there is none."""
    assert 0 == open_request(page.slots)
    number = seen.request_save()
    assert (number, None) == (open_request(page.slots), seen.save_answer(number))

    page.answer_save(number, 12, 99, "rescue-12")

    answer = seen.save_answer(number)
    assert (True, 12, 99, "rescue-12") == (answer.saved, answer.step, answer.bytes, answer.text)
    assert 0 == open_request(page.slots)

    second = seen.request_save()
    assert second != number
    page.answer_save(second, 0, 0, "The disk is full." * 100)
    assert not seen.save_answer(second).saved
    assert seen.save_answer(second).text.startswith("The disk is full.")

    seen.request_save()
    seen.cancel_save()
    assert 0 == open_request(page.slots)
