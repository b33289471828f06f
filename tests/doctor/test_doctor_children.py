"""Child processes with a deadline: the caller always continues in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from watchdog_app.doctor import children


def run(code, timeout_s=30.0):
    return children.run([sys.executable, "-c", code], timeout_s, os.environ)


def test_output_and_status_come_back():
    """The caller gets both streams as text."""
    ended = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")

    assert ("out\n", "err\n", 3) == (ended.stdout, ended.stderr, ended.code)
    assert "it ended with status 3" == ended.end_text


def test_what_was_said_before_the_deadline_is_kept():
    """This output names the hanging call."""
    ended = run("import time; print('calling', flush=True); time.sleep(600)", timeout_s=2.0)

    assert ended.timed_out
    assert "calling\n" == ended.stdout
    assert ended.seconds < 60


def test_a_signal_has_its_name():
    """A segmentation fault belongs to the library, not to the doctor."""
    ended = run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")

    assert "it was ended by SIGSEGV" == ended.end_text


def test_more_output_than_is_wanted_neither_blocks_nor_fills_memory():
    """TensorFlow can log without end."""
    ended = run("import sys\nfor _ in range(3000): sys.stdout.write('x' * 1000 + '\\n')")

    assert 0 == ended.code
    assert 1 << 18 <= len(ended.stdout) < 1 << 20


def test_children_of_the_child_are_ended_with_it(tmp_path):
    """Grandchildren hold the pipes open and would survive."""
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    )
    begun = time.monotonic()

    ended = run(code)

    assert 0 == ended.code
    assert time.monotonic() - begun < 25
    pid = int(pid_file.read_text())
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"{pid} is still there")


def test_a_program_that_is_not_there_is_an_os_error():
    """The caller reports which program is missing."""
    with pytest.raises(FileNotFoundError):
        children.run(["/no/such/program"], 1.0, os.environ)


def test_a_child_that_is_being_started_is_ended_as_well(monkeypatch):
    """The interrupt can arrive before the child's thread registers the child."""
    real, started, ended = subprocess.Popen, threading.Event(), []

    def slowly(*args, **options):
        child = real(*args, **options)
        started.set()
        time.sleep(0.3)
        ended.append(child)
        return child

    monkeypatch.setattr(children, "_closed", threading.Event())
    monkeypatch.setattr(subprocess, "Popen", slowly)
    thread = threading.Thread(target=run, args=("import time; time.sleep(600)",))
    thread.start()
    started.wait()

    children.kill_all()

    assert -signal.SIGKILL == ended[0].wait(30)
    thread.join()
