"""
The note in a folder of rescues of which of them belong to trainings that ended well.

    {"sequence": 7, "rescues": ["rescue-0000001234-000007-PID.START.NAMESPACE"]}

The rescues are listed one by one: others in the folder may be of a training
that still runs. `sequence` outlives rescues that a person removes, so that no
number is given out twice.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from watchdog_app.base.durable import private, sync_folder
from watchdog_app.rescue.checkpoint.owner import Owner, believed, own

FINISHED_FILE = "finished.json"
_MOST_BYTES = 16 << 20

# Trainings of one process may end in several threads at once: none forgets what another notes.
_adding = threading.Lock()


def _begin_again() -> None:
    # A child that was forked while somebody held it would wait without an end.
    global _adding
    _adding = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


@dataclass(frozen=True, slots=True)
class Finished:
    """What is noted; nothing where there is no note or it cannot be understood."""

    sequence: int = 0  # the highest that was ever finished
    rescues: frozenset[str] = frozenset()


def read(directory: str) -> Finished:
    """The note in `directory`; never raises."""
    try:
        body = json.loads(_content(os.path.join(directory, FINISHED_FILE)))
        return Finished(int(body["sequence"]), frozenset(map(str, body["rescues"])))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Finished()


def _content(path: str) -> bytes:
    # A folder may be shared: a pipe of that name would be waited for, without an end, and another
    # user's word would hide our rescues.
    flags = os.O_RDONLY | os.O_CLOEXEC
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise ValueError("no regular file")
        if not believed(found, os.path.dirname(path)):
            raise ValueError("another user may have written it")
        return file.read(_MOST_BYTES)


def add(directory: str, sequence: int, rescues: Iterable[str]) -> None:
    """
    Note further rescues as finished.

    Args:
        directory: the folder that holds them.
        sequence: the highest in the folder.
        rescues: names of folders; those that are gone are forgotten.

    Raises:
        OSError: the note cannot be written; the one before stands.
    """
    with _adding, _locked(directory):
        before = read(directory)
        names = {
            name
            for name in before.rescues.union(rescues)
            if os.path.lexists(os.path.join(directory, name))
        }
        path = os.path.join(directory, FINISHED_FILE)
        temporary = f"{path}.{own()}"
        with open(temporary, "w", encoding="utf-8", opener=private) as file:
            json.dump({"sequence": max(sequence, before.sequence), "rescues": sorted(names)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    sync_folder(directory)


def clean(directory: str) -> None:
    """Remove notes that were begun by processes that have ended since. Never raises."""
    begun = f"{FINISHED_FILE}."
    with suppress(OSError):
        for name in os.listdir(directory):
            owner = Owner.parse(name.removeprefix(begun)) if name.startswith(begun) else None
            if owner is not None and owner.alive is False:
                with suppress(OSError):
                    os.unlink(os.path.join(directory, name))


@contextmanager
def _locked(directory: str, wait_s: float = 2.0) -> Iterator[None]:
    """Keep other processes of ours from changing notes in `directory`; no longer waited for."""
    try:
        import fcntl

        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (ImportError, OSError):
        yield
        return
    try:
        end_mono_s = time.monotonic() + wait_s
        while time.monotonic() < end_mono_s:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break  # no locks here
            else:
                break
        yield
    finally:
        os.close(fd)
