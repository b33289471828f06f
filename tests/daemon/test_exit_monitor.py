"""The exit monitor's results for samples and agents that end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from watchdog_app.core.diagnosis.causes import diagnose
from watchdog_app.core.model.agent import AgentState, RescueRecord
from watchdog_app.core.model.decisions import Attribution, Contributor, Incident, Stage
from watchdog_app.core.model.exits import ExitFacts, LastError
from watchdog_app.core.model.hardware import Hardware
from watchdog_app.core.model.machine import (
    HostMemory,
    ProcessInfo,
    ProcessKey,
    ProcessSample,
    Snapshot,
    Task,
    TaskKind,
)
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.daemon.agents import Agent, Agents
from watchdog_app.daemon.exit_monitor import ExitMonitor, may_be_card_fault

ROOT, WORKER = ProcessKey(2**22 - 2, 1), ProcessKey(2**22 - 1, 1)  # unused pids
HOST = HostMemory(8, 4, 0, 0, None, None, None, None, None)


class Poller:
    """A poller for processes without a handle: nothing is ever added."""

    def add(self, *_: object) -> None:
        raise AssertionError


class Units:
    """Systemd does not answer."""

    def ask(self, *_: object, **__: object) -> None:
        return None

    def collect(self) -> None:
        pass


def sample(*tasks: Task, mono_s: float, incidents: tuple[Incident, ...] = ()) -> SimpleNamespace:
    infos = {task.key: task.info for task in tasks}
    snapshot = Snapshot(mono_s, 7e8, HOST, (), infos=infos, hardware=Hardware())
    result = SimpleNamespace(card_faults={}, tasks={}, growth={}, incidents=incidents)
    return SimpleNamespace(tasks=tasks, snapshot=snapshot, result=result, agents={}, readings=())


def launched() -> Task:
    """A launcher and its worker."""
    members = tuple(
        ProcessSample(key, 1, "S", 1000, None, None, None, 0.0) for key in (ROOT, WORKER)
    )
    info = ProcessInfo(ROOT, 1, 1000, None, None, (), None, TaskKind.SCRIPT, "run.py")
    return Task(ROOT, "run.py", TaskKind.SCRIPT, 1000, members, 0, 0, 0.0, info)


def new_monitor() -> ExitMonitor:
    return ExitMonitor(
        Poller(),
        agents=Agents(None, SimpleNamespace(forget=lambda key: None), None),
        was_paused=lambda key: False,
        units=Units(),
        worker_ended=lambda: None,
    )


def test_an_open_stall_and_its_reason_are_evidence_of_the_end():
    """A user who killed it wants to know why it stalled."""
    task, monitor = launched(), new_monitor()
    why = "no step since step 100 for 8 s; one takes 0.02 s. Most likely it writes to a pipe"
    stall = Incident(
        "i1",
        ResourceKey(ResourceKind.STALLED, f"{WORKER.pid}:1"),
        "run.py is stalled",
        opened_unix_s=7e8,
        opened_mono_s=0.0,
        stage=Stage.WARN,
        peak=Stage.WARN,
        why=why,
        attribution=Attribution((Contributor(ROOT, "run.py"),)),
    )
    monitor.follow(sample(task, mono_s=1.0, incidents=(stall,)))
    monitor.follow(sample(mono_s=2.0))

    (found,) = monitor.ended(float("inf"))

    told = [each for each in found.entry.data["evidence"] if each["source"] == "stall"]
    assert [("most_likely", f"When last seen it made no progress: {why}.")] == [
        (each["certainty"], each["text"]) for each in told
    ]
    monitor.close()


def test_a_launcher_whose_end_is_seen_before_its_worker_s_has_the_worker_s_rescue():
    """Both end at the same moment, and their handles become ready in any order."""
    task, monitor = launched(), new_monitor()
    rescue = RescueRecord("/r/rescue-90", 90, 1, 0.1, 7e8)
    view = AgentState(WORKER, "keras", "/r", training=True, rescue=rescue)
    agent = Agent(WORKER, None, view, None)

    monitor.follow(sample(task, mono_s=1.0))
    monitor.follow(sample(mono_s=2.0))
    monitor.agent_ended(agent)

    found = {each.entry.pid: each for each in monitor.ended(float("inf"))}
    assert ["/r/rescue-90"] * 2 == [each.entry.data["rescue"]["path"] for each in found.values()]
    assert {ROOT.pid, WORKER.pid} == found.keys()
    assert [] == monitor.ended(float("inf"))
    monitor.close()


def test_a_worker_whose_launcher_ended_first_is_named_by_its_own_script():
    """`watchdog explain train.py` finds the end, also if the launcher's task is gone by then."""
    monitor = new_monitor()
    own = ProcessInfo(WORKER, ROOT.pid, 1000, None, None, (), None, TaskKind.SCRIPT, "train.py",
                      script="/home/ada/train.py")  # fmt: skip
    agent = Agent(WORKER, None, AgentState(WORKER, "keras", "/r"), None)
    monitor.agents._agents[WORKER] = agent
    seen = sample(mono_s=1.0)
    seen.snapshot = replace(seen.snapshot, infos={WORKER: own})

    monitor.follow(seen)
    monitor.follow(sample(mono_s=2.0))
    monitor.agent_ended(agent)

    (found,) = monitor.ended(float("inf"))
    assert found.entry.name == "train.py"
    assert found.entry.path == "/home/ada/train.py"
    monitor.close()


def test_only_an_end_that_a_fault_of_its_card_can_explain_waits_for_the_next_reading():
    """An error that names the full GPU memory is certain: it is told at once."""
    full = LastError(error="torch.OutOfMemoryError", message="CUDA out of memory.")
    ends = {
        "full": ExitFacts(wait_status=1 << 8, words=full),
        "failed": ExitFacts(wait_status=1 << 8),
        "crashed": ExitFacts(wait_status=6),
        "fine": ExitFacts(wait_status=0),
        "read": ExitFacts(wait_status=1 << 8, card_fault="GPU 0: Xid 79"),
    }

    waits = {name for name, facts in ends.items() if may_be_card_fault(facts, diagnose(facts))}

    assert {"failed", "crashed"} == waits
