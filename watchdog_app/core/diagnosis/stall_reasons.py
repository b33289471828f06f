"""
Why a training is stalled, from what its threads do: possible causes with reasons. Pure.

A reason is named when there is evidence for it, the strongest first. Where there is none the
answer is "not known": the stacks say more than a guess would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.quantities import format_rate
from watchdog_app.core.diagnosis import stall_signs as signs
from watchdog_app.core.model.agent import ProcessThreads, ThreadDump, ThreadState
from watchdog_app.core.model.history import SwapTraffic, thrashing

_THRASH_FAULTS_PER_S = 100.0
_BUSY_CORES = 0.1
_MOST_SHOWN = 3


class ReasonKind(StrEnum):
    """What may hold a training up."""

    STOPPED = "stopped"
    DEBUGGER = "debugger"
    DRIVER = "driver"
    SWAP = "swap"
    FILES = "files"  # a disk, or a file system over the network
    DEAD_WORKER = "dead_worker"
    FORK = "fork"  # workers wait for a lock that no process will open
    DATA = "data"
    LOCK = "lock"
    LIBRARY = "library"  # a C call that keeps the interpreter's lock
    OUTPUT = "output"  # a pipe, terminal or connection that nobody reads from
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class StallReason:
    """One explanation."""

    why: ReasonKind
    text: str  # what is the case: a clause without a point
    reasons: tuple[str, ...]  # what was seen: clauses
    remedy: str  # what to do: a sentence


@dataclass(frozen=True, slots=True)
class StallContext:
    """What is known besides the threads."""

    cores: float = 0.0  # that the task has used since its last step
    swap: SwapTraffic | None = None  # of the machine
    card_fault: str | None = None  # of the card that the task is on
    lost: tuple[int, ...] = ()  # pids of workers that ended since the last step
    stopped_by_us: frozenset[int] = frozenset()


class _Row(NamedTuple):
    """What is said of one explanation; names in braces stand for what was seen."""

    kind: ReasonKind
    text: str
    remedy: str

    def seen(self, reasons: Sequence[str], **names: object) -> StallReason:
        text, remedy = self.text.format(**names), self.remedy.format(**names)
        return StallReason(self.kind, text, tuple(reasons), remedy)


# The case, then what to do.
# fmt: off
_STOPPED = _Row(ReasonKind.STOPPED,
    "somebody has stopped process {process}, and the rest waits for it",
    "Let it go on: kill -CONT {pid}")
_DEBUGGER = _Row(ReasonKind.DEBUGGER, "a debugger holds process {process}",
    "Let it go on in the debugger, or end the debugger.")
_DRIVER = _Row(ReasonKind.DRIVER, "the graphics driver does not answer",
    "Look for Xid lines: sudo dmesg | grep -i nvrm. Such a process cannot be killed until "
    "the driver lets go; often only a reset of the card or a restart helps.")
_SWAP = _Row(ReasonKind.SWAP,
    "the machine is thrashing: memory is read back from swap as fast as it is put there",
    "Close what you can spare; smaller batches or buffers keep it from coming back.")
_NETWORK = _Row(ReasonKind.FILES,
    "it waits for a file system over the network that does not answer",
    "Look whether the server is there: ls on that folder hangs, too, if it is not.")
_DISK = _Row(ReasonKind.FILES, "it waits for a disk that does not answer",
    "Look at the disk: sudo dmesg | tail; iostat -x 1.")
_DEAD_WORKER = _Row(ReasonKind.DEAD_WORKER, "it waits for a worker process that has ended",
    "Such a worker was often killed for lack of memory (see: watchdog explain). Use "
    "fewer workers or smaller batches; give a DataLoader timeout=60, so that it raises an "
    "error instead of waiting for ever.")
_FORK = _Row(ReasonKind.FORK,
    "a worker was forked while another thread held a lock, and waits for it for ever",
    "Start workers without fork: multiprocessing.set_start_method('forkserver') or "
    "'spawn', DataLoader(..., multiprocessing_context='forkserver'); or start them before "
    "TensorFlow, PyTorch and threads are.")
_WORKER_LOCK = _Row(ReasonKind.FORK, "its workers wait for a lock that nobody will open",
    "A worker that was killed while it held a shared lock or queue leaves it locked: start "
    "the training anew, with fewer workers if memory was short.")
_LIBRARY = _Row(ReasonKind.LIBRARY,
    "a call into a C library does not return and keeps Python from running",
    "See the call itself: sudo py-spy dump --native --pid {pid}")
_BUSY = _Row(ReasonKind.BUSY,
    "it still computes: one step has become very long, or it turns in circles",
    "Look twice whether it moves: watchdog stacks. A compilation or a validation that is not "
    "announced looks the same.")
_OUTPUT = _Row(ReasonKind.OUTPUT, "it writes to {where}",
    "Look at what is to read its output: a program behind a pipe (`| less`, "
    "subprocess.PIPE) that has stopped reading, or a terminal stopped by Ctrl-S (Ctrl-Q "
    "lets it go on).")
_WORKER_OUTPUT = _Row(ReasonKind.OUTPUT, "it waits for the end of a worker that writes to {where}",
    "Read the results out of the queue before join(): a worker ends when they are read.")
_DATA = _Row(ReasonKind.DATA, "it waits for {what}",
    "Look at what is to fill it: a producer that ended, a server that does not answer, a pipe "
    "without a writer. With a timeout in that call it would end with an error instead.")
_LOCK = _Row(ReasonKind.LOCK, "{what}",
    "Use `with lock:`, so that an error opens it; threading.RLock where one thread takes a "
    "lock twice; and take several locks in one order everywhere.")
# fmt: on


def stall_reasons(dump: ThreadDump, context: StallContext | None = None) -> tuple[StallReason, ...]:
    """
    The explanations that there is evidence for, the strongest first; empty: not known.

    Args:
        dump: what the threads do.
        context: what else is known of the task and the machine.
    """
    root = dump.root
    if root is None:
        return ()
    stall = _Stall(dump, root, root.main, context or StallContext())
    return tuple(found for rule in _RULES if (found := rule(stall)) is not None)


class _Stall(NamedTuple):
    """What the rules look at."""

    dump: ThreadDump
    root: ProcessThreads
    main: ThreadState | None  # of the training
    context: StallContext

    @property
    def busy(self) -> bool:
        return self.context.cores > _BUSY_CORES

    @property
    def at(self) -> list[str]:
        """Where the training's thread is, if that is known."""
        frames = () if self.main is None else self.main.frames
        return [f"it is at {signs.at(frames)}"] if frames else []

    @property
    def waits_for_workers(self) -> list[str]:
        """Where the training's thread waits for workers, if it does."""
        frame = signs.waits_for_workers(self.main)
        at = "" if frame is None else signs.place(frame)
        return [f"the program waits for its workers at {at}"] if at else []

    @property
    def others(self) -> list[ThreadState]:
        """Other threads of the program; those of libraries and the agent are not."""
        return [
            each for each in self.root.threads if each is not self.main and signs.runs_program(each)
        ]


def _held(stall: _Stall) -> StallReason | None:
    """A process that somebody has stopped, or that a debugger holds."""
    for process in stall.dump.processes:
        pid = process.pid
        if process.state not in ("T", "t") or pid in stall.context.stopped_by_us:
            continue
        row, by = (_STOPPED, "signal") if process.state == "T" else (_DEBUGGER, "tracer")
        reason = f"process {pid} is in state {process.state} (stopped by a {by})"
        return row.seen([reason], process=f"{pid} ({clean(process.name, 30)})", pid=pid)
    return None


def _driver(stall: _Stall) -> StallReason | None:
    reasons = [
        f"thread {thread.tid} of process {process.pid} cannot be interrupted in {place}"
        for process, thread in signs.all_threads(stall.dump)
        if thread.state == "D" and (place := signs.in_kernel(thread, signs.DRIVER))
    ]
    if stall.context.card_fault is not None:
        reasons.append(stall.context.card_fault)
    return _DRIVER.seen(reasons[:_MOST_SHOWN]) if reasons else None


def _swap(stall: _Stall) -> StallReason | None:
    reasons = []
    waiting = [
        place
        for _, thread in signs.all_threads(stall.dump)
        if thread.state == "D" and (place := signs.in_kernel(thread, signs.SWAP))
    ]
    if waiting:
        who = "one thread waits" if len(waiting) == 1 else f"{len(waiting)} threads wait"
        reasons.append(f"{who} for pages from swap ({waiting[0]})")
    swap, faults = stall.context.swap, stall.dump.major_faults_per_s
    if swap is not None and thrashing(swap):
        if faults is not None and faults > _THRASH_FAULTS_PER_S:
            reasons.append(f"{faults:,.0f} of its pages a second have to be read back")
        if reasons:
            out, back = format_rate(swap.out_per_s), format_rate(swap.in_per_s)
            reasons.append(f"{out} go out to swap and {back} come back")
    return _SWAP.seen(reasons) if reasons else None


def _files(stall: _Stall) -> StallReason | None:
    for process, thread in signs.all_threads(stall.dump):
        if thread.state != "D":
            continue
        row, place = _NETWORK, signs.in_kernel(thread, signs.NETWORK_FILES)
        if place is None and process is stall.root:
            row, place = _DISK, signs.in_kernel(thread, signs.DISK)
        if place is not None:
            at = [f"it is at {signs.at(thread.frames)}"] if thread.frames else []
            where = f"thread {thread.tid} of process {process.pid} waits in {place} (state D)"
            return row.seen([where, *at])
    return None


def _dead_worker(stall: _Stall) -> StallReason | None:
    """Children that have ended are normal, unless the program waits for one."""
    zombies = [
        each.pid
        for each in stall.dump.processes
        if each.state == "Z" and each.ppid == stall.root.pid
    ]
    waits = stall.waits_for_workers
    reasons = [f"worker {pid} has ended and nobody has noticed (zombie)" for pid in zombies]
    reasons += [f"worker {pid} has ended since the last step" for pid in stall.context.lost]
    unseen = zombies and stall.main is not None and not stall.main.frames
    if not reasons or not (waits or unseen):
        return None
    return _DEAD_WORKER.seen([*reasons[:_MOST_SHOWN], *waits])


def _worker_locks(stall: _Stall) -> StallReason | None:
    """Workers that all wait for a lock: which thread should open it?"""
    workers = signs.workers(stall.dump, stall.root)
    stuck = [each for each in workers if signs.stuck(each)]
    if not stuck or any(not signs.stuck(each) and not signs.idle(each) for each in workers):
        return None  # one of them computes or reads: they are alive
    alone = [each for each in stuck if each.thread_count == 1]
    sure = [each for each in alone if each.main is not None and signs.forever_alone(each.main)]
    waits = stall.waits_for_workers
    # Where one listens for work and the others wait for their turn, they have nothing to do.
    if not sure and (not waits or any(signs.idle(each) for each in workers)):
        return None
    if sure:
        seen = (
            f"worker {sure[0].pid} waits for a lock of its own process, and has one thread: "
            "nobody is left to open it"
        )
    else:
        pids = [each.pid for each in stuck]
        who = f"worker {pids[0]} waits"
        if len(pids) > 1:
            who = f"{len(pids)} workers ({', '.join(map(str, pids[:4]))}) wait"
        seen = f"{who} for a lock (futex), and no worker runs"
    reasons = [seen]
    if alone and stall.root.thread_count > 1:
        reasons.append(
            f"the program had {stall.root.thread_count} threads; a fork takes one of them along, "
            "and every lock as it was"
        )
    return (_FORK if alone else _WORKER_LOCK).seen([*reasons, *waits])


def _library(stall: _Stall) -> StallReason | None:
    main, dump = stall.main, stall.dump
    if dump.answered is not False or main is None:
        return None
    reasons = ["the agent's own thread gets no turn: the interpreter's lock (GIL) is not let go"]
    if main.state == "R" or stall.busy:
        reasons.append("it computes")
    elif main.waits is not None:
        reasons.append(f"its main thread waits in the kernel in {main.waits}")
    if dump.last_seen is not None:
        age, place = dump.last_seen_s or 0.0, signs.place(dump.last_seen)
        reasons.append(f"when it last let go, {age:.0f} s ago, it was at {place}")
    return _LIBRARY.seen(reasons, pid=stall.root.pid)


def _busy(stall: _Stall) -> StallReason | None:
    if not stall.busy:
        return None
    cores = f"it has used {stall.context.cores:.1f} cores since the last step"
    return _BUSY.seen([cores, *stall.at])


def _output(stall: _Stall) -> StallReason | None:
    """A write that does not end, in the training itself or in a worker whose end it waits for."""
    main, joins = stall.main, None
    if main is None or stall.busy:
        return None
    row, writer, who, where = _OUTPUT, main, "it", signs.writes_to(main)
    if where is None:
        joins = signs.waits_for_end(main)
        for process in signs.workers(stall.dump, stall.root) if joins is not None else ():
            for thread in process.threads:
                if where is None:
                    writer, who, where = thread, f"worker {process.pid}", signs.writes_to(thread)
        row = _WORKER_OUTPUT
    if where is None:
        return None
    reasons = []
    if writer.waits is not None:
        reasons.append(f"{who} waits in the kernel in {writer.waits}")
    if writer.frames:
        reasons.append(f"it is at {signs.at(writer.frames)}")
    if joins is not None:
        reasons.append(f"the program waits for the worker's end at {signs.place(joins)}")
    return row.seen(reasons, where=where)


def _data(stall: _Stall) -> StallReason | None:
    main = stall.main
    if main is None or main.state == "R" or stall.busy:
        return None
    reasons = stall.at
    reads, queue = signs.reads_from(main), signs.gets_from_queue(main)
    if reads is not None:
        what = f"data from {reads}"
        reasons.append(f"it waits in the kernel in {main.waits}")
    elif queue is not None:
        what = "a queue that nobody fills"
        reasons.append(f"queue: {signs.place(queue)}")
        if not stall.others:
            reasons.append("no other Python thread is left in the program that could fill it")
    elif signs.frame_of(main, ("__next__",)) is not None:
        what = "the next batch"
    else:
        return None
    return _DATA.seen(reasons, what=what)


def _lock(stall: _Stall) -> StallReason | None:
    main = stall.main
    if main is None or not stall.dump.answered or not main.frames or stall.busy:
        return None
    if not signs.waits_for_lock(main) or signs.gets_from_queue(main) or stall.waits_for_workers:
        return None
    reasons, others = [f"it waits for a lock (futex) at {signs.at(main.frames)}"], stall.others
    awake = [each for each in others if not signs.waits_for_lock(each)]
    if not others:
        reasons.append("no other thread of the program is left that could open it")
        what = (
            "it waits for a lock that no other thread is left to open: the thread that held it "
            "has ended, or the training's thread has taken it twice"
        )
    elif awake:
        what = "it waits for a lock that another thread holds"
        reasons.append(_thread(awake[0], "is at"))
    else:
        what = "its threads wait for each other"
        do = "does" if len(others) == 1 else "do"
        reasons.append(f"so {do} {', '.join(_thread(each, 'at') for each in others[:2])}")
    return _LOCK.seen(reasons, what=what)


def _thread(thread: ThreadState, at: str) -> str:
    return f"{clean(thread.name, 40)} {at} {signs.at(thread.frames)}"


# The most exact first: what the kernel says of a state, then what stacks and waits suggest.
_RULES: Sequence[Callable[[_Stall], StallReason | None]] = (
    _held,
    _driver,
    _swap,
    _files,
    _dead_worker,
    _worker_locks,
    _library,
    _busy,
    _output,
    _lock,
    _data,
)
