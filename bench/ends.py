"""
Measure announced ends: what is saved, how long the end takes, and whether a resume is exact.

    python bench/ends.py [--runs 3] [--ends kill,hangup] [--trainings fit,loop]
                         [--json FILE]

Each run starts a training of 120 steps in 9.6 s (tests/e2e/programs), ends it at a random moment
of its first two thirds and runs it again to its end. Two rows have longer steps. `fit` is a Keras
fit, `loop` a PyTorch loop, `notebook` that loop in a cell of a Jupyter kernel. One run more,
without the agent, gives the exit status that the end has there.

Columns, for each training
  saved    runs that saved the last step that was trained, of all runs; as PID 1, which trains on
           until it is killed, a step after the announcement
  s        seconds from the end's announcement to the end of the process, median (maximum); for
           `exec --time` from the end of its time
  status   whether each exit status was that without the agent
  exact    runs whose losses are identical, bit for bit, to an uninterrupted run without the agent

A training that ended before its first step is run again. Needs root for the rows `container` and
`pid1`, and writable memory groups for those of `watchdog exec`.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "e2e" / "programs"
PROGRAM = {"fit": "fit.py", "loop": "torch_loop.py", "notebook": "torch_loop.py"}
WATCHDOG = [sys.executable, "-m", "watchdog_app"]
EPOCHS, STEPS, STEP_S = 2, 60, 0.08
PATIENCE_S = 180.0
KILLED_AFTER_S = 10.0  # by a container's stop, after SIGTERM
CELL = """
import sys
sys.path.insert(0, {folder!r})
sys.argv = {argv!r}
exec(compile(open({program!r}).read(), {program!r}, "exec"))
"""


@dataclass
class Outcome:
    """One run."""

    saved: bool
    seconds: float
    status: int
    exact: bool


class Training:
    """One training in a folder of its own, which may be ended and run again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.out = folder / "losses.csv"
        self.terminal = -1
        self.manager = None
        folder.mkdir()

    def start(
        self, before: list[str], *words: str, terminal: bool = False, step_s: float = STEP_S
    ) -> None:
        """Start it; `before` are the words of a program that starts it, `step_s` a step's time."""
        program = str(PROGRAMS / PROGRAM[self.kind])
        given = ["--out", str(self.out), "--rescues", str(self.folder / "rescues"), *words]
        given += ["--epochs", str(EPOCHS), "--steps", str(STEPS)]
        names = ("RUNTIME_DIR", "STATE_DIR")
        env = dict(os.environ, **{f"WATCHDOG_{each}": str(self.folder / each) for each in names})
        env["TF_NUM_INTRAOP_THREADS"] = "1"
        # In the environment it does not make a run that is faster another training.
        env["TRAINING_WORDS"] = f"--step-s {step_s}"
        with open(self.folder / "errors", "ab") as errors:
            if self.kind == "notebook":
                self._start_kernel(before, [program, *given], env, errors)
                return
            error_end: object = errors
            if terminal:
                self.terminal, error_end = pty.openpty()
            self.process = subprocess.Popen(
                [*before, sys.executable, program, *given],
                cwd=self.folder, env=env, stdin=error_end if terminal else subprocess.DEVNULL,
                stderr=errors, start_new_session=not terminal,
            )  # fmt: skip
            if terminal:
                os.close(error_end)  # type: ignore[arg-type]

    def _start_kernel(self, before: list[str], argv: list[str], env: dict, errors: object) -> None:
        from jupyter_client.manager import KernelManager

        # The user decides to resume what was saved when the kernel ended.
        env = {**env, "WATCHDOG_AGENT_RESUME": "force", "JUPYTER_RUNTIME_DIR": str(self.folder)}
        self.manager = KernelManager()
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager.kernel_spec.argv = [*before, *launch]
        self.manager.start_kernel(env=env, cwd=str(self.folder), stderr=errors, stdout=errors)
        self.process = self.manager.provisioner.process
        client = self.manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(PATIENCE_S)
        self.client = client
        self.message = client.execute(CELL.format(folder=str(PROGRAMS), argv=argv, program=argv[0]))

    @property
    def pid(self) -> int:
        """The process that trains: the only descendant without children, or the started one."""
        pid = self.process.pid
        while True:
            path = Path(f"/proc/{pid}/task/{pid}/children")
            children = [int(each) for each in path.read_text().split()]
            if len(children) != 1:
                return pid
            pid = children[0]

    def lines(self) -> list[str]:
        """Step and loss of each trained step."""
        with suppress(FileNotFoundError):
            return [line.rsplit(",", 2)[0] for line in self.out.read_text().splitlines()]
        return []

    def until_step(self, step: int) -> None:
        """Wait until a step has ended."""
        end = time.monotonic() + PATIENCE_S
        while len(self.lines()) < step and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)

    def finish(self) -> int:
        """Wait for the end by itself; of a kernel, for the end of its cell."""
        if self.manager is not None:
            answer = self.client.get_shell_msg(timeout=PATIENCE_S)
            while answer["parent_header"]["msg_id"] != self.message:
                answer = self.client.get_shell_msg(timeout=PATIENCE_S)
            self.close()
            return 0
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End what is left of it."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.manager is not None:
            self.client.stop_channels()
            self.manager.cleanup_connection_file()
            self.manager = None
        if self.terminal >= 0:
            with suppress(OSError):
                os.close(self.terminal)
            self.terminal = -1

    def saved_step(self) -> int:
        """The step of the newest rescue; 0 without one."""
        names = (self.folder / "rescues").glob("rescue-*")
        return max((int(each.name.split("-")[1]) for each in names), default=0)

    def final(self) -> list[str]:
        """The digest of the trained values, where the program writes one."""
        return [each.read_text() for each in self.folder.glob("*.final")]


def _send(name: str) -> Callable[[Training], None]:
    return lambda training: os.kill(training.pid, signal.Signals[f"SIG{name}"])


def _stop_container(training: Training) -> None:
    pid = training.pid
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + KILLED_AFTER_S
    while time.monotonic() < end and training.process.poll() is None:
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end_by_limit(training: Training) -> None:
    names = ("RUNTIME_DIR", "STATE_DIR")
    env = {**os.environ, **{f"WATCHDOG_{each}": str(training.folder / each) for each in names}}
    words = [*WATCHDOG, "limit", str(training.process.pid), "--end"]
    subprocess.run(words, env=env, check=False, capture_output=True)


def _restart(training: Training) -> None:
    training.manager.shutdown_kernel(restart=True)


def _shut_down(training: Training) -> None:
    training.manager.shutdown_kernel()


@dataclass(frozen=True)
class End:
    """A kind of end."""

    name: str
    text: str
    act: Callable[[Training], None]
    before: list[str] = field(default_factory=list)
    kinds: tuple[str, ...] = ("fit", "loop", "notebook")
    terminal: bool = False
    step_s: float = STEP_S
    after_s: float | None = None  # it comes so long after the start, not at a random step


def _exec(*words: str) -> list[str]:
    return [*WATCHDOG, "exec", *words, "--"]


_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
_SCRIPTS = ("fit", "loop")
ENDS = (
    End("kill", "`kill PID` (SIGTERM)", _send("TERM")),
    End("hangup", "`kill -HUP PID`", _send("HUP")),
    End("terminal", "its terminal is closed", lambda each: os.close(each.terminal),
        ["setsid", "--ctty"], kinds=_SCRIPTS, terminal=True),
    End("group", "SIGTERM to its process group",
        lambda each: os.killpg(each.process.pid, signal.SIGTERM)),
    End("timeout", "`timeout` ends it", lambda each: os.kill(each.process.pid, signal.SIGTERM),
        ["timeout", "600"]),
    End("usr1", "`exec --save-on USR1`, SIGUSR1", _send("USR1"),
        _exec("--no-guard", "--save-on", "USR1")),
    End("xcpu", "`exec --save-on XCPU`, SIGXCPU", _send("XCPU"),
        _exec("--no-guard", "--save-on", "XCPU")),
    End("quit", "`exec --save-on QUIT`, Ctrl-\\", _send("QUIT"),
        _exec("--no-guard", "--save-on", "QUIT")),
    End("guard", "`watchdog exec`, `kill PID`", _send("TERM"), _exec("--limit", "3G")),
    End("limit", "`watchdog limit PID --end`", _end_by_limit, _exec("--limit", "3G")),
    End("time", "`exec --time 30s`", lambda _: None, _exec("--time", "30s"),
        step_s=0.3, after_s=30.0),
    End("container", "container stop, not as PID 1", _stop_container,
        [*_NAMESPACE, "sh", "-c", '"$@"; exit $?', "sh"], kinds=_SCRIPTS),
    End("pid1", "container stop, as PID 1", _stop_container, _NAMESPACE, kinds=_SCRIPTS,
        step_s=0.3),
    End("restart", "Jupyter restarts the kernel", _restart, kinds=("notebook",)),
    End("shutdown", "Jupyter shuts the kernel down", _shut_down, kinds=("notebook",)),
)  # fmt: skip


def ended(end: End, training: Training, *words: str) -> tuple[int, float, int]:
    """
    Run it and end it at a random moment.

    Returns:
        The last step before the announcement, the seconds of the end, and the exit status.
    """
    # `watchdog exec` brings the agent by this variable.
    before = [*end.before, *(["env", "-u", "PYTHONPATH"] if "--no-agent" in words else [])]
    started = time.monotonic()
    training.start(before, *words, terminal=end.terminal, step_s=end.step_s)
    try:
        if end.after_s is None:
            training.until_step(random.randint(3, EPOCHS * STEPS * 2 // 3))
        else:
            time.sleep(max(0.0, started + end.after_s - time.monotonic()))
        step, began = len(training.lines()), time.monotonic()
        with suppress(OSError):  # it has ended
            end.act(training)
        status = training.process.wait(PATIENCE_S)
        return step, time.monotonic() - began, status
    finally:
        training.close()


def measured(
    end: End, kind: str, folder: Path, expected: tuple[list[str], list[str]]
) -> Outcome | None:
    """One run: end it, run it again, compare. None: it ended before its first step."""
    training = Training(kind, folder)
    announced, seconds, status = ended(end, training)
    last = len(training.lines())
    if last == 0:
        return None
    step = training.saved_step()
    saved = step == last or (end.name == "pid1" and announced <= step < last)
    training.start([], step_s=0.0)
    training.finish()
    # A step that was made twice has the same loss both times.
    lines, final = sorted(set(training.lines())), training.final()
    exact = 0 < step < EPOCHS * STEPS and (lines, final) == (sorted(expected[0]), expected[1])
    return Outcome(saved, seconds, status, exact)


def cell(outcomes: list[Outcome], usual: int) -> str:
    """The cells of one training in a line of the table."""
    count, times = len(outcomes), [each.seconds for each in outcomes]
    same = all(each.status == usual for each in outcomes)
    return (
        f"{sum(each.saved for each in outcomes)} of {count} | "
        f"{statistics.median(times):.2f} ({max(times):.2f}) | {'same' if same else 'other'} | "
        f"{sum(each.exact for each in outcomes)} of {count}"
    )


def main() -> None:
    """Print a line of the Markdown table for each end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ends", default=",".join(each.name for each in ENDS))
    parser.add_argument("--trainings", default=",".join(PROGRAM))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds, found = options.trainings.split(","), {}
    heads = " | ".join(f"{kind}: saved | s | status | exact" for kind in kinds)
    print(f"| end | {heads} |\n|---|{'---|' * 4 * len(kinds)}", flush=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
        folder = Path(place)
        expected = {}
        for kind in kinds:
            reference = Training(kind, folder / kind)
            reference.start([], "--no-agent", step_s=0.0)
            reference.finish()
            expected[kind] = reference.lines(), reference.final()
        for end in (each for each in ENDS if each.name in options.ends.split(",")):
            cells = []
            for kind in kinds:
                if kind not in end.kinds:
                    cells.append("- | - | - | -")
                    continue
                where = folder / f"{end.name}-{kind}"
                *_, usual = ended(end, Training(kind, where), "--no-agent")
                outcomes: list[Outcome] = []
                while len(outcomes) < options.runs:
                    number = f"{where.name}-{len(outcomes)}-{time.monotonic_ns()}"
                    outcome = measured(end, kind, folder / number, expected[kind])
                    print(f"{end.name} {kind} {outcome}", file=sys.stderr, flush=True)
                    if outcome is not None:
                        outcomes.append(outcome)
                cells.append(cell(outcomes, usual))
                found[f"{end.name} {kind}"] = [asdict(each) for each in outcomes]
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1))
            print(f"| {end.text} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
