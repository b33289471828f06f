"""The timeline of a report is made of sentences, without the words of the journal."""

from __future__ import annotations

import pytest

from watchdog_app.history.report import sentences

LABEL = "memory limit of the group lab"
INCIDENT = {"kind": "incident", "label": LABEL, "reason": "rising 5 MiB/s", "resource": "cgroup"}
NOTIFY = {"kind": "decision", "decision_kind": "notify", "by": "watchdog", "reason": "rising"}
SAVED = {
    "kind": "outcome",
    "decision_kind": "checkpoint",
    "status": "done",
    "detail": "Step 423 saved: 148 KiB in 0.1 s.",
}
PAUSE = {"kind": "outcome", "decision_kind": "pause", "evidence": {"method": "sigstop"}}
CASES = {
    "a danger": (INCIDENT | {"stage": "save"}, f"Danger: {LABEL}: rising 5 MiB/s"),
    "the last seconds": (
        INCIDENT | {"stage": "pause"},
        f"Danger, at the very end: {LABEL}: rising 5 MiB/s",
    ),
    "its end": (INCIDENT | {"stage": "ok", "closed_unix_s": 9.0}, f"The danger is over: {LABEL}"),
    "a warning": (NOTIFY | {"evidence": {"topic": "warning"}}, "You were warned: rising"),
    "another notification": (NOTIFY | {"evidence": {"topic": "stalled"}}, "You were told: rising"),
    "a notification of what is here already": (NOTIFY | {"evidence": {"topic": "rescued"}}, None),
    "a save": (SAVED, "Saved: Step 423: 148 KiB in 0.1 s."),
    "saves": (SAVED | {"count": 4}, "Saved 4 times, the last time at step 423: 148 KiB in 0.1 s."),
    "a failed save": (SAVED | {"status": "failed", "detail": "disk full"}, "Not saved: disk full"),
    "a decision to save": (SAVED | {"kind": "decision", "by": "watchdog"}, None),
    "a person's wish": (
        {"kind": "decision", "decision_kind": "pause", "by": "the cli (pid 7)"},
        "A pause was asked for by the command line (pid 7).",
    ),
    "a pause": (
        PAUSE | {"status": "done", "detail": "1 process stopped (sigstop)."},
        "Paused: 1 process stopped.",
    ),
    "a pause that came to nothing": (
        PAUSE | {"status": "skipped", "detail": "there is room again"},
        "Not paused: there is room again",
    ),
    "a death": ({"kind": "exit", "text": "train.py (pid 7): killed."}, "train.py (pid 7): killed."),
    "a start": ({"kind": "daemon", "what": "started"}, "Watchdog has started"),
    "of another task": (
        SAVED | {"name": "other.py"},
        "other.py: Saved: Step 423: 148 KiB in 0.1 s.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_entry_becomes_a_sentence(case):
    entry, sentence = CASES[case]
    found = sentences([{"unix_s": 1.0, "name": "train.py", **entry}], "train.py")
    assert ([] if sentence is None else [(1.0, sentence)]) == found


def test_the_oldest_comes_first():
    entries = [{"unix_s": at, "kind": "exit", "text": f"{at}"} for at in (2.0, 1.0)]
    assert [(1.0, "1.0"), (2.0, "2.0")] == sentences(entries, "")


def test_a_warning_does_not_repeat_its_danger():
    warned = NOTIFY | {"evidence": {"topic": "warning"}, "reason": INCIDENT["reason"]}
    entries = [{"unix_s": 2.0, **INCIDENT}, {"unix_s": 1.0, **warned}]
    assert (1.0, "You were warned.") == sentences(entries, "")[0]
