"""Errors of the disk that holds rescues, as messages with a remedy."""

from __future__ import annotations

import errno
import os

from watchdog_app.base.errors import RescueError
from watchdog_app.rescue.checkpoint import names


class SaveFailed(RescueError):
    """A rescue was not written, no part of it was left behind, and the training continues."""

    def __init__(self, problem: str, remedy: str, no_space: bool = False) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.no_space = no_space  # another try may work after a deletion


# errno: (what happened, what to do); {folder} is filled in.
_MESSAGES = {
    errno.ENOSPC: (
        "The disk that holds {folder} is full.",
        "Free space there, or give Rescue a folder on another disk.",
    ),
    errno.EDQUOT: (
        "Your quota on the disk that holds {folder} is used up.",
        "Delete files of yours there, or give Rescue a folder on another disk.",
    ),
    errno.EFBIG: (
        "The rescue is bigger than a file in {folder} may be.",
        "Raise the limit on file sizes (ulimit -f), or give Rescue a folder on another disk.",
    ),
    errno.EACCES: (
        "This user may not write to {folder}.",
        "Give Rescue a folder of your own, or change the folder's permissions.",
    ),
    errno.ENOTDIR: (
        "A part of the path {folder} is a file, not a folder.",
        "Give Rescue another folder.",
    ),
    errno.ENOENT: (
        "The folder {folder} has vanished.",
        "Do not move or delete it while the training runs; the next save will make it again.",
    ),
    errno.EIO: (
        "The disk that holds {folder} failed while it was written.",
        "Look at the kernel's messages (dmesg) and give Rescue a folder on another disk.",
    ),
    errno.ENOMEM: (
        "There was not even the little memory that writing a rescue takes.",
        "Stop something, or give the training a higher limit.",
    ),
    errno.EMFILE: (
        "This process has as many files open as it may have.",
        "Raise the limit on open files (ulimit -n), or close some.",
    ),
}
_ALIASES = {
    errno.EPERM: errno.EACCES,
    errno.EEXIST: errno.ENOTDIR,
    errno.ENFILE: errno.EMFILE,
    errno.ESTALE: errno.EIO,
}


def translate(error: OSError, folder: str) -> SaveFailed:
    """The message and remedy for `error`, which occurred while writing below `folder`."""
    above, name = os.path.split(folder)
    if names.is_partial(name):  # the user did not choose such a folder
        folder = above
    code = error.errno or 0
    message = _MESSAGES.get(_ALIASES.get(code, code))
    if message is None:
        reason = os.strerror(code) if code else str(error)
        message = (
            f"The rescue could not be written to {{folder}}: {reason}.",
            "Give Rescue another folder.",
        )
    problem, remedy = message
    return SaveFailed(
        problem.replace("{folder}", folder),
        remedy,
        no_space=code in (errno.ENOSPC, errno.EDQUOT),
    )
