"""PyTorch loops near a limit: each step is published, and a copy matches that step."""

from __future__ import annotations

import gc
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from found_torch import loader, only, rescues  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from watchdog_app.agent.oom import watch  # noqa: E402
from watchdog_app.agent.snapshot.contents import Sorter  # noqa: E402
from watchdog_app.agent.state import randomness, torch_tensors  # noqa: E402
from watchdog_app.agent.torch import Rescue  # noqa: E402
from watchdog_app.guard import copier  # noqa: E402
from watchdog_app.rescue.checkpoint.reader import LoadedRescue  # noqa: E402
from watchdog_app.rescue.checkpoint.store import SavedRescue  # noqa: E402
from watchdog_app.rescue.segment import exchange, segment  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
REASON = "a test"
STEP_S = 0.03
MOST_STEPS = 300
WANTED = 3  # number of copied steps


class Guard:
    """The watcher of this process."""

    def __init__(self, path: str) -> None:
        self.registry = exchange.Registry(1)
        self.registry.listen(path)

    @property
    def offer(self) -> exchange.Offer | None:
        """What the agent has handed over."""
        self.registry.receive()
        return self.registry.offers.get(os.getpid())

    def check(self) -> copier.CopyCheck:
        """See `copier.check`."""
        assert self.offer is not None
        return copier.check(self.offer)

    def copy(self, reason: str = REASON) -> SavedRescue:
        """See `copier.copy`."""
        assert self.offer is not None
        return copier.copy(self.offer, reason=reason)


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """A guard around this process, as `watchdog exec` would make it."""
    monkeypatch.setenv(segment.ENVIRONMENT, str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = Guard(str(tmp_path / exchange.SOCKET))
    yield found
    found.registry.close()
    torch.set_num_threads(threads)


class Counted(nn.Sequential):
    """Counts its calls."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.calls = 0

    def forward(self, rows: Any) -> Any:
        self.calls += 1
        return super().forward(rows)


def network() -> nn.Module:
    """A network with statistics and a number that a forward pass changes, and a frozen layer."""
    made = Counted(
        nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 64), nn.Linear(64, 1)
    )
    made[3].requires_grad_(False)
    return made


# What a program changes between two steps, and whether a rescue's parts show it.
SETTINGS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], bool]]] = {
    "asleep": (lambda model, _: model.train(False), lambda parts: parts["model"]["asleep"] == [""]),
    "frozen": (
        lambda model, _: model.bias.requires_grad_(False),
        lambda parts: parts["model"]["frozen"] == ["bias"],
    ),
    "rate": (
        lambda _, optimizer: optimizer.param_groups[0].update(lr=0.5),
        lambda parts: parts["optimizer"]["param_groups"][0]["lr"] == 0.5,
    ),
}


class Watched:
    """Copies a loop at its steps and compares."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.compared: list[int] = []
        self.forward = 0  # copies made in a forward pass

    def told(self) -> bool:
        """Check that this boundary is published; near a limit every boundary is."""
        offer = self.guard.offer
        if offer is None:
            return False
        offer.segment.ask_every_batch(True)
        return self.guard.check().state == "ready"

    def at(self, session: Any, step: int, drawn: int = 0) -> None:
        """Copy between two steps; `drawn` batches came since the boundary."""
        if step < 20 or not self.told():
            return
        saved = self.guard.copy()
        assert step == saved.step
        whole = session._capture_with_meta(REASON, step)
        if drawn:
            place = whole.meta["position"]
            place["batch"] -= drawn
            place["passes"]["0"]["drawn"] -= drawn
            place["passes"]["0"]["total"] -= drawn
        with LoadedRescue(saved.path) as loaded:
            loaded.verify()
            # After a boundary the next step's gradients count, which do not exist yet.
            now = {each.name: each for each in whole.entries if ":gradient" not in each.name}
            assert now.keys() == loaded.tensors.keys()
            for name, each in now.items():
                with each.view() as view:
                    expected = zlib.crc32(bytes(view.cast("B") if each.nbytes else b""))
                assert expected == zlib.crc32(bytes(loaded.read(name))), name
            for key in whole.meta.keys() - {"gradients", "tensors"}:
                assert whole.meta[key] == loaded.meta[key], key
        self.compared.append(step)

    def in_forward(self) -> None:
        """Statistics and random numbers have changed; the copy has the values before that."""
        if self.compared and not self.forward and self.told():
            seen = self.guard.check()
            self.forward += seen.state == "ready"

    @property
    def enough(self) -> bool:
        return len(self.compared) >= WANTED and self.forward > 0


def step(model: nn.Module, optimizer: Any, features: Any, targets: Any) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(features), targets).backward()
    optimizer.step()
    time.sleep(STEP_S)


def test_each_step_of_a_found_loop_is_published(program_folder: Path, guard: Guard) -> None:
    """A schedule changes with each step, across ends of epochs."""
    watched, model = Watched(guard), network()
    model[4].register_forward_pre_hook(lambda *_: watched.in_forward())
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.99)
    batches, count = loader(), 0
    while count < MOST_STEPS and not watched.enough:
        for features, targets in batches:
            if count > 30 and count % 6:  # not the first batch of an epoch
                training = only()
                watched.at(training.session, count, drawn=1)
            step(model, optimizer, features, targets)
            scheduler.step()
            count += 1

    assert watched.enough, (watched.compared, watched.forward)


def test_each_step_of_a_loop_with_a_rescue_is_published(tmp_path: Path, guard: Guard) -> None:
    """The program passes its objects by name, and the audit has found a variable of the loop."""
    watched, model = Watched(guard), network()
    model[4].register_forward_pre_hook(lambda *_: watched.in_forward())
    optimizer = torch.optim.AdamW(model.parameters())
    seen: dict[str, Any] = {"steps": 0}
    rescue = Rescue(str(tmp_path / "rescues"), model=model, optimizer=optimizer, seen=seen)
    # The audit cannot read this loop, because pytest has rewritten its asserts.
    rescue._audit_result = ["best, which the loop keeps"]
    for _epoch in rescue.epochs(MOST_STEPS):
        for features, targets in rescue.data(loader()):
            step(model, optimizer, features, targets)
            seen["steps"] += 1
            rescue.step()
            watched.at(rescue._session, rescue.step_number)
        if watched.enough or rescue.step_number > MOST_STEPS:
            break
    rescue.finish()

    assert watched.enough, (watched.compared, watched.forward)


@pytest.mark.parametrize("change", [*SETTINGS, "write", "other data", "other weight"])
def test_what_the_program_does_to_its_objects_between_two_steps_is_seen(
    tmp_path: Path, guard: Guard, change: str
) -> None:
    """In-place writes need no copy. After a replacement the next boundary has a new table."""
    watched, model = Watched(guard), nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    rescue = Rescue(str(tmp_path / "rescues"), model=model, optimizer=optimizer)
    features, found = torch.randn(4, 64), []
    for _ in range(MOST_STEPS):
        step(model, optimizer, features, features)
        rescue.step()
        if found:
            break
        if rescue.step_number > 5 and watched.told() and rescue.step_number > 9:
            with torch.no_grad():
                if change in SETTINGS:
                    SETTINGS[change][0](model, optimizer)
                elif change == "write":
                    model.weight.zero_()
                    assert "in_step" == guard.check().state
                elif change == "other data":
                    model.weight.data = torch.zeros(64, 64)
                else:
                    model.bias = nn.Parameter(torch.zeros(64))
            found.append(change)
            optimizer.zero_grad()  # gradients that wait need a full capture
            rescue.step()
            seen = guard.check()
            if seen.state == "ready":  # with the new values
                saved = guard.copy()
                with LoadedRescue(saved.path) as loaded:
                    if change in SETTINGS:
                        assert SETTINGS[change][1](loaded.meta["parts"])
                        break
                    name = "model/bias" if change == "other weight" else "model/weight"
                    (name,) = (each for each in loaded.tensors if each.endswith(name[6:]))
                    assert not any(bytes(loaded.read(name)))
            break
    rescue.finish()

    assert [change] == found


def test_what_is_published_keeps_nothing_of_the_program_alive(
    program_folder: Path, guard: Guard
) -> None:
    """The snapshot keeps neither a model nor its optimizer nor a schedule's objects alive."""
    import weakref

    def train(watched: Watched) -> Callable[[], Any]:
        model = network()
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.99)
        batches, told, count = loader(), 0, 0
        while count < MOST_STEPS and told < WANTED:
            for features, targets in batches:
                told += count > 30 and watched.told()
                step(model, optimizer, features, targets)
                scheduler.step()
                count += 1
        assert told >= WANTED
        return weakref.ref(model)

    model = train(Watched(guard))
    gc.collect()

    assert model() is None


@pytest.mark.parametrize(("at", "there"), [("middle", True), ("first of an epoch", False)])
def test_near_a_limit_a_step_that_fails_gives_random_numbers_and_statistics_back(
    program_folder: Path, guard: Guard, at: str, there: bool
) -> None:
    """Batch norm and dropout ran before memory ran out: the rescue has what was before that."""
    model = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batches, count, before, mean = loader(), 0, "", torch.empty(0)

    def fails(*_: Any) -> None:
        first = count % len(batches) == 0
        if count > 40 and first != there:
            raise MemoryError

    model[3].register_forward_pre_hook(fails)
    try:
        while count < MOST_STEPS:
            for features, targets in batches:
                if count == 30:
                    guard.offer.segment.ask_every_batch(True)
                step(model, optimizer, features, targets)
                count += 1
                before = randomness.capture()["torch"]
                mean = model[1].running_mean.clone()
    except MemoryError as error:
        watch.notify_trainings(error)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        lost = "; ".join(saved.meta["not_restored"])
        assert count == saved.step
        assert there == (before == saved.meta["random"]["torch"])
        assert there == ("random numbers" not in lost)
        assert there == ("statistics" not in lost)
        assert there == torch.equal(mean, model[1].running_mean)


@pytest.mark.parametrize("where", ["forward", "behind the step", "forward, copied before"])
def test_near_a_limit_a_step_left_out_by_its_share_is_saved_and_says_what_it_lacks(
    program_folder: Path, guard: Guard, where: str
) -> None:
    """An exact copy of a few steps before is better than a later rescue that lacks something."""
    model = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batches, count, copied, states = loader(), 0, None, set[str]()

    def fails(at: int = 46) -> None:
        if count == at:
            raise MemoryError

    model[3].register_forward_pre_hook(lambda *_: fails())
    try:
        while count < MOST_STEPS:
            for features, targets in batches:
                if count == 30:
                    guard.offer.segment.ask_every_batch(True, waits=False)
                if count == 44:
                    assert "ready" == guard.check().state
                    copied = guard.copy() if "copied" in where else None
                    only().session.publisher._near.next_s = float("inf")
                step(model, optimizer, features, targets)
                count += 1
                if count > 44:
                    states.add(guard.check().state)
                if where == "behind the step":
                    fails(45)
    except MemoryError as error:
        watch.notify_trainings(error)

    (path,) = rescues(program_folder)
    assert "ready" not in states, "a copy would mix two steps"
    with LoadedRescue(str(path)) as saved:
        lost = "; ".join(saved.meta.get("not_restored", ()))
        assert (44 if copied else count) == saved.step
        assert (copied is None) == ("statistics" in lost) == ("random numbers" in lost), lost
        assert ("behind" in where) == ("after the optimizer's step" in lost)


def test_near_a_limit_random_states_are_read_once_a_step(
    program_folder: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record for a failed step and what is published have the same states."""
    model, batches, reads = network(), loader(), [0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    capture, per_step = randomness.capture, []
    monkeypatch.setattr(randomness, "capture", lambda: reads.append(1) or capture())
    while len(per_step) < 60:
        for number, (features, targets) in enumerate(batches):
            if len(per_step) == 30:
                guard.offer.segment.ask_every_batch(True)
            step(model, optimizer, features, targets)
            per_step.append(len(reads) if number > 1 else None)
            reads.clear()

    seldom = [each for each in per_step[40:] if each is not None]
    assert 1 == sorted(seldom)[len(seldom) // 2]


class MomentumEncoder(nn.Module):
    """`forward` moves a second network, which the optimizer holds and does not train."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(3, size), nn.Linear(3, size)
        self.key.requires_grad_(False)
        self.head = nn.Linear(size, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
            key.data = key.data * 0.9 + query.data * 0.1
        return self.head(self.query(features) - self.key(features))


@pytest.mark.parametrize(("size", "there"), [(64, True), (1 << 20, False)])
def test_a_step_that_fails_gives_a_momentum_encoder_back_or_names_it(
    program_folder: Path, guard: Guard, size: int, there: bool
) -> None:
    """Copies of a large one at each step would cost too much."""
    model = MomentumEncoder(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)  # a wide layer would diverge
    batches, count, before = loader(), 0, torch.empty(0)

    def fails(*_: Any) -> None:
        if count == 25:
            raise MemoryError

    model.head.register_forward_pre_hook(fails)
    try:
        while count < MOST_STEPS:
            for features, targets in batches:
                if count == 10:
                    guard.offer.segment.ask_every_batch(True)
                step(model, optimizer, features, targets)
                count += 1
                before = model.key.weight.detach().clone()
    except MemoryError as error:
        watch.notify_trainings(error)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        assert there == ("statistics" not in "; ".join(saved.meta["not_restored"]))
        assert there == torch.equal(before, model.key.weight)
        assert before.isfinite().all()


class Noisy(TensorDataset):
    """Draws from a generator of its own, as an augmentation does."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        features, targets = super().__getitem__(index)
        return features + self.rng.normal(), targets


@pytest.mark.parametrize("near", [True, False])
def test_a_step_that_fails_gives_the_generators_of_its_data_back_or_names_them(
    program_folder: Path, guard: Guard, near: bool
) -> None:
    model, data = nn.Linear(3, 1), Noisy(torch.randn(64, 3), torch.randn(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches, count, before = DataLoader(data, batch_size=4), 0, {}

    def fails(*_: Any) -> None:
        if count == 40:
            raise MemoryError

    model.register_forward_pre_hook(fails)
    try:
        while count < MOST_STEPS:
            for features, targets in batches:
                if count == 30 and near:
                    guard.offer.segment.ask_every_batch(True)
                step(model, optimizer, features, targets)
                count += 1
                before = data.rng.bit_generator.state
    except MemoryError as error:
        watch.notify_trainings(error)

    (path,) = rescues(program_folder)
    with LoadedRescue(str(path)) as saved:
        ((_, state),) = saved.meta["position"]["passes"]["0"]["now_own"]
        assert near == (before["state"] == state["state"])
        assert near == ("random numbers" not in "; ".join(saved.meta["not_restored"]))


def test_a_variable_of_the_loop_is_copied_at_the_boundary():
    """A few elements of a buffer may stay the same while a loop writes into the others."""
    queue, frozen = torch.zeros(1024), torch.ones(1024)
    entries = [
        torch_tensors.entry("variables/queue", queue),
        torch_tensors.entry("model/w", frozen),
    ]
    sorter = Sorter()
    for _ in range(5):
        found = sorter.sort(entries, lambda *_: False)

    assert [(frozen.data_ptr(), 4096)] == found.large
