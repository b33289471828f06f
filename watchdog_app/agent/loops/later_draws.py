"""
Global random numbers that data draws now and then while it is read, and how they come back.

`def cycle(loader): while True: yield from loader` begins a pass over the loader, with an order
drawn anew, in the middle of what the loop takes for one pass. So the global generators are
compared before and after each batch; where they have moved on, what they were is kept, and put back
at that batch when a resume draws the batches again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from watchdog_app.agent.loops import randomness, torch_random

MOST = 32  # kept: of more, the first are let go of
State = dict[str, Any]
_Look = tuple[randomness.Look, bytes]


class LaterDraws:
    """What the global generators were before each batch that drew from them."""

    def __init__(self, kept: Iterable[tuple[int, State]] = ()) -> None:
        """
        Args:
            kept: `kept` of an earlier one: of the passes before over the same iterator.
        """
        self.kept: list[tuple[int, State]] = [(at, state) for at, state in kept]
        self.lost = False  # more were drawn than can come back
        self.always = False  # with each batch: nobody keeps all that

    def look(self) -> _Look:
        """The generators now; 50 microseconds."""
        return randomness.look(), bytes(torch.get_rng_state().numpy().data)

    def compare(self, at: int, before: _Look) -> None:
        """Note whether batch `at` has drawn from them."""
        if before == self.look():
            return
        if self.kept and self.kept[-1][0] == at - 1:
            self.lost = self.always = True
        self.kept.append((at, _state(before)))
        if len(self.kept) > MOST:
            self.lost = True
            del self.kept[0]


def draw_again(
    draw: Callable[[Iterator[Any], int], None],
    iterator: Iterator[Any],
    count: int,
    kept: Iterable[tuple[int, State]],
) -> None:
    """Draw `count` batches, each with the global random numbers that it had."""
    done = 0
    for at, state in kept:
        if done <= at < count:
            draw(iterator, at - done)
            torch_random.put({**torch_random.take(), **state})
            done = at
    draw(iterator, count - done)


def _state(look: _Look) -> State:
    seen, of_torch = look
    return {**randomness.of_look(seen), "torch": base64.b64encode(of_torch).decode("ascii")}
