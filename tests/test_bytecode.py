"""Tests and their children use bytecode that was compiled once."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from watchdog_app.demo.sandbox import Sandbox

NAME = "PYTHONDONTWRITEBYTECODE"
TESTS = Path(__file__).parent


def test_children_of_tests_write_and_use_bytecode():
    code = "import sys; print(sys.dont_write_bytecode)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "False\n" == done.stdout
    assert NAME not in os.environ


def test_trainings_of_the_demo_write_and_use_bytecode(tmp_path):
    assert NAME not in Sandbox(str(tmp_path)).env


def test_no_test_starts_a_child_that_compiles_everything_again():
    allowed = {"test_bytecode.py", "conftest.py"}

    setting = [
        path.name
        for path in TESTS.rglob("*.py")
        if path.name not in allowed and NAME in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.keyword) and node.arg == NAME)
        or (isinstance(node, ast.Dict) and NAME in {getattr(k, "value", None) for k in node.keys})
    ]

    assert [] == setting
