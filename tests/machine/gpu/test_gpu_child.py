"""Reading from and writing to the reader's pipes never blocks."""

from __future__ import annotations

import sys
import time

import pytest

from watchdog_app.base.line_child import LineChild
from watchdog_app.machine.gpu.reader_process import reader_env

TALKER = """
import time
print('{"x": "' + "x" * 300000 + '"}', flush=True)
time.sleep(60)
"""


def test_a_pipe_is_read_without_waiting():
    """An empty pipe gives nothing. An answer larger than the pipe arrives in parts."""
    child = LineChild([sys.executable, "-c", TALKER], {})
    try:
        come = child.answers()
        give_up = time.monotonic() + 60
        while not come:
            assert time.monotonic() < give_up
            time.sleep(0.01)
            come = child.answers()

        assert [{"x": "x" * 300_000}] == come
        assert [] == child.answers()
    finally:
        child.kill()
        child.wait(10)


@pytest.mark.parametrize(
    ("program", "status"),
    [("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11), ("raise SystemExit(4)", 4)],
)
def test_the_end_of_a_reader_is_seen_with_its_status(program, status):
    """The status distinguishes a crash from an error."""
    child = LineChild([sys.executable, "-c", program], {})
    give_up = time.monotonic() + 60
    while child.status is None:
        assert time.monotonic() < give_up
        time.sleep(0.01)

    assert status == child.status
    child.ask({"id": 1})  # the reader has ended: no error
    assert [] == child.answers()
    child.kill()


def test_an_answer_without_an_end_is_given_up():
    """The memory stays bounded, whatever the reader sends."""
    endless = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    child = LineChild([sys.executable, "-c", endless], {})
    try:
        with pytest.raises(ValueError, match="without an end"):  # noqa: PT012 - until it does
            give_up = time.monotonic() + 60
            while time.monotonic() < give_up:
                child.answers()
                time.sleep(0.005)
    finally:
        child.kill()
        child.wait(10)


def test_the_readers_environment_holds_what_it_needs():
    """The library's folder comes after the user's own path."""
    env = {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine", "LD_PRELOAD": "/x.so", "API_KEY": "k"}

    assert {"PATH": "/bin", "LD_LIBRARY_PATH": "/mine:/usr/lib/wsl/lib"} == reader_env(
        env, "/usr/lib/wsl/lib"
    )
    assert "/mine" == reader_env(env, None)["LD_LIBRARY_PATH"]
