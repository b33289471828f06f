"""What several tests of the agent begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from watchdog_app.agent import hook


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the rescues of this program; the agent is on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATCHDOG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("WATCHDOG_STATE_DIR", str(tmp_path / "state"))
    assert hook.switch_on()
    yield tmp_path
    hook.switch_off()
