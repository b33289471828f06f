"""
Who died, of what, and what is left: from the ends of processes to journal entries and notices.

A task that holds an agent is always asked after; of the others only those that
the kernel killed for memory, or that crashed or were killed near a limit: that
a script ends is no news.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from watchdog_app.core.outlook import CeilingKind, Stage
from watchdog_app.core.records import ProcessKey, Task
from watchdog_app.daemon import deaths
from watchdog_app.daemon.agents import Agent
from watchdog_app.daemon.journal import Entry
from watchdog_app.daemon.poller import READ, Poller
from watchdog_app.daemon.status import Look
from watchdog_app.sensors import process_end

_MOST_HANDLES = 500
# Tearing down a large process takes the kernel seconds under pressure: its kill was counted then.
_RECENT_S = 15.0


@dataclass(slots=True)
class _Watched:
    """The root of a task that lives, or did at the last tick."""

    task: Task
    handle: int | None
    kills_before: int | None  # for memory in its group, when it was first seen


@dataclass(frozen=True, slots=True)
class Death:
    """One to be written down and, where `tell` says so, told."""

    task: ProcessKey
    name: str
    title: str
    text: str
    tell: bool
    entry: Entry


class Obituaries:
    """
    Follows every task to its end.

    Args:
        told: called with each death, once.
        agent_of: the agent in a process, None where there is none.
        was_paused: whether we hold a task paused.
    """

    def __init__(
        self,
        poller: Poller,
        *,
        told: Callable[[Death], None],
        agent_of: Callable[[ProcessKey], Agent | None],
        was_paused: Callable[[ProcessKey], bool],
        proc: str = "/proc",
    ) -> None:
        self._poller = poller
        self._told = told
        self._agent_of = agent_of
        self._was_paused = was_paused
        self._proc = proc
        self._watched: dict[ProcessKey, _Watched] = {}
        self._near: dict[ProcessKey, str] = {}  # label of a ceiling that is near its end, by task
        self._groups: dict[str, str] = {}  # label of a group's limit, by folder
        self._done: deque[ProcessKey] = deque(maxlen=500)
        self._host_kills = process_end.host_oom_kills(proc)
        self._killed_mono_s = float("-inf")  # when that counter was last seen to rise

    def take(self, look: Look) -> None:
        """Follow the tasks of one more tick."""
        self._count()
        self._learn_labels(look)
        now = {task.key: task for task in look.tasks}
        for key, task in now.items():
            watched = self._watched.get(key)
            if watched is None:
                self._watched[key] = self._follow(task)
                continue
            if self._recent_kill() and len(watched.task.members) > 1:
                self._look_for_workers(watched.task, task)
            watched.task = task
        for key in [key for key in self._watched if key not in now]:
            self._ended(key)

    def agent_ended(self, agent: Agent) -> None:
        """The process of an agent has ended without a good-bye."""
        watched = self._holder(agent.key)
        if watched is not None and watched.task.key == agent.key:
            self._ended(agent.key)
            return
        self._write(
            agent.key,
            name=watched.task.name if watched else agent.notebook or f"process {agent.key.pid}",
            group=watched.task.info.cgroup if watched else None,
            kills_before=watched.kills_before if watched else None,
            handle=agent.handle,
            agent=agent,
            path=agent.notebook,
        )

    def close(self) -> None:
        """Give the handles back."""
        for watched in self._watched.values():
            self._release(watched)
        self._watched.clear()

    def _follow(self, task: Task) -> _Watched:
        handle = None
        if len(self._watched) < _MOST_HANDLES:
            handle = process_end.open_handle(task.key.pid)
        if handle is not None:
            # Opened by pid alone: if that is another process by now, its end finds no task.
            self._poller.add(handle, READ, lambda _: self._ended(task.key))
        group = task.info.cgroup
        kills = process_end.group_oom_kills(group) if group else None
        return _Watched(task, handle, kills)

    def _ended(self, key: ProcessKey) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        try:
            task = watched.task
            self._write(
                key,
                name=task.name,
                group=task.info.cgroup,
                kills_before=watched.kills_before,
                handle=watched.handle,
                agent=self._agent_of(key),
                path=task.info.notebook or task.info.script,
            )
        finally:
            self._release(watched)

    def _write(
        self,
        key: ProcessKey,
        *,
        name: str,
        group: str | None,
        kills_before: int | None,
        handle: int | None,
        agent: Agent | None,
        path: str | None,
    ) -> None:
        if key in self._done:
            return
        self._done.append(key)
        self._count()
        near = self._near.get(key) or self._groups.get(group or "")
        cause = deaths.cause(
            deaths.Traces(
                wait_status=process_end.wait_status(key.pid, key.start_time, handle, self._proc),
                group_kills=self._group_kills(group, kills_before),
                host_kills=int(self._recent_kill()) if self._host_kills is not None else None,
                near_limit=self._near.get(key),
                limit=near,
                was_paused=self._was_paused(key),
            )
        )
        cared_for = agent is not None and not agent.said_bye
        if cause.kind == deaths.ENDED:
            return
        listed = cause.kind == deaths.OUT_OF_MEMORY or (
            cause.kind in (deaths.KILLED, deaths.CRASHED) and key in self._near
        )
        if not (listed or cared_for):
            return
        rescue = agent.view.rescue if agent is not None else None
        now = time.time()
        self._told(
            Death(
                key,
                name,
                title=f"{name} {cause.short}",
                text=deaths.text(name, key.pid, cause, rescue, now),
                tell=cause.kind != deaths.FAILED,
                entry=Entry(
                    now,
                    "death",
                    deaths.entry(name, key.pid, cause, rescue, now),
                    pid=key.pid,
                    name=name,
                    path=path,
                ),
            )
        )

    def _look_for_workers(self, before: Task, now: Task) -> None:
        """A worker that the kernel killed, while its task lives on."""
        left = {member.key for member in now.members}
        for member in before.members:
            if member.key in left or member.key in self._done:
                continue
            if process_end.wait_status(member.key.pid, member.key.start_time, None) not in (
                None,
                9,
            ):
                continue
            self._done.append(member.key)
            text = (
                f"A worker (process {member.key.pid}) of {now.name} (pid {now.key.pid}) is gone, "
                "and the kernel has just killed a process for memory. The task itself lives on; "
                "it may wait for that worker for ever."
            )
            data = {
                "pid": now.key.pid,
                "name": now.name,
                "worker": member.key.pid,
                "cause": deaths.OUT_OF_MEMORY,
                "text": text,
                "rescue": None,
            }
            path = now.info.notebook or now.info.script
            self._told(
                Death(
                    now.key,
                    now.name,
                    title=f"A worker of {now.name} was killed for memory",
                    text=text,
                    tell=True,
                    entry=Entry(time.time(), "death", data, now.key.pid, now.name, path),
                )
            )

    def _count(self) -> None:
        kills = process_end.host_oom_kills(self._proc)
        if kills is not None and self._host_kills is not None and kills > self._host_kills:
            self._killed_mono_s = time.monotonic()
        self._host_kills = kills

    def _recent_kill(self) -> bool:
        return time.monotonic() - self._killed_mono_s < _RECENT_S

    def _group_kills(self, group: str | None, before: int | None) -> int | None:
        now = process_end.group_oom_kills(group) if group else None
        if now is None or before is None:
            return None
        # The group's counter says that it was hit, the machine's that it was just now.
        return now - before if self._host_kills is None or self._recent_kill() else 0

    def _learn_labels(self, look: Look) -> None:
        self._near = {}
        self._groups = {}
        for reading in look.readings:
            assessment = look.result.assessments.get(reading.key)
            if reading.key.kind is CeilingKind.CGROUP:
                self._groups[reading.key.subject] = reading.label
            if assessment is not None and assessment.stage >= Stage.WARN:
                for key in reading.tasks:
                    self._near.setdefault(key, reading.label)

    def _holder(self, key: ProcessKey) -> _Watched | None:
        for watched in self._watched.values():
            if any(member.key == key for member in watched.task.members):
                return watched
        return None

    def _release(self, watched: _Watched) -> None:
        if watched.handle is not None:
            self._poller.remove(watched.handle)
            os.close(watched.handle)
            watched.handle = None
