"""Trainings that cannot act themselves, copied from outside while they are stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
import zlib
from pathlib import Path

import pytest
from published_desk import Training

from watchdog_app.guard.copier import CopyError
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

REASON = "a test"
STEPS = 300
KERAS = pytest.param("published_keras.py", marks=pytest.mark.tensorflow, id="keras")
TORCH = pytest.param("published_torch.py", marks=pytest.mark.torch, id="torch")


@pytest.fixture
def watcher(tmp_path):
    """The folder of the watcher's socket."""
    (tmp_path / "watcher").mkdir()
    return tmp_path / "watcher"


def described(folder):
    """
    A rescue's description without its times and without the graph, which is not always recorded.
    """
    text = json.loads((Path(folder) / "rescue.json").read_text())["rescue"]
    del text["created_unix_s"]
    text["identity"].pop("graph", None)
    return text


def checksum(folder):
    """The checksum of a rescue on disk, computed as in `stages.checksum`."""
    loaded = LoadedRescue(folder)
    loaded.verify()
    found = 0
    for name in sorted(loaded.tensors):
        found = zlib.crc32(bytes(loaded.read(name)), zlib.crc32(name.encode(), found))
    loaded.close()
    return found


class Uninterrupted(dict):
    """
    The last line of each uninterrupted program; a program is run if its line is not known yet.
    """

    def __missing__(self, program):
        folders = [tempfile.mkdtemp(prefix="watchdog-test-") for _ in range(2)]
        try:
            with Training(program, *folders, STEPS, guard=False) as training:
                self[program] = training.line("end")
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
        return self[program]


@pytest.fixture(scope="module")
def uninterrupted():
    """The last lines by program, shared by these tests."""
    return Uninterrupted()


@pytest.mark.parametrize("program", [KERAS, TORCH])
def test_frozen_at_any_moment_it_is_a_state_of_some_step_or_refused(
    program, tmp_path, watcher, uninterrupted
):
    """At random moments, each copy equals the training's state at the step that it names."""
    moments = random.Random(7)
    copied, refused, known = {}, 0, {}

    def note(line):
        words = line.split()
        if words[0] == "step":
            known.setdefault(int(words[1]), set()).add(int(words[2]))
        return line

    with Training(program, tmp_path / "rescues", watcher, STEPS, "log") as training:
        training.asked()
        for line in training.lines_to("step 3 "):
            note(line)
        for number in range(100):
            if copied and number >= 20:
                break
            time.sleep(moments.uniform(0.001, 0.02))
            training.stop()
            try:
                saved = training.copy()
            except CopyError:
                refused += 1
            else:
                copied[saved.step] = checksum(saved.path)
            training.go_on()
        for line in training.lines_to("end"):
            uninterrupted[program] = note(line)
    assert copied, f"all {refused} were refused"
    assert [] == [step for step, found in copied.items() if found not in known.get(step, ())]


@pytest.mark.parametrize("program", [KERAS, TORCH])
def test_a_copy_is_what_the_training_would_have_written_and_it_goes_on_from_there(
    program, tmp_path, watcher, uninterrupted
):
    """
    A copy and its description equal the training's own rescue, except for the time.

    A step that has started to change the weights is refused. A training that was copied in a later
    step, killed and restarted gives the same numbers.
    """
    rescues = tmp_path / "rescues"
    last = "forward=57" if "torch" in program else "data=57"
    with Training(
        program, rescues, watcher, STEPS, "boundary=33", "gil=43", "optimizer=47", last
    ) as training:
        training.asked()

        training.line("there boundary 33")
        training.stop()
        copied = training.copy(reason=REASON)
        own, ours = names.complete_rescues(str(rescues))
        assert 33 == copied.step
        assert os.path.basename(copied.path) == str(ours)
        assert described(rescues / str(own)) == described(copied.path)
        same = [(rescues / str(each) / "state.safetensors").read_bytes() for each in (own, ours)]
        assert same[0] == same[1]
        training.go_on("boundary")

        training.line("there gil")
        training.stop()
        assert 43 == training.copy().step
        training.go_on()

        training.line("there optimizer")
        training.stop()
        before = names.complete_rescues(str(rescues))
        assert "in_step" == training.check().state
        with pytest.raises(CopyError):
            training.copy()
        assert before == names.complete_rescues(str(rescues))
        assert [] == names.partials(str(rescues))
        training.go_on("optimizer")

        training.line("there " + last.partition("=")[0])
        training.stop_between()
        training.copy()
    with Training(program, rescues, watcher, STEPS) as again:
        end = again.line("end")
    assert uninterrupted[program] == end
