"""
The supervisor and its standby as processes: `python -I -S process.py ROLE FOLDER [FD...]`.

    begin FOLDER RECORD ANSWER   for a program that `watchdog exec` is about to become
    adopt FOLDER ANSWER          for a guard whose supervisor and standby were killed at one blow
    standby FOLDER SUPERVISOR    a new standby; a pidfd of the supervisor

The standby waits for the supervisor's end and the supervisor for its; each starts the other anew.
The first two roles become the standby, which forks the supervisor before either imports much: so
every later supervisor is a child of the standby, which is whom a training lets read it (Yama).
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
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from watchdog_app.guard.record import GuardRecord
    from watchdog_app.guard.supervisor import Supervisor

READY = b"ready"
KEPT = "another supervisor keeps it"
_SLOW = b"its supervisor did not answer"
_READY_S = 20.0  # a machine that swaps takes its time
_ADOPTION_S = 5.0
_MODULE = "watchdog_app.guard.process"
_NOT_BEGUN = 3  # exit code of a supervisor that was never ready: whoever wanted it has been told
_MOST_RESTARTS, _WITHIN_S = 5, 60.0


class Restarts:
    """How often something was started anew lately."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def may(self) -> bool:
        """Once more, and it is counted."""
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < _WITHIN_S] + [now]
        return len(self._at) <= _MOST_RESTARTS


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


# The standby -------------------------------------------------------------------------------


def main(words: Sequence[str]) -> NoReturn:
    """Be what `words` say, to the end of the guard."""
    role, folder, *rest = words
    fds = [int(each) for each in rest]
    if role == "standby":
        _leave_everything(fds[0])
        _stand_by(folder, None, fds[0])
    if os.fork():
        os._exit(0)  # whoever started it has no child of its own by us
    os.setsid()
    os.umask(0o077)
    _leave_everything(*fds)
    standby = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        _supervise(folder, standby, role, fds)
    for fd in fds:
        os.close(fd)
    _stand_by(folder, supervisor, os.pidfd_open(supervisor))


def _stand_by(folder: str, child: int | None, handle: int) -> NoReturn:
    """
    Wait for the supervisor's end and fork another, to the end of the guard.

    Args:
        folder: of the guard's record.
        child: pid of the supervisor where it is our child.
        handle: a pidfd of it.
    """
    code = 1
    try:
        _name_process("watchdog-standby")
        restarts, standby = Restarts(), os.getpid()
        while True:
            select.select([handle], [], [])
            os.close(handle)
            ended = None if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if ended == _NOT_BEGUN or _is_over(folder):
                break
            try:
                child = os.fork() if restarts.may() else -1
                if child == 0:
                    _supervise(folder, standby, "again", [])
                handle = os.pidfd_open(child)  # ValueError: it ends again and again
            except (OSError, ValueError):
                _release(folder)
                break
        code = 0
    finally:
        os._exit(code)


def _is_over(folder: str) -> bool:
    """A supervisor that comes to the end of its guard takes the record away."""
    from watchdog_app.guard import record

    found = record.read(folder)
    return found is None or not found.group or not record.is_there(found)


def _release(folder: str) -> None:
    """No supervisor can be had: somebody may be killed then, and nobody waits for ever."""
    from watchdog_app.guard import backends, record

    found = record.read(folder)
    if found is not None and found.group:
        group = backends.existing(found.group, freezer=found.freezer)
        group.lift_limit()
        group.resume(everyone=found.stopped)


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


# The supervisor ----------------------------------------------------------------------------


class Standby:
    """
    The standby, as its supervisor sees it: when it ends, another is started.

    Args:
        record: told its pid.
        watch, forget: of whoever polls for us.
    """

    def __init__(
        self,
        record: GuardRecord,
        watch: Callable[[int, Callable[[], None]], None],
        forget: Callable[[int], None],
    ) -> None:
        self._record = record
        self._watch = watch
        self._forget = forget
        self._restarts = Restarts()

    def is_now(self, pid: int) -> None:
        """It is process `pid`."""
        self._record.standby_pid = pid
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # it has ended already
            self._start()
            return

        def ended() -> None:
            self._forget(handle)
            os.close(handle)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            self._start()

        self._watch(handle, ended)

    def _start(self) -> None:
        if not self._restarts.may():
            return
        with suppress(OSError):
            handle = os.pidfd_open(os.getpid())
            try:
                pid = _spawn("standby", self._record.folder, handle)
            finally:
                os.close(handle)
            self.is_now(pid)


def _supervise(folder: str, standby: int, role: str, fds: list[int]) -> NoReturn:
    """Be the supervisor."""
    code = _NOT_BEGUN if fds else 1
    try:
        _name_process("watchdog-guard")
        supervisor = _ready(folder, standby, role, fds)
        code = 1
        try:
            supervisor.run()
            supervisor.close()
            code = 0
        except Exception as error:  # the next supervisor tells of it
            supervisor.record.note("fault", f"The guard's supervisor failed: {error!r}"[:500])
            with suppress(OSError):
                supervisor.record.write()
    except BaseException as error:
        if fds and code == _NOT_BEGUN:
            _say(fds[-1], str(error).encode()[:500] or b"its supervisor failed")
    finally:
        os._exit(code)


def _ready(folder: str, standby: int, role: str, fds: list[int]) -> Supervisor:
    """
    A supervisor for which the limit holds.

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
        if not outside:
            raise OSError("its supervisor cannot leave the guard that it was started in")
    # A record is a file: only the group of that very program is ever written to.
    name = os.path.basename((found.group or "") if found is not None else "")
    if found is None or name.removesuffix(".scope") != cgroup.name_of(found.pid, found.start_time):
        raise OSError("its supervisor was told of no guard")
    if not record.claim(folder):
        raise OSError(KEPT)
    found.supervisor_pid = os.getpid()
    group = backends.existing(found.group or "", found.limit_bytes, found.swap_bytes, found.freezer)
    made = supervisor.Supervisor(group, found)
    Standby(found, made.watch, made.forget).is_now(standby)
    if role != "begin":
        had = "supervisor" if role == "again" else "supervisor and its standby"
        found.note("supervisor", f"The guard's {had} had ended; another one took over.")
        made.take_over(policy.State(found.state))
    made.open()
    own_process.last_to_be_killed()
    own_process.settle_garbage()
    own_process.lock_memory()
    if fds:
        _say(fds[-1], READY)
    return made


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
