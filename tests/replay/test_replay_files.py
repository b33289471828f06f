"""Trace files: reading, refusing and writing."""

from __future__ import annotations

import gzip
import json
import os
import threading

import pytest

from watchdog_app.base.errors import UsageError
from watchdog_app.core.replay.trace import read

ROWS = "t,used,limit\n0,55,100\n0.1,56,100\n"


def put(path, text):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "plain", "wrong.csv"])
def test_a_trace_is_read_gzipped_or_not(tmp_path, name):
    """The content of a file decides whether it is unpacked, not its name."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(ROWS.encode()) if name.endswith("gz") else ROWS.encode())

    assert [(0.0, 55.0, 100.0), (0.1, 56.0, 100.0)] == list(read(str(path)).samples)


def test_what_stands_beside_a_trace_says_how_it_ended(tmp_path):
    """The file NAME.json supplies the time of the kill and the name of the task."""
    path = put(tmp_path / "a.csv.gz", ROWS)
    side = {"task": "a.py", "outcome": "oom", "oom_time_s": 0.15}
    (tmp_path / "a.json").write_text(json.dumps(side))

    trace = read(path)

    assert ("a.py", 0.15) == (trace.task, trace.ended_s)


@pytest.mark.parametrize("side", ["", "[]", "{", '{"outcome": 7, "oom_time_s": "x"}'])
def test_a_damaged_file_beside_a_trace_is_no_reason_to_refuse_it(tmp_path, side):
    """The reader ignores what it cannot parse in that file."""
    path = put(tmp_path / "a.csv", ROWS)
    (tmp_path / "a.json").write_text(side)

    assert read(path).ended_s is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is no trace"),
        ("a,b\n1,2\n", "is no trace"),
        ("t,used,limit\n", "no samples"),
        ("t,used\n1,2\n", "is no trace"),
        ("t,used,limit\nx,y,z\n", "no samples"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_words(tmp_path, text, part):
    """The message says what is missing."""
    with pytest.raises(UsageError, match=part):
        read(put(tmp_path / "a.csv", text))


def test_lines_cut_short_and_times_that_go_back_are_left_out(tmp_path):
    """A killed recorder leaves half a line, and clock jumps leave times that go backwards."""
    text = "t,used,limit\n0,1,9\n1,2,9\n1,3,9\n0.5,4,9\nnan,5,9\n2,inf,9\n3,6,9\n4,\n"

    assert [0.0, 1.0, 3.0] == [t for t, _, _ in read(put(tmp_path / "a.csv", text)).samples]


def test_an_archive_that_a_killed_recorder_left_is_played_as_far_as_it_goes(tmp_path):
    """The reader keeps every recorded sample and reports that the archive is incomplete."""
    path = tmp_path / "a.csv.gz"
    text = "t,used,limit\n" + "".join(f"{i},{i * i % 977},1000\n" for i in range(3000))
    path.write_bytes(gzip.compress(text.encode())[:-2000])

    found = read(str(path))

    assert found.cut
    assert 1000 < len(found.samples) < 3000
    assert [i * i % 977 for i in range(len(found.samples))] == [s[1] for s in found.samples]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\x1f\x8b" + bytes(300), "cannot be read"),
        (gzip.compress(ROWS.encode(), mtime=0)[:15], "cannot be read"),
        (bytes(range(128, 256)) * 9, "no text"),
        (b"", "is no trace"),
    ],
)
def test_a_damaged_file_is_refused_in_words(tmp_path, content, part):
    """The message is neither a traceback nor a decoder's error text."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(content)

    with pytest.raises(UsageError, match=part):
        read(str(path))


def test_what_a_spreadsheet_or_a_pipe_hands_over_is_read(tmp_path):
    """
    The reader accepts a byte order mark, carriage returns, and a pipe that can be read only once.
    """
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = b"\xef\xbb\xbft,used,limit\r\n0,1,9\r\n1,2,9\r\n"
    writer = threading.Thread(target=path.write_bytes, args=(text,))
    writer.start()

    assert [(0.0, 1.0, 9.0), (1.0, 2.0, 9.0)] == list(read(str(path)).samples)
    writer.join()
