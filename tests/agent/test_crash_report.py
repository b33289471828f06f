"""A failing process leaves a report of its position; a successful one leaves no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.machine.sensors import exits

BEGIN = """\
import sys
from watchdog_app.agent.runtime import crash_report
assert crash_report.install()
"""


@pytest.fixture
def run(tmp_path):
    """Run a program; return its exit status, its output and its crash report."""

    def go(code, env=None, begin=BEGIN):
        program = tmp_path / "train.py"
        program.write_text(begin + code)
        with subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, "WATCHDOG_STATE_DIR": str(tmp_path / "state"), **(env or {})},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            said, _ = process.communicate(timeout=60)
        folder = tmp_path / "state" / "crash-reports"
        left = sorted(folder.iterdir()) if folder.is_dir() else []
        mine = [one for one in left if one.name.startswith(f"{process.pid}-")]
        words = None
        if mine:
            pid, start = mine[0].name.split("-")
            key = ProcessKey(int(pid), int(start))
            words = exits.read_crash_report(str(tmp_path / "state"), key)
            assert not mine[0].exists(), "read once, and removed"
        return process.returncode, said, words

    return go


def test_a_segmentation_fault_tells_where_python_was(run):
    """The place is the innermost line of the program, not of the library that crashed."""
    status, said, words = run("def step():\n    import ctypes\n    ctypes.string_at(0)\nstep()\n")

    assert -signal.SIGSEGV == status
    assert "Fatal Python error: Segmentation fault" == words.fatal
    assert "train.py:6 in step" == words.place
    assert "" == said


def test_an_abort_is_told_too(run):
    """C++ libraries end this way after an uncaught exception."""
    status, _, words = run("import os\ndef step():\n    os.abort()\nstep()\n")

    assert -signal.SIGABRT == status
    assert ("Fatal Python error: Aborted", "train.py:6 in step") == (words.fatal, words.place)


def test_an_exception_is_noted_and_printed_as_ever(run):
    """The report has type, first line and place, and never more than the first line."""
    status, said, words = run(
        "def step(key):\n    raise ValueError('bad\\nsecond')\nstep('s3cret')\n"
    )

    assert 1 == status
    assert ("ValueError", "bad", "train.py:5 in step") == (words.error, words.message, words.place)
    assert "ValueError: bad\nsecond" in said
    assert "s3cret" not in repr(words)


def test_a_hook_of_the_program_is_called_after_ours(run):
    """The agent's hook still calls the previous hook."""
    begin = "import sys\nsys.excepthook = lambda *_: print('mine')\n" + BEGIN
    _, said, words = run("1 / 0\n", begin=begin)

    assert "mine\n" == said
    assert "ZeroDivisionError" == words.error


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise SystemExit('gone')", 1),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", 0),
        ("crash_report.uninstall()\n1 / 0", 1),
    ],
)
def test_who_ends_of_its_own_will_leaves_nothing(run, tmp_path, code, status):
    """The agent writes neither a file nor a message."""
    ended, _, words = run(code)

    assert (status, None) == (ended, words)
    assert [] == list((tmp_path / "state" / "crash-reports").iterdir())


def test_what_the_program_switched_on_itself_is_left_alone(run):
    """The program's own faulthandler still writes to its file."""
    status, said, words = run(
        "import ctypes\nctypes.string_at(0)\n", env={"PYTHONFAULTHANDLER": "1"}
    )

    assert -signal.SIGSEGV == status
    assert "Fatal Python error" in said
    assert words is None


def test_a_fork_writes_nothing_into_its_parents_file(run):
    """A worker's crash must not look like the parent's."""
    status, _, words = run(
        "import os\npid = os.fork()\nif not pid:\n    os.abort()\nos.waitpid(pid, 0)\n"
    )

    assert (0, None) == (status, words)


def test_a_folder_that_cannot_be_written_harms_nobody(run, tmp_path):
    """The program runs as without the agent."""
    (tmp_path / "state").write_text("a file")

    status, said, words = run("print('ran')\n", begin=BEGIN.replace("assert ", ""))

    assert (0, "ran\n", None) == (status, said, words)


def test_detached_everything_is_as_before(run):
    """This concerns handler, hook and file."""
    status, said, _ = run(
        "import faulthandler\n"
        "assert faulthandler.is_enabled() and sys.excepthook is not sys.__excepthook__\n"
        "crash_report.uninstall()\n"
        "assert not faulthandler.is_enabled() and sys.excepthook is sys.__excepthook__\n"
    )

    assert (0, "") == (status, said)


@pytest.mark.parametrize(
    "text",
    ["", "\0" * 100, "Uncaught : ", "Fatal Python error", "File x", "é" * 9000, "Uncaught\n" * 99],
)
def test_damaged_words_are_no_words(text):
    """The file may be cut off or have another format."""
    assert exits.parse_crash_report(text) is None


def test_a_link_or_a_foreign_file_is_not_read(tmp_path):
    """Another user must not make the daemon read an arbitrary file."""
    (tmp_path / "crash-reports").mkdir()
    secret = tmp_path / "secret"
    secret.write_text("Uncaught Secret: x\n")
    (tmp_path / "crash-reports" / "1-2").symlink_to(secret)

    assert exits.read_crash_report(str(tmp_path), ProcessKey(1, 2)) is None
    assert secret.exists()


def test_frames_of_libraries_are_marked_as_such():
    """Python 3.12 and later also print the thread's name."""
    words = exits.parse_crash_report(
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f [MainThread] (most recent call first):\n"
        '  File "/env/lib/python3.12/site-packages/torch/nn/functional.py", line 7 in conv2d\n'
        '  File "/home/ada/train.py", line 42 in step\n\n'
        "Thread 0x00008f (most recent call first):\n"
        '  File "/home/ada/other.py", line 1 in wait\n'
    )

    assert ("<nn/functional.py>:7 in conv2d", "train.py:42 in step") == words.frames
    assert "train.py:42 in step" == words.place


def test_switched_on_it_listens_from_the_first_thing_that_computes(run):
    """
    The agent loads nothing for a script that computes nothing.

    Switching off restores the old state.
    """
    status, said, words = run(
        "hook.switch_on()\n"
        "assert 'watchdog_app.agent.runtime.crash_report' not in sys.modules\n"
        "import faulthandler, numpy\n"
        "assert faulthandler.is_enabled()\n"
        "hook.switch_off()\n"
        "assert not faulthandler.is_enabled()\n"
        "hook.switch_on()\n"
        "1 / 0\n",
        begin="import sys\nfrom watchdog_app.agent import hook\n",
    )

    assert (1, "ZeroDivisionError") == (status, words.error), said


def test_an_error_that_a_program_only_prints_is_not_its_end(run):
    """Some programs call the hook themselves and continue; the report then has the later cause."""
    printed = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())\n"

    status, said, words = run(f"{printed}import os\nos.kill(os.getpid(), 9)\n")
    _, _, later = run(f"{printed}raise KeyError('x')\n")

    assert -signal.SIGKILL == status
    assert "ZeroDivisionError" in said
    assert words is None
    assert "KeyError" == later.error


def test_the_programs_own_line_is_kept_however_deep_the_error_lies(run):
    """Frameworks add many frames between the program's line and the error."""
    _, _, words = run("import re\ndef step():\n    re.compile('(((((((((a')\nstep()\n")

    assert words.error in ("error", "PatternError")
    assert "train.py:6 in step" == words.place


def test_a_forked_child_whose_hook_calls_ours_does_not_call_itself(run):
    """A program's hook, set after ours, that logs: a training in the child installs ours again."""
    status, said, _ = run(
        "import os\n"
        "before = sys.excepthook\n"
        "def log(*error):\n"
        "    print('logged', flush=True)\n"
        "    before(*error)\n"
        "sys.excepthook = log\n"
        "if os.fork():\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "assert crash_report.install()\n"
        "1 / 0\n"
    )

    assert (1, 1, 1) == (status, said.count("logged"), said.count("ZeroDivisionError")), said
