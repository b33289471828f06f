"""What the journal keeps, and which failures it survives."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import time

import pytest
from support.waiting import until

from watchdog_app.base.errors import WatchdogError
from watchdog_app.daemon import offline
from watchdog_app.history import journal as journal_module
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.past import open_read_only
from watchdog_app.history.series import Downsampler, Pace, Point, SeriesPoints
from watchdog_app.history.writer import JournalWriter

DAY_S = 86400.0
MIB = 1024 * 1024


@pytest.fixture
def journal(tmp_path):
    """A journal in a separate folder."""
    opened = Journal(str(tmp_path / "state"), 14 * DAY_S, 64 * MIB)
    yield opened
    opened.close()


def entry(unix_s: float, kind: str = "incident", **data) -> Entry:
    return Entry(unix_s, kind, data, pid=data.get("pid"), name=data.get("name"))


def points(ident: str, *values, kind: str = "task", **more) -> SeriesPoints:
    found = [Point(unix_s, used, limit) for unix_s, used, limit in values]
    return SeriesPoints(ident, kind, more.pop("name", ident), "bytes", found, **more)


def test_what_is_written_is_read_newest_first(journal):
    """Entries come back complete, with their time and kind."""
    journal.add([entry(1.0, label="a"), entry(3.0, label="c"), entry(2.0, label="b")])

    found = journal.history()

    assert [
        {"unix_s": 3.0, "kind": "incident", "label": "c"},
        {"unix_s": 2.0, "kind": "incident", "label": "b"},
        {"unix_s": 1.0, "kind": "incident", "label": "a"},
    ] == found


def test_exits_that_are_not_notable_come_on_request_alone(journal):
    """They do not count for the limit."""
    journal.add([
        entry(1.0, "exit", notable=True),
        entry(2.0, "exit", notable=False),
        entry(3.0, "exit", notable=True),
        entry(5.0, "daemon"),
    ])  # fmt: skip

    def times(**wanted) -> list[float]:
        return [each["unix_s"] for each in journal.history(**wanted)]

    assert [3.0, 1.0] == times(kinds=("exit",), limit=2)
    assert [3.0, 2.0, 1.0] == times(kinds=("exit",), all_exits=True)
    assert [5.0, 3.0, 1.0] == times()


def test_entries_are_found_by_task_time_kind_and_number(journal):
    """A pid or a part of a name in any case matches; bounds are inclusive."""
    journal.add([
        entry(1.0, "decision", pid=7, name="Über train.ipynb"),
        entry(2.0, "outcome", pid=8, name="other.py"),
        entry(3.0, "exit", pid=7, name="Über train.ipynb"),
    ])  # fmt: skip

    def times(**wanted):
        return [found["unix_s"] for found in journal.history(**wanted)]

    assert [3.0, 1.0] == times(task="7")
    assert [3.0, 1.0] == times(task="Über TRAIN")
    assert [2.0] == times(kinds=["outcome"])
    assert [3.0] == times(limit=1)
    assert [2.0, 1.0] == times(until_unix_s=2.0)
    assert [3.0, 2.0] == times(since_unix_s=2.0)


@pytest.mark.parametrize(
    "name", ["a\udcff\udc80.py", "日本.ipynb", "'; DROP TABLE entries; --", "%_", ""]
)
def test_any_name_of_a_file_can_be_written_and_found(journal, name):
    """Invalid UTF-8, other scripts, quotes and wild cards: names are data."""
    journal.add([Entry(1.0, "exit", {"name": name}, pid=7, name=name, path="/x/" + name)])
    journal.add((), [points("i", (1.0, 5.0, None), name=name, path="/x/" + name)])

    assert [name] == [found["name"] for found in journal.history(task=name)]
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert [(shown, "/x/" + shown)] == [(s["name"], s["path"]) for s in journal.series()]


def test_series_are_read_by_task_with_the_ceilings_above_it(journal):
    """The task's series come first, then those of its resources, and none of another task."""
    journal.add((), [
        points("ram:", (1.0, 50.0, 100.0), kind="ram"),
        points("cgroup:/x", (1.0, 5.0, 10.0), (2.0, 6.0, 10.0), kind="cgroup"),
        points("b:7:1", (1.0, 4.0, None), pid=7, resources=["cgroup:/x"]),
        points("b:8:1", (1.0, 9.0, None), pid=8, resources=["ram:"]),
    ])  # fmt: skip

    found = journal.series(task="7")

    assert ["b:7:1", "cgroup:/x"] == [each["ident"] for each in found]
    assert [[1.0, 5, 10, None], [2.0, 6, 10, None]] == found[1]["points"]
    assert [[2.0, 6, 10, None]] == journal.series("7", since_unix_s=1.5)[0]["points"]
    assert 4 == len(journal.series())


def test_ceilings_are_linked_also_after_a_restart(tmp_path):
    """The next daemon knows a resource that an earlier one recorded."""
    folder = str(tmp_path)
    first = Journal(folder, DAY_S, MIB)
    first.add((), [points("ram:", (1.0, 50.0, 100.0), kind="ram")])
    first.close()
    second = Journal(folder, DAY_S, MIB)

    second.add((), [points("b:7:1", (2.0, 4.0, None), pid=7, resources=["ram:"])])

    assert ["b:7:1", "ram:"] == [each["ident"] for each in second.series(task="7")]
    second.close()


def test_a_number_that_json_lacks_is_no_point(journal):
    """Infinite and undefined values become unknown."""
    journal.add((), [points("i", (1.0, float("inf"), float("nan")))])

    assert [[1.0, None, None, None]] == journal.series()[0]["points"]


def test_what_is_too_old_is_forgotten(journal):
    """Old entries and points are deleted, and so are series without points."""
    now = 100 * DAY_S
    journal.add(
        [entry(now - 15 * DAY_S), entry(now - 13 * DAY_S)],
        [points("old", (now - 15 * DAY_S, 1.0, None)), points("new", (now - 1, 1.0, None))],
    )

    journal.trim(now)

    assert [now - 13 * DAY_S] == [found["unix_s"] for found in journal.history()]
    assert ["new"] == [found["ident"] for found in journal.series()]


def test_a_clock_that_stands_far_ahead_costs_nothing_of_what_was_written(journal, tmp_path):
    """The clock may jump while the journal is open, or be wrong at the machine's start."""
    now = time.time()
    written = [entry(now - day * DAY_S) for day in range(1, 12)]
    journal.add(written, [points("i", (now - 11 * DAY_S, 1.0, None), (now, 1.0, None))])

    journal.trim(now + 30 * DAY_S)
    jumped = len(journal.history())
    journal.close()
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr(time, "time", lambda: now + 30 * DAY_S)
        booted = Journal(str(tmp_path / "state"), 14 * DAY_S, 64 * MIB)
    booted.trim(now + 30 * DAY_S)

    assert (11, 11) == (jumped, len(booted.history()))
    assert 2 == len(booted.series()[0]["points"])
    booted.close()


def test_what_is_old_is_forgotten_after_a_long_absence_too(journal, tmp_path, monkeypatch):
    """Entries age with the time that passes, and at once for the next daemon."""
    now = time.time()
    journal.add([entry(now - day * DAY_S) for day in range(30, 40)])
    journal.close()
    passed_s = 0.0
    monkeypatch.setattr(journal_module, "since_boot_s", lambda: 1000.0 + passed_s)

    first = Journal(str(tmp_path / "state"), 14 * DAY_S, 64 * MIB)
    first.trim(now)
    at_once = len(first.history())
    first.add([entry(now)])
    passed_s = 12.5 * DAY_S
    first.trim(now + passed_s)
    later = len(first.history())
    first.close()
    second = Journal(str(tmp_path / "state"), 14 * DAY_S, 64 * MIB)
    second.trim(now + DAY_S)

    assert (10, 2, 1) == (at_once, later, len(second.history()))
    second.close()


def test_what_is_too_much_is_forgotten_oldest_first(tmp_path):
    """The newest entries stay, and the file stays within its bound."""
    bound = MIB // 2
    journal = Journal(str(tmp_path), 14 * DAY_S, bound)
    for start in range(0, 50_000, 5000):
        many = [(float(t), float(t * 4096), None) for t in range(start, start + 5000)]
        journal.add([entry(float(start))], [points("i", *many)])
    assert journal.size_bytes() > bound

    journal.trim(50_000.0)

    assert journal.size_bytes() <= bound
    kept = journal.series(limit=50_000)[0]["points"]
    assert 49_999.0 == kept[-1][0]
    assert len(kept) > 2500
    journal.close()
    assert os.path.getsize(tmp_path / "journal.db") < 2 * bound


def test_bounds_too_small_to_keep_end_the_trimming(tmp_path):
    """A bound below the size of an empty file causes no endless loop."""
    journal = Journal(str(tmp_path), DAY_S, 1)
    journal.add([entry(1.0)])

    journal.trim(2.0)

    assert 1 >= len(journal.history(limit=10))
    journal.close()


@pytest.mark.parametrize(
    "damage",
    [
        "garbage",
        "middle",
        "truncated",
        # of the right version and intact, but it could never be written
        "DROP TABLE state",
        "DROP TABLE points",
        "ALTER TABLE entries RENAME data TO datum",
        "PRAGMA user_version=99",
    ],
)
def test_a_damaged_journal_is_set_aside_and_a_new_one_begun(tmp_path, damage):
    """The damaged file is kept, and the new one works."""
    path = tmp_path / "journal.db"
    first = Journal(str(tmp_path), DAY_S, 64 * MIB)
    first.add([entry(float(n), text="x" * 500) for n in range(2000)])
    first.close()
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data[:100] = b"no database at all  " * 5
    elif damage == "middle":
        data[8192 : len(data) // 2] = b"\xaa" * (len(data) // 2 - 8192)
    elif damage == "truncated":
        data = data[: len(data) // 2 + 100]
    path.write_bytes(data)
    if " " in damage:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            db.execute(damage)

    second = Journal(str(tmp_path), DAY_S, 64 * MIB)

    assert second.set_aside is not None
    assert os.path.exists(second.set_aside)
    second.add([entry(5.0)], [points("s", (5.0, 1.0, None))])
    assert [5.0] == [found["unix_s"] for found in second.history()]
    second.close()


def test_a_damaged_row_hides_no_other(tmp_path, monkeypatch):
    """SQLite's check misses a flipped bit inside a text: the other rows are still read."""
    with contextlib.closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        journal.add([entry(1.0), entry(2.0), entry(3.0)])
        for key in ("a", "b"):
            journal.save_state(key, {"of": key})
    for what in ("[1]", "{bad", '"' + "[" * 100_000, "7"):
        with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db, db:
            db.execute("UPDATE entries SET data = ? WHERE unix_ms = 2000", (what,))
            db.execute("UPDATE state SET data = ? WHERE key = 'a'", (what,))

        with open_read_only(str(tmp_path)) as journal:
            assert [3.0, 1.0] == [each["unix_s"] for each in journal.history()]
            assert (None, {"of": "b"}) == (journal.load_state("a"), journal.load_state("b"))


def test_where_no_pause_can_be_read_it_is_not_said_that_there_is_none(tmp_path, monkeypatch):
    """Without a daemon, both copies damaged: `resume` searches for stopped tasks."""
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "paused.json").write_text("{bad")

    for ask in (lambda: offline.resume(None), offline.paused):
        with pytest.raises(WatchdogError, match="cannot be read"):
            ask()


def test_only_a_few_damaged_journals_are_kept(tmp_path):
    """The newest three are kept."""
    for n in range(5):
        (tmp_path / f"journal.db.damaged-2020010{n}-000000").write_bytes(b"old")
    (tmp_path / "journal.db").write_bytes(b"garbage, certainly no database" * 100)

    Journal(str(tmp_path), DAY_S, MIB).close()

    assert 3 == len([name for name in os.listdir(tmp_path) if "damaged" in name])


def test_state_is_kept(journal):
    """A second write replaces the first."""
    journal.save_state("engine", {"x": 0})
    journal.save_state("engine", {"x": 1})

    assert {"x": 1} == journal.load_state("engine")
    assert journal.load_state("other") is None


# The writer thread


@pytest.fixture
def writer(tmp_path):
    """A writer whose journal is open."""
    made = JournalWriter(str(tmp_path / "state"), DAY_S, 64 * MIB, lambda: None)
    made.open()
    yield made
    made.close(10)


def ask(writer, job):
    """The value of a job in the writer's thread."""
    found: list = []
    writer.submit(job, lambda value, error: found.append((value, error)))
    until(lambda: writer.collect() or found)
    value, error = found[0]
    if error is not None:
        raise error
    return value


def test_a_disk_that_hangs_makes_a_crowd_wait_no_longer_than_one(writer):
    """500 ends at once: sampling continues, and all of them are recorded when the disk answers."""
    hung, go_on = threading.Event(), threading.Event()

    def hang(_: Journal) -> None:
        hung.set()
        go_on.wait(60)

    writer.submit(hang)
    assert hung.wait(20)
    spent = []
    try:
        for number in range(500):
            began = time.monotonic()
            assert not writer.write_durably([entry(time.time(), label=f"x{number}")], 0.04)
            spent.append(time.monotonic() - began)
    finally:
        go_on.set()

    # Before the fix each of them waited 0.02 s: 10 s together.
    assert sum(spent) < 5
    until(lambda: writer.write_durably([entry(time.time(), label="last")], 1.0))


def test_what_has_to_be_kept_waits_for_one_question_and_not_for_a_crowd(writer):
    """A decision or a pause's record comes before clients that only read."""
    began, go_on, order = threading.Event(), threading.Event(), []

    def first(_: Journal) -> None:
        began.set()
        go_on.wait(60)

    def done(*_: object) -> None:
        pass

    writer.query(first, done, lambda: True)
    assert began.wait(20)
    for _ in range(3):
        writer.query(lambda _: order.append("read"), done, lambda: True)
    writer.submit(lambda _: order.append("kept"))
    go_on.set()

    assert 1 == ask(writer, lambda _: 1)
    until(lambda: len(order) == 4)
    assert ["kept", "read", "read", "read"] == order


def test_nothing_is_read_for_a_client_that_has_gone(writer):
    """It also gets no answer."""
    told, read = [], []
    go_on = threading.Event()
    writer.submit(lambda _: go_on.wait(60))
    writer.query(lambda _: read.append("gone"), lambda *_: told.append("gone"), lambda: False)
    writer.query(lambda _: read.append("there"), lambda *_: told.append("there"), lambda: True)
    go_on.set()

    until(lambda: writer.collect() or told)

    assert ["there"] == read == told


def test_a_durable_entry_is_on_the_disk_when_it_returns(writer, tmp_path):
    """Another connection sees it while the first is still open."""
    assert writer.write_durably([entry(time.time(), label="x")], 10)

    other = sqlite3.connect(tmp_path / "state" / "journal.db")
    assert [("incident",)] == other.execute("SELECT kind FROM entries").fetchall()
    other.close()


def test_what_was_handed_over_is_there_for_the_next_question(writer):
    """A query sees every earlier entry, although entries are written in batches."""
    now = time.time()
    writer.add(entry(now))
    writer.add_series([points("i", (now, 5.0, None))])

    assert 1 == len(ask(writer, lambda journal: journal.history()))
    assert 1 == len(ask(writer, lambda journal: journal.series()))


def test_the_end_writes_everything_out(tmp_path):
    """A clean end loses nothing that was submitted."""
    writer = JournalWriter(str(tmp_path), DAY_S, MIB, lambda: None)
    writer.open()
    writer.add(entry(time.time()))
    writer.close(10)

    journal = Journal(str(tmp_path), DAY_S, MIB)
    assert 1 == len(journal.history())
    journal.close()


def test_a_journal_that_cannot_be_opened_is_said(tmp_path):
    """The folder is a file: the fault says so, and a history query gets the error."""
    (tmp_path / "state").write_text("a file")
    writer = JournalWriter(str(tmp_path / "state"), DAY_S, MIB, lambda: None)
    assert writer.open() is None

    assert not writer.write_durably([entry(1.0, "decision", pid=7), entry(2.0, "exit")], 5)

    assert "cannot be written" in writer.fault.message
    found: list = []
    writer.query(Journal.history, lambda _, error: found.append(error), lambda: True)
    until(lambda: writer.collect() or found)
    assert "cannot be written" in str(found[0])
    writer.close(5)


def test_a_full_disk_degrades_and_recovers(writer):
    """While nothing can be written the fault stays; afterwards nothing is missing."""
    limit_pages(writer, 1)
    now = time.time()
    big = [entry(now - n, "decision", text="x" * 2000) for n in range(50)]
    assert not writer.write_durably(big, 10)
    assert writer.fault is not None

    # The limit belongs to the failed connection; the next attempt opens another.
    assert writer.write_durably([entry(now)], 10)

    assert writer.fault is None
    found = ask(writer, lambda journal: journal.history(limit=100))
    assert 51 == len(found)


def limit_pages(writer, extra: int) -> None:
    """Simulate a full disk: SQLite may add this many pages and no more."""

    def limit(journal):
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count={pages + extra}").fetchall()

    ask(writer, limit)


def test_an_entry_that_cannot_be_written_takes_no_other_along(writer):
    """The entries before and after it in the same batch are recorded."""
    now = float(int(time.time()))
    broken = Entry(now, "incident", {}, pid=2**80)
    circle: dict = {}
    circle["itself"] = circle

    assert writer.write_durably(
        [entry(now), broken, entry(now + 1), Entry(now, "decision", circle), entry(now + 2)], 10
    )

    found = ask(writer, lambda journal: journal.history())
    assert [now + 2, now + 1, now] == [e["unix_s"] for e in found]
    assert any("left out" in note for note in writer.notes)


def test_a_group_whose_name_is_no_utf8_is_a_series_like_others(tmp_path):
    """The name of a group or folder may hold any byte; entries of the same batch stay."""
    odd = "cgroup:/jobs/\udcff\udcfe"
    with contextlib.closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        journal.add(
            [Entry(1.0, "exit", {"n": 1})],
            [
                SeriesPoints(odd, "cgroup", "\udcff", "bytes", [Point(1.0, 5.0)]),
                SeriesPoints("b:1:1", "task", "a", "bytes", [Point(1.0, 5.0)], 1, resources=[odd]),
            ],
        )

        found = journal.series(task="1")

        assert ["a", "\\udcff"] == [each["name"] for each in found]
        assert 1 == len(journal.history())
        assert [] == journal.series(task="\ud800")


def test_what_is_written_is_synced_now_and_then_without_a_decision(tmp_path, monkeypatch):
    """A failed disk may lose everything since the last sync, so the daemon must notice it soon."""
    said: list[str] = []

    def synced() -> bool:
        journal.add([entry(1.0)])
        found = any("synchronous=FULL" in each for each in said)
        said.clear()
        return found

    with contextlib.closing(Journal(str(tmp_path), 1e9, 1 << 20)) as journal:
        journal._db.set_trace_callback(said.append)  # fsync itself is up to SQLite and the kernel
        began, after_s = time.monotonic(), 0.0
        monkeypatch.setattr(time, "monotonic", lambda: began + after_s)

        found = []
        for after_s in (0.0, 30.0, 61.0, 62.0, 100.0, 122.0):
            found.append((after_s, synced()))

    assert [61.0, 122.0] == [after_s for after_s, yes in found if yes]


def test_a_question_that_fails_is_answered_with_its_error(writer):
    """The thread keeps running."""

    def bad(_):
        raise KeyError("x")

    with pytest.raises(KeyError):
        ask(writer, bad)
    assert [] == ask(writer, lambda journal: journal.history())


def test_nothing_is_done_while_there_is_nothing_to_write(tmp_path, monkeypatch):
    """Entries at rest are written by the first turn after their delay."""
    from watchdog_app.history import writer as journal_writer

    monkeypatch.setattr(journal_writer, "_AT_REST_S", 0.05)
    turns, written = threading.Semaphore(0), threading.Event()
    in_place, add = Journal.is_file_current, Journal.add
    monkeypatch.setattr(Journal, "is_file_current", lambda self: turns.release() or in_place(self))
    monkeypatch.setattr(Journal, "add", lambda self, *a: (add(self, *a), written.set()))
    writer = JournalWriter(str(tmp_path / "state"), DAY_S, 64 * MIB, lambda: None)
    writer.open()

    writer.collect()
    assert not turns.acquire(timeout=0.2)

    writer.add_series([points("a", (1.0, 5.0, 9.0))], at_rest=True)
    until(lambda: writer.collect() or written.is_set())
    writer.close(10)


# Points that are kept


def keep(values, unit: str = "bytes", pace=lambda t: Pace.REST) -> list[tuple[float, float]]:
    thinner = Downsampler()
    found = []
    for t, used in values:
        for p in thinner.add("x", Point(float(t), float(used), 100.0), unit, pace(t)):
            found.append((p.unix_s, p.used))
    return found


HOUR = range(3600)


@pytest.mark.parametrize(
    ("values", "pace", "least", "most"),
    [
        pytest.param([(t, 500 * MIB) for t in HOUR], Pace.REST, 12, 12, id="at rest"),
        pytest.param([(t, 5 * MIB) for t in HOUR], Pace.NEAR, 12, 12, id="near, and still"),
        pytest.param([(t, t * 10 * MIB) for t in range(60)], Pace.REST, 11, 14, id="moves"),
        pytest.param([(t, t * 10 * MIB) for t in range(60)], Pace.NEAR, 60, 60, id="near, moves"),
        pytest.param([(t, 60.0 + t % 2) for t in HOUR], Pace.CALM, 1, 13, id="heat, wavering"),
        pytest.param([(t, 40.0 + t // 30 % 2 * 30) for t in HOUR], Pace.CALM, 1, 125, id="heat"),
    ],
)
def test_a_series_costs_as_many_points_as_it_moves(values, pace, least, most):
    """
    One point in five minutes at rest, one in seconds while it moves, each sample near a limit.
    """
    unit = "celsius" if pace is Pace.CALM else "bytes"

    assert least <= len(keep(values, unit, lambda _: pace)) <= most


def test_the_last_sample_before_a_move_is_kept():
    """Otherwise a straight line between the points would show a slow growth."""
    kept = keep([(t, 100 * MIB) for t in range(100)] + [(100, 300 * MIB)])
    assert [(0.0, 100 * MIB), (99.0, 100 * MIB), (100.0, 300 * MIB)] == kept


def test_in_an_alarm_every_sample_is_kept_with_the_minute_before():
    """Samples that were left out are written when an alarm begins."""
    kept = keep(
        ((t, 100 * MIB) for t in range(130)), pace=lambda t: Pace.ALARM if t >= 120 else Pace.REST
    )
    assert [0.0, *(float(t) for t in range(60, 130))] == [t for t, _ in kept]


def test_a_clock_that_was_set_back_starts_the_series_anew():
    """No point is lost, and each part is in order."""
    kept = keep([(100, 1), (101, 1), (50, 1), (51, 1)], unit="celsius")
    assert [100.0, 50.0] == [t for t, _ in kept]


def test_a_limit_that_moves_is_kept():
    """A replay needs the limit."""
    thinner = Downsampler()
    thinner.add("x", Point(0.0, 5.0, 10.0), "bytes", Pace.REST)
    assert 0 < len(thinner.add("x", Point(6.0, 5.0, 20.0), "bytes", Pace.REST))


def test_series_that_are_gone_are_forgotten():
    """Memory does not grow with the number of past processes."""
    thinner = Downsampler()
    for key in range(100):
        thinner.add(key, Point(0.0, 1.0), "bytes", Pace.REST)

    thinner.keep_only({5})

    assert [] == thinner.add(5, Point(1.0, 1.0), "bytes", Pace.REST)
    assert 1 == len(thinner.add(6, Point(1.0, 1.0), "bytes", Pace.REST))


# Other failures of the journal's file


def test_a_pause_is_written_again_when_the_disk_has_room(world):
    """The disk is full during the pause; later the next daemon knows the pause."""
    (world.folder / "state").write_text("in the way")
    client = world.start()
    pid = world.sleeper("held.py")
    client.call("task.pause", task=str(pid))

    os.unlink(world.folder / "state")
    world.until(lambda: stored_pauses(world), "it is written down", 40)

    world.kill()
    assert world.start().call("task.resume", task=None)["resumed"]


def test_a_removed_journal_is_begun_anew(world):
    """rm under a running daemon: the log reports it, and the pause is still known."""
    client = world.start()
    pid = world.sleeper("held.py")
    client.call("task.pause", task=str(pid))

    for path in (world.folder / "state").iterdir():
        path.unlink(missing_ok=True)  # the copy of the pauses is being replaced
    world.until(lambda: "its file was removed" in world.log(), "it is noticed", 40)
    world.until((world.folder / "state" / "journal.db").exists, "a new one is begun", 40)

    assert client.call("task.resume", task=None)["resumed"]


def stored_pauses(world) -> dict:
    """The pauses in the state folder's copy."""
    try:
        return json.loads((world.folder / "state" / "paused.json").read_text())["pauses"]
    except OSError:
        return {}


@pytest.mark.parametrize("how", ["as it is", "no index can be made"])
def test_a_journal_that_was_not_closed_is_read_where_nothing_can_be_written(tmp_path, how):
    """Killed with a full disk: the write-ahead log is read too."""
    journal = Journal(str(tmp_path / "live"), DAY_S, MIB)
    journal.save_state("x", {"n": 1})
    folder = tmp_path / "left"
    shutil.copytree(tmp_path / "live", folder)
    journal.close()
    if how != "as it is":
        (folder / "journal.db-shm").unlink()
        (folder / "journal.db-shm").mkdir()

    with open_read_only(str(folder)) as found:
        assert {"n": 1} == found.load_state("x")


def test_a_number_that_is_no_pid_finds_nothing(journal):
    """Thirty digits exceed SQLite's integers."""
    journal.add([entry(1.0, pid=7)], [points("b:7:1", (1.0, 4.0, None), pid=7)])

    assert [] == journal.history(task="9" * 30)
    assert [] == journal.series(task="9" * 30)
