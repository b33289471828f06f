"""Automatically found PyTorch trainings: their owner, their end, and what they leave behind."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import os
import pickle
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.waiting import until

torch = pytest.importorskip("torch")

import found_torch  # noqa: E402
from daemon_stand_in import StandIn  # noqa: E402
from found_torch import (  # noqa: E402
    NEW_OPTIMIZER,
    NEW_OPTIMIZER_OF_METHOD,
    REPEATED,
    Environment,
    ask,
    loader,
    only,
    rescues,
    train,
    train_in_a_function,
    train_in_environment,
    train_on_own_iterator,
    train_until_a_batch_fails,
    train_until_a_draw_fails,
    train_with_accumulation,
    train_with_bank,
    train_with_callbacks,
    train_with_evaluation,
    train_with_kept_iterator,
    train_with_rollout,
    train_with_target,
)
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from watchdog_app.agent import hook  # noqa: E402
from watchdog_app.agent.found import training  # noqa: E402
from watchdog_app.agent.found.loop_source import LoopSource  # noqa: E402
from watchdog_app.agent.found.torch_signals import trainings  # noqa: E402
from watchdog_app.agent.found.torch_training import Statistics  # noqa: E402
from watchdog_app.agent.found.training import FoundTraining  # noqa: E402
from watchdog_app.agent.identity import audit  # noqa: E402
from watchdog_app.agent.identity.names import Named  # noqa: E402
from watchdog_app.agent.runtime.link import CheckpointRequest, End  # noqa: E402
from watchdog_app.agent.runtime.session import Session  # noqa: E402
from watchdog_app.agent.torch import Rescue  # noqa: E402
from watchdog_app.rescue.checkpoint import names  # noqa: E402
from watchdog_app.rescue.checkpoint.reader import LoadedRescue  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def test_what_the_program_lets_go_of_is_gone(program_folder: Path):
    """The agent keeps neither model nor optimizer alive, and the training counts as finished."""
    model = train(12, lambda count: ask(only()) if count == 8 else None)
    gc.collect()

    assert model() is None
    until(lambda: names.is_finished(str(rescues(program_folder)[0])))
    assert [] == trainings.active()


def test_a_save_before_the_end_of_the_time_is_told_in_one_line(
    program_folder: Path, capsys: pytest.CaptureFixture[str]
):
    """The line also says what a resume of a detected loop will not bring back."""

    def at(count: int) -> None:
        if count in (6, 8):
            only()._spoiled = ["the statistics of a test"]
            end = End("time limit at 12:00:00", over=True)
            only().session.link.pending_request = CheckpointRequest(
                None, "the program ends", time.monotonic(), end=end
            )

    train(12, at)
    errors = capsys.readouterr().err
    saves = [each for each in errors.splitlines() if "time limit at 12:00:00: saved" in each]
    assert 2 == len(saves)
    assert all("A resume will not bring back: the statistics" in each for each in saves)
    assert "When this program is run again" not in errors


def test_what_a_resume_will_not_bring_back_is_told_before_a_save(
    program_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """
    Once, in the terminal and to the daemon, and not only when memory has run out.

    The lines are judged by the objects that a rescue would hold then.
    """
    reported: list[Any] = []
    judged: list[Any] = []
    monkeypatch.setattr(
        training.resume_lines, "refusal", lambda found, *_, **__: judged.append(found.names) or ""
    )

    def at(count: int) -> None:
        if count in (3, 6, 8):
            session = only().session
            session._next_report = 0.0
            only()._names.append(Named("deleted", "deleted", lambda: None))
            only()._spoiled = ["the statistics of a test"]
            session.report_not_restored = reported.append
            monkeypatch.setattr(training, "_REPORT_AFTER_S", 0.0)

    train(12, at)

    assert [["the statistics of a test"]] == reported
    assert [["model", "optimizer"]] == [sorted(each) for each in judged]
    told = "a resume of this training will not bring back: the statistics of a test."
    assert 1 == capsys.readouterr().err.count(told)


@pytest.mark.parametrize("after", ["reset", "close"])
def test_an_own_generator_has_the_state_from_before_the_next_iteration(
    program_folder: Path, after: str
):
    """It is named if the end of an iteration may use it, too."""
    states, environment = list[Any](), Environment()

    def at(count: int) -> None:
        states.append(environment.rng.bit_generator.state)
        if count == 8:
            only().session._next_report = 0.0
            ask(only())
        elif count == 12:
            only()._stop_listening()

    train_in_environment(at, environment, getattr(environment, after))

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        random, lost = saved.meta["random"]["own"], saved.meta["not_restored"]
    assert ([f"{training.DRAWN}: environment.rng"] if after == "reset" else []) == lost
    assert after == "reset" or states[saved.step] == random["rng"][1]


def test_a_training_that_had_nothing_to_save_leaves_nothing(program_folder: Path):
    """No folder remains."""
    train(8)
    gc.collect()

    until(lambda: not (program_folder / "rescues").exists())
    assert [] == trainings.active()


def test_a_training_whose_working_directory_was_deleted_is_saved(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The rescue is next to the journal."""
    gone = program_folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    train(12, lambda count: ask(only()) if count == 8 else None)

    (path,) = rescues(program_folder / "state")
    assert path.name.startswith("rescue-0000000009-")


def test_forked_workers_keep_each_other_s_rescues(program_folder: Path):
    """Two trainings of the same loaded program run at once in one folder."""
    workers = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                train(24, lambda count: ask(only()) if count in (8, 12, 16, 20) else None)
            finally:
                os._exit(0)
        workers.append(pid)
    for pid in workers:
        os.waitpid(pid, 0)

    runs = Counter(path.name.rsplit("-", 1)[1] for path in rescues(program_folder))
    assert 2 == len(runs)
    # A rescue was being removed when a worker ended in the middle of that.
    assert {2, 3} >= set(runs.values())


def test_a_short_training_is_not_watched(program_folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The agent creates a folder and a thread only after half a second."""
    monkeypatch.setattr(FoundTraining, "one_has_begun", False)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for features, targets in loader():
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()

    assert only().session is None
    assert not (program_folder / "rescues").exists()


def test_a_training_after_a_long_one_is_watched_from_its_first_steps(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of several folds none is without a rescue for half a second."""
    monkeypatch.setattr(FoundTraining, "one_has_begun", True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for features, targets in loader():
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()

    assert only().session is not None


def test_an_exception_that_reaches_the_top_leaves_the_rescue_unfinished(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """A later run can resume from its rescues."""

    def at(count: int) -> None:
        if count == 8:
            ask(only())
        if count == 10:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError) as caught:
        train(12, at)
    training = only()
    monkeypatch.setattr(sys, "last_traceback", caught.value.__traceback__, raising=False)

    assert not training.has_succeeded()
    training.end(succeeded=training.has_succeeded())
    assert not names.is_finished(str(rescues(program_folder)[0]))


def test_trainings_one_after_the_other_are_runs_of_their_own(program_folder: Path):
    """This holds even if the first one's optimizer is alive. Neither prunes the other's rescues."""
    models = []
    for _ in range(2):
        models.append(nn.Linear(3, 1))  # kept alive while the next training starts
        train(12, lambda count: ask(only()) if count == 8 else None, models[-1])

    first, second = rescues(program_folder)
    assert first.parent == second.parent
    assert all(each.name.startswith("rescue-0000000009-") for each in (first, second))
    assert names.RescueName.parse(first.name).run != names.RescueName.parse(second.name).run


def test_optimizers_that_step_several_times_in_turn_are_one_training(program_folder: Path):
    """A policy and its value function do this: the rescue holds both."""
    policy, value = nn.Linear(3, 1), nn.Linear(3, 1)
    steppers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (policy, value)]
    for epoch in range(8):
        if epoch == 1:
            time.sleep(0.55)
        if epoch == 5:
            ask(only())
        for model, optimizer in zip((policy, value), steppers, strict=True):
            for _ in range(5):
                optimizer.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert {"policy", "value"} <= saved.meta["parts"].keys()


def test_a_training_with_a_rescue_of_its_own_is_left_alone(program_folder: Path):
    """The program may create its Rescue before the first step or later."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Rescue(program_folder / "own", model=model, optimizer=optimizer) as rescue:
        for features, targets in rescue.data(loader()):
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()
            rescue.step()

    assert [] == trainings.active()

    def at(count: int) -> None:
        if count == 8:
            training = only()
            late.append(
                Rescue(program_folder / "late", optimizer=training.optimizers()[0], model=net)
            )
            ask(training)

    late: list[Rescue] = []
    net = nn.Linear(3, 1)
    train(12, at, net)
    late[0].finish()

    assert [] == trainings.active()
    assert not (program_folder / "rescues").exists()


def test_a_thread_trains_for_itself(program_folder: Path):
    """The agent saves each of the two threads' trainings during its own step."""
    names: list[int] = []

    def at(count: int) -> None:
        if count == 8:
            mine = trainings.current()
            assert mine is not None
            ask(mine)
            names.append(threading.get_ident())

    threads = [threading.Thread(target=train, args=(12, at)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert 2 == len(set(names)) == len(rescues(program_folder))


def test_variables_stay_and_batches_go(program_folder: Path):
    """Reading a frame neither unsets its variables nor keeps their values alive."""
    held: list[weakref.ref[Any]] = []
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = loader()
    count = 0
    for _epoch in range(3):
        for features, targets in batches:
            if count == 2:
                time.sleep(0.55)
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if count == 8:
                ask(only())
            if count == 9:
                held.append(weakref.ref(features))
            count += 1
    del features, targets, loss

    assert 1 == len(rescues(program_folder))
    assert 18 == count
    assert held[0]() is None


def test_a_tensor_of_an_object_is_saved_once_it_has_changed_in_place(program_folder: Path):
    """The text does not show that; data that stays the same is not saved."""
    train_with_bank(lambda count: ask(only()) if count == 8 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert {"bank_queue", "bank_mean"} == loaded.meta["position"]["variables"].keys()


def test_a_module_that_the_loop_will_load_is_saved_before_it_changes(program_folder: Path):
    """Else the lines would not hold it, and a resume after its change would lack it."""
    train_with_target(lambda count: ask(only()) if count == 8 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert {"model", "optimizer", "target"} == loaded.meta["parts"].keys()


def test_an_iterator_that_an_object_keeps_is_no_plain_value(program_folder: Path):
    """Its place is not restored, and the rescue says so."""
    train_with_kept_iterator(lambda count: ask(only()) if count == 8 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert [f"{audit.KEPT}: data.iterator"] == loaded.meta["not_restored"]


def test_what_an_object_keeps_of_each_epoch_is_saved(program_folder: Path):
    """What it only sets, or never changes, is not."""
    train_with_callbacks(lambda count: ask(only()) if count == 14 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert {"callbacks_0__rows": [0, 1]} == loaded.meta["position"]["variables"]
        assert [f"{training.COUNTED}: best"] == loaded.meta["not_restored"]  # a hook sets it


def test_an_iteration_whose_model_acts_without_gradients_ends_before_that(program_folder: Path):
    """The next one has not changed what the loop keeps, and it draws nothing in between."""
    train_with_rollout(lambda count: ask(only()) if count == 8 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert {"recent", "rollout_rows"} == loaded.meta["position"]["variables"].keys()
        assert [] == loaded.meta["not_restored"]


def test_a_variable_that_the_lines_do_not_restore_is_named_at_the_save(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """The text does not show that the bank has these tensors before the loop."""
    text = inspect.getsource(found_torch).replace("watchdog_app", "other")
    monkeypatch.setattr(LoopSource, "text", lambda loop: {loop.calls[0].file: text})
    train_with_bank(lambda count: ask(only()) if count == 8 else None)

    with LoadedRescue(str(rescues(program_folder)[0])) as loaded:
        assert {} == loaded.meta["position"]["variables"]
        assert [f"{training.COUNTED}: bank.mean, bank.queue"] == loaded.meta["not_restored"]


def test_a_training_of_several_processes_is_not_saved(
    program_folder: Path, capsys: pytest.CaptureFixture[str]
):
    """The agent reports this once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        train(4)
        train(4)
    finally:
        torch.distributed.destroy_process_group()

    assert [] == trainings.active()
    assert 1 == capsys.readouterr().err.count("runs in 2 processes: it is watched, but not saved")


def test_what_cannot_be_found_is_told_with_the_explicit_way(
    program_folder: Path, capsys: pytest.CaptureFixture[str]
):
    """The program has no variable name for these tensors."""

    def nameless() -> Any:
        return torch.optim.SGD([{"params": [torch.zeros(3, requires_grad=True)]}], lr=0.1)

    optimizer = nameless()
    for count in range(6):
        if count == 2:
            time.sleep(0.55)
        optimizer.param_groups[0]["params"][0].sum().backward()
        optimizer.step()

    said = capsys.readouterr().err
    assert 1 == said.count("is not saved automatically: no name of the program leads to some")
    assert "rescue = Rescue(folder, model=model, optimizer=optimizer" in said


def apart(program: Callable[[], None]) -> None:
    """Run in a thread: otherwise the test runner's loop would look like the program's."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(program).result()


def test_steps_without_a_loop_are_saved_where_the_model_computes_next(program_folder: Path):
    """The agent need not find the program's loop."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def steps() -> None:
        step(), time.sleep(0.55), step(), step(), step(), step()
        ask(only())
        step(), step()

    apart(steps)

    (path,) = rescues(program_folder)
    assert path.name.startswith("rescue-0000000006-")


def test_an_iteration_whose_end_is_not_seen_is_told_with_the_explicit_way(
    program_folder: Path, capsys: pytest.CaptureFixture[str]
):
    """The program's gradients come from neither a loader, nor a module, nor `backward`."""
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for count in range(100):
        if count == 2:
            time.sleep(0.55)
        (weight.grad,) = torch.autograd.grad(weight.sum(), weight)
        optimizer.step()

    said = capsys.readouterr().err
    assert 1 == said.count("is not saved automatically: the end of its iterations is not seen")


def test_the_place_of_data_that_is_its_own_iterator_is_set_once(program_folder: Path):
    """The lines draw again from its begin, so they must not set where it stood."""
    train_on_own_iterator()

    (path,) = rescues(program_folder)
    with LoadedRescue(path) as rescue:
        assert "count" in rescue.meta["position"]["variables"]
        assert not any("position" in each for each in rescue.meta["position"]["variables"])


def test_a_step_function_that_ran_out_behind_its_step_is_not_called_complete(program_folder: Path):
    """What it does behind the optimizer's step, such as an average of the weights, is missing."""
    train_in_a_function()

    (path,) = rescues(program_folder)
    with LoadedRescue(path) as rescue:
        assert any("after the optimizer's step" in each for each in rescue.meta["not_restored"])


def test_out_of_memory_after_an_iteration_without_a_step_takes_no_values_of_that(
    program_folder: Path,
):
    """A resume repeats the iterations since the last step, so it needs the values at that step."""
    train_with_accumulation()

    (path,) = rescues(program_folder)
    with LoadedRescue(path) as rescue:
        position = rescue.meta["position"]
        assert (1, 2) == (position["epoch"], position["batch"])
        assert position["variables"].get("seen", 8) == 8
        assert any("seen" in each for each in rescue.meta["not_restored"])


def test_out_of_memory_writes_to_no_buffer_that_the_failed_batch_has_not_changed():
    """A write would put modules into the rescue that the loop does not use any more."""
    used, unused = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    buffers, before = [*used.buffers(), *unused.buffers()], copy.deepcopy(used.state_dict())
    copies = Statistics()
    copies.record(buffers)
    used(torch.rand(4, 3))
    versions = [each._version for each in unused.buffers()]

    assert copies.restore(buffers)
    assert versions == [each._version for each in unused.buffers()]
    assert all(torch.equal(each, before[name]) for name, each in used.named_buffers())


def test_out_of_memory_keeps_attributes_as_they_were_before_the_failed_batch(program_folder: Path):
    """A resume repeats that batch."""
    train_until_a_batch_fails()

    path = rescues(program_folder)[-1]
    with LoadedRescue(path) as rescue:
        assert 9 == rescue.step
        held = rescue.meta["held_attributes"]["model"]
        names = [each["__tensor__"][0] for each in (*held["hidden"]["__tuple__"], *held["means"])]
        assert [9.0, 9.0, 9.0] == np.concatenate(
            [np.frombuffer(rescue.read(name), "<f4") for name in names]
        ).tolist()
        assert [6.0, 7.0, 8.0, 9.0] == held["recent"]["__deque__"][1]
        (lost,) = rescue.meta["not_restored"]
        assert lost.startswith("model.shared")  # a copy would no more be the buffer


@pytest.mark.parametrize(
    ("text", "where"), [(NEW_OPTIMIZER, "in line 10"), (NEW_OPTIMIZER_OF_METHOD, "than the one")]
)
def test_a_loop_that_makes_another_optimizer_goes_on_and_says_that_no_lines_resume_it(
    program_folder: Path,
    program: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    text: str,
    where: str,
):
    """Its text shows that before the first step, or the new optimizer when it steps."""
    program(text).train(loader(), lambda at: ask(only()) if at in (9, 20) else None)

    told = capsys.readouterr().err
    assert 1 == told.count("no lines will resume this training: the loop makes another optimizer")
    kept = rescues(program_folder)
    assert [10, 21] == sorted(LoadedRescue(each).step for each in kept)
    for each in kept:
        with LoadedRescue(each) as rescue:
            if rescue.step == 21 or text == NEW_OPTIMIZER:
                (why, _) = rescue.meta["not_restored"]
                assert why.startswith(f"the loop makes another optimizer {where}")


def test_what_comes_back_by_itself_is_not_told_as_lost(
    program_folder: Path, program: Callable[[str], ModuleType]
):
    """A name without a value has none after a resume; a loop over trainings collects again."""
    program(REPEATED).repeat(loader(), lambda at: ask(only()) if at == 9 else None)

    for path in rescues(program_folder):
        with LoadedRescue(path) as rescue:
            assert [] == rescue.meta["not_restored"]


def test_out_of_memory_in_an_evaluation_loses_nothing_of_the_pass_before(program_folder: Path):
    """All values were known at the end of that pass, and nothing of the training has run since."""
    train_with_evaluation()

    (path,) = rescues(program_folder)
    with LoadedRescue(path) as rescue:
        assert [] == rescue.meta["not_restored"]
        assert {"seen": 6, "least": 6} == rescue.meta["position"]["variables"]


@pytest.mark.parametrize("per_step", [1, 4])
def test_the_end_of_a_pass_is_published_before_an_evaluation_that_may_need_much(
    program_folder: Path, monkeypatch: pytest.MonkeyPatch, per_step: int
):
    """Not with gradients of batches for which no step was made."""
    told = []
    monkeypatch.setattr(Session, "publish", lambda _, step, **at: told.append((step, at)))

    train_with_evaluation(per_step)

    ends = [(step, at["epoch"], at["batch"]) for step, at in told if "borrows" in at]
    assert ends == ([(6, 0, 6), (12, 1, 6), (18, 2, 6)] if per_step == 1 else [])


def test_out_of_memory_at_the_first_draw_of_an_epoch_keeps_its_random_numbers(program_folder: Path):
    """The iterator has drawn its seed, and no batch."""
    before = train_until_a_draw_fails()

    (path,) = rescues(program_folder)
    with LoadedRescue(path) as rescue:
        assert (2, 0) == tuple(rescue.meta["position"][each] for each in ("epoch", "batch"))
        assert before["torch"] == rescue.meta["random"]["torch"]
        assert not any("random" in each for each in rescue.meta["not_restored"])


def test_a_loop_that_calls_no_module_is_saved_where_it_computes_gradients(program_folder: Path):
    """As for an image that an optimizer changes, or `self.forward(x)` of a layer."""
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for count in range(12):
        if count == 2:
            time.sleep(0.55)
        if count == 8:
            ask(only())
        layer.forward(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    (path,) = rescues(program_folder)
    assert path.name.startswith("rescue-0000000009-")
    assert "watchdog_app" not in torch.Tensor.backward.__code__.co_filename


@pytest.mark.parametrize("tracer", ["debugger", "none"])
def test_whoever_traces_the_program_keeps_his_trace_and_it_is_saved(
    program_folder: Path, tracer: str
):
    """The tracer is a debugger, a coverage tool or a program that removes every trace function."""
    trace = (lambda *_: None) if tracer == "debugger" else None

    def at(count: int) -> None:
        if count == 8:
            ask(only())
            sys.settrace(trace)

    before = sys.gettrace()
    try:
        train(12, at)
        assert trace is sys.gettrace()
    finally:
        sys.settrace(before)

    (path,) = rescues(program_folder)
    assert path.name.startswith("rescue-0000000009-")


@pytest.mark.parametrize("data", ["a loader", "its own"])
def test_a_model_can_be_copied_and_pickled_at_any_step(program_folder: Path, data: str):
    """The model has no attribute of the agent, and a machine without watchdog can load it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pickled = set()
    for count, (features, targets) in enumerate(
        itertools.chain.from_iterable([loader()] * 3 if data == "a loader" else [[*loader()]] * 3)
    ):
        if count == 2:
            time.sleep(0.55)
        if count == 8:
            ask(only())
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()
        pickled.add(b"watchdog" in pickle.dumps(copy.deepcopy(model)))

    assert 1 == len(rescues(program_folder))
    assert {False} == pickled


def test_switching_off_puts_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loader and optimizers are as before the agent attached."""
    monkeypatch.chdir(tmp_path)
    from torch.optim.optimizer import _global_optimizer_post_hooks as hooks

    before, count = DataLoader.__iter__, len(hooks)
    hook.switch_on()
    assert (before, count) != (DataLoader.__iter__, len(hooks))

    hook.switch_off()

    assert (before, count) == (DataLoader.__iter__, len(hooks))


def test_a_loop_that_was_left_is_no_training_any_more_and_its_epochs_are(program_folder: Path):
    """
    A validation between two epochs still belongs to the training; code after the loop must not look
    like a stall.
    """
    daemon = StandIn(str(program_folder / "run" / "daemon.sock"))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def epoch(batches: DataLoader) -> None:
        for features, targets in batches:
            time.sleep(0.12)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(features), targets).backward()
            optimizer.step()

    def program(batches: DataLoader) -> None:
        for _ in range(2):
            epoch(batches)
            time.sleep(1.2)  # a validation

    try:
        apart(lambda: program(loader()))
        at_end = daemon.last("agent.report")["training"]
        daemon.until(lambda: daemon.last("agent.report")["training"] is False)
        left = only()
        apart(lambda: program(loader()))
        daemon.until(lambda: daemon.last("agent.report")["training"] is False)
    finally:
        daemon.close()

    assert at_end is True
    assert left.session is not None  # its model and optimizer live, so the program may continue it
    told = [params["training"] for name, params in daemon.received if name == "agent.report"]
    assert [True, False, True, False] == [
        now for before, now in zip([None, *told], told, strict=False) if now != before
    ]
