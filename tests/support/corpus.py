"""The programs of `tests/programs`: run, saved, killed, and resumed with the lines for them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from support import zygote
from support.corpus_child import DRIVER
from support.finished import finished
from watchdog_app.agent.found.resume_lines import edit_program
from watchdog_app.agent.source.edits import Edited

TESTS = Path(__file__).resolve().parents[1]
PROGRAMS = TESTS / "programs"
LIMITS = {"torch": "1536M", "tensorflow": "2G"}


def copy(folder: Path, program: str) -> None:
    """Copy a program, and the package that some programs import, into a folder."""
    shutil.copy(PROGRAMS / f"{program}.py", folder)
    shutil.copytree(PROGRAMS / "reference", folder / "reference", dirs_exist_ok=True)


def write_lines(folder: Path, program: str) -> Edited:
    """Write the lines for the newest rescue into the files of a program in a folder."""
    edited = edit_program(str(folder / f"{program}.py"), str(folder / "rescues" / f"{program}.py"))
    for file, (_, after) in edited.files.items():
        (folder / (file or f"{program}.py")).write_text(after)
    return edited


def run(
    folder: Path, program: str, role: str, ask: int = 0, kill: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the copy of a program in `folder` in a role of `corpus_child`."""
    framework = "torch" if program.startswith("torch") else "tensorflow"
    words = ["-c", DRIVER, str(folder / f"{program}.py"), role, str(ask), str(kill)]
    return zygote.run(*words, env=environment(folder), cwd=folder, framework=framework)


def run_to_limit(
    folder: Path, program: str, leaks_from: int, *options: str, role: str = "leaks"
) -> subprocess.CompletedProcess[str]:
    """Run the copy of a program under `watchdog exec`, with a leak from an event on."""
    limit = LIMITS["torch" if program.startswith("torch") else "tensorflow"]
    watchdog = [sys.executable, "-m", "watchdog_app", "exec", "--limit", limit, *options, "--"]
    words = [sys.executable, "-c", DRIVER, str(folder / f"{program}.py"), role]
    argv = [*watchdog, *words, str(leaks_from), "0"]
    return finished(argv, cwd=folder, env=environment(folder), timeout=200)


def environment(folder: Path) -> dict[str, str]:
    """The environment of a program in a folder: no daemon, one thread."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent))),
        "WATCHDOG_RUNTIME_DIR": str(folder / "no-daemon"),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def bits(folder: Path) -> str:
    """A hash of all tensors in the files that a program left; removes the files."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".pt", ".h5", ".npz"):
            for name, raw in _tensors(path):
                found.update(name.encode() + raw)
            path.unlink()
    return found.hexdigest()


def _tensors(path: Path):
    if path.suffix == ".pt":
        import torch

        waiting = sorted(torch.load(path, weights_only=True).items())
        for name, thing in waiting:
            if isinstance(thing, dict):
                waiting += sorted(thing.items())
            else:
                yield name, thing.numpy().tobytes()
    elif path.suffix == ".npz":
        import numpy as np

        yield from ((name, thing.tobytes()) for name, thing in sorted(np.load(path).items()))
    else:
        import h5py

        found = []
        with h5py.File(path) as file:
            file.visititems(
                lambda name, each: found.append((name, each[()].tobytes()))
                if isinstance(each, h5py.Dataset) else None
            )  # fmt: skip
        yield from sorted(found)
