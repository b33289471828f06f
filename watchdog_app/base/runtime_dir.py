"""Create the runtime folder; the daemon or `watchdog exec` does so, the first that starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from watchdog_app.base import durable, paths
from watchdog_app.base.errors import WatchdogError


def make(env: Mapping[str, str] = os.environ) -> str:
    """
    The runtime folder by its absolute path; made where its name is a random one.

    A folder with a fixed name is made, and judged, by `daemon.instance.private_folder`.

    Raises:
        WatchdogError: it cannot be made.
    """
    fixed = paths.fixed_runtime_dir(env)
    if fixed is not None:
        return os.path.abspath(fixed)
    link = os.path.abspath(paths.runtime_link(env))
    try:
        durable.make_folders(os.path.dirname(link))
        with _alone(link):
            return paths.linked_folder(link) or _new_folder(link)
    except OSError as error:
        raise WatchdogError(
            f"No folder for the daemon's socket could be made: {error}. Let "
            "WATCHDOG_RUNTIME_DIR name a folder of your own."
        ) from error


def _new_folder(link: str) -> str:
    # Not TMPDIR: batch systems set one for each job and remove it with the job.
    folder = tempfile.mkdtemp(prefix=f"watchdog-{os.getuid()}-", dir="/tmp")
    new = f"{link}.{os.getpid()}"
    try:
        os.symlink(folder, new)
        os.replace(new, link)  # what was there named a folder that is gone, or is not ours
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        os.rmdir(folder)
        raise
    return folder


@contextmanager
def _alone(link: str) -> Iterator[None]:
    """Two that start at once take turns, so that both come to the same folder."""
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(f"{link}.lock", flags, 0o600)
    try:
        with suppress(OSError):  # a home without locks: two at once are rare there
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
