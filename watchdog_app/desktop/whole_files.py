"""Reading small files of ours: all of one, or nothing, and never a wait."""

from __future__ import annotations

import hashlib
import os
import stat

from watchdog_app.base.errors import WatchdogError


def read_plain(path: str) -> bytes | None:
    """
    What a plain file holds; None where there is none, b"" for what is no plain file.

    Raises:
        WatchdogError: it is there and cannot be read.
    """
    try:
        # Not to wait where somebody has put a pipe.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WatchdogError(f"{path} could not be read: {error.strerror}.") from error


def digest(content: bytes) -> str:
    """The checksum that a ledger holds."""
    return hashlib.sha256(content).hexdigest()
