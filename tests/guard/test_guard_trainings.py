"""Real trainings at the limit of a real guard: saved from outside, without a daemon."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
import types
import zlib
from pathlib import Path

import pytest

from watchdog_app.guard import copier, trainings
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.checkpoint.store import RescueStore
from watchdog_app.rescue.segment import exchange
from watchdog_app.rescue.segment.segment import ASK, NEAR, WAITS, Segment, open_request

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs"
PATIENCE_S = 90.0  # 8 s on a quiet machine; below a test's timeout


def train(desk, program, limit, *words, options=()):
    out, rescues = desk.folder / "out.csv", desk.folder / "rescues"
    process = desk.start(
        sys.executable, str(PROGRAMS / program), "--out", str(out), "--rescues", str(rescues),
        "--state-mb", "8", "--epochs", "30", "--leak-from", "5", *words,
        options=("--limit", limit, *options), cwd=desk.folder,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        code = process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:  # a stopped training reports where
        pytest.fail(f"not over within {PATIENCE_S} s: {desk.record(process)}; {process.output()}")
    steps = [int(line.split(",")[0]) for line in out.read_text().split()] if out.exists() else []
    saved = sorted(int(path.name.split("-")[1]) for path in rescues.glob("rescue-*"))
    return code, steps, saved, process.output()


@pytest.mark.tensorflow
def test_a_keras_fit_that_leaks_is_copied_from_outside_and_ends_with_a_report(desk):
    """Nothing is killed, and only the last few steps are lost."""
    pytest.importorskip("tensorflow")

    code, steps, saved, said = train(desk, "fit.py", "640M", "--leak-mb-s", "120")

    assert code not in (0, -9), said
    assert saved, said
    assert "Its work is saved: step" in said
    assert steps[-1] - saved[-1] <= 60


@pytest.mark.torch
def test_one_array_that_cannot_fit_is_an_error_after_which_the_work_is_saved(desk):
    """The agent sees the refusal and saves the state before that batch."""
    pytest.importorskip("torch")

    code, steps, saved, said = train(desk, "torch_loop.py", "700M", "--jump-mb", "2100")

    assert 1 == code, said
    assert saved, said
    assert steps[-1] - saved[-1] <= 1
    assert "stands still" not in said


@pytest.mark.tensorflow
def test_a_training_that_cannot_be_copied_is_asked_to_save_itself(desk):
    """The request and the answer need no daemon."""
    pytest.importorskip("tensorflow")
    source = Path(__file__).parent / "programs" / "detected_tensorflow.py"
    program = Path(shutil.copy(source, desk.folder))  # its rescues go beside it
    process = desk.start(
        sys.executable, str(program), options=("--limit", "700M"), cwd=desk.folder,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip

    process.wait(PATIENCE_S)

    saved = list((desk.folder / "rescues" / program.name).glob("rescue-*"))
    assert saved, process.output()
    assert f"Its work is saved: step {int(saved[0].name.split('-')[1])}" in process.output()


@pytest.fixture
def offered(tmp_path):
    """The segment of this process as a training, its guard's view of it, and a copy on demand."""
    poll = select.poll()
    path = str(tmp_path / "segments.sock")
    found = trainings.Trainings(path, lambda fd, _: poll.register(fd), poll.unregister)
    found.open()

    def copied():
        found.copy([this_process().pid])
        while (results := found.finished(time.monotonic())) is None:
            poll.poll(1000)
        return results

    with Segment(65536) as segment:
        exchange.offer(path, str(tmp_path), segment.fd)
        yield segment, found, copied
    found.close()


def test_every_batch_is_wanted_only_until_there_is_a_copy(offered):
    """Else a limit is near, and the training publishes within its share of the time."""
    segment, found, copied = offered
    asked = []
    for update in (
        lambda: found.update([os.getpid()], True, waits=False),
        copied,
        lambda: found.update([os.getpid()], False, waits=False),
    ):
        update()
        asked.append(segment.slots[ASK])

    assert [NEAR, WAITS, 0] == asked


@pytest.mark.parametrize("why", ["over", "reused"])
def test_a_training_that_is_no_more_is_not_counted(offered, why):
    """Its process does something else, or another process in the guard has its pid."""
    segment, found, _ = offered
    pid = this_process().pid
    found.update([pid], False)
    before = found.agents
    if why == "over":
        segment.end()
    else:
        found.registry.offers[pid].start_time -= 1

    found.update([pid], False)

    assert (1, 0) == (before, found.agents)


def write_table(view):
    view[:] = b"{}"
    return zlib.crc32(b"{}")


def test_a_state_that_has_not_changed_is_written_once(offered, monkeypatch, tmp_path):
    """A program that is refused memory may take minutes to end, without a further step."""
    segment, found, copied = offered
    written = tmp_path / "written"

    def copy(training, deadline_s):
        with written.open("a") as file:
            file.write("x")
        return types.SimpleNamespace(path=str(tmp_path), step=1, bytes=3, missing=[])

    ready = lambda training: copier.CopyCheck("ready", training.segment.sequence)  # noqa: E731
    monkeypatch.setattr(copier, "check", ready)
    monkeypatch.setattr(copier, "copy", copy)
    segment.publish(1, 2, write_table)
    saved = [copied().saved for _ in range(3)]
    once = written.read_text()
    segment.step_begins()
    segment.publish(2, 2, write_table)
    copied()

    assert ([1, 1, 1], "x") == (saved, once)
    assert "xx" == written.read_text()
    assert 1 == len(found.rescues)


def test_a_training_in_a_step_is_asked_to_save_at_the_end_of_the_step(offered):
    """The guard may not see its boundary: in a Keras fit on PyTorch it lasts some milliseconds."""
    segment, found, copied = offered
    segment.publish(1, 2, write_table)
    segment.step_begins()
    assert 1 == copied().in_step

    found.request_save()

    assert open_request(segment.slots)


@pytest.fixture
def asked(offered):
    """A training that cannot be copied and was asked to save."""
    segment, found, copied = offered
    segment.set_reason("it cannot be copied from outside")
    assert (0, 1) == ((before := copied()).saved, before.in_step)
    found.request_save()
    assert not found.all_answered(time.monotonic())
    return offered


def test_a_save_that_ended_just_before_the_stop_counts(asked, tmp_path):
    """The agent answers, and then the limit is met once more."""
    segment, found, copied = asked
    segment.answer_save(open_request(segment.slots), 12, 9, "rescue-12")

    assert copied().complete
    assert [(12, str(tmp_path / "rescue-12"))] == [(each.step, each.path) for each in found.rescues]


def test_what_a_resume_lacks_is_read_from_a_rescue_that_the_agent_saved(asked, tmp_path):
    """The answer of the agent only names the rescue."""
    segment, found, copied = asked
    saved = RescueStore(str(tmp_path)).save([], {"step": 12, "not_restored": ["counters"]})
    segment.answer_save(open_request(segment.slots), 12, 9, os.path.basename(saved.path))

    assert copied().complete
    assert [("counters",)] == [each.missing for each in found.rescues]


def test_what_the_agent_saved_before_a_kill_is_found_at_the_end_of_its_guard(asked, tmp_path):
    """Its last save was asked for by nobody, and an open request is not waited for."""
    _, found, _ = asked
    saved = RescueStore(str(tmp_path)).save([], {"step": 12})

    found.find_last_saves()

    assert [(12, saved.path)] == [(each.step, each.path) for each in found.rescues]


def test_a_request_that_was_not_answered_before_the_stop_is_withdrawn(asked):
    """The training may save later, when nobody waits for it."""
    segment, _, copied = asked
    assert open_request(segment.slots)

    assert not copied().complete
    assert 0 == open_request(segment.slots)


@pytest.mark.parametrize(
    ("bytes_", "text", "why"),
    [
        (0, "The disk is full.", "The disk is full."),
        (9, "../elsewhere", "its agent named no rescue of its folder"),
        (9, "", "its agent named no rescue of its folder"),
    ],
)
def test_a_save_that_failed_or_names_another_folder_does_not_count(asked, bytes_, text, why):
    """What is in the segment is not trusted."""
    segment, found, _ = asked
    segment.answer_save(open_request(segment.slots), 12, bytes_, text)

    assert found.all_answered(time.monotonic())
    assert (0, why) == (found.copies.saved, found.copies.why)
    assert [] == found.rescues
