"""A supervisor's view of a segment without its snapshot: whether it is fresh, and its size."""

from __future__ import annotations

import zlib

import pytest

from watchdog_app.rescue.segment.segment import Segment
from watchdog_app.rescue.segment.segment_folder import claim


@pytest.fixture
def page(tmp_path):
    with Segment(claim(str(tmp_path), 5, 6)) as found:
        found.begin(5, 6)
        yield found


def publish(page, step, state_bytes=7):
    def write(view):
        view[:] = b"table"
        return zlib.crc32(b"table")

    assert page.publish(step, state_bytes, 5, write)


def test_a_page_is_fresh_at_the_boundary_that_was_published_and_never_within_a_step(page):
    """A copier would find the same."""
    seen = [page.fresh]
    publish(page, 1)
    seen.append(page.fresh)
    page.step_begins()
    seen.append(page.fresh)
    page.boundary(2)
    seen.append(page.fresh)

    assert [False, True, False, False] == seen


def test_the_size_of_what_would_be_saved_is_known_without_reading_the_table(page):
    """It is 0 before the first table."""
    before = page.state_bytes
    publish(page, 1, state_bytes=400_000_000)

    assert (0, 400_000_000) == (before, page.state_bytes)
