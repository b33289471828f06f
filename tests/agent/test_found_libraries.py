"""Lightning and the Hugging Face Trainer: found, saved, killed, and resumed with one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.found import resume_lines
from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "torch_libraries.py"
LINES = {
    "lightning": "trainer.fit(model, **resumed('{}/rescues/train.py', loader))",
    "transformers": "trainer.train(resume_from_checkpoint=checkpoint('{}/rescues/train.py'))",
}


def start(folder: Path, library: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "watchdog_app", "exec", "--"),
            *(sys.executable, str(folder / "train.py"), str(folder), library),
        ],
        cwd=folder,
        env={
            **os.environ,
            "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
            "OPENBLAS_NUM_THREADS": "1",  # the program forks, so it must have no threads
            "HF_HUB_OFFLINE": "1",
        },
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )


@pytest.mark.parametrize("library", LINES)
def test_a_librarys_training_goes_on_bit_for_bit_with_one_line(tmp_path: Path, library: str):
    """
    Every loss after the end equals the uninterrupted run; the line names the right folder.

    Lightning handles SIGTERM itself and is saved at that batch; the Trainer is killed later on.
    """
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    shutil.copy(PROGRAM, tmp_path / "train.py")

    done = start(tmp_path, library)

    assert done.returncode == 0, done.stdout + done.stderr
    expected = (tmp_path / f"{library}.reference.txt").read_text().splitlines()
    interrupted = (tmp_path / f"{library}.interrupted.txt").read_text().splitlines()
    resumed = (tmp_path / f"{library}.resumed.txt").read_text().splitlines()
    assert (60, 32) == (len(expected), len(interrupted))
    assert expected[:32] == interrupted
    assert expected[{"lightning": 32, "transformers": 26}[library] :] == resumed
    assert "watchdog: what the rescue does not hold: means of losses" in done.stderr
    kept = [tmp_path / "rescues", *tmp_path.glob("rescues/**/*")]
    assert {0o700} == {each.stat().st_mode & 0o777 for each in kept if each.is_dir()}
    assert {0o600} == {each.stat().st_mode & 0o777 for each in kept if each.is_file()}
    (path,) = (each for each in tmp_path.glob("rescues/*/rescue-*") if each.is_dir())
    with LoadedRescue(str(path)) as rescue:
        found = resume_lines.read_record(rescue.meta)
    assert found is not None
    assert LINES[library].format(tmp_path) == resume_lines.resume_code(found, "")[-1]


def test_no_library_resumes_where_the_user_asked_to_start_over(monkeypatch, tmp_path):
    libraries = pytest.importorskip("watchdog_app.agent.found.libraries")
    monkeypatch.setattr(libraries.run_choice, "waiting_run", lambda _: pytest.fail("resumes"))
    monkeypatch.setenv("WATCHDOG_AGENT_RESUME", "no")

    assert libraries.newest_unfinished(tmp_path, "lightning") is None


def test_a_callback_keeps_its_key_when_the_program_adds_another():
    """A resume would else give its state to the callback at its place in the list."""
    libraries = pytest.importorskip("watchdog_app.agent.found.libraries")
    first, second = SimpleNamespace(), SimpleNamespace()

    def keys(*callbacks: object) -> dict[str, object]:
        return libraries.callbacks_by_key(
            SimpleNamespace(callback_handler=SimpleNamespace(callbacks=list(callbacks)))
        )

    assert {"SimpleNamespace 0": first, "SimpleNamespace 1": second} == keys(first, second)
    assert {"dict 0": {}, "SimpleNamespace 0": first} == keys({}, first)


def test_a_loader_that_is_iterated_twice_is_checked_once(monkeypatch):
    """Lightning does so before it reads a batch; what the check prints then comes once."""
    lightning = pytest.importorskip("watchdog_app.agent.lightning")
    checked = []
    trainer = SimpleNamespace(lightning_module="module", max_steps=-1, optimizers=[])
    owner = SimpleNamespace(trainer=trainer)
    monkeypatch.setattr(lightning.libraries, "find_loop_owner", lambda _: owner)
    rescue = SimpleNamespace(
        meta={"position": {"passes": {}}},
        library={"loops": {}},
        read=None,
        check_fit=lambda module, _: checked.append(module),
    )
    loader = lightning._Resumed([1, 2], rescue)

    iter(loader)  # of `estimated_stepping_batches`, before there are optimizers
    assert not checked

    trainer.optimizers.append("sgd")
    iter(loader)
    iter(loader)

    assert ["module"] == checked


@pytest.mark.parametrize(
    ("ready", "expected"), [(1, [[2], [1, 2]]), (0, [[1, 2], [1, 2]])], ids=["inside", "at_end"]
)
def test_a_loader_made_for_each_epoch_continues_at_the_rescue_once(
    monkeypatch, tmp_path, ready, expected
):
    """As with `reload_dataloaders_every_n_epochs`; Lightning may have begun the next epoch."""
    lightning = pytest.importorskip("watchdog_app.agent.lightning")
    trainer = SimpleNamespace(
        lightning_module="module", max_steps=9, lr_scheduler_configs=(), optimizers=["sgd"]
    )
    owner = SimpleNamespace(trainer=trainer)
    monkeypatch.setattr(lightning.libraries, "find_loop_owner", lambda _: owner)
    restored = []
    monkeypatch.setattr(lightning.randomness, "restore", restored.append)
    monkeypatch.setattr(lightning.trainings, "resumes_at", lambda *_: None)
    drawn = {"passes": 0, "drawn": 1, "total": 1, "current": True}
    rescue = SimpleNamespace(
        **dict.fromkeys(
            ("check_fit", "report_resumed", "restore_attributes", "callbacks"), lambda *_: None
        ),
        **dict.fromkeys(("optimizers", "schedulers"), list),
        step=1,
        meta={"position": {"passes": {"0": drawn}, "batch": 1, "epoch": 0}, "random": 7},
        library={
            "epoch": 0,
            "global_step": 1,
            "loops": {"epoch_loop.batch_progress": {"current": {"ready": ready}}},
        },
        modules=lambda: [{}],
        path=str(tmp_path / "rescue"),
        read=None,
    )
    monkeypatch.setattr(lightning.libraries, "newest_unfinished", lambda *_: rescue)
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(__version__="2"))
    data = SimpleNamespace(train_dataloader=lambda: [1, 2])

    lightning.resumed(tmp_path, data)

    assert expected == [list(data.train_dataloader()) for _ in range(2)]
    assert [7] == restored


@pytest.mark.parametrize(
    ("draws", "kept", "expected"),
    [
        (False, {}, []),
        (True, {}, ["random numbers"]),
        (False, {"stop": {"seen": 1}}, ["what callbacks keep"]),
    ],
)
def test_only_what_the_batch_without_memory_has_changed_is_named(
    monkeypatch, draws, kept, expected
):
    """A Trainer without dropout and statistics goes on exactly: then its rescue names nothing."""
    found = pytest.importorskip("watchdog_app.agent.found.torch_training")
    training = found.FoundTorch(Guard("a test"))
    monkeypatch.setattr(found.libraries, "kept_state", lambda _: {"attributes": {}, **kept})
    training._attend(
        SimpleNamespace(publisher=None, process_boundary=lambda *_, **__: None), 4, 0, 4
    )

    if draws:
        found.torch.rand(1)

    assert expected == list(training._moved_since(5, None))


def test_the_library_that_runs_a_loop_is_found_by_its_frames():
    libraries = pytest.importorskip("watchdog_app.agent.found.libraries")
    inside = {"__name__": "ignite.engine.engine", "sys": sys}
    exec("def run(): return sys._getframe()", inside)

    assert "ignite runs the loop" in libraries.own_checkpoint(inside["run"]())
    assert libraries.own_checkpoint(sys._getframe()) == ""


@pytest.mark.parametrize(
    "passes",
    [
        {"0": {"passes": 0, "later": [[1, "none"]]}},
        {"0": {"passes": 0, "later": "x"}},
        {"0": {"passes": 0, "later": [7]}},
        ["0"],
    ],
)
def test_a_rescue_with_another_place_in_the_data_is_refused_before_it_trains(passes):
    transformers = pytest.importorskip("watchdog_app.agent.transformers")
    rescue = SimpleNamespace(meta={"position": {"passes": passes}}, path="r")

    with pytest.raises(RescueError, match="no place in the data that can be read"):
        transformers._random_ahead(rescue)
