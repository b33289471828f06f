"""The lines that resume a program's training, derived from its text."""

from __future__ import annotations

import ast
import json
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from watchdog_app.agent.found import resume_lines
from watchdog_app.agent.found.loop_variables import keyword
from watchdog_app.agent.found.resume_lines import LoopRecord
from watchdog_app.agent.source import edits
from watchdog_app.agent.source.edits import Edited, edit
from watchdog_app.agent.source.program import Called
from watchdog_app.rescue.checkpoint.store import RescueStore

# The loop of `torch_reference` calls a function in another file; `torch_reptile` has two loops.
PROGRAMS = sorted(
    path
    for path in (Path(__file__).parents[1] / "programs").glob("*.py")
    if path.stem not in ("torch_reference", "torch_reptile")
)
# Lines that a program of the corpus gets, without indent: what it calls its objects and counters.
LINES = {
    "torch_mnist": [
        "for batch_idx, (data, target) in rescue.enumerate(train_loader):",
        "global rescue",
        "rescue = Rescue('rescues/x', model=model, optimizer=optimizer, scheduler=scheduler)",
        "for epoch in rescue.epochs(range(1, args.epochs + 1)):",
    ],
    "torch_nanogpt": [
        "X, Y, iter_num = rescue.variables(X=X, Y=Y, iter_num=iter_num)",
        "rescue.step(X=X, Y=Y, iter_num=iter_num)",
        "rescue.finish()",
    ],
    "torch_bigram": ["for iter in range(rescue.step_number, max_iters):"],
    "torch_reinforce": ["for i_episode in count(1 + rescue.step_number):"],
    "torch_word_language_model": [
        (
            "for _epoch in rescue.epochs(range(1, 4 + 1), "
            "steps=range(0, train_data.size(0) - 1, bptt)):"
        ),
        "hidden = rescue.variables(hidden=hidden)",
        "best_val_loss, lr = rescue.variables(best_val_loss=best_val_loss, lr=lr)",
        "rescue.step(hidden=hidden)",
    ],
    "torch_loss_scaler": [
        "for step, (samples,) in rescue.enumerate(loader):",
        "rescue = Rescue('rescues/x', model=model, scaler=scaler._scaler)",
    ],
    "torch_trainer_class": [
        "rescue = Rescue('rescues/x', model=self.model, optimizer=self.optimizer)",
        "for source, targets in rescue.data(self.train_data):",
    ],
    "torch_wgan": [
        "batches_done = rescue.variables(batches_done=batches_done)",
        "if i % n_critic == 0: rescue.step(batches_done=batches_done)",
    ],
    "torch_accumulation": ["rescue.step(global_step=global_step)"],
    "tf_nmt_attention": [
        "for batch, (inp, targ) in rescue.enumerate(dataset.take(steps_per_epoch)):"
    ],
    "torch_next_iterator": [
        "data_iter = iter(rescue.data(train_loader))",
        "self.iter_num = rescue.variables(self_iter_num=self.iter_num)",
    ],
    "torch_cycle": ["yield from rescue.data(dl)"],
    "torch_prefetch": ["fetcher = iter(rescue.data(loader, ahead=1))"],
    "torch_ema": ["for (x0,) in tqdm(rescue.data(train_dl)):"],
    "torch_lightning_cli": [
        "cli.trainer.fit(cli.model, **resumed('rescues/x', cli.datamodule))",
    ],
    "torch_hf_trainer": ["trainer.train(resume_from_checkpoint=checkpoint('rescues/x'))"],
    "tf_dcgan": ["for image_batch in rescue.data(dataset):"],
    "tf_quickstart": [
        "rescue = Rescue('rescues/x', model=model, optimizer=optimizer, train_loss=train_loss)",
    ],
    "keras_timeseries": [
        "model.fit(dataset, epochs=epochs, callbacks=[*callbacks, Rescue('rescues/x')], verbose=2)"
    ],
}


# What a rescue of a program names; of the others it matters only that it names something.
NAMES = {
    "torch_mnist": ("model", "optimizer", "scheduler"),
    "torch_trainer_class": ("self.model", "self.optimizer"),
    "torch_loss_scaler": ("net.model", "self.scaler"),
    "tf_nmt_attention": ("encoder", "decoder", "optimizer"),
    "tf_quickstart": ("model", "optimizer", "train_loss"),
}
# The variables in its rescue, by function.
VARIABLES = {
    "torch_nanogpt": {"<module>": ["X", "Y", "iter_num"]},
    "torch_word_language_model": {"train": ["hidden"], "<module>": ["best_val_loss", "lr"]},
    "torch_wgan": {"<module>": ["batches_done"]},
    "torch_iterations": {"<module>": ["i", "g_lr"]},
    "torch_accumulation": {"<module>": ["global_step"]},
    "torch_next_iterator": {"run": ["self.iter_num"]},
}
# The calls that were running at its step.
CALLS = {
    "torch_loss_scaler": [
        Called("__call__", "self._scaler.step(optimizer)", 29, {"scaler": "self._scaler"}),
        Called(
            "train_one_epoch",
            "loss_scaler(loss, net.optim, parameters=net.parameters())",
            *(39, {"model": "net", "scaler": "loss_scaler._scaler"}),
        ),
        Called(
            "main",
            "train_one_epoch(model, loader, scaler, epoch)",
            *(48, {"model": "model", "scaler": "scaler._scaler"}),
        ),
    ],
}


def edited(name: str) -> Edited:
    path = Path(__file__).parents[1] / "programs" / f"{name}.py"
    names = {each.rpartition(".")[2]: each for each in NAMES.get(name, ("model",))}
    variables = {
        keyword(text): [function, text]
        for function, texts in VARIABLES.get(name, {}).items()
        for text in texts
    }
    of_library = edit(path.read_text(), "rescues/x")
    calls = CALLS.get(name, ())
    of_loop = edit(path.read_text(), "rescues/x", names, variables=variables, calls=calls)
    return of_library if of_library.lines() else of_loop


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_gets_a_diff_that_patch_applies(path: Path, tmp_path: Path):
    """The patched file is the edited text, which compiles and names a rescue."""
    found = edited(path.stem)
    (tmp_path / "train.py").write_text(path.read_text())

    subprocess.run(
        ["patch", "train.py"], input=found.diff("train.py"), cwd=tmp_path, text=True, check=True,
        capture_output=True,
    )  # fmt: skip

    assert found.after == (tmp_path / "train.py").read_text()
    assert "from watchdog_app.agent." in found.after
    ast.parse(found.after)


@pytest.mark.parametrize("name", LINES)
def test_the_lines_name_what_the_program_names(name: str):
    new = [line.strip() for line in edited(name).lines()]

    assert [] == [line for line in LINES[name] if line not in new]


TABLE = tomllib.loads(Path(__file__).with_name("source_edits.toml").read_text())
GIVEN = {"rule", "why", "program", "put", "names", "variables", "calls", "epoch", "framework"}
EXPECTED = {"shows", "hides", "after", "notes", "some_note", "left_out", "set_again", "refused"}


def cases() -> Iterator[Any]:
    for case in TABLE["case"]:
        for number, row in enumerate(case.pop("rows", [{}]), 1):
            yield pytest.param(case | row, id=f"{case['rule']} {number}")


@pytest.mark.parametrize("case", list(cases()))
def test_a_program_gets_the_lines_of_its_rule(case: dict[str, Any]):
    """The rules and programs are in source_edits.toml."""
    assert case.keys() <= GIVEN | EXPECTED
    assert case.keys() & EXPECTED

    def filled(text: str) -> str:
        for word, value in case.get("put", {}).items():
            text = text.replace(word, value)
        return text

    found = edit(
        source := filled(TABLE["programs"].get(case["program"], case["program"])),
        "r",
        case.get("names"),
        {
            keyword(text): (function, text)
            for function, texts in case.get("variables", {}).items()
            for text in texts
        },
        [Called(name, filled(call), *rest) for name, call, *rest in case.get("calls", ())],
        epoch=None if case.get("epoch") == "none" else case.get("epoch", 0),
        framework=case.get("framework", ""),
    )

    ast.parse(source)
    ast.parse(found.after)
    for part in case.get("shows", ()):
        times, text = part if isinstance(part, list) else (None, part)
        assert filled(text) in found.after
        assert times in (None, found.after.count(text))
    assert [] == [part for part in case.get("hides", ()) if part in found.after]
    assert case.get("after", found.after) == found.after
    assert case.get("some_note", "") in str(found.notes)
    if "notes" in case:
        assert len(case["notes"]) == len(found.notes)
        assert all(map(str.__contains__, found.notes, case["notes"]))
    assert tuple(case.get("left_out", found.left_out)) == found.left_out
    assert tuple(case.get("set_again", found.set_again)) == found.set_again
    assert case.get("refused", found.refused) is found.refused


def test_a_loop_that_trains_or_evaluates_as_an_object_decides_gets_no_lines():
    """Its steps would count those of the evaluation, too."""
    source = """
import torch
class Compute:
    def __call__(self, loss):
        if self.opt is not None:
            self.opt.step()
def run_epoch(data, compute):
    for batch in data:
        compute(model(batch))
for epoch in range(3):
    run_epoch(train_data, Compute(opt))
    run_epoch(test_data, Compute(None))
"""
    texts = ("self.opt.step()", "compute(model(batch))", "run_epoch(train_data, Compute(opt))")
    places = zip(("__call__", "run_epoch", "<module>"), texts, (6, 9, 11), strict=True)
    calls = [Called(*each, {"model": "model"}) for each in places]
    record = LoopRecord("torch", "r", {"model": "model"}, [], "", {}, calls)
    trains_only = source.replace("    run_epoch(test_data, Compute(None))\n", "")

    assert "the loop in line 8 trains and evaluates" in resume_lines.refusal(record, source)
    assert "no training loop" in resume_lines.refusal(record, "from engine import train")
    assert "" == resume_lines.refusal(record, "")
    assert "" == resume_lines.refusal(record, trains_only)
    asked = resume_lines.refusal(record, trains_only, epoch=None)
    assert "the rescue has no place in its data" in asked
    assert "rescue.data(data)" in edit(trains_only, "r", {"model": "model"}, calls=calls).after


@pytest.mark.parametrize("text", ["optimizer", "<the Adadelta>"])
def test_an_object_that_has_no_name_before_the_loop_gets_no_lines_that_would_raise(text: str):
    source = """
import torch
model = torch.nn.Linear(3, 1)
for iteration in range(3):
    optimizer = torch.optim.SGD(model.parameters())
    for batch in loader:
        optimizer.step()
"""
    names = {"model": "model", "optimizer": text}
    lines = resume_lines.resume_code(LoopRecord("torch", "rescues/x", names, [], ""), source)

    why = f"# {text.strip('<>')} has no name before the loop in line 4, so a Rescue there"
    assert [why] == [each.partition(" cannot")[0] for each in lines]


@pytest.mark.parametrize("made_inside", [False, True])
def test_a_rescue_is_made_once_for_a_training_in_three_loops(made_inside: bool):
    """Not once for each of many phases; but once for each of several trainings."""
    made = "model = nn.Linear(2, 1)\noptimizer = torch.optim.Adam(model.parameters())\n"
    loop = (
        "    for epoch in range(4):\n        for start in range(0, 64, 8):\n"
        "            loss(model, start).backward()\n            optimizer.step()\n"
    )
    inside = "".join(f"    {line}\n" for line in made.splitlines()) * made_inside
    text = "import torch\nfrom torch import nn\n" + made * (not made_inside)

    names = {"model": "model", "optimizer": "optimizer"}
    source = f"{text}for iteration in range(1, 9):\n{inside}{loop}"
    found = edit(source, "rescues", names)
    saved = edit(source, "rescues", names, {"iteration": ["<module>", "iteration"]}, epoch=None)

    counted = "range(rescue.variables(iteration=1), 9):\n    rescue.variables(iteration=iteration)"
    assert made_inside is not (counted in saved.after)
    assert made_inside is (found.after.index("Rescue(") > found.after.index("for iteration"))
    assert made_inside is not any("begins again" in note for note in found.notes)
    assert made_inside is not (
        found.outer == ["the place in the loop in line 5, which begins again"]
    )


def test_a_lightning_cli_of_any_class_makes_the_objects_and_the_lines_call_fit():
    """The command line stays: a rescue belongs to the arguments of its program."""
    text = """
from lightning.pytorch.cli import LightningCLI
class Own(LightningCLI):
    pass
def main():
    cli = Own(Model, Data, seed_everything_default=1)
    report(cli.model)
main()
"""
    found = edit(text, "rescues/x")

    assert "\nimport sys\n" in found.after
    assert (
        """1, run=False, args=[each for each in sys.argv[1:] if each != 'fit'])
    cli.trainer.fit(cli.model, **resumed('rescues/x', cli.datamodule))
    report(cli.model)
"""
        in found.after
    )
    assert "from watchdog_app.agent.lightning import resumed\n" in found.after
    short = text.replace("cli = Own(Model, Data, seed_everything_default=1)", "Own(Model)")
    short = edit(short.replace("report(cli.model)", "pass"), "x").after
    assert "    cli = Own(Model, run=False" in short
    assert "**resumed('x', cli.datamodule or cli.model))" in short


def test_a_lightning_cli_that_no_lines_fit_is_named_before_memory_runs_out():
    own = "import sys\nfrom lightning.pytorch.cli import LightningCLI\n"
    record = LoopRecord("lightning", "rescues/x", {}, [], "")
    given = f"{own}LightningCLI(Model, Data, args=sys.argv[2:])\n"

    lines = resume_lines.resume_code(record, given)

    assert {"#"} == {line[0] for line in lines}
    assert "cli.trainer.fit(cli.model, **resumed('rescues/x', cli.datamodule))" in lines[0]
    assert "LightningCLI calls fit itself" in resume_lines.refusal(record, given)
    assert resume_lines.refusal(record, f"{own}LightningCLI(Model, Data)\n") == ""
    resumes = f"from watchdog_app.agent.lightning import resumed\n{given}"
    assert resume_lines.refusal(record, resumes) == ""
    assert resume_lines.refusal(record, "import lightning\nrun(trainer)\n") == ""


def test_a_loop_in_a_library_gets_the_same_answer_before_and_after_its_end():
    """Not general lines, which would leave out what the library keeps."""
    record = LoopRecord("torch", "r", {"optimizer": "<the Adam>"}, [], "library.py, train")
    text = "from library import Trainer\ntrainer = Trainer(model)\ntrainer.train()\n"

    (line,) = resume_lines.resume_code(record, text)

    assert line == f"# {resume_lines.refusal(record, text)}"
    assert "the saved loop is in library.py, train" in line


def test_the_folder_is_that_of_the_newest_rescue_with_any_arguments(tmp_path: Path):
    """`python train.py --fold 3` saves in a folder of its own."""
    record = LoopRecord("torch", "r", {"model": "model"}, [], "train.py, <module>")
    for name in ("train.py", "train.py-0123abcd", "train.py.old"):
        folder = str(tmp_path / "rescues" / name)
        meta = {"step": 3, resume_lines.KEY: asdict(record)}
        if name != "train.py":
            RescueStore(folder).save([], meta)

    found = resume_lines.find_training(str(tmp_path / "train.py"))[1]

    assert str(tmp_path / "rescues" / "train.py-0123abcd") == found


@pytest.mark.parametrize("file", ["lab/__main__.py", "lab/engine.py"])
def test_the_rescue_of_a_module_is_found_by_each_file_of_its_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
):
    monkeypatch.chdir(tmp_path)
    record = LoopRecord("torch", "r", {"model": "model"}, [], "", files=["engine.py", ""])
    main = {"program_path": str(tmp_path / "lab" / "__main__.py")}
    store = RescueStore(str(tmp_path / "rescues" / "lab"))
    store.save([], {"step": 3, **main, resume_lines.KEY: asdict(record)})

    assert ("lab/__main__.py", "rescues/lab") == resume_lines.find_training(file)
    assert "rescues/other.py" == resume_lines.find_training("other.py")[1]


def test_a_loop_under_a_strategy_is_said_to_be_one():
    source = """
import tensorflow as tf
strategy = tf.distribute.MirroredStrategy()

@tf.function
def train_step(batch):
    return strategy.run(replica_step, args=(batch,))

for epoch in range(3):
    for batch in strategy.experimental_distribute_dataset(data):
        train_step(batch)
"""

    found = edit(source, "r")

    assert found.refused
    assert "its loop runs under tf.distribute" in found.notes[0]


def test_a_last_line_without_an_end_is_patched(tmp_path: Path):
    source = "import torch\nfor batch in loader:\n    optimizer.step()"
    (tmp_path / "train.py").write_text(source)
    found = edit(source, "rescues/x", {})

    subprocess.run(
        ["patch", "train.py"], input=found.diff("train.py"), cwd=tmp_path, text=True, check=True
    )

    assert found.after == (tmp_path / "train.py").read_text()
    ast.parse(found.after)


_ENGINE = '''
import torch
\f
def train_one_epoch(model, loader, optimizer):
    """Train."""
    for i, batch in enumerate(loader):
        optimizer.step()
        print(i)
    return model'''
_MAIN = """
import torch
from engine import train_one_epoch
for epoch in range(3):
    train_one_epoch(net, loader, sgd)
"""


def test_each_file_of_a_training_gets_its_lines(tmp_path: Path, monkeypatch):
    calls = [
        Called("train_one_epoch", "optimizer.step()", 7, {"model": "model"}, "engine.py"),
        Called("<module>", "train_one_epoch(net, loader, sgd)", 5, {"model": "net"}),
    ]
    files = {"models.py": "for x in y:\n    opt.step()\n", "engine.py": _ENGINE, "": _MAIN}
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "engine.py").write_text(_ENGINE)
    (tmp_path / "proj" / "train.py").write_text(_MAIN)

    found = edit(files, "r", {"model": "net"}, calls=calls)
    patch = found.diff("proj/train.py")
    subprocess.run(["patch", "-p0"], input=patch, cwd=tmp_path, text=True, check=True)

    assert () == found.notes
    assert ["engine.py", ""] == found.changed
    assert """
import torch
from watchdog_app.agent.torch import Rescue
\f
def train_one_epoch(model, loader, optimizer):
    \"\"\"Train.\"\"\"
    rescue = Rescue.current()
    for i, batch in rescue.enumerate(loader):
        optimizer.step()
        print(i)
        rescue.step()
    return model""" == (tmp_path / "proj" / "engine.py").read_text()
    assert """
import torch
from engine import train_one_epoch
from watchdog_app.agent.torch import Rescue
rescue = Rescue('r', model=net)
for epoch in rescue.epochs(3):
    train_one_epoch(net, loader, sgd)
""" == (tmp_path / "proj" / "train.py").read_text()
    assert "# proj/engine.py, before line 3:" in found.lines("proj/train.py")
    assert "# proj/train.py, before line 4:" not in edit(_MAIN, "r", {}).lines("proj/train.py")
    (tmp_path / "proj" / "tools").mkdir()
    monkeypatch.chdir(tmp_path / "proj" / "tools")
    assert str(tmp_path / "proj") == found.root("../train.py")
    assert "--- engine.py\n+++ engine.py\n" in found.diff("../train.py")


@pytest.mark.parametrize("file", ["/etc/hosts.py", "../engine.txt", "a\0.py"])
def test_a_record_that_names_a_strange_file_is_damaged(file: str):
    record = LoopRecord("torch", "r", {"model": "net"}, [], "", files=["engine.py", ""])
    told = asdict(record)

    assert record.files == resume_lines.read_record({resume_lines.KEY: told}).files
    assert resume_lines.read_record({resume_lines.KEY: {**told, "files": [file]}}) is None


def test_the_command_prints_the_diff_and_says_what_it_could_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Standard output is the diff alone, so that `patch` can read it; --json holds all."""
    from watchdog_app.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        (Path(__file__).parents[1] / "programs" / "torch_nanogpt.py").read_text()
    )
    assert 1 == main(["agent", "lines", "train.py"])
    assert "no rescue waits in rescues/train.py" in capsys.readouterr().err
    record = LoopRecord("torch", "rescues/train.py", {"model": "model"}, [], "train.py, <module>")
    meta = {"step": 3, "not_restored": ["X, Y, made ahead"], resume_lines.KEY: asdict(record)}
    RescueStore(str(tmp_path / "rescues" / "train.py")).save([], meta)
    assert 0 == main(["agent", "lines", "train.py"])
    shown = capsys.readouterr()
    assert 0 == main(["agent", "lines", "train.py", "--json"])
    told = json.loads(capsys.readouterr().out)

    assert shown.out == told["diff"]
    assert shown.out.startswith("--- train.py\n+++ train.py\n")
    assert "rescue = Rescue('rescues/train.py', model=model" in shown.out
    assert "watchdog: a resume will not bring back: X, Y, made ahead" in shown.err
    source = (tmp_path / "train.py").read_text()
    first_step = resume_lines.resume_code(record, source, ["X, Y, made ahead"])
    assert [*told["lines"], *(f"# {note}" for note in told["notes"])] == first_step
    (tmp_path / "train.py").write_text("from engine import train\ntrain()\n")
    assert 1 == main(["agent", "lines", "train.py"])
    assert "the saved loop is in train.py, <module>" in capsys.readouterr().err
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert 1 == main(["agent", "lines", "empty.py"])
    assert "No lines for empty.py: no training loop" in capsys.readouterr().err


def test_the_command_finds_the_rescue_of_a_fit_that_was_run_with_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from watchdog_app.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import keras\nmodel.fit(x, y)\n")
    RescueStore(str(tmp_path / "rescues" / "train.py-4c8ec6f2")).save([], {"step": 3})

    assert 0 == main(["agent", "lines", "train.py"])
    assert "callbacks=[Rescue('rescues/train.py-4c8ec6f2')]" in capsys.readouterr().out


FLAT = """\
import torch
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = [torch.ones(1)] * 3
import time
for epoch in range(3):
    for x in loader:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()
import math
"""


ORDER = "order = torch.randperm"


@pytest.mark.parametrize(
    ("loop", "epochs"),
    [
        ("for x in rows", "3, steps=rows"),
        ("for i in range(3)", "3, steps=3"),
        ("for x in make(epoch)", ""),
        (f"{ORDER}(9)\n    for x in order.split(3)", "3, steps=torch.arange(9).split(3)"),
        (f"{ORDER}(epoch)\n    for x in order.split(3)", ""),
        (f"{ORDER}(9)\n    if epoch: order = y\n    for x in order.split(3)", ""),
    ],
)
def test_lines_for_a_rescue_without_an_epoch_train_no_epoch_again(
    tmp_path: Path, loop: str, epochs: str
):
    record = LoopRecord("torch", "r", {"net": "net"}, [], "train.py, <module>")
    meta = {"step": 3, resume_lines.KEY: asdict(record)}
    RescueStore(str(tmp_path)).save([], meta)
    source = FLAT.replace("for x in loader", loop)
    (tmp_path / "train.py").write_text(source)

    edited = resume_lines.edit_program(str(tmp_path / "train.py"), str(tmp_path))
    code = "\n".join(resume_lines.resume_code(record, source, epoch=None))

    assert edited.refused is not bool(epochs)
    assert f"rescue.epochs({epochs})" in code if epochs else "data that an epoch makes" in code


@pytest.mark.parametrize("package", edits.OWN_CHECKPOINTS)
def test_a_library_that_runs_the_loop_itself_is_named_with_its_own_checkpoint(package: str):
    edited = edits.edit(f"from {package} import x\nx.run(data, max_epochs=3)\n", "rescues")

    assert edited.refused
    assert edited.notes == (edits.OWN_CHECKPOINTS[package],)
