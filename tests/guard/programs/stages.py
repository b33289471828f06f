"""Places at which a published training waits for the test, and the checksum of its state."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import zlib

from watchdog_app.agent.runtime.link import CheckpointRequest

REASON = "a test"


class Stages:
    """The places to wait at, `name=step ...`, each used once."""

    def __init__(self, words):
        self._at = dict(word.split("=") for word in words)

    def at(self, name, step):
        """Whether to wait at `name` in this step; uses up the place."""
        if not self.comes(name, step):
            return False
        del self._at[name]
        return True

    def comes(self, name, step):
        """Whether to wait at `name` in this step; may be called again."""
        # A thread of TensorFlow makes data ahead, and may skip a step.
        return name in self._at and step >= int(self._at[name])

    def stand(self, name, step):
        """Wait there until the test says go, or for ever."""
        if not self.at(name, step):
            return
        print("there", name, step, flush=True)
        if name == "gil":
            ctypes.PyDLL(None).usleep(1_500_000)  # no other Python thread runs meanwhile
            return
        while not os.path.exists(f"{sys.argv[1]}.{name}"):
            time.sleep(0.002)

    def save_too(self, rescue, step):
        """Request a save from the training at the boundary where it will wait."""
        if self.comes("boundary", step):
            rescue._session.link.pending_request = CheckpointRequest(1, REASON, time.monotonic())


def checksum(entries):
    """A checksum of the tensors of a state, independent of their order."""
    found = 0
    for entry in sorted(entries, key=lambda one: one.name):
        found = zlib.crc32(entry.name.encode(), found)
        if entry.nbytes:
            with entry.view() as view:
                found = zlib.crc32(view.cast("B"), found)
    return found
