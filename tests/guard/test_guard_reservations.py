"""A refusal of the guard is an error with an explanation, in scripts and cells."""

from __future__ import annotations

import mmap
import shlex
import sys

import pytest

from watchdog_app.agent.oom import refused
from watchdog_app.base.errors import UsageError
from watchdog_app.base.linux.cgroups import AvailableMemory
from watchdog_app.guard import limits

GIB, MIB = 1 << 30, 1 << 20

SCRIPT = """
import sys
def jump():
    return bytearray(700 << 20)
def by_hand():
    raise MemoryError("no")
def small():
    error = MemoryError("it tried to allocate 1000 bytes, and could not")
    def fail(x):
        raise error
    list(map(fail, [1]))
class OutOfMemoryError(RuntimeError):
    pass
def on_card():
    error = OutOfMemoryError("CUDA out of memory. Tried to allocate 24.00 MiB. GPU 0 has ...")
    list(map(lambda _: (_ for _ in ()).throw(error), [1]))
try:
    jump()
except MemoryError:
    print("caught", file=sys.stderr)
globals()[sys.argv[1]]()
"""

CELLS = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("kept = 5")
shell.run_cell("bytearray(700 << 20)")
shell.run_cell("1 / 0")
print("alive", shell.user_ns["kept"], file=sys.stderr)
"""


@pytest.mark.parametrize("ending", ["by_hand", "small", "on_card", "jump"])
def test_an_uncaught_refusal_is_told_below_its_traceback_and_nothing_else_is(
    desk, tmp_path, ending
):
    """
    The line has a remedy. Caught errors, the program's own errors and errors of a GPU's memory get
    none.
    """
    path = tmp_path / "jump.py"
    path.write_text(SCRIPT)
    program = desk.start(
        sys.executable, str(path), ending, options=("--limit", "150M", "--reserve", "32M")
    )

    assert 1 == desk.end(program)
    before, _, last = program.output().partition("caught")
    assert "refused" not in before
    assert "Traceback (most recent call last)" in last
    assert ("its guard refused what does not fit: the limit is 150 MiB, and " in last) == (
        ending == "jump"
    )
    if ending == "jump":
        again = f"watchdog exec --limit 200M -- {shlex.join([sys.executable, str(path), 'jump'])}"
        assert last.rstrip().endswith(f"Run it again with more: {again}")
        assert ["MemoryError", "watchdog"] == [
            line.partition(":")[0] for line in last.strip().splitlines()[-2:]
        ]


FILLS = """
import time
import numpy
kept = []
try:
    while True:
        kept.append(numpy.ones(1 << 18))
finally:
    kept.clear()
    time.sleep(1)
"""


def test_a_small_array_refused_at_the_limit_is_told_though_memory_is_free_again(desk):
    """As a DataLoader's workers end before the error leaves the program."""
    options = ("--limit", "120M", "--reserve", "32M", "--at-limit", "refuse")
    program = desk.start(sys.executable, "-c", FILLS, options=options)

    assert 1 == desk.end(program)
    said = program.output().strip().splitlines()[-1]
    assert "its guard refused these 2.00 MiB: its limit of 120 MiB was reached, and since " in said
    assert " are held" not in said  # less than the limit by now


def test_a_cell_that_was_refused_says_so_and_the_notebook_lives(desk, tmp_path):
    """A notebook has no terminal in sight: the line is in the cell's output."""
    program = desk.start(
        sys.executable, "-c", CELLS, options=("--limit", "200M", "--reserve", "32M"),
        env={"IPYTHONDIR": str(tmp_path)},
    )  # fmt: skip

    assert 0 == desk.end(program)
    said = program.output()
    assert 1 == said.count("its guard refused")
    assert f"watchdog limit {program.pid} " in said
    assert "alive 5" in said


def test_what_a_process_is_said_to_hold_is_without_its_files(tmp_path):
    """A framework's libraries alone are half a GiB: more than some limits."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        for _ in range(64):  # small blocks, which the allocator cannot keep and reuse
            file.write(bytes(MIB))
    before = refused.held_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        sum(mapped[place] for place in range(0, 64 * MIB, 4096))
        of_file = refused.held_bytes() - before
        kept = bytearray(b"1") * (64 * MIB)
        of_own = refused.held_bytes() - before

    assert of_file < 32 * MIB < of_own
    assert len(kept) == 64 * MIB


def test_no_kernel_is_made_that_could_never_start(desk):
    """Its sizes are checked now, not at each start."""
    made = desk.run("exec", "--kernel", "--reserve", "900T")

    assert 2 == made.returncode
    assert "is more than there is" in made.stderr
    assert "" == made.stdout


FREE = AvailableMemory(10 * GIB, 16 * GIB)


@pytest.mark.parametrize(
    ("limit", "reserve", "swap", "said"),
    [
        (1 << 70, None, 0, "more than any machine has"),
        (None, 1 << 70, 0, "more than any machine has"),
        (None, None, 1 << 70, "more than any machine has"),
        (0, None, 0, "too little for any program"),
        (31 * MIB, None, 0, "give 32.0 MiB at least"),
        (None, 999 * GIB, 0, "more than there is: 16.0 GiB in all"),
        (4 * GIB, 17 * GIB, 0, "more than there is"),
        (4 * GIB, 5 * GIB, 0, "more than --limit 4.00 GiB itself"),
        (None, 9 * GIB, 0, "leaves nothing for the program: 10.0 GiB are free"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_with_the_reason(limit, reserve, swap, said):
    """The check comes before the start."""
    with pytest.raises(UsageError, match=said):
        limits.check_sizes(limit, reserve, swap, FREE)


@pytest.mark.parametrize(
    ("limit", "reserve"),
    [(None, None), (32 * MIB, None), (100 * MIB, 256 * MIB), (900 * GIB, None), (None, 0),
     (8 * GIB, 8 * GIB), (None, 8 * GIB)],
)  # fmt: skip
def test_sizes_that_can_be_meant_are_taken(limit, reserve):
    """A limit that only exceeds the free memory causes a warning, not an error."""
    limits.check_sizes(limit, reserve, 0, FREE)


@pytest.mark.parametrize(
    ("limit", "reserve", "said"),
    [(11 * GIB, 0, "that one kills"), (9 * GIB, 2 * GIB, "the reserve of 2.00 GiB may not be"),
     (8 * GIB, 2 * GIB, "")],
)  # fmt: skip
def test_what_is_not_free_now_is_told_at_the_start(limit, reserve, said):
    """The user must not rely on memory that may be missing."""
    told = limits.warning(limit, reserve, 10 * GIB)

    assert said in told
    assert bool(said) == bool(told)
