"""
Find why a training is stalled from its thread dump: possible causes with evidence. Pure.

A cause is named only if there is evidence for it, the strongest first. Without evidence the answer
is "not known", because the stacks say more than a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from watchdog_app.base.text.plain import clean
from watchdog_app.base.text.terminal import counted
from watchdog_app.core.model.agent import Frame, ProcessThreads, ThreadDump, ThreadState
from watchdog_app.core.model.settings import BUSY_CORES

_MOST_SHOWN = 3
_DEEP = 12  # innermost frames to search, because the waiting call is near the end of a stack

# Fragments of kernel function names, as in wchan and in the kernel stack.
_DRIVER_CALLS = ("nvidia", "nv_", "_nv0", "uvm_", "os_acquire", "amdgpu", "kfd_", "drm_")
_NETWORK_CALLS = ("nfs", "rpc_", "cifs", "smb", "ceph", "fuse", "9p", "lustre", "gpfs", "beegfs")
_SWAP_CALLS = (
    "swap_read", "swapin", "swap_cluster", "do_swap_page", "blk_cgroup_swap", "try_to_free",
)  # fmt: skip
_DISK_CALLS = (
    "io_schedule", "folio_wait", "wait_on_page", "jbd2", "ext4", "xfs_", "btrfs", "submit_bio",
)  # fmt: skip
_PIPE = ("pipe_read",)
_SOCKET = ("sk_wait_data", "unix_stream_read", "inet_csk_accept", "skb_wait", "skb_recv")
_BLOCKED_WRITES = (
    "pipe_write", "tty_write", "sock_alloc_send", "sk_stream_wait_memory", "unix_wait_for_peer",
)  # fmt: skip
_WRITES = frozenset(("write", "writev", "pwrite64", "sendto", "sendmsg", "sendfile", "splice"))
_WAITS_FOR_CHILD = ("do_wait", "wait4", "waitid")
_READS = frozenset(("read", "readv", "pread64", "recvfrom", "recvmsg"))

# Functions, and files of the standard library and of frameworks, in which a program waits.
_FOR_WORKERS = (
    frozenset(
        ("get", "_try_get_data", "_get_data", "_get_batch", "wait", "poll", "_poll", "recv",
         "_recv", "_recv_bytes", "recv_bytes", "join", "select", "result", "results",
         "wait_result_broken_or_wakeup", "acquire", "__enter__", "_wait_for_tstate_lock",
         "_retrieve", "retrieve")
    ),
    ("multiprocessing/", "concurrent/futures/", "torch/utils/data/", "joblib/", "billiard/"),
)  # fmt: skip
_IN_QUEUE = (("get", "put"), ("/queue.py", "multiprocessing/queues.py"))


class ReasonKind(StrEnum):
    """What may stall a training."""

    STOPPED = "stopped"
    DRIVER = "driver"
    SWAP = "swap"
    FILES = "files"  # a disk, or a network file system
    DEAD_WORKER = "dead_worker"
    FORK = "fork"  # workers wait for a lock that no process will release
    DATA = "data"  # data, room in a queue, or the end of a program that it started
    LOCK = "lock"
    LIBRARY = "library"  # a C call that holds the GIL
    OUTPUT = "output"  # a pipe, terminal or connection that no program reads from
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class StallReason:
    """One possible cause. In the table, names in braces stand for what was seen."""

    why: ReasonKind
    text: str  # description: a clause without a period
    remedy: str  # a sentence
    reasons: tuple[str, ...] = ()  # evidence: clauses

    def seen(self, reasons: Sequence[str], **names: object) -> StallReason:
        """Return the row of the table with its evidence and names."""
        text, remedy = self.text.format(**names), self.remedy.format(**names)
        return StallReason(self.why, text, remedy, tuple(reasons))


@dataclass(frozen=True, slots=True)
class StallContext:
    """Facts about the task and the machine besides its threads."""

    cores: float = 0.0  # cores that the task has used since its last step
    card_fault: str | None = None  # fault of the task's GPU
    lost: tuple[int, ...] = ()  # pids of workers that ended since the last step
    stopped_by_us: frozenset[int] = frozenset()


# For each cause: its description, then the remedy.
# fmt: off
_STOPPED = StallReason(ReasonKind.STOPPED,
    "somebody, or a debugger, has stopped process {process}, and the rest waits for it",
    "Continue it in the debugger, or resume it with: kill -CONT {pid}")
_DRIVER = StallReason(ReasonKind.DRIVER, "the graphics driver does not answer",
    "Look for Xid lines: sudo dmesg | grep -i nvrm. Such a process cannot be killed while "
    "the driver is busy with it; often only a reset of the card or a restart helps.")
_SWAP = StallReason(ReasonKind.SWAP,
    "the machine is thrashing: memory is read back from swap as fast as it is put there",
    "Close what you can spare; smaller batches or buffers keep it from coming back.")
_NETWORK = StallReason(ReasonKind.FILES,
    "it waits for a file system over the network that does not answer",
    "Look whether the server is there: ls on that folder hangs, too, if it is not.")
_DISK = StallReason(ReasonKind.FILES, "it waits for a disk that does not answer",
    "Look at the disk: sudo dmesg | tail; iostat -x 1.")
_DEAD_WORKER = StallReason(ReasonKind.DEAD_WORKER, "it waits for a worker process that has ended",
    "Such a worker was often killed for lack of memory (see: watchdog explain). Use "
    "fewer workers or smaller batches; give a DataLoader timeout=60, so that it raises an "
    "error instead of waiting for ever.")
_FORK = StallReason(ReasonKind.FORK, "its workers wait for a lock that no process will release",
    "Restart the training with workers that are not forked: "
    "DataLoader(..., multiprocessing_context='forkserver'), "
    "multiprocessing.set_start_method('forkserver'). Use fewer of them if memory was short: a "
    "worker that is killed leaves its lock locked.")
_LIBRARY = StallReason(ReasonKind.LIBRARY,
    "a call into a C library does not return and keeps Python from running",
    "See the call itself: sudo py-spy dump --native --pid {pid}")
_BUSY = StallReason(ReasonKind.BUSY,
    "it still computes: one step has become very long, or it turns in circles",
    "Look twice whether it moves: watchdog stacks. A compilation or a validation that is not "
    "announced looks the same.")
_OUTPUT = StallReason(ReasonKind.OUTPUT,
    "it writes to a pipe, terminal or connection that no program reads",
    "Look at what is to read its output: a program behind a pipe (`| less`, "
    "subprocess.PIPE) that has stopped reading, or a terminal stopped by Ctrl-S (Ctrl-Q "
    "continues it).")
_DATA = StallReason(ReasonKind.DATA, "it waits for {what}",
    "Look at the other side: a producer or consumer that ended, a server that does not answer, a "
    "pipe without a writer. With a timeout in that call it would end with an error instead.")
_LOCK = StallReason(ReasonKind.LOCK, "{what}",
    "Use `with lock:`, so that an error releases it; threading.RLock where one thread takes a "
    "lock twice; and take several locks in one order everywhere.")
# fmt: on
_KERNEL_WAITS = (
    (_DRIVER, _DRIVER_CALLS),
    (_SWAP, _SWAP_CALLS),
    (_NETWORK, _NETWORK_CALLS),
    (_DISK, _DISK_CALLS),
)


def stall_reasons(dump: ThreadDump, context: StallContext | None = None) -> tuple[StallReason, ...]:
    """
    Return the causes that have evidence, strongest first. Empty: not known.

    Args:
        dump: the thread dump.
        context: further facts about the task and the machine.
    """
    root = dump.root
    if root is None:
        return ()
    main = root.main or ThreadState(root.pid, root.name)
    stall = _Stall(dump, root, main, context or StallContext())
    return tuple(found for rule in _RULES for found in rule(stall))


class _Stall(NamedTuple):
    """Input of the rules."""

    dump: ThreadDump
    root: ProcessThreads
    main: ThreadState  # the training's thread; without any field if no thread could be read
    context: StallContext

    @property
    def busy(self) -> bool:
        return self.context.cores > BUSY_CORES

    @property
    def waits_for_workers(self) -> list[str]:
        """Where the training's thread waits for workers; empty if it does not."""
        frame = _find_frame(self.main, *_FOR_WORKERS)
        at = "" if frame is None else _format_frame(frame)
        return [f"the program waits for its workers at {at}"] if at else []

    @property
    def others(self) -> list[ThreadState]:
        """Other threads of the program, without threads of libraries and of the agent."""
        return [
            each
            for each in self.root.threads
            if each is not self.main and any(not _is_library_frame(frame) for frame in each.frames)
        ]


def _stopped_process(stall: _Stall) -> Iterator[StallReason]:
    """The first process that somebody or a debugger has stopped."""
    for process in stall.dump.processes:
        pid = process.pid
        if process.state in ("T", "t") and pid not in stall.context.stopped_by_us:
            by = "signal" if process.state == "T" else "tracer"
            reason = f"process {pid} is in state {process.state} (stopped by a {by})"
            name = f"{pid} ({clean(process.name, 30)})"
            yield _STOPPED.seen([reason], process=name, pid=pid)
            return


def _uninterruptible(stall: _Stall) -> Iterator[StallReason]:
    """Threads in uninterruptible sleep (state D): in the driver, for swap, for files."""
    for row, calls in _KERNEL_WAITS:
        # The disk of a worker is no reason: workers read much, and wait for the disk often.
        processes = (stall.root,) if row is _DISK else stall.dump.processes
        reasons = [
            f"thread {thread.tid} of process {process.pid} cannot be interrupted in {call}"
            for process in processes
            for thread in process.threads
            if thread.state == "D" and (call := _kernel_function(thread, calls)) is not None
        ]
        if row is _DRIVER and stall.context.card_fault is not None:
            reasons.append(stall.context.card_fault)
        if reasons:
            yield row.seen([*reasons[:_MOST_SHOWN], *_position_reason(stall.main)])


def _dead_worker(stall: _Stall) -> Iterator[StallReason]:
    """
    A worker that ended while the program waits for its workers. Other ended children are normal.
    """
    zombies = [
        each.pid
        for each in stall.dump.processes
        if each.state == "Z" and each.ppid == stall.root.pid
    ]
    waits = stall.waits_for_workers
    reasons = [f"worker {pid} has ended and was not collected (zombie)" for pid in zombies]
    reasons += [f"worker {pid} has ended since the last step" for pid in stall.context.lost]
    unseen = zombies and stall.root.threads and not stall.main.frames
    if reasons and (waits or unseen):
        yield _DEAD_WORKER.seen([*reasons[:_MOST_SHOWN], *waits])


def _worker_locks(stall: _Stall) -> Iterator[StallReason]:
    """All workers wait for a lock, and no running thread could release it."""
    root, waits = stall.root.pid, stall.waits_for_workers
    workers = [
        each
        for each in stall.dump.processes
        if each.ppid == root != each.pid and each.state != "Z" and each.threads
    ]
    locked = all(_waits_for_lock(thread) for each in workers for thread in each.threads)
    if not workers or not waits or not locked:
        return
    pids = ", ".join(str(each.pid) for each in workers[:4])
    reasons = [f"{counted(len(workers), 'worker')} ({pids}) in a lock (futex), and no worker runs"]
    if stall.root.thread_count > 1:
        reasons.append(
            f"the program had {stall.root.thread_count} threads; a fork takes one of them along, "
            "and every lock as it was"
        )
    yield _FORK.seen([*reasons, *waits])


def _library(stall: _Stall) -> Iterator[StallReason]:
    main, dump = stall.main, stall.dump
    if dump.answered is not False:
        return
    reasons = ["the agent's own thread gets no turn: the interpreter's lock (GIL) is not released"]
    if main.state == "R" or stall.busy:
        reasons.append("it computes")
    elif main.waits is not None:
        reasons.append(f"its main thread waits in the kernel in {main.waits}")
    if dump.last_seen is not None:
        age, where = dump.last_seen_s or 0.0, _format_frame(dump.last_seen)
        reasons.append(f"when it last released the lock, {age:.0f} s ago, it was at {where}")
    yield _LIBRARY.seen(reasons, pid=stall.root.pid)


def _busy(stall: _Stall) -> Iterator[StallReason]:
    if stall.busy:
        cores = f"it has used {stall.context.cores:.1f} cores since the last step"
        yield _BUSY.seen([cores, *_position_reason(stall.main)])


def _output(stall: _Stall) -> Iterator[StallReason]:
    """
    A write that does not return, seen in the kernel's data.

    Source: /proc/PID/wchan of Linux 6.18. A full pipe shows `anon_pipe_write`, a full socket pair
    `sock_alloc_send_pskb`. A TCP connection and a pseudo-terminal show `wait_woken`, so only the
    system call tells them.
    """
    main = stall.main
    if main.state != "S" or stall.busy:
        return
    unknown = main.syscall in _WRITES and main.wchan in (None, "wait_woken")
    if unknown or _kernel_function(main, _BLOCKED_WRITES) is not None:
        yield _OUTPUT.seen([*_kernel_wait_reason(main), *_position_reason(main)])


def _data(stall: _Stall) -> Iterator[StallReason]:
    main = stall.main
    if main.state == "R" or stall.busy:
        return
    queue, reasons = _find_frame(main, *_IN_QUEUE), _kernel_wait_reason(main)
    if _kernel_function(main, _PIPE):
        what = "data from a pipe that no program writes to"
    elif _kernel_function(main, _SOCKET):
        what = "data from a connection that stays silent"
    elif main.syscall in _READS:
        what = "data from a file or device that stays silent"
    elif main.waits in _WAITS_FOR_CHILD:
        what = "a program that it started to end"
    elif queue is not None and queue.function == "put":
        what = "room in a queue that no thread or process empties"
    elif queue is not None:
        what = "a queue that no thread fills"
        if not stall.others:
            reasons = ["no other Python thread is left in the program that could fill it"]
    elif _find_frame(main, ("__next__",)) is not None:
        what = "the next batch"
    else:
        return
    yield _DATA.seen([*_position_reason(main), *reasons], what=what)


def _lock(stall: _Stall) -> Iterator[StallReason]:
    main, others = stall.main, stall.others
    if not stall.dump.answered or not main.frames or stall.busy or not _waits_for_lock(main):
        return
    if _find_frame(main, *_IN_QUEUE) or stall.waits_for_workers:
        return
    reasons = [f"it waits for a lock (futex) at {_format_position(main.frames)}"]
    awake = [each for each in others if not _waits_for_lock(each)]
    if not others:
        reasons.append("no other thread of the program is left that could release it")
        what = (
            "it waits for a lock that no other thread is left to release: the thread that held it "
            "has ended, or the training's thread has taken it twice"
        )
    elif awake:
        what = "it waits for a lock that another thread holds"
        reasons.append(_format_thread(awake[0], "is at"))
    else:
        what = "its threads wait for each other"
        reasons += [f"so does {_format_thread(each, 'at')}" for each in others[:2]]
    yield _LOCK.seen(reasons, what=what)


def _format_thread(thread: ThreadState, at: str) -> str:
    return f"{clean(thread.name, 40)} {at} {_format_position(thread.frames)}"


# The most exact first: states from the kernel, then conclusions from stacks and waits.
_RULES: Sequence[Callable[[_Stall], Iterator[StallReason]]] = (
    _stopped_process,
    _uninterruptible,
    _dead_worker,
    _worker_locks,
    _library,
    _busy,
    _output,
    _lock,
    _data,
)


def _kernel_function(thread: ThreadState, fragments: Sequence[str]) -> str | None:
    """Return the kernel function in which the thread waits, if it matches a fragment."""
    for name in (thread.wchan, *thread.kernel):
        if name is not None and any(part in name for part in fragments):
            return clean(name, 60)
    return None


def _waits_for_lock(thread: ThreadState) -> bool:
    """Whether the thread waits in the kernel for a user-space lock (futex)."""
    return thread.syscall == "futex" or _kernel_function(thread, ("futex",)) is not None


def _find_frame(
    thread: ThreadState, functions: Collection[str], files: Sequence[str] = ("",)
) -> Frame | None:
    """
    Return the innermost frame of one of these functions.

    Args:
        thread: the thread.
        functions: function names.
        files: fragments of paths; by default any file matches.
    """
    for frame in thread.frames[:_DEEP]:
        if frame.function in functions and any(part in frame.file for part in files):
            return frame
    return None


def _position_reason(thread: ThreadState) -> list[str]:
    """Return where a thread is; empty if unknown."""
    return [f"it is at {_format_position(thread.frames)}"] if thread.frames else []


def _kernel_wait_reason(thread: ThreadState) -> list[str]:
    """Return the kernel function in which a thread waits; empty if unknown."""
    return [] if thread.waits is None else [f"it waits in the kernel in {thread.waits}"]


def _format_position(frames: Sequence[Frame]) -> str:
    """Format the innermost line, and the innermost line outside libraries."""
    first = frames[0]
    own = next((each for each in frames if not _is_library_frame(each)), first)
    there = "" if own is first else f", there in {_format_frame(first)}"
    return f"{_format_frame(own)}{there}"


def _is_library_frame(frame: Frame) -> bool:
    return (
        "/lib/python" in frame.file
        or "-packages/" in frame.file
        or "/watchdog_app/agent/" in frame.file
        or "/watchdog_app/rescue/" in frame.file
        or frame.file.startswith("<frozen")
    )


def _format_frame(frame: Frame) -> str:
    """Return `train.py:42 in step`, safe to show."""
    return clean(frame.place, 120)


def training_line(picture: ThreadDump) -> str | None:
    """Return the innermost line of the training's thread. None: unknown."""
    root = picture.root
    main = None if root is None else root.main
    if main is not None and main.frames:
        return _format_frame(main.frames[0])
    if picture.last_seen is not None:
        return f"{_format_frame(picture.last_seen)} ({picture.last_seen_s or 0.0:.0f} s before)"
    return None
