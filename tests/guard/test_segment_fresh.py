"""A supervisor's view of a segment without its snapshot: whether it is fresh, and its size."""

from __future__ import annotations

import zlib

import pytest

from watchdog_app.rescue.segment.segment import Segment, SegmentReader


@pytest.fixture
def page():
    with Segment(65536) as found:
        yield found


@pytest.fixture
def seen(page):
    return SegmentReader(page.fd)


def publish(page, step, state_bytes=7):
    def write(view):
        view[:] = b"table"
        return zlib.crc32(b"table")

    assert page.publish(step, state_bytes, 5, write)


def test_a_segment_is_fresh_at_the_boundary_that_was_published_and_never_in_a_step(page, seen):
    """A copier would find the same."""
    fresh = [seen.fresh]
    publish(page, 1)
    fresh.append(seen.fresh)
    page.step_begins()
    fresh.append(seen.fresh)
    page.boundary(2)
    fresh.append(seen.fresh)

    assert [False, True, False, False] == fresh


def test_the_size_of_what_would_be_saved_is_known_without_reading_the_table(page, seen):
    """It is 0 before the first table."""
    before = seen.state_bytes
    publish(page, 1, state_bytes=400_000_000)

    assert (0, 400_000_000) == (before, seen.state_bytes)
