"""What is read of a page: a table. Bytes, not believed."""

from __future__ import annotations


class Published:
    """A table as it lies in a page: whole, by its checksum."""

    __slots__ = ("body", "sequence", "state_bytes", "step")

    def __init__(self, sequence: int, step: int, state_bytes: int, body: bytes) -> None:
        self.sequence = sequence
        self.step = step
        self.state_bytes = state_bytes
        self.body = body
