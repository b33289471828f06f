"""
A keeper and its second, as processes: `python -I -S keep.py ROLE FOLDER [FD...]`.

    begin FOLDER BAG ANSWER   for a program that `watchdog exec` is about to become
    adopt FOLDER ANSWER       for a bag whose keeper and second were killed at one blow
    guard FOLDER KEEPER       a second for a keeper whose own was killed; a handle of the keeper

The first two become the second, from which the keeper is forked before either has imported much:
so the second stays a bare interpreter, and every later keeper is its child again.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # run by its path: nothing of the user's is on sys.path, nor is the package
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    import watchdog_app  # noqa: F401 - its parts are found by its own path from here on

    del sys.path[0]  # what lies beside the package must not hide modules of the standard library

from watchdog_app.airbag import second

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from watchdog_app.airbag.keeper import Keeper
    from watchdog_app.airbag.record import BagRecord


def main(words: Sequence[str]) -> NoReturn:
    """Be what `words` say, to the end of the bag."""
    role, folder, *rest = words
    fds = [int(each) for each in rest]
    if role == "guard":
        second.leave_everything(fds[0])
        second.guard(folder, None, fds[0], _keep_again)
    if os.fork():
        os._exit(0)  # whoever started it has no child of its own by us
    os.setsid()
    os.umask(0o077)
    second.leave_everything(*fds)
    guard = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        _keep(folder, guard, role, fds)
    for fd in fds:
        os.close(fd)
    second.guard(folder, keeper, os.pidfd_open(keeper), _keep_again)


def _keep_again(folder: str, guard: int) -> NoReturn:
    _keep(folder, guard, "again", [])


def _keep(folder: str, guard: int, role: str, fds: list[int]) -> NoReturn:
    """Be the keeper."""
    code = second.NOT_BEGUN if fds else 1
    try:
        second.name_process("watchdog-keeper")
        keeper = _ready(folder, guard, role, fds)
        code = 1
        try:
            keeper.run()
            keeper.close()
            code = 0
        except Exception as error:  # the next keeper tells of it
            _note(keeper.record, "fault", f"The bag's keeper failed: {error!r}"[:500])
    except BaseException as error:
        if fds and code == second.NOT_BEGUN:
            _say(fds[-1], str(error).encode()[:500] or b"its keeper failed")
    finally:
        os._exit(code)


def _ready(folder: str, guard: int, role: str, fds: list[int]) -> Keeper:
    """
    A keeper for which the limit holds.

    Raises:
        OSError: why there is none.
    """
    from watchdog_app.airbag import groups, keeper, policy, starting
    from watchdog_app.airbag import record as records
    from watchdog_app.base import own_process

    outside = starting.outside_of_bags()
    if role == "begin":
        with open(fds[0], "rb") as pipe:
            record = records.parse(pipe.read(), folder)  # nothing: its process has given up
    else:
        record = records.read(folder)
        if not outside:
            raise OSError("its keeper cannot leave the bag that it was started in")
    # A record is a file: only the group of that very program is ever written to.
    name = os.path.basename((record.group or "") if record is not None else "")
    if record is None or name.removesuffix(".scope") != groups.name_of(
        record.pid, record.start_time
    ):
        raise OSError("its keeper was told of no bag")
    if not records.claim(folder):
        raise OSError(starting.KEPT)
    record.keeper_pid = os.getpid()
    found = keeper.Keeper(groups.existing(record), record)
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


def _tell_of_change(record: BagRecord, role: str) -> None:
    import time

    had = "keeper had" if role == "again" else "keeper and its second had"
    record.note(time.time(), "keeper", f"The bag's {had} ended; another one took over.")


def _note(record: BagRecord, kind: str, text: str) -> None:
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
    except OSError:  # whoever started it was killed meanwhile: then the bag is empty, and goes
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
