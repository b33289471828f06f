"""An interrupt leaves a fit: Keras calls no hook, and the fit does not count as training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_stand_in import StandIn

from watchdog_app.rescue.checkpoint import names

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "programs" / "fit_left.py"


@pytest.fixture
def daemon(tmp_path):
    daemon = StandIn(str(tmp_path / "run" / "daemon.sock"))
    yield daemon
    daemon.close()


@pytest.fixture
def start(tmp_path):
    """Start the program in one of its roles."""
    env = {
        **os.environ,
        "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"),
        "WATCHDOG_STATE_DIR": str(tmp_path / "state"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JPY_SESSION_NAME": str(tmp_path / "left.ipynb"),
    }
    started = []

    def start(role: str) -> subprocess.Popen[str]:
        with (tmp_path / "stderr").open("w") as errors:
            program = subprocess.Popen(
                [sys.executable, str(PROGRAM), role],
                cwd=tmp_path,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
        program.communicate()


def end_of(program: subprocess.Popen[str], tmp_path: Path, answer: str | None = None):
    output, _ = program.communicate(answer, timeout=600)
    assert program.returncode == 0, output + (tmp_path / "stderr").read_text()
    return json.loads(output.splitlines()[-1])


def test_a_fit_ends_with_its_cell_and_its_rescue_stays_unfinished(daemon, start, tmp_path):
    """The next fit trains as usual. A nested fit or one in a thread outlives other cells."""
    found = end_of(start("cells"), tmp_path)

    assert "KeyboardInterrupt" == found["interrupted"]
    assert 0 == found["open after its cell"]
    assert [False] == found["finished after its cell"]
    assert [False] == found["in use after its cell"]  # `watchdog rescues` says "unfinished"
    assert [False, True] == sorted(found["finished after the next fit"])  # another cell
    assert [False] == found["nested finished"]
    assert [True, False] == found["nested"]
    assert found["thread"] is True
    assert found["thread at its end"] is False
    first = next(at for at, (method, _) in enumerate(daemon.received) if method == "agent.bye")
    (_, report), (_, bye) = daemon.received[first - 1 : first + 1]
    assert report["training"] is False
    assert {"finished": False, "failed": False} == bye
    said = (tmp_path / "stderr").read_text()
    assert "When the fit is run again in a new process, it resumes from there." in said
    assert "resumed" not in said


def test_a_caught_interrupt_ends_the_fit_and_refuses_the_request(daemon, start, tmp_path):
    """The request waited for a step that does not come."""
    program = start("script")
    assert "waits\n" == program.stdout.readline()
    daemon.wait_for("agent.saved")
    daemon.ask("r7")

    refused = daemon.wait_for("agent.failed")
    daemon.until(lambda: daemon.last("agent.report")["training"] is False)
    before = len(daemon.received)
    found = end_of(program, tmp_path, "\n")

    assert ("r7", "The training has ended.") == (refused["request"], refused["error"])
    assert found == {"open": True, "open at the end": False}
    later = daemon.received[before:]
    byes = [params["finished"] for method, params in later if method == "agent.bye"]
    assert [False, True] == byes
    assert "agent.register" in [method for method, _ in later]
    rescues = tmp_path.glob("rescues/rescue-*")
    assert [False, True] == sorted(names.is_finished(str(each)) for each in rescues)
