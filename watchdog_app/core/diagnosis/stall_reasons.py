"""Why a training stands still, from what its threads do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watchdog_app.base.text.plain import plain
from watchdog_app.base.text.quantities import format_rate
from watchdog_app.core.model.agent import Frame, Picture, ProcessLook, ThreadLook
from watchdog_app.core.model.history import SwapTraffic, thrashing

DEEP = 12  # frames from the innermost one: what waits is near the end of a stack


# Fragments of kernel functions, as in wchan and the kernel's stack.
DRIVER = ("nvidia", "nv_", "_nv0", "uvm_", "os_acquire", "amdgpu", "kfd_", "drm_")
NETWORK_FILES = ("nfs", "rpc_", "cifs", "smb", "ceph", "fuse", "9p", "lustre", "gpfs", "beegfs")
SWAP = ("swap_read", "swapin", "swap_cluster", "do_swap_page", "blk_cgroup_swap", "try_to_free")
DISK = ("io_schedule", "folio_wait", "wait_on_page", "jbd2", "ext4", "xfs_", "btrfs", "submit_bio")
FUTEX = ("futex",)
_NAMED_PIPE = ("wait_for_partner", "fifo_open")
_PIPE = ("pipe_read", "anon_pipe_read", *_NAMED_PIPE)
_SOCKET = ("sk_wait_data", "unix_stream_read", "inet_csk_accept", "skb_wait", "skb_recv")
_FULL_PIPE = ("pipe_write",)
_FULL_SOCKET = ("sock_alloc_send", "sk_stream_wait_memory", "unix_wait_for_peer")
_STOPPED_TERMINAL = ("n_tty_write", "tty_write")
_WRITES = frozenset(("write", "writev", "pwrite64", "sendto", "sendmsg", "sendfile", "splice"))
_READS = frozenset(("read", "readv", "pread64", "recvfrom", "recvmsg"))
_FUTEX_COMMAND = 0x7F
_FUTEX_WAITS = frozenset((0, 9))  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_FUTEX_PRIVATE = 0x80


# Files of Python's library and of the frameworks in which a program waits for its workers.
_WORKERS = ("multiprocessing/", "concurrent/futures/", "torch/utils/data/", "joblib/", "billiard/")
_JOINS = (
    "multiprocessing/process.py", "multiprocessing/popen_fork.py",
    "multiprocessing/popen_forkserver.py",
)  # fmt: skip
_WAITS = frozenset(
    ("get", "_try_get_data", "_get_data", "_get_batch", "wait", "poll", "_poll", "recv", "_recv",
     "_recv_bytes", "recv_bytes", "join", "select", "result", "results",
     "wait_result_broken_or_wakeup", "acquire", "__enter__", "_wait_for_tstate_lock",
     "_retrieve", "retrieve")
)  # fmt: skip
_DATA = frozenset(
    ("read", "readinto", "readline", "recv", "recv_into", "recv_bytes", "_recv", "_recv_bytes",
     "accept", "poll", "select", "urlopen", "getresponse", "_safe_read")
)  # fmt: skip


def all_threads(picture: Picture) -> Iterator[tuple[ProcessLook, ThreadLook]]:
    """Every thread with its process."""
    for process in picture.processes:
        for thread in process.threads:
            yield process, thread


def in_kernel(thread: ThreadLook, fragments: Sequence[str]) -> str | None:
    """The function in which it waits, where that is one of those."""
    for name in (thread.wchan, *thread.kernel):
        if name is not None and any(part in name for part in fragments):
            return plain(name, 60)
    return None


def has(thread: ThreadLook, fragments: Sequence[str]) -> bool:
    """Whether it waits in one of those functions of the kernel."""
    return in_kernel(thread, fragments) is not None


def waits_for_workers(thread: ThreadLook) -> Frame | None:
    """The place in the library where it waits for a process."""
    for frame in thread.frames[:DEEP]:
        if frame.function in _WAITS and _in_files(frame, _WORKERS):
            return frame
    return None


def waits_for_end(thread: ThreadLook) -> Frame | None:
    """The place in the library where it waits for the end of a process."""
    for frame in thread.frames[:DEEP]:
        if frame.function in ("wait", "poll", "join") and frame.file.endswith(_JOINS):
            return frame
    return None


def is_queue(frame: Frame) -> bool:
    """`queue.get` of the library, in one process or of several."""
    return frame.function == "get" and frame.file.endswith(
        ("/queue.py", "multiprocessing/queues.py")
    )


def _in_files(frame: Frame, fragments: Sequence[str]) -> bool:
    return any(part in frame.file for part in fragments)


def reads_from(thread: ThreadLook) -> str | None:
    """What it reads from, as the kernel tells."""
    if has(thread, _PIPE):
        return None if _opens_to_write(thread) else "a pipe that nobody writes to"
    if has(thread, _SOCKET):
        return "a connection that stays silent"
    if thread.syscall in _READS:
        return "a file or device that stays silent"
    frame = thread.frames[0] if thread.frames else None
    polls = thread.syscall in ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
    if frame is not None and frame.function in _DATA and (polls or has(thread, ("poll",))):
        return "a connection that stays silent"
    return None


def writes_to(thread: ThreadLook) -> str | None:
    """
    What it writes to and nobody reads from, as the kernel tells.

    Source: /proc/PID/wchan of Linux 6.18 beside a full pipe (`anon_pipe_write`), socket pair
    (`sock_alloc_send_pskb`), TCP connection and pseudo-terminal (both `wait_woken`).
    """
    if thread.state != "S":
        return None
    if has(thread, _FULL_PIPE) or _opens_to_write(thread):
        return "a pipe that nobody reads from"
    if has(thread, _STOPPED_TERMINAL):
        return "a terminal that takes no more output"
    if has(thread, _FULL_SOCKET):
        return "a connection whose other end does not read"
    if thread.syscall in _WRITES and thread.wchan in (None, "wait_woken"):
        return "a pipe, terminal or connection that nobody reads from"
    return None


def _opens_to_write(thread: ThreadLook) -> bool:
    """Whether it opens a named pipe for writing, which waits for a reader: open(2), O_WRONLY."""
    flags = {"open": 1, "openat": 2}.get(thread.syscall or "")
    if flags is None or len(thread.arguments) <= flags or not has(thread, _NAMED_PIPE):
        return False
    return thread.arguments[flags] & 3 == 1


def runs_program(thread: ThreadLook) -> bool:
    """Whether a line of the program's own is in its stack; others serve a library or the agent."""
    return any(not _of_library(frame) for frame in thread.frames)


def is_worker(process: ProcessLook, root: ProcessLook) -> bool:
    """A child that was forked, as far as that shows: of the same name, and alive."""
    if process.pid == root.pid or process.state == "Z":
        return False
    return process.ppid == root.pid and bool(process.threads)


def stuck(process: ProcessLook) -> bool:
    """Every thread of it waits for a lock."""
    return all(has(each, FUTEX) or each.syscall == "futex" for each in process.threads)


def idle(process: ProcessLook) -> bool:
    """It listens for work."""
    main = process.threads[0]
    listens = has(main, (*_PIPE, *_SOCKET, "poll"))
    return listens or main.syscall in _READS or main.syscall in ("poll", "ppoll", "select")


def forever_alone(thread: ThreadLook) -> bool:
    """
    It waits without end for a lock that no other process can see: exact, where the kernel tells.

    futex(uaddr, op, val, timeout, ...): FUTEX_PRIVATE_FLAG in `op`, no timeout.
    """
    if thread.syscall != "futex" or len(thread.arguments) < 4:
        return False
    operation, timeout = thread.arguments[1], thread.arguments[3]
    return (
        operation & _FUTEX_COMMAND in _FUTEX_WAITS
        and bool(operation & _FUTEX_PRIVATE)
        and timeout == 0
    )


def at(frames: Sequence[Frame]) -> str:
    """The innermost line, and the innermost one that is no library's."""
    first = frames[0]
    own = next((each for each in frames if not _of_library(each)), first)
    if own is first:
        return place(first)
    return f"{place(own)}, there in {place(first)}"


def _of_library(frame: Frame) -> bool:
    return (
        "/lib/python" in frame.file
        or "-packages/" in frame.file
        or "/watchdog_app/agent/" in frame.file
        or frame.file.startswith("<frozen")
    )


def place(frame: Frame) -> str:
    """`train.py:42 in step`, safe to show."""
    return plain(frame.place, 120)


def named(process: ProcessLook) -> str:
    """`4711 (python)`, safe to show."""
    return f"{process.pid} ({plain(process.name, 30)})"


def threads_wait(count: int) -> str:
    """`3 threads wait`."""
    return "one thread waits" if count == 1 else f"{count} threads wait"


def workers_wait(pids: Sequence[int]) -> str:
    """`2 workers (11, 12) wait`."""
    if len(pids) == 1:
        return f"worker {pids[0]} waits"
    return f"{len(pids)} workers ({', '.join(map(str, pids[:4]))}) wait"


_THRASH_FAULTS_PER_S = 100.0
_BUSY_CORES = 0.1
_THRASHES = "the machine is thrashing: memory is read back from swap as fast as it is put there"
_MAKE_ROOM = "Close what you can spare; smaller batches or buffers keep it from coming back."


class Why(StrEnum):
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
class Suspect:
    """One explanation."""

    why: Why
    text: str  # what is the case: a clause without a point
    reasons: tuple[str, ...]  # what was seen: clauses
    cure: str  # what to do: a sentence


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known besides the picture."""

    cores: float = 0.0  # that the task has used since its last step
    swap: SwapTraffic | None = None  # of the machine
    card_fault: str | None = None  # of the card that the task is on
    lost: tuple[int, ...] = ()  # pids of workers that ended since the last step
    stopped_by_us: frozenset[int] = frozenset()


def suspects(picture: Picture, around: Circumstances | None = None) -> tuple[Suspect, ...]:
    """The explanations that there is evidence for, the strongest first; empty: not known."""
    around = around or Circumstances()
    root = picture.root
    if root is None:
        return ()
    found: dict[Why, Suspect] = {}
    for search in _SEARCHES:
        for suspect in search(picture, root, around):
            found.setdefault(suspect.why, suspect)
    return tuple(found.values())


def _stopped(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    del root
    for process in picture.processes:
        if process.pid in around.stopped_by_us:
            continue
        if process.state == "T":
            yield Suspect(
                Why.STOPPED,
                f"somebody has stopped process {named(process)}, and the rest waits for it",
                (f"process {process.pid} is in state T (stopped by a signal)",),
                f"Let it go on: kill -CONT {process.pid}",
            )
            return
        if process.state == "t":
            yield Suspect(
                Why.DEBUGGER,
                f"a debugger holds process {named(process)}",
                (f"process {process.pid} is in state t (stopped by a tracer)",),
                "Let it go on in the debugger, or end the debugger.",
            )
            return


def _driver(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    reasons = []
    for process, thread in all_threads(picture):
        if thread.state == "D" and (place := in_kernel(thread, DRIVER)):
            reasons.append(
                f"thread {thread.tid} of process {process.pid} cannot be interrupted in {place}"
            )
    if around.card_fault is not None:
        reasons.append(around.card_fault)
    del root
    if reasons:
        yield Suspect(
            Why.DRIVER,
            "the graphics driver does not answer",
            tuple(reasons[:3]),
            "Look for Xid lines: sudo dmesg | grep -i nvrm. Such a process cannot be killed until "
            "the driver lets go; often only a reset of the card or a restart helps.",
        )


def _swap(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    del root
    reasons = []
    faults = picture.major_faults_per_s
    waiting = [
        place
        for _, thread in all_threads(picture)
        if thread.state == "D" and (place := in_kernel(thread, SWAP))
    ]
    if waiting:
        reasons.append(f"{threads_wait(len(waiting))} for pages from swap ({waiting[0]})")
    thrashes = around.swap is not None and thrashing(around.swap)
    if thrashes and faults is not None and faults > _THRASH_FAULTS_PER_S:
        reasons.append(f"{faults:,.0f} of its pages a second have to be read back")
    if reasons:
        yield Suspect(Why.SWAP, _THRASHES, (*reasons, *_swap_traffic(around)), _MAKE_ROOM)


def _swapping_elsewhere(
    picture: Picture, root: ProcessLook, around: Circumstances
) -> Iterator[Suspect]:
    """The machine thrashes, and nothing shows that this task does: the last thing to think of."""
    del picture, root
    reasons = tuple(_swap_traffic(around))
    if reasons:
        yield Suspect(Why.SWAP, _THRASHES, reasons, _MAKE_ROOM)


def _swap_traffic(around: Circumstances) -> Iterator[str]:
    swap = around.swap
    if swap is not None and thrashing(swap):
        yield (
            f"{format_rate(swap.out_per_s)} go out to swap and {format_rate(swap.in_per_s)} "
            "come back"
        )


def _files(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    del around
    for process, thread in all_threads(picture):
        if thread.state != "D":
            continue
        over_network = in_kernel(thread, NETWORK_FILES)
        place = over_network or (in_kernel(thread, DISK) if process is root else None)
        if place is None:
            continue
        what = "a file system over the network" if over_network else "a disk"
        reasons = [f"thread {thread.tid} of process {process.pid} waits in {place} (state D)"]
        if thread.frames:
            reasons.append(f"it is at {at(thread.frames)}")
        cure = (
            "Look whether the server is there: ls on that folder hangs, too, if it is not."
            if over_network
            else "Look at the disk: sudo dmesg | tail; iostat -x 1."
        )
        yield Suspect(Why.FILES, f"it waits for {what} that does not answer", tuple(reasons), cure)
        return


def _dead_worker(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    main = root.main
    zombies = [each for each in picture.processes if each.state == "Z" and each.ppid == root.pid]
    waiting = None if main is None else waits_for_workers(main)
    if not zombies and not around.lost:
        return
    if waiting is None and not (zombies and main is not None and not main.frames):
        return  # children that have ended are normal where nobody waits for one
    reasons = [f"worker {each.pid} has ended and nobody has noticed (zombie)" for each in zombies]
    reasons += [f"worker {pid} has ended since the last step" for pid in around.lost]
    reasons = reasons[:3]
    if waiting is not None:
        reasons.append(f"the program waits for its workers at {place(waiting)}")
    yield Suspect(
        Why.DEAD_WORKER,
        "it waits for a worker process that has ended",
        tuple(reasons),
        "Such a worker was often killed for lack of memory (see: watchdog explain). Use "
        "fewer workers or smaller batches; give a DataLoader timeout=60, so that it raises an "
        "error instead of waiting for ever.",
    )


def _forked(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    """Workers whose only thread waits for a lock: which thread of theirs should open it?"""
    del around
    workers = [each for each in picture.processes if is_worker(each, root)]
    if not workers or any(not stuck(each) and not idle(each) for each in workers):
        return  # one of them computes or reads: they are alive
    stuck = [each for each in workers if stuck(each)]
    if not stuck:
        return
    alone = [each for each in stuck if each.thread_count == 1]
    sure = [each for each in alone if each.main is not None and forever_alone(each.main)]
    if any(idle(each) for each in workers) and not sure:
        return  # one listens for work and the others wait for their turn: they have nothing to do
    waiting = None if root.main is None else waits_for_workers(root.main)
    reasons = []
    if sure:
        reasons.append(
            f"worker {sure[0].pid} waits for a lock of its own process, and has one thread: "
            "nobody is left to open it"
        )
    else:
        waiting_ones = workers_wait([each.pid for each in stuck])
        reasons.append(f"{waiting_ones} for a lock (futex), and no worker runs")
    if alone and root.thread_count > 1:
        reasons.append(
            f"the program had {root.thread_count} threads; a fork takes one of them along, and "
            "every lock as it was"
        )
    if waiting is not None:
        reasons.append(f"the program waits for its workers at {place(waiting)}")
    if waiting is None and not sure:
        return
    if alone:
        yield Suspect(
            Why.FORK,
            "a worker was forked while another thread held a lock, and waits for it for ever",
            tuple(reasons),
            "Start workers without fork: multiprocessing.set_start_method('forkserver') or "
            "'spawn', DataLoader(..., multiprocessing_context='forkserver'); or start them before "
            "TensorFlow, PyTorch and threads are.",
        )
    else:
        yield Suspect(
            Why.WORKER_LOCK,
            "its workers wait for a lock that nobody holds any more",
            tuple(reasons),
            "A worker that was killed while it held a shared lock or queue leaves it locked: start "
            "the training anew, with fewer workers if memory was short.",
        )


def _library(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
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
            f"when it last let go, {age:.0f} s ago, it was at {place(picture.last_seen)}"
        )
    yield Suspect(
        Why.LIBRARY,
        "a call into a C library does not return and keeps Python from running",
        tuple(reasons),
        f"See the call itself: sudo py-spy dump --native --pid {root.pid}",
    )


def _busy(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    del picture
    if around.cores <= _BUSY_CORES:
        return
    reasons = [f"it has used {around.cores:.1f} cores since the last step"]
    if root.main is not None and root.main.frames:
        reasons.append(f"it is at {at(root.main.frames)}")
    yield Suspect(
        Why.BUSY,
        "it still computes: one step has become very long, or it turns in circles",
        tuple(reasons),
        "Look twice whether it moves: watchdog stacks. A compilation or a validation that is not "
        "announced looks the same.",
    )


def _output(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    """A write that does not end, in the training itself or in a worker whose end it waits for."""
    main = root.main
    if main is None or around.cores > _BUSY_CORES:
        return
    reasons = []
    writer, process, where = main, root, writes_to(main)
    joins = waits_for_end(main)
    if where is None and joins is not None:
        for each in picture.processes:
            for thread in each.threads if is_worker(each, root) else ():
                if where is None:
                    writer, process, where = thread, each, writes_to(thread)
        reasons.append(f"the program waits for the worker's end at {place(joins)}")
    if where is None:
        return
    if writer.frames:
        reasons.insert(0, f"it is at {at(writer.frames)}")
    if writer.waits is not None:
        who = "it" if process is root else f"worker {process.pid}"
        reasons.insert(0, f"{who} waits in the kernel in {writer.waits}")
    if process is root:
        text = f"it writes to {where}"
        cure = (
            "Look at what is to read its output: a program behind a pipe (`| less`, "
            "subprocess.PIPE) that has stopped reading, or a terminal stopped by Ctrl-S (Ctrl-Q "
            "lets it go on)."
        )
    else:
        text = f"it waits for the end of a worker that writes to {where}"
        cure = "Read the results out of the queue before join(): a worker ends when they are read."
    yield Suspect(Why.OUTPUT, text, tuple(reasons), cure)


def _data(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    del picture
    main = root.main
    if main is None or main.state == "R" or around.cores > _BUSY_CORES:
        return
    queue = next((f for f in main.frames[:DEEP] if is_queue(f)), None)
    reads = reads_from(main)
    steps = next((f for f in main.frames[:DEEP] if f.function == "__next__"), None)
    if queue is None and reads is None and steps is None:
        return
    reasons = []
    if main.frames:
        reasons.append(f"it is at {at(main.frames)}")
    if reads is not None:
        reasons.append(f"it waits in the kernel in {main.waits}")
        what = f"it waits for data from {reads}"
    elif queue is not None:
        what = "it waits for a queue that nobody fills"
        reasons.append(f"queue: {place(queue)}")
        others = _others(root, main)
        if not others:
            reasons.append("no other Python thread is left in the program that could fill it")
    else:
        what = "it waits for the next batch"
    yield Suspect(
        Why.DATA,
        what,
        tuple(reasons),
        "Look at what is to fill it: a producer that ended, a server that does not answer, a pipe "
        "without a writer. With a timeout in that call it would end with an error instead.",
    )


def _others(root: ProcessLook, main: ThreadLook) -> list[ThreadLook]:
    """Threads of the program besides the training's; those of libraries and the agent are not."""
    return [each for each in root.threads if each is not main and runs_program(each)]


def _lock(picture: Picture, root: ProcessLook, around: Circumstances) -> Iterator[Suspect]:
    main = root.main
    if main is None or not picture.answered or not main.frames or around.cores > _BUSY_CORES:
        return
    if not has(main, FUTEX) and main.syscall != "futex":
        return
    if any(is_queue(frame) for frame in main.frames[:DEEP]) or waits_for_workers(main):
        return
    others = _others(root, main)
    awake = [each for each in others if not has(each, FUTEX) and each.syscall != "futex"]
    reasons = [f"it waits for a lock (futex) at {at(main.frames)}"]
    if not others:
        reasons.append("no other thread of the program is left that could open it")
        text = (
            "it waits for a lock that no other thread is left to open: the thread that held it "
            "has ended, or the training's thread has taken it twice"
        )
    elif not awake:
        reasons.append(
            f"so {'does' if len(others) == 1 else 'do'} "
            + ", ".join(f"{plain(each.name, 40)} at {at(each.frames)}" for each in others[:2])
        )
        text = "its threads wait for each other"
    else:
        text = "it waits for a lock that another thread holds"
        reasons.append(f"{plain(awake[0].name, 40)} is at {at(awake[0].frames)}")
    yield Suspect(
        Why.LOCK,
        text,
        tuple(reasons),
        "Use `with lock:`, so that an error opens it; threading.RLock where one thread takes a "
        "lock twice; and take several locks in one order everywhere.",
    )


Search = Callable[[Picture, ProcessLook, Circumstances], Iterable[Suspect]]


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
