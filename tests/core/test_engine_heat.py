"""Heat, an empty battery and the clock through the whole engine: saves, notices and pauses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.records import GIB, host, info, process

from watchdog_app.core.model.agent import AgentState
from watchdog_app.core.model.decisions import DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import Snapshot
from watchdog_app.core.model.readings import readings
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.status import Battery, Temperature
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.core.policy.engine import Engine

UNIX_S = 1_800_000_000.0
FAILS_S = 100.0


def played(hardware, seconds, pids=(7,), **about):
    """
    Every decision as (time, decision), for a machine whose tasks all train with an agent.

    Saves and notices finish at once; nothing is really paused.
    """
    engine = Engine(Settings(), own_uid=0)
    machine = host(available=60 * GIB)
    begun = [process(pid, start_time=pid) for pid in pids]
    infos = {each.key: info(each, uid=0, name=f"p{each.key.pid}.py", **about) for each in begun}
    t, made = 0.0, []
    while t < seconds:
        samples = tuple(replace(each, cpu_s=t) for each in begun)
        snapshot = Snapshot(t, UNIX_S + t, machine, samples, infos=infos, hardware=hardware(t))
        agents = {
            key: AgentState(
                key,
                "tensorflow",
                "/x",
                training=True,
                save_s=1.0,
                step_s=0.2,
                step=100 + int(t / 0.2),
                reported_mono_s=t,
            )
            for key in infos
        }
        tasks = group_processes(samples, infos)
        found = engine.tick(snapshot, tasks, readings(snapshot, tasks, agents.values()), agents)
        for decision in found.decisions:
            made.append((t, decision))
            engine.record(
                Outcome(decision.id, OutcomeStatus.DONE, UNIX_S + t, 1.0, "done", at_mono_s=t)
            )
        t += max(0.1, found.next_sample_s)
    return made


def of_kind(made, kind, resource):
    """Time and pid of the decisions of one kind for one kind of resource."""
    return [
        (t, None if each.task is None else each.task.pid)
        for t, each in made
        if each.kind is kind and each.resource.kind is resource
    ]


def machine(celsius):
    """A laptop: the processor throttles at 100, the kernel shuts down at 105."""
    shown = float(round(celsius))
    return Hardware(
        temperatures=(
            Temperature(
                key="coretemp/Package id 0",
                label="CPU",
                celsius=shown,
                slowdown_c=100.0,
                shutdown_c=None,
                is_cpu=True,
            ),
            Temperature(
                key="thermal_zone0",
                label="mainboard",
                celsius=shown,
                slowdown_c=None,
                shutdown_c=105.0,
            ),
        )
    )


def failing(t):
    """Temperature over time when cooling fails under load."""
    return 75.0 if t < FAILS_S else 75.0 + 0.4 * (t - FAILS_S)


def test_a_training_that_warms_the_machine_up_is_let_alone():
    """It warms to 95 of 100 degrees, which is not a danger."""
    assert [] == played(lambda t: machine(95.0 - 50.0 * math.exp(-t / 40.0)), 400.0)


def test_failing_cooling_is_told_of_and_the_training_saved_before_the_machine_is_off():
    """The machine shuts down at 175 s; the last save is seconds old then."""
    made = played(lambda t: machine(failing(t)), FAILS_S + 73.0)

    saves = of_kind(made, DecisionKind.CHECKPOINT, ResourceKind.TEMPERATURE)

    assert of_kind(made, DecisionKind.NOTIFY, ResourceKind.TEMPERATURE)
    assert {7} == {pid for _, pid in saves}
    assert saves[0][0] <= FAILS_S + 65.0
    assert saves[-1][0] >= FAILS_S + 65.0


def test_a_battery_told_in_whole_percents_is_no_faster_than_it_is():
    """One step is not a rate: no save a minute for half an hour, and none missing at the end."""

    def hardware(t):
        left = round(50.0 - t / 36.0)
        return Hardware(
            batteries=(Battery(name="BAT0", percent=left, discharging=True),), on_mains=False
        )

    made = played(hardware, 1600.0)
    saves = of_kind(made, DecisionKind.CHECKPOINT, ResourceKind.BATTERY)

    assert 3 <= len(saves) <= 20
    assert saves[-1][0] >= 1400.0


@pytest.mark.parametrize(("ends_s", "notified_s"), [(7200.0, 6600.0), (600.0, 300.0)])
def test_people_are_told_once_before_the_time_of_a_program_is_over(ends_s, notified_s):
    """Ten minutes before the end, at half of a short time. The agent saves without a request."""
    about = {"started_unix_s": UNIX_S, "ends_unix_s": UNIX_S + ends_s}

    made = played(lambda _: Hardware(), ends_s + 5.0, **about)

    (told,) = of_kind(made, DecisionKind.NOTIFY, ResourceKind.WALLTIME)
    assert (pytest.approx(notified_s, abs=5.0), 7) == told
    assert {DecisionKind.NOTIFY} == {decision.kind for _, decision in made}


def test_a_program_that_inherits_the_end_of_an_earlier_job_has_no_end():
    about = {"started_unix_s": UNIX_S, "ends_unix_s": UNIX_S - 1.0}

    assert [] == played(lambda _: Hardware(), 100.0, **about)
