"""The agent's inspection of objects does not copy the pages that forked workers share."""

from __future__ import annotations

import json
import sys

import pytest
from support.finished import finished

from watchdog_app.agent.telemetry import diagnose

PROGRAM = """
import json, os, signal, sys

kept = [[number] for number in range(300_000)]  # about 30 MiB that the garbage collector knows
from watchdog_app.agent.telemetry import diagnose

def own():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

child = os.fork() if sys.argv[1] == "forked" else 0
if child == 0 and sys.argv[1] == "forked":
    signal.pause()
before = own()
found = diagnose.trace(1.0, lambda: None)
print(json.dumps([not found["tensors_counted"], (own() - before) // 1024]))
if child:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs smaps_rollup")
@pytest.mark.parametrize("how", ["forked", "alone"])
def test_a_look_for_what_grows_does_not_copy_what_workers_share(how):
    """The search runs when memory is short, and copies would exhaust it."""
    done = finished([sys.executable, "-c", PROGRAM, how], check=True)

    skipped, copied_mib = json.loads(done.stdout)

    assert (how == "forked") == skipped
    assert copied_mib < 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-f ---p [rollup]\nShared_Dirty: 30 kB\nAnonymous: 50 kB\n", 30 * 1024),
        ("0-f ---p [rollup]\nShared_Dirty: 90 kB\nAnonymous: 50 kB\n", 50 * 1024),  # shared memory
        ("0-f ---p [rollup]\nShared_Dirty: 90 kB\n", None),
        ("0-f ---p [rollup]\nShared_Dirty: kB\nAnonymous:\n", None),
        ("", None),
    ],
)
def test_shared_memory_is_read_as_the_kernel_writes_it(tmp_path, text, expected):
    """The value may also be unknown."""
    path = tmp_path / "smaps_rollup"
    path.write_text(text)

    assert expected == diagnose.shared_bytes(str(path))


def test_where_the_system_does_not_say_it_is_not_known(tmp_path):
    """The system is not Linux, or its kernel is old."""
    assert diagnose.shared_bytes(str(tmp_path / "none")) is None
