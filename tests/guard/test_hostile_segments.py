"""Another process writes the page, so nothing in it is trusted."""

from __future__ import annotations

import ctypes
import json
import os
import struct

import pytest

from watchdog_app.guard import copier
from watchdog_app.guard.copier import CopyError
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.segment import segment, segment_folder
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.memory import Gathering
from watchdog_app.rescue.segment.segment import Segment
from watchdog_app.rescue.segment.snapshot import Marker

ME = this_process()
STEP = 7


class Published:
    """This process, which publishes a large tensor, a small one and a counter."""

    def __init__(self, folder):
        self.rescues = folder / "rescues"
        self.rescues.mkdir()
        self.path = str(folder / "page")
        segment_folder.make_segment(self.path, 512 * 1024)
        self.memory = ctypes.create_string_buffer(bytes(range(256)) * 32)
        self.counter = ctypes.c_uint64(5)
        self.address = ctypes.addressof(self.memory)
        self.page = Segment(self.path)
        self.page.begin(ME.pid, ME.start_time)

    def publish(self, static=None, changing=None, addresses=None, samples=None):
        """Publish as the agent does, with the fields that a test changes."""
        nbytes = 8192
        known = {
            "owner": str(ME),
            "directory": str(self.rescues),
            "keep": 2,
            "tensors": [["large", "U8", [nbytes], nbytes, None], ["small", "I64", [], 8, 0]],
            "meta": {"step": 0, "reason": "", "kind": "test", "deep": {"of": [1, 2]}},
        }
        news = json.loads(
            tables.changing_text(
                STEP,
                [Marker(ctypes.addressof(self.counter), 5)],
                [(("step",), STEP), (("deep", "of", 1), 3)],
            )
        )
        places = [(self.address + at, tables.SAMPLE_BYTES) for at in tables.sample_places(nbytes)]
        parts = (
            json.dumps((static or (lambda it: it))(known)).encode(),
            json.dumps((changing or (lambda it: it))(news)).encode(),
            struct.pack("<Q", self.address) if addresses is None else addresses,
            bytes(Gathering(places).take()) if samples is None else samples,
            (42).to_bytes(8, "little"),
        )
        self.page.publish(
            STEP, nbytes + 8, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts)
        )

    def check(self):
        return copier.check(ME.pid, ME.start_time, self.path)

    def copy(self, **words):
        return copier.copy(ME.pid, ME.start_time, self.path, **words)


@pytest.fixture
def published(tmp_path):
    """A page that is published once, with valid content."""
    found = Published(tmp_path)
    found.publish()
    yield found
    found.page.close()


def test_what_is_published_is_copied(published):
    """Both tensors, and the meta with its changed fields."""
    seen = published.check()
    saved = published.copy(reason="a test", directory=str(published.rescues))
    with LoadedRescue(saved.path) as loaded:
        loaded.verify()
        assert bytes(published.memory)[:8192] == bytes(loaded.read("large"))
        assert 42 == int.from_bytes(loaded.read("small"), "little")
        known = {"kind": "test", "deep": {"of": [1, 3]}, "not_restored": []}
        assert {"step": STEP, "reason": "a test", **known} == dict(loaded.meta)
    assert ("ready", STEP) == (seen.state, saved.step)
    assert ME == this_process()


def test_a_step_that_has_begun_is_seen(published):
    """The page's step, the counter in memory and the sampled elements show it."""
    published.counter.value += 1
    counted = published.check()
    published.counter.value -= 1
    published.memory[8191] = b"\0"
    changed = published.check()
    published.memory[8191] = bytes([255])
    again = published.check()
    published.page.boundary(STEP + 1)
    stale = published.check()
    published.page.step_begins()
    begun = published.check()
    found = [each.state for each in (counted, changed, again, stale, begun)]
    assert ["in_step", "in_step", "ready", "stale", "in_step"] == found
    assert "begun to change" in counted.why
    assert f"it stands at {STEP + 1}" in stale.why


def test_a_training_that_moves_while_it_is_copied_leaves_nothing(published, monkeypatch):
    """The copy would mix two states: no rescue is left, complete or partial."""
    read = copier.ProcessMemory.read_into

    def moves(memory, place, address):
        read(memory, place, address)
        if len(place) > tables.SAMPLE_BYTES:
            published.page.step_begins()

    monkeypatch.setattr(copier.ProcessMemory, "read_into", moves)
    with pytest.raises(CopyError, match="went on while it was copied"):
        published.copy()
    assert [] == os.listdir(published.rescues)


def test_a_copy_whose_time_is_up_leaves_nothing(published):
    """The disk may be slower than the deadline."""
    with pytest.raises(CopyError, match="time was up"):
        published.copy(deadline_s=-1.0)
    assert [] == os.listdir(published.rescues)


def put(**fields):
    return lambda known: {**known, **fields}


def first(*row):
    return lambda known: {**known, "tensors": [list(row), known["tensors"][1]]}


@pytest.mark.parametrize(
    "tampered",
    [
        {"static": put(owner="../../etc/passwd")},
        {"static": put(owner="1.2.aaaaaaaa/../x")},
        {"static": put(owner=7)},
        {"static": put(directory="relative")},
        {"static": put(directory="/tmp/a\0b")},
        {"static": put(directory=["/tmp"])},
        {"static": put(keep=0)},
        {"static": put(keep=True)},
        {"static": put(meta=[])},
        {"static": put(tensors={"a": 1})},
        {"static": put(tensors=[["small", "I64", [], 8, 1]])},
        {"static": put(tensors=[["small", "I64", [], 8, -1]])},
        {"static": first("large", "U8", [2**50], 2**50, None)},
        {"static": first("large", "U8", [2**70], 2**70, None)},
        {"static": first("large", "U8", [-1], -1, None)},
        {"static": first("large", "U8", [8192], 8191, None)},
        {"static": first("large", "OBJECT", [8192], 8192, None)},
        {"static": first("large", "U8", [8192.0], 8192, None)},
        {"static": first("large", "U8", [1] * 300, 1, None)},
        {"static": first(["large"], "U8", [8192], 8192, None)},
        {"static": first("large", "U8", [8], 8, None)},
        {"changing": put(step=-1)},
        {"changing": put(step=10**30)},
        {"changing": put(news=[[["absent", "deeper"], 1]])},
        {"changing": put(news=[[[], 1]])},
        {"changing": put(news=[[["step", 0], 1]])},
        {"changing": put(news=7)},
        {"changing": put(markers=[[0, 1]])},
        {"changing": put(markers=[[4096, 1]] * 9)},
        {"changing": put(markers=[[2**62, 1]])},
        {"changing": put(markers=[[1]])},
        {"addresses": b""},
        {"addresses": struct.pack("<Q", 0)},
        {"addresses": struct.pack("<Q", 4096)},
        {"addresses": struct.pack("<Q", 2**64 - 4096)},
        {"addresses": struct.pack("<QQ", 4096, 4096)},
        {"addresses": b"1234567"},
        {"samples": b""},
        {"samples": bytes(64)},
    ],
    ids=" ".join,
)
def test_a_table_that_lies_is_never_copied(tmp_path, tampered):
    """No rescue and no file is left, and the result says why."""
    published = Published(tmp_path)
    published.publish(**tampered)
    before = sorted(os.listdir(tmp_path))
    seen = published.check()
    assert "ready" != seen.state
    assert seen.why
    with pytest.raises(CopyError):
        published.copy()
    assert [] == os.listdir(published.rescues)
    assert before == sorted(os.listdir(tmp_path))
    published.page.close()


@pytest.mark.parametrize(
    ("slot", "value"),
    [(0, 1), (1, 99), (3, 1), (4, 1), (6, 2), (6, 2**63), (24, 2**63 - 1), (25, 2**60), (26, 1)],
)
def test_a_header_that_lies_is_never_copied(published, slot, value):
    """The cases are magic, version, owner, area, stamp, length and checksum."""
    with open(published.path, "r+b") as file:
        file.seek(8 * slot)
        file.write(value.to_bytes(8, "little"))
    assert "ready" != published.check().state
    with pytest.raises(CopyError):
        published.copy()
    assert [] == os.listdir(published.rescues)


@pytest.mark.parametrize("text", ["[" * 20_000, "nonsense", '{"owner": 1', "", "\xff"])
def test_a_table_that_is_no_json_is_never_copied(published, text):
    """Too deep, truncated, and not JSON at all."""
    parts = (text.encode("latin-1"), b"{}", b"", b"", b"")
    published.page.publish(
        STEP, 1, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts)
    )
    assert "damaged" == published.check().state


def test_a_page_that_is_no_file_of_ours_is_not_opened(published, tmp_path):
    """A link, a folder, a pipe, an empty file and a missing file are not pages."""
    link, pipe, empty = tmp_path / "link", tmp_path / "pipe", tmp_path / "empty"
    link.symlink_to(published.path)
    os.mkfifo(pipe)
    empty.touch()
    for path in (link, pipe, empty, tmp_path):
        assert "damaged" == copier.check(ME.pid, ME.start_time, str(path)).state, path
    assert "none" == copier.check(ME.pid, ME.start_time, str(tmp_path / "no")).state
    assert "damaged" == copier.check(ME.pid, ME.start_time + 1, published.path).state


def test_nothing_is_written_outside_of_what_was_registered(tmp_path):
    """The copier refuses another folder, a link to one, and a missing one."""
    published = Published(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(other)
    published.publish(static=put(directory=str(other)))
    with pytest.raises(CopyError, match="had registered"):
        published.copy(directory=str(published.rescues))
    for directory in (str(link), str(tmp_path / "absent"), str(published.path)):
        published.publish(static=put(directory=directory))
        with pytest.raises(CopyError):
            published.copy()
    assert [] == os.listdir(other)
    published.page.close()


def test_a_kill_between_any_two_writes_leaves_a_whole_table(published):
    """The old table or the new one; a partly written table does not count."""
    before = published.page.newest()

    def killed(view):
        view[:16] = bytes(16)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        published.page.publish(STEP + 1, 1, 1000, killed)
    after = published.page.newest()
    assert (before.sequence, before.step, before.body) == (after.sequence, after.step, after.body)
    assert 1 == published.page.sequence % 2


def test_a_table_too_long_for_its_page_is_not_published(published):
    """The table that was published before is stale."""
    assert not published.page.publish(STEP, 1, 300_000, lambda _: 0)
    assert "stale" == published.check().state


def test_a_process_finds_its_own_page_the_spare_one_or_makes_it(tmp_path):
    """The watching process makes the page, if there is one, so that its memory counts there."""
    where = str(tmp_path / "pages" / "of")
    segment_folder.make_folder(where)
    assert segment_folder.make_spare(where, 262144)
    assert not segment_folder.make_spare(where, 262144)
    first_path = segment_folder.claim(where, 11, 22)
    second_path = segment_folder.claim(where, 11, 23)
    assert 262144 == os.path.getsize(first_path)
    assert segment.SEGMENT_BYTES == os.path.getsize(second_path)
    assert first_path == segment_folder.claim(where, 11, 22)
    assert {"11.22", "11.23"} == set(os.listdir(where))


def test_pages_of_ended_processes_are_cleared_away(tmp_path):
    """Nothing else is removed."""
    where = str(tmp_path)
    mine = segment_folder.segment_path(where, ME.pid, ME.start_time)
    for path in (
        mine,
        segment_folder.segment_path(where, 2**22 + 1, 5),
        os.path.join(where, "spare"),
    ):
        segment_folder.make_segment(path, 262144)
    segment_folder.remove_ended(where)
    assert {os.path.basename(mine), "spare"} == set(os.listdir(where))
