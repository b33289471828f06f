"""
The course of the demo: a training leaks, watchdog warns and saves, the kernel kills, it resumes.

All printed facts come from outside: the daemon's status, which any client can get, the training's
exit status, and the losses that the script wrote.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB, eta, format_bytes, format_rate
from watchdog_app.client.client import Client
from watchdog_app.demo.sandbox import Sandbox
from watchdog_app.guard.cgroup import Cgroup

# Added to the RSS of the same training without the bug. RSS includes libraries that the kernel
# does not charge to the group. So the leak has about twice as much: some 650 of a thousand steps.
HEADROOM_BYTES = 300 * MIB
_REPORT_TIMEOUT_S = 20.0  # for the daemon's report of a death, which takes about a second
_TIMEOUT_S = 300.0  # for one phase; a training that hangs ends the demo with its log


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one step, as exact hexadecimal, and the time it was written."""

    exact: str
    unix_s: float


def read_losses(path: str) -> dict[int, Loss]:
    """
    Read the losses by step; a step that ran again after a rescue has its last loss.

    Leaves out a last line that a kill cut off. A missing file has no losses.
    """
    found: dict[int, Loss] = {}
    with suppress(FileNotFoundError), open(path) as file:
        for line in file:
            if not line.endswith("\n"):
                continue
            step, exact, _, unix_s = line.split(",")
            found[int(step)] = Loss(exact, float(unix_s))
    return found


def different_steps(reference: dict[int, Loss], rescued: dict[int, Loss]) -> list[int]:
    """Return the steps of an uninterrupted run that a rescued run lacks or computed otherwise."""
    return [
        step
        for step, loss in sorted(reference.items())
        if step not in rescued or rescued[step].exact != loss.exact
    ]


@dataclass(slots=True)
class Report:
    """The results of the demo, which `--json` prints; units in the names."""

    how: str = ""
    limit_bytes: int = 0
    warned_before_death_s: float | None = None
    saved_before_death_s: float | None = None
    save_seconds: float | None = None
    rescue_bytes: int | None = None
    rescue_step: int | None = None
    killed_step: int | None = None
    steps_lost: int | None = None
    starts: int = 0
    steps: int = 0
    compared: int = 0
    identical: bool = False
    seconds: float = 0.0


class Story:
    """One run of the demo in a sandbox. `print_line` is called with each line."""

    def __init__(self, sandbox: Sandbox, print_line: Callable[[str], None]) -> None:
        self._sandbox = sandbox
        self._print = print_line
        self._began = time.monotonic()
        self.report = Report()
        self._seen: set[str] = set()

    def run(self) -> Report:
        """
        Run the whole demo.

        Raises:
            WatchdogError: a process of the demo failed in an unexpected way.
        """
        report = self.report
        client = self._sandbox.start_daemon()
        self._print_line(f"a daemon of the demo's own watches (pid {client.daemon_pid})")
        reference = self._sandbox.train(
            "reference.log", "--losses", "reference.csv", "--rescues", "none",
            "--keep-mib", "0", nice=10,
        )  # fmt: skip
        self._print_line("an uninterrupted reference run without the bug starts")
        limit_bytes = self._baseline(reference, client) + HEADROOM_BYTES
        report.limit_bytes = limit_bytes
        while True:
            report.starts += 1
            group = self._sandbox.limit(limit_bytes)
            report.how = group.kind
            self._print_line(
                f"train.py starts inside a real {group.kind} of {format_bytes(limit_bytes)}; "
                "it keeps 1 MiB of every batch"
                if report.starts == 1
                else "the same command is typed again: python train.py"
            )
            child = self._sandbox.train("train.log", group=group)
            status = self._follow(client, child)
            if status == 0:
                break
            self._report_death(child.pid, status, group, client)
            group.close()
            if report.starts > 4:
                raise self._failure("The training was killed five times", "train.log")
        self._wait_for(reference, "the reference run")
        self._compare_losses()
        client.close()
        report.seconds = time.monotonic() - self._began
        return report

    def _baseline(self, reference: subprocess.Popen[bytes], client: Client) -> int:
        """Return the RAM of the same training without the bug, after its first steps."""
        deadline = time.monotonic() + _TIMEOUT_S
        while len(read_losses(self._path("reference.csv"))) < 5:
            if reference.poll() is not None or time.monotonic() > deadline:
                raise self._failure("The reference run failed", "reference.log")
            time.sleep(0.1)
        while time.monotonic() < deadline:
            for task in client.call("status")["tasks"]:
                if task["pid"] == reference.pid:
                    return int(task["ram_bytes"])
            time.sleep(0.2)
        raise self._failure("The daemon does not see the reference run", "daemon.log")

    def _follow(self, client: Client, child: subprocess.Popen[bytes]) -> int:
        """Print what the daemon shows of the training until it ends; return its exit status."""
        next_line = time.monotonic()
        deadline = time.monotonic() + _TIMEOUT_S
        while child.poll() is None:
            if time.monotonic() > deadline:
                raise self._failure("The training hangs", "train.log")
            status = client.call("status")
            task = next((t for t in status["tasks"] if t["pid"] == child.pid), None)
            if task is not None:
                self._report_events(task, status)
                if time.monotonic() >= next_line and (task["agent"] or {}).get("step"):
                    next_line = time.monotonic() + 3.0
                    self._print_line(self._progress_line(task, status))
            time.sleep(0.1)
        return child.returncode

    def _progress_line(self, task: dict[str, Any], status: dict[str, Any]) -> str:
        agent = task["agent"]
        trend = format_rate(task["slope_bytes_per_s"])
        text = f"  step {agent['step']}"
        if agent["loss"] is not None:
            text += f", loss {agent['loss']:.3f}"
        group = next((one for one in status["resources"] if task["pid"] in one["tasks"]
                      and one["kind"] in ("cgroup", "guard")), None)  # fmt: skip
        if group:
            text += f", {format_bytes(group['used'])} of {format_bytes(group['limit'])}"
        text += f", {trend}"
        if task["eta_s"] is not None:
            text += f", full in about {eta(task['eta_s'], task['eta_low_s'], task['eta_high_s'])}"
        return text

    def _report_events(self, task: dict[str, Any], status: dict[str, Any]) -> None:
        """Print each stage once a run, and each rescue."""
        run = self.report.starts
        # Ignore incidents of other programs on this machine.
        own = {one["label"] for one in status["resources"] if task["pid"] in one["tasks"]}
        for incident in status["incidents"]:
            if incident["label"] not in own:
                continue
            mark = f"{run}:{incident['id']}:{incident['stage']}"
            if mark in self._seen or incident["stage"] in ("ok", "watch"):
                continue
            self._seen.add(mark)
            off = " (pauses are off in this demo)" if incident["stage"] == "pause" else ""
            self._print_line(
                f"WATCHDOG {incident['stage']}{off}: {incident['label']}: {incident['reason']}"
            )
        rescue = (task["agent"] or {}).get("rescue")
        if rescue and rescue["path"] not in self._seen and not rescue["seconds"]:
            self._seen.add(rescue["path"])  # saved between our last status and the kill
        if rescue and rescue["path"] not in self._seen:
            self._seen.add(rescue["path"])
            self._print_line(
                f"WATCHDOG saved step {rescue['step']}: {format_bytes(rescue['bytes'])} "
                f"in {rescue['seconds']:.2f} s"
            )

    def _report_death(self, pid: int, status: int, group: Cgroup, client: Client) -> None:
        """Print the cause of death, its cost, and the daemon's explanation."""
        report = self.report
        if status > 0 and group.kind != "address space limit":
            raise self._failure("The training failed before any memory ran out", "train.log")
        written = read_losses(self._path("losses.csv"))
        last = max(written, default=0)
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        kills = group.oom_kills()
        counted = f", the group counts {kills} kill for memory" if kills else ""
        self._print_line(f"KILLED at step {last} ({cause}{counted})")
        deadline = time.monotonic() + _REPORT_TIMEOUT_S
        mine: list[dict[str, Any]] = []
        while time.monotonic() < deadline and not any(each["kind"] == "exit" for each in mine):
            time.sleep(0.2)
            entries = client.call("history", limit=1000, kinds=["decision", "exit"])["entries"]
            mine = [entry for entry in entries if entry.get("pid") == pid]
        death = next((entry for entry in mine if entry["kind"] == "exit"), None)
        if not written or death is None or not death["rescue"]:
            raise self._failure("The training died before a rescue was made", "daemon.log")
        if report.starts == 1:
            self._fill_death_figures(last, written[last].unix_s, mine, death["rescue"])
        self._print_line(f"WATCHDOG {death['text']}")

    def _fill_death_figures(
        self, last: int, died_unix_s: float, entries: list[Any], rescue: dict[str, Any]
    ) -> None:
        """Fill in the figures from the first run, which started without a rescue."""
        report = self.report
        report.killed_step = last
        report.rescue_step = rescue["step"]
        report.rescue_bytes = rescue["bytes"]
        report.save_seconds = rescue["seconds"]
        # The rescue can be of the same step as the last written loss.
        report.steps_lost = max(0, last - rescue["step"])
        report.saved_before_death_s = max(0.0, died_unix_s - rescue["saved_unix_s"])
        warned = [each["unix_s"] for each in entries if each.get("decision_kind") == "notify"]
        if warned:
            report.warned_before_death_s = max(0.0, died_unix_s - min(warned))

    def _compare_losses(self) -> None:
        reference = read_losses(self._path("reference.csv"))
        rescued = read_losses(self._path("losses.csv"))
        different = different_steps(reference, rescued)
        self.report.steps = len(reference)
        self.report.compared = len(reference.keys() & rescued.keys())
        self.report.identical = bool(reference) and not different
        if self.report.identical:
            self._print_line(
                f"finished: {len(reference)} of {len(reference)} losses are identical, bit "
                "for bit, to the uninterrupted run"
            )
        else:
            self._print_line(f"DIFFERENT from the reference at steps {different[:5]}")

    def _wait_for(self, child: subprocess.Popen[bytes], what: str) -> None:
        if child.poll() is None:
            self._print_line(f"waiting for {what} to finish, to compare")
        try:
            child.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"{what} hangs", "reference.log") from None

    def _failure(self, what: str, log: str) -> WatchdogError:
        return WatchdogError(f"{what}. {log} ends:\n{self._sandbox.tail(log)}")

    def _path(self, name: str) -> str:
        return f"{self._sandbox.folder}/{name}"

    def _print_line(self, text: str) -> None:
        self._print(f"{time.monotonic() - self._began:6.1f} s  {text}")
