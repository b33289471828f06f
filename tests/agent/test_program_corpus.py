"""
Programs in the manner of public examples: saved, killed, and resumed with the lines for them.

The reference of each program is its own uninterrupted run in the same test.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import corpus

from watchdog_app.agent.found import resume_lines
from watchdog_app.rescue.checkpoint import inventory
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = [pytest.mark.torch, pytest.mark.tensorflow, pytest.mark.timeout(900)]

# What a resume of these lacks, as the save or the resume says; all others repeat every bit.
LACKS = {
    "torch_nanogpt": "X, Y, made for the next step, such as a batch drawn ahead",
    "torch_prefetch": "batch, made for the next step",
    "torch_transfer": "best_acc",
    "torch_cycle": "the place in data",
    "torch_dqn": "memory",
}
# Not saved: their parameters belong to no optimizer, or Keras trains each batch by itself.
BY_HAND = ("torch_by_hand", "torch_word_language_model", "tf_by_hand")
DAILY = (
    *("torch_mnist", "torch_nanogpt", "torch_bigram", "torch_accumulation"),
    *("torch_trainer_class", "torch_cycle"),
)
NEEDS = {
    "torch_lightning": "lightning",
    "torch_lightning_cli": "jsonargparse",
    "torch_hf_trainer": "transformers",
    "torch_accelerate": "accelerate",
}
ALL = sorted(path.stem for path in corpus.PROGRAMS.glob("*.py"))
NIGHTLY = [pytest.param(name, marks=pytest.mark.slow) for name in ALL if name not in DAILY]


@pytest.mark.parametrize("name", [*DAILY, *NIGHTLY])
def test_a_program_resumes_to_its_own_bits_or_says_why_not(name: str, tmp_path: Path):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    shutil.copy(corpus.PROGRAMS / f"{name}.py", tmp_path)
    plain = corpus.run(tmp_path, name, "plain")
    assert 0 == plain.returncode, plain.stderr
    expected = corpus.bits(tmp_path)
    events = int((tmp_path / "events.txt").read_text())

    killed = corpus.run(tmp_path, name, "asked", events // 2, events // 2 + 10)
    saved = inventory.rescues_in(str(tmp_path / "rescues" / f"{name}.py"))
    if name in BY_HAND:
        assert [] == saved
        return
    assert -9 == killed.returncode
    assert saved, killed.stderr
    _write_lines(tmp_path, name, saved[-1].path)
    resumed = corpus.run(tmp_path, name, "again")

    assert 0 == resumed.returncode, resumed.stderr
    assert "watchdog: resuming from" in resumed.stderr
    if name in LACKS:
        assert LACKS[name] in killed.stderr + resumed.stderr
    else:
        assert expected == corpus.bits(tmp_path)


def _write_lines(folder: Path, name: str, path: str) -> None:
    """Write the lines for a rescue into the program; a fit needs none."""
    with LoadedRescue(path) as rescue:
        found = resume_lines.read_record(rescue.meta)
    program = folder / f"{name}.py"
    if found is not None:
        edited = resume_lines.edit_program(
            program.read_text(), str(folder / "rescues" / program.name)
        )
        program.write_text(edited.after)
