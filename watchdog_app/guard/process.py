"""
The supervisor and its standby: one kind of process, `python -I -S process.py ROLE FOLDER [FD...]`.

    begin FOLDER RECORD ANSWER   for a program that `watchdog exec` is about to become
    adopt FOLDER ANSWER          for a guard whose supervisor and standby were both killed
    standby FOLDER SEGMENTS      started by each supervisor

The process that holds the lock in the guard's folder supervises. The standby waits for that lock,
and has imported next to nothing. When it gets the lock, it takes over and starts the next standby.
SEGMENTS is a socket to which the supervisor sends the segments of the trainings.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

if not __package__:  # run by its path: sys.path has neither the user's modules nor the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import watchdog_app  # noqa: F401 - later imports find its parts through its own path

    del sys.path[0]  # files next to the package must not hide modules of the standard library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from watchdog_app.guard.record import GuardRecord
    from watchdog_app.guard.supervisor import Supervisor

READY = b"ready"
ALREADY_SUPERVISED = "another supervisor keeps it"
_NO_ANSWER = b"its supervisor did not answer"
_READY_TIMEOUT_S = 20.0  # a machine that swaps is slow
_ADOPTION_TIMEOUT_S = 5.0
_MODULE = "watchdog_app.guard.process"
_LOCK = "supervisor.lock"
_MOST_RESTARTS, _WITHIN_S = 5, 60.0


# For callers that need a supervisor --------------------------------------------------------


def start_supervisor(folder: str, record: int, answer: int) -> None:
    """
    Start the supervisor of a guard that is being made.

    Args:
        folder: of its record.
        record: descriptor to read the record from, after the program has entered the group. If it
            closes without data, the launch failed and the supervisor ends.
        answer: where the supervisor writes READY, or the reason of its failure.

    Raises:
        OSError: no process can be started.
    """
    # Reap the process that forks the supervisor and ends at once; init adopts the supervisor.
    os.waitpid(_spawn("begin", folder, record, answer), 0)


def _adopt(folder: str) -> bool:
    """
    Start a supervisor for a guard that has lost its own; False: none can be started.

    On a busy machine a supervisor that is not ready in time may still start.
    """
    fds: list[int] = []
    try:
        fds += os.pipe()
        middle = _spawn("adopt", folder, fds[1])
        os.close(fds.pop())
        os.waitpid(middle, 0)
        return read_answer(fds[0], _ADOPTION_TIMEOUT_S) in (
            READY,
            ALREADY_SUPERVISED.encode(),
            _NO_ANSWER,
        )
    except OSError:
        return False
    finally:
        for fd in fds:
            os.close(fd)


def read_answer(fd: int, timeout_s: float = _READY_TIMEOUT_S) -> bytes:
    """The answer of a supervisor that was started: READY, or why it failed."""
    if not select.select([fd], [], [], timeout_s)[0]:
        return _NO_ANSWER
    return os.read(fd, 4096) or b"its supervisor ended"


def adopt_orphans() -> None:
    """
    Start supervisors for guards whose supervisor and standby were both killed.

    The new supervisor continues in the state of the old one. If none can be started, the kernel
    kills at the limit again, so that no process waits for ever. Empty groups are removed.
    """
    from watchdog_app.guard import backends, record

    for folder in record.folders():
        found = record.read(folder)
        if found is None or _is_supervised(found):
            continue
        if not record.group_exists(found):
            found.remove()
        elif not _adopt(folder):
            with suppress(OSError):
                backends.release_orphan(found.group or "")
                found.remove()
    backends.remove_empty_groups()


def _is_supervised(record: GuardRecord) -> bool:
    """Whether the supervisor or its standby runs."""
    from watchdog_app.base.linux.process import read_stat

    # A zombie does not count: one that is never reaped would keep a guard for ever.
    stats = [read_stat(pid or 0) for pid in (record.supervisor_pid, record.standby_pid)]
    return any(
        stat is not None and stat.comm.startswith(b"watchdog-") and not stat.has_ended
        for stat in stats
    )


def _spawn(role: str, folder: str, *fds: int) -> int:
    """Start a process in one of the roles; return its pid. Raises OSError."""
    from watchdog_app.base.children import bare_module_argv

    for fd in fds:
        os.set_inheritable(fd, True)
    arguments = [*bare_module_argv(_MODULE), role, folder, *(str(fd) for fd in fds)]
    return os.posix_spawn(arguments[0], arguments, os.environ)


# The process -------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> NoReturn:
    """Run in the role that `arguments` name, until the guard ends."""
    role, folder, *rest = arguments
    fds = [int(each) for each in rest]
    if role != "standby" and os.fork():
        os._exit(0)  # the caller must not have a child process
    os.setsid()
    os.umask(0o077)
    _detach(*fds)
    code, answer = 1, fds[-1] if role != "standby" else None
    try:
        _name_process("watchdog-standby")
        _acquire_lock(folder, wait=role == "standby")
        _name_process("watchdog-guard")
        supervisor = _create_supervisor(folder, role, fds)
        if answer is not None:
            _send_answer(answer, READY if supervisor is not None else b"it ends again and again")
            answer = None
        if supervisor is not None:
            _supervise(supervisor)
        code = 0
    except BaseException as error:
        if answer is not None:
            _send_answer(answer, str(error).encode()[:500] or b"its supervisor failed")
    finally:
        os._exit(code)


def _acquire_lock(folder: str, wait: bool) -> None:
    """
    Hold the guard's lock as long as this process lives; its children do not hold it.

    Raises:
        OSError: another process holds it.
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(os.path.join(folder, _LOCK), flags, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(ALREADY_SUPERVISED) from error


def _create_supervisor(folder: str, role: str, fds: list[int]) -> Supervisor | None:
    """
    Create a supervisor and enforce the limit; None: the guard has ended.

    Raises:
        OSError: why it failed.
    """
    from watchdog_app.base import own_process

    own_process.load_lazily("inspect")  # before dataclasses imports it: 1 MB
    from watchdog_app.guard import backends, cgroup, policy, record, supervisor

    outside = _leave_own_guard()
    if role == "begin":
        with open(fds[0], "rb") as pipe:
            found = record.parse(pipe.read(), folder)  # empty: the launching process has given up
    else:
        found = record.read(folder)
        if role == "standby" and (found is None or not record.group_exists(found)):
            return None
        if not outside:
            raise OSError("its supervisor cannot leave the guard that it was started in")
    # A record is only a file: never write to any group except that of the same program.
    name = os.path.basename((found.group or "") if found is not None else "")
    if found is None or name.removesuffix(".scope") != cgroup.guard_group_name(
        found.pid, found.start_time
    ):
        raise OSError("its supervisor was given no guard")
    group = backends.open_existing(
        found.group or "", found.limit_bytes, found.swap_bytes, found.freezer
    )
    found.supervisor_pid, found.standby_pid = os.getpid(), 0
    created = supervisor.Supervisor(group, found)
    if role != "begin":
        ended_name = "supervisor" if role == "standby" else "supervisor and its standby"
        found.note("supervisor", f"The guard's {ended_name} had ended; another one took over.")
        if _restarted_too_often(found):
            # The kernel may then kill a process, but no process waits for ever.
            group.lift_limit()
            group.resume(everyone=found.stopped)
            return None
        if role == "standby":
            created.trainings.registry.inherit(fds[0])
        created.take_over(policy.State(found.state))
    _start_standby(created)  # first: `open` writes its pid
    created.open()
    own_process.lower_oom_score()
    own_process.freeze_garbage()
    own_process.lock_memory()
    return created


def _restarted_too_often(record: GuardRecord) -> bool:
    since = time.time() - _WITHIN_S
    starts = [each for each in record.events if each.kind == "supervisor" and each.unix_s > since]
    return len(starts) > _MOST_RESTARTS


def _supervise(supervisor: Supervisor) -> None:
    """Run until the guard ends; the next supervisor reports an error."""
    try:
        supervisor.run()
        supervisor.close()
    except Exception as error:
        supervisor.record.note("fault", f"The guard's supervisor failed: {error!r}"[:500])
        with suppress(OSError):
            supervisor.record.write()
        raise


def _start_standby(supervisor: Supervisor, restarts: int = 0) -> None:
    """Start the standby, and another one whenever it ends."""
    with suppress(OSError):
        segments = supervisor.trainings.registry.successor_fd()
        pid = _spawn("standby", supervisor.record.folder, segments)
        supervisor.record.standby_pid = pid
        handle = os.pidfd_open(pid)

        def ended() -> None:
            supervisor.forget(handle)
            os.close(handle)
            os.waitpid(pid, 0)
            if restarts < _MOST_RESTARTS:
                _start_standby(supervisor, restarts + 1)

        supervisor.watch(handle, ended)


def _name_process(name: str) -> None:
    """Set the name in process lists; prctl(2) PR_SET_NAME."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name[:15])


def _detach(*keep: int) -> None:
    """Detach from terminal and folder, close all files but `keep`, ignore terminal signals."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    first = 3
    for fd in sorted(keep):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout = sys.stderr = None


def _leave_own_guard() -> bool:
    """Move this process out of the guard that it was started in; return whether that worked."""
    from watchdog_app.base.linux.files import write_bytes
    from watchdog_app.guard import cgroup

    if cgroup.guard_of_process(os.getpid()) is None:
        return True
    for controller in ("memory", "freezer", ""):
        path = cgroup.enclosing_path(controller)
        if path is not None:
            with suppress(OSError):
                procs = f"/sys/fs/cgroup/{controller}{path}/cgroup.procs"
                write_bytes(procs, b"%d" % os.getpid())
    return cgroup.guard_of_process(os.getpid()) is None


def _send_answer(fd: int, what: bytes) -> None:
    with suppress(OSError):  # the launcher was killed meanwhile: then the guard is empty
        os.write(fd, what)
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
