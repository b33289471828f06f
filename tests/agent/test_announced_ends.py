"""A signal that announces the end of a process lets its training save first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.waiting import until

from watchdog_app.base import time_limit

PROGRAM = Path(__file__).parent / "programs" / "announced.py"
# A signal that waits for the deadline is a failure: the program does not end in time.
LONG_GRACE_S, PATIENCE_S = 500.0, 60.0
TERM = -signal.SIGTERM


class Ended:
    """A program that got a signal when it was ready."""

    def __init__(
        self,
        folder: Path,
        case: str,
        number: int,
        *,
        grace_s: float = LONG_GRACE_S,
        before: Sequence[str] = (),
        stop: Callable[[subprocess.Popen[str], int], None] = subprocess.Popen.send_signal,
    ) -> None:
        env = dict(
            os.environ,
            WATCHDOG_RUNTIME_DIR=str(folder / "run"),
            WATCHDOG_STATE_DIR=str(folder / "state"),
            WATCHDOG_AGENT_STRICT="1",
            WATCHDOG_AGENT_GRACE_S=str(grace_s),
        )
        self.folder = folder
        with subprocess.Popen(
            [*before, sys.executable, str(PROGRAM), str(folder / "rescues"), case],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        ) as process:
            self.said = []
            for line in process.stdout:
                self.said.append(line.strip())
                if line == "ready\n":
                    break
            stop(process, number)
            try:
                rest, self.errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
            self.said += rest.split("\n")
            self.status = process.returncode

    def saved(self) -> bool:
        return bool(rescues(self.folder))


def rescues(folder: Path) -> list[Path]:
    return sorted((folder / "rescues").glob("rescue-*"))


@pytest.mark.parametrize(
    ("case", "number"),
    [
        ("training", signal.SIGTERM),
        ("training", signal.SIGHUP),
        ("asked", signal.SIGUSR1),
        ("in_thread", signal.SIGTERM),
        ("in_c_with_gil", signal.SIGTERM),
        ("asyncio", signal.SIGTERM),
        ("under_pytest", signal.SIGTERM),
    ],
)
def test_a_training_is_saved_and_the_signal_ends_it(tmp_path: Path, case: str, number: int) -> None:
    ended = Ended(tmp_path, case, number)

    assert ended.saved(), ended.errors
    assert ended.status == -number
    assert f"{signal.Signals(number).name}: saved at step" in ended.errors


def test_a_thread_that_runs_no_python_may_take_the_signal(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "in_thread_of_c", signal.SIGTERM, stop=lambda *_: None)

    assert ended.saved(), ended.errors
    assert ended.status == TERM


def test_a_save_that_fails_promises_no_resume(tmp_path: Path) -> None:
    def stop(process: subprocess.Popen[str], number: int) -> None:
        (tmp_path / "rescues").rename(tmp_path / "away")
        (tmp_path / "rescues").touch()
        process.send_signal(number)

    ended = Ended(tmp_path, "training", signal.SIGTERM, stop=stop)

    assert "SIGTERM: not saved. The reason is above." in ended.errors
    assert ended.status == TERM


def test_two_trainings_of_one_thread_are_both_saved(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "two_in_turn", signal.SIGTERM)

    assert len(rescues(tmp_path)) == 2, ended.errors
    assert ended.status == TERM


@pytest.mark.parametrize("case", ["own_handler_before", "own_handler_later", "asyncio handles"])
def test_a_handler_of_the_program_is_called_at_once_instead(tmp_path: Path, case: str) -> None:
    ended = Ended(tmp_path, case, signal.SIGTERM)

    assert "own handler" in ended.said
    assert ended.status == 7
    assert not ended.saved()


def test_a_signal_that_the_program_ignores_or_waits_for_stays_so(tmp_path: Path) -> None:
    ignored = Ended(tmp_path / "ignored", "ignored", signal.SIGTERM)
    waited = Ended(tmp_path / "waited", "blocked", signal.SIGTERM)

    assert "trained" in ignored.said
    assert ignored.status == 0
    assert {"handled: 0", "waited for 15"} <= {*waited.said}
    assert waited.status == 0


def test_a_call_without_the_gil_is_ended_at_the_deadline(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "in_c", signal.SIGTERM, grace_s=0.5)

    assert ended.status == TERM
    assert not ended.saved()
    told = "no step ended within 0.5 s (agent.grace_s); if its loop has ended, call rescue.finish()"
    assert f"SIGTERM: not saved: {told}" in ended.errors


def test_children_end_at_once_and_do_not_end_their_parent(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "children", signal.SIGTERM)

    assert f"children ended with {{{TERM}}}" in ended.said
    assert ended.saved()
    assert ended.status == TERM


def test_workers_of_multiprocessing_end_at_once_when_they_are_terminated(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "workers", signal.SIGTERM)

    codes = dict.fromkeys(("fork", "spawn", "forkserver"), TERM)
    assert f"workers ended with {codes}" in ended.said
    assert ended.saved()
    assert ended.status == TERM


def test_a_wakeup_file_of_the_program_stays_its_own(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "wakeup_fd", signal.SIGTERM)

    assert f"woken by [{int(signal.SIGUSR2)}], the file stays: True" in ended.said
    assert ended.saved()
    assert ended.status == TERM


def test_a_program_that_leaves_while_the_signal_waits_has_the_status_of_the_signal(
    tmp_path: Path,
) -> None:
    ended = Ended(tmp_path, "exits", signal.SIGTERM)

    assert ended.status == TERM


def test_a_signal_ends_an_interpreter_that_is_about_to_end(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "left", signal.SIGTERM)

    assert ended.status == TERM


def test_after_the_training_nothing_is_handled(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "ended", signal.SIGTERM)

    assert "handled: 0" in ended.said
    assert ended.status == TERM


def test_a_training_that_ends_at_a_signal_leaves_no_handler(tmp_path: Path) -> None:
    ended = Ended(tmp_path, "ended_by_signal", signal.SIGTERM)

    assert "handled: 0" in ended.said


def test_pid_1_of_a_container_is_saved_each_time_and_continues(tmp_path: Path) -> None:
    """The kernel drops a signal to PID 1 that has no handler; a container's stop then kills it."""
    own_namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*own_namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")

    def stop(process: subprocess.Popen[str], _: int) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        training = int(children.read_text())
        for count in (1, 2):
            # A signal that comes between the save and the next handler is dropped.
            until(lambda: os.kill(training, signal.SIGTERM) or len(rescues(tmp_path)) == count)  # noqa: B023
        os.kill(training, signal.SIGKILL)

    ended = Ended(tmp_path, "training", signal.SIGTERM, before=own_namespace, stop=stop)

    first, second = rescues(tmp_path)
    assert first.name.split("-")[1] < second.name.split("-")[1]
    assert "continues until it is killed" in ended.errors


def test_a_training_is_saved_twice_before_its_time_is_over_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(time_limit.ENDS, str(time.time() + 10.0))

    def stop(process: subprocess.Popen[str], number: int) -> None:
        until(lambda: len(rescues(tmp_path)) == 2)
        process.send_signal(number)

    ended = Ended(tmp_path, "training", signal.SIGTERM, stop=stop)

    assert ended.errors.count("time limit at") == 2
    assert ended.errors.count("It continues until then.") == 2
    assert ended.errors.count("SIGTERM: saved at step") == 1
    assert ended.status == TERM


@pytest.mark.parametrize("leads", [True, False])
def test_exec_ends_a_program_in_time_without_a_group(tmp_path: Path, *, leads: bool) -> None:
    words = ["-m", "watchdog_app", "exec", "--no-guard", "--time", "0:00:01", "--", "sh", "-c"]
    script = "sleep 60 & echo $!; echo $WATCHDOG_ENDS_UNIX_S; exec sleep 60"
    started = subprocess.Popen(
        [sys.executable, *words, script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=leads,
    )
    child, ends = started.stdout.readline(), started.stdout.readline()
    assert started.wait(PATIENCE_S) == TERM
    assert time.time() >= float(ends)
    if not leads:
        os.kill(int(child), signal.SIGKILL)  # only its process group is ended with it
    assert started.stdout.read() == ""  # the child has ended
    started.stdout.close()


def test_exec_passes_the_signals_to_save_at_and_the_program_gets_them(tmp_path: Path) -> None:
    words = ["-m", "watchdog_app", "exec", "--no-guard", "--save-on", "usr2, SIGUSR1,", "--"]

    ended = Ended(tmp_path, "training", signal.SIGUSR2, before=[sys.executable, *words])

    assert ended.saved()
    assert ended.status == -signal.SIGUSR2
