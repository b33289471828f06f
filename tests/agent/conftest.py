"""Common fixtures of the agent's tests."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from watchdog_app.agent import hook


@pytest.fixture
def program_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the rescues of this program; the agent is on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    assert hook.switch_on()
    yield tmp_path
    hook.switch_off()


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without a daemon, and raise the agent's own errors."""
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("WATCHDOG_AGENT_STRICT", "1")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a new module with this text."""
    count = 0

    def load(text: str) -> ModuleType:
        nonlocal count
        count += 1
        name = f"program_{count}"
        path = tmp_path / name / "train.py"
        path.parent.mkdir()
        path.write_text(text)
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
        linecache.clearcache()
        exec(compile(text, str(path), "exec"), vars(module))
        return module

    return load
