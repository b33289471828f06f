"""
Problems other than resources that fill up: GPU faults, slowdowns, stalls.

The detectors of `core.diagnosis` find them. This module turns their findings into one `Problem` per
incident, with the data that a notification needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_duration, format_step
from watchdog_app.core.diagnosis.device_health import DeviceHealth
from watchdog_app.core.diagnosis.gpu_faults import Finding
from watchdog_app.core.diagnosis.stalls import Stall, StallDetector
from watchdog_app.core.diagnosis.throttling import ThrottlingDetector
from watchdog_app.core.model.agent import AgentState, RescueRecord, ThreadDump
from watchdog_app.core.model.decisions import (
    Contributor,
    Evidence,
    Incident,
    Observation,
    Problem,
    Stage,
    Topic,
)
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.history import SwapTraffic
from watchdog_app.core.model.machine import ProcessKey, Snapshot, Task
from watchdog_app.core.model.resource import ResourceKey, ResourceKind, is_condition
from watchdog_app.core.model.settings import StallSettings

# `stall_reasons` is imported only when a training stalls.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason

# Least seconds between reports. Heat that comes and goes with every epoch opens an incident each
# time.
_QUIET_S = {Stage.WATCH: 86_400.0, Stage.WARN: 3600.0, Stage.SAVE: 0.0}
_ENDED_S = 300.0  # keep a fault this long, so that a later death of its task can name it
_MOST_AFFECTED = 8
_MOST_ADVICE = 3

_DUMP_S = 6.0  # a stall notification waits this long for the thread dump
_AGAIN_S = 60.0  # dump again after this time, because the reason may have changed
_AWAY_S = 30.0  # a disconnected agent reconnects within some seconds
_MOST_STALL_ADVICE = 2


Open = Mapping[ResourceKey, Incident]


class DeviceProblems:
    """Faults and slowdowns of GPUs and drivers."""

    def __init__(self) -> None:
        self._health = DeviceHealth()
        self._throttling = ThrottlingDetector()
        self._lasting: set[ResourceKey] = set()
        self._faults: dict[ProcessKey, tuple[float, str]] = {}
        # The last state of the agents on GPUs, including trainings that died with their GPU.
        self._agents: dict[ProcessKey, tuple[float, AgentState]] = {}

    @property
    def faults(self) -> dict[ProcessKey, str]:
        """Tasks that recently lost a GPU, with the fault."""
        return {key: text for key, (_, text) in self._faults.items()}

    def observe(
        self,
        observation: Observation,
        cpu_percent: Mapping[ProcessKey, float | None],
        incidents: Open,
    ) -> Iterator[Problem]:
        """
        Yield the problems of this sample, then the problems that ended.

        Args:
            observation: one sample of the machine.
            cpu_percent: by task; 100 is one core.
            incidents: open incidents, by key.
        """
        training = frozenset(
            key for key, each in observation.agents.items() if any(agent.training for agent in each)
        )
        self._lasting &= incidents.keys()
        tasks = tuple(observation.tasks.values())
        found: dict[ResourceKey, list[Finding]] = {}
        for finding in (
            *self._health.observe(observation.snapshot, tasks),
            *self._throttling.observe(observation.snapshot, tasks, cpu_percent, training),
        ):
            found.setdefault(finding.key, []).append(finding)
        if found or self._faults or self._agents or observation.snapshot.hardware.gpus:
            self._update_recent(observation, found)
        for key, findings in found.items():
            findings.sort(key=lambda each: -each.fault.stage)
            yield self._problem(key, findings, incidents.get(key), observation.snapshot.unix_s)
        for key, incident in incidents.items():
            if key not in found and is_condition(key) and key.kind is not ResourceKind.STALLED:
                yield self._ended_problem(key, incident, observation.snapshot)

    def _update_recent(
        self, observation: Observation, found: Mapping[ResourceKey, Sequence[Finding]]
    ) -> None:
        now = observation.snapshot.mono_s
        for finding in (each for findings in found.values() for each in findings):
            for task in finding.tasks if finding.fault.restart else ():
                self._faults[task.task] = now, f"{finding.label}: {finding.text}"
        if observation.snapshot.hardware.gpus:
            for key, agents in observation.agents.items():
                self._agents[key] = now, agents[0]
        for kept in (self._faults, self._agents):
            for key in [key for key, (at, _) in kept.items() if now - at > _ENDED_S]:
                del kept[key]

    def _problem(
        self,
        key: ResourceKey,
        findings: Sequence[Finding],
        incident: Incident | None,
        unix_s: float,
    ) -> Problem:
        first, worst = findings[0], findings[0].fault
        faults = [each.fault for each in findings]
        if any(each.lasting for each in faults):
            self._lasting.add(key)
        affected = tuple(dict.fromkeys(task for each in findings for task in each.tasks))
        affected = affected[:_MOST_AFFECTED]
        if not affected and incident is not None:
            affected = incident.contributors  # the tasks that it affected when it began
        topic = Topic.FAULT if key.kind is ResourceKind.GPU_HEALTH else Topic.SLOWED
        if worst.card_lost:
            topic = Topic.GPU_LOST
        agent = self._agents.get(affected[0].task, (0.0, None))[1] if affected else None
        work_lost = any(each.work_lost for each in faults)
        why = "; ".join(dict.fromkeys(each.text for each in findings))
        return Problem(
            key,
            first.label,
            worst.stage,
            why,
            reason=why,
            evidence={
                "card_works": int(not work_lost),
                "topic": topic.value,
                "trouble": worst.trouble.value,
                "label": first.label,
                "fatal": int(worst.restart),
                "name": affected[0].name if affected else None,
                "others": ", ".join(each.name for each in affected[1:4]) or None,
                "more": len(affected[4:]),
                "step": None if agent is None else agent.step,
                "had_agent": int(agent is not None),
                **rescue_figures(None if agent is None else agent.rescue, unix_s),
            },
            advice=tuple(dict.fromkeys(each.remedy for each in findings))[:_MOST_ADVICE],
            tasks=affected,
            facts=frozenset(each.trouble.value for each in faults),
            device_works=all(each.device_works for each in faults),
            work_lost=work_lost,
            when_off=worst.card_lost,
            quiet_s=_QUIET_S[worst.stage],
        )

    def _ended_problem(self, key: ResourceKey, incident: Incident, snapshot: Snapshot) -> Problem:
        # A GPU that is missing from the readings may work or not, so report nothing.
        answers = key.kind is not ResourceKind.GPU_HEALTH or any(
            gpu.state in (GpuState.OK, GpuState.ASLEEP) and key.subject in (gpu.id, "driver")
            for gpu in snapshot.hardware.gpus
        )
        return Problem(
            key,
            incident.label,
            Stage.OK,
            incident.why,
            reason=f"{incident.label} answers again" if key in self._lasting and answers else "",
            evidence={"topic": Topic.RESOLVED.value, "label": incident.label},
        )


@dataclass(slots=True)
class _OpenStall:
    """A training without progress."""

    task: ProcessKey
    name: str
    began: str  # observation when the stall began
    opened_mono_s: float
    seen_mono_s: float  # when its agent was last connected
    # None: restored from an earlier daemon, and its agent has not reported yet
    step: int | None = None
    phase: str | None = None
    stall: Stall | None = None  # None: restored from an earlier daemon
    asked_mono_s: float = float("-inf")
    dumped: bool = False  # whether its threads were dumped, which sets the next fields
    place: str | None = None  # current line of the training
    reasons: tuple[StallReason, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The observation at the start, and the conclusion from the threads."""
        if not self.dumped:
            return self.began
        likely = "Why is not known; its threads say nothing"
        if self.reasons:
            first = self.reasons[0]
            likely = f"Most likely {first.text} ({clean(first.reasons[0], 200)})"
        elif self.place is not None:
            likely = f"Why is not known; it is at {self.place}"
        return f"{self.began.partition('. ')[0]}. {likely}"


class StallProblems:
    """Trainings that make no steps any more. Asks the daemon for dumps of their threads."""

    def __init__(self) -> None:
        self._detector = StallDetector()
        self._open: dict[ResourceKey, _OpenStall] = {}
        self.wanted: list[ProcessKey] = []  # tasks whose threads the daemon should dump now

    def observe(
        self, observation: Observation, settings: StallSettings, incidents: Open
    ) -> Iterator[Problem]:
        """
        Yield the stalls of this sample, and the stalls that ended.

        Args:
            observation: one sample of the machine.
            settings: thresholds of a stall.
            incidents: open incidents by key, including those of an earlier daemon.
        """
        now = observation.snapshot.mono_s
        self.wanted = []
        tasks = tuple(observation.tasks.values())
        for stall in self._detector.update(now, tasks, observation.agents, settings):
            self._open_stall(stall, now)
        for key, incident in incidents.items():
            if key.kind is ResourceKind.STALLED and key not in self._open:
                self._restore_stall(key, incident, now)
        if not self._open:
            return
        agents = {agent.key: agent for each in observation.agents.values() for agent in each}
        for key, known in list(self._open.items()):
            agent = agents.get(_agent_key(key))
            if agent is not None:
                known.seen_mono_s = now
                if known.step is None and agent.reported_mono_s is not None:
                    known.step, known.phase = agent.step, agent.phase
            moved = _end_reason(known, agent, observation.tasks, now)
            if moved is not None:
                del self._open[key]
                yield _ended_stall_problem(key, known, moved)
                continue
            if now - known.asked_mono_s >= _AGAIN_S:
                known.asked_mono_s = now
                self.wanted.append(known.task)
            yield _stall_problem(key, known, now)

    def add_thread_dump(
        self, task: Task, dump: ThreadDump, swap: SwapTraffic, card_fault: str | None
    ) -> None:
        """
        Add a new thread dump of a task.

        Args:
            task: a task of `wanted`.
            dump: dump of its threads.
            swap: swap traffic of the machine.
            card_fault: fault of the task's GPU.
        """
        from watchdog_app.core.diagnosis.stall_reasons import (
            StallContext,
            stall_reasons,
            training_line,
        )

        present = {member.key.pid for member in task.members}
        for key, known in self._open.items():
            if known.task != task.key:
                continue
            cores = 0.0 if known.stall is None else known.stall.cores
            lost = tuple(sorted(self._detector.member_pids(_agent_key(key)) - present))
            known.dumped, known.place = True, training_line(dump)
            known.reasons = stall_reasons(dump, StallContext(cores, swap, card_fault, lost))
            known.advice = tuple(each.remedy for each in known.reasons)[:_MOST_STALL_ADVICE]

    def reasons(self) -> dict[ProcessKey, tuple[StallReason, ...]]:
        """Return the reasons by stalled task, most likely first, for tasks with a thread dump."""
        return {known.task: known.reasons for known in self._open.values() if known.dumped}

    def _open_stall(self, stall: Stall, now: float) -> None:
        agent = stall.agent
        key = ResourceKey(ResourceKind.STALLED, f"{agent.key.pid}:{agent.key.start_time}")
        began = (
            f"no step since step {stall.step} for {format_duration(stall.silent_s)}; "
            f"one takes {format_step(stall.step_s)}"
        )
        self._open[key] = _OpenStall(
            stall.task.key, stall.task.name, began, now, now, agent.step, agent.phase, stall
        )

    def _restore_stall(self, key: ResourceKey, incident: Incident, now: float) -> None:
        """Restore a stall of an earlier daemon. Its step is known once its agent reconnects."""
        task, name = _agent_key(key), ""
        for contributor in incident.contributors[:1]:
            task, name = contributor.task, contributor.name
        self._open[key] = _OpenStall(task, name, incident.why, now, now, advice=incident.advice)


def _agent_key(key: ResourceKey) -> ProcessKey:
    """Return the process that runs the agent, from the subject that `_open_stall` wrote."""
    pid, _, start_time = key.subject.partition(":")
    if not (pid.isdigit() and start_time.isdigit()):
        return ProcessKey(0, 0)
    return ProcessKey(int(pid), int(start_time))


def _end_reason(
    known: _OpenStall, agent: AgentState | None, tasks: Mapping[ProcessKey, Task], now: float
) -> str | None:
    """Return why the stall ended. "": the end needs no report. None: the stall continues."""
    if known.task not in tasks:
        return ""
    if agent is None:
        return "" if now - known.seen_mono_s > _AWAY_S else None
    if agent.reported_mono_s is None:
        return None  # the agent has just reconnected, and has not reported yet
    if not agent.training:
        return ""
    if (agent.step, agent.phase) == (known.step, known.phase):
        return None
    return f"it makes steps again, and is at step {agent.step}"


def _ended_stall_problem(key: ResourceKey, known: _OpenStall, moved: str) -> Problem:
    return Problem(
        key,
        f"{known.name} is stalled",
        Stage.OK,
        known.began,
        reason=moved,
        evidence={"topic": Topic.RESOLVED.value, "label": known.name, "name": known.name},
        tasks=(Contributor(known.task, known.name),),
        at_once=True,
    )


def _stall_problem(key: ResourceKey, known: _OpenStall, now: float) -> Problem:
    stall, first = known.stall, known.reasons[0] if known.reasons else None
    waited = now - known.opened_mono_s
    silent_s = waited + (0.0 if stall is None else stall.silent_s)
    reason = f"{known.name} has made no step for {silent_s:.0f} s"
    evidence: dict[str, float | str | None] = {
        "topic": Topic.STALLED.value,
        "name": known.name,
        "silent_s": silent_s,
        "looked": int(known.dumped),
        "at": known.place,
        **dict.fromkeys(("step", "step_s", "cores", "cause", "likely", "reasons", "cure")),
    }
    if stall is not None:
        evidence.update(step=stall.step, step_s=stall.step_s, cores=stall.cores)
    if first is not None:
        reason += f"; most likely {first.text}"
        reasons = "; ".join(first.reasons)
        evidence.update(
            cause=first.why.value, likely=first.text, reasons=reasons, cure=first.remedy
        )
    return Problem(
        key,
        f"{known.name} is stalled",
        Stage.WARN,
        known.why,
        reason=reason,
        evidence=evidence,
        advice=known.advice,
        tasks=(Contributor(known.task, known.name),),
        facts=frozenset((Topic.STALLED.value,)),
        ready=stall is not None and (known.dumped or waited >= _DUMP_S),
    )


def rescue_figures(rescue: RescueRecord | None, unix_s: float) -> Evidence:
    """
    Return where a rescue is, its step, and its age.

    Args:
        rescue: None: the task has no rescue.
        unix_s: current time.
    """
    return {
        "path": None if rescue is None else rescue.path,
        "rescue_step": None if rescue is None else rescue.step,
        "rescue_age_s": None if rescue is None else max(0.0, unix_s - rescue.saved_unix_s),
    }
