"""The start of a minimal agent program that speaks the protocol directly."""

from __future__ import annotations

# Defines `say` and the process's `start` time, and sends the greeting.
SPEAKS = """
import json, os, socket, sys, time
line = socket.socket(socket.AF_UNIX)
line.connect({socket!r})
reader = line.makefile("rb")
def say(method, id=None, **params):
    message = dict(jsonrpc="2.0", method=method, params=params)
    if id is not None:
        message["id"] = id
    line.sendall(json.dumps(message).encode() + b"\\n")
    return json.loads(reader.readline()) if id is not None else None
say("hello", 1, protocol=2, role="agent", version="0")
stat = open("/proc/self/stat").read()
start = int(stat[stat.rindex(")") + 2:].split()[19])
"""
