"""
What lies where in the page that a training publishes itself in; see `page`.

    slot (of 8 bytes, little-endian)     written by
    0  magic                             the watcher
    1  version of this layout            the watcher
    2  bytes of the file                 the watcher
    3  pid, 4  start time                the agent
    5  sequence: odd inside a step       the agent
    6  which area is valid               the agent
    7  step at this sequence             the agent
    8  publish after every batch         the watcher
    9  pid that will read               the watcher
    10 pid that was permitted to read    the agent
    11 bytes that a table would take     the agent, where it is too long
    12 bytes of the reason               the agent, where there is no table
    13 publish for more than is free     the watcher, where nothing refuses a jump
    16 area 0: stamp, length, CRC-32, step, bytes of the state
    24 area 1: the same

The reason, as text, begins at byte 256. The areas share what is behind byte 4096.
"""

from __future__ import annotations

PAGE_BYTES = 4 * 1024 * 1024
MOST_BYTES = 256 * 1024 * 1024
ENVIRONMENT = "WATCHDOG_GUARD"  # a folder: there a task that `watchdog exec` started finds its own

MAGIC = int.from_bytes(b"WDSEGMNT", "little")
VERSION = 4
BASE = 4096
REASON_AT, REASON_BYTES = 256, 1024
STRIDE = 64 * 4096  # of a new page
SPARE = "spare"

(MAGIC_AT, VERSION_AT, BYTES_AT, PID, START, SEQUENCE, WHICH, STEP) = range(8)
(ASK, READER, PERMITTED, NEEDED, REASON, EAGER) = range(8, 14)
AREAS = (16, 24)
STAMP, LENGTH, CRC, AT_STEP, STATE = range(5)
