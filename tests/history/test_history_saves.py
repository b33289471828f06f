"""A series of saves is one entry of the history, and the journal keeps each of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from watchdog_app.cli.history import describe, render
from watchdog_app.client import requests
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus, Stage
from watchdog_app.core.model.machine import ProcessKey
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.daemon.methods import Methods
from watchdog_app.history import past_exits
from watchdog_app.history.entries import TaskRef, decision_entry, outcome_entry, request_entry
from watchdog_app.history.journal import Entry, Journal
from watchdog_app.history.writer import JournalWriter

BEGIN_S = 1.7e9
DONE, FAILED = OutcomeStatus.DONE, OutcomeStatus.FAILED
SAVE, PAUSE, NOTIFY = DecisionKind.CHECKPOINT, DecisionKind.PAUSE, DecisionKind.NOTIFY


@pytest.fixture
def journal(tmp_path):
    """A journal in a separate folder."""
    opened = Journal(str(tmp_path / "state"), 14 * 86400.0, 64 * 1024**2)
    yield opened
    opened.close()


def asked(at_s: float, pid: int = 7, kind: DecisionKind = SAVE) -> Entry:
    """A decision about the training `train{pid}.py`."""
    decision = Decision(
        id=f"{pid}-{kind.value}-{at_s}",
        kind=kind,
        incident="i1",
        resource=ResourceKey(ResourceKind.CGROUP, "/g"),
        stage=Stage.PAUSE,
        task=ProcessKey(pid, 1),
        at_mono_s=at_s,
        at_unix_s=BEGIN_S + at_s,
        reason="full in 2 s",
        evidence={"topic": "warning"} if kind is NOTIFY else {},
    )
    return decision_entry(decision, TaskRef(decision.task, f"train{pid}.py", None))


def answered(
    at_s: float,
    step: int | None = None,
    *,
    pid: int = 7,
    kind: DecisionKind = SAVE,
    status: OutcomeStatus = DONE,
    folder: str = "/r",
) -> Entry:
    """Its outcome, 0.2 s later."""
    evidence = {} if step is None else {"step": step, "path": f"{folder}/rescue-{step}"}
    outcome = Outcome(
        f"{pid}-{kind.value}-{at_s}", status, BEGIN_S + at_s + 0.2, 0.2, "Saved.", evidence
    )
    return outcome_entry(outcome, kind.value, TaskRef(ProcessKey(pid, 1), f"train{pid}.py", None))


def save(at_s: float, step: int | None = None, **changes) -> list[Entry]:
    return [asked(at_s, changes.get("pid", 7)), answered(at_s, step, **changes)]


def shown(journal: Journal, **wanted) -> list[dict]:
    return journal.history(**{"limit": 50, **wanted}, fold_saves=True)


def test_a_hundred_saves_are_one_entry_with_their_number_steps_and_times(journal):
    journal.add([entry for n in range(100) for entry in save(n, 10 * n)])

    (found,) = shown(journal)

    assert ("outcome", "checkpoint", "done") == (
        found["kind"],
        found["decision_kind"],
        found["status"],
    )
    assert (100, 0, 990) == (found["count"], found["first_step"], found["last_step"])
    assert [BEGIN_S + 0.2, BEGIN_S + 99.2] == [found["first_unix_s"], found["last_unix_s"]]
    assert found["unix_s"] == found["last_unix_s"]
    assert "/r/rescue-990" == found["evidence"]["path"]
    assert "full in 2 s" == found["reason"]


def test_the_journal_keeps_each_save_of_a_series(journal):
    journal.add([entry for n in range(10) for entry in save(n, n)])

    assert 20 == len(journal.history())


def test_one_save_alone_is_a_decision_and_its_outcome(journal):
    journal.add(save(1, 5))

    found = shown(journal)

    assert ["outcome", "decision"] == [each["kind"] for each in found]
    assert not any("count" in each for each in found)


def test_two_trainings_that_are_saved_in_turns_are_two_entries(journal):
    entries = [e for n in range(10) for pid in (7, 8) for e in save(n + pid / 100, n, pid=pid)]
    journal.add(entries)

    assert {("train7.py", 10), ("train8.py", 10)} == {
        (each["name"], each["count"]) for each in shown(journal)
    }


def test_two_processes_of_one_training_are_two_entries(journal):
    journal.add([
        entry
        for n in range(10)
        for entry in save(n / 2, n, folder="/even" if n % 2 == 0 else "/odd")
    ])  # fmt: skip

    assert [5, 5] == [each["count"] for each in shown(journal)]


def test_a_failed_save_stands_beside_the_series_that_worked(journal):
    saves = [entry for n in range(10) for entry in save(n, n)]
    journal.add([*saves, *save(10, status=FAILED)])

    found = shown(journal)

    assert [("outcome", "failed", None), ("decision", None, None), ("outcome", "done", 10)] == [
        (each["kind"], each.get("status"), each.get("count")) for each in found
    ]


def test_saves_that_fail_again_and_again_are_one_entry(journal):
    journal.add([entry for n in range(10) for entry in save(n, status=FAILED)])

    (found,) = shown(journal)

    assert ("failed", 10, None) == (found["status"], found["count"], found["last_step"])


def test_the_request_that_was_never_answered_is_shown_beside_the_series(journal):
    journal.add([*(entry for n in range(10) for entry in save(n, n)), asked(10)])

    found = shown(journal)

    assert [("decision", None), ("outcome", 10)] == [(e["kind"], e.get("count")) for e in found]


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([asked(5.5, kind=PAUSE), answered(5.6, kind=PAUSE)], id="pause"),
        pytest.param(
            [Entry(BEGIN_S + 5.5, "exit", {"pid": 7, "notable": True}, pid=7)], id="death"
        ),
    ],
)
def test_a_pause_or_a_death_ends_a_series(journal, between):
    journal.add([*(e for n in range(10) for e in save(n, n)), *between])

    assert [4, 6] == [each["count"] for each in shown(journal) if "count" in each]


def test_saves_of_another_hour_are_another_series(journal):
    journal.add([entry for n in (0, 1, 2, 3600, 3601) for entry in save(n, n)])

    assert [2, 3] == [each["count"] for each in shown(journal)]


def test_what_a_person_asked_for_is_never_folded(journal):
    task = TaskRef(ProcessKey(7, 1), "train7.py", None)
    wish = request_entry("request-1", "checkpoint", task, by="ann", unix_s=BEGIN_S + 3)
    done = Outcome("request-1", DONE, BEGIN_S + 3.1, 0.1, "Saved.", {"step": 3, "path": "/r/x"})
    journal.add([
        *(entry for n in range(10) for entry in save(n, n)),
        wish,
        outcome_entry(done, "checkpoint", task),
    ])  # fmt: skip

    found = shown(journal)

    assert 10 == found[0]["count"]
    assert ["outcome", "decision"] == [each["kind"] for each in found[1:]]


@pytest.mark.parametrize("kind", ["decision", "outcome"])
def test_a_series_is_one_entry_of_either_kind_alone(journal, kind):
    journal.add([entry for n in range(10) for entry in save(n, n)])

    (found,) = shown(journal, kinds=[kind])

    assert (kind, 10) == (found["kind"], found["count"])


def test_the_limit_counts_a_series_as_one_and_cuts_none_short(journal):
    notices = [asked(n, kind=NOTIFY) for n in (-1, -2)]
    journal.add([*notices, *(entry for n in range(200) for entry in save(n, n))])

    found = shown(journal, limit=2)

    assert [200, None] == [each.get("count") for each in found]
    assert [200] == [each["count"] for each in shown(journal, limit=1)]
    assert 3 == len(shown(journal))


def test_reading_a_part_leaves_the_journal_free_to_be_written(journal):
    journal.add([entry for n in range(100) for entry in save(n * 1000, n)])
    shown(journal, limit=1)

    journal.trim(BEGIN_S + 100_000)
    journal.add(save(100_001, 1))

    assert BEGIN_S + 100_001.2 == shown(journal, limit=1)[0]["unix_s"]


class _Reply:
    wanted = True

    def __init__(self) -> None:
        self.value = None

    def finish(self, value, error) -> None:
        assert error is None
        self.value = value


class _Kernels:
    def journal_word(self, task):
        return task


def test_the_daemon_answers_with_folded_entries(tmp_path):
    writer = JournalWriter(str(tmp_path / "state"), 1e10, 64 * 1024**2, lambda: None)
    writer.open()
    writer.add(*(entry for n in range(10) for entry in save(n, n)))
    reply = _Reply()

    parts = SimpleNamespace(
        journal=writer,
        observer=SimpleNamespace(kernels=_Kernels()),
        **dict.fromkeys(("agents", "checkpoints")),
    )

    Methods(parts, None).table["history"](requests.History.read({}), reply)
    while reply.value is None:
        writer.collect()
    writer.close(10)

    assert [10] == [each["count"] for each in reply.value["entries"]]


def test_explain_knows_each_save_and_the_newest_rescue(journal):
    """The plot marks the single saves."""
    death = {
        "pid": 7,
        "start_time": 1,
        "name": "train7.py",
        "cause": "group_limit",
        "memory": True,
        "rescue": {"step": 9, "path": "/r/rescue-9", "bytes": 1, "saved_unix_s": BEGIN_S + 9},
    }
    entries = [entry for n in range(10) for entry in save(n, n)]
    journal.add(
        [*entries, Entry(BEGIN_S + 10, "exit", {**death, "notable": True}, pid=7, name="train7.py")]
    )

    found = past_exits.explain_death(journal, "7", 10, BEGIN_S + 20)

    assert "step 9" in found["death_text"]
    assert "/r/rescue-9" in found["death_text"]


def test_the_line_of_a_series_says_how_often_when_and_up_to_which_step(journal, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    journal.add([entry for n in range(12) for entry in save(n, 100 + n)])

    (found,) = shown(journal)

    assert (
        "checkpoint done 12 times, from 22:13:20 (step 100) to 22:13:31 (step 111), "
        "the last one in 0.20 s: full in 2 s" == describe(found)
    )
    assert 1 == len(render([found]))


def test_a_count_that_is_no_number_is_left_out():
    entry = {"kind": "outcome", "decision_kind": "checkpoint", "status": "done", "count": "many"}

    assert "checkpoint done" == describe(entry)
