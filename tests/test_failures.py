"""A failed test fails the run; only a listed, recent flaky test is excused."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.failures import REPEATING
from support.finished import finished
from support.workers import APART

TESTS = Path(__file__).parent
TODAY = datetime.datetime.now(tz=datetime.UTC).date()
# The environment of a session without a worker's namespace.
OUTSIDE = {key: value for key, value in os.environ.items() if key not in (APART, REPEATING)}
RACY = """
import os
def test_racy():  # fails once
    first = not os.path.exists("mark")
    open("mark", "w").close()
    assert not first
"""


class Project:
    """A separate project whose session uses these plugins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tests").mkdir()
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  process\n  training\n  slow\n")
        (folder / "tests" / "conftest.py").write_text(
            'pytest_plugins = ("support.lanes", "support.workers", "support.failures")\n'
        )

    def put(self, text: str, name: str = "test_it.py") -> None:
        (self.folder / "tests" / name).write_text(text)

    def list(self, *entries: tuple[str, int], more: str = "") -> None:
        """Write flaky.toml: a test and the age of its entry in days, for each entry."""
        text = more
        for test, age in entries:
            date = TODAY - datetime.timedelta(days=age)
            text += f'[[flaky]]\ntest = "tests/{test}"\ncause = "a race"\ndate = {date}\n'
        (self.folder / "tests" / "flaky.toml").write_text(text)

    def run(self, *words: str, **env: str) -> tuple[int, str]:
        done = finished(
            [sys.executable, "-m", "pytest", *words],
            cwd=self.folder,
            env={**OUTSIDE, "PYTHONPATH": str(TESTS), **env},
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


GOOD, BAD = "def test_good(): pass\n", "def test_bad(): assert False\n"
ALONE, WORKERS = (), ("-n2",)
WAYS = pytest.mark.parametrize("words", [ALONE, WORKERS], ids=["alone", "workers"])


@WAYS
def test_a_listed_failure_fails_nothing_and_is_named(project, words):
    project.put(BAD + GOOD)
    project.list(("test_it.py::test_bad", 14))

    code, said = project.run(*words)

    assert 0 == code
    assert "tests/test_it.py::test_bad failed; 0 days left" in said


@pytest.mark.parametrize(
    ("text", "listed", "words"),
    [
        (BAD + GOOD, "test_good", ALONE),
        (BAD + GOOD, "test_good", WORKERS),
        (BAD + "def test_other(): assert False\n", "test_bad", ALONE),
        (GOOD + "import os\ndef test_dies(): os._exit(3)\n", "test_good", WORKERS),
    ],
    ids=["alone", "workers", "another failure", "a crash of a worker"],
)
def test_a_failure_that_is_not_listed_fails_the_run(project, text, listed, words):
    project.put(text)
    project.list((f"test_it.py::{listed}", 1))

    code, _ = project.run(*words)

    assert 1 == code


@pytest.mark.parametrize("broken", ["import no_such_module", "def test_x(no_such_fixture): pass"])
def test_a_listed_failure_excuses_no_file_that_cannot_run(project, broken):
    project.put(BAD)
    project.put(broken, "test_broken.py")
    project.list(("test_it.py::test_bad", 1))

    code, _ = project.run("--continue-on-collection-errors")

    assert 1 == code


@pytest.mark.parametrize("text", [GOOD, BAD], ids=["passes", "fails"])
def test_an_expired_entry_fails_the_run_by_itself(project, text):
    project.put(text)
    project.list((f"test_it.py::{text[4:].partition('(')[0]}", 15))

    code, said = project.run()

    assert 1 == code
    assert "EXPIRED" in said


def test_at_most_five_entries_are_allowed(project):
    project.put(GOOD)
    project.list(*((f"test_it.py::test_{number}", 1) for number in range(6)))

    code, said = project.run()

    assert 4 == code
    assert "at most 5" in said


@pytest.mark.parametrize(
    "text",
    [
        "test = 'tests/a.py::b'\ncause = 'x'\n",
        "test = 'tests/a.py::b'\ncause = ' '\ndate = 2026-01-01\n",
        "test = 'tests/a.py'\ncause = 'x'\ndate = 2026-01-01\n",
        "test = 'tests/a.py::b'\ncause = 'x'\ndate = 9999-01-01\n",
        "test = 'tests/a.py::b'\ncause = 'x'\ndate = 'today'\n",
        "test = 'tests/a.py::b'\ncause = 'x'\ndate = 2026-01-01\nforever = true\n",
        "test = ",
    ],
)
def test_a_damaged_entry_is_an_error(project, text):
    project.put(GOOD)
    project.list(more="[[flaky]]\n" + text)

    code, said = project.run()

    assert 4 == code
    assert "flaky.toml" in said


def test_a_test_that_passes_when_repeated_still_fails_the_run(project):
    project.put(RACY)

    code, said = project.run("--repeat-failures", "--seed=7")

    assert 1 == code
    assert "test_racy: failed, then 0 of 5" in said
    (entry,) = (project.folder / "build/tests/failures.jsonl").read_text().splitlines()
    noted = json.loads(entry)
    assert ("tests/test_it.py::test_racy", 0, 5, 7) == tuple(
        noted[key] for key in ("test", "failed_again", "repeats", "seed")
    )
    assert 3 == len(noted["load"])


def test_a_broken_test_fails_each_repeat(project):
    project.put(BAD)

    code, said = project.run("--repeat-failures")

    assert 1 == code
    assert "test_bad: failed, then 5 of 5" in said


def test_many_failures_are_not_repeated(project):
    project.put(
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_bad(n): assert 0\n"
    )

    code, said = project.run("--repeat-failures")

    assert 1 == code
    assert "more than 10" in said


def test_the_seed_repeats_what_random_gives(project):
    project.put("import random\ndef test_it(): print('drew', random.random())\n")

    drawn = [project.run("-s", f"--seed={seed}")[1].split("drew ")[1].split()[0] for seed in "778"]

    assert drawn[0] == drawn[1] != drawn[2]


def test_workers_apart_and_outside_share_the_tests(project):
    apart = f"popen//python={TESTS.parent}/packaging/apart.sh {sys.executable}"
    outside = project.folder / "tests" / "e2e"
    outside.mkdir()
    text = "import os\ndef test_{0}():\n    open('{0}', 'w').write(os.environ.get({1!r}, ''))\n"
    (outside / "test_out.py").write_text(text.format("out", "WATCHDOG_TESTS_APART"))
    project.put(text.format("apart", "WATCHDOG_TESTS_APART"), "test_apart.py")
    project.put(text.format("runtime", "WATCHDOG_RUNTIME_DIR"), "test_runtime.py")

    code, said = project.run("--dist", "loadfile", "--tx", "popen", "--tx", f"2*{apart}")

    assert 0 == code, said
    assert "" == (project.folder / "out").read_text()
    if "WITHOUT process namespaces" not in said:
        assert "1" == (project.folder / "apart").read_text()
        assert "watchdog-tests-" in (project.folder / "runtime").read_text()
        assert not Path((project.folder / "runtime").read_text()).exists()


def test_without_unshare_workers_run_and_say_so(project, tmp_path):
    refusing = tmp_path / "bin"
    refusing.mkdir()
    (refusing / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (refusing / "unshare").chmod(0o755)
    apart = f"popen//python={TESTS.parent}/packaging/apart.sh {sys.executable}"
    project.put(GOOD)

    path = f"{refusing}:{os.environ['PATH']}"
    code, said = project.run("--dist", "loadfile", "--tx", "popen", "--tx", f"2*{apart}", PATH=path)

    assert 0 == code, said
    assert 1 == said.count("WITHOUT process namespaces")


@WAYS
def test_children_obey_ctrl_c_also_in_a_session_in_the_background(project, words):
    project.put(
        "import signal\ndef test_it():\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )

    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", *words],
        cwd=project.folder, env={**OUTSIDE, "PYTHONPATH": str(TESTS)}, check=False,
    )  # fmt: skip

    assert 0 == done.returncode
