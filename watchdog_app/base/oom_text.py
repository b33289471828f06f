"""
How programs word it that memory ran out: told from a disk, a quota or descriptors that did.

The agent asks of an exception that it holds, the daemon of a dead program's last words.
"""

from __future__ import annotations

_WORDS = (
    "oom when allocating",
    "out of memory",
    "failed to allocate memory",
    "failed to allocate request",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "unable to allocate",
    "std::bad_alloc",
    "memoryerror",
    "alloc_failed",  # CUBLAS_STATUS_ALLOC_FAILED and its like
)
_EXHAUSTED = "resource_exhausted"
# RESOURCE_EXHAUSTED is said of these as well, and no smaller batch helps.
_OTHERS = (
    "no space left",
    "too many open files",
    "disk quota",
    "disk is full",
    "larger than max",
    "quota exc",
)


def says_memory(text: str) -> bool | None:
    """Whether an error's text says that memory ran out. False: something else; None: neither."""
    folded = text.lower()
    if any(word in folded for word in _OTHERS):
        return False
    if folded.startswith(_EXHAUSTED) or any(word in folded for word in _WORDS):
        return True
    return None
