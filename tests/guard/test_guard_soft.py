"""Without groups, as in an ordinary container, the guard limits reservations instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[1] / "e2e" / "programs"
# Like a container without rights: control groups that are mounted read-only.
READ_ONLY = """
for each in /sys/fs/cgroup/*/; do
    mount --bind "$each" "$each" && mount -o remount,bind,ro "$each" || exit 99
done
exec "$@"
"""
FRONT = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh")


@pytest.fixture(autouse=True)
def _rights():
    found = subprocess.run([*FRONT, "true"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("no mount namespace of its own can be had here")


def test_a_jump_is_an_error_that_the_program_survives_and_it_is_told_which_guard_it_is(desk):
    """No group, no supervisor, no record; child processes are limited as well."""
    jump = """
import subprocess, sys
try:
    held = bytearray(600 << 20)
except MemoryError:
    print("refused", flush=True)
print(subprocess.run([sys.executable, "-S", "-c", "bytearray(600 << 20)"],
                     stderr=subprocess.DEVNULL).returncode, flush=True)
"""
    program = desk.start(sys.executable, "-S", "-c", jump, options=("--limit", "200M"), front=FRONT)

    assert ("refused\n1\n", 0) == (program.stdout.read(), desk.end(program))
    assert "no memory group of its own can be made here" in program.output()
    assert "each process may reserve 200 MiB" in program.output()
    assert "nothing is stopped" in program.output()
    assert [] == list((desk.folder / "run" / "guard").glob("*"))


@pytest.mark.torch
def test_a_training_that_jumps_saves_itself(desk):
    """The error occurs in the program itself, so its agent can save."""
    pytest.importorskip("torch")
    out, rescues = desk.folder / "out.csv", desk.folder / "rescues"

    program = desk.start(
        sys.executable, str(PROGRAMS / "torch_loop.py"), "--out", str(out), "--rescues",
        str(rescues), "--state-mb", "8", "--epochs", "30", "--jump-mb", "6000", "--jump-at", "20",
        options=("--limit", "2G"), front=FRONT, cwd=desk.folder, env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip

    assert 1 == desk.end(program), program.output()
    assert [19] == [int(path.name.split("-")[1]) for path in rescues.glob("rescue-*")]
    assert "Instead each process may reserve 2.00 GiB" in program.output()
