"""What shows in a thread or process: the signs that reasons of a stall rest on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from watchdog_app.base.text.plain import clean
from watchdog_app.core.model.agent import Frame, ProcessThreads, ThreadDump, ThreadState

_DEEP = 12  # frames from the innermost one: what waits is near the end of a stack

# Fragments of kernel functions, as in wchan and the kernel's stack.
DRIVER = ("nvidia", "nv_", "_nv0", "uvm_", "os_acquire", "amdgpu", "kfd_", "drm_")
NETWORK_FILES = ("nfs", "rpc_", "cifs", "smb", "ceph", "fuse", "9p", "lustre", "gpfs", "beegfs")
SWAP = ("swap_read", "swapin", "swap_cluster", "do_swap_page", "blk_cgroup_swap", "try_to_free")
DISK = ("io_schedule", "folio_wait", "wait_on_page", "jbd2", "ext4", "xfs_", "btrfs", "submit_bio")
_NAMED_PIPE = ("wait_for_partner", "fifo_open")
_PIPE = ("pipe_read", "anon_pipe_read", *_NAMED_PIPE)
_SOCKET = ("sk_wait_data", "unix_stream_read", "inet_csk_accept", "skb_wait", "skb_recv")
_BLOCKED_WRITES = {
    ("pipe_write",): "a pipe that nobody reads from",
    ("n_tty_write", "tty_write"): "a terminal that takes no more output",
    ("sock_alloc_send", "sk_stream_wait_memory", "unix_wait_for_peer"): (
        "a connection whose other end does not read"
    ),
}
_WRITES = frozenset(("write", "writev", "pwrite64", "sendto", "sendmsg", "sendfile", "splice"))
_READS = frozenset(("read", "readv", "pread64", "recvfrom", "recvmsg"))
_POLLS = ("poll", "ppoll", "select")
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


def all_threads(dump: ThreadDump) -> Iterator[tuple[ProcessThreads, ThreadState]]:
    """Every thread with its process."""
    for process in dump.processes:
        for thread in process.threads:
            yield process, thread


def in_kernel(thread: ThreadState, fragments: Sequence[str]) -> str | None:
    """The function in which it waits, where that is one of those."""
    for name in (thread.wchan, *thread.kernel):
        if name is not None and any(part in name for part in fragments):
            return clean(name, 60)
    return None


def has(thread: ThreadState, fragments: Sequence[str]) -> bool:
    """Whether it waits in one of those functions of the kernel."""
    return in_kernel(thread, fragments) is not None


def waits_for_lock(thread: ThreadState) -> bool:
    """Whether it waits in the kernel for a lock of user space."""
    return thread.syscall == "futex" or has(thread, ("futex",))


def frame_of(
    thread: ThreadState | None, functions: Collection[str], files: Sequence[str] = ("",)
) -> Frame | None:
    """
    The innermost frame of such a function.

    Args:
        thread: None has no frames.
        functions: names.
        files: fragments of paths; by default in any file.
    """
    for frame in () if thread is None else thread.frames[:_DEEP]:
        if frame.function in functions and any(part in frame.file for part in files):
            return frame
    return None


def waits_for_workers(thread: ThreadState | None) -> Frame | None:
    """The place in the library where it waits for a process."""
    return frame_of(thread, _WAITS, _WORKERS)


def waits_for_end(thread: ThreadState) -> Frame | None:
    """The place in the library where it waits for the end of a process."""
    return frame_of(thread, ("wait", "poll", "join"), _JOINS)


def gets_from_queue(thread: ThreadState) -> Frame | None:
    """`queue.get` of the library, in one process or of several."""
    return frame_of(thread, ("get",), ("/queue.py", "multiprocessing/queues.py"))


def reads_from(thread: ThreadState) -> str | None:
    """What it reads from, as the kernel tells."""
    if has(thread, _PIPE):
        return None if _opens_to_write(thread) else "a pipe that nobody writes to"
    if has(thread, _SOCKET):
        return "a connection that stays silent"
    if thread.syscall in _READS:
        return "a file or device that stays silent"
    frame = thread.frames[0] if thread.frames else None
    polls = thread.syscall in (*_POLLS, "pselect6", "epoll_wait", "epoll_pwait")
    if frame is not None and frame.function in _DATA and (polls or has(thread, ("poll",))):
        return "a connection that stays silent"
    return None


def writes_to(thread: ThreadState) -> str | None:
    """
    The pipe or socket that it writes to and no process reads, from the kernel's data.

    Source: /proc/PID/wchan of Linux 6.18 beside a full pipe (`anon_pipe_write`), socket pair
    (`sock_alloc_send_pskb`), TCP connection and pseudo-terminal (both `wait_woken`).
    """
    if thread.state != "S":
        return None
    if _opens_to_write(thread):
        return "a pipe that nobody reads from"
    for functions, words in _BLOCKED_WRITES.items():
        if has(thread, functions):
            return words
    if thread.syscall in _WRITES and thread.wchan in (None, "wait_woken"):
        return "a pipe, terminal or connection that nobody reads from"
    return None


def _opens_to_write(thread: ThreadState) -> bool:
    """Whether it opens a named pipe for writing, which waits for a reader: open(2), O_WRONLY."""
    flags = {"open": 1, "openat": 2}.get(thread.syscall or "")
    if flags is None or len(thread.arguments) <= flags or not has(thread, _NAMED_PIPE):
        return False
    return thread.arguments[flags] & 3 == 1


def runs_program(thread: ThreadState) -> bool:
    """Whether a line of the program's own is in its stack; others serve a library or the agent."""
    return any(not _of_library(frame) for frame in thread.frames)


def workers(dump: ThreadDump, root: ProcessThreads) -> list[ProcessThreads]:
    """Its children that are alive."""
    return [
        each
        for each in dump.processes
        if each.ppid == root.pid and each.pid != root.pid and each.state != "Z" and each.threads
    ]


def stuck(process: ProcessThreads) -> bool:
    """Every thread of it waits for a lock."""
    return all(waits_for_lock(each) for each in process.threads)


def idle(process: ProcessThreads) -> bool:
    """It listens for work."""
    main = process.threads[0]
    return main.syscall in (*_READS, *_POLLS) or has(main, (*_PIPE, *_SOCKET, "poll"))


def forever_alone(thread: ThreadState) -> bool:
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
    return clean(frame.place, 120)


def training_line(picture: ThreadDump) -> str | None:
    """The innermost line of the thread that trains; None if not known."""
    root = picture.root
    main = None if root is None else root.main
    if main is not None and main.frames:
        return place(main.frames[0])
    if picture.last_seen is not None:
        return f"{place(picture.last_seen)} ({picture.last_seen_s or 0.0:.0f} s before)"
    return None
