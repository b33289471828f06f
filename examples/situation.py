"""
The sandbox on which the examples of this folder play, each one situation that ends trainings.

A small machine, made by a limit around the training alone: a real memory group, or, where the
error is to reach the program, a limit on its address space. A watchdog daemon of the example's
own. The training, with the agent switched on. What happens is told as it happens; then the
training is started again with the advice followed, and resumes from its rescue.

Nothing of yours is touched: all of it lives in a temporary folder and ends with the example.
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

FIXED = "EXAMPLE_FIXED"  # in the environment of a training that follows the advice
READY = "READY"  # a training says so when the machine may become small
_WIDE_BYTES = 1 << 40
_PATIENCE_S = 120.0
# What TensorFlow says of itself whenever it is imported.
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
    Play one situation: the script goes wrong on a small machine, then again with the advice.

    Args:
        script: the example itself; started with `--train`, it trains.
        framework: that it needs.
        room_mib: memory that is left once it has said `READY`.
        swap_mib: swap that it may use beside.
        soft: limit its address space, so that it gets an error instead of being killed.
        gone_wrong: one sentence, told at the start.
        advice_followed: one sentence, told at the second start.

    Returns:
        0 if the work was saved and gone on with.
    """
    folder = tempfile.mkdtemp(prefix=f"watchdog-{os.path.basename(script)[:-3]}-")
    sandbox = Sandbox(folder, os.path.abspath(script))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sandbox.prepare(framework)
        # Read from the disk once, outside: else its files fill the small machine, and reading
        # them again and again is all that happens at the limit.
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
            f"pip install 'watchdog-app[{framework}]'"
        )


def _told(story: _Story, gone_wrong: str, advice_followed: str) -> bool:
    """The whole story; whether the work was saved, and the training came to its end with it."""
    story.tell(gone_wrong)
    status = story.run("--train")
    saved = story.saved_step
    story.explain()
    if status == 0:  # it was helped while it ran
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
    """One example under way: what the training and the watchdog say, as they say it."""

    def __init__(self, sandbox: Sandbox, room_bytes: int, swap_bytes: int, soft: bool) -> None:
        self._sandbox = sandbox
        self._room, self._swap, self._soft = room_bytes, swap_bytes, soft
        self._limit: int | None = None  # as found in the first run
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
        """A line of the story, folded."""
        head = f"{time.monotonic() - self._began:5.1f} s  {who:<8} "
        lines = textwrap.wrap(text, 100 - len(head), break_long_words=False) or [""]
        print(head + f"\n{' ' * len(head)}".join(lines), flush=True)

    def follow_advice(self) -> None:
        """From now on the training is as advised; as if its text was changed: the same command."""
        self._sandbox.env[FIXED] = "1"

    def run(self, *arguments: str) -> int:
        """Start the training, tell what happens until it has ended; its exit status."""
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
        self._watchdog_said(2.0)  # of what it died, within two seconds
        return child.returncode

    def explain(self) -> None:
        """What `watchdog explain` says of it."""
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
        """From here on there is so much more memory and no more."""
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
        """Complete lines as they are written; ends each time that there are no more."""
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
    """An iterator over what was added to a file, that can be asked again and again."""

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
