"""
A supervisor and its standby, as processes: `python -I -S keep.py ROLE FOLDER [FD...]`.

    begin FOLDER RECORD ANSWER   for a program that `watchdog exec` is about to become
    adopt FOLDER ANSWER       for a guard whose supervisor and standby were killed at one blow
    guard FOLDER SUPERVISOR   a standby where it was killed; a handle of the supervisor

The first two become the standby, from which the supervisor is forked before either imports much:
so the standby stays a bare interpreter, and every later supervisor is its child again.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # run by its path: nothing of the user's is on sys.path, nor is the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import watchdog_app  # noqa: F401 - its parts are found by its own path from here on

    del sys.path[0]  # what lies beside the package must not hide modules of the standard library

from watchdog_app.guard import standby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from watchdog_app.guard.record import GuardRecord
    from watchdog_app.guard.supervisor import Supervisor


def main(words: Sequence[str]) -> NoReturn:
    """Be what `words` say, to the end of the guard."""
    role, folder, *rest = words
    fds = [int(each) for each in rest]
    if role == "guard":
        standby.leave_everything(fds[0])
        standby.guard(folder, None, fds[0], _keep_again)
    if os.fork():
        os._exit(0)  # whoever started it has no child of its own by us
    os.setsid()
    os.umask(0o077)
    standby.leave_everything(*fds)
    guard = os.getpid()
    supervisor = os.fork()
    if supervisor == 0:
        _keep(folder, guard, role, fds)
    for fd in fds:
        os.close(fd)
    standby.guard(folder, supervisor, os.pidfd_open(supervisor), _keep_again)


def _keep_again(folder: str, guard: int) -> NoReturn:
    _keep(folder, guard, "again", [])


def _keep(folder: str, guard: int, role: str, fds: list[int]) -> NoReturn:
    """Be the supervisor."""
    code = standby.NOT_BEGUN if fds else 1
    try:
        standby.name_process("watchdog-guard")
        supervisor = _ready(folder, guard, role, fds)
        code = 1
        try:
            supervisor.run()
            supervisor.close()
            code = 0
        except Exception as error:  # the next supervisor tells of it
            _note(supervisor.record, "fault", f"The guard's supervisor failed: {error!r}"[:500])
    except BaseException as error:
        if fds and code == standby.NOT_BEGUN:
            _say(fds[-1], str(error).encode()[:500] or b"its supervisor failed")
    finally:
        os._exit(code)


def _ready(folder: str, guard: int, role: str, fds: list[int]) -> Supervisor:
    """
    A supervisor for which the limit holds.

    Raises:
        OSError: why there is none.
    """
    from watchdog_app.base import own_process
    from watchdog_app.guard import cgroup, policy, starting, supervisor
    from watchdog_app.guard import record as records

    outside = starting.outside_of_guards()
    if role == "begin":
        with open(fds[0], "rb") as pipe:
            record = records.parse(pipe.read(), folder)  # nothing: its process has given up
    else:
        record = records.read(folder)
        if not outside:
            raise OSError("its supervisor cannot leave the guard that it was started in")
    # A record is a file: only the group of that very program is ever written to.
    name = os.path.basename((record.group or "") if record is not None else "")
    if record is None or name.removesuffix(".scope") != cgroup.name_of(
        record.pid, record.start_time
    ):
        raise OSError("its supervisor was told of no guard")
    if not records.claim(folder):
        raise OSError(starting.KEPT)
    record.supervisor_pid = os.getpid()
    found = supervisor.Supervisor(cgroup.existing(record), record)
    found.guarded_by(guard)
    if role != "begin":
        _tell_of_change(record, role)
        found.stand_at(policy.Stage(record.stage))
    found.open()
    own_process.last_to_be_killed()
    own_process.settle_garbage()
    own_process.lock_memory()
    if fds:
        _say(fds[-1], starting.READY)
    return found


def _tell_of_change(record: GuardRecord, role: str) -> None:
    import time

    had = "supervisor had" if role == "again" else "supervisor and its standby had"
    record.note(time.time(), "supervisor", f"The guard's {had} ended; another one took over.")


def _note(record: GuardRecord, kind: str, text: str) -> None:
    import time

    record.note(time.time(), kind, text)
    try:
        record.write()
    except OSError:
        pass


def _say(fd: int, what: bytes) -> None:
    try:
        os.write(fd, what)
        os.close(fd)
    except OSError:  # whoever started it was killed meanwhile: then the guard is empty, and goes
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
