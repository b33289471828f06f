"""Whether a rescue of a PyTorch loop fits a program that was edited later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from identity_edits import TORCH, edited

torch = pytest.importorskip("torch")

from watchdog_app.agent.identity import attributes, torch_facts  # noqa: E402
from watchdog_app.agent.torch import Rescue  # noqa: E402
from watchdog_app.base.errors import RescueMismatch  # noqa: E402
from watchdog_app.rescue.identity.compare import compare  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("nobody"), pytest.mark.timeout(300)]


@pytest.fixture
def left(tmp_path: Path, program: Callable[[str], ModuleType]) -> Callable[[int], Path]:
    """A rescue of the unedited program after this many steps."""

    def train(steps: int) -> Path:
        module = program(TORCH)
        objects = module.make()
        rescue = Rescue(tmp_path / "rescues", name="a", **objects)
        module.train(rescue, **objects, steps=steps)
        assert rescue.save() is not None
        return tmp_path / "rescues"

    return train


def resumed(folder: Path, module: ModuleType, resume: str = "newest") -> tuple[Rescue, Any]:
    objects = module.make()
    return Rescue(folder, name="a", resume=resume, **objects), objects


@pytest.mark.parametrize(("begins", "said"), [(True, ["model.1's momentum is"]), (False, [])])
def test_a_momentum_of_a_found_training_may_be_a_value_of_its_loop(begins: bool, said: list[str]):
    """The agent first sees it after a step, when a schedule or SAM has set it."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.torch.nn.BatchNorm1d(2))
    now = torch_facts.gather({"model": model}, begins=True)
    model[1].momentum = 0.0
    saved = torch_facts.gather({"model": model}, begins=begins)

    found = compare(saved.to_json(), now).found

    assert said == [each.text.partition(" 0.1")[0] for each in found]


def test_force_goes_on_and_says_what_differs(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
):
    """The program has another activation, and the user passed resume="force"."""
    folder = left(2)

    rescue, _ = resumed(folder, program(edited(TORCH, "nn.ReLU()", "nn.GELU()")), "force")

    assert 2 == rescue.step_number
    assert "resumes although model.act is a GELU" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        (("LR = 0.1", "LR = 0.5"), 2, {"lr": 0.5, "initial_lr": 0.5, "base_lrs": [0.5]},
         "optimizer's lr: 0.5 of the program is used from here on (was 0.1)."),
        (("", ""), 4, {"lr": 0.01, "initial_lr": 0.1, "base_lrs": [0.1]},
         "optimizer's lr: 0.01 of the rescue continues (the program began with 0.1)."),
        (("LR = 0.1", "LR = 0.5"), 4, {"lr": 0.01, "initial_lr": 0.1, "base_lrs": [0.1]},
         "optimizer's lr: 0.01, which the training had reached, continues; the program says 0.5."),
        (("gamma=0.1", "gamma=0.5"), 2, {"lr": 0.1, "gamma": 0.5},
         "scheduler's gamma: 0.5 of the program is used from here on (was 0.1)."),
        (("lr=LR, momentum=0.9", "lr=LR, momentum=0.9, nesterov=True"), 2, {"nesterov": True},
         "optimizer's nesterov: true of the program is used from here on (was false)."),
        (("momentum=0.9", "momentum=0.8"), 2, {"momentum": 0.8},
         "optimizer's momentum: 0.8 of the program is used from here on (was 0.9)."),
    ],
)  # fmt: skip
def test_settings_are_merged(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    case: tuple[tuple[str, str], int, dict[str, Any], str],
):
    """User changes take effect, the schedule's values continue, and the agent reports both."""
    edit, steps, expected, said = case
    folder = left(steps)

    _, objects = resumed(folder, program(edited(TORCH, *edit)))

    group, schedule = objects["optimizer"].param_groups[0], vars(objects["scheduler"])
    found = {key: group.get(key, schedule.get(key)) for key in expected}
    assert pytest.approx(expected.get("lr", 0.1)) == group["lr"]
    assert {key: pytest.approx(value) for key, value in expected.items()} == found
    assert said in capsys.readouterr().err


SGD = "SGD(model.parameters(), lr=LR, momentum=0.9)"


@pytest.mark.parametrize(
    "case",
    [
        ("Adam(model.parameters(), betas=(0.5, 0.9))", "Adam(model.parameters(), betas=(0.6, 0.9))",
         {"betas": (0.6, 0.9)}, "betas: [0.6, 0.9] of the program is used from here on"),
        ("RMSprop(model.parameters())", "RMSprop(model.parameters(), momentum=0.5)",
         {"momentum": 0}, "momentum: 0 of the rescue continues (the program began with 0.5)."),
        ("SGD(model.parameters())", "SGD(model.parameters(), momentum=0.5)",
         {"momentum": 0.5}, "momentum: 0.5 of the program is used from here on (was 0)."),
    ],
)  # fmt: skip
def test_a_changed_setting_takes_effect_where_its_state_is_there(
    tmp_path: Path,
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, str, dict[str, Any], str],
):
    """This includes tuples; the next step succeeds."""
    before, after, found, said = case
    module = program(edited(TORCH, SGD, before))
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    module.train(rescue, **objects, steps=2)
    assert rescue.save() is not None
    module = program(edited(TORCH, SGD, after))

    rescue, objects = resumed(tmp_path / "r", module)
    module.train(rescue, **objects, steps=1)

    group = objects["optimizer"].param_groups[0]
    assert found == {key: group[key] for key in found}
    assert said in capsys.readouterr().err


def test_nothing_changed_is_nothing_said(
    left: Callable[[int], Path],
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
):
    """The agent reports only the resume."""
    folder = left(2)
    capsys.readouterr()

    resumed(folder, program(TORCH))

    said = capsys.readouterr().err
    assert "resuming from" in said
    assert not any(each in said for each in ("optimizer's", "scheduler's", "program", "edited"))


def test_the_base_of_the_merge_is_written_anew_at_each_resume(
    left: Callable[[int], Path], program: Callable[[str], ModuleType], tmp_path: Path
):
    """A rate that the user changed once stays, and the user may change it again."""
    folder = left(1)
    for rate in (0.5, 0.25):
        module = program(edited(TORCH, "LR = 0.1", f"LR = {rate}"))
        rescue, objects = resumed(folder, module)
        assert rate == objects["optimizer"].param_groups[0]["lr"]
        assert rescue.save() is not None


# The loss of a loop, which is not a function.
LOSSES = {
    "the same": (lambda out: out.pow(2).mean(), True),
    "mean for sum": (lambda out: out.pow(2).sum(), False),
    "absolute": (lambda out: out.abs().mean(), False),
    "negated": (lambda out: -out.pow(2).mean(), False),
    "another order": (lambda out: out.mean().pow(2), False),
}


def looped(rescue: Rescue, objects: Any, loss_of: Callable[[Any], Any], steps: int) -> Any:
    """Train, and return the last loss."""
    for _ in range(steps):
        objects["optimizer"].zero_grad()
        loss = loss_of(objects["model"](torch.ones(3, 3)))
        loss.backward()
        objects["optimizer"].step()
        rescue.step(loss=loss)
    return loss


def saved_after(
    folder: Path, load: Callable[[str], ModuleType], steps: int, *names: str, resume: str = "newest"
) -> tuple[Rescue, Any]:
    """Resume from a rescue of the program, after this many steps with each of these losses."""
    module = load(TORCH)
    objects = module.make()
    rescue = Rescue(folder, name="a", **objects)
    for name in names:
        looped(rescue, objects, LOSSES[name][0], steps=steps)
    assert rescue.save() is not None
    return resumed(folder, module, resume)


@pytest.mark.parametrize("name", LOSSES)
def test_another_loss_in_the_loop_is_seen_at_the_third_step(
    tmp_path: Path, program: Callable[[str], ModuleType], name: str
):
    """The autograd graph of the loss shows it, before the run changes files on disk."""
    loss_of, same = LOSSES[name]
    again, others = saved_after(tmp_path / "r", program, 3, "the same")
    stored = sorted(each.name for each in (tmp_path / "r").glob("rescue-*"))
    looped(again, others, loss_of, steps=2)

    if same:
        looped(again, others, loss_of, steps=3)
        return
    with pytest.raises(RescueMismatch, match="the first steps compute something else"):
        looped(again, others, loss_of, steps=1)
    assert stored == sorted(each.name for each in (tmp_path / "r").glob("rescue-*"))


def test_the_functions_behind_the_losses_are_compared_at_the_first_step(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """`objective(model, rows)` belongs to no named object; metrics do not count."""
    loss = "model(torch.ones(BATCH_SIZE, 3)).pow(power).mean()"
    text = edited(TORCH, f"{loss}.backward()", "objective(model, WEIGHT * rows()).backward()")
    text += """

WEIGHT = 1.0


def rows():
    return torch.ones(BATCH_SIZE, 3)


def objective(model, x):
    return model(x).pow(2).mean() * 0.5
"""
    module = program(text)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    module.train(rescue, **objects, steps=2)
    assert rescue.save() is not None
    legal = program(
        edited(text, "return torch.ones(BATCH", "print(1)\n    return torch.zeros(BATCH")
    )
    rescue, objects = resumed(tmp_path / "r", legal)
    legal.train(rescue, **objects, steps=1)

    other = program(edited(text, "* 0.5", "* 0.7"))
    again, objects = resumed(tmp_path / "r", other)

    with pytest.raises(RescueMismatch, match="the code of objective"):
        other.train(again, **objects, steps=1)


def steps_of_an_unchanged_program(folder: Path, module: ModuleType) -> int:
    """The step after two steps, a save, a resume, and one more step."""
    objects = module.make()
    rescue = Rescue(folder, name="a", **objects)
    module.train(rescue, **objects, steps=2)
    assert rescue.save() is not None
    again, objects = resumed(folder, module)
    module.train(again, **objects, steps=1)
    return again.step_number


def test_values_in_the_loss_that_a_resume_restores_do_not_count(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """The program is unchanged; a function fades the weight, which the rescue holds."""
    text = edited(TORCH, "return {", 'return {"state": {"t": 1.0}, ')
    text = edited(text, "scheduler, steps):", "scheduler, state, steps):\n    first = state['t']")
    text = edited(text, ".mean().backward()", ".mean().mul(state['t'] / first).backward()")
    text = edited(text, "        rescue.step()", "        fade(state)\n        rescue.step()")
    text += "\n\ndef fade(held):\n    held['t'] *= 0.9\n"
    assert 3 == steps_of_an_unchanged_program(tmp_path / "r", program(text))


def test_a_loss_of_many_values_is_read_at_once(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """Each value is used twice, so that 2**40 ways lead to the first one."""
    text = edited(TORCH, "        model(torch", "        loss = model(torch")
    chain = "        loss = loss * 0.5 + loss.relu()\n" * 40
    text = edited(text, ".mean().backward()", f".mean()\n{chain}        loss.backward()")
    assert 3 == steps_of_an_unchanged_program(tmp_path / "r", program(text))


def test_a_training_of_several_graphs_goes_on_in_each(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """Examples are layers that thaw later, and alternating losses."""
    again, others = saved_after(tmp_path / "r", program, 3, "the same", "absolute")

    looped(again, others, LOSSES["absolute"][0], steps=4)

    assert 10 == again.step_number


def test_a_graph_that_changes_just_before_the_save_is_no_edit(
    tmp_path: Path, program: Callable[[str], ModuleType], capfd: pytest.CaptureFixture[str]
):
    """An unchanged program goes on; one more graph of a training with several is said."""
    folder = tmp_path / "r"
    objects = program(TORCH).make()
    rescue = Rescue(folder, name="a", **objects)
    looped(rescue, objects, LOSSES["the same"][0], steps=6)
    for each in ("absolute", "negated"):
        loss = looped(rescue, objects, LOSSES[each][0], steps=1)
        assert loss is not None
        assert rescue.save() is not None
        rescue, objects = resumed(folder, program(TORCH))
        looped(rescue, objects, LOSSES[each][0], steps=3)
    assert "the first steps compute" not in capfd.readouterr().err

    assert rescue.save() is not None
    rescue, objects = resumed(folder, program(TORCH))
    looped(rescue, objects, LOSSES["mean for sum"][0], steps=4)

    assert "the first steps compute something else" in capfd.readouterr().err


def test_a_loss_that_is_not_given_is_not_compared(
    tmp_path: Path, program: Callable[[str], ModuleType]
):
    """Neither is a loss whose graph is gone at the save, nor a plain number."""
    module = program(TORCH)
    objects = module.make()
    rescue = Rescue(tmp_path / "r", name="a", **objects)
    looped(rescue, objects, LOSSES["the same"][0], steps=1)
    module.train(rescue, **objects, steps=2)
    rescue.step(loss=0.5)
    assert rescue.save() is not None
    again, others = resumed(tmp_path / "r", module)

    looped(again, others, LOSSES["absolute"][0], steps=4)

    assert 8 == again.step_number


def test_force_goes_on_with_another_loss_and_says_so(
    tmp_path: Path, program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
):
    """The agent reports it once."""
    again, others = saved_after(tmp_path / "r", program, 2, "the same", resume="force")

    looped(again, others, LOSSES["absolute"][0], steps=6)

    said = capsys.readouterr().err
    assert 1 == said.count("compute something else")
    assert "AbsBackward0*1" in said


def test_precision_and_batch_size_leave_the_graph_as_it_is(program: Callable[[str], ModuleType]):
    """A user changes these to save memory."""
    from watchdog_app.agent.identity.torch_graph import signature

    model = program(TORCH).make()["model"]

    def graph(rows: int, precise: bool = True) -> str | None:
        with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
            loss = model(torch.ones(rows, 3)).pow(2).mean()
        return signature(loss, {})

    assert graph(2) == graph(7)
    assert graph(2, precise=False) == graph(7, precise=False)


def test_a_seed_that_pytorch_drew_for_itself_is_no_seed_of_the_program():
    """Two runs without a seed always differ in it; a message about it says nothing."""
    before = torch.get_rng_state(), torch.initial_seed()
    try:
        torch.seed()
        drawn = torch_facts.gather({}, begins=True).seeds
        torch.manual_seed(7)

        assert ({}, {"the seed": 7}) == (drawn, torch_facts.gather({}, begins=True).seeds)
    finally:
        torch.manual_seed(before[1])
        torch.set_rng_state(before[0])


def test_the_statistics_that_fine_tuning_switches_off_are_state_of_the_model():
    """Lightning's BaseFinetuning freezes a BatchNorm so, and switches it on later."""
    before, after = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    kept = attributes.Attributes([("model", before)])
    before.track_running_stats = False

    attributes.Attributes([("model", after)]).restore(kept.changed_values())

    assert after.track_running_stats is False
    facts = [
        torch_facts.gather({"model": each}, begins=False).model
        for each in (before, torch.nn.BatchNorm1d(2))
    ]
    assert facts[0] == facts[1]
