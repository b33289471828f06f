"""
The daemon's loop, which sets the order of all steps: wait, serve, sample, decide, act, record.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from watchdog_app.base import own_process
from watchdog_app.base.errors import ConfigError
from watchdog_app.base.text.quantities import format_duration
from watchdog_app.core.model.decisions import Decision, DecisionKind
from watchdog_app.core.model.machine import Task
from watchdog_app.core.policy import cadence
from watchdog_app.daemon.control import Control
from watchdog_app.daemon.exit_monitor import Exit
from watchdog_app.daemon.instance import InstanceLock, ServiceManager
from watchdog_app.daemon.logind import Logind
from watchdog_app.daemon.pace import LOOP_LAG, Clocks
from watchdog_app.daemon.parts import Parts
from watchdog_app.daemon.status import AssessedSample
from watchdog_app.machine.sensors import groups

_DURABLE_TIMEOUT_S = 0.1  # longest wait for the disk for all notable ends of one turn
_HOUSEKEEPING_INTERVAL_S = 3.0
_STATE_INTERVAL_S = 15.0
_GARBAGE_INTERVAL_S = 60.0
_PRESSURE_PERCENT = 10.0  # share of the time in which some task waits for memory


class Loop:
    """Runs the parts until stopped."""

    def __init__(
        self, parts: Parts, control: Control, lock: InstanceLock, service_manager: ServiceManager
    ) -> None:
        self._parts = parts
        self._control = control
        self._lock = lock
        self._service_manager = service_manager
        self._clocks = Clocks()
        self.logind = Logind(
            parts.poller,
            parts.executor,
            parts.exit_monitor.last_seen,
            tasks=parts.observer.tasks,
            note=control.note,
        )
        self._next_housekeeping_mono_s = 0.0
        self._next_state_mono_s = 0.0
        self._next_heartbeat_mono_s = 0.0
        self._next_garbage_mono_s = 0.0

    def run(self) -> None:
        """Sample, decide, act and answer requests, until stopped."""
        while not self._control.stopping:
            self._run_once()

    def _run_once(self) -> None:
        parts, run_step = self._parts, self._parts.faults.run_step
        parts.poller.wait(self._wait_s(time.monotonic()))
        run_step("wakeups", self._handle_wakeup)
        run_step("agents", self._report_ended_agents)
        run_step("exits", partial(self.report_exits, time.monotonic()))
        run_step("requests", parts.server.serve)
        run_step("guard events", self._announce_guard_events)
        now = time.monotonic()
        run_step("results", partial(self._collect_results, now))
        if parts.observer.wants_tick:
            parts.pace.sample_now()
        if now >= parts.pace.next_sample_mono_s:
            run_step("look", self.sample)
        if now >= self._next_housekeeping_mono_s:
            self._next_housekeeping_mono_s = now + _HOUSEKEEPING_INTERVAL_S
            self._housekeeping(now)
        if self._control.reloading:
            self._control.reloading = False
            run_step("reload", self._reload)
        if self._service_manager.heartbeat_s is not None and now >= self._next_heartbeat_mono_s:
            self._next_heartbeat_mono_s = now + self._service_manager.heartbeat_s
            self._service_manager.heartbeat(now, pressed=self._is_under_pressure())

    def sample(self) -> None:
        """Take one sample of the machine and act on it."""
        parts, run_step = self._parts, self._parts.faults.run_step
        began = parts.pace.started()
        spent_s = time.thread_time()
        wanted_s = parts.pace.settings.interval_s
        try:
            wanted_s = self._sample_and_act(began)
        finally:
            parts.pace.ended(wanted_s, time.thread_time() - spent_s)
        self._report_lateness()
        tasks = parts.observer.tasks()
        run_step("alive tasks", partial(parts.missed_exits.save_alive, parts.observer.latest))
        run_step("restarts", partial(self._follow_restarts, tasks))
        run_step("inspections", partial(parts.inspections.inspect, parts.pace.settings.trace))
        self._control.cost.update(time.monotonic())

    def report_exits(self, now_mono_s: float) -> None:
        """Record processes that have ended, and report them."""
        parts = self._parts
        for entry in parts.missed_exits.ended(now_mono_s):
            self._parts.log.warning(str(entry.data["text"]))
            parts.journal.add(entry)
        exits = parts.exit_monitor.ended(now_mono_s)
        if not exits:
            return
        parts.journal.add(*(each.entry for each in exits if not each.notable))
        notable = [each.entry for each in exits if each.notable]
        for entry in notable:
            self._parts.log.warning(str(entry.data["text"]))
        if notable:  # usually on disk after this; a slow disk gets no more time
            parts.journal.write_durably(notable, _DURABLE_TIMEOUT_S)
        parts.pace.sample_soon()
        for each in exits:  # a failure to report one must not prevent the others
            parts.faults.run_step("exit reports", partial(self._report_exit, each))

    # One sample

    def _sample_and_act(self, began_mono_s: float) -> float:
        """Measure and act on it; return the seconds until the next sample."""
        parts, run_step = self._parts, self._parts.faults.run_step
        self._check_clocks()
        before = parts.observer.latest
        sample = parts.observer.sample(parts.guards.limits())
        if sample is not None:
            run_step("exit monitor", partial(self._follow, sample))
            run_step("decisions", partial(self._carry_out_decisions, sample))
            run_step("journal", partial(self._record, sample))
            run_step("runs", partial(parts.runs.follow, sample.snapshot.mono_s))
            run_step("pauses", parts.pauses.remove_ended)
            run_step("status", partial(self._control.publish, began_mono_s))
        return self._next_interval_s(sample, before)

    def _follow(self, sample: AssessedSample) -> None:
        self._parts.exit_monitor.follow(sample)
        self.report_exits(time.monotonic())

    def _report_exit(self, ended: Exit) -> None:
        """Notify people of an exit if the engine decides so."""
        parts, sample, task = self._parts, self._parts.observer.latest, ended.task
        decisions: Sequence[Decision] = ()
        if ended.notable and task is not None and sample is not None:
            decisions = parts.observer.call_engine(
                lambda engine: engine.task_ended(task, ended.view, ended.cause, sample.snapshot)
            )
            if decisions:
                parts.executor.carry_out(decisions, {task.key: task})
        decision = decisions[0] if decisions else None
        restarted = parts.restarts.task_ended(task, decision, ended.mono_s)
        if restarted is not None:
            self._notify(*restarted)

    def _notify(self, decision: Decision, task: Task) -> None:
        """Notify people about a task that may have ended."""
        self._parts.executor.carry_out([decision], {task.key: task})

    def _follow_restarts(self, tasks: Sequence[Task]) -> None:
        """Move snoozes to restarted kernels; notify people after a notable exit."""
        parts = self._parts
        for restart in parts.restarts.update(tasks):
            self._control.move_snoozes(restart.before, restart.now)
            parts.journal.add(restart.entry)
            if restart.notified is not None:
                self._notify(*restart.notified)
        parts.state_store.save_known()

    def _carry_out_decisions(self, sample: AssessedSample) -> None:
        parts = self._parts
        if not sample.result.decisions:
            return
        true, false, tasks = parts.observer.still_holds(sample.result.decisions)
        before = {task.key: task for task in sample.tasks}
        for decision in false:
            task = before.get(decision.task) if decision.task else None
            parts.executor.skip(decision, task, "Measured again, and no longer true.")
        if true:
            parts.executor.carry_out(true, tasks if tasks is not None else before)
        if any(decision.kind is DecisionKind.NOTIFY for decision in true):
            # If this daemon is killed now, the next one does not repeat the notifications, and
            # reports suppressed ones when the quiet time ends.
            parts.state_store.save_engine()
            self._control.save_quiet()

    def _record(self, sample: AssessedSample) -> None:
        parts = self._parts
        at_rest = sample.result.next_sample_s >= parts.pace.settings.interval_s
        parts.journal.add_series(parts.recorder.points(sample), at_rest)
        entries = parts.recorder.incidents(sample)
        if entries:
            parts.journal.add(*entries)

    def _next_interval_s(
        self, sample: AssessedSample | None, before: AssessedSample | None
    ) -> float:
        """Seconds until the next sample, by the policy and by whether a client watches."""
        parts = self._parts
        usual_s = parts.pace.settings.interval_s
        if sample is None:
            return usual_s
        if parts.pauses.all() or parts.server.has_subscribers("status"):
            return min(usual_s, sample.result.next_sample_s)
        return cadence.interval_s(
            sample.result,
            sample.snapshot,
            sample.readings,
            before=() if before is None else before.readings,
            agents=parts.agents.views(),
            usual_s=usual_s,
        )

    def _report_lateness(self) -> None:
        late = self._parts.pace.loop_lag.fault(time.monotonic())
        if late is None:
            self._parts.faults.clear(LOOP_LAG)
        else:
            self._parts.faults.put(late.source, late.message, late.remedy)

    def _check_clocks(self) -> None:
        slept_s, set_s = self._clocks.poll()
        if slept_s:
            self._parts.observer.call_engine(lambda engine: engine.reset_trends())
            self._control.note(f"the machine slept for {format_duration(slept_s)}")
        if set_s:
            way = "forward" if set_s > 0 else "back"
            self._control.note(f"the clock was set {way} by {format_duration(abs(set_s))}")

    # Between the samples

    def _reload(self) -> None:
        with suppress(ConfigError):  # already reported as a fault and logged
            self._control.reload()

    def _handle_wakeup(self) -> None:
        """Sample soon after memory pressure, or when a memory group nears its limit."""
        wakeup = self._parts.observer.triggers.pop_wakeup()
        if wakeup is not None:
            self._parts.log.debug("woken", source=wakeup.source, path=wakeup.path)
            self._parts.pace.sample_soon()

    def _report_ended_agents(self) -> None:
        """Report agents whose processes have ended without an event on a pidfd."""
        for agent in self._parts.agents.ended():
            self._parts.exit_monitor.agent_ended(agent)

    def _announce_guard_events(self) -> None:
        for notification, entry, task in self._parts.guards.take_events():
            self._parts.executor.announce(notification, entry, task)

    def _collect_results(self, now_mono_s: float) -> None:
        """Collect results of threads and processes; end overdue requests."""
        parts = self._parts
        if parts.journal.reopened:
            parts.journal.reopened = False
            parts.state_store.save_engine()
        parts.journal.collect()
        parts.pauses.collect()
        parts.worker.collect()
        parts.runs.worker.collect()
        parts.copies.collect()
        parts.supervisors.collect()
        parts.checkpoints.expire(now_mono_s)
        parts.inspections.expire(now_mono_s)
        parts.dispatcher.poll(now_mono_s)
        while parts.journal.notes:
            self._parts.log.warning(parts.journal.notes.popleft())

    def _housekeeping(self, now_mono_s: float) -> None:
        """Run each task on its own: without a runtime folder, quiet times must still end."""
        parts, run_step = self._parts, self._parts.faults.run_step
        run_step("lock", self._keep_lock)
        if self._control.stopping:  # the socket belongs to the other daemon
            return
        run_step("quiet", self._control.expire_quiet)
        run_step("logind", partial(self.logind.follow, now_mono_s, parts.settings.agent.grace_s))
        run_step("screen", partial(parts.dispatcher.close_over, self._control.status))
        run_step("channels", parts.dispatcher.follow)
        run_step("socket", parts.server.restore_socket)
        run_step("pause file", parts.pauses.rewrite_missing)
        if now_mono_s >= self._next_state_mono_s:
            self._next_state_mono_s = now_mono_s + _STATE_INTERVAL_S
            run_step("state", partial(parts.state_store.save_engine, if_new=True))
        if now_mono_s >= self._next_garbage_mono_s:
            self._next_garbage_mono_s = now_mono_s + _GARBAGE_INTERVAL_S
            own_process.collect_garbage()

    def _keep_lock(self) -> None:
        if not self._lock.reacquire():
            self._parts.log.error("another daemon has taken over; this one ends")
            self._control.stopping = True

    def _wait_s(self, now_mono_s: float) -> float:
        parts = self._parts
        if parts.server.busy:
            return 0.0
        deadlines = (
            parts.pace.next_sample_mono_s,
            # If the next sample comes soon, chores wait for it.
            self._next_housekeeping_mono_s + _HOUSEKEEPING_INTERVAL_S,
            parts.checkpoints.next_deadline_mono_s(),
            parts.inspections.next_deadline_mono_s(),
            parts.exit_monitor.next_deadline_mono_s(),
            parts.missed_exits.next_deadline_mono_s(),
            parts.dispatcher.next_deadline_mono_s(),
            parts.server.next_deadline_mono_s(),
            self._next_heartbeat_mono_s if self._service_manager.heartbeat_s is not None else None,
        )
        return max(0.0, min(each for each in deadlines if each is not None) - now_mono_s)

    def _is_under_pressure(self) -> bool:
        """Whether memory is so short that one turn of the loop may take minutes."""
        sample = self._parts.observer.latest
        if sample is None:
            return False
        pressure = sample.snapshot.host.pressure
        short = pressure is not None and pressure.some_avg10 >= _PRESSURE_PERCENT
        return short or any(fault.source == groups.MEMBERSHIPS for fault in sample.snapshot.faults)
