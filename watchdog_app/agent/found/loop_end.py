"""
Where the training loop of a program is, and the moment at which one of its iterations ends.

A hook in a framework is called in the middle of an iteration: the optimizer has stepped, its
scheduler may not have. The one place at which everything is done and nothing is begun is the
jump back to the head of the loop. Which loop that is follows from two places: the innermost
that holds both the call that computes gradients and the one that applies them. The jump is
seen by tracing that frame alone, from the step until the jump, and only when somebody wants
to know.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from watchdog_app.agent.found.found_names import is_program

_MOST_FRAMES = 200
_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function, not a module or a class body


@dataclass(frozen=True, slots=True)
class Call:
    """Where one frame stands, as part of a chain from the outermost frame to the innermost."""

    frame: int  # its id
    code: CodeType
    offset: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in the code of the program or of a library."""

    code: CodeType
    head: int  # offset that the end of an iteration jumps to
    last: int  # offset of the last of these jumps


Chain = tuple[Call, ...]


def chain(frame: FrameType | None) -> Chain:
    """The frames that lead to this one, the outermost first."""
    found: list[Call] = []
    while frame is not None and len(found) < _MOST_FRAMES:
        found.append(Call(id(frame), frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(found))


def common_loop(chains: Iterable[Chain]) -> Loop | None:
    """
    The innermost loop within an iteration of which all of these places were reached.

    A loop of the program's, or one of a library that the program called: what calls the program
    (the event loop of a notebook's kernel) is left out.
    """
    places = list(chains)
    shared = 0
    for calls in zip(*places, strict=False):
        if len({(call.frame, call.code) for call in calls}) > 1:
            break
        shared += 1
    outside = next((at for at in range(shared) if is_program(places[0][at].code)), shared)
    for depth in reversed(range(outside, shared)):
        code = places[0][depth].code
        offsets = {calls[depth].offset for calls in places}
        around = [
            loop for loop in loops(code) if loop.head <= min(offsets) and max(offsets) <= loop.last
        ]
        if around:
            return min(around, key=lambda loop: loop.last - loop.head)
    return None


def outermost_loop(calls: Chain) -> Loop | None:
    """
    The loop around everything that a training does: that over its epochs, where there is one.

    One of the program's own, or else of a library that the program called.
    """
    own = [call for call in calls if is_program(call.code)]
    outside = calls.index(own[0]) if own else len(calls)
    for call in (*own, *calls[outside:]):
        around = [each for each in loops(call.code) if each.head <= call.offset <= each.last]
        if around:
            return max(around, key=lambda loop: loop.last - loop.head)
    return None


def loops(code: CodeType) -> tuple[Loop, ...]:
    """The loops of a function, a cell or a module, by the jumps back in its code."""
    # Not from the cache as a whole: a cell that is run again has code that is equal, not the same.
    return tuple(Loop(code, head, last) for head, last in _jumps(code))


@functools.lru_cache(maxsize=64)
def _jumps(code: CodeType) -> tuple[tuple[int, int], ...]:
    ends: dict[int, int] = {}
    for each in dis.get_instructions(code):
        jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        # An `await` jumps back in its own way.
        if jumps and each.argval <= each.offset and "NO_INTERRUPT" not in each.opname:
            ends[each.argval] = max(each.offset, ends.get(each.argval, 0))
    return tuple(sorted(ends.items()))


def assigned(loop: Loop | None) -> frozenset[str]:
    """The variables that an iteration of the loop gives another value to."""
    if loop is None:
        return frozenset()
    return frozenset(
        each.argval
        for each in dis.get_instructions(loop.code)
        if loop.head <= each.offset <= loop.last
        and each.opname.startswith("STORE_")
        and isinstance(each.argval, str)
        and "ATTR" not in each.opname
    )


def frame_of(loop: Loop, frame: FrameType | None) -> FrameType | None:
    """The innermost frame, from this one outwards, that is in an iteration of the loop."""
    count = 0
    while frame is not None and count < _MOST_FRAMES:
        if frame.f_code is loop.code and loop.head <= frame.f_lasti <= loop.last:
            return frame
        frame, count = frame.f_back, count + 1
    return None


def at_end(loop: Loop, frame: FrameType, arrived: Callable[[bool], None]) -> bool:
    """
    Call `arrived` as soon as this iteration has ended, in this thread.

    With True at the jump back, before the next iteration begins; with False where the loop was
    left in another way. Python functions that are called until then cost a tenth of a
    microsecond more.

    Args:
        loop: found by `common_loop`.
        frame: found by `frame_of`.
        arrived: must neither raise `Exception` nor touch `f_locals` of the frame.

    Returns:
        False, and nothing is done, where a debugger or a coverage tool traces the thread.
    """
    if sys.gettrace() is not None or frame.f_trace is not None:
        return False
    before = frame.f_lasti

    def look(now: FrameType, event: str, _: Any) -> Any:
        nonlocal before
        if event == "return":
            stop(now, False)
            return None
        offset = now.f_lasti
        if event == "line":
            if offset < before and offset <= loop.head:
                stop(now, offset == loop.head)
                return None
            before = offset
        return look

    def stop(now: FrameType, ended: bool) -> None:
        sys.settrace(None)
        now.f_trace = None
        arrived(ended)

    frame.f_trace = look
    sys.settrace(_no_other_frame)
    return True


def let_go(loop: Loop | None, frame: FrameType) -> None:
    """
    Drop what tracing has left behind, from a later iteration.

    Before Python 3.13 a traced function keeps a dict of its variables, with the batch and the
    results of then. It cannot be emptied while the frame is traced: that would unset them.
    """
    place = None if loop is None else frame_of(loop, frame)
    if place is None or sys.version_info >= (3, 13) or not place.f_code.co_flags & _OPTIMIZED:
        return
    found = place.f_locals
    # The frame, `found` and the argument: the program has not called locals() itself.
    if sys.getrefcount(found) <= 3:
        found.clear()


def _no_other_frame(_frame: FrameType, _event: str, _: Any) -> None:
    return None
