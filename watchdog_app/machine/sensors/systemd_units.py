"""
What systemd says about the unit of an ended process, and OOM daemons about the process.

The module runs `journalctl` and `systemctl`, each for some seconds at most, and never in the
daemon's main thread. Every user may read the journal of their own service manager. Other journals
need the group adm or systemd-journal.

Sources: systemd, src/core/unit.c (the lines; their MESSAGE_ID in sd-messages.h), systemctl(1) show,
systemd.journal-fields(7); earlyoom, kill.c, and nohang for their lines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from watchdog_app.base.records import dataclass
from watchdog_app.base.threads import Worker
from watchdog_app.core.model.exits import UnitEnd

_TIMEOUT_S = 5.0
_RETRY_S = 1.0  # systemd logs an end only when the unit's group is empty
_ATTEMPTS = 3
_MAX_LINES = 500
_MAX_BYTES = 1 << 20
_KEPT_LINES = 3
# The daemon records and reports an end only after the answer or this time: journalctl is slow under
# memory pressure.
_ANSWER_S = 12.0
_MAX_QUESTIONS = 8  # unanswered at one time; further ends are recorded without an answer
_LONGEST = 240
GUARDS = ("earlyoom", "nohang", "nohang-desktop", "bustd")
_MANAGER = re.compile(r"user@(\d+)\.service")
_OOMD = re.compile(r"(\S+): systemd-oomd killed (\d{1,9}|some) process\(?(?:es)?\)? in this unit")
_KERNEL = re.compile(r"(\S+): A process of this unit has been killed by the OOM killer")
_RESULT = re.compile(r"(\S+): Failed with result '([a-z-]{1,40})'")
# earlyoom: sending SIGTERM to process 42 uid 1000 "python": badness ...; nohang: PID: 42, Name: ...
_VICTIM = re.compile(r"(?i)\b(?:process|pid:?)\s+(\d{1,10})\b")
_ACTS = re.compile(r"(?i)sending SIG|sent SIG|send SIG|killing|escalating")
_EXITED, _KILLED, _DUMPED = 1, 2, 3  # CLD_EXITED, CLD_KILLED, CLD_DUMPED of sigaction(2)


class Unit(NamedTuple):
    """A unit of systemd."""

    name: str
    user: bool  # belongs to the user's service manager


def find_unit(group: str | None) -> Unit | None:
    """
    Find the innermost service or scope in the path of a control group; None: none to query.

    Args:
        group: a folder or a path of a group.
    """
    parts = [] if group is None else group.split("/")
    managers = [at for at, part in enumerate(parts) if _MANAGER.fullmatch(part)]
    user = bool(managers)
    if user:
        at = managers[-1]
        if parts[at] != f"user@{os.getuid()}.service":
            return None
        parts = parts[at + 1 :]
    for part in reversed(parts):
        if part.endswith((".service", ".scope")) and part.isprintable() and part[0] not in "-.":
            return Unit(part, user)
    return None


@dataclass(slots=True)
class UnitQuery:
    """A query to systemd, with its answer."""

    until_mono_s: float  # deadline for the answer
    answered: bool = False
    answer: UnitEnd | None = None

    def over(self, now_mono_s: float) -> bool:
        """Return whether the answer has come or its deadline has passed."""
        return self.answered or now_mono_s >= self.until_mono_s


class UnitQueries:
    """
    Queries systemd in a thread, one query after the other.

    Args:
        wake: called in the thread when there is something to collect.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._worker = Worker(wake)
        self._unanswered = 0

    def ask(
        self, group: str | None, pid: int, since_unix_s: float, *, guards: Sequence[str] = ()
    ) -> UnitQuery | None:
        """
        Query systemd about an ended process; None: nothing here could answer.

        Args:
            group: its memory group.
            pid: of the process.
            since_unix_s: when it was last seen alive.
            guards: OOM daemons that run on this machine.
        """
        unit = find_unit(group)
        guards = [each for each in guards if each in GUARDS]
        if (
            (unit is None and not guards)
            or self._unanswered >= _MAX_QUESTIONS
            or not has_systemd_tools()
        ):
            return None
        question = UnitQuery(time.monotonic() + _ANSWER_S)
        self._unanswered += 1
        job = partial(ask, unit, pid, since_unix_s, guards=guards)
        self._worker.submit(job, lambda answer, _: self._store_answer(question, answer))
        return question

    def collect(self) -> None:
        """Store the finished answers in their queries."""
        self._worker.collect()

    def _store_answer(self, question: UnitQuery, answer: UnitEnd | None) -> None:
        self._unanswered -= 1
        question.answered, question.answer = True, answer


def ask(
    unit: Unit | None, pid: int, since_unix_s: float, *, guards: Sequence[str] = ()
) -> UnitEnd | None:
    """
    Read what the journal and systemd say about a unit and a process since a time; None: nothing.

    Takes until something is found, or some seconds. Each command is killed after five seconds.

    Args:
        unit: unit in which the process ran.
        pid: of the process.
        since_unix_s: when it was last seen alive.
        guards: OOM daemons that run on this machine.
    """
    found = None
    for attempt in range(_ATTEMPTS):
        time.sleep(_RETRY_S if attempt else 0.0)
        shown = {} if unit is None else _unit_properties(unit)
        found = _read(unit, pid, since_unix_s, shown, guards)
        settled = unit is None or shown.get("ActiveState") in ("failed", "inactive")
        told = found is not None and (
            found.oomd_kills is not None
            or found.kernel_kill
            or found.guard
            or found.result == "oom-kill"
        )
        if told or (settled and attempt):
            break
    return found


def _read(
    unit: Unit | None, pid: int, since_unix_s: float, shown: dict[str, str], guards: Sequence[str]
) -> UnitEnd | None:
    oomd: int | None = None
    kernel = False
    result = None
    lines: list[str] = []
    words = [] if unit is None else [f"UNIT={unit.name}"]
    if unit is not None and unit.user:
        words = ["--user", f"USER_UNIT={unit.name}"]
    for line in _journal_messages(words, since_unix_s) if words else ():
        for pattern in (_OOMD, _KERNEL, _RESULT):
            found = pattern.search(line)
            if found is None or unit is None or found[1] != unit.name:
                continue
            if pattern is _OOMD:
                oomd = int(found[2]) if found[2].isdigit() else 0
            elif pattern is _KERNEL:
                kernel = True
            else:
                result = found[2]
            lines.append(line[:_LONGEST])
    guard = _find_guard_line(guards, pid, since_unix_s)
    if guard is not None:
        lines.append(guard[1][:_LONGEST])
    status = _main_status(shown, pid)
    result = result or shown.get("Result") or None
    if unit is None and guard is None:
        return None
    return UnitEnd(
        name="" if unit is None else unit.name,
        user=unit is not None and unit.user,
        oomd_kills=oomd,
        kernel_kill=kernel,
        result=result,
        main_status=status,
        lines=tuple(dict.fromkeys(lines))[-_KEPT_LINES:],
        guard=None if guard is None else guard[0],
    )


def _find_guard_line(
    guards: Sequence[str], pid: int, since_unix_s: float
) -> tuple[str, str] | None:
    """Find the OOM daemon that says it kills this process, and its line."""
    for guard in guards:
        if guard not in GUARDS:
            continue
        said = list(_journal_messages([f"_SYSTEMD_UNIT={guard}.service"], since_unix_s))
        own = [line for line in said if (v := _VICTIM.search(line)) and int(v[1]) == pid]
        # nohang writes victim and signal on separate lines
        acted = any(_ACTS.search(line) for line in said)
        if own and acted:
            return guard, own[0]
    return None


def _journal_messages(words: Sequence[str], since_unix_s: float) -> Iterator[str]:
    """Yield the messages of the journal, oldest first; none if it cannot be read."""
    argv = ["journalctl", "--no-pager", "-q", "-o", "json", "-n", str(_MAX_LINES)]
    for line in _command_output([*argv, f"--since=@{int(since_unix_s)}", *words]).splitlines():
        if not line.startswith("{"):
            yield line  # a wrapper around journalctl that ignores -o json
            continue
        with suppress(ValueError):
            entry: dict[str, Any] = json.loads(line)
            # journald gets the writer's name from the kernel. Other programs may name any unit in
            # their fields, so accept only systemd's messages.
            by = entry.get("_COMM")
            told = entry.get("MESSAGE")
            manager = "--user" in words or any(word.startswith("UNIT=") for word in words)
            if isinstance(told, str) and (not manager or by in (None, "systemd")):
                yield told


def _unit_properties(unit: Unit) -> dict[str, str]:
    """Read the properties of a unit; empty if systemd does not answer."""
    names = "LoadState,ActiveState,Result,ExecMainPID,ExecMainCode,ExecMainStatus"
    argv = ["systemctl", *["--user"] * unit.user, "show", "-p", names, "--", unit.name]
    pairs = (line.partition("=") for line in _command_output(argv).splitlines())
    shown = {name.strip(): value.strip() for name, _, value in pairs}
    # For a unit that is not loaded any more, systemctl shows the defaults of a new one.
    return {} if shown.get("LoadState") == "not-found" else shown


def _main_status(shown: dict[str, str], pid: int) -> int | None:
    """Return how the unit's main process ended, as wait(2) does; None: it was another process."""
    with suppress(KeyError, ValueError):
        if int(shown["ExecMainPID"]) != pid:
            return None
        code, status = int(shown["ExecMainCode"]), int(shown["ExecMainStatus"])
        if code == _EXITED:
            return status << 8
        if code in (_KILLED, _DUMPED):
            return status | (0x80 if code == _DUMPED else 0)
    return None


def has_systemd_tools() -> bool:
    """Return whether journalctl or systemctl is installed."""
    # Not shutil.which: importing shutil would cost the daemon 1 MB.
    return any(
        os.access(os.path.join(folder, name), os.X_OK)
        for folder in os.get_exec_path()
        for name in ("journalctl", "systemctl")
    )


def _command_output(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace")
