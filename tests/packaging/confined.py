"""
Run a program under a unit's directives, on machines without systemd.

    python confined.py UNIT COMMAND...

It applies NoNewPrivileges, RestrictAddressFamilies and SystemCallFilter. systemd-analyze supplies
the call set, and libseccomp makes the filter as for systemd. CONFINED_MDWE=1 adds the kernel
setting of MemoryDenyWriteExecute.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ALLOW = 0x7FFF0000
EPERM = 0x00050000 | 1
UNSUPPORTED_FAMILY = 0x00050000 | 97  # EAFNOSUPPORT
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 38, 65


class Compare(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


def directive(unit: str, name: str) -> list[str]:
    """Return the words of a unit's directive."""
    found = re.search(rf"(?m)^{name}=(.*)$", unit)
    return found[1].split() if found else []


def calls_of(name: str) -> set[str]:
    """Return every call of a set, including nested sets."""
    if not name.startswith("@"):
        return {name}
    said = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", name],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: set[str] = set()
    for line in said.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            found |= calls_of(word)
    return found


def confine(unit: str) -> None:
    """Apply the confinement to this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert ["yes"] == directive(unit, "NoNewPrivileges")
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if os.environ.get("CONFINED_MDWE"):
        assert libc.prctl(PR_SET_MDWE, 1, 0, 0, 0) == 0
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_rule_add.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
    )  # fmt: skip
    seccomp.seccomp_load.argtypes = (ctypes.c_void_p,)
    seccomp.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Compare),
    )  # fmt: skip

    allowed = seccomp.seccomp_init(EPERM)
    for group in directive(unit, "SystemCallFilter"):
        for name in calls_of(group):
            number = seccomp.seccomp_syscall_resolve_name(name.encode())
            if number != -1:  # the call exists on this machine
                seccomp.seccomp_rule_add(allowed, ALLOW, number, 0)
    # A second filter: the kernel applies the stricter result of the two.
    families = seccomp.seccomp_init(ALLOW)
    named = {int(getattr(socket, name)) for name in directive(unit, "RestrictAddressFamilies")}
    call = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in set(range(46)) - named:
        compare = Compare(0, 4, family, 0)  # SCMP_CMP_EQ
        seccomp.seccomp_rule_add_array(families, UNSUPPORTED_FAMILY, call, 1, ctypes.byref(compare))
    assert seccomp.seccomp_load(families) == 0
    assert seccomp.seccomp_load(allowed) == 0


if __name__ == "__main__":
    confine(Path(sys.argv[1]).read_text())
    os.execv(sys.argv[2], sys.argv[2:])
