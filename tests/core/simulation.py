"""
A simulated machine that drives the engine tick by tick without waiting.

Trainings grow with each step and stop while they save or are paused. When their group or the
machine is full, the largest is killed. The engine's own sampling interval advances the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from support.records import UID, host, process, task

from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Decision, DecisionKind, Outcome, OutcomeStatus
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task, TaskKind
from watchdog_app.core.model.resource import Reading, ResourceKey, ResourceKind
from watchdog_app.core.model.settings import Settings
from watchdog_app.core.policy.engine import Engine, TickResult

MB = 1_000_000
WALL_S = 1.7e9  # wall time at which the monotonic clock was 0
_RESOLUTION_S = 0.005


@dataclass
class Program:
    """
    A task. `grows` gives its bytes after so many seconds of running.

    With `save_s` it has an agent whose saves take that long; `fails` makes saves fail. On a pause
    it first waits in the kernel for `waits_s`, and stops after that.
    """

    pid: int
    name: str
    grows: Callable[[float], float]
    step_s: float = 0.05
    save_s: float | None = None
    fails: bool = False
    deaf: bool = False  # never answers a request
    uid: int = UID
    kind: TaskKind = TaskKind.NOTEBOOK
    group: str = ""
    starts_s: float = 0.0
    ran_s: float = 0.0
    stopped: bool = False
    waits_s: float = 0.0
    paused_s: float = 0.0
    dead: bool = False
    saving_until: float | None = None
    request: Decision | None = None
    asked_s: float = 0.0
    rescue: RescueRecord | None = None
    rescue_mono_s: float | None = None
    saves: list[float] = field(default_factory=list)

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.pid, 7)

    @property
    def step(self) -> int:
        return int(self.ran_s / self.step_s)

    @property
    def bytes(self) -> float:
        return 0.0 if self.dead else self.grows(self.step * self.step_s)


def leak(mb_per_s: float, base_mb: float = 300.0) -> Callable[[float], float]:
    return lambda t: (base_mb + mb_per_s * t) * MB


def flat(mb: float) -> Callable[[float], float]:
    return lambda t: mb * MB


class Machine:
    """Programs, limits, a clock, and an engine that monitors them."""

    def __init__(
        self,
        *programs: Program,
        groups: dict[str, float] | None = None,
        ram_mb: float = 64_000,
        swap_mb: float = 0,
        settings: Settings | None = None,
        others: Callable[[float], float] = lambda t: 0.0,
    ) -> None:
        self.programs = list(programs)
        self.groups = {name: mb * MB for name, mb in (groups or {}).items()}
        self.ram, self.swap = ram_mb * MB, swap_mb * MB
        self.others = others  # bytes of programs that watchdog does not watch
        self.engine = Engine(settings or Settings(), UID)
        self.now = 0.0
        self.log: list[Decision] = []
        self.closed: list[str] = []
        self.result: TickResult | None = None
        self.refuse: set[DecisionKind] = set()  # actions that fail

    # The world

    def alive(self) -> list[Program]:
        return [p for p in self.programs if not p.dead and p.starts_s <= self.now]

    def used(self, group: str | None = None) -> float:
        inside = sum(p.bytes for p in self.alive() if group is None or p.group == group)
        return inside + (self.others(self.now) if group is None else 0.0)

    def _advance(self, until: float) -> None:
        """Move time to `until`, or to the first report of an agent."""
        before: list[float] = []
        while self.now < until - 1e-7:
            dt = min(_RESOLUTION_S, until - self.now)
            self.now += dt
            answered = False
            alive = self.alive()
            for program in alive:
                answered |= self._run(program, dt)
            held = [self.others(self.now), *(each.step for each in alive)]
            if held != before:  # else nobody has grown
                self._kill()
            before = held
            if answered:
                return

    def _run(self, program: Program, dt: float) -> bool:
        if program.stopped:
            return False
        if program.saving_until is not None:
            if self.now < program.saving_until:
                return False
            program.saving_until = None
            self._saved(program)
            return True
        before = program.step
        program.ran_s += dt
        request = program.request
        if request is not None and program.step > before and not program.deaf:
            program.saving_until = self.now + (program.save_s or 0.0)
        return False

    def _saved(self, program: Program) -> None:
        request, program.request = program.request, None
        assert request is not None
        ok = not program.fails
        if ok:
            seconds = program.save_s or 0.0
            program.rescue = RescueRecord(
                f"/rescues/{program.step}", program.step, 10 * MB, seconds, WALL_S + self.now
            )
            program.rescue_mono_s = self.now
            program.saves.append(self.now)
        self._report(request, ok, "saved" if ok else "the disk is full")

    def _kill(self) -> None:
        full = [g for g, limit in self.groups.items() if self.used(g) >= limit]
        victims = [p for g in full for p in self.alive() if p.group == g]
        if self.used() >= self.ram + self.swap:
            victims += self.alive()
        if victims:
            max(victims, key=lambda p: p.bytes).dead = True

    # The engine

    def tick(self) -> TickResult:
        alive = self.alive()
        tasks = [self._task(p) for p in alive]
        agents = {p.key: self._agent(p) for p in alive if p.save_s is not None}
        result = self.engine.tick(self._snapshot(), tasks, self.readings(), agents)
        self.result = result
        self.closed += [incident.id for incident in result.closed]
        for decision in result.decisions:
            self.log.append(decision)
            self._act(decision)
        return result

    def run(self, seconds: float, until: Callable[[], object] = lambda: False) -> Self:
        """Run for this many seconds, or until something is true."""
        end = self.now + seconds
        while self.now < end - 1e-6 and not until():
            result = self.tick()
            pause = 0.005 if self.engine.wants_tick else result.next_sample_s
            self._advance(min(end, self.now + pause))
        return self

    def _act(self, decision: Decision) -> None:
        assert Engine.is_still_valid(decision, self.readings())
        if decision.kind in self.refuse:
            self._report(decision, False, "refused")
            return
        program = next((p for p in self.programs if p.key == decision.task), None)
        if decision.kind is DecisionKind.CHECKPOINT:
            assert program is not None
            assert program.deaf or program.request is None, (
                "asked again while the first request is open"
            )
            program.request = decision
            program.asked_s = self.now
            return
        if decision.kind is DecisionKind.PAUSE:
            assert program is not None
            assert program.saving_until is None, "paused in the middle of a save"
            program.stopped, program.paused_s = True, self.now
        if decision.kind is DecisionKind.RESUME:
            assert program is not None
            program.stopped = False
        self._report(decision, True, "done")

    def _report(self, decision: Decision, ok: bool, detail: str) -> None:
        status = OutcomeStatus.DONE if ok else OutcomeStatus.FAILED
        self.engine.record(
            Outcome(decision.id, status, WALL_S + self.now, 0.0, detail, at_mono_s=self.now)
        )

    def kinds(self, *kinds: DecisionKind) -> list[str]:
        """The decisions in order: "notify:warning", "checkpoint:train.ipynb", ..."""
        return [_word(d) for d in self.log if not kinds or d.kind in kinds]

    # Records

    def readings(self) -> list[Reading]:
        everyone = tuple(p.key for p in self.alive())
        found = [
            Reading(
                ResourceKey(ResourceKind.RAM),
                "RAM",
                min(self.used(), self.ram),
                self.ram,
                not self.swap,
                everyone,
            )
        ]
        if self.swap:
            found.append(
                Reading(
                    ResourceKey(ResourceKind.RAM_SWAP),
                    "RAM and swap",
                    self.used(),
                    self.ram + self.swap,
                    True,
                    everyone,
                )
            )
        for group, limit in self.groups.items():
            hit = tuple(p.key for p in self.alive() if p.group == group)
            if hit:
                found.append(
                    Reading(
                        ResourceKey(ResourceKind.CGROUP, f"/{group}"),
                        f"memory limit of the group {group}",
                        self.used(group),
                        limit,
                        True,
                        hit,
                    )
                )
        return found

    def _snapshot(self) -> Snapshot:
        free, swap = max(0.0, self.ram - self.used()), int(self.swap)
        moved = {"swap_in_bytes": 0, "swap_out_bytes": 0}
        machine = host(self.ram, free, swap_total_bytes=swap, swap_free_bytes=swap, **moved)
        return Snapshot(self.now, WALL_S + self.now, machine, ())

    def _task(self, program: Program) -> Task:
        waits = self.now - program.paused_s < program.waits_s
        root = process(
            program.pid, start_time=7, state="R" if not program.stopped else "D" if waits else "T",
            rss=program.bytes, shared_bytes=None, cpu_s=program.ran_s,
        )  # fmt: skip
        path = f"/home/ann/{program.name}"
        return task(root, kind=program.kind, uid=program.uid, name=program.name, notebook=path)

    def _agent(self, program: Program) -> AgentState:
        return AgentState(
            program.key,
            "keras",
            "/rescues",
            training=True,
            state_bytes=10 * MB,
            step_s=program.step_s,
            save_s=program.save_s,
            step=program.step,
            saving=program.saving_until is not None,
            rescue=program.rescue,
            rescue_mono_s=program.rescue_mono_s,
        )


def _word(decision: Decision) -> str:
    if decision.kind is DecisionKind.NOTIFY:
        return f"notify:{decision.evidence['topic']}"
    return f"{decision.kind.value}:{decision.evidence.get('name')}"
