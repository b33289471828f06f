"""Where a published training stands still until it is told to go on; what it was at a step."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import zlib

from watchdog_app.agent.runtime.link import CheckpointRequest

REASON = "a test"


class Stages:
    """Stops at places that were asked for, `name=step ...`, each once."""

    def __init__(self, words):
        self._at = dict(word.split("=") for word in words)

    def at(self, name, step):
        """Whether the place `name` is to be shown at this step."""
        if not self.comes(name, step):
            return False
        del self._at[name]
        return True

    def comes(self, name, step):
        """The same, and it may be asked again."""
        # Data is made ahead by a thread of TensorFlow's, which may see no step in between.
        return name in self._at and step >= int(self._at[name])

    def stand(self, name, step):
        """Stand still there until the test says go, or at all if it never does."""
        if not self.at(name, step):
            return
        print("there", name, step, flush=True)
        if name == "gil":
            ctypes.PyDLL(None).usleep(1_500_000)  # no other thread of Python runs meanwhile
            return
        while not os.path.exists(f"{sys.argv[1]}.{name}"):
            time.sleep(0.002)

    def save_too(self, rescue, step):
        """Have the training save itself at the boundary where it is going to stand."""
        if self.comes("boundary", step):
            rescue._session.link.pending_request = CheckpointRequest(1, REASON, time.monotonic())


def checksum(entries):
    """Of the tensors of a state, whatever their order."""
    found = 0
    for entry in sorted(entries, key=lambda one: one.name):
        found = zlib.crc32(entry.name.encode(), found)
        if entry.nbytes:
            with entry.view() as view:
                found = zlib.crc32(view.cast("B"), found)
    return found
