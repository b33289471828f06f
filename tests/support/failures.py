"""
A failed test fails the run, unless a file lists it as flaky.

tests/flaky.toml names tests whose failure does not fail the run, each with its cause and the date
of its entry. After 14 days an entry fails the run, whether its test passes or not. With
`--repeat-failures` each failed test is then repeated alone, for information only.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from support.workers import is_outside

MOST_ENTRIES = 5
LASTS_DAYS = 14
REPEATS = 5
MOST_REPEATED = 10  # tests; a larger number has one cause
REPEATS_TAKE_S = 600.0  # for all of them together
REPEATING = "WATCHDOG_TESTSREPEATING"
_APART = Path(__file__).parents[2] / "packaging" / "apart.sh"


class Entry(NamedTuple):
    """A known flaky test."""

    test: str
    cause: str
    date: datetime.date

    def days_left(self, today: datetime.date) -> int:
        """Days in which its failure does not fail the run; negative once the entry has expired."""
        return LASTS_DAYS - (today - self.date).days


def read(path: Path, today: datetime.date) -> list[Entry]:
    """
    Return the entries of a file; an empty list if the file is missing.

    Raises:
        pytest.UsageError: the file is damaged, or holds more than MOST_ENTRIES.
    """
    if not path.exists():
        return []
    try:
        table = tomllib.loads(path.read_text())
        found = [Entry(**each) for each in table.pop("flaky", [])]
        fault = f"unknown keys: {', '.join(table)}" if table else _fault(found, today)
    except (AttributeError, TypeError, ValueError) as error:
        fault = str(error)
    if fault:
        raise pytest.UsageError(f"{path}: {fault}")
    return found


def _fault(entries: list[Entry], today: datetime.date) -> str | None:
    """The reason why these entries are not accepted; None if they are."""
    if len(entries) > MOST_ENTRIES:
        return f"{len(entries)} entries; at most {MOST_ENTRIES} are allowed"
    if len({each.test for each in entries}) < len(entries):
        return "a test is listed twice"
    for each in entries:
        if not (isinstance(each.test, str) and "::" in each.test):
            return f"{each.test}: test must be the id of one test: tests/FILE.py::NAME"
        if not (isinstance(each.cause, str) and each.cause.strip()):
            return f"{each.test}: cause must not be empty"
        if type(each.date) is not datetime.date or each.date > today:
            return f"{each.test}: date must be the day of the entry: 2026-01-31"
    return None


class Failures:
    """The failures of this session, and the known flaky tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._today = datetime.datetime.now(tz=datetime.UTC).date()
        self._entries = read(config.rootpath / "tests" / "flaky.toml", self._today)
        self._failed: dict[str, str] = {}  # test or file -> worker
        self._reports = 0
        self._seen: set[str] = set()
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seen.add(report.nodeid)
        self._note(report, getattr(getattr(report, "node", None), "gateway", None))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report, None)

    def _note(self, report: pytest.CollectReport | pytest.TestReport, gateway: object) -> None:
        if report.failed and not hasattr(report, "wasxfail"):
            self._reports += 1
            self._failed.setdefault(report.nodeid, str(getattr(gateway, "id", "main")))

    @property
    def _expired(self) -> list[Entry]:
        return [each for each in self._entries if each.days_left(self._today) < 0]

    @property
    def _forgiven(self) -> set[str]:
        return {each.test for each in self._entries if each not in self._expired}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        status = session.exitstatus
        known = self._forgiven.issuperset(self._failed) and session.testsfailed == self._reports
        if status == pytest.ExitCode.TESTS_FAILED and self._failed and known:
            session.exitstatus = status = pytest.ExitCode.OK
        if status == pytest.ExitCode.OK and self._expired:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._failed and self._config.getoption("repeat_failures"):
            terminalreporter.section("failed tests, each repeated alone (for information only)")
            for line in self._repeated():
                terminalreporter.write_line(line)
        if self._entries:
            terminalreporter.section(
                f"known flaky tests in tests/flaky.toml: {len(self._entries)} of {MOST_ENTRIES}"
            )
            for each in self._entries:
                terminalreporter.write_line(self._line(each))

    def _line(self, entry: Entry) -> str:
        if entry.test in self._failed:
            result = "failed"
        else:
            result = "passed" if entry.test in self._seen else "was not run"
        left = entry.days_left(self._today)
        until = f"{left} days left" if left >= 0 else "EXPIRED, so the run fails"
        return f"{entry.test} {result}; {until}; since {entry.date}: {entry.cause}"

    def _repeated(self) -> list[str]:
        """Repeat the failed tests; one line per test."""
        tests = [each for each in self._failed if "::" in each]
        if len(tests) > MOST_REPEATED:
            return [f"{len(tests)} failed: more than {MOST_REPEATED}, so none is repeated"]
        end = time.monotonic() + REPEATS_TAKE_S
        record = self._config.rootpath / "build" / "tests" / "failures.jsonl"
        lines = []
        for test in tests:
            load = os.getloadavg()
            failed = done = 0
            while done < REPEATS and time.monotonic() < end:
                outcome = self._alone(test, end - time.monotonic())
                if outcome is None:
                    break
                failed += not outcome
                done += 1
            text = f"failed, then {failed} of {done}"
            if done:
                text += {0: " (a race, or the machine)", done: " (broken)"}.get(failed, " (flaky)")
            else:
                text = "failed, not repeated: no time left"
            lines.append(f"{test}: {text}")
            entry = {
                "test": test, "time": datetime.datetime.now(tz=datetime.UTC).isoformat(),
                "failed_again": failed, "repeats": done, "worker": self._failed[test],
                "load": load, "seed": self._config.getoption("seed"),
                "listed": test in self._forgiven,
            }  # fmt: skip
            with contextlib.suppress(OSError):
                record.parent.mkdir(parents=True, exist_ok=True)
                with record.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
        return lines

    def _alone(self, test: str, timeout_s: float) -> bool | None:
        """Whether a test passes when run alone; None after a timeout."""
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", test]
        words.append(f"--seed={self._config.getoption('seed')}")
        if not is_outside(test):
            words.insert(0, str(_APART))
        env = {**os.environ, REPEATING: "1"}
        try:
            done = subprocess.run(
                words, env=env, cwd=self._config.rootpath, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        return done.returncode == pytest.ExitCode.OK


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("watchdog")
    group.addoption(
        "--repeat-failures", action="store_true",
        help="repeat each failed test alone, for information; the exit code does not change",
    )  # fmt: skip
    group.addoption("--seed", type=int, help="of `random`, before each test; printed by each run")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    if config.option.seed is None:
        config.option.seed = random.randrange(2**31)
    if not os.environ.get(REPEATING) and not config.option.collectonly:
        config.pluginmanager.register(Failures(config), "watchdog-failures")


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.getoption('seed')} (repeat with --seed)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(f"{item.config.getoption('seed')} {item.nodeid}")
