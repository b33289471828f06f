"""
Which lines of the program hold what grows, and of which tensors there are more and more.

Two ways to look, as neither sees all: `tracemalloc` knows the line of every object of Python's,
and nothing of the memory of a tensor; the garbage collector knows the tensors that live, and not
who made them. Both cost, so both are switched on for some seconds alone, on request or when a
warning is due, and off again. A program that traces itself is left as it is.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.telemetry import stacks
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.linux.process import status_bytes

LEAST_S, MOST_S = 1.0, 120.0
_SETTLE_SHARE = 0.2  # of the time, before what grows is told from what is made anew each step
_FIRST_SHARE = 0.4  # of the time, when a first answer is told: who grows may not live for longer
_LOOK_EVERY_S = 0.2
# A trace takes 60 bytes, and one in a snapshot twice as much again: of two snapshots 50 MB in all.
_MOST_TRACES_BYTES = 8 * 2**20
_BUDGET_S = 0.25  # of processor time, for a look at the live objects
_EVERY = 16384  # objects between two looks at the clock
# A look at the live objects copies what forked workers share: this much at most is no harm.
_MOST_COPIED_BYTES = 8 * 2**20
_MOST_LINES = 5
_MOST_KINDS = 3
_LEAST_MORE = 3  # tensors
_LEAST_BYTES = 2048
_LEAST_OWN_BYTES = 256
_LEAST_SHARE = 0.001  # of the largest growth: below it is noise
_FRAMES = 6  # from an array of NumPy's to the line of the program that asked for it
_MOST_OWN = 3
_PATH_CHARS = 250
_TENSORS = frozenset(
    ("Tensor", "EagerTensor", "Parameter", "ResourceVariable", "Variable", "ArrayImpl", "ndarray")
)
_FRAMEWORKS = ("torch", "tensorflow", "tf_keras", "keras", "jax", "numpy")

Json = dict[str, Any]
Kind = tuple[str, tuple[int, ...]]


def trace(
    seconds: float,
    step: Callable[[], int | None],
    first: Callable[[Json], None] = lambda _: None,
) -> Json:
    """
    Look for what grows, which takes `seconds`; as in `agent.leaked`.

    Args:
        seconds: 1 to 120; what grows only now and then needs longer.
        step: the step that the training is at; None: not known.
        first: is told what was found after a part of the time, as a process that runs out of
            memory may be killed before all of it has passed.

    Returns:
        `seconds`, `steps` (null: not known), `refused` (null, or why lines are not known),
        `lines`: `{file, line, own, bytes, bytes_per_step}`, the largest growth first,
        `tensors`: `{type, shape, more}`, `complete`: whether all objects were seen,
        `tensors_counted`: false where forked workers share their memory,
        `cut_short`: whether it ended before its time, as the traces took too much memory.
    """
    import tracemalloc

    seconds = min(MOST_S, max(LEAST_S, seconds))
    refused = crash_risk()
    if tracemalloc.is_tracing():
        refused = "the program uses tracemalloc itself"
    if refused is None:
        _is_tracing[0] = True
        tracemalloc.start(_FRAMES)
    try:
        early = _wait(_SETTLE_SHARE * seconds)
        before = _Sample(refused, step)
        early = _wait((_FIRST_SHARE - _SETTLE_SHARE) * seconds) or early
        if not early:
            first(before.growth_until(_Sample(refused, step)))
            early = _wait((1 - _FIRST_SHARE) * seconds)
        after = _Sample(refused, step)
    finally:
        if refused is None:
            tracemalloc.stop()
            _is_tracing[0] = False
    return {**before.growth_until(after), "cut_short": early}


class _Sample:
    """What lives at one moment."""

    def __init__(self, refused: str | None, step: Callable[[], int | None]) -> None:
        import tracemalloc

        self.refused = refused
        traced = refused is None and tracemalloc.is_tracing()
        self.traces = tracemalloc.take_snapshot() if traced else None
        copied = shared_bytes()
        self.tensors_skipped = copied is not None and copied > _MOST_COPIED_BYTES
        self.tensors, self.whole = (Counter(), False) if self.tensors_skipped else tensors()
        self.step, self.mono_s = step(), time.monotonic()

    def growth_until(self, later: _Sample) -> Json:
        """What has grown up to a later look."""
        first, last = self.step, later.step
        steps = None if first is None or last is None or last <= first else last - first
        unlooked = self.tensors_skipped or later.tensors_skipped
        lines = []
        if self.traces is not None and later.traces is not None:
            lines = _grown_lines(self.traces, later.traces, steps)
        return {
            "seconds": later.mono_s - self.mono_s,
            "steps": steps,
            "refused": self.refused,
            "lines": lines,
            "tensors": [] if unlooked else _grown_tensors(self.tensors, later.tensors),
            "complete": self.whole and later.whole,
            "tensors_counted": not unlooked,
            "cut_short": False,
        }


def _wait(seconds: float) -> bool:
    """
    Sleep; whether it was for less time than that.

    So it is where the traces take much memory, which is short when this is asked for.
    """
    import tracemalloc

    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY_S))
        if tracemalloc.get_tracemalloc_memory() > _MOST_TRACES_BYTES:
            return True
    return False


_is_tracing = [False]  # tracing is ours, and is on


def _stop_in_child() -> None:
    if _is_tracing[0]:
        import tracemalloc

        _is_tracing[0] = False
        tracemalloc.stop()


# A worker that is forked meanwhile must not be traced for all its life.
os.register_at_fork(after_in_child=_stop_in_child)


def tensors(budget_s: float = _BUDGET_S) -> tuple[Counter[Kind], bool]:
    """
    The live tensors by type and shape, and whether all objects were seen within the budget, which
    is processor time of this thread.

    The youngest objects are looked at first: what has grown is among them. Arrays of NumPy are not
    known to the garbage collector.
    """
    # By the clock, a training that holds the interpreter would use the budget up.
    end = time.thread_time() + budget_s
    found: Counter[Kind] = Counter()
    wanted: set[type] = set()
    seen: set[type] = set()
    for generation in (0, 1, 2):
        objects = gc.get_objects(generation)
        for last in range(len(objects), 0, -_EVERY):
            if time.thread_time() > end:
                return found, False
            part = objects[max(0, last - _EVERY) : last]
            # In C, thirty nanoseconds an object.
            kinds = set(map(type, part))
            wanted.update(filter(_is_tensor, kinds - seen))
            seen |= kinds
            if not wanted.isdisjoint(kinds):
                found.update(
                    (type(each).__name__, _shape(each)) for each in part if type(each) in wanted
                )
        del objects
    return found, True


def _is_tensor(kind: type) -> bool:
    module = getattr(kind, "__module__", None)
    return (
        kind.__name__ in _TENSORS
        and isinstance(module, str)
        and module.partition(".")[0] in (*_FRAMEWORKS, "jaxlib")
    )


def _shape(thing: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in thing.shape)
    except Exception:  # of unknown rank, deleted, or not made yet
        return ()


def _grown_tensors(before: Counter[Kind], after: Counter[Kind]) -> list[Json]:
    grown = {kind: after[kind] - before[kind] for kind in after}
    found = sorted(grown.items(), key=lambda item: item[1], reverse=True)
    return [
        {"type": kind, "shape": list(shape)[:8], "more": more}
        for (kind, shape), more in found[:_MOST_KINDS]
        if more >= _LEAST_MORE
    ]


def _grown_lines(before: Any, after: Any, steps: int | None) -> list[Json]:
    import tracemalloc

    others = (
        tracemalloc.Filter(False, tracemalloc.__file__),
        *(tracemalloc.Filter(False, f"{folder}*") for folder in stacks.AGENT_FOLDERS),
        tracemalloc.Filter(False, "<frozen *"),
    )
    changes = after.filter_traces(others).compare_to(before.filter_traces(others), "traceback")
    grown: Counter[tuple[str, int]] = Counter()
    for each in changes:
        # What is made and dropped with each step is there in both: what is left has grown.
        if each.size_diff:
            grown[_program_line(each.traceback)] += each.size_diff
    found = [
        (place, size) for place, size in grown.most_common() if size >= _min_growth_bytes(place[0])
    ]
    # Beside the largest, each kind for itself: a line that keeps tensors grows by little.
    noise = {
        own: _LEAST_SHARE
        * max((size for place, size in found if stacks.is_program_file(place[0]) is own), default=0)
        for own in (False, True)
    }
    found = [
        (place, size) for place, size in found if size >= noise[stacks.is_program_file(place[0])]
    ]
    # A list that keeps tensors grows by eight bytes each: the program's own lines tell the most.
    own = [place for place, _ in found if stacks.is_program_file(place[0])]
    told = {*own[:_MOST_OWN], *(place for place, _ in found[:_MOST_LINES])}
    return [
        {
            "file": stacks.display_name(file)[-_PATH_CHARS:],
            "line": line,
            "own": stacks.is_program_file(file),
            "bytes": size,
            "bytes_per_step": None if steps is None else size / steps,
        }
        for (file, line), size in found
        if (file, line) in told
    ]


def _program_line(traceback: Any) -> tuple[str, int]:
    """The program's own line that led to an object; the line that made it where none did."""
    for frame in reversed(traceback):  # the innermost is the last
        if stacks.is_program_file(frame.filename):
            return frame.filename, frame.lineno
    return traceback[-1].filename, traceback[-1].lineno


def _min_growth_bytes(file: str) -> int:
    return _LEAST_OWN_BYTES if stacks.is_program_file(file) else _LEAST_BYTES


_OWN = "/proc/self/smaps_rollup"


def shared_bytes(path: str = _OWN) -> int | None:
    """
    Memory of this process that a write would copy, at most; walks the page tables (6 us a MiB).

    Args:
        path: /proc/PID/smaps_rollup.

    Returns:
        Bytes; None where the system does not say (not Linux, before 4.14).
    """
    data = read_or_empty(path)
    anonymous = status_bytes(data, b"Anonymous")
    dirty = status_bytes(data, b"Shared_Dirty")
    if anonymous is None or dirty is None:
        return None
    # What was written since the fork is this process's own; the rest of its anonymous pages were
    # written before. Pages of shared memory can be dirty as well: they make this an upper bound.
    return min(anonymous, dirty)


_Version = tuple[int, int, int]


def crash_risk(version: _Version = sys.version_info[:3]) -> str | None:
    """
    Why a trace could end this program; None: it cannot, as far as that is known.

    Args:
        version: of Python.
    """
    if version >= (3, 13, 2) or (3, 12, 9) <= version < (3, 13, 0):
        return None
    whose = _native_caller()
    if whose is None:
        return None
    return (
        f"{whose} calls this program from threads of its own, and before Python 3.12.9 a trace can "
        "crash such a program as it ends"
    )


def _native_caller() -> str | None:
    """A framework whose native threads come into Python here; None: none that is known."""
    scripts: Any = sys.modules.get("tensorflow.python.ops.script_ops")
    if scripts is not None:
        try:
            # Functions of Python's in a graph: numpy_function, py_function, from_generator.
            registered = int(scripts._py_funcs.size())
        except Exception:  # another version keeps them elsewhere
            registered = 1
        if registered:
            return "TensorFlow"
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            return "PyTorch"  # the backward pass of a card runs in a thread of its own
    except Exception:
        return "PyTorch"
    return "JAX" if _jax_is_initialized() else None


def _jax_is_initialized() -> bool:
    """Whether JAX has a device at work: Keras imports it beside every other backend."""
    if "jax" not in sys.modules:
        return False
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    try:
        return bool(bridge.backends_are_initialized())
    except Exception:  # another version keeps them elsewhere
        return True


Post = Callable[[str, Mapping[str, Any]], None]

_LONGEST = 200  # name of a request
_guard = Guard("the agent's search for what grows")
_tracing = _thread.allocate_lock()  # one at a time in a process


def handle_message(
    message: Mapping[str, Any],
    post: Post,
    trainer: int | None = None,
    step: Callable[[], int | None] = lambda: None,
) -> None:
    """
    Answer a message that asks for something that we know; all others are left alone.

    Args:
        message: of the daemon.
        post: sends a notification back, now or later, from any thread.
        trainer: identity of the thread that makes the steps.
        step: the step that the training is at; None: not known.
    """
    params = message.get("params")
    request = params.get("request") if isinstance(params, dict) else None
    if not isinstance(params, dict) or not isinstance(request, str) or len(request) > _LONGEST:
        return
    if message.get("method") == "agent.stacks":
        post("agent.stacked", {"request": request, **stacks.collect(trainer)})
    elif message.get("method") == "agent.leaks":
        seconds = params.get("seconds")
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            # In a thread of its own: the line has to listen for a request to save meanwhile.
            _thread.start_new_thread(_trace, (request, float(seconds), post, step))


def _trace(request: str, seconds: float, post: Post, step: Callable[[], int | None]) -> None:
    if not _tracing.acquire(blocking=False):
        post("agent.leaked", {"request": request, "refused": "it is being traced already"})
        return
    try:
        with _guard:

            def first(found: Mapping[str, Any]) -> None:
                post("agent.leaked", {"request": request, "interim": True, **found})

            found = trace(seconds, step, first)
            post("agent.leaked", {"request": request, **found})
    finally:
        _tracing.release()
