"""
The lane of each test: fast (no mark), `process`, `training`; `slow` and `gpu` are explicit marks.

`process` and `training` follow from the test file, the helpers that it imports and the fixtures
that it uses. Tests that build packages are `slow`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from support import zygote

TESTS = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("tensorflow", "torch", "jax")
_TRAINS = ("e2e", "examples", "demo")  # every test in these folders starts a training
_STARTS = re.compile(r"\bsubprocess\.|\bPopen\b|\bos\.fork\b|\bmultiprocessing\b|\bos\.posix_spawn")
_IMPORTS_FRAMEWORK = re.compile(
    r"^(?:import|from) (?:tensorflow|keras|torch|jax|lightning|transformers|tf_keras)\b"
    r"|^\w+ = pytest\.importorskip\(\"(?:tensorflow|keras|torch|jax)",
    re.MULTILINE,
)
_IMPORTS = re.compile(r"^\s*(?:from|import) (?!watchdog_app\b)([\w.]+)", re.MULTILINE)
# Fixtures of a conftest that start processes.
_FIXTURES = frozenset(
    ("world", "standing", "raw", "raw_standing", "watchdog", "desk", "desktop", "stranger", "me")
)


@functools.cache
def _helpers() -> dict[str, Path]:
    """Every module in the tests' folders that is not a test, by its import name."""
    return {
        path.stem: path
        for path in TESTS.glob("*/*.py")
        if not path.name.startswith(("test_", "conftest", "__init__"))
    }


@functools.cache
def starts_processes(path: Path) -> bool:
    """Whether a file, or a helper that it imports, starts processes."""
    text = path.read_text()
    if _STARTS.search(text):
        return True
    names = {name.rpartition(".")[2] for name in _IMPORTS.findall(text)} - {path.stem}
    return any(starts_processes(_helpers()[name]) for name in names & _helpers().keys())


@functools.cache
def imports_framework(path: Path) -> bool:
    """Whether collecting a file imports a framework, which takes seconds."""
    return bool(_IMPORTS_FRAMEWORK.search(path.read_text()))


def lane_of(item: pytest.Item) -> str | None:
    """The mark that a test gets."""
    inside = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ("",)
    if inside[0] == "vm":
        return "vm"
    if (
        inside[0] in _TRAINS
        or any(item.get_closest_marker(name) for name in FRAMEWORKS)
        or imports_framework(item.path)
    ):
        return "training"
    if (
        any(item.get_closest_marker(name) for name in ("cgroup", "packages", "desktop"))
        or not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or starts_processes(item.path)
    ):
        return "process"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("watchdog").addoption(
        "--fresh", action="store_true", help="start each training in a fresh process, never forked"
    )


def pytest_configure(config: pytest.Config) -> None:
    zygote.fresh = config.getoption("fresh")


def pytest_unconfigure() -> None:
    zygote.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("packages"):
            item.add_marker("slow")
        lane = lane_of(item)
        if lane is not None and item.get_closest_marker(lane) is None:
            item.add_marker(lane)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of a framework for tests that `-m` deselects anyway."""
    without = "not training" in (config.getoption("markexpr") or "")
    if without and collection_path.suffix == ".py" and imports_framework(collection_path):
        return True
    return None
