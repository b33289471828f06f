"""A disk that answers every read and write with an error (EIO), below a real file system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guest import HOME, USER, until
from guest_disk import Disk

STATE = HOME / ".local" / "state" / "watchdog"


@pytest.fixture
def disk() -> Iterator[Callable[[Path], Disk]]:
    """Mount a separate disk at a folder; remove it afterwards."""
    made: list[Disk] = []

    def put(place: Path) -> Disk:
        made.append(Disk(place, USER))
        return made[-1]

    yield put
    for each in made:
        each.close()


def journal_faults(me) -> list[str]:
    """The status's problems about the journal."""
    return [e["message"] for e in me.status()["problems"] if e["source"] == "journal"]


def test_under_a_failing_state_folder_trainings_are_watched_and_saved(me, disk):
    """The journal's failure is reported, a leak is still saved; a new disk ends the fault."""
    me.run("mkdir", "-p", str(STATE.parent))
    state = disk(STATE)
    me.start_daemon()
    first = me.daemon_pid()
    training = me.train("--leak-mb-s", "6", properties=["MemoryMax=190M", "MemorySwapMax=0"])
    me.until_watched(training)
    state.fail()

    until(training.rescues, "a rescue")
    told = until(lambda: journal_faults(me), "the status tells of the journal")
    training.wait()
    state.away()
    disk(STATE)

    assert "continues to watch and act" in told[0]
    until((STATE / "journal.db").exists, "a journal on the disk in its place")
    until(lambda: not journal_faults(me), "the fault is over")
    assert first == me.daemon_pid()


def test_rescues_on_a_failing_disk_are_told_and_the_training_goes_on(me, disk):
    """`watchdog checkpoint` reports the reason; no step is lost."""
    rescues = me.folder / "rescues"
    failing = disk(rescues)
    me.start_daemon()
    training = me.train("--rescues", str(rescues), "--seconds", "1200")
    me.until_watched(training)
    failing.fail()

    said = me.run("watchdog", "checkpoint", "--wait", str(training.pid), check=False)
    before = training.steps()[-1][0]
    until(lambda: training.steps()[-1][0] > before + 3, "more steps")

    assert training.ended() is None
    assert "Traceback" not in training.log()
    assert "Traceback" not in said
    # failed, or made read-only by the kernel: the message names the folder
    assert str(rescues) in said
