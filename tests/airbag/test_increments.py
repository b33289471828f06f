"""A table that is brought to a later step by a few hundred bytes, which are not believed either."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from watchdog_app.agent.reporting.identity import own
from watchdog_app.agent.saving.loaded import LoadedRescue
from watchdog_app.airbag import copying, increments, page_folder
from watchdog_app.airbag import table as tables
from watchdog_app.airbag.foreign_memory import Gathering
from watchdog_app.airbag.increments import FINITE, NUMBER, TRUTH, WHOLE
from watchdog_app.airbag.page import Page

ME = own()
STEP = 7
META = {"step": 0, "reason": "", "batch": 1, "done": False, "loss": 2.5, "noise": None}
META |= {"words": [1, 2, 3], "more": 4, "deep": [{"state": 0}]}
VALUES = [(["batch"], WHOLE), (["done"], TRUTH), (["loss"], NUMBER), (["noise"], FINITE)]
NUMBERS = [(["words"], 3), (["more"], None)]


class Moving:
    """This process, with a tensor whose buffer moves, and a number that is counted."""

    def __init__(self, folder):
        self.rescues = folder / "rescues"
        self.rescues.mkdir()
        self.path = str(folder / "page")
        page_folder.make(self.path, 512 * 1024)
        self.first, self.second = (
            ctypes.create_string_buffer(each * 8192) for each in (b"a", b"b")
        )
        self.buffer = (ctypes.c_uint64 * 3)(0, 0, ctypes.addressof(self.first))
        self.told = ctypes.c_uint64(ctypes.addressof(self.buffer))
        self.counter = ctypes.c_uint64(5)
        self.words = [ctypes.addressof(self.told), ctypes.addressof(self.counter)]
        self.page = Page(self.path)
        self.page.begin(ME.pid, ME.start_time)

    def publish(self, **changes):
        """A table as of `STEP` with a plan."""
        plan = increments.plan(VALUES, NUMBERS, self.words[:1], self.words[1:], 16)
        static = tables.static_text(
            owner=str(ME),
            directory=str(self.rescues),
            keep=2,
            tensors=[("large", "U8", [8192], 8192, None)],
            meta=META,
            plan={**plan, **changes},
        )
        address = self.buffer[2]
        pieces = [(address + at, tables.SAMPLE_BYTES) for at in tables.sample_places(8192)]
        changing = tables.changing_text(STEP, (), [(("step",), STEP)])
        samples = bytes(Gathering(pieces).take())
        parts = (static, changing, struct.pack("<Q", address), samples, b"")
        self.page.publish(STEP, 8192, tables.length_of(parts), lambda at: tables.write(at, parts))
        self.base = self.page.sequence
        return self

    def move(self):
        """A step: the tensor lies elsewhere, and the first place holds other bytes."""
        self.buffer[2] = ctypes.addressof(self.second)
        ctypes.memset(self.first, 0, 8192)
        self.counter.value += 1

    def add(self, body=None, step=STEP + 1):
        """As the agent does at the boundary of a later step."""
        self.page.add(self.base, step, self.body() if body is None else body)

    def body(self, noted=()):
        values = struct.pack("<2q2d", 2, 1, float("inf"), float("nan"))
        pieces = [(each, 8) for each in (*self.words, *(self.buffer[2] + at for at in noted))]
        words = bytes(Gathering(pieces).take())
        numbers = struct.pack("<4I", 9, 8, 7, 6)
        return increments.body(values, words, numbers, b'[[["deep", 0, "state"], 1]]')

    def look(self):
        return copying.look(ME.pid, ME.start_time, self.path)


@pytest.fixture
def moving(tmp_path):
    """Published as of a step, and a step further."""
    found = Moving(tmp_path).publish()
    found.move()
    yield found
    found.page.close()


def test_a_later_step_is_copied_from_where_its_tensors_lie_by_then(moving):
    """With every value that is another, in its kind."""
    before = moving.look()
    moving.add()
    seen = moving.look()
    saved = copying.copy(ME.pid, ME.start_time, moving.path)

    assert ("in_step", "ready", STEP + 1) == (before.state, seen.state, seen.step)
    with LoadedRescue(saved.path) as loaded:
        loaded.verify()
        assert b"b" * 8192 == bytes(loaded.read("large"))
        told = {**loaded.meta, "reason": ""}
    later = {"step": STEP + 1, "batch": 2, "done": True, "loss": float("inf"), "noise": None}
    later |= {"words": [9, 8, 7], "more": 6, "deep": [{"state": 1}]}
    assert {**META, **later} == told


def test_whatever_has_moved_since_then_is_seen(moving):
    """A number that was counted, another buffer, and a step that is of no table."""
    moving.add()
    moving.counter.value += 1
    counted = moving.look()
    moving.counter.value -= 1
    moving.told.value += 8
    moved = moving.look()
    moving.told.value -= 8
    again = moving.look()
    moving.page.boundary(STEP + 2)
    further = moving.look()
    moving.page.add(moving.base - 2, STEP + 2, moving.body())
    of_another = moving.look()
    moving.page.step_begins()
    begun = moving.look()

    found = [each.state for each in (counted, moved, again, further, of_another, begun)]
    assert ["in_step", "in_step", "ready", "stale", "stale", "in_step"] == found


def test_what_is_written_into_a_tensor_where_it_lies_is_seen(tmp_path):
    """A callback that steps an optimizer of its own moves no word: a copy would be torn."""
    moving = Moving(tmp_path).publish(noted=[[0, 4096]])
    moving.move()
    moving.add(moving.body(noted=[4096]))
    before = moving.look()
    ctypes.memset(ctypes.addressof(moving.second) + 4096, 0, 1)
    written = moving.look()

    assert ("ready", "in_step") == (before.state, written.state)
    with pytest.raises(copying.CopyError):
        copying.copy(ME.pid, ME.start_time, moving.path)
    moving.page.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0" * 7,
        b"\xff" * 200,
        increments.body(b"", b"", b"", b""),
        increments.body(b"\0" * 32, b"\0" * 16, b"\0" * 4, b""),
        increments.body(b"\0" * 32, b"\0" * 16, b"", b"[[[1"),
        increments.body(b"\0" * 32, b"\0" * 16, b"", b"[7]"),
        increments.body(b"\0" * 32, b"\0" * 16, b"", b'[[["no", "such"], 1]]'),
        increments.body(b"\0" * 32, b"\0" * 16, b"", b"[" * 9000),
        increments.body(b"\0" * 8 + b"\2" * 8 + b"\0" * 16, b"\0" * 16, b"", b""),
    ],
)
def test_an_increment_that_says_what_none_can_is_refused(moving, body):
    """Lengths, text, places that are not there, a truth that is two."""
    moving.add(body)

    assert moving.look().state in ("damaged", "in_step")
    with pytest.raises(copying.CopyError):
        copying.copy(ME.pid, ME.start_time, moving.path)
    assert [] == os.listdir(moving.rescues)


@pytest.mark.parametrize(
    "changes",
    [
        {"places": []},
        {"places": [0]},
        {"places": [2**63]},
        {"places": ["4096"]},
        {"counters": [[]]},
        {"counters": [2**47]},
        {"hop": -8},
        {"hop": 2**40},
        {"hop": 0},
        {"values": 7},
        {"values": [[["batch"], "number of"]] * 4},
        {"values": [[[], WHOLE]] * 4},
        {"numbers": [[["words"], 2**40]]},
        {"numbers": None},
        {"raw": 7},
        {"raw": [[["words"], 4]]},
        {"raw": [[["words"], 2**40]]},
        {"noted": 7},
        {"noted": [[0, 4096]]},
        {"noted": [[0, 8185]]},
        {"noted": [[1, 0]]},
    ],
)
def test_a_plan_that_says_what_none_can_is_refused(tmp_path, changes):
    """And nothing is left behind."""
    moving = Moving(tmp_path).publish(**changes)
    moving.add()

    assert moving.look().state in ("damaged", "in_step")
    with pytest.raises(copying.CopyError):
        copying.copy(ME.pid, ME.start_time, moving.path)
    assert [] == os.listdir(moving.rescues)
    moving.page.close()
