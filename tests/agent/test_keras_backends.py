"""A resumed fit of Keras on PyTorch or JAX, or of Keras 2, is exact."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from watchdog_app.rescue.checkpoint.reader import LoadedRescue

pytestmark = pytest.mark.timeout(900)

PROGRAM = Path(__file__).parent / "programs" / "fit_backends.py"
CASES = {
    "torch": (
        *("during_validation", "py_dataset", "loader", "loader_with_workers", "wrapped"),
        *("in_background", "killed"),
    ),
    "jax": (
        *("during_validation", "py_dataset", "loader", "in_background", "several_devices"),
        "killed",
    ),
    "keras2": (
        *("during_validation", "last_of_an_epoch", "py_dataset", "tf_data", "legacy"),
        "killed",
    ),
}
# The same with another backend shows most of these.
NIGHTLY = {("jax", "loader"), ("jax", "py_dataset"), ("keras2", "py_dataset")}
REFUSED = "other_initial_epoch"
UNREPEATABLE = ("left_over", "disturbed", "validated")  # the order of their data
MARKS = {"torch": pytest.mark.torch, "jax": pytest.mark.jax, "keras2": pytest.mark.tensorflow}


def start(backend: str, role: str, folder: Path, *cases: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(folder / "train.py"), str(folder)],
        env={
            **os.environ,
            "KERAS_BACKEND": backend,
            "ROLE": role,  # not an argument: the roles are runs of one program
            "CASES": " ".join(cases),
            "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
            "WATCHDOG_STATE_DIR": str(folder / "state"),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "CUDA_VISIBLE_DEVICES": "",
            # Compiled once for all roles; one thread, because other processes may use the machine.
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=850)
    assert process.returncode == code, output
    return output


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """
    A folder with each role's output per backend; a resume runs in another process.

    Only the cases of selected tests are trained.
    """
    tests = {item.name.partition("[")[2] for item in request.session.items}

    @cache
    def train(backend: str) -> tuple[Path, str]:
        pytest.importorskip(
            {"keras2": "tf_keras"}.get(backend, backend), reason="pip install -e .[dev]"
        )
        folder = tmp_path_factory.mktemp(backend)
        shutil.copy(PROGRAM, folder / "train.py")
        unrepeatable = UNREPEATABLE if backend == "torch" else ()
        cases = [
            c for c in (REFUSED, *CASES[backend]) if c == "killed" or f"{backend}-{c}]" in tests
        ]
        ended(start(backend, "both", folder, *unrepeatable, *cases), -signal.SIGKILL)
        output = ended(start(backend, "resumed", folder, *cases))
        return folder, output

    return train


@pytest.mark.parametrize(
    ("backend", "case"),
    [
        pytest.param(
            *(backend, case),
            marks=[MARKS[backend], *([pytest.mark.slow] if (backend, case) in NIGHTLY else [])],
        )
        for backend, cases in CASES.items()
        for case in cases
    ],
)
def test_a_resumed_fit_repeats_the_uninterrupted_one_on_its_backend(trained, backend, case):
    """Losses, metrics, history, weights, slots and random numbers are equal to the last bit."""
    folder, _output = trained(backend)
    expected = (folder / f"{case}.reference.txt").read_text()

    interrupted = (folder / f"{case}.interrupted.txt").read_text()
    resumed = (folder / f"{case}.resumed.txt").read_text()

    assert expected == interrupted + resumed
    assert interrupted
    assert "state " in resumed


@pytest.mark.parametrize(
    ("backend", "case"), [pytest.param("keras2", REFUSED, marks=MARKS["keras2"])]
)
def test_another_initial_epoch_of_keras_2_is_refused_by_name(trained, backend, case):
    """Keras 2 has prepared the data of other epochs; Keras 3 prepares each epoch alone."""
    folder, _output = trained(backend)

    resumed = (folder / f"{case}.resumed.txt").read_text()

    assert "fit is given initial_epoch=2, and the fit of the rescue began with" in resumed


@pytest.mark.parametrize("backend", [pytest.param(each, marks=MARKS[each]) for each in CASES])
def test_a_fit_that_names_no_rescue_is_told_how_it_goes_on(trained, backend):
    """The hook's Rescue resumes automatically, says so, and says how to prevent it."""
    folder, output = trained(backend)

    assert "fits are saved in" in output
    assert f"resuming from {folder / 'rescues' / 'train.py'}" in output
    assert "WATCHDOG_AGENT_RESUME=no" in output
    assert "not come back" not in output


@pytest.mark.torch
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("left_over", "a PyDataset with workers"),
        ("disturbed", "draws global random numbers"),
        ("validated", "the generator of the validation data"),
    ],
)
def test_what_a_backend_cannot_repeat_is_listed_as_it_is_saved(trained, case, words):
    """
    These are batches left over from Keras's previous epoch, and a generator that other code uses.
    """
    folder, _output = trained("torch")
    path = next((folder / f"{case}.rescues").glob("rescue-*"))

    with LoadedRescue(str(path)) as rescue:
        lost = rescue.meta["not_restored"]

    assert 1 == len(lost)
    assert words in lost[0]


@pytest.mark.torch
@pytest.mark.jax
def test_a_rescue_of_another_backend_is_refused_by_name(trained):
    """The error names both backends; nothing is loaded, and the rescue stays unchanged."""
    pytest.importorskip("jax", reason="pip install -e .[dev]")
    left, _output = trained("torch")
    before = sorted(path.name for path in (left / "left_over.rescues").glob("rescue-*"))

    output = ended(start("jax", "resumed", left, "left_over"), 1)

    assert "saved by a fit of Keras on torch, and this is a fit of Keras on jax" in output
    assert "Nothing was loaded" in output
    assert before == sorted(path.name for path in (left / "left_over.rescues").glob("rescue-*"))
