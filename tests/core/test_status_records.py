"""The status as records: lenient reading of both versions, and its schema."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.statuses import HOSTILE_NAMES, leaking, process, status

from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.resource import SPECS, Blame
from watchdog_app.core.model.status import (
    Gpu,
    Incident,
    Record,
    Resource,
    Status,
    Task,
    Temperature,
)

ROOT = Path(__file__).parents[2]
JUNK = (None, 7, "x", [], {}, True, math.nan, math.inf, [1, "x", None, {}], {"pid": []})


def schema_tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "packaging/schema_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_record_reads_what_it_has_written():
    """The daemon and the screens share one definition."""
    read = Status.read(leaking())
    job = read.tasks[2]

    assert (4711, "memory limit of the group jupyter-ada") == (job.pid, job.resource)
    assert (True, "linear") == (read.resources[2].fatal, read.resources[2].growth)
    assert 0.953 == read.incidents[0].contributors[0].share
    assert read == Status.read(json.loads(json.dumps(read.to_json())))
    assert None is Resource(eta_high_s=math.inf).to_json()["eta_high_s"]


def test_a_record_has_no_other_fields():
    """The schema knows each of them."""
    with pytest.raises(TypeError, match="Task has no rss_bytes"):
        Task(rss_bytes=1)


def test_a_record_takes_what_an_object_has_under_its_names():
    """Keyword arguments override the object's attributes."""
    found = Temperature.from_object(SimpleNamespace(key="k", celsius=50.0, other=1), celsius=60.0)

    assert Temperature(key="k", celsius=60.0) == found


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_what_does_not_fit_is_unknown_and_never_an_exception(junk):
    """This holds in every field of every record, and for the whole status."""
    for record in Record.__subclasses__():
        for name, _ in record.FIELDS:
            record.read({name: junk})
    found = Status.read(junk)
    assert found.summary(0.0)[0] is Level.UNKNOWN
    assert found.tasks == found.resources == found.incidents == ()
    assert found.host.name is None


def test_nothing_infinite_is_a_figure():
    """JSON of other programs may contain infinity or NaN."""
    found = Resource.read({"used": math.inf, "limit": math.nan, "ratio": "x", "eta_s": True})

    assert (None,) * 4 == (found.used, found.limit, found.ratio, found.eta_s)


@pytest.mark.parametrize(("value", "pid"), [(7, 7), (7.0, 7), (4.5, None), (True, None)])
def test_a_whole_number_is_not_guessed(value, pid):
    """A button must not reach a neighbouring process."""
    assert pid == Task.read({"pid": value}).pid


def test_an_old_reading_is_unknown_and_says_how_old_it_is():
    """The age is counted in intervals of that daemon."""
    fresh = Status.read(status(time_unix_s=100.0, daemon={"interval_s": 1.0}))
    slow = Status.read(status(time_unix_s=100.0, daemon={"interval_s": 60.0}))

    assert (Level.OK, 9.0) == (fresh.summary(109.0)[0], fresh.age_s(109.0))
    assert Level.UNKNOWN is fresh.summary(111.0)[0]
    assert fresh.summary(145.0)[1].startswith("this reading is 45 s old")
    assert Level.OK is slow.summary(399.0)[0]


@pytest.mark.parametrize(
    ("incident", "fault"),
    [
        ({"resource": "ram"}, False),
        ({"resource": "battery"}, False),
        ({"resource": "gpu_fault"}, True),
        ({"resource": "stalled"}, True),
    ],
)
def test_faults_are_told_from_what_runs_out(incident, fault):
    """Their figures have another meaning."""
    assert fault is Incident.read(incident).is_fault


def test_equal_records_are_equal():
    """The tray redraws and reports only changes."""
    assert Task.read(process(1, "a", 1)) == Task.read(process(1, "a", 1))
    assert Task.read(process(1, "a", 1)) != Task.read(process(1, "a", 2))
    assert Task.read({}) != Gpu.read({})


def test_each_field_has_a_meaning_and_a_known_type():
    """docs/status-json.md is generated from them."""
    tables = schema_tables()
    known = tables.fields()

    assert {each.__name__ for each in Record.__subclasses__()} == set(known)
    for record in Record.__subclasses__():
        assert [name for name, _ in record.FIELDS] == [key for key, _, _ in known[record.__name__]]
    assert [] == [(name, key) for name, row in known.items() for key, _, text in row if not text]
    assert (
        tables.page((ROOT / "docs/status-json.md").read_text())
        == (ROOT / "docs/status-json.md").read_text()
    )


def test_the_words_of_the_tables_are_in_the_schema():
    """The schema lists the ways of display and of blame."""
    meanings = {(name, key): text for name, row in schema_tables().fields().items()
                for key, _, text in row}  # fmt: skip

    for spec in SPECS.values():
        assert spec.display in meanings["Resource", "display"]
    for each in Blame:
        assert each.value in meanings["Incident", "blame"]
    for level in Level:
        assert level.word
    assert all(spec.exhausted for spec in SPECS.values())


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_actions_make_sense_only_for_tasks_that_they_can_help(name):
    """This does not depend on the task's name."""
    calm = Task.read(process(7, name, 1))
    paused = Task.read(process(7, name, 1, state="paused", paused_by_watchdog=True))
    held = Task.read(process(7, name, 1, guard={"stopped": True}))

    def shown(task):
        return {key for key, action in ACTIONS.items() if action.shown(task)}

    assert {"pause", "explain", "snooze", "show"} == shown(calm)
    assert {"resume", "explain", "snooze", "show"} == shown(paused)
    assert {"pause", "more_memory", "no_limit", "end", "explain", "snooze", "show"} == shown(held)
    assert "watchdog snooze --for 15m" == ACTIONS["snooze"].command_for("")
    assert "watchdog resume 7" == ACTIONS["resume"].command_for(7)
