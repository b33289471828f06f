"""`watchdog demo` without the framework that it needs."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from watchdog_app.base.errors import WatchdogError
from watchdog_app.cli import demo
from watchdog_app.cli.output import Output
from watchdog_app.demo import sandbox


@pytest.mark.parametrize(
    ("by_pipx", "command"),
    [(True, "with: pipx inject watchdog-app tensorflow"), (False, "with: pip install tensorflow")],
)
def test_a_demo_that_cannot_run_leaves_nothing_and_names_the_install(
    tmp_path: Path, monkeypatch, capsys, by_pipx: bool, command: str
):
    """The installation by pipx has its own command; a folder of the user stays."""
    prefix, temporary, own = (tmp_path / name for name in ("prefix", "temporary", "own"))
    for folder in (prefix, temporary, own):
        folder.mkdir()
    if by_pipx:
        (prefix / "pipx_metadata.json").touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sandbox, "find_spec", lambda _: None)
    for directory in (None, str(own)):
        args = SimpleNamespace(json=False, directory=directory)
        with pytest.raises(WatchdogError) as refused:
            demo.run(args, Output(args))
        assert str(refused.value).endswith(command)

    assert [] == list(temporary.iterdir())
    assert own.is_dir()
    assert "left to look at" not in capsys.readouterr().out
