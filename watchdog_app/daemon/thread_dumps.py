"""
Asking what each thread of a task does: the kernel for all of them, its agents for Python's stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from watchdog_app.base.errors import RequestError
from watchdog_app.client import requests
from watchdog_app.client.jsonrpc import REFUSED
from watchdog_app.core.model.agent import Frame, ProcessThreads, ThreadDump, ThreadState
from watchdog_app.core.model.machine import ProcessKey, Task
from watchdog_app.core.model.tasks import named
from watchdog_app.daemon import agent_messages
from watchdog_app.daemon.agents import Agent, Agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.diagnosis.stall_reasons import StallReason

_ANSWER_S = 3.0  # an agent's own thread runs within milliseconds where it can run at all
_LEAST_S = 0.5  # between two counts of faults that are to make a rate
_MOST_CHARS = 60_000  # of the frames of one picture: it has to fit into a message, escaped
_MOST_AGENTS = 8
_MOST_ASKING = 16  # for one picture: each answer is made in the loop

Done = Callable[[ThreadDump], None]
# What was seen of those processes, and when, in monotonic seconds; nothing where that failed.
Looked = Callable[[tuple[ProcessThreads, ...], float], None]
LookAt = Callable[[Iterable[ProcessKey], Looked], None]


@dataclass(slots=True)
class _Request:
    task: Task
    asked_mono_s: float
    least_s: float  # so long it takes at least; 0: without faults
    done: list[Done]  # of all who have asked meanwhile
    waiting: set[ProcessKey]
    told: dict[int, list[ThreadState]] = field(default_factory=dict)  # by pid
    counted: tuple[int, float] | None = None  # faults at first, and when
    ending: bool = False  # the processes are looked at for the last time

    @property
    def due_mono_s(self) -> float:
        """When it ends, whatever comes."""
        return self.asked_mono_s + (_ANSWER_S if self.waiting else self.least_s)


class Stacks:
    """
    The pictures that are being made: of each task one, for whoever asks meanwhile.

    Args:
        agents: those there are.
        send: a notification to one of them.
        look_at: looks at processes as `threads.look` does and tells, in this thread, now or
            later, in the order in which it was asked.
    """

    def __init__(
        self,
        agents: Agents,
        send: Callable[[Agent, str, Mapping[str, Any]], None],
        look_at: LookAt,
    ) -> None:
        self._agents = agents
        self._send = send
        self._look_at = look_at
        self._open: dict[str, _Request] = {}
        self._issued = 0

    def ask(self, task: Task, now_mono_s: float, done: Done, *, with_faults: bool = False) -> None:
        """
        Make a picture of a task.

        Args:
            task: of the last look.
            now_mono_s: monotonic seconds.
            done: called with it, within three seconds where the processes can be looked at.
            with_faults: count what the task reads back from swap as well, which takes half a
                second.

        Raises:
            RequestError: too many are waiting for the same picture.
        """
        least_s = _LEAST_S if with_faults else 0.0
        for request in self._open.values():
            if request.task.key == task.key and request.least_s == least_s:
                if len(request.done) >= _MOST_ASKING:
                    raise RequestError(
                        f"{named(task)} is being looked at for {_MOST_ASKING} others that have "
                        "asked. Ask again in a second.",
                        REFUSED,
                    )
                request.done.append(done)
                return
        self._issued += 1
        ident = f"stacks-{self._issued}"
        keys = [member.key for member in task.members]
        agents = self._agents.within(set(keys))[:_MOST_AGENTS]
        request = self._open[ident] = _Request(
            task, now_mono_s, least_s, [done], {agent.key for agent in agents}
        )
        if with_faults:
            self._look_at(keys, partial(_count, request))
        for agent in agents:
            self._send(agent, "agent.stacks", {"request": ident})
        if not agents and not with_faults:
            self._end(ident, request)

    def stacked(self, agent: Agent, params: requests.Stacked, now_mono_s: float) -> None:
        """Take in the stacks that an agent tells."""
        ident = params.request
        request = self._open.get(ident)
        if request is None or request.ending or agent.key not in request.waiting:
            return
        request.told[agent.key.pid] = agent_messages.threads(params)
        request.waiting.discard(agent.key)
        if now_mono_s >= request.due_mono_s:
            self._end(ident, request)

    def expire(self, now_mono_s: float) -> None:
        """End what was not answered in time."""
        for ident, request in list(self._open.items()):
            if not request.ending and now_mono_s >= request.due_mono_s:
                self._end(ident, request)

    def next_deadline_mono_s(self) -> float | None:
        """When `expire` has something to do."""
        due = (each.due_mono_s for each in self._open.values() if not each.ending)
        return min(due, default=None)

    def _end(self, ident: str, request: _Request) -> None:
        request.ending = True
        members = [member.key for member in request.task.members]
        self._look_at(members, partial(self._made, ident, request))

    def _made(
        self, ident: str, request: _Request, looks: tuple[ProcessThreads, ...], now_mono_s: float
    ) -> None:
        del self._open[ident]
        members = [member.key for member in request.task.members]
        asked = {agent.key.pid: agent for agent in self._agents.within(set(members))}
        left = _MOST_CHARS
        processes = []
        for look in looks:
            threads, left = _merged(look.threads, request.told.get(look.pid, []), left)
            processes.append(replace(look, threads=threads, has_agent=look.pid in asked))
        silent = {key.pid for key in request.waiting} & asked.keys()
        # The agent that trains is the one whose silence says something.
        view = self._agents.view_of(set(members))
        answered = None
        if request.told or silent:
            answered = not silent if view is None else view.key.pid not in silent
        seen_s = None
        if view is not None and view.place is not None and view.reported_mono_s is not None:
            seen_s = max(0.0, now_mono_s - view.reported_mono_s)
        picture = ThreadDump(
            tuple(processes),
            answered,
            None if view is None else view.place,
            seen_s,
            _rate(request, looks, now_mono_s),
        )
        for done in request.done:
            done(picture)


def to_json(picture: ThreadDump, found: Iterable[StallReason]) -> dict[str, Any]:
    """A picture as in the answer to `task.stacks`."""
    return {
        "answered": picture.answered,
        "last_seen": None if picture.last_seen is None else _frame(picture.last_seen),
        "last_seen_s": picture.last_seen_s,
        "processes": [
            {
                "pid": process.pid,
                "ppid": process.ppid,
                "name": process.name,
                "state": process.state,
                "thread_count": process.thread_count,
                "agent": process.has_agent,
                "threads": [
                    {
                        "tid": thread.tid,
                        "name": thread.name,
                        "state": thread.state,
                        "wchan": thread.wchan,
                        "syscall": thread.syscall,
                        "kernel": list(thread.kernel),
                        "trains": thread.trains,
                        "frames": [_frame(each) for each in thread.frames],
                    }
                    for thread in process.threads
                ],
            }
            for process in picture.processes
        ],
        "reasons": [
            {
                "kind": each.why.value,
                "text": each.text,
                "facts": list(each.reasons),
                "remedy": each.remedy,
            }
            for each in found
        ],
    }


def _frame(each: Frame) -> dict[str, Any]:
    return {"file": each.file, "line": each.line, "function": each.function}


def _merged(
    seen: Iterable[ThreadState], told: Iterable[ThreadState], left: int
) -> tuple[tuple[ThreadState, ...], int]:
    """The kernel's threads with Python's names and stacks; those that only Python knows behind."""
    found = {look.tid: look for look in seen}
    alone = []
    for each in told:
        frames = []
        for frame_ in each.frames:
            left -= len(frame_.file) + len(frame_.function)
            if left < 0:
                break
            frames.append(frame_)
        look = found.get(each.tid)
        if look is None:
            alone.append(replace(each, frames=tuple(frames)))
        else:
            found[each.tid] = replace(
                look, name=each.name, frames=tuple(frames), trains=each.trains
            )
    return (*found.values(), *alone), left


def _count(request: _Request, looks: tuple[ProcessThreads, ...], now_mono_s: float) -> None:
    if looks:
        request.counted = (_major_faults(looks), now_mono_s)


def _rate(request: _Request, looks: tuple[ProcessThreads, ...], now_mono_s: float) -> float | None:
    """Major faults a second since the first count; None: not counted, or not for long enough."""
    if request.counted is None or not looks:
        return None
    before, since_mono_s = request.counted
    span_s = now_mono_s - since_mono_s
    # Half of the time is enough: the first look may have come late.
    if span_s < request.least_s / 2:
        return None
    return max(0, _major_faults(looks) - before) / span_s


def _major_faults(looks: Iterable[ProcessThreads]) -> int:
    return sum(look.major_faults or 0 for look in looks)
