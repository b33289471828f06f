"""A group with a limit inside another one: neither hides the other from the forecast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.records import UID, host, info, process

from watchdog_app.core.model import readings
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.machine import CgroupMemory, ProcessKey, Snapshot
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.tasks import group_processes
from watchdog_app.core.policy.engine import Engine

MIB, GIB = 1 << 20, 1 << 30
OUTER, INNER = "/sys/fs/cgroup/pod", "/sys/fs/cgroup/pod/train"
KEY = ProcessKey(10, 1)
HOST = host()
INFO = info(process(10), name="train.py", cgroup=INNER)


def usage(path: str, used: float, limit: float) -> CgroupMemory:
    return CgroupMemory(path, 2, int(used), 0, 0, int(limit), None, 0, 0, 0)


class Nest:
    """A script that leaks 50 MiB/s in the inner group; other programs use the outer one."""

    def __init__(self, others: Callable[[float], float], outer: float, inner: float) -> None:
        self.engine = Engine(Settings(), UID)
        self.others, self.outer, self.inner = others, outer, inner
        self.now, self.used, self.stopped = 1000.0, 1.0 * GIB, False
        self.groups_seen = True
        self.log: list[Decision] = []

    @property
    def dead(self) -> bool:
        return self.used >= self.inner or self.used + self.others(self.now) >= self.outer

    def run(self, seconds: float) -> Nest:
        """Run for this long, or until the kernel kills the script."""
        end = self.now + seconds
        while self.now < end and not self.dead:
            passed = self._tick()
            self.now += passed
            self.used += 0.0 if self.stopped else 50 * MIB * passed
        return self

    def _tick(self) -> float:
        state = "T" if self.stopped else "R"
        sample = process(10, state=state, rss=self.used, vsize_bytes=int(self.used), cpu_s=1.0)
        groups = (
            usage(OUTER, self.used + self.others(self.now), self.outer),
            usage(INNER, self.used, self.inner),
        )
        snapshot = Snapshot(
            self.now,
            self.now,
            HOST,
            (sample,),
            groups if self.groups_seen else (),
            infos={KEY: INFO},
        )
        tasks = group_processes(snapshot.processes, snapshot.infos)
        result = self.engine.tick(snapshot, tasks, readings.readings(snapshot, tasks), {})
        for decision in result.decisions:
            self.log.append(decision)
            if decision.kind in (DecisionKind.PAUSE, DecisionKind.RESUME):
                self.stopped = decision.kind is DecisionKind.PAUSE
            self.engine.record(Outcome(decision.id, OutcomeStatus.DONE, self.now, 0.1, ""))
        return result.next_sample_s


@pytest.mark.parametrize("period_s", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("swing", [20 * MIB, 150 * MIB])
def test_a_leak_is_seen_though_the_tightest_group_changes_all_the_time(period_s, swing):
    """A neighbour's usage moves the outer limit nearer and farther."""
    nest = Nest(
        lambda now: 4 * GIB + (swing if now % period_s < period_s / 2 else -swing), 8 * GIB, 4 * GIB
    ).run(120)

    assert nest.stopped
    assert [DecisionKind.NOTIFY, DecisionKind.PAUSE] == [
        kind
        for kind in dict.fromkeys(decision.kind for decision in nest.log)
        if kind is not DecisionKind.CHECKPOINT
    ]


def test_a_neighbours_burst_does_not_make_a_pause_last_for_ever():
    """For two seconds the outer group is tighter; the pause still belongs to the inner group."""
    burst = [float("inf")]
    nest = Nest(lambda now: 18.03 * GIB if 0 <= now - burst[0] < 2 else 0.0, 20 * GIB, 2 * GIB).run(
        60
    )
    assert nest.stopped

    burst[0] = nest.now + 1
    nest.run(30)
    nest.inner = 12 * GIB
    nest.run(60)

    assert DecisionKind.RESUME in [decision.kind for decision in nest.log]


def test_a_group_that_cannot_be_read_for_a_moment_does_not_lose_its_pause():
    """The incident stays open while a task that it paused lives."""
    nest = Nest(lambda now: 0.0, 20 * GIB, 2 * GIB).run(60)
    assert nest.stopped

    nest.groups_seen = False
    nest.run(3)
    nest.groups_seen = True
    nest.inner = 12 * GIB
    nest.run(60)

    assert DecisionKind.RESUME in [decision.kind for decision in nest.log]


def test_an_incident_ends_when_its_group_is_gone_and_a_person_has_resumed_the_task():
    """No task is paused then, and no limit exists."""
    nest = Nest(lambda now: 0.0, 20 * GIB, 2 * GIB).run(60)
    nest.groups_seen = False
    nest.run(3)
    open_before = nest.engine.dump()["incidents"]

    nest.stopped = False
    nest.inner = 12 * GIB
    nest.run(1)

    assert [[1], 0] == [
        [len(each["paused"]) for each in open_before],
        len(nest.engine.dump()["incidents"]),
    ]
