"""
Whether a rescue fits a program that was edited later: the same rules for all frameworks.

The edits are in `identity_edits`; a wrong verdict on a real program becomes a row there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import identity_edits as edits
import pytest

from watchdog_app.base.errors import RescueMismatch

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

pytestmark = [pytest.mark.usefixtures("nobody"), pytest.mark.timeout(900)]

Load = Callable[[str], ModuleType]
Verdict = Callable[[Load, Path, str, str], list[str]]  # what prevents a resume


def of_fit(kind: str) -> Verdict:
    """Return the verdict for a Keras fit of one kind of model."""

    held: dict[str, Any] = {}  # by the text of the program

    def differences(load: Load, _: Path, before: str, after: str) -> list[str]:
        from watchdog_app.rescue.identity.compare import Decision, compare

        if before not in held:
            held[before] = json.loads(json.dumps(identity_of(load(before), kind).to_json()))
        found = compare(held[before], identity_of(load(after), kind))
        return found.texts(Decision.REFUSE) + found.texts(Decision.NEVER)

    return differences


def identity_of(module: ModuleType, kind: str) -> Any:
    from keras import backend
    from keras.src.trainers.epoch_iterator import EpochIterator

    from watchdog_app.agent.adapters.keras.identity import gather

    x, y = module.data()
    iterator = EpochIterator(x, y, batch_size=module.BATCH_SIZE, shuffle=True)
    return gather(module.make(kind), iterator, backend.backend())


def of_loop(framework: str) -> Verdict:
    """Return the verdict for a loop that was saved after two steps and makes another step."""

    def differences(load: Load, folder: Path, before: str, after: str) -> list[str]:
        rescue_of = import_module(f"watchdog_app.agent.{framework}").Rescue
        module = load(before)
        objects = module.make()
        rescue = rescue_of(folder, name="a", **objects)
        module.train(rescue, **objects, steps=2)
        assert rescue.save() is not None
        module = load(after)
        objects = module.make()
        try:
            rescue = rescue_of(folder, name="a", resume="newest", **objects)
            module.train(rescue, **objects, steps=1)
        except RescueMismatch as error:
            return list(error.differences)
        assert 3 == rescue.step_number
        return []

    return differences


PROGRAMS: dict[str, tuple[Verdict, str]] = {
    **{f"{kind} fit": (of_fit(kind), edits.KERAS) for kind in edits.KERAS_KINDS},
    "torch": (of_loop("torch"), edits.TORCH),
    "tensorflow": (of_loop("tensorflow"), edits.TENSORFLOW),
}


def rows(legal: bool) -> list[Any]:
    """Yield the program, the edit and the names in the refusal, for all frameworks."""
    found = []
    for name in PROGRAMS:
        kind, fit, _ = name.partition(" fit")
        table = "KERAS" if fit else name.upper()
        mark = pytest.mark.torch if name == "torch" else pytest.mark.tensorflow
        edited = vars(edits)[f"{table}_LEGAL" if legal else f"{table}_OTHERS"]
        for edit, (before, after, *more) in edited.items():
            if not (fit and more) or kind in more[0]:
                values = (name, (before, after), *more[-1:])
                found.append(pytest.param(*values, marks=mark, id=f"{name}-{edit}"))
    return found


@pytest.mark.parametrize(("name", "edit"), rows(legal=True))
def test_a_legal_edit_is_never_refused(
    program: Load, tmp_path: Path, name: str, edit: tuple[str, str]
):
    """A user may make these edits between two starts of one training."""
    differences, text = PROGRAMS[name]

    found = differences(program, tmp_path / "rescues", text, edits.edited(text, *edit))

    assert [] == found


@pytest.mark.parametrize(("name", "edit", "named"), rows(legal=False))
def test_another_computation_is_refused_and_named(
    program: Load, tmp_path: Path, name: str, edit: tuple[str, str], named: str
):
    """Names, shapes and types of all tensors are equal, so only the identity detects it."""
    differences, text = PROGRAMS[name]

    found = differences(program, tmp_path / "rescues", text, edits.edited(text, *edit))

    assert any(named in each for each in found), found
