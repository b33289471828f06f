"""The daemon returns temporary memory, and reserves in advance what it will need."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from support.finished import finished

from watchdog_app.base import own_process

# A large block comes and goes, after which the C library keeps as much; then many smaller blocks.
PROGRAM = """
import sys, threading
from watchdog_app.base.own_process import limit_heap

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if sys.argv[1] == "small":
    limit_heap()
bytearray(8_000_000)
before = rss()
pieces = [bytearray(100_000) for _ in range(60)]
del pieces
kept = rss() - before
heaps = []
thread = threading.Thread(target=lambda: heaps.append(bytearray(50_000)))
thread.start()
thread.join()
apart = sum(1 for line in open("/proc/self/maps")
            if int(line.split("-")[0], 16) % (64 << 20) == 0 and " rw-p " in line)
print(kept, apart)
"""


def figures(*words: str) -> tuple[int, ...]:
    """The numbers that a program prints."""
    done = finished([sys.executable, "-c", *words], check=True, stdin=subprocess.DEVNULL)
    return tuple(map(int, done.stdout.split()))


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_a_moment_of_many_answers_leaves_no_memory_held():
    """6 MB are freed, as for clients that do not read their answers."""
    as_ever, _ = figures(PROGRAM, "as ever")
    small, heaps = figures(PROGRAM, "small")

    assert as_ever > 4_000_000, "there is something to be mended here"
    assert small < 1_000_000
    assert 0 == heaps


LATE = """
import sys
from watchdog_app.base.own_process import load_lazily
load_lazily("inspect", "locale")
import watchdog_app.daemon.app
print(len({"ast", "dis", "tokenize"} & set(sys.modules)))
import inspect
inspect.signature(lambda: 0)
print(int("ast" in sys.modules))
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="dataclasses looks at each record with it")
def test_what_the_daemon_does_not_use_is_not_loaded():
    """
    They cost 1 MB; only a dataclass without a docstring needs them.

    Code that uses one still gets it.
    """
    assert (0, 1) == figures(LATE)


# Blocks of up to a page, of which every second is freed: none is at the end of the heap.
HOLES = """
import sys
from watchdog_app.base.own_process import collect_garbage, limit_heap

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

limit_heap()
pieces = [bytearray(3000) for _ in range(6000)]
before = rss()
for at in range(0, len(pieces), 10):
    pieces[at:at + 9] = [None] * 9
held = rss()
made = [[] for _ in range(2000)]
collect_garbage()
print(before - held, before - rss())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux")
def test_what_is_free_between_pieces_in_use_is_given_back():
    """It is trimmed with the garbage if memory is not locked."""
    of_itself, given_back = figures(HOLES)

    assert of_itself < 4_000_000, "there is something to be mended here"
    assert given_back > 8_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="FDSize of proc(5)")
def test_there_is_room_for_descriptors_before_they_are_needed():
    """Growing the table later would delay a sample by tens of milliseconds."""
    program = (
        "import re, os; from watchdog_app.base.own_process import raise_file_limit as allow;"
        "allow(); print(re.search(r'FDSize:\\s+(\\d+)', open('/proc/self/status').read())[1],"
        "len(os.listdir('/proc/self/fd')))"
    )
    room, used = figures(program)

    assert room >= 512
    assert used < 10, "and none of them is held open"


def test_garbage_is_looked_for_only_where_there_may_be_some():
    """At rest no objects are made, so no collection is needed."""
    gc.collect()
    before = gc.get_stats()[2]["collections"]

    own_process.collect_garbage()
    idle = gc.get_stats()[2]["collections"]
    was_on = gc.isenabled()
    gc.disable()
    made = [[] for _ in range(2000)]
    own_process.collect_garbage()
    busy = gc.get_stats()[2]["collections"]
    if was_on:
        gc.enable()

    assert 2000 == len(made)
    assert (before, before + 1) == (idle, busy)
