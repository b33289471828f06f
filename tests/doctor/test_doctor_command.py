"""The command as a user runs it, and the code that runs the checks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from doctor_tree import Tree, fake_python, found
from support import schemas
from support.finished import finished
from support.waiting import until

from watchdog_app.base.errors import UsageError
from watchdog_app.base.linux.process import read_stat
from watchdog_app.base.text.terminal import Style, width
from watchdog_app.cli import doctor as command
from watchdog_app.cli.doctor import render
from watchdog_app.doctor import run as runner
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Report, Severity

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b[31mb\nc\udcff"


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "machine")


@pytest.fixture
def watchdog(tmp_path):
    """Run the real command with its own folders."""

    def run(*words: str, **env: str):
        folders = {
            "WATCHDOG_RUNTIME_DIR": str(tmp_path / "run"),
            "WATCHDOG_STATE_DIR": str(tmp_path / "state"),
            "WATCHDOG_CONFIG": str(tmp_path / "config.toml"),
        }
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        return finished(
            [sys.executable, "-m", "watchdog_app", "doctor", *words],
            env={**inherited, **folders, **env},
        )

    return run


@pytest.fixture(scope="module")
def validator():
    return schemas.validator("doctor")


def report(*findings: Finding) -> Report:
    return Report(findings, tuple(runner.GROUPS), 0.5, {"driver": None, "environments": []})


def fine(id_: str, text: str) -> Finding:
    return Finding(id_, Severity.OK, text)


ERROR = Finding(
    "driver.nouveau", Severity.ERROR, f"It holds {HOSTILE} the card.", "It ends it.",
    "Do this.", ("sudo " + "x" * 120, HOSTILE), (HOSTILE,),
)  # fmt: skip


def test_on_this_machine_the_json_is_as_documented(watchdog, validator):
    """Standard error stays empty; the exit code shows whether errors exist."""
    done = watchdog("--json", "--fast")

    told = json.loads(done.stdout)
    validator.validate(told)
    assert "" == done.stderr
    assert list(runner.GROUPS) == told["groups"]
    assert (1 if told["counts"]["error"] else 0) == done.returncode
    assert len(told["findings"]) == sum(told["counts"].values())


def test_the_text_is_for_a_terminal_of_80_columns(watchdog):
    """Only shell commands stay on one line."""
    done = watchdog("--fast", "--verbose", COLUMNS="80")

    assert done.stdout.startswith("watchdog doctor: ")
    assert "\x1b" not in done.stdout
    long = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert all(line.startswith(" " * 19) for line in long)


def test_a_broken_configuration_is_an_error_and_exit_code_1(watchdog, tmp_path):
    """The daemon would not start with it."""
    (tmp_path / "config.toml").write_text("[stages]\nwarn_s = -5\n")

    done = watchdog("--only", "watchdog", "--json")

    assert 1 == done.returncode
    errors = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "error"]
    assert ["watchdog.configuration"] == [one["id"] for one in errors]
    assert "warn_s" in errors[0]["what"]


@pytest.mark.parametrize(
    "words",
    [
        ("--python", "/no/such/python"),
        ("--only", "gpu"),
        ("--timeout", "0"),
    ],
)
def test_a_question_without_sense_is_a_usage_error(watchdog, words):
    """The message goes to standard error; standard output stays empty."""
    done = watchdog(*words)

    assert 2 == done.returncode
    assert "" == done.stdout
    assert done.stderr


def test_only_chooses_the_groups(watchdog):
    """The doctor does not run the other groups."""
    done = watchdog("--json", "--only", "storage", "--only", "memory")

    told = json.loads(done.stdout)
    assert ["memory", "storage"] == told["groups"]
    assert {"memory", "storage"} == {one["group"] for one in told["findings"]}


def test_an_environment_can_be_named(watchdog, tmp_path):
    """The doctor then checks only that environment."""
    python = fake_python(tmp_path / "venv/bin/python", {"dists": {"torch": "2.4.0"}})

    done = watchdog("--json", "--fast", "--only", "framework", "--python", str(tmp_path / "venv"))

    (one,) = json.loads(done.stdout)["environments"]
    assert (str(python), "--python", {"torch": "2.4.0"}) == (
        one["python"], one["source"], one["frameworks"],
    )  # fmt: skip


def test_the_commands_groups_are_the_runners():
    """The command lists the groups itself, so that its help needs no import."""
    assert tuple(runner.GROUPS) == command.GROUPS


def test_names_of_strangers_are_shown_and_not_obeyed():
    """Escape sequences, line ends and invalid bytes appear as text."""
    lines = render(report(ERROR), 80, Style(), verbose=True)

    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[31mb\\nc\\udcff" in line for line in lines)


@pytest.mark.parametrize("columns", [40, 80, 200, None])
def test_lines_keep_within_the_terminal(columns):
    """Shell commands stay whole, so that the user can copy them."""
    lines = render(report(ERROR, fine("memory.ram", "word " * 60)), columns, Style(), verbose=True)

    prose = [line for line in lines if not line.startswith(" " * 19)]
    assert all(width(line) <= (columns or 100) for line in prose)
    assert " " * 19 + "sudo " + "x" * 120 in lines


def test_what_is_fine_is_counted_and_shown_on_request():
    """The summary shows that the doctor ran those checks."""
    told = report(fine("memory.ram", "Enough."), fine("memory.swap", "There."))

    short = render(told, 80, Style(), verbose=False)
    long = render(told, 80, Style(), verbose=True)

    assert "2 answers without anything to do; --verbose shows them." == short[-1]
    assert any("Enough." in line for line in long)
    assert not any("Enough." in line for line in short)


def test_a_colour_never_stands_alone():
    """The words are the same with and without colour."""
    told = report(ERROR)
    plain = render(told, 80, Style(), verbose=False)
    colored = render(told, 80, Style(color=True), verbose=False)

    assert any("\x1b[" in line for line in colored)
    assert any("!! error" in line for line in plain)


def test_the_json_of_a_hostile_finding_is_valid(validator):
    """Strict JSON parsers refuse lone surrogates."""
    from watchdog_app.cli.output import dumps

    told = json.loads(dumps(command.as_json(report(ERROR), 1.7e9)))

    validator.validate({"schema_version": 1} | told)
    assert "driver.nouveau" == told["findings"][0]["id"]


# The code that runs the checks


def test_every_group_of_a_machine_of_nothing_is_answered(tmp_path):
    """In an empty root every file is missing, and no check raises."""
    tree = Tree.__new__(Tree)
    tree.root, tree.spaces, tree.shut = tmp_path / "empty", {}, set()
    tree.root.mkdir()

    told = runner.run(tree.facts(fast=True))

    assert not [one for one in told.findings if one.id.endswith(".unchecked")]
    assert found(told.findings)


def test_the_worst_comes_first_within_each_group(tree):
    """The groups keep their order."""
    tree.meminfo(SwapTotal=0, SwapFree=0).write("proc/sys/vm/overcommit_memory", "2")
    tree.gpu()

    findings = runner.run(tree.facts(fast=True)).findings

    groups = [one.group for one in findings]
    assert sorted(groups, key=list(runner.GROUPS).index) == groups
    memory = [one.severity for one in findings if one.group == "memory"]
    assert sorted(memory, key=list(Severity).index) == memory
    assert Severity.ERROR is memory[0]


def test_a_disk_that_never_answers_costs_one_finding(tree):
    """The home folder is on a network server that does not answer."""
    gate = threading.Event()

    def space(path):
        gate.wait(100)
        raise OSError("late")

    begun = time.monotonic()
    facts = tree.facts(fast=True, timeout_s=0.5, space=space)
    try:
        told = found(runner.run(facts, grace_s=1.0).findings)
    finally:
        gate.set()

    assert not told["storage.unchecked"].checked
    assert "memory.ram" in told
    assert time.monotonic() - begun < 60


def test_a_signal_to_another_thread_interrupts_the_wait(tree):
    """The main thread runs the handler, but only a signal of its own interrupts its wait."""
    gate, waited = threading.Event(), []

    def space(path):
        if not gate.wait(0.5):  # the main thread waits for this check by then
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        waited.append(gate.wait(10))
        raise OSError("late")

    def interrupted(number, frame):
        raise SystemExit(number)

    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        with pytest.raises(SystemExit):
            runner.run(tree.facts(fast=True, space=space), ["storage"])
        assert not waited
    finally:
        gate.set()
        signal.signal(signal.SIGUSR1, before)


def test_a_fault_of_our_own_is_one_finding(tree):
    """Earlier findings of the same check remain."""

    def limits():
        raise RuntimeError("broken")

    told = found(runner.run(tree.facts(fast=True, limits=limits)).findings)

    assert "RuntimeError: broken" in told["memory.unchecked"].what
    assert "memory.ram" in told


def test_a_group_that_is_not_there_is_a_usage_error(tree):
    """The message lists the valid groups."""
    with pytest.raises(UsageError, match="driver, framework"):
        runner.run(tree.facts(), ["gpus"])


def test_a_wrong_python_is_a_usage_error_and_no_finding(tree):
    """A thread raises the error, and the command reports it."""
    with pytest.raises(UsageError):
        runner.run(tree.facts(python="/no/such/python"), ["framework"])


def test_the_driver_is_asked_once_for_all_who_want_to_know(tree, tmp_path):
    """Several checks use the answer in parallel."""
    tree.gpu()
    log = tmp_path / "asked"
    code = f"open({str(log)!r}, 'a').write('x')"

    runner.run(Facts(tree.machine(fast=True), (sys.executable, "-c", code)))

    assert "x" == log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_look_leaves_no_child_behind(tmp_path, number):
    """A framework's import could otherwise run for a minute with a GiB of memory."""
    pid_file = tmp_path / "pid"
    python = fake_python(
        tmp_path / "venv/bin/python",
        {"dists": {"torch": "2.13.0", "tensorflow": "2.21.0"}},
        tensorflow=f"echo $$ >> {pid_file}; sleep 600",
        torch=f"echo $$ >> {pid_file}; sleep 600",
    )
    words = ["-m", "watchdog_app", "doctor", "--only", "framework", "--python", str(python)]
    doctor = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        if pid_file.exists() and pid_file.read_text().endswith("\n"):
            break
        time.sleep(0.05)

    doctor.send_signal(number)
    _, errors = doctor.communicate(timeout=30)

    assert 128 + number == doctor.returncode
    assert "Traceback" not in errors
    (pid,) = pid_file.read_text().split()
    until(lambda: (stat := read_stat(pid)) is None or stat.has_ended, f"{pid} is still there")
