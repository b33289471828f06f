"""What agents say in objects of their own: read, checked and bounded."""

from __future__ import annotations

from watchdog_app.base.errors import RequestError
from watchdog_app.client.messages import BAD_PARAMS, Params
from watchdog_app.core.model.agent import (
    BufferMemory,
    Frame,
    GrowingLine,
    MemoryGrowth,
    MemoryParts,
    MoreTensors,
)

_FAR = 2**53  # a whole number that JSON readers keep exact
_BUFFERS = 16
_LINES = 20
_DIMENSIONS = 16
_PATH = 300
_PATH_BYTES = 4096


def path(params: Params, name: str) -> str:
    """
    A path that a file can have: at most 4096 bytes.

    Raises:
        RequestError: it is longer, or missing.
    """
    found = params.text(name)
    if len(found.encode("utf-8", "replace")) > _PATH_BYTES:
        raise RequestError(f"Parameter {name} is longer than {_PATH_BYTES} bytes.", BAD_PARAMS)
    return found


def in_ascii(text: str) -> str:
    """What a framework or a driver calls a device: anything but ASCII is not shown."""
    return text.encode("ascii", "replace").decode()


def frame(params: Params) -> Frame:
    """
    A line of a Python stack.

    Raises:
        RequestError: it is not in that form; so do all others here.
    """
    return Frame(
        params.text("file", _PATH),
        params.whole_or_none("line", 0, 2**31 - 1),
        params.text("function", 200),
    )


def place(params: Params | None) -> Frame | None:
    """Where in the program a training is."""
    return None if params is None else frame(params)


def memory(params: Params | None) -> MemoryParts | None:
    """What the memory of a training is for."""
    if params is None:
        return None
    return MemoryParts(
        batch_size=params.whole_or_none("batch_size", 1, _FAR),
        weights_bytes=params.whole_or_none("weights_bytes", 0, _FAR),
        gradients_bytes=params.whole_or_none("gradients_bytes", 0, _FAR),
        optimizer_bytes=params.whole_or_none("optimizer_bytes", 0, _FAR),
        activations_bytes=params.whole_or_none("activations_bytes", 0, _FAR),
        resident_bytes=params.whole_or_none("resident_bytes", 0, _FAR),
        base_bytes=params.whole_or_none("base_bytes", 0, _FAR),
        buffers=tuple(
            BufferMemory(each.text("what", 100), each.whole("bytes", 0, _FAR))
            for each in params.parts("buffers", _BUFFERS)
        ),
        python_blocks=params.whole_or_none("python_blocks", 0, _FAR),
        python_blocks_per_step=params.number_or_none("python_blocks_per_step", -1e12, 1e12),
    )


def growth(params: Params) -> MemoryGrowth:
    """What an agent has seen growing."""
    return MemoryGrowth(
        seconds=params.number_or_none("seconds", 0, 1e6) or 0.0,
        steps=params.whole_or_none("steps", 1, _FAR),
        refused=params.text_or_none("refused", 200),
        lines=tuple(
            GrowingLine(
                each.text("file", _PATH),
                each.whole("line", 0, 2**31 - 1),
                each.whole("bytes", 0, _FAR),
                each.number_or_none("bytes_per_step", 0, 1e16),
                each.truth("own", True),
            )
            for each in params.parts("lines", _LINES)
        ),
        tensors=tuple(
            MoreTensors(
                each.text("type", 100),
                tuple(each.wholes("shape", _DIMENSIONS)),
                each.whole("more", 1, _FAR),
            )
            for each in params.parts("tensors", _LINES)
        ),
        complete=params.truth("complete"),
        unlooked=not params.truth("tensors_counted", True),
        early=params.truth("cut_short"),
    )
