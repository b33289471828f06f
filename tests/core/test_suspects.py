"""The most likely cause of a stalled training, derived from its threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchdog_app.core.diagnosis.stall_reasons import (
    ReasonKind,
    StallContext,
    stall_reasons,
    training_line,
)
from watchdog_app.core.model.agent import Frame, ProcessThreads, ThreadDump, ThreadState

LIB = "/usr/lib/python3.11"
STEP = Frame("/home/me/train.py", 42, "step")
GET = Frame(f"{LIB}/queue.py", 171, "get")
PUT = Frame(f"{LIB}/multiprocessing/queues.py", 89, "put")
POOL = Frame(f"{LIB}/multiprocessing/pool.py", 765, "wait")
NEXT = Frame("/venv/site-packages/torch/utils/data/dataloader.py", 701, "__next__")


def main(*frames: Frame, **more) -> ThreadState:
    """The training's thread, asleep in a lock."""
    fields = {"state": "S", "wchan": "futex_do_wait", "syscall": "futex", "trains": True, **more}
    return ThreadState(100, "MainThread", frames=frames or (STEP,), **fields)


def program(*threads: ThreadState, **more) -> ProcessThreads:
    """The process that contains the agent."""
    threads = threads or (main(),)
    fields = {"thread_count": len(threads), "agent": True, **more}
    return ProcessThreads(100, 1, "python", "S", threads, **fields)


def worker(
    pid: int = 200, state: str = "S", threads: int = 1, writes: bool = False, **more
) -> ProcessThreads:
    """A child of the program; with `writes` one more thread waits at a full pipe."""
    fields = {"wchan": "futex_do_wait", "syscall": "futex", **more}
    thread = ThreadState(pid, "python", state, **fields)
    feeder = ThreadState(pid + 1, "python", "S", "anon_pipe_write", "write")
    every = (thread,) * threads + (feeder,) * writes
    return ProcessThreads(pid, 100, "python", state, every, len(every))


def picture(*processes: ProcessThreads, answered: bool | None = True, **more) -> ThreadDump:
    return ThreadDump(processes or (program(),), answered, **more)


READS = {"wchan": "anon_pipe_read", "syscall": "read"}
WAITS_FOR_POOL = main(POOL, STEP)
SILENT = {"answered": False, "last_seen": STEP, "last_seen_s": 1.4}
CASES = {
    "a stopped worker": (picture(program(main(NEXT)), worker(state="T")), {}, ReasonKind.STOPPED),
    "a debugger": (picture(program(), worker(state="t")), {}, ReasonKind.STOPPED),
    "the driver in the wait channel": (
        picture(program(main(state="D", wchan="os_acquire_rwlock_write"))), {}, ReasonKind.DRIVER,
    ),
    "the driver in the kernel's stack": (
        picture(program(main(state="D", wchan=None, kernel=("down_read", "uvm_ioctl")))),
        {}, ReasonKind.DRIVER,
    ),
    "a card that reported a fault": (picture(), {"card_fault": "GPU 0: Xid 79"}, ReasonKind.DRIVER),
    "pages from swap": (
        picture(program(main(state="D", wchan="folio_wait_bit", kernel=("do_swap_page",)))),
        {}, ReasonKind.SWAP,
    ),
    "a server of files": (
        picture(program(main(state="D", wchan="rpc_wait_bit_killable"))), {}, ReasonKind.FILES,
    ),
    "a disk": (picture(program(main(state="D", wchan="io_schedule"))), {}, ReasonKind.FILES),
    "a zombie that is waited for": (
        picture(program(WAITS_FOR_POOL), ProcessThreads(200, 100, "python", "Z")),
        {}, ReasonKind.DEAD_WORKER,
    ),
    "a worker that is gone": (picture(program(WAITS_FOR_POOL)), {"lost": (200,)},
        ReasonKind.DEAD_WORKER),
    "a fork while a lock was held": (
        picture(program(WAITS_FOR_POOL, ThreadState(101, "t", "S")), worker()), {}, ReasonKind.FORK,
    ),
    "the same where system calls are not told": (
        picture(program(WAITS_FOR_POOL), worker(syscall=None)), {}, ReasonKind.FORK,
    ),
    "workers of several threads in one lock": (
        picture(program(WAITS_FOR_POOL), worker(threads=2)), {}, ReasonKind.FORK,
    ),
    "a C call that keeps the interpreter's lock": (
        picture(program(main(wchan="hrtimer_nanosleep")), **SILENT), {}, ReasonKind.LIBRARY,
    ),
    "one that computes": (picture(program(main(state="R"))), {"cores": 1.0}, ReasonKind.BUSY),
    "a lock of a thread that ended": (picture(), {}, ReasonKind.LOCK),
    "a queue": (picture(program(main(GET, STEP))), {}, ReasonKind.DATA),
    "a process that does not end": (
        picture(
            program(main(wchan="do_wait", syscall="wait4")),
            worker(wchan="anon_pipe_write", syscall="write"),
        ),
        {}, ReasonKind.DATA,
    ),
    "a full queue": (picture(program(main(PUT, STEP))), {}, ReasonKind.DATA),
    "a pipe": (picture(program(main(**READS))), {}, ReasonKind.DATA),
    "a socket": (picture(program(main(wchan="sk_wait_data", syscall="recvfrom"))), {},
        ReasonKind.DATA),
    "a full pipe": (
        picture(program(main(wchan="anon_pipe_write", syscall="write"))), {}, ReasonKind.OUTPUT,
    ),
    "a full pipe of an older kernel": (
        picture(program(main(wchan="pipe_write", syscall="write"))), {}, ReasonKind.OUTPUT,
    ),
    "a full pipe where the kernel tells no wait channel": (
        picture(program(main(wchan=None, syscall="write"))), {}, ReasonKind.OUTPUT,
    ),
    "a terminal that was stopped": (
        picture(program(main(wchan="n_tty_write", syscall="write"))), {}, ReasonKind.OUTPUT,
    ),
    "a full connection": (
        picture(program(main(wchan="wait_woken", syscall="sendto"))), {}, ReasonKind.OUTPUT,
    ),
    "a full connection on this machine": (
        picture(program(main(wchan="sock_alloc_send_pskb", syscall="sendmsg"))), {},
        ReasonKind.OUTPUT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_suspect_is_what_the_evidence_says(name):
    """It has an observed reason and a remedy, as sentences that can be joined."""
    seen, around, expected = CASES[name]

    found = stall_reasons(seen, StallContext(**around))

    assert expected is found[0].why
    for each in found:
        assert each.reasons
        assert not each.text.endswith(".")
        assert not any(reason.endswith(".") for reason in each.reasons)


INNOCENT = {
    "nothing is known": picture(answered=None),
    "no process was read": ThreadDump(()),
    "it sleeps somewhere": picture(program(main(wchan="hrtimer_nanosleep", syscall=None))),
    "a child has ended and nobody waits for one": picture(
        program(main(wchan="hrtimer_nanosleep", syscall=None)), ProcessThreads(200, 100, "sh", "Z")
    ),
    "it has no threads that can be read": picture(ProcessThreads(100, 1, "python", "S")),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_without_evidence_nobody_is_suspected(name):
    """Unknown is a valid answer; a guess is not."""
    assert () == stall_reasons(INNOCENT[name])


def test_workers_that_wait_for_work_are_no_deadlock():
    """An idle pool looks like this: one worker reads the pipe, the others wait for their turn."""
    idle = picture(program(main(GET, STEP)), worker(200, **READS), worker(201))

    assert ReasonKind.FORK not in {each.why for each in stall_reasons(idle)}
    assert ReasonKind.DATA is stall_reasons(idle)[0].why


def test_a_worker_that_computes_is_no_deadlock():
    """The other workers may wait for the one that computes."""
    busy = worker(201, state="R", wchan=None, syscall=None)

    found = stall_reasons(picture(program(WAITS_FOR_POOL), worker(200, syscall=None), busy))

    assert ReasonKind.FORK not in {each.why for each in found}


def test_a_write_to_a_slow_file_system_is_no_pipe_that_nobody_reads():
    """A file of FUSE waits in `request_wait_answer`, which is no pipe, terminal or connection."""
    seen = picture(program(main(wchan="request_wait_answer", syscall="write")))

    assert ReasonKind.OUTPUT not in {each.why for each in stall_reasons(seen)}


def test_workers_in_a_lock_that_nobody_will_open_are_told_with_both_remedies():
    """A fork copied the locked lock, or a worker was killed that held it."""
    seen = picture(program(WAITS_FOR_POOL, ThreadState(101, "t", "S")), worker(200), worker(201))

    (found,) = stall_reasons(seen)

    assert "2 workers (200, 201)" in found.reasons[0]
    assert "the program had 2 threads" in found.reasons[1]
    assert "forkserver" in found.remedy
    assert "killed" in found.remedy


def test_what_we_have_paused_ourselves_is_no_suspect():
    """The policy knows its own pauses."""
    seen = picture(program(main(NEXT, wchan=None, syscall=None)), worker(200, state="T"))

    found = stall_reasons(seen, StallContext(stopped_by_us=frozenset({200})))

    assert ReasonKind.STOPPED not in {each.why for each in found}


def test_two_threads_that_wait_for_each_other_are_both_named():
    """Each is named with its line."""
    other = ThreadState(101, "loader", "S", "futex_do_wait",
                       frames=(Frame("/home/me/data.py", 7, "fill"),))  # fmt: skip

    (found,) = stall_reasons(picture(program(main(), other)))

    assert "wait for each other" in found.text
    assert "train.py:42 in step" in found.reasons[0]
    assert "loader at data.py:7 in fill" in found.reasons[1]


def test_names_of_users_cannot_break_a_line():
    """Users choose the names of files and threads."""
    hostile = replace(
        main(Frame("/x/\x1b[31m\nevil.py", 1, "f\nf")), name="a\nb\x1b]0;x\x07", wchan="f\nutex"
    )
    seen = picture(program(hostile))

    told = [training_line(seen) or ""]
    for each in stall_reasons(seen):
        told += [each.text, *each.reasons, each.remedy]

    assert told
    assert not [line for line in told if any(ord(char) < 32 for char in line)]


def test_a_lock_taken_twice_by_one_thread_is_named_as_that():
    """The waiting thread may hold the lock itself if it is not re-entrant."""
    (found,) = stall_reasons(picture())

    assert "no other thread" in found.text
    assert "RLock" in found.remedy


IDLE_LIBRARIES = {
    "a kernel's output": Frame("/venv/site-packages/zmq/sugar/poll.py", 106, "poll"),
    "an idle pool": Frame(f"{LIB}/concurrent/futures/thread.py", 81, "_worker"),
    "a progress bar": Frame("/venv/site-packages/tqdm/_monitor.py", 60, "run"),
    "the agent of a checkout": Frame("/src/watchdog_app/rescue/checkpoint/stream.py", 420, "run"),
}


@pytest.mark.parametrize("idle", IDLE_LIBRARIES)
def test_a_thread_without_a_line_of_the_program_holds_no_lock_of_it(idle):
    """It belongs to a library, so it neither holds the lock nor joins the deadlock."""
    library = ThreadState(
        101, idle, "S", "do_epoll_wait", "epoll_wait", frames=(IDLE_LIBRARIES[idle],)
    )
    other = ThreadState(
        102, "loader", "S", "futex_do_wait", frames=(Frame("/home/me/data.py", 7, "fill"),)
    )

    (alone,) = stall_reasons(picture(program(main(), library)))
    (both,) = stall_reasons(picture(program(main(), library, other)))

    assert "no other thread" in alone.text
    assert "wait for each other" in both.text


def test_a_queue_whose_producer_has_ended_is_told_beside_threads_of_libraries():
    """A library's thread fills no queue of the program."""
    library = ThreadState(
        101, "IOPub", "S", "do_epoll_wait", frames=(IDLE_LIBRARIES["a kernel's output"],)
    )

    (found,) = stall_reasons(picture(program(main(GET, STEP), library)))

    assert any("no other Python thread" in reason for reason in found.reasons)
