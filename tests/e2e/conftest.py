"""Fixtures of the end-to-end tests: a World per test, and reference runs made once per session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from harness import Training, World

from watchdog_app.base.errors import ActionError
from watchdog_app.guard.backends import create


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A folder with its own daemon; everything in it ends with the test."""
    world = World(tmp_path)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture(scope="session", autouse=True)
def memory_groups() -> None:
    """Skip with the reason if the machine offers no memory group."""
    try:
        create(f"watchdog-e2e-probe-{os.getpid()}", 64 * 2**20).close()
    except ActionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Training]:
    """A finished, uninterrupted run per program and arguments, made once per session."""
    made: dict[tuple[str, ...], Training] = {}

    def get(program: str, *arguments: str) -> Training:
        key = (program, *arguments)
        if key not in made:
            world = World(tmp_path_factory.mktemp("reference"))
            training = world.train(program, "--no-agent", "--step-s", "0", *arguments)
            assert training.wait() == 0, training.tail()
            made[key] = training
        return made[key]

    return get


@pytest.fixture
def swap_file(tmp_path: Path) -> Iterator[Path]:
    """400 MB of swap during the test."""
    path = tmp_path / "swap"
    with open(path, "wb") as file:
        for _ in range(400):
            file.write(bytes(1_000_000))  # the kernel refuses a sparse file
    path.chmod(0o600)
    subprocess.run(["mkswap", str(path)], check=True, capture_output=True)
    subprocess.run(["swapon", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["swapoff", str(path)], check=True)


@pytest.fixture
def odd_folder(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A folder for rescues, `full` or `read-only`, on its own file system."""
    path = tmp_path / "odd"
    path.mkdir()

    def make(fault: str) -> Path:
        option = "size=1m" if fault == "full" else "ro"
        subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(path)], check=True)
        return path

    yield make
    subprocess.run(["umount", str(path)], check=False)
