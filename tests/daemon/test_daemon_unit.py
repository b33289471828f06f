"""The systemd unit: valid, and with nothing in it that would blind the daemon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "packaging/linux/share/systemd/user/watchdog.service"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_no_fault_with_the_unit(tmp_path):
    """Every directive is known and has a value that is accepted."""
    found = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(UNIT)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    about_us = [line for line in found.stderr.splitlines() if "watchdog.service" in line]
    assert [] == about_us


def test_no_directive_makes_a_namespace():
    """In a namespace of its own the daemon could not read the user's processes."""
    forbidden = r"^(Private|Protect|ReadOnly|ReadWrite|Inaccessible|RootDirectory|TemporaryFile)"
    assert [] == re.findall(forbidden, UNIT.read_text(), re.MULTILINE)
