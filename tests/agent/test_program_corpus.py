"""
Programs in the manner of public examples: saved, killed, and resumed with the lines for them.

The reference of each program is its own uninterrupted run in the same test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import corpus

from watchdog_app.agent.found import resume_lines
from watchdog_app.rescue.checkpoint import inventory
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = [pytest.mark.torch, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# No optimizer steps in them that the program names.
BY_HAND = (
    *("torch_by_hand", "keras_train_on_batch", "tf_by_hand", "tf_own_rule"),
    *("torch_two_layers", "torch_regression", "torch_word_language_model"),
)
DAILY = (
    *("torch_mnist", "torch_nanogpt", "torch_bigram", "torch_accumulation"),
    *("torch_trainer_class", "torch_cycle", "torch_two_layers", "tf_own_rule", "torch_reference"),
    *("torch_semi_supervised", "torch_iterations", "torch_zip", "torch_prefetch"),
    *("torch_episodes", "torch_reptile", "torch_fresh_data", "torch_keras", "tf_accumulation"),
)
NEEDS = {
    "torch_lightning": "lightning",
    "torch_lightning_cli": "jsonargparse",
    "torch_hf_trainer": "transformers",
    "torch_accelerate": "accelerate",
}
ALL = sorted(path.stem for path in corpus.PROGRAMS.glob("*.py"))


def _slow(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


NIGHTLY = _slow(name for name in ALL if name not in DAILY)


@pytest.mark.parametrize("name", [*DAILY, *NIGHTLY])
def test_a_program_resumes_to_its_own_bits_or_says_why_not(name: str, tmp_path: Path):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    corpus.copy(tmp_path, name)
    plain = corpus.run(tmp_path, name, "plain")
    assert 0 == plain.returncode, plain.stderr
    expected = corpus.bits(tmp_path)
    events = int((tmp_path / "events.txt").read_text())

    killed = corpus.run(tmp_path, name, "asked", events // 2, events // 2 + 10)

    assert -9 == killed.returncode
    _resume(tmp_path, name, killed.stderr, expected)


@pytest.mark.parametrize(
    "name", ["torch_next_iterator", *_slow(each for each in ALL if each != "torch_next_iterator")]
)
def test_a_program_with_its_lines_resumes_after_a_second_kill_or_says_why_not(
    name: str, tmp_path: Path
):
    """Its own rescue must hold what the rescue of the found loop held."""
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    corpus.copy(tmp_path, name)
    plain = corpus.run(tmp_path, name, "plain")
    expected, events = corpus.bits(tmp_path), int((tmp_path / "events.txt").read_text())
    corpus.run(tmp_path, name, "asked", events // 2, events // 2 + 10)
    corpus.write_lines(tmp_path, name)
    shutil.rmtree(tmp_path / "rescues")

    killed = corpus.run(tmp_path, name, "asked", events // 2, events // 2 + 10)
    resumed = corpus.run(tmp_path, name, "again")

    assert (0, -9, 0) == (plain.returncode, killed.returncode, resumed.returncode), resumed.stderr
    assert "watchdog: resuming from" in resumed.stderr
    is_told = "what the rescue does not hold" in resumed.stderr
    assert is_told or expected == corpus.bits(tmp_path)


@pytest.mark.cgroup
@pytest.mark.parametrize("name", [*BY_HAND[:2], *_slow(BY_HAND[2:])])
def test_a_loop_without_an_optimizer_is_saved_at_a_real_limit(name: str, tmp_path: Path):
    """No daemon runs; the guard of `watchdog exec` asks the agent, and the program is ended."""
    corpus.copy(tmp_path, name)
    plain = corpus.run(tmp_path, name, "plain")
    assert 0 == plain.returncode, plain.stderr
    expected = corpus.bits(tmp_path)
    events = int((tmp_path / "events.txt").read_text())

    ended = corpus.run_to_limit(tmp_path, name, events // 2)

    assert 0 != ended.returncode
    _resume(tmp_path, name, ended.stderr, expected)


def _resume(folder: Path, name: str, said: str, expected: str) -> None:
    """Write the lines for the newest rescue, run the program, and compare its bits."""
    saved = inventory.rescues_in(str(folder / "rescues" / f"{name}.py"))
    assert saved, said
    _write_lines(folder, name, saved[-1].path)
    resumed = corpus.run(folder, name, "again")

    assert 0 == resumed.returncode, resumed.stderr
    assert "watchdog: resuming from" in resumed.stderr
    assert expected == corpus.bits(folder)


def _write_lines(folder: Path, name: str, path: str) -> None:
    """Write the lines for a rescue into the program; a fit needs none."""
    with LoadedRescue(path) as rescue:
        found = resume_lines.read_record(rescue.meta)
    if found is not None:
        corpus.write_lines(folder, name)
