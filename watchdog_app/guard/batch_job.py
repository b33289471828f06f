"""
The first process of a Slurm batch job, which waits for the program and requeues the job after it.

`watchdog exec --requeue` forks: the child becomes the program, this process stays. So it is outside
of the program's guard and knows how the program has ended. It passes on signals, also those that
Slurm sends to the batch script alone (`--signal=B:USR1@120`). Before the end
of the job's time it asks the program to end, and its trainings are saved.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field

from watchdog_app.base import paths, signals, time_limit
from watchdog_app.base.errors import RescueError, WatchdogError
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import Key
from watchdog_app.base.oom_text import out_of_memory
from watchdog_app.guard import messages, record, slurm
from watchdog_app.guard.slurm import Job, Limits
from watchdog_app.rescue.checkpoint import store
from watchdog_app.rescue.checkpoint.reader import LoadedRescue

_LEAD_S, _LEAD_SHARE = 60.0, 0.1  # SIGTERM so long before the end; of the job's time, at most
_NEAR_END_S = 600.0  # SIGTERM of a running job so near to its end announces that end
_WAIT_S = 60.0  # the clock may be set
_SAVES_S, _POLL_S = 5.0, 0.05  # as long as the guard waits after SIGTERM
_ANNOUNCED = (signal.SIGUSR1, signal.SIGUSR2)
_PASSED_ON = (*_ANNOUNCED, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_OOM_REASON = "out of memory in the program"  # same text as in `agent.oom.watch`
_UNCAUGHT = re.compile(r"Uncaught (\w+): (.*)")


@dataclass(slots=True)
class _Program:
    """The child, and what happened to it."""

    pid: int
    start_time: int
    lists: str  # folder with the list of its rescues
    ends_unix_s: float | None
    lead_s: float
    kills: int  # of the kernel for memory, when it began
    time_is_over: bool = False
    terminated: bool = False  # somebody sent SIGTERM to this process
    status: int = 0
    peak_bytes: int = 0  # of its largest process
    ended: set[Key] = field(default_factory=set)  # processes of it that were asked to end

    def wait(self) -> None:
        """Pass signals on until it has ended."""
        waited = {signal.SIGCHLD, *_PASSED_ON}
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.status, self.peak_bytes = status, usage.ru_maxrss * 1024
                self._wait_for_saves()
                return
            found = signal.sigtimedwait(waited, self._wait_s())
            if found is not None and found.si_signo != signal.SIGCHLD:
                self._pass_on(found.si_signo)
            elif self.ends_unix_s is not None and time.time() > self.ends_unix_s - self.lead_s:
                self.time_is_over, self.ends_unix_s = True, None
                self._end(signal.SIGTERM)

    def _wait_s(self) -> float:
        if self.ends_unix_s is None:
            return _WAIT_S
        return min(_WAIT_S, max(0.0, self.ends_unix_s - self.lead_s - time.time()) + 0.01)

    def _pass_on(self, number: int) -> None:
        if number in _ANNOUNCED:
            self.time_is_over = True
        elif number == signal.SIGTERM:
            self.terminated = True
        else:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            return
        self._end(number)

    def _end(self, number: int) -> None:
        """
        Ask the program to end: by the signal where it is handled, else by SIGTERM.

        A shell passes no signal on, so what it runs is asked, too. The processes below one that
        handles the signal, such as the workers of a DataLoader, are ended by that one.
        """
        left_alone: set[int] = set()
        for each in process.descendants([(self.pid, self.start_time)]):
            if each.ppid in left_alone:
                left_alone.add(each.pid)
                continue
            name = os.path.basename((*process.read_argv(each.pid), "")[0])
            sent = number if process.handles(each.pid, number) else signal.SIGTERM
            if name == "srun":  # kills its tasks at SIGTERM, and passes SIGUSR1 on to them
                sent = signal.SIGUSR1
            if name == "srun" or (name not in process.SHELLS and process.handles(each.pid, sent)):
                left_alone.add(each.pid)
            self.ended.add(each.key)
            with suppress(ProcessLookupError):
                os.kill(each.pid, sent)

    def _wait_for_saves(self) -> None:
        """Wait for processes that were asked to end: a shell ends before what it ran has saved."""
        latest = time.monotonic() + max(_SAVES_S, signals.grace_s(0.0) + 1.0)
        while time.monotonic() < latest and any(
            process.start_time(pid) == start for pid, start in self.ended
        ):
            time.sleep(_POLL_S)


def begin(job: Job, limits: Limits, env: dict[str, str]) -> None:
    """
    Fork; return in the child, which becomes the program. The parent never returns.

    Args:
        job: that this process is the batch script of, or a part of it.
        limits: what the settings allow.
        env: of the program, with its end; gets the place where its rescues are listed.

    Raises:
        OSError: no folder can be made, or no process started.
    """
    lists = tempfile.mkdtemp(prefix="watchdog-")
    # The supervisor of the guard, which copies from outside, has the environment of this process.
    env[store.SAVED_LIST] = os.environ[store.SAVED_LIST] = os.path.join(lists, "rescues")
    ends = time_limit.end_unix_s(env)
    left = 0.0 if ends is None else max(0.0, ends - time.time())
    lead = min(max(_LEAD_S, 2 * signals.grace_s(0.0)), left * _LEAD_SHARE)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD, *_PASSED_ON))
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD, *_PASSED_ON))
        return
    try:
        began = process.start_time(pid) or 0
        program = _Program(pid, began, lists, ends, lead, _kernel_kills())
        program.wait()
        _requeue(job, program, limits)
    except Exception as error:
        _say(f"Slurm job {job.number} was not requeued: {error}")
    finally:
        shutil.rmtree(lists, ignore_errors=True)
        code = os.waitstatus_to_exitcode(program.status)
        os._exit(code if code >= 0 else 128 - code)  # of a signal, as a shell has it


def _requeue(started: Job, program: _Program, limits: Limits) -> None:
    """Requeue the job, if the program ended for want of memory or time and has made progress."""
    if program.status == 0:
        return
    saved = _rescues(program)
    job = slurm.read_job(started.number)
    if job.state != "RUNNING":
        return  # Slurm ends it: cancelled, or requeued after a preemption without a grace time
    near_end = program.ends_unix_s is not None and program.ends_unix_s - time.time() < _NEAR_END_S
    newest = saved[-1] if saved else None
    needed = _needed_bytes(job, program, newest)
    memory = None
    if needed is not None:
        why = slurm.OUT_OF_MEMORY
    elif program.time_is_over or (program.terminated and (near_end or job.is_preempted)):
        why = slurm.PREEMPTED if job.is_preempted else slurm.TIME_IS_OVER
    else:
        return
    # Slurm would requeue a preempted job without a condition, too.
    reason = None if job.is_preempted else slurm.why_not(job, saved, limits)
    if reason is not None:
        raise WatchdogError(f"{why}; {reason}")
    if needed is not None:
        memory = slurm.more_memory(job, needed, limits)
    lines = slurm.commands(job, why, newest, memory)
    _say(f"Slurm job {job.number}: {lines[0][-1].rpartition('watchdog: ')[2]}")
    slurm.run(lines)


def _rescues(program: _Program) -> list[str]:
    """The rescues that the program's processes wrote and that are kept, the newest last."""
    with suppress(OSError), open(os.path.join(program.lists, "rescues")) as file:
        return [path for path in file.read().splitlines() if os.path.isdir(path)]
    return []


def _needed_bytes(job: Job, program: _Program, saved: str | None) -> int | None:
    """
    Memory of the job, as far as known, with which the program would not have ended.

    Returns:
        Bytes: what it used at its peak, what its guard kept back, what it was refused. None: it did
        not end for want of memory.
    """
    guard = record.find(program.pid, program.start_time)
    error = _refused(program)
    full = guard is not None and messages.ended_at_limit(guard)
    killed = os.WIFSIGNALED(program.status) and os.WTERMSIG(program.status) == signal.SIGKILL
    killed = killed and _kernel_kills() > program.kills
    if not (full or error is not None or killed or _saved_for_memory(saved)):
        return None
    if guard is None:
        return program.peak_bytes + (error or 0)
    kept_back = max(0, (job.memory_bytes or 0) - guard.limit_bytes)
    used = guard.limit_bytes if full else guard.used_bytes
    return used + kept_back + (error or 0)


def _refused(program: _Program) -> int | None:
    """Bytes that an error of memory asked for, 0 if unknown; None: no such error ended it."""
    name = f"{program.pid}-{program.start_time}"
    path = os.path.join(paths.state_dir(), "crash-reports", name)
    found = _UNCAUGHT.match(read_or_empty(path).decode("utf-8", "replace"))
    error = None if found is None else out_of_memory(found[1], found[2])
    return None if error is None or error.gpu else error.wanted_bytes or 0


def _saved_for_memory(saved: str | None) -> bool:
    """Whether the newest rescue was saved after an error of memory, in any process."""
    if saved is not None:
        with suppress(RescueError), LoadedRescue(saved) as loaded:
            return loaded.meta.get("reason") == _OOM_REASON
    return False


def _kernel_kills() -> int:
    """How many processes of this machine the kernel has killed for memory."""
    found = re.search(rb"^oom_kill (\d+)$", read_or_empty("/proc/vmstat"), re.MULTILINE)
    return 0 if found is None else int(found[1])


def _say(text: str) -> None:
    with suppress(OSError):
        print(f"watchdog: {text}", file=sys.stderr, flush=True)
