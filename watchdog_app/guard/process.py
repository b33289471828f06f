"""
The supervisor and its standby: one kind of process, `python -I -S process.py ROLE FOLDER [FD...]`.

    begin FOLDER RECORD ANSWER   for a program that `watchdog exec` is about to become
    adopt FOLDER ANSWER          for a guard whose supervisor and standby were killed at one blow
    standby FOLDER               started by each supervisor

Who holds the lock in the guard's folder supervises. The standby waits for that lock, and has
imported next to nothing; when it gets it, it takes over and starts the next standby.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

if not __package__:  # run by its path: nothing of the user's is on sys.path, nor is the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import watchdog_app  # noqa: F401 - its parts are found by its own path from here on

    del sys.path[0]  # what lies beside the package must not hide modules of the standard library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from watchdog_app.guard.record import GuardRecord
    from watchdog_app.guard.supervisor import Supervisor

READY = b"ready"
KEPT = "another supervisor keeps it"
_SLOW = b"its supervisor did not answer"
_READY_S = 20.0  # a machine that swaps takes its time
_ADOPTION_S = 5.0
_MODULE = "watchdog_app.guard.process"
_LOCK = "supervisor.lock"
_MOST_RESTARTS, _WITHIN_S = 5, 60.0


# For who wants a supervisor ----------------------------------------------------------------


def begin(folder: str, record: int, answer: int) -> None:
    """
    Start the supervisor of a guard that is being made.

    Args:
        folder: of its record.
        record: to read that record from, once the group is entered; closed without a word: nothing
            came of it, and the supervisor ends.
        answer: where the supervisor writes READY, or why there is none.

    Raises:
        OSError: no process can be started.
    """
    os.waitpid(_spawn("begin", folder, record, answer), 0)  # it is nobody's child then


def adopt(folder: str, patience_s: float = _READY_S) -> bool:
    """
    Start a supervisor for a guard that has none any more; False: there can be none.

    One that is not ready in time may still come, on a machine that is too busy.
    """
    fds: list[int] = []
    try:
        fds += os.pipe()
        middle = _spawn("adopt", folder, fds[1])
        os.close(fds.pop())
        os.waitpid(middle, 0)
        return hear(fds[0], patience_s) in (READY, KEPT.encode(), _SLOW)
    except OSError:
        return False
    finally:
        for fd in fds:
            os.close(fd)


def hear(fd: int, patience_s: float = _READY_S) -> bytes:
    """What a supervisor says that was started: READY, or why it does not keep the guard."""
    if not select.select([fd], [], [], patience_s)[0]:
        return _SLOW
    return os.read(fd, 4096) or b"its supervisor ended"


def sweep() -> None:
    """
    Look after guards whose supervisor and standby were killed at one blow.

    They get another supervisor, which goes on where that one stood. Where none can be had the
    kernel's own ways hold in them again, so that nobody waits for ever. What is empty goes.
    """
    from watchdog_app.guard import backends, record

    for folder in record.folders():
        found = record.read(folder)
        if found is None or _is_kept(found):
            continue
        if not record.is_there(found):
            found.remove()
        elif not adopt(folder, _ADOPTION_S):
            with suppress(OSError):
                backends.release_orphan(found.group or "")
                found.remove()
    backends.remove_strays()


def _is_kept(record: GuardRecord) -> bool:
    """Whether a supervisor or its standby lives."""
    from watchdog_app.base.linux.process import read_stat

    # Not of a zombie: where nobody collects those, they would keep a guard for ever.
    stats = [read_stat(pid or 0) for pid in (record.supervisor_pid, record.standby_pid)]
    return any(
        stat is not None and stat.comm.startswith(b"watchdog-") and not stat.has_ended
        for stat in stats
    )


def _spawn(role: str, folder: str, *fds: int) -> int:
    """A process in one of the roles; its pid. Raises OSError."""
    from watchdog_app.base.children import bare_argv_of

    if sys.platform == "win32":
        raise OSError("no memory groups")
    for fd in fds:
        os.set_inheritable(fd, True)
    words = [*bare_argv_of(_MODULE), role, folder, *(str(fd) for fd in fds)]
    return os.posix_spawn(words[0], words, os.environ)


# The process -------------------------------------------------------------------------------


def main(words: Sequence[str]) -> NoReturn:
    """Be what `words` say, to the end of the guard."""
    role, folder, *rest = words
    fds = [int(each) for each in rest]
    if role != "standby" and os.fork():
        os._exit(0)  # whoever started it has no child of its own by us
    os.setsid()
    os.umask(0o077)
    _leave_everything(*fds)
    code, answer = 1, fds[-1] if fds else None
    try:
        _name_process("watchdog-standby")
        _lock(folder, wait=role == "standby")
        _name_process("watchdog-guard")
        supervisor = _ready(folder, role, fds)
        if answer is not None:
            _say(answer, READY if supervisor is not None else b"it ends again and again")
            answer = None
        if supervisor is not None:
            _supervise(supervisor)
        code = 0
    except BaseException as error:
        if answer is not None:
            _say(answer, str(error).encode()[:500] or b"its supervisor failed")
    finally:
        os._exit(code)


def _lock(folder: str, wait: bool) -> None:
    """
    Hold the guard's lock as long as this process lives; children of it do not.

    Raises:
        OSError: another one holds it.
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(os.path.join(folder, _LOCK), flags, 0o600)
        fcntl.lockf(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(KEPT) from error


def _ready(folder: str, role: str, fds: list[int]) -> Supervisor | None:
    """
    A supervisor for which the limit holds; None: the guard is over.

    Raises:
        OSError: why there is none.
    """
    from watchdog_app.base import own_process
    from watchdog_app.guard import backends, cgroup, policy, record, supervisor

    outside = _is_outside()
    if role == "begin":
        with open(fds[0], "rb") as pipe:
            found = record.parse(pipe.read(), folder)  # nothing: its process has given up
    else:
        found = record.read(folder)
        if role == "standby" and (found is None or not record.is_there(found)):
            return None
        if not outside:
            raise OSError("its supervisor cannot leave the guard that it was started in")
    # A record is a file: only the group of that very program is ever written to.
    name = os.path.basename((found.group or "") if found is not None else "")
    if found is None or name.removesuffix(".scope") != cgroup.name_of(found.pid, found.start_time):
        raise OSError("its supervisor was given no guard")
    group = backends.existing(found.group or "", found.limit_bytes, found.swap_bytes, found.freezer)
    found.supervisor_pid, found.standby_pid = os.getpid(), 0
    made = supervisor.Supervisor(group, found)
    if role != "begin":
        had = "supervisor" if role == "standby" else "supervisor and its standby"
        found.note("supervisor", f"The guard's {had} had ended; another one took over.")
        if _is_too_often(found):
            # Somebody may be killed then, and nobody waits for ever.
            group.lift_limit()
            group.resume(everyone=found.stopped)
            return None
        made.take_over(policy.State(found.state))
    _have_standby(made)  # first: what `open` writes names it
    made.open()
    own_process.last_to_be_killed()
    own_process.settle_garbage()
    own_process.lock_memory()
    return made


def _is_too_often(record: GuardRecord) -> bool:
    since = time.time() - _WITHIN_S
    at = [each.get("unix_s") for each in record.events if each.get("kind") == "supervisor"]
    return sum(isinstance(one, float) and one > since for one in at) > _MOST_RESTARTS


def _supervise(supervisor: Supervisor) -> None:
    """To the end of the guard; the next supervisor tells of an error."""
    try:
        supervisor.run()
        supervisor.close()
    except Exception as error:
        supervisor.record.note("fault", f"The guard's supervisor failed: {error!r}"[:500])
        with suppress(OSError):
            supervisor.record.write()
        raise


def _have_standby(supervisor: Supervisor, restarts: int = 0) -> None:
    """Start the standby, and another one whenever it ends."""
    with suppress(OSError):
        pid = _spawn("standby", supervisor.record.folder)
        supervisor.record.standby_pid = pid
        handle = os.pidfd_open(pid)

        def ended() -> None:
            supervisor.forget(handle)
            os.close(handle)
            os.waitpid(pid, 0)
            if restarts < _MOST_RESTARTS:
                _have_standby(supervisor, restarts + 1)

        supervisor.watch(handle, ended)


def _name_process(name: str) -> None:
    """As tools that list processes show it; prctl(2) PR_SET_NAME."""
    with suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name[:15])


def _leave_everything(*keep: int) -> None:
    """Hold no terminal, no folder and no open file but these, and hear no terminal's signals."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    begin = 3
    for fd in sorted(keep):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout = sys.stderr = None


def _is_outside() -> bool:
    """Leave the guard that this supervisor was started in; whether it is out."""
    from watchdog_app.base.linux.files import write_bytes
    from watchdog_app.guard import cgroup

    if cgroup.guard_of(os.getpid()) is None:
        return True
    for controller in ("memory", "freezer", ""):
        path = cgroup.enclosing(controller)
        if path is not None:
            with suppress(OSError):
                procs = f"/sys/fs/cgroup/{controller}{path}/cgroup.procs"
                write_bytes(procs, b"%d" % os.getpid())
    return cgroup.guard_of(os.getpid()) is None


def _say(fd: int, what: bytes) -> None:
    with suppress(OSError):  # whoever started it was killed meanwhile: then the guard is empty
        os.write(fd, what)
        os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
