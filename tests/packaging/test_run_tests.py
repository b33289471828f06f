"""What runs all tests: which fail, which passed at the second try, and how it ends."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNNER = Path(__file__).resolve().parents[2] / "packaging" / "run_tests.py"

FLAKY = """
import os, pytest
def test_second_time(): # fails until it has run once
    if not os.path.exists({mark!r}):
        open({mark!r}, "w").close()
        pytest.fail("the first time")
def test_good(): pass
"""
BAD = """
import pytest
@pytest.mark.parametrize("word", ["a - b", "c"])
def test_bad(word): assert word == "c"
"""
MANY = """
import pytest
@pytest.mark.parametrize("number", range(40))
def test_many(number): assert number < 0
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, over a project of its own."""
    spec = importlib.util.spec_from_file_location("run_tests", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_tests", module)
    spec.loader.exec_module(module)
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "TESTS", tmp_path / "tests")
    return module


def put(folder: Path, name: str, text: str) -> None:
    """One file of tests in a folder of its own."""
    place = folder / "tests" / name
    place.mkdir()
    (place / f"test_{name}.py").write_text(text)


def test_a_test_that_passes_alone_is_named_and_fails_nothing(runner, tmp_path, capsys):
    """Only what failed is run again."""
    put(tmp_path, "core", FLAKY.format(mark=str(tmp_path / "mark")))

    assert 0 == runner.main()

    said = capsys.readouterr().out
    assert "Failed beside others and passed alone" in said
    assert "tests/core/test_core.py::test_second_time" in said.split("passed alone")[-1]
    assert "1 failed, 1 passed" in said
    assert " 1 passed in " in said


def test_a_test_that_fails_twice_has_failed(runner, tmp_path, capsys):
    """By its name, whatever that holds."""
    put(tmp_path, "core", BAD)
    put(tmp_path, "cli", FLAKY.format(mark=str(tmp_path / "mark")))

    assert 1 == runner.main()

    told = capsys.readouterr()
    assert "Failed:\n  tests/core/test_core.py::test_bad[a - b]\n" == told.err.lstrip()
    assert "tests/cli/test_cli.py::test_second_time" in told.out.split("machine was at fault")[-1]


def test_many_that_fail_are_not_tried_again(runner, tmp_path, capsys):
    """Nothing but the project can be at fault."""
    put(tmp_path, "core", MANY)

    assert 1 == runner.main()

    told = capsys.readouterr()
    assert 40 == told.err.count("test_many[")
    assert "once more, alone" not in told.out


def test_a_batch_that_cannot_run_has_failed(runner, tmp_path, capsys):
    """A broken conftest names no test."""
    put(tmp_path, "core", "def test_good(): pass\n")
    (tmp_path / "tests/core/conftest.py").write_text("import no_such_module\n")

    assert 1 == runner.main()

    assert "tests/core: pytest ended with 4" in capsys.readouterr().err


def test_all_that_passed_is_said(runner, tmp_path, capsys):
    """A folder whose marks leave nothing over has not failed."""
    put(tmp_path, "core", "def test_good(): pass\n")
    put(tmp_path, "cli", "\n")

    assert 0 == runner.main()

    said = capsys.readouterr().out
    assert "All tests passed" in said
    assert "once more" not in said
