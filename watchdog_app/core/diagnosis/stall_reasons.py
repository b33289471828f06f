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
from watchdog_app.base.text.quantities import format_rate
from watchdog_app.base.text.terminal import counted
from watchdog_app.core.diagnosis.stalls import BUSY_CORES
from watchdog_app.core.model.agent import Frame, ProcessThreads, ThreadDump, ThreadState
from watchdog_app.core.model.history import SwapTraffic, is_thrashing

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
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")

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
    DEBUGGER = "debugger"
    DRIVER = "driver"
    SWAP = "swap"
    FILES = "files"  # a disk, or a network file system
    DEAD_WORKER = "dead_worker"
    FORK = "fork"  # workers wait for a lock that no process will release
    DATA = "data"
    LOCK = "lock"
    LIBRARY = "library"  # a C call that holds the GIL
    CHILD = "child"  # a process that it started and that does not end
    OUTPUT = "output"  # a pipe, terminal or connection that no program reads from
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class StallReason:
    """One possible cause."""

    why: ReasonKind
    text: str  # description: a clause without a period
    reasons: tuple[str, ...]  # evidence: clauses
    remedy: str  # a sentence


@dataclass(frozen=True, slots=True)
class StallContext:
    """Facts about the task and the machine besides its threads."""

    cores: float = 0.0  # cores that the task has used since its last step
    swap: SwapTraffic | None = None  # swap traffic of the machine
    card_fault: str | None = None  # fault of the task's GPU
    lost: tuple[int, ...] = ()  # pids of workers that ended since the last step
    stopped_by_us: frozenset[int] = frozenset()


class _Row(NamedTuple):
    """Text templates of one cause; names in braces are replaced by what was seen."""

    kind: ReasonKind
    text: str
    remedy: str

    def seen(self, reasons: Sequence[str], **names: object) -> StallReason:
        text, remedy = self.text.format(**names), self.remedy.format(**names)
        return StallReason(self.kind, text, tuple(reasons), remedy)


# For each cause: its description, then the remedy.
# fmt: off
_STOPPED = _Row(ReasonKind.STOPPED,
    "somebody has stopped process {process}, and the rest waits for it",
    "Resume it with: kill -CONT {pid}")
_DEBUGGER = _Row(ReasonKind.DEBUGGER, "a debugger has stopped process {process}",
    "Continue it in the debugger, or end the debugger.")
_DRIVER = _Row(ReasonKind.DRIVER, "the graphics driver does not answer",
    "Look for Xid lines: sudo dmesg | grep -i nvrm. Such a process cannot be killed while "
    "the driver is busy with it; often only a reset of the card or a restart helps.")
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
_FORK = _Row(ReasonKind.FORK, "its workers wait for a lock that no process will release",
    "Restart the training with workers that are not forked: "
    "DataLoader(..., multiprocessing_context='forkserver'), "
    "multiprocessing.set_start_method('forkserver'). Use fewer of them if memory was short: a "
    "worker that is killed leaves its lock locked.")
_LIBRARY = _Row(ReasonKind.LIBRARY,
    "a call into a C library does not return and keeps Python from running",
    "See the call itself: sudo py-spy dump --native --pid {pid}")
_BUSY = _Row(ReasonKind.BUSY,
    "it still computes: one step has become very long, or it turns in circles",
    "Look twice whether it moves: watchdog stacks. A compilation or a validation that is not "
    "announced looks the same.")
_OUTPUT = _Row(ReasonKind.OUTPUT,
    "it writes to a pipe, terminal or connection that no program reads",
    "Look at what is to read its output: a program behind a pipe (`| less`, "
    "subprocess.PIPE) that has stopped reading, or a terminal stopped by Ctrl-S (Ctrl-Q "
    "continues it).")
_CHILD = _Row(ReasonKind.CHILD, "it waits for process {process} to end",
    "See what that process waits for: watchdog stacks {pid}. If its output goes to a pipe, read it "
    "with communicate(): a process that fills its pipe does not end.")
_FULL_QUEUE = _Row(ReasonKind.OUTPUT,
    "it waits for room in a queue that no thread or process empties",
    "Look at what is to take from it: a consumer that ended, or that starts only later. With a "
    "timeout, put() would raise queue.Full instead.")
_DATA = _Row(ReasonKind.DATA, "it waits for {what}",
    "Look at what is to fill it: a producer that ended, a server that does not answer, a pipe "
    "without a writer. With a timeout in that call it would end with an error instead.")
_LOCK = _Row(ReasonKind.LOCK, "{what}",
    "Use `with lock:`, so that an error releases it; threading.RLock where one thread takes a "
    "lock twice; and take several locks in one order everywhere.")
# fmt: on


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
    stall = _Stall(dump, root, root.main, context or StallContext())
    return tuple(found for rule in _RULES if (found := rule(stall)) is not None)


class _Stall(NamedTuple):
    """Input of the rules."""

    dump: ThreadDump
    root: ProcessThreads
    main: ThreadState | None  # the training's thread
    context: StallContext

    @property
    def busy(self) -> bool:
        return self.context.cores > BUSY_CORES

    @property
    def waits_for_workers(self) -> list[str]:
        """Where the training's thread waits for workers; empty if it does not."""
        frame = _find_frame(self.main, *_FOR_WORKERS)
        at = "" if frame is None else format_frame(frame)
        return [f"the program waits for its workers at {at}"] if at else []

    @property
    def others(self) -> list[ThreadState]:
        """Other threads of the program, without threads of libraries and of the agent."""
        return [
            each
            for each in self.root.threads
            if each is not self.main and any(not _is_library_frame(frame) for frame in each.frames)
        ]


def _stopped_process(stall: _Stall) -> StallReason | None:
    """A process that somebody or a debugger has stopped."""
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
        f"thread {thread.tid} of process {process.pid} cannot be interrupted in {call}"
        for process, thread, call in _uninterruptible_threads(stall.dump, _DRIVER_CALLS)
    ]
    if stall.context.card_fault is not None:
        reasons.append(stall.context.card_fault)
    return _DRIVER.seen(reasons[:_MOST_SHOWN]) if reasons else None


def _swap(stall: _Stall) -> StallReason | None:
    reasons, waiting = [], list(_uninterruptible_threads(stall.dump, _SWAP_CALLS))
    if waiting:
        who = "one thread waits" if len(waiting) == 1 else f"{len(waiting)} threads wait"
        reasons.append(f"{who} for pages from swap ({waiting[0][2]})")
    swap = stall.context.swap
    if reasons and swap is not None and is_thrashing(swap):
        out, back = format_rate(swap.out_per_s), format_rate(swap.in_per_s)
        reasons.append(f"{out} go out to swap and {back} come back")
    return _SWAP.seen(reasons) if reasons else None


def _files(stall: _Stall) -> StallReason | None:
    """A file system that does not answer any process, or a disk that the program waits for."""
    found = [(_NETWORK, each) for each in _uninterruptible_threads(stall.dump, _NETWORK_CALLS)] + [
        (_DISK, each)
        for each in _uninterruptible_threads(stall.dump, _DISK_CALLS)
        if each[0] is stall.root
    ]
    for row, (process, thread, call) in found[:1]:
        where = f"thread {thread.tid} of process {process.pid} waits in {call} (state D)"
        return row.seen([where, *_position_reason(thread)])
    return None


def _dead_worker(stall: _Stall) -> StallReason | None:
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
    unseen = zombies and stall.main is not None and not stall.main.frames
    if not reasons or not (waits or unseen):
        return None
    return _DEAD_WORKER.seen([*reasons[:_MOST_SHOWN], *waits])


def _child(stall: _Stall) -> StallReason | None:
    """The training's thread waits for a process that it started, as in `subprocess.run`."""
    main = stall.main
    if main is None or main.waits not in _WAITS_FOR_CHILD or stall.busy:
        return None
    for process in stall.dump.processes:
        if process.ppid == stall.root.pid and process.state != "Z" and process.main is not None:
            waits = f"process {process.pid} waits in the kernel in {process.main.waits}"
            seen = [*_position_reason(main), *([waits] if process.main.waits else [])]
            named = f"{process.pid} ({clean(process.name, 30)})"
            return _CHILD.seen(seen, process=named, pid=process.pid)
    return None


def _worker_locks(stall: _Stall) -> StallReason | None:
    """All workers wait for a lock, and no running thread could release it."""
    root = stall.root.pid
    workers = [
        each
        for each in stall.dump.processes
        if each.ppid == root != each.pid and each.state != "Z" and each.threads
    ]
    stuck = [each for each in workers if _all_wait_for_locks(each)]
    if not stuck or any(
        not _all_wait_for_locks(each) and not _waits_for_input(each) for each in workers
    ):
        return None  # one worker computes or reads, so the workers are alive
    waits = stall.waits_for_workers
    # If one worker waits for input and the others wait for their turn, they only lack work.
    if not waits or any(_waits_for_input(each) for each in workers):
        return None
    pids = ", ".join(str(each.pid) for each in stuck[:4])
    reasons = [f"{counted(len(stuck), 'worker')} ({pids}) in a lock (futex), and no worker runs"]
    if stall.root.thread_count > 1:
        reasons.append(
            f"the program had {stall.root.thread_count} threads; a fork takes one of them along, "
            "and every lock as it was"
        )
    return _FORK.seen([*reasons, *waits])


def _library(stall: _Stall) -> StallReason | None:
    main, dump = stall.main, stall.dump
    if dump.answered is not False or main is None:
        return None
    reasons = ["the agent's own thread gets no turn: the interpreter's lock (GIL) is not released"]
    if main.state == "R" or stall.busy:
        reasons.append("it computes")
    elif main.waits is not None:
        reasons.append(f"its main thread waits in the kernel in {main.waits}")
    if dump.last_seen is not None:
        age, where = dump.last_seen_s or 0.0, format_frame(dump.last_seen)
        reasons.append(f"when it last released the lock, {age:.0f} s ago, it was at {where}")
    return _LIBRARY.seen(reasons, pid=stall.root.pid)


def _busy(stall: _Stall) -> StallReason | None:
    if not stall.busy:
        return None
    cores = f"it has used {stall.context.cores:.1f} cores since the last step"
    return _BUSY.seen([cores, *_position_reason(stall.main)])


def _output(stall: _Stall) -> StallReason | None:
    """
    A write that does not return, seen in the kernel's data.

    Source: /proc/PID/wchan of Linux 6.18. A full pipe shows `anon_pipe_write`, a full socket pair
    `sock_alloc_send_pskb`. A TCP connection and a pseudo-terminal show `wait_woken`.
    """
    main = stall.main
    if main is None or main.state != "S" or stall.busy:
        return None
    unknown = main.syscall in _WRITES and main.wchan in (None, "wait_woken")
    if not unknown and _kernel_function(main, _BLOCKED_WRITES) is None:
        return None
    waits = f"it waits in the kernel in {main.waits}"
    return _OUTPUT.seen([*([] if main.waits is None else [waits]), *_position_reason(main)])


def _data(stall: _Stall) -> StallReason | None:
    main = stall.main
    if main is None or main.state == "R" or stall.busy:
        return None
    queue, waits = _find_frame(main, *_IN_QUEUE), f"it waits in the kernel in {main.waits}"
    if _kernel_function(main, _PIPE):
        what, seen = "data from a pipe that no program writes to", [waits]
    elif _kernel_function(main, _SOCKET):
        what, seen = "data from a connection that stays silent", [waits]
    elif main.syscall in _READS:
        what, seen = "data from a file or device that stays silent", [waits]
    elif queue is not None and queue.function == "put":
        return _FULL_QUEUE.seen([*_position_reason(main), f"queue: {format_frame(queue)}"])
    elif queue is not None:
        what, seen = "a queue that no thread fills", [f"queue: {format_frame(queue)}"]
        if not stall.others:
            seen.append("no other Python thread is left in the program that could fill it")
    elif _find_frame(main, ("__next__",)) is not None:
        what, seen = "the next batch", []
    else:
        return None
    return _DATA.seen([*_position_reason(main), *seen], what=what)


def _lock(stall: _Stall) -> StallReason | None:
    main = stall.main
    if main is None or not stall.dump.answered or not main.frames or stall.busy:
        return None
    if not _waits_for_lock(main) or _find_frame(main, *_IN_QUEUE) or stall.waits_for_workers:
        return None
    reasons, others = (
        [f"it waits for a lock (futex) at {_format_position(main.frames)}"],
        stall.others,
    )
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
        do = "does" if len(others) == 1 else "do"
        reasons.append(f"so {do} {', '.join(_format_thread(each, 'at') for each in others[:2])}")
    return _LOCK.seen(reasons, what=what)


def _format_thread(thread: ThreadState, at: str) -> str:
    return f"{clean(thread.name, 40)} {at} {_format_position(thread.frames)}"


# The most exact first: states from the kernel, then conclusions from stacks and waits.
_RULES: Sequence[Callable[[_Stall], StallReason | None]] = (
    _stopped_process,
    _driver,
    _swap,
    _files,
    _dead_worker,
    _child,
    _worker_locks,
    _library,
    _busy,
    _output,
    _lock,
    _data,
)


def _uninterruptible_threads(
    dump: ThreadDump, calls: Sequence[str]
) -> Iterator[tuple[ProcessThreads, ThreadState, str]]:
    """Yield threads in uninterruptible sleep (state D) in one of those functions, with its name."""
    for process in dump.processes:
        for thread in process.threads:
            call = _kernel_function(thread, calls) if thread.state == "D" else None
            if call is not None:
                yield process, thread, call


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
    thread: ThreadState | None, functions: Collection[str], files: Sequence[str] = ("",)
) -> Frame | None:
    """
    Return the innermost frame of one of these functions.

    Args:
        thread: None has no frames.
        functions: function names.
        files: fragments of paths; by default any file matches.
    """
    for frame in () if thread is None else thread.frames[:_DEEP]:
        if frame.function in functions and any(part in frame.file for part in files):
            return frame
    return None


def _all_wait_for_locks(process: ProcessThreads) -> bool:
    """Whether every thread of the process waits for a lock."""
    return all(_waits_for_lock(each) for each in process.threads)


def _waits_for_input(process: ProcessThreads) -> bool:
    """Whether the process waits for input."""
    main = process.threads[0]
    return bool(
        main.syscall in (*_READS, *_POLLS) or _kernel_function(main, (*_PIPE, *_SOCKET, "poll"))
    )


def _position_reason(thread: ThreadState | None) -> list[str]:
    """Return where a thread is; empty if unknown."""
    return (
        [f"it is at {_format_position(thread.frames)}"]
        if thread is not None and thread.frames
        else []
    )


def _format_position(frames: Sequence[Frame]) -> str:
    """Format the innermost line, and the innermost line outside libraries."""
    first = frames[0]
    own = next((each for each in frames if not _is_library_frame(each)), first)
    return (
        format_frame(first)
        if own is first
        else f"{format_frame(own)}, there in {format_frame(first)}"
    )


def _is_library_frame(frame: Frame) -> bool:
    return (
        "/lib/python" in frame.file
        or "-packages/" in frame.file
        or "/watchdog_app/agent/" in frame.file
        or "/watchdog_app/rescue/" in frame.file
        or frame.file.startswith("<frozen")
    )


def format_frame(frame: Frame) -> str:
    """Return `train.py:42 in step`, safe to show."""
    return clean(frame.place, 120)


def training_line(picture: ThreadDump) -> str | None:
    """Return the innermost line of the training's thread. None: unknown."""
    root = picture.root
    main = None if root is None else root.main
    if main is not None and main.frames:
        return format_frame(main.frames[0])
    if picture.last_seen is not None:
        return f"{format_frame(picture.last_seen)} ({picture.last_seen_s or 0.0:.0f} s before)"
    return None
