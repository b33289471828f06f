"""
Cause, certainty and evidence of an end, compared with a recording.

Only the figures of each sentence are compared, so that the wording may change.
"""

from __future__ import annotations

import re
import signal
from itertools import product
from typing import Any

import pytest
from support import decisions

from watchdog_app.core.diagnosis.causes import address_space_full, device_full, diagnose
from watchdog_app.core.diagnosis.evidence import (
    collect_evidence,
    journal_level,
    kills_elsewhere,
    largest_processes,
    lines_about_exit,
    should_notify,
)
from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.exits import (
    ExitFacts,
    GuardEnd,
    KernelEvent,
    KernelLogLine,
    LastError,
    UnitEnd,
)
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind

PID = 42
GB = 1 << 30
LONG = "7" * 400  # the length of the shown part can be counted

STATUSES = {
    "unknown": None,
    "0": 0,
    "status 1": 1 << 8,
    "SIGKILL": int(signal.SIGKILL),
    "SIGTERM": int(signal.SIGTERM),
    "SIGSEGV and a core file": int(signal.SIGSEGV) | 0x80,
    "SIGABRT": int(signal.SIGABRT),
    "SIGBUS": int(signal.SIGBUS),
    "SIGINT": int(signal.SIGINT),
    "SIGXCPU": int(signal.SIGXCPU),
    "signal 35": 35,
}


def line(kind: KernelEvent, text: str = "killed", at_s: float = 10.0, **more: Any) -> KernelLogLine:
    return KernelLogLine(kind, at_s, text, **more)


def group(share: float, **more: Any) -> dict[str, Any]:
    return {"group_used_bytes": share * 10 * GB, "group_limit_bytes": 10 * GB, **more}


def host(left: float, **more: Any) -> dict[str, Any]:
    return {"host_total_bytes": 100 * GB, "host_available_bytes": int(left * GB), **more}


def kills(of: str, before: int, after: int, elsewhere: int = 0) -> dict[str, Any]:
    names = (f"{of}_kills_before", f"{of}_kills_after", f"{of}_kills_elsewhere")
    return dict(zip(names, (before, after, elsewhere), strict=True))


KILL = line(KernelEvent.OOM_KILL, pid=PID, name="python")
OTHER_KILL = line(KernelEvent.OOM_KILL, pid=7, name=LONG)
GROUP_KILL = line(KernelEvent.OOM_KILL, "Memory cgroup out of memory", pid=PID)
REPORT = line(KernelEvent.OOM_REPORT, constraint="CONSTRAINT_MEMCG", group="/a/" + LONG)
HOST_REPORT = line(KernelEvent.OOM_REPORT, constraint="CONSTRAINT_NONE")
ROW = line(KernelEvent.OOM_TASK, pid=9, name="hog", rss_bytes=5 * GB)
OOMD, EARLYOOM = ("systemd-oomd",), ("earlyoom",)
WORDS = LastError("MemoryError", "Unable to allocate 3.00 GiB", frames=("train.py:42 in f",))
UNIT = "train.service"

FACTS: dict[str, dict[str, Any]] = {
    "nothing more": {},
    "killed, in the kernel log": {"kernel": (KILL,)},
    "killed in a group, in the kernel log": {"kernel": (GROUP_KILL,)},
    "killed, with a report of a group": {"kernel": (REPORT, KILL, ROW)},
    "killed, with a report of the machine": {"kernel": (HOST_REPORT, KILL)},
    "another was killed": {"kernel": (OTHER_KILL,)},
    "broken memory": {"kernel": (line(KernelEvent.BAD_MEMORY, pid=PID),)},
    "broken memory of another": {"kernel": (line(KernelEvent.BAD_MEMORY, pid=7),)},
    "a crash in a library": {
        "kernel": (line(KernelEvent.CRASH, LONG, pid=PID, library=LONG),),
    },
    "a hot machine": {"kernel": (line(KernelEvent.HOT),)},
    "no kernel log": {"kernel_log_readable": False},
    "a kernel log that is not known": {"kernel_log_readable": None},
    "its guard ended it": {"guard": GuardEnd(3 * GB, "4G", ended=LONG)},
    "its guard refused memory": {"guard": GuardEnd(3 * GB, "4G", refused=True)},
    "its guard held it": {"guard": GuardEnd(3 * GB, "4G", stopped=LONG)},
    "its guard said something": {"guard": GuardEnd(3 * GB, "4G", last_message=LONG)},
    "a MemoryError": {"words": WORDS},
    "an error of the GPU": {
        "words": LastError("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    },
    "another error": {"words": LastError(LONG, LONG, frames=("<frozen>:1 in g", f"{LONG}:1"))},
    "a fatal error": {
        "words": LastError(fatal=LONG, frames=("<a>:1", "<b>:2", "<c>:3", "mine.py:4", "x:5")),
    },
    "an exception, as the agent said": {"announced_end": True, "failed": True},
    "a good end, as the agent said": {"announced_end": True},
    "a notebook": {"notebook": True},
    "a notebook whose server lives": {"notebook": True, "parent": LONG},
    "a paused notebook": {"notebook": True, "was_paused": True},
    "a group that is full": group(0.97),
    "a group that is nearly full": group(0.969),
    "a group at nine tenths": group(0.9),
    "a group just below": group(0.899),
    "a group at eight tenths": group(0.8),
    "a group that slows down": group(1.0, group_high=True),
    "a group whose kills rose": kills("group", 3, 4) | group(0.5, group="/sys/fs/cgroup/a/b"),
    "a group whose kills rose by others'": kills("group", 3, 5, 2),
    "a group whose kills stayed": kills("group", 3, 3) | {"counted": "between 10:03 and 10:05"},
    "kills of the machine rose": kills("host", 3, 4),
    "kills of the machine rose by others'": kills("host", 3, 4, 1),
    "a machine that is full": host(3.0),
    "a machine that is nearly full": host(3.1),
    "a machine with an eighth": host(12.0, oom_daemons=EARLYOOM),
    "a machine with more than an eighth": host(12.1, oom_daemons=EARLYOOM),
    "a machine with swap": host(
        8.0, swap_total_bytes=10 * GB, swap_free_bytes=int(1.2 * GB), oom_daemons=EARLYOOM
    ),
    "a machine with more swap": host(
        8.0, swap_total_bytes=10 * GB, swap_free_bytes=2 * GB, oom_daemons=OOMD + EARLYOOM
    ),
    "programs that wait for memory": host(50.0, stalled_percent=5.0),
    "programs that hardly wait": host(50.0, stalled_percent=4.9),
    "systemd-oomd runs here": {"oom_daemons": OOMD},
    "systemd-oomd has noted a kill": {"oomd_kills": 2},
    "systemd-oomd killed in its unit": {"unit": UnitEnd(UNIT, True, oomd_kills=1)},
    "systemd-oomd killed many in its unit": {"unit": UnitEnd(UNIT, False, oomd_kills=3)},
    "the kernel killed in its unit": {"unit": UnitEnd(UNIT, True, kernel_kill=True)},
    "the kernel killed in its scope": {"unit": UnitEnd(f"{LONG}.scope", True, kernel_kill=True)},
    "its unit ended for memory": {"unit": UnitEnd(UNIT, True, result="oom-kill", lines=(LONG,))},
    "its unit says a signal": {"unit": UnitEnd(UNIT, False, result="signal", main_status=9)},
    "earlyoom in its unit": {"unit": UnitEnd(UNIT, True, guard="earlyoom")},
    "a fault of its card": {"card_fault": LONG},
    "a full card": {"device_full": LONG},
    "one failed allocation": {"device_ooms": 1},
    "two failed allocations": {"device_ooms": 2},
    "a full address space": {"address_space_full": "1.39 of 1.43 GiB"},
    "an address space": {"address_space": "1.0 of 1.43 GiB"},
}  # fmt: skip


def _facts(status: str, *names: str) -> ExitFacts:
    given: dict[str, Any] = {"pid": PID, "kernel_log_readable": True}
    for name in names:
        given |= FACTS[name]
    return ExitFacts(STATUSES[status], **given)


def _figures(text: str) -> str:
    """The figures of a sentence; for a long one its number of digits."""
    found = re.findall(r"\d[\d.]*", text)
    return " ".join(each if len(each) < 20 else f"{len(each)} digits" for each in found)


def _cause(facts: ExitFacts) -> str:
    cause = diagnose(facts)
    return f"{cause.kind} {cause.certainty}{' news' if cause.news else ''}"


@pytest.mark.parametrize("status", STATUSES)
def test_one_fact_leads_to_the_same_cause_and_evidence_as_before(status: str) -> None:
    for name in FACTS:
        facts = _facts(status, name)
        evidence = [
            f"{each.source} {each.certainty} {_figures(each.text)}"
            for each in collect_evidence(facts)
        ]
        text = _figures(diagnose(facts).text)
        decisions.note(
            {"fact": name, "cause": _cause(facts), "figures": text, "evidence": evidence}
        )


@pytest.mark.parametrize("status", ["unknown", "status 1", "SIGKILL", "SIGTERM", "SIGABRT"])
def test_two_facts_lead_to_the_same_cause_as_before(status: str) -> None:
    """Notes causes that neither fact has alone, and which of two facts prevails."""
    alone = {name: _cause(_facts(status, name)) for name in FACTS}
    names = [name for name in FACTS if alone[name] != alone["nothing more"]]
    for first in names:
        found = {}
        for second in FACTS:
            cause = _cause(_facts(status, first, second))
            if cause not in (alone["nothing more"], alone[first]):
                found[second] = cause
        decisions.note({"fact": first, "others": found})


@pytest.mark.parametrize(
    "status", ["unknown", "0", "status 1", "SIGKILL", "SIGINT", "SIGSEGV and a core file"]
)
def test_the_same_ends_are_told_and_noted_as_before(status: str) -> None:
    idle = AgentState(ProcessKey(PID, 1), "keras", "/r")
    trains = AgentState(ProcessKey(PID, 1), "keras", "/r", training=True)
    for name in FACTS:
        facts = _facts(status, name)
        cause = diagnose(facts)
        told = [should_notify(cause, agent) for agent in (None, idle, trains)]
        noted = [
            journal_level(facts, cause, seen=seen, kernel=kernel, age_s=age_s, cared_for=cared)
            for seen, kernel, age_s, cared in product(
                (True, False), (True, False), (9.9, 10.0, 60.0), (True, False)
            )
        ]
        words = "".join({True: "d", False: "n", None: "-"}[each] for each in noted)
        decisions.note({"fact": name, "told": sum(told), "noted": words})


@pytest.mark.parametrize("share", [0.899, 0.9, 1.0])
def test_what_counts_as_full_is_as_before(share: float) -> None:
    task = type("Task", (), {"key": ProcessKey(PID, 1)})()
    for kind, hit in product(ResourceKind, (PID, 7)):
        key = ResourceKey(kind, "x")
        reading = Reading(key, "x", share * GB, GB, True, (ProcessKey(hit, 1),))
        found = [device_full(task, [reading]), address_space_full(reading)]
        if any(found):
            decisions.note({"kind": kind, "pid": hit, "full": found})


KERNEL_LOG = (
    line(KernelEvent.OOM_REPORT, at_s=99.5, constraint="CONSTRAINT_MEMCG", group="/a", pid=7),
    line(KernelEvent.OOM_TASK, at_s=99.6, pid=8, name="hog", rss_bytes=GB),
    line(KernelEvent.OOM_TASK, at_s=99.6, pid=PID, name="python", rss_bytes=3 * GB),
    line(KernelEvent.OOM_TASK, at_s=99.6, pid=9, rss_bytes=2 * GB),
    line(KernelEvent.OOM_TASK, at_s=99.6, pid=10, name="none", rss_bytes=0),
    *(line(KernelEvent.OOM_TASK, at_s=99.6, pid=20 + n, rss_bytes=n) for n in range(1, 5)),
    line(KernelEvent.OOM_KILL, "Memory cgroup out of memory", at_s=100.0, pid=7),
    line(KernelEvent.OOM_KILL, at_s=90.0, pid=6),
    line(KernelEvent.OOM_KILL, "Memory cgroup out of memory", at_s=85.0, pid=5),
    line(KernelEvent.HOT, at_s=91.0),
    line(KernelEvent.HOT, at_s=90.9),
    line(KernelEvent.CRASH, at_s=70.0, pid=PID),
)
OWN_KILL = line(KernelEvent.OOM_KILL, at_s=100.5, pid=PID)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("path", [None, "/a", "/sys/fs/cgroup/a/b", "/sys/fs/cgroup/ab"])
def test_the_same_lines_of_the_kernel_log_concern_an_end_as_before(
    own: bool, path: str | None
) -> None:
    log = (*KERNEL_LOG, OWN_KILL) if own else KERNEL_LOG
    for alive_s, counted_s in product((None, 92.0, 102.1, 87.0), (None, 90.0, 90.1)):
        found = lines_about_exit(
            log, PID, 101.0, alive_mono_s=alive_s, counted_mono_s=counted_s, group=path
        )
        decisions.note(
            {
                "alive": alive_s,
                "counted": counted_s,
                "lines": [f"{each.kind} {each.pid} {each.mono_s}" for each in found],
            }
        )
    decisions.note({"takers": largest_processes(log), "killed": [
        kills_elsewhere(log, PID, since_s) for since_s in (84.0, 90.0, 90.1, 100.0, 100.5)
    ]})  # fmt: skip
