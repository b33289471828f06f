"""
Why a training is stalled, from what its threads do: possible causes with reasons. Pure.

A suspect is named when there is evidence for it, the strongest first. Where there is none the
answer is "not known": the stacks say more than a guess would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_rate
from watchdog_app.core.diagnosis import stall_signs as signs
from watchdog_app.core.model.agent import ProcessThreads, ThreadDump, ThreadState
from watchdog_app.core.model.history import SwapTraffic, thrashing

_THRASH_FAULTS_PER_S = 100.0
_BUSY_CORES = 0.1

_THRASHES = "the machine is thrashing: memory is read back from swap as fast as it is put there"
_MAKE_ROOM = "Close what you can spare; smaller batches or buffers keep it from coming back."


class ReasonKind(StrEnum):
    """What may hold a training up."""

    STOPPED = "stopped"
    DEBUGGER = "debugger"
    DRIVER = "driver"
    SWAP = "swap"
    FILES = "files"  # a file system over the network
    DEAD_WORKER = "dead_worker"
    FORK = "fork"
    WORKER_LOCK = "worker_lock"
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
    """What is known besides the picture."""

    cores: float = 0.0  # that the task has used since its last step
    swap: SwapTraffic | None = None  # of the machine
    card_fault: str | None = None  # of the card that the task is on
    lost: tuple[int, ...] = ()  # pids of workers that ended since the last step
    stopped_by_us: frozenset[int] = frozenset()


def stall_reasons(
    picture: ThreadDump, around: StallContext | None = None
) -> tuple[StallReason, ...]:
    """
    The explanations that there is evidence for, the strongest first; empty: not known.

    Args:
        picture: what the threads do.
        around: what else is known of the task and the machine.
    """
    around = around or StallContext()
    root = picture.root
    if root is None:
        return ()
    found: dict[ReasonKind, StallReason] = {}
    for search in _SEARCHES:
        for suspect in search(picture, root, around):
            found.setdefault(suspect.why, suspect)
    return tuple(found.values())


def _stopped(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    del root
    for process in picture.processes:
        if process.pid in around.stopped_by_us:
            continue
        if process.state == "T":
            yield StallReason(
                ReasonKind.STOPPED,
                f"somebody has stopped process {signs.named(process)}, and the rest waits for it",
                (f"process {process.pid} is in state T (stopped by a signal)",),
                f"Let it go on: kill -CONT {process.pid}",
            )
            return
        if process.state == "t":
            yield StallReason(
                ReasonKind.DEBUGGER,
                f"a debugger holds process {signs.named(process)}",
                (f"process {process.pid} is in state t (stopped by a tracer)",),
                "Let it go on in the debugger, or end the debugger.",
            )
            return


def _driver(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    reasons = []
    for process, thread in signs.all_threads(picture):
        if thread.state == "D" and (place := signs.in_kernel(thread, signs.DRIVER)):
            reasons.append(
                f"thread {thread.tid} of process {process.pid} cannot be interrupted in {place}"
            )
    if around.card_fault is not None:
        reasons.append(around.card_fault)
    del root
    if reasons:
        yield StallReason(
            ReasonKind.DRIVER,
            "the graphics driver does not answer",
            tuple(reasons[:3]),
            "Look for Xid lines: sudo dmesg | grep -i nvrm. Such a process cannot be killed until "
            "the driver lets go; often only a reset of the card or a restart helps.",
        )


def _swap(picture: ThreadDump, root: ProcessThreads, around: StallContext) -> Iterator[StallReason]:
    del root
    reasons = []
    faults = picture.major_faults_per_s
    waiting = [
        place
        for _, thread in signs.all_threads(picture)
        if thread.state == "D" and (place := signs.in_kernel(thread, signs.SWAP))
    ]
    if waiting:
        reasons.append(f"{signs.threads_wait(len(waiting))} for pages from swap ({waiting[0]})")
    thrashes = around.swap is not None and thrashing(around.swap)
    if thrashes and faults is not None and faults > _THRASH_FAULTS_PER_S:
        reasons.append(f"{faults:,.0f} of its pages a second have to be read back")
    if reasons:
        yield StallReason(
            ReasonKind.SWAP, _THRASHES, (*reasons, *_swap_traffic(around)), _MAKE_ROOM
        )


def _swapping_elsewhere(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    """The machine thrashes, and nothing shows that this task does: the last thing to think of."""
    del picture, root
    reasons = tuple(_swap_traffic(around))
    if reasons:
        yield StallReason(ReasonKind.SWAP, _THRASHES, reasons, _MAKE_ROOM)


def _swap_traffic(around: StallContext) -> Iterator[str]:
    swap = around.swap
    if swap is not None and thrashing(swap):
        yield (
            f"{format_rate(swap.out_per_s)} go out to swap and {format_rate(swap.in_per_s)} "
            "come back"
        )


def _files(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    del around
    for process, thread in signs.all_threads(picture):
        if thread.state != "D":
            continue
        over_network = signs.in_kernel(thread, signs.NETWORK_FILES)
        place = over_network or (signs.in_kernel(thread, signs.DISK) if process is root else None)
        if place is None:
            continue
        what = "a file system over the network" if over_network else "a disk"
        reasons = [f"thread {thread.tid} of process {process.pid} waits in {place} (state D)"]
        if thread.frames:
            reasons.append(f"it is at {signs.at(thread.frames)}")
        remedy = (
            "Look whether the server is there: ls on that folder hangs, too, if it is not."
            if over_network
            else "Look at the disk: sudo dmesg | tail; iostat -x 1."
        )
        yield StallReason(
            ReasonKind.FILES, f"it waits for {what} that does not answer", tuple(reasons), remedy
        )
        return


def _dead_worker(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    main = root.main
    zombies = [each for each in picture.processes if each.state == "Z" and each.ppid == root.pid]
    waiting = None if main is None else signs.waits_for_workers(main)
    if not zombies and not around.lost:
        return
    if waiting is None and not (zombies and main is not None and not main.frames):
        return  # children that have ended are normal where nobody waits for one
    reasons = [f"worker {each.pid} has ended and nobody has noticed (zombie)" for each in zombies]
    reasons += [f"worker {pid} has ended since the last step" for pid in around.lost]
    reasons = reasons[:3]
    if waiting is not None:
        reasons.append(f"the program waits for its workers at {signs.place(waiting)}")
    yield StallReason(
        ReasonKind.DEAD_WORKER,
        "it waits for a worker process that has ended",
        tuple(reasons),
        "Such a worker was often killed for lack of memory (see: watchdog explain). Use "
        "fewer workers or smaller batches; give a DataLoader timeout=60, so that it raises an "
        "error instead of waiting for ever.",
    )


def _forked(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    """Workers whose only thread waits for a lock: which thread of theirs should open it?"""
    del around
    workers = [each for each in picture.processes if signs.is_worker(each, root)]
    if not workers or any(not signs.stuck(each) and not signs.idle(each) for each in workers):
        return  # one of them computes or reads: they are alive
    stuck = [each for each in workers if signs.stuck(each)]
    if not stuck:
        return
    alone = [each for each in stuck if each.thread_count == 1]
    sure = [each for each in alone if each.main is not None and signs.forever_alone(each.main)]
    if any(signs.idle(each) for each in workers) and not sure:
        return  # one listens for work and the others wait for their turn: they have nothing to do
    waiting = None if root.main is None else signs.waits_for_workers(root.main)
    reasons = []
    if sure:
        reasons.append(
            f"worker {sure[0].pid} waits for a lock of its own process, and has one thread: "
            "nobody is left to open it"
        )
    else:
        waiting_ones = signs.workers_wait([each.pid for each in stuck])
        reasons.append(f"{waiting_ones} for a lock (futex), and no worker runs")
    if alone and root.thread_count > 1:
        reasons.append(
            f"the program had {root.thread_count} threads; a fork takes one of them along, and "
            "every lock as it was"
        )
    if waiting is not None:
        reasons.append(f"the program waits for its workers at {signs.place(waiting)}")
    if waiting is None and not sure:
        return
    if alone:
        yield StallReason(
            ReasonKind.FORK,
            "a worker was forked while another thread held a lock, and waits for it for ever",
            tuple(reasons),
            "Start workers without fork: multiprocessing.set_start_method('forkserver') or "
            "'spawn', DataLoader(..., multiprocessing_context='forkserver'); or start them before "
            "TensorFlow, PyTorch and threads are.",
        )
    else:
        yield StallReason(
            ReasonKind.WORKER_LOCK,
            "its workers wait for a lock that nobody holds any more",
            tuple(reasons),
            "A worker that was killed while it held a shared lock or queue leaves it locked: start "
            "the training anew, with fewer workers if memory was short.",
        )


def _library(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    if picture.answered is not False or root.main is None:
        return
    main = root.main
    reasons = ["the agent's own thread gets no turn: the interpreter's lock (GIL) is not let go"]
    if main.state == "R" or around.cores > _BUSY_CORES:
        reasons.append("it computes")
    elif main.waits is not None:
        reasons.append(f"its main thread waits in the kernel in {main.waits}")
    if picture.last_seen is not None:
        age = picture.last_seen_s or 0.0
        reasons.append(
            f"when it last let go, {age:.0f} s ago, it was at {signs.place(picture.last_seen)}"
        )
    yield StallReason(
        ReasonKind.LIBRARY,
        "a call into a C library does not return and keeps Python from running",
        tuple(reasons),
        f"See the call itself: sudo py-spy dump --native --pid {root.pid}",
    )


def _busy(picture: ThreadDump, root: ProcessThreads, around: StallContext) -> Iterator[StallReason]:
    del picture
    if around.cores <= _BUSY_CORES:
        return
    reasons = [f"it has used {around.cores:.1f} cores since the last step"]
    if root.main is not None and root.main.frames:
        reasons.append(f"it is at {signs.at(root.main.frames)}")
    yield StallReason(
        ReasonKind.BUSY,
        "it still computes: one step has become very long, or it turns in circles",
        tuple(reasons),
        "Look twice whether it moves: watchdog stacks. A compilation or a validation that is not "
        "announced looks the same.",
    )


def _output(
    picture: ThreadDump, root: ProcessThreads, around: StallContext
) -> Iterator[StallReason]:
    """A write that does not end, in the training itself or in a worker whose end it waits for."""
    main = root.main
    if main is None or around.cores > _BUSY_CORES:
        return
    reasons = []
    writer, process, where = main, root, signs.writes_to(main)
    joins = signs.waits_for_end(main)
    if where is None and joins is not None:
        for each in picture.processes:
            for thread in each.threads if signs.is_worker(each, root) else ():
                if where is None:
                    writer, process, where = thread, each, signs.writes_to(thread)
        reasons.append(f"the program waits for the worker's end at {signs.place(joins)}")
    if where is None:
        return
    if writer.frames:
        reasons.insert(0, f"it is at {signs.at(writer.frames)}")
    if writer.waits is not None:
        who = "it" if process is root else f"worker {process.pid}"
        reasons.insert(0, f"{who} waits in the kernel in {writer.waits}")
    if process is root:
        text = f"it writes to {where}"
        remedy = (
            "Look at what is to read its output: a program behind a pipe (`| less`, "
            "subprocess.PIPE) that has stopped reading, or a terminal stopped by Ctrl-S (Ctrl-Q "
            "lets it go on)."
        )
    else:
        text = f"it waits for the end of a worker that writes to {where}"
        remedy = (
            "Read the results out of the queue before join(): a worker ends when they are read."
        )
    yield StallReason(ReasonKind.OUTPUT, text, tuple(reasons), remedy)


def _data(picture: ThreadDump, root: ProcessThreads, around: StallContext) -> Iterator[StallReason]:
    del picture
    main = root.main
    if main is None or main.state == "R" or around.cores > _BUSY_CORES:
        return
    queue = next((f for f in main.frames[: signs.DEEP] if signs.is_queue(f)), None)
    reads = signs.reads_from(main)
    steps = next((f for f in main.frames[: signs.DEEP] if f.function == "__next__"), None)
    if queue is None and reads is None and steps is None:
        return
    reasons = []
    if main.frames:
        reasons.append(f"it is at {signs.at(main.frames)}")
    if reads is not None:
        reasons.append(f"it waits in the kernel in {main.waits}")
        what = f"it waits for data from {reads}"
    elif queue is not None:
        what = "it waits for a queue that nobody fills"
        reasons.append(f"queue: {signs.place(queue)}")
        others = _others(root, main)
        if not others:
            reasons.append("no other Python thread is left in the program that could fill it")
    else:
        what = "it waits for the next batch"
    yield StallReason(
        ReasonKind.DATA,
        what,
        tuple(reasons),
        "Look at what is to fill it: a producer that ended, a server that does not answer, a pipe "
        "without a writer. With a timeout in that call it would end with an error instead.",
    )


def _others(root: ProcessThreads, main: ThreadState) -> list[ThreadState]:
    """Threads of the program besides the training's; those of libraries and the agent are not."""
    return [each for each in root.threads if each is not main and signs.runs_program(each)]


def _lock(picture: ThreadDump, root: ProcessThreads, around: StallContext) -> Iterator[StallReason]:
    main = root.main
    if main is None or not picture.answered or not main.frames or around.cores > _BUSY_CORES:
        return
    if not signs.has(main, signs.FUTEX) and main.syscall != "futex":
        return
    if any(signs.is_queue(frame) for frame in main.frames[: signs.DEEP]) or signs.waits_for_workers(
        main
    ):
        return
    others = _others(root, main)
    awake = [
        each for each in others if not signs.has(each, signs.FUTEX) and each.syscall != "futex"
    ]
    reasons = [f"it waits for a lock (futex) at {signs.at(main.frames)}"]
    if not others:
        reasons.append("no other thread of the program is left that could open it")
        text = (
            "it waits for a lock that no other thread is left to open: the thread that held it "
            "has ended, or the training's thread has taken it twice"
        )
    elif not awake:
        reasons.append(
            f"so {'does' if len(others) == 1 else 'do'} "
            + ", ".join(f"{plain(each.name, 40)} at {signs.at(each.frames)}" for each in others[:2])
        )
        text = "its threads wait for each other"
    else:
        text = "it waits for a lock that another thread holds"
        reasons.append(f"{plain(awake[0].name, 40)} is at {signs.at(awake[0].frames)}")
    yield StallReason(
        ReasonKind.LOCK,
        text,
        tuple(reasons),
        "Use `with lock:`, so that an error opens it; threading.RLock where one thread takes a "
        "lock twice; and take several locks in one order everywhere.",
    )


Search = Callable[[ThreadDump, ProcessThreads, StallContext], Iterable[StallReason]]
# The most exact first: what the kernel says of a state, then what stacks and waits suggest.
_SEARCHES: Sequence[Search] = (
    _stopped,
    _driver,
    _swap,
    _files,
    _dead_worker,
    _forked,
    _library,
    _busy,
    _output,
    _lock,
    _data,
    _swapping_elsewhere,
)
