"""
The sandbox of the examples in this folder; each example shows one way in which trainings die.

The sandbox has a small machine: a memory limit for the training only. The limit is a real memory
group, or, if the error has to reach the program, a limit on its address space. The sandbox also has
its own watchdog daemon, and the training runs with the agent. It prints events as they happen. Then
it starts the training again, corrected as advised, and the training resumes from its rescue.

It does not touch your files: everything is in a temporary folder and ends with the example.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator

from watchdog_app.base import children
from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.quantities import MIB, format_bytes
from watchdog_app.client.client import Client
from watchdog_app.demo.sandbox import AddressSpace, Sandbox
from watchdog_app.guard.cgroup import Cgroup

FIXED = "EXAMPLE_FIXED"  # variable in the environment of a corrected training
READY = "READY"  # a training prints this line before the sandbox limits the memory
_WIDE_BYTES = 1 << 40
_PATIENCE_S = 120.0
# Lines that TensorFlow prints at every import.
_CHATTER = re.compile(r"WARNING: All log messages before|[IWE]\d{4} \d\d")


def play(
    script: str,
    *,
    framework: str = "tensorflow",
    room_mib: int,
    swap_mib: int = 0,
    soft: bool = False,
    gone_wrong: str,
    advice_followed: str,
) -> int:
    """
    Run one example: the script fails on a small machine, then runs again, corrected as advised.

    Args:
        script: path of the example; with the argument `--train` it trains.
        framework: module that the example needs.
        room_mib: free memory after the training has printed `READY`.
        swap_mib: swap that the training may use.
        soft: limit the address space, so that allocations fail and the kernel does not kill.
        gone_wrong: sentence on the bug, printed at the start.
        advice_followed: sentence on the correction, printed at the second start.

    Returns:
        0 if the work was saved and the second run resumed it, else 1.
    """
    folder = tempfile.mkdtemp(prefix=f"watchdog-{os.path.basename(script)[:-3]}-")
    sandbox = Sandbox(folder, os.path.abspath(script))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sandbox.prepare(framework)
        # Read the framework's files into the page cache, outside the group. Otherwise the group
        # is charged for them, and at the limit the training only re-reads them.
        _read_once(framework)
        story = _Story(sandbox, room_mib * MIB, swap_mib * MIB, soft)
        return 0 if _told(story, gone_wrong, advice_followed) else 1
    except WatchdogError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        sandbox.close()
        shutil.rmtree(folder, ignore_errors=True)


def _read_once(framework: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {framework}"], check=False, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise WatchdogError(
            f"This trains a real network, and {framework} does not start in {sys.executable}: "
            f"{last}. Install it there, best into a new environment, with: "
            f"pip install {framework}"
        )


def _told(story: _Story, gone_wrong: str, advice_followed: str) -> bool:
    """
    Run the whole example; return whether the work was saved and the training finished with it.
    """
    story.tell(gone_wrong)
    status = story.run("--train")
    saved = story.saved_step
    story.explain()
    if status == 0:  # watchdog helped it while it ran
        return saved is not None
    story.tell(advice_followed)
    story.follow_advice()
    status = story.run("--train")
    if status == 0 and story.resumed:
        story.tell(f"FINISHED, after it resumed from step {saved}")
    else:
        story.tell(f"ended with status {status}, {'' if story.resumed else 'not '}resumed")
    return status == 0 and story.resumed and saved is not None


class _Story:
    """One run of an example; prints what the training and watchdog report."""

    def __init__(self, sandbox: Sandbox, room_bytes: int, swap_bytes: int, soft: bool) -> None:
        self._sandbox = sandbox
        self._room, self._swap, self._soft = room_bytes, swap_bytes, soft
        self._limit: int | None = None  # limit in bytes, computed in the first run
        self._began = time.monotonic()
        self._daemon = sandbox.start_daemon()
        self._notices = Client.connect(
            os.path.join(sandbox.env["WATCHDOG_RUNTIME_DIR"], "daemon.sock")
        )
        self._notices.call("subscribe", topics=["notifications"])
        self._runs = 0
        self._pid = 0
        self.saved_step: int | None = None
        self.resumed = False

    def tell(self, text: str, who: str = "") -> None:
        """Print a line with the time, wrapped."""
        head = f"{time.monotonic() - self._began:5.1f} s  {who:<8} "
        lines = textwrap.wrap(text, 100 - len(head), break_long_words=False) or [""]
        print(head + f"\n{' ' * len(head)}".join(lines), flush=True)

    def follow_advice(self) -> None:
        """Correct the training from now on, with the same command, as if its code had changed."""
        self._sandbox.env[FIXED] = "1"

    def run(self, *arguments: str) -> int:
        """Start the training and print events until it ends; return its exit status."""
        self._runs += 1
        group: Cgroup | None = None
        if not self._soft:
            group = self._sandbox.limit(_WIDE_BYTES, self._swap)
        log = f"train-{self._runs}.log"
        child = self._sandbox.train(log, *arguments, group=group)
        self._pid = child.pid
        said = self._lines(log)
        end = time.monotonic() + _PATIENCE_S
        while child.poll() is None:
            if time.monotonic() > end:
                raise WatchdogError(f"The training hangs; it said last:\n{self._sandbox.tail(log)}")
            for line in said:
                if line == READY:
                    self._narrow(child, group)
                else:
                    self._training_said(line)
            self._watchdog_said(0.1)
        for line in said:
            self._training_said(line)
        if child.returncode < 0:
            self.tell(f"KILLED by {signal.Signals(-child.returncode).name}")
        self._watchdog_said(2.0)  # watchdog reports a death within two seconds
        return child.returncode

    def explain(self) -> None:
        """Print the output of `watchdog explain`."""
        done = subprocess.run(
            [*children.watchdog_argv(["explain", str(self._pid)])],
            env={**self._sandbox.env, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.tell(f"watchdog explain {self._pid}", "$")
        print(textwrap.indent((done.stdout or done.stderr).rstrip(), " " * 9), flush=True)

    def _narrow(self, child: subprocess.Popen[bytes], group: Cgroup | None) -> None:
        """Limit the training's memory to its current use plus the room."""
        if group is None or isinstance(group, AddressSpace):
            limit = self._limit or _address_space(child.pid) + self._room
            resource.prlimit(child.pid, resource.RLIMIT_AS, (limit, limit))
            kind = "an address space"
        else:
            limit = self._limit or group.usage().used_bytes + self._room
            group.swap_bytes = self._swap
            group.set_limit(limit)
            kind = f"a {group.kind} memory group"
        self._limit = limit
        swap = f" and {format_bytes(self._swap)} of swap" if self._swap else ""
        self.tell(f"the training has {kind} of {format_bytes(limit)}{swap}")

    def _lines(self, log: str) -> Iterator[str]:
        """
        Return an iterable over new complete lines; each iteration ends at the end of the file.
        """
        return _Tail(os.path.join(self._sandbox.folder, log))

    def _training_said(self, line: str) -> None:
        if "resuming from" in line:
            self.resumed = True
        if not _CHATTER.match(line):
            self.tell(line, "train")

    def _watchdog_said(self, wait_s: float) -> None:
        for message in self._notices.notifications(wait_s):
            if message["method"] == "notification":
                notice = message["params"]
                self._notices.notify(
                    "notification.shown", id=notice["id"], delivered=True, detail=""
                )
                self.tell(f"{notice['title']}. {notice['body']}", "WATCHDOG")
        for task in self._daemon.call("status")["tasks"]:
            rescue = (task["agent"] or {}).get("rescue")
            if task["pid"] == self._pid and rescue and rescue["step"] != self.saved_step:
                self.saved_step = rescue["step"]
                self.tell(
                    f"saved step {rescue['step']}: {format_bytes(rescue['bytes'])} in "
                    f"{rescue['seconds']:.2f} s",
                    "WATCHDOG",
                )


class _Tail:
    """An iterable over the lines added to a file since the last iteration."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._place = 0

    def __iter__(self) -> Iterator[str]:
        with open(self._path, errors="replace") as file:
            file.seek(self._place)
            while (line := file.readline()).endswith("\n"):
                self._place = file.tell()
                if line.strip():
                    yield line.strip()


def _address_space(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
