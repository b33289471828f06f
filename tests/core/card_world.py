"""
A simulated machine with graphics cards, which drives the engine one sample at a time.

Example:
    world = CardWorld(cards=2)
    world.on(0, world.program(100, "train.ipynb"))
    world.run(10)                      # ten samples, one per second
    world.gpus[1] = replace(world.gpus[1], state=GpuState.LOST)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from support import records
from support.records import GIB, UID, host, process

from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.hardware import Gpu, GpuProcess, Hardware
from watchdog_app.core.model.machine import Fault, ProcessKey, Snapshot, Task, TaskKind
from watchdog_app.core.model.readings import readings as readings_of
from watchdog_app.core.model.resource import Reading
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.model.status import Notification
from watchdog_app.core.policy.engine import Engine, TickResult

WALL_S = 1.7e9  # wall time at which the monotonic clock was 0


def task(pid: int, name: str, cpu_s: float = 0.0, state: str = "R", workers: int = 0) -> Task:
    """A task with its workers' pids right after its own."""
    members = (
        process(pid + extra, start_time=7, state=state, cpu_s=cpu_s) for extra in range(workers + 1)
    )
    return records.task(*members, kind=TaskKind.NOTEBOOK, name=name, notebook=f"/home/ann/{name}")


def card(index: int, **more: object) -> Gpu:
    """A busy card of 24 GiB."""
    known = Gpu(
        id=f"GPU-{index}",
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA RTX 4090",
        memory_used_bytes=4 * GIB,
        memory_reserved_bytes=0,
        memory_total_bytes=24 * GIB,
        utilization_percent=95.0,
        temperature_c=70.0,
        power_w=300.0,
        power_limit_w=450.0,
        throttling=frozenset(),
    )
    return replace(known, **more)  # type: ignore[arg-type]


class CardWorld:
    """Tasks, cards, agents, a clock, and an engine that monitors them."""

    def __init__(self, cards: int = 1, settings: Settings | None = None) -> None:
        self.gpus = [card(index) for index in range(cards)]
        self.hardware = Hardware(driver_version="570.1")
        self.faults: tuple[Fault, ...] = ()
        self.engine = Engine(settings or Settings(), UID)
        self.now = 1000.0
        self.wall_s = WALL_S  # wall time at which the monotonic clock was 0; a test may set it
        self.read = True  # whether a sample reads the cards again
        self.log: list[Decision] = []
        self.notices: list[Notification] = []
        self.closed: list[str] = []
        self.result: TickResult | None = None
        self.readings: tuple[Reading, ...] = ()
        self._read_mono_s = self.now
        self._tasks: dict[int, Task] = {}
        self._agents: dict[int, AgentState] = {}
        self._busy: dict[int, float] = {}

    def program(
        self, pid: int, name: str, *, agent: bool = False, cores: float = 1.0, workers: int = 0
    ) -> int:
        """A task that starts now."""
        self._tasks[pid] = task(pid, name, workers=workers)
        self._busy[pid] = cores
        if agent:
            self._agents[pid] = AgentState(
                ProcessKey(pid, 7), "keras", "/rescues", training=True, state_bytes=GIB,
                step_s=0.1, save_s=0.5, step=500, reported_mono_s=self.now,
            )  # fmt: skip
        return pid

    def rescued(self, pid: int) -> None:
        """The agent saves a rescue now."""
        rescue = RescueRecord("/rescues/490", 490, GIB, 0.5, WALL_S + self.now)
        self._agents[pid] = replace(self._agents[pid], rescue=rescue, rescue_mono_s=self.now)

    def agent(self, pid: int, **changes: object) -> None:
        """Change what the agent reports from now on."""
        self._agents[pid] = replace(self._agents[pid], **changes)  # type: ignore[arg-type]

    def ends(self, pid: int) -> None:
        """The task ends."""
        del self._tasks[pid]
        self._agents.pop(pid, None)

    def on(self, index: int, *pids: int, memory: int | None = GIB) -> None:
        """Set which processes use a card, each with this much of its memory."""
        self.set(index, processes=tuple(GpuProcess(pid, memory) for pid in pids))

    def set(self, index: int, **changes: object) -> None:
        """Change what a card reports."""
        self.gpus[index] = replace(self.gpus[index], **changes)  # type: ignore[arg-type]

    def tasks(self) -> list[Task]:
        """The tasks in their present state."""
        return [
            replace(each, cpu_s=self._busy[pid] * self.now) for pid, each in self._tasks.items()
        ]

    def tick(self) -> TickResult:
        """Take one sample and run the engine on it."""
        if self.read:
            self._read_mono_s = self.now
        tasks = self.tasks()
        agents = {
            each.key: replace(each, reported_mono_s=self.now, step=500 + int(10 * self.now))
            for each in self._agents.values()
        }
        hardware = replace(self.hardware, gpus=tuple(self.gpus), gpus_mono_s=self._read_mono_s)
        machine = host(available=32 * GIB, swap_in_bytes=0, swap_out_bytes=0)
        snapshot = self.snapshot = Snapshot(
            self.now, self.wall_s + self.now, machine, (), faults=self.faults, hardware=hardware
        )
        readings = self.readings = readings_of(snapshot, tasks, agents.values())
        result = self.result = self.engine.tick(snapshot, tasks, readings, agents)
        self.closed += [each.label for each in result.closed]
        for decision in result.decisions:
            self.log.append(decision)
            if decision.kind is DecisionKind.NOTIFY:
                assert decision.notification is not None
                self.notices.append(decision.notification)
            elif decision.kind is DecisionKind.CHECKPOINT and decision.task is not None:
                self.rescued(decision.task.pid)
            elif decision.task is not None:
                state = "T" if decision.kind is DecisionKind.PAUSE else "R"
                pid = decision.task.pid
                self._tasks[pid] = task(pid, self._tasks[pid].name, state=state)
            self.engine.record(
                Outcome(decision.id, OutcomeStatus.DONE, WALL_S, 0.0, "done", at_mono_s=self.now)
            )
        return result

    def run(self, seconds: float, each: Callable[[float], None] | None = None) -> CardWorld:
        """Take a sample per second; call `each` before each with the seconds since the start."""
        for second in range(int(seconds)):
            if each is not None:
                each(float(second))
            self.tick()
            while self.engine.wants_tick:
                self.now += 0.005
                self.tick()
            self.now = math.floor(self.now) + 1.0
        return self

    def kinds(self) -> list[str]:
        """The decisions so far: "notify:warning", "checkpoint:train.ipynb", ..."""
        return [
            f"notify:{each.evidence['topic']}"
            if each.kind is DecisionKind.NOTIFY
            else f"{each.kind.value}:{each.evidence.get('name')}"
            for each in self.log
        ]
