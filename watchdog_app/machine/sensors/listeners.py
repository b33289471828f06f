"""
Who listens at the other end of a connection within this machine.

A port is free for anyone once its server has ended: what is meant for that server alone must
not be told to whoever has it now.

Source: proc_net_tcp.rst of the kernel's documentation; unix(7), SO_PEERCRED.
"""

from __future__ import annotations

import os
import socket
import struct

_LISTENING = b"0A"


def is_of(connection: socket.socket, uids: frozenset[int], net: str = "/proc/net") -> bool | None:
    """
    Whether all who listen behind a connection are these users; None: this system does not say.

    Args:
        connection: it is established, within this machine.
        uids: the users who may listen.
        net: where the kernel lists its sockets.
    """
    if connection.family == getattr(socket, "AF_UNIX", None):
        option = getattr(socket, "SO_PEERCRED", None)
        if option is None:
            return None
        found = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))
        return found[1] in uids
    owners = _owners(int(connection.getpeername()[1]), net)
    # Nobody: it was led on by the kernel, to another network namespace or out of this machine.
    return None if owners is None else bool(owners) and owners <= uids


def _owners(port: int, net: str) -> set[int] | None:
    """Users whose sockets listen on a TCP port, at whatever address; None: it is not listed."""
    found: set[int] | None = None
    ending = b":%04X" % port
    for table in ("tcp", "tcp6"):
        try:
            with open(os.path.join(net, table), "rb") as file:
                next(file, None)  # its heading
                found = set() if found is None else found
                for line in file:
                    fields = line.split(None, 8)
                    if fields[3] != _LISTENING:
                        break  # those that listen come first: a busy server has thousands more
                    if fields[1].endswith(ending):
                        found.add(int(fields[7]))
        except (OSError, LookupError, ValueError):
            continue
    return found
