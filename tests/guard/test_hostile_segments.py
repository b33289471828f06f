"""Another process writes the segment, so nothing in it is trusted."""

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
from watchdog_app.rescue.segment import snapshot as tables
from watchdog_app.rescue.segment.exchange import Offer
from watchdog_app.rescue.segment.segment import Segment
from watchdog_app.rescue.segment.snapshot import Gathering, Marker

ME = this_process()
STEP = 7


class Published:
    """This process, which publishes a large tensor, a small one and a counter."""

    def __init__(self, folder):
        self.rescues = folder / "rescues"
        self.rescues.mkdir()
        self.memory = ctypes.create_string_buffer(bytes(range(256)) * 32)
        self.counter = ctypes.c_uint64(5)
        self.address = ctypes.addressof(self.memory)
        self.page = Segment(512 * 1024)
        self.offer = self.offered()

    def offered(self, start_time=ME.start_time, directory=None):
        """What a watcher gets of this process."""
        fds = [os.dup(self.page.fd), os.open("/proc/self/mem", os.O_RDONLY)]
        return Offer(ME.pid, start_time, directory or str(self.rescues), fds)

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
            STEP, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts)
        )

    def check(self):
        return copier.check(self.offer)

    def copy(self, **words):
        return copier.copy(self.offer, **words)


@pytest.fixture
def published(tmp_path):
    """A segment that is published once, with valid content."""
    found = Published(tmp_path)
    found.publish()
    yield found
    found.page.close()


def test_what_is_published_is_copied(published):
    """Both tensors, and the meta with its changed fields."""
    seen = published.check()
    saved = published.copy(reason="a test")
    with LoadedRescue(saved.path) as loaded:
        loaded.verify()
        assert bytes(published.memory)[:8192] == bytes(loaded.read("large"))
        assert 42 == int.from_bytes(loaded.read("small"), "little")
        known = {"kind": "test", "deep": {"of": [1, 3]}, "not_restored": []}
        assert {"step": STEP, "reason": "a test", **known} == dict(loaded.meta)
    assert ("ready", STEP) == (seen.state, saved.step)
    assert ME == this_process()


def test_a_step_that_has_begun_is_seen(published):
    """The segment's step, the counter in memory and the sampled elements show it."""
    published.counter.value += 1
    counted = published.check()
    published.counter.value -= 1
    published.memory[8191] = b"\0"
    changed = published.check()
    published.memory[8191] = bytes([255])
    again = published.check()
    published.page.step_begins()
    begun = published.check()
    found = [each.state for each in (counted, changed, again, begun)]
    assert ["in_step", "in_step", "ready", "in_step"] == found
    assert "begun to change" in counted.why
    assert f"since step {STEP}" in begun.why


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
        {"changing": put(news=[[["deep", "of", [3]], [4]]])},
        {"changing": put(news=[[["deep", "of", []], [4]]])},
        {"changing": put(news=[[["deep", [0]], [4]]])},
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
    [(1, 2**63), (2, 2), (2, 2**63), (16, 2**63 - 1), (17, 2**60), (18, 1), (17, 0), (16, 0)],
)
def test_a_header_that_lies_is_never_copied(published, slot, value):
    """The cases are sequence, area, stamp, length and checksum."""
    os.pwrite(published.page.fd, value.to_bytes(8, "little"), 8 * slot)
    assert "ready" != published.check().state
    with pytest.raises(CopyError):
        published.copy()
    assert [] == os.listdir(published.rescues)


@pytest.mark.parametrize("text", ["[" * 20_000, "nonsense", '{"owner": 1', "", "\xff"])
def test_a_table_that_is_no_json_is_never_copied(published, text):
    """Too deep, truncated, and not JSON at all."""
    parts = (text.encode("latin-1"), b"{}", b"", b"", b"")
    published.page.publish(
        STEP, tables.snapshot_bytes(parts), lambda view: tables.write(view, parts)
    )
    assert "damaged" == published.check().state


@pytest.mark.parametrize("at", [0, 4096, 256 * 1024], ids=["header", "area 0", "area 1"])
def test_a_punched_hole_is_zeros_that_are_never_copied(published, at):
    """The size is sealed, but its owner can give the pages back."""
    punch_hole(published.page.fd, at, 4096 if at == 0 else 200 * 1024)

    assert ("ready" == published.check().state) is (at == 4096)  # area 1 was published
    if at != 4096:
        with pytest.raises(CopyError):
            published.copy()
        assert [] == os.listdir(published.rescues)


def punch_hole(fd, at, length):
    """See fallocate(2)."""
    library = ctypes.CDLL(None, use_errno=True)
    keep_size, punch = 1, 2
    places = (ctypes.c_long(at), ctypes.c_long(length))
    assert 0 == library.fallocate(fd, keep_size | punch, *places), os.strerror(ctypes.get_errno())


def test_the_offer_of_another_process_with_this_pid_is_not_copied(published):
    """The start time differs."""
    other = published.offered(ME.start_time + 1)

    assert "none" == copier.check(other).state
    with pytest.raises(CopyError, match="it has ended"):
        copier.copy(other)


def test_memory_that_is_another_programs_by_now_is_not_copied(published):
    """After exec or its end a process's memory reads as empty: here a file stands for it."""
    fds = [os.dup(published.page.fd), os.memfd_create("ended")]
    ended = Offer(ME.pid, ME.start_time, str(published.rescues), fds)

    assert "damaged" == copier.check(ended).state
    with pytest.raises(CopyError, match="the memory ends there"):
        copier.copy(ended)


def test_nothing_is_written_outside_of_what_was_offered(tmp_path):
    """The copier refuses another folder, a link to one, and a missing one."""
    published = Published(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    link = tmp_path / "link"
    link.symlink_to(other)
    (tmp_path / "file").touch()
    published.publish(static=put(directory=str(other)))
    with pytest.raises(CopyError, match="had offered"):
        published.copy()
    for directory in (str(link), str(tmp_path / "absent"), str(tmp_path / "file")):
        published.publish(static=put(directory=directory))
        with pytest.raises(CopyError):
            copier.copy(published.offered(directory=directory))
    assert [] == os.listdir(other)
    published.page.close()


def test_a_kill_between_any_two_writes_leaves_a_whole_table(published):
    """The old table or the new one; a partly written table does not count."""
    before = published.offer.segment.newest()

    def killed(view):
        view[:16] = bytes(16)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        published.page.publish(STEP + 1, 1000, killed)
    after = published.offer.segment.newest()
    assert (before.sequence, before.step, before.body) == (after.sequence, after.step, after.body)
    assert 1 == published.page.sequence % 2


def test_a_table_too_long_for_its_segment_is_not_published(published):
    """The table that was published before is invalid."""
    assert not published.page.publish(STEP, 300_000, lambda _: 0)
    assert "in_step" == published.check().state
