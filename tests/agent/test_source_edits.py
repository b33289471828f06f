"""The lines that resume a program's training, derived from its text."""

from __future__ import annotations

import ast
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from watchdog_app.agent.found import resume_lines
from watchdog_app.agent.found.loop_variables import keyword
from watchdog_app.agent.found.resume_lines import LoopRecord
from watchdog_app.agent.source import edits
from watchdog_app.agent.source.edits import Edited, edit
from watchdog_app.agent.source.program import Called
from watchdog_app.rescue.checkpoint.store import RescueStore

# The loop of `torch_reference` calls a function in another file.
PROGRAMS = sorted(
    path
    for path in (Path(__file__).parents[1] / "programs").glob("*.py")
    if path.stem != "torch_reference"
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


@pytest.mark.parametrize(
    "made",
    ["batches, others = cycle(loader), cycle(other)", "batches = cycle(loader)\nnext(batches)"],
)
def test_a_generator_of_data_that_the_rescue_cannot_place_is_named(made: str):
    source = """
import torch
def cycle(dl):
    while True:
        for batch in dl: yield batch
MADE
for step in range(9):
    train(next(batches))
    optimizer.step()
""".replace("MADE", made)
    found = edit(source, "r", {})

    assert "what next() reads begins again: its place is not restored" in found.notes
    assert "rescue.data" not in found.after


def test_names_of_a_rescue_are_written_as_the_caller_of_the_loop_writes_them():
    """The rescue knows `net` of the inner function; its caller called it `model` when it ran."""
    source = """
import torch
def train(net, opt, data):
    for batch in data:
        net(batch).sum().backward()
        opt.step()
def main():
    model = torch.nn.Linear(3, 1)
    sgd = torch.optim.SGD(model.parameters())
    for epoch in range(3):
        train(model, sgd, loader)
"""
    calls = [Called("main", "", 1, {"net": "model", "opt": "sgd"})]
    found = edit(source, "rescues/x", {"net": "net", "opt": "opt"}, calls=calls)

    assert "    rescue = Rescue('rescues/x', net=model, opt=sgd)" in found.lines()


def test_the_loop_of_the_calls_that_ran_gets_the_lines():
    """The text alone shows two calls of the function in a loop, and the first one never ran."""
    source = """
import torch
def train_step(model, batch, optimizer):
    optimizer.step()
for epoch in range(3):
    losses = [train_step(net, batch, adam) for batch in loader] if debug else []
    for batch in loader:
        train_step(net, batch, adam)
"""
    ran = Called("<module>", "train_step(net, batch, adam)", 8, {"model": "net"})
    step = Called("train_step", "optimizer.step()", 4, {"model": "model"})
    found = edit(source, "r", {"model": "model"}, calls=[step, ran])
    unknown = edit(source, "r", {"model": "model"}, calls=[step, replace(ran, text="f()")])

    assert "    for batch in rescue.data(loader):" in found.lines()
    assert "rescue = Rescue('r', model=net)" in found.lines()
    assert "    for batch in rescue.data(loader):" not in unknown.lines()


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


@pytest.mark.parametrize("later", ["", "    lr = lr / 2\n"])
def test_a_range_of_iterations_that_do_not_all_step_is_not_counted_by_steps(later: str):
    loop = f"    if i % 5 == 0:\n        optimizer.step()\n{later}"
    source = f"import torch\nlr = 1\nfor i in range(90):\n{loop}"
    names, variables = {"optimizer": "optimizer"}, {"lr": ["<module>", "lr"]}

    assert edit(source, "r", names, variables=variables).refused


def test_of_two_objects_with_one_name_the_later_one_is_that_of_the_caller():
    source = """
import torch
def train_one_epoch(model, optimizer, epoch):
    scheduler = None
    if epoch == 0:
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    for batch in loader:
        optimizer.step()
def main():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3])
    for epoch in range(3):
        train_one_epoch(model, optimizer, epoch)
        scheduler.step()
"""
    names = {"model": "model", "scheduler_2": "scheduler"}
    calls = [Called("main", "", 1, names)]
    found = edit(source, "rescues/x", names, calls=calls)

    assert "    rescue = Rescue('rescues/x', model=model, scheduler_2=scheduler)" in found.lines()
    of_epoch_1 = {**names, "scheduler": "scheduler"}
    assert edit(source, "rescues/x", of_epoch_1, calls=calls).refused


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


def test_the_lines_are_for_the_loop_that_was_saved():
    """A teacher and a student are trained by functions of their own."""
    source = """
import torch
def train(model, epochs):
    for epoch in range(epochs):
        for batch in loader:
            optimizer.step()
def distil(student, epochs):
    for epoch in range(epochs):
        for batch in loader:
            optimizer.step()
"""
    # The text no longer has this call.
    calls = [Called("distil", "step.run()", 1, {"student": "student"})]
    found = edit(source, "rescues/x", {"student": "student"}, calls=calls).after

    assert "rescue = Rescue('rescues/x', student=student)" in found.partition("def distil")[2]
    assert "rescue" not in found.partition("def train")[2].partition("def distil")[0]


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


def test_a_loop_that_calls_another_method_of_the_name_is_no_second_training():
    """The calls that ran show which function the loop has called."""
    source = (
        "import torch\nclass Agent:\n    def update(self, x):\n        self.net(x).backward()\n"
        "        self.optimizer.step()\nagent = Agent(net)\nfor x in rows:\n    digest.update(x)\n"
        "for x in loader:\n    agent.update(x)\n"
    )
    own = {"optimizer": "self.optimizer"}
    calls = [
        Called("update", "self.optimizer.step()", 5, own),
        Called("<module>", "agent.update(x)", 10, {"optimizer": "agent.optimizer"}),
    ]

    found = edit(source, "r", own, calls=calls)

    assert "for x in rescue.data(loader):" in found.after
    assert () == found.notes


def test_data_that_the_loop_reads_by_next_goes_through_the_rescue():
    source = """
import torch
self.iter_num = 0
data_iter = iter(loader)
while True:
    try:
        batch = next(data_iter)
    except StopIteration:
        data_iter = iter(loader)
        batch = next(data_iter)
    optimizer.step()
    self.iter_num += 1
"""
    found = edit(source, "rescues/x", {"model": "model"}).after

    assert 2 == found.count("data_iter = iter(rescue.data(loader))")
    assert found.index("rescue = Rescue(") < found.index("iter(rescue.data(loader))")


def test_data_that_a_generator_of_the_program_reads_goes_through_the_rescue():
    """A logger of a loop would log batches that a resume skips."""
    source = """
import torch
class Logger:
    def log_every(self, items, header):
        for item in items:
            yield item
            print(header)
for epoch in range(3):
    for batch in Logger().log_every(loader, "train"):
        optimizer.step()
"""
    found = edit(source, "r", {"model": "model"}).lines()

    assert "    for batch in Logger().log_every(rescue.data(loader), 'train'):" in [
        each.replace('"', "'") for each in found
    ]


def test_a_variable_is_restored_before_and_behind_the_part_of_an_epoch_that_names_it():
    """An optimizer's own class counts; `n` has no value before the loop of a first run."""
    source = """
import torch
class Warmup:
    def __init__(self, optimizer):
        self.optimizer, self.steps = optimizer, 0
    def step(self):
        self.steps += 1
        self.optimizer.step()
net = torch.nn.Linear(1, 1)
warmup = Warmup(torch.optim.SGD(net.parameters()))
lr = 1.0
for epoch in range(3):
    lr *= 0.5
    total = 0
    for batch in loader:
        if epoch == 0:
            n = 0
        n += 1
        total += 1
        warmup.step()
"""
    texts = ("lr", "total", "n", "warmup.steps")
    variables = {keyword(text): ["<module>", text] for text in texts}
    names = {"net": "net", "optimizer": "self.optimizer"}
    calls = [Called("<module>", "", 1, {**names, "optimizer": "warmup.optimizer"})]
    found = edit(source, "r", names, variables, calls)
    lines = found.after.splitlines()

    both = "lr, total, n, warmup.steps = rescue.variables("
    assert "rescue = Rescue('r', net=net, optimizer=warmup.optimizer)" in lines
    assert "lr = rescue.variables(lr=lr)" in lines
    assert lines.index("    total = 0") + 1 == next(
        at for at, line in enumerate(lines) if line.strip().startswith(both)
    )
    assert "        rescue.step(total=total, n=n, warmup_steps=warmup.steps)" in lines
    assert "n = None" == lines[lines.index("lr = rescue.variables(lr=lr)") - 1]
    assert found.notes == ()
    asked = edit(f"{source}if 'n' in globals(): print(n)", "r", names, variables=variables)
    assert ("n is not restored: it may have no value before the loop",) == asked.notes
    assert ("n",) == asked.left_out


@pytest.mark.parametrize("made", ["loader = make(8)", "size = 8"])
def test_a_branch_runs_again_that_makes_what_no_rescue_holds(made: str):
    """Its flag is not restored before the loop, as it would keep the old loader."""
    source = f"""
import torch
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters())
done, loader, size = False, make(4), 4
for epoch in range(9):
    if epoch > 2 and not done:
        {made}
        done = True
    for batch in loader:
        use(size)
        optimizer.step()
"""
    variables = {keyword(each): ["<module>", each] for each in ("done", "size")}
    found = edit(source, "r", {"net": "net", "optimizer": "optimizer"}, variables=variables)

    before, _, behind = found.after.partition("for epoch")
    assert ("rescue.variables(" in before) is (made == "size = 8")
    assert "done, size = rescue.variables(" in behind


@pytest.mark.parametrize("first", ["env.begin()", "env.reset()", "pass"])
def test_what_a_reset_sets_has_a_value_only_after_a_call_before_the_loop(first: str):
    source = f"""
import torch
class Env:
    def begin(self):
        self.reset()
    def reset(self):
        self.t = 0
net, env = torch.nn.Linear(1, 1), Env()
optimizer = torch.optim.SGD(net.parameters())
{first}
while env.goes_on():
    env.reset()
    env.t += 1
    optimizer.step()
"""
    names = {"net": "net", "optimizer": "optimizer"}
    found = edit(source, "r", names, variables={keyword("env.t"): ["<module>", "env.t"]})

    assert ("env.t = rescue.variables(" in found.after) is (first != "pass")
    assert ("may have no value before the loop" in str(found.notes)) is (first == "pass")


@pytest.mark.parametrize(
    ("field", "is_set"),
    [
        ("total: float = 0.0", True),
        ("total: float", False),
        ("pass\nclass er:\n    total = 0", False),  # another class
    ],
)
def test_a_field_of_a_class_has_its_value_from_there(field: str, is_set: bool):
    source = f"""
import torch
@dataclass
class Meter:
    {field}
for epoch in range(9):
    meter = Meter()
    for batch in loader:
        optimizer.step()
        meter.total += 1
"""
    variables = {keyword("meter.total"): ["<module>", "meter.total"]}
    found = edit(source, "r", {"optimizer": "optimizer"}, variables=variables)

    assert ("meter.total = rescue.variables(" in found.after) is is_set


def test_a_method_that_init_calls_sets_values():
    source = """
import torch
class Loader:
    def __init__(self):
        self.reset()
    def reset(self):
        self.position = 0
loader = Loader()
for step in range(9):
    train(loader.next_batch())
    optimizer.step()
"""
    variables = {"loader_position": ["<module>", "loader.position"]}

    found = edit(source, "r", {}, variables=variables)

    assert "rescue.step(loader_position=loader.position)" in found.after


@pytest.mark.parametrize(
    ("made", "epochs"),
    [
        ("bar = tqdm(range(2, 9))", "for epoch in rescue.epochs(range(2, 9)):"),
        ("bar = range(9)", "for epoch in rescue.epochs(bar):"),
        ("bar = trange(9)", "for epoch in rescue.epochs(9):"),
    ],
)
def test_epochs_of_a_range_with_a_name_are_counted_up_to_its_end(made: str, epochs: str):
    source = f"import torch\n{made}\nfor epoch in bar:\n    for batch in loader: optimizer.step()"

    assert epochs in edit(source, "r", {}).after


@pytest.mark.parametrize(
    ("made", "range_"),
    [
        ("t = tqdm.trange(n, desc='x')", "t = tqdm.trange(rescue.step_number, n, desc='x')"),
        ("t = tqdm(range(1, n))", "t = tqdm(range(1 + rescue.step_number, n))"),
    ],
)
def test_a_bar_over_a_range_is_no_data_set(made: str, range_: str):
    source = f"import torch\n{made}\ntotal = 0\nfor i in t:\n    optimizer.step()\n"
    lines = edit(source, "r", {"optimizer": "optimizer"}).after.splitlines()

    assert range_ == lines[lines.index("rescue = Rescue('r', optimizer=optimizer)") + 1]
    assert "for i in t:" in lines


def test_a_bar_made_before_the_optimizer_does_not_move_the_rescue():
    source = "import torch\nt = trange(9)\noptimizer = make()\nfor i in t:\n    optimizer.step()\n"
    found = edit(source, "r", {"optimizer": "optimizer"})

    assert "optimizer = make()\nrescue = Rescue(" in found.after
    assert ("the counter of the loop does not follow from the steps",) == found.notes


def test_steps_of_an_epoch_are_written_as_the_caller_of_the_inner_loop_writes_them():
    source = """
import torch
def train(args, epoch):
    total = args.iters
    pbar = tqdm(range(total), unit="batch")
    for pos in pbar:
        optimizer.step()
def main():
    for epoch in range(9):
        train(options, epoch)
"""
    found = edit(source, "r", {}).after

    assert "for epoch in rescue.epochs(9, steps=options.iters):" in found
    assert "for pos in rescue.data(pbar):" in found


def test_a_loop_over_what_is_no_range_gets_no_epochs_without_an_end():
    source = "import torch\nfor part in parts:\n    for batch in part: optimizer.step()\n"
    found = edit(source, "r", {})

    assert found.refused
    assert "the loop in line 2 is over no range" in found.notes[0]


def test_a_while_loop_around_data_finishes_at_its_end():
    """Its condition may end it, and no epochs of the rescue do."""
    source = (
        "import torch\nwhile fits():\n    for batch in loader:\n        optimizer.step()\nuse()\n"
    )

    assert "rescue.finish()\nuse()" in edit(source, "r", {"optimizer": "optimizer"}).after


def test_a_return_or_exit_from_the_loop_finishes_and_one_after_an_error_does_not():
    source = """
import torch
def train(net, optimizer):
    for epoch in range(9):
        for batch in loader:
            optimizer.step()
        if epoch > 3: return 1
        if epoch > 5: sys.exit(1)
        if epoch > 6: sys.exit()
        try:
            validate()
        except KeyboardInterrupt:
            return 2
"""
    lines = edit(source, "r", {"net": "net", "optimizer": "optimizer"}).after.splitlines()

    assert "        if epoch > 3: rescue.finish(); return 1" in lines
    assert "        if epoch > 6: rescue.finish(); sys.exit()" in lines
    assert 2 == str(lines).count("finish")


def test_a_list_of_callbacks_gets_one_more():
    source = 'import keras\nmodel.fit(x, callbacks=[\n    First("a"),  # one\n])\n'

    found = edit(source, "r")

    assert "    First(\"a\"), Rescue('r'),  # one" in found.after.splitlines()


@pytest.mark.parametrize("names", [None, {"optimizer": "self.optimizer"}])
def test_a_fit_of_the_programs_own_class_gets_no_callback(names: dict[str, str] | None):
    source = """
import tensorflow as tf
class Trainer:
    def fit(self, dataset):
        for batch in dataset:
            self.optimizer.apply_gradients(self.gradients(batch))
Trainer().fit(load())
"""
    found = edit(source, "r", names, calls=[Called("fit", "", 1, names or {})])

    assert "callbacks" not in found.after
    assert ("for batch in rescue.data(dataset):" in found.after) is (names is not None)


def test_a_loops_rescue_gives_no_lines_to_a_fit():
    source = """
import keras
for batch in dataset:
    optimizer.apply_gradients(gradients(batch))
model.fit(x)
"""
    found = edit(source, "r", {"optimizer": "optimizer"})

    assert "for batch in rescue.data(dataset):" in found.after
    assert "model.fit(x)" in found.after.splitlines()


def test_a_trainer_of_a_subclass_gets_its_checkpoint():
    source = """
from transformers import Trainer, TrainingArguments
class Arguments(TrainingArguments):
    pass
class Distiller(Trainer):
    pass
model.train()
distiller = Distiller(args=Arguments())
distiller.train()
"""
    found = edit(source, "r").after

    assert "distiller.train(resume_from_checkpoint=checkpoint('r'))" in found.splitlines()
    assert "model.train()" in found.splitlines()


def test_a_program_with_a_variable_named_checkpoint_keeps_it():
    source = """
from transformers import Trainer, TrainingArguments
checkpoint = None
trainer = Trainer(args=TrainingArguments())
trainer.train(resume_from_checkpoint=checkpoint)
"""
    found = edit(source, "r").after.splitlines()

    assert "from watchdog_app.agent.transformers import checkpoint as rescue_checkpoint" in found
    assert "trainer.train(resume_from_checkpoint=rescue_checkpoint('r'))" in found


def test_a_bar_made_in_two_statements_reads_and_counts_through_the_rescue():
    source = """
from torch import optim
opt = optim.SGD(net.parameters(), 0.1)
for epoch in range(9):
    bar = enumerate(loader)
    bar = tqdm(bar, total=len(loader))
    for i, x in bar:
        opt.step()
"""
    found = edit(source, "r", {"net": "net", "opt": "opt"}).after

    assert "bar = rescue.enumerate(loader)" in found
    assert "    for i, x in bar:" in found.splitlines()


def test_a_list_of_the_module_that_a_function_extends_is_restored_before_the_loop():
    source = """
from torch import optim
def train(loader):
    for x in loader:
        opt.step()
        losses.append(1)
losses = []
opt = optim.SGD(net.parameters(), 0.1)
for epoch in range(9):
    train(loader)
"""
    variables = {"losses": ("train", "losses")}
    found = edit(source, "r", {"net": "net", "opt": "opt"}, variables)

    restored = found.after.index("losses = rescue.variables(losses=losses)")
    assert found.after.index("rescue = Rescue(") < restored < found.after.index("for epoch")
    assert not found.notes


def test_a_counter_around_another_call_starts_at_the_place_of_the_rescue():
    source = """
from torch import optim
class Logger:
    def log_every(self, iterable, every):
        for each in iterable:
            yield each
logger = Logger()
opt = optim.SGD(net.parameters(), 0.1)
for epoch in range(9):
    for i, x in enumerate(logger.log_every(loader, 10)):
        opt.step()
"""
    found = edit(source, "r", {"net": "net", "opt": "opt"}).after

    read = "enumerate(logger.log_every(rescue.data(loader), 10), start=rescue.batch)"
    assert f"for i, x in {read}:" in found


def test_a_lightning_cli_gets_advice_in_place_of_lines_that_do_not_suit_it():
    source = "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model, Data)\n"
    record = LoopRecord("lightning", "rescues/x", {}, [], "")

    lines = resume_lines.resume_code(record, source)

    assert {"#"} == {line[0] for line in lines}
    assert "cli.trainer.fit(cli.model, **resumed('rescues/x', cli.datamodule))" in lines[0]


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


def test_a_text_without_a_training_says_so():
    assert ("no training loop and no fit was found in the text",) == edit("x = 1\n", "r").notes


def test_a_scheduler_of_any_name_that_steps_once_an_epoch_is_no_optimizer():
    source = """
import torch
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(8):
    for batch in loader:
        optimizer.step()
    plateau.step(1.0)
"""
    found = edit(source, "r", {"model": "model"}).lines()

    assert "    for batch in rescue.data(loader):" in found
    assert "        rescue.step()" in found


def test_names_that_a_finished_pass_would_not_set_get_a_value():
    """A rescue of the last batch of an epoch resumes behind the inner loop."""
    source = """
import torch
for epoch in range(8):
    total = 0.0
    for i, batch in enumerate(loader):
        loss = model(batch)
        total += loss.item()
        optimizer.step()
    print(loss.item(), total / (i + 1))
    scheduler.step(last)
"""
    found = edit(source.replace("total +=", "last = loss; total +="), "r", {"model": "model"})

    assert ["i = torch.tensor(torch.nan)", "loss = torch.tensor(torch.nan)"] == [
        each for each in found.lines() if "nan" in each
    ]
    assert ("last may have no value until a step sets it: set it before the loop",) == found.notes


def test_tabs_are_kept():
    source = "import torch\nfor batch in loader:\n\toptimizer.step()\n\tlog()\n"

    assert "\trescue.step()" in edit(source, "r", {}).lines()


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (" optimizer.step()", "for batch in rescue.data(loader): optimizer.step(); rescue.step()"),
        ("\n    loss.backward(); optimizer.step()  # one line",
         "    loss.backward(); optimizer.step(); rescue.step()  # one line"),
        ("\n    if wanted: a(); optimizer.step()",
         "    if wanted: a(); optimizer.step(); rescue.step()"),
        ("\n    optimizer.step(); continue", "    optimizer.step(); rescue.step(); continue"),
    ],
)  # fmt: skip
def test_a_line_may_hold_several_statements(body: str, line: str):
    found = edit(f"import torch; import os\nfor batch in loader:{body}\n", "r", {})

    assert line in found.after.splitlines()
    assert "import torch; import os; from watchdog_app.agent.torch import Rescue" in found.after
    ast.parse(found.after)


def test_a_last_line_without_an_end_is_patched(tmp_path: Path):
    source = "import torch\nfor batch in loader:\n    optimizer.step()"
    (tmp_path / "train.py").write_text(source)
    found = edit(source, "rescues/x", {})

    subprocess.run(
        ["patch", "train.py"], input=found.diff("train.py"), cwd=tmp_path, text=True, check=True
    )

    assert found.after == (tmp_path / "train.py").read_text()
    ast.parse(found.after)


_OWN_ITERATOR = """
import torch
class Batches:
    def __init__(self, loader):
        self.loader = loader
        self.iterator = iter(self.loader)
    def next(self):
        try:
            return next(self.iterator)
        except StopIteration:
            self.iterator = iter(self.loader)
            return next(self.iterator)
def main():
    MADE
    step = 0
    while step < 9:
        for hook in self._hooks:
            hook(batches.next())
            optimizer.step()
        step += 1
"""


def test_an_object_that_reads_by_next_is_made_behind_the_rescue():
    """A loop over hooks is a part of a step."""
    made = "batches = Batches(loader)"
    names, variables = {"optimizer": "optimizer"}, {"step": ["main", "step"]}
    found = edit(_OWN_ITERATOR.replace("MADE", made), "r", names, variables).after
    late = _OWN_ITERATOR.replace("MADE", f"{made}\n    optimizer = Adam()")

    assert 2 == found.count("self.iterator = iter(rescue.data(self.loader))")
    assert f"    rescue = Rescue('r', optimizer=optimizer)\n    {made}\n" in found
    assert "        step += 1\n        rescue.step(step=step)\n" in found
    assert "optimizer has no name before" in edit(late, "r", names, variables).notes[0]


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


@pytest.mark.parametrize(
    ("loop", "epochs"),
    [("x in rows", "3, steps=rows"), ("i in range(3)", "3, steps=3"), ("x in make(epoch)", "")],
)
def test_lines_for_a_rescue_without_an_epoch_train_no_epoch_again(
    tmp_path: Path, loop: str, epochs: str
):
    record = LoopRecord("torch", "r", {"net": "net"}, [], "train.py, <module>")
    meta = {"step": 3, resume_lines.KEY: asdict(record)}
    RescueStore(str(tmp_path)).save([], meta)
    source = FLAT.replace("x in loader", loop)
    (tmp_path / "train.py").write_text(source)

    edited = resume_lines.edit_program(str(tmp_path / "train.py"), str(tmp_path))
    code = "\n".join(resume_lines.resume_code(record, source, epoch=None))

    assert edited.refused is not bool(epochs)
    assert f"rescue.epochs({epochs})" in code if epochs else "data that an epoch makes" in code


def test_the_import_stands_before_the_lines_that_use_it():
    """Imports of the program may stand right before its loop, or behind it."""
    lines = edit(FLAT, "rescues/x", {"net": "net", "optimizer": "optimizer"}).after.splitlines()

    at = lines.index("from watchdog_app.agent.torch import Rescue")
    assert lines[at - 1] == "import time"
    assert lines[at + 1] == "rescue = Rescue('rescues/x', net=net, optimizer=optimizer)"


def test_a_log_that_is_emptied_before_the_loop_is_named():
    """Only one that the program appends to later; another file is the same in each run."""
    begins = "open(log, 'w').close()\nopen(options, 'w').close()\nfor epoch in range(3):"
    source = FLAT.replace("for epoch in range(3):", f"{begins}\n    open(log, 'a').close()")

    (note,) = edit(source, "r", {"net": "net"}).notes

    assert "a resume empties the file log in line 6: open it with 'a'" == note


def test_a_log_that_is_written_only_if_it_is_missing_is_not_named():
    begins = "if not os.path.exists(log):\n    open(log, 'w').close()\nfor epoch in range(3):"
    source = FLAT.replace("for epoch in range(3):", f"{begins}\n    open(log, 'a').close()")

    assert edit(source, "r", {"net": "net"}).notes == ()


def test_a_while_loop_over_epochs_is_finished_at_its_end():
    """Or else the next start, a new training, resumes from the end of the last one."""
    source = FLAT.replace("for epoch in range(3):", "while epoch < 3:\n    epoch += 1")

    assert "rescue.finish()\nimport math" in edit(source, "r", {"net": "net"}).after


def test_a_loop_over_a_generator_of_the_program_begins_at_its_steps():
    """The rescue has no pass over such data; the same call tells how many steps an epoch has."""
    source = (
        "import torch\ndef batches(rows):\n    for row in range(0, len(rows), 2):\n"
        "        yield rows[row]\noptimizer = torch.optim.SGD(model.parameters())\n"
        "for epoch in range(3):\n    for x in batches(rows):\n        optimizer.step()\n"
    )

    late = source.replace("3):", "3):\n    rows = load()")
    after, refused = (edit(each, "r", {}, epoch=None) for each in (source, late))

    assert "for epoch in rescue.epochs(3, steps=batches(rows)):" in after.after
    assert refused.refused


def test_data_that_begins_again_in_one_loop_has_no_lines():
    """The rescue is of a later pass, so the data does not follow from the batches of that pass."""
    source = FLAT.replace("for epoch in range(3):\n    ", "").replace("x in loader", "x in endless")

    one, later = (edit(source, "r", {}, epoch=each) for each in (0, 14))

    assert "for x in rescue.data(endless):" in one.after
    assert later.refused
    assert "does not follow from the steps" in later.notes[0]


_ENDLESS = """
import torch
class Endless:
    def __init__(self, data):
        self.data = data
        self.it = iter(self.data)
    def next(self):
        try:
            return next(self.it)
        except StopIteration:
            self.it = iter(self.data)
            return next(self.it)
FIRST
loader = Endless(data)
LAST
for i in range(9):
    x = loader.next()
    optimizer.step()
"""


def test_the_lines_read_an_iterator_in_an_object_that_the_loop_asks():
    """The object is made after the Rescue, so what the Rescue gets is made before."""
    made = "optimizer = torch.optim.SGD(net.parameters())"
    early, late = (
        edit(_ENDLESS.replace(place, made).replace(other, ""), "r", {"optimizer": "optimizer"})
        for place, other in (("FIRST", "LAST"), ("LAST", "FIRST"))
    )

    assert 2 == early.after.count("self.it = iter(rescue.data(self.data))")
    assert "Rescue('r', optimizer=optimizer)\nloader = Endless(data)" in early.after
    assert "for i in range(rescue.step_number, 9):" in early.after
    assert late.refused


_AGAIN = """
import torch
from itertools import count, cycle, islice
from tqdm import tqdm
def endless(data):
    while True:
        yield from data
LOOP
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "line"),
    [
        ("for i, x in enumerate(endless(a)):", "enumerate(endless(a), start=rescue.step_number)"),
        ("for i, x in enumerate(endless(a), 1):", "enumerate(endless(a), 1 + rescue.step_number)"),
        ("for x in islice(endless(a), n):", "islice(endless(a), n - rescue.step_number)"),
        ("for i, x in zip(range(n), endless(a)):", "zip(range(rescue.step_number, n), endless(a))"),
        ("bar = tqdm(endless(a))\nfor x in bar:", "for x in bar:"),
    ],
)
def test_data_that_begins_again_is_read_in_its_generator_and_counted_on(loop: str, line: str):
    """A pass of the rescue around it would be its only one: the loop would wait without an end."""
    found = edit(_AGAIN.replace("LOOP", loop), "r", {"model": "model"}).after

    assert "yield from rescue.data(data)" in found
    assert line in found


@pytest.mark.parametrize(
    "loop",
    [
        "for i, x in enumerate(cycle(a)):",
        "for e in range(3):\n  for x in islice(endless(a), n):",
        "for e in range(3):\n  for x in zip(b, cycle(a)):",
        "both = iter(a)\nfor e in range(3):\n  for x in zip(b, both):",
        "for i, x in enumerate(endless(a)):\n  if i % 4 == 3:",
        "for e in range(3):\n  for x in islice(a, 5, None):",
    ],
)
def test_data_without_a_place_that_follows_from_the_steps_gets_no_lines(loop: str):
    assert edit(_AGAIN.replace("LOOP", loop), "r", {"model": "model"}).refused


def test_a_refusal_says_why_an_object_is_needed_before_a_statement():
    source = """
import torch
batches = iter(loader)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters())
for step in range(9):
    model(next(batches)).backward()
    optimizer.step()
"""
    (note,) = edit(source, "r", {"model": "model", "optimizer": "optimizer"}).notes

    assert "before the statement in line 3, which makes what the loop reads, so a" in note


def test_a_loop_whose_turns_train_what_they_read_gets_no_lines():
    source = """
import torch
class Layer(torch.nn.Linear):
    def learn(self, x):
        for i in range(9):
            self.opt.step()
for layer in layers:
    layer.learn(x)
"""
    names = {"model": "layers[1]", "opt": "layers[1].opt"}
    calls = [Called("learn", "self.opt.step()", 6, {"model": "self", "opt": "self.opt"}),
             Called("<module>", "layer.learn(x)", 8, names)]  # fmt: skip
    found = edit(source, "r", names, {}, calls)

    assert found.refused
    assert "each turn of the loop in line 7 trains another layer" in found.notes[0]


def test_rounds_that_train_copies_of_a_common_model_get_no_lines():
    source = """
import torch
def update(model):
    optimizer = torch.optim.SGD(model.parameters())
    for epoch in range(2):
        for x in loader:
            optimizer.step()
    return model.state_dict()
for turn in range(9):
    found = [update(copy.deepcopy(common)) for client in clients]
    common.load_state_dict(average(found))
"""
    names = {"model": "model", "optimizer": "optimizer"}
    calls = [
        Called("update", "optimizer.step()", 7, names),
        Called("", "update(copy.deepcopy(common))", 10, {}),
    ]
    found = edit(source, "r", names, {}, calls)

    assert found.refused
    assert "line 9 trains from common, which it changes at its end" in found.notes[0]
    folds = source.replace("    common.load_state_dict(average(found))\n", "")
    assert edit(folds, "r", names, {}, calls).changed


def test_two_ranges_over_data_read_by_next_continue_at_the_step():
    """A pass over the data may end in the middle of an epoch, so it shows no epoch."""
    loop = "data = endless(a)\nfor e in range(1, m):\n  for i in range(n):\n    x = next(data)"
    found = edit(_AGAIN.replace("LOOP", loop), "r", {"model": "model"}).after

    assert "for e in range(1 + rescue.step_number // (n), m):" in found
    assert "  for i in range(rescue.step_number % (n), n):" in found
    assert "rescue.finish()" in found


@pytest.mark.parametrize(
    ("made", "line"),
    [
        ("with tqdm(range(9)) as bar:\n  for e in bar:\n   for x in a:", "rescue.epochs(9):"),
        ("for e in range(9):\n  with tqdm(a) as b:\n   for x in b:", "for x in rescue.data(b):"),
        ("for e in range(9):\n  b = tqdm(enumerate(a))\n  for x in b:", "(rescue.enumerate(a))"),
    ],
)
def test_a_bar_that_a_statement_names_is_understood(made: str, line: str):
    assert line in edit(_AGAIN.replace("LOOP", made), "r", {"model": "model"}).after


@pytest.mark.parametrize(
    ("loop", "line"),
    [
        ("for x in zip(a, b):", "for x in rescue.data(lambda: zip(a, b)):"),
        ("for i, x in enumerate(zip(a, b), 1):", "rescue.enumerate(lambda: zip(a, b), 1)"),
        ("both = tqdm(islice(a, 9))\n  for x in both:", "tqdm(rescue.data(lambda: islice(a, 9)))"),
        ("for x in a.map(f):", "for x in rescue.data(a.map(f)):"),
    ],
)
def test_a_call_that_begins_passes_is_made_again_in_each_pass(loop: str, line: str):
    """A resume restores the random numbers before the call."""
    edited = edit(_AGAIN.replace("LOOP", f"for e in range(3):\n  {loop}"), "r", {"model": "model"})

    assert line in edited.after
    assert not edited.notes


def test_the_lines_say_that_folds_which_have_ended_train_again():
    loop = "for k in range(5):\n model = make()\n for e in range(3):\n  for x in a:"
    found = edit(_AGAIN.replace("LOOP", loop), "r", {"model": "model"})

    assert "those that have ended train again" in str(found.notes)


@pytest.mark.parametrize("package", edits.OWN_CHECKPOINTS)
def test_a_library_that_runs_the_loop_itself_is_named_with_its_own_checkpoint(package: str):
    edited = edits.edit(f"from {package} import x\nx.run(data, max_epochs=3)\n", "rescues")

    assert edited.refused
    assert edited.notes == (edits.OWN_CHECKPOINTS[package],)


def test_a_fit_of_scikit_learn_in_a_keras_program_gets_no_rescue():
    source = (
        "import keras\nfrom sklearn.preprocessing import StandardScaler\n"
        "scaler = StandardScaler()\nscaler.fit(x)\nStandardScaler().fit(x)\nmodel.fit(x, y)\n"
    )
    after = edit(source, "r").after

    assert after.count("Rescue(") == 1
    assert "model.fit(x, y, callbacks=[Rescue(" in after


def test_the_import_stands_before_a_decorated_function_that_begins_the_text():
    """As in a cell of a notebook."""
    source = "@torch.no_grad()\ndef estimate():\n    pass\nfor x in loader:\n    optimizer.step()\n"

    found = edit(source, "r", {}, framework="torch").after

    assert found.startswith("from watchdog_app.agent.torch import Rescue\n@torch.no_grad()\n")


CONDITIONAL = """
import torch
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters())
for it in range({begin}9):
    if {condition}:
        optimizer.step()
    if it % 3 == 0:
        target.load_state_dict(net.state_dict())
    {last}
"""


@pytest.mark.parametrize(
    ("begin", "condition", "last", "step"),
    [
        ("", "it % 4 == 0", "pass", "    if it % 4 == 0: rescue.step(it=it)"),
        ("first, ", "it > args.begin", "pass", "    if it > args.begin: rescue.step(it=it)"),
        ("", "len(buffer) > 4", "pass", "    if len(buffer) > 4: rescue.step(it=it)"),
        # The condition may have another value at the end of the iteration.
        ("", "buffer.is_full()", "pass", "        rescue.step(it=it)"),
        ("", "begin < it", "begin = it", "        rescue.step(it=it)"),
    ],
)
def test_a_range_whose_iterations_do_not_all_step_continues_behind_its_counter(
    begin, condition, last, step
):
    """The step is marked where all that the iteration does is done."""
    source = CONDITIONAL.format(begin=begin, condition=condition, last=last)
    variables = {"it": ["<module>", "it"]}
    found = edit(source, "r", {"net": "net", "optimizer": "optimizer"}, variables=variables)
    before = "first - 1" if begin else "-1"

    assert f"for it in range(rescue.variables(it={before}) + 1, 9):" in found.after
    assert step in found.after.splitlines()
    assert "variables(it=it)" not in found.after

    unknown = edit(source, "r", {"net": "net", "optimizer": "optimizer"})
    assert unknown.refused
    assert "counts iterations, and not each of them makes a step" in unknown.notes[0]


def test_nested_ranges_continue_at_both_counters():
    """Episodes end early, and not each of their turns makes a step."""
    source = """
import torch
rewards = []
def train(agent):
    for episode in range(1, n_episodes + 1):
        state = env.reset()
        for t in count():
            state, done = env.step(agent.act(state))
            if t % 4 == 0:
                agent.optimizer.step()
            rewards.append(1)
            if done:
                break
train(agent)
"""
    variables = {each: ["train", each] for each in ("episode", "t", "state", "rewards")}
    names = {"net": "agent.net", "optimizer": "agent.optimizer"}
    found = edit(source, "r", names, variables=variables, epoch=None)

    assert [
        "from watchdog_app.agent.torch import Rescue",
        "    rescue = Rescue('r', net=agent.net, optimizer=agent.optimizer)",
        "    for episode in range(rescue.variables(episode=1), n_episodes + 1):",
        "        rescue.variables(episode=episode)",
        "        state = rescue.variables(state=state)",
        "        rescue.variables(rewards=rewards)",  # a global list, filled in place
        "        for t in count(rescue.variables(t=-1) + 1):",
        "            if t % 4 == 0: rescue.step(state=state, t=t)",  # behind the break
        "    rescue.finish()",
    ] == [each for each in found.lines() if not each.startswith("#")]
    assert found.notes == ()


@pytest.mark.parametrize(
    ("filled", "begun", "refused"),
    [("__init__", "pass", False), ("apply", "pass", True), ("make", "self.make()", False)],
)
def test_slots_that_the_first_step_makes_have_no_name_before_the_loop(
    filled: str, begun: str, refused: bool
):
    source = f"""
import tensorflow as tf
class Adam:
    slots = []
    def __init__(self):
        {begun}
    def {filled}(self):
        self.slots.append(tf.Variable(0.0))
optimizer = Adam()
for epoch in range(9):
    for batch in data:
        optimizer.apply_gradients(batch)
"""
    found = edit(source, "r", {"slots_0": "optimizer.slots[0]"})

    assert refused is found.refused
    assert ("optimizer.slots[0] has no name before the loop" in str(found.notes)) is refused
