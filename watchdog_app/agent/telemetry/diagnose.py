"""
Find the lines of the program whose memory grows, and the tensors whose number grows.

It uses two methods, because neither sees everything. `tracemalloc` knows the line of every Python
object, but not the memory of a tensor. The garbage collector knows the live tensors, but not which
line made them. Both cost time, so they run only for some seconds, on request or when a warning is
due. If the program uses tracemalloc itself, the agent does not touch it.
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
# share of the time before the first sample: objects of single steps must exist by then
_SETTLE_SHARE = 0.2
_FIRST_SHARE = 0.4  # share of the time before a first answer: a growing process may not live longer
_POLL_INTERVAL_S = 0.2
# A trace takes 60 bytes, and twice as much again in a snapshot: 50 MB in all for two snapshots.
_MOST_TRACES_BYTES = 8 * 2**20
_BUDGET_S = 0.25  # processor time for a pass over the live objects
_EVERY = 16384  # objects between two checks of the clock
# A pass over the live objects copies pages shared with forked workers: this much does no harm.
_MOST_COPIED_BYTES = 8 * 2**20
_MOST_LINES = 5
_MOST_KINDS = 3
_LEAST_MORE = 3  # tensors
_LEAST_BYTES = 2048
_LEAST_OWN_BYTES = 256
_LEAST_SHARE = 0.001  # of the largest growth; smaller growth is noise
_FRAMES = 6  # from a NumPy array to the line of the program that requested it
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
    Search for growing memory for `seconds`; see `agent.leaked`.

    Args:
        seconds: 1 to 120. Slow growth needs longer.
        step: returns the current step of the training; None: unknown.
        first: gets the result for a part of the time. A process that runs out of memory may be
            killed before all of it has passed.

    Returns:
        `seconds`, `steps` (null: unknown), `refused` (null, or why lines are unknown),
        `lines`: `{file, line, own, bytes, bytes_per_step}`, the largest growth first,
        `tensors`: `{type, shape, more}`, `complete`: whether all objects were seen,
        `tensors_counted`: false if forked workers share their memory,
        `cut_short`: whether it ended early because the traces took too much memory.
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
    """The live objects at one moment."""

    def __init__(self, refused: str | None, step: Callable[[], int | None]) -> None:
        import tracemalloc

        self.refused = refused
        # The training continues while the rest is read: its step belongs to the traces.
        self.step, self.mono_s = step(), time.monotonic()
        traced = refused is None and tracemalloc.is_tracing()
        self.traces = tracemalloc.take_snapshot() if traced else None
        copied = shared_bytes()
        self.tensors_skipped = copied is not None and copied > _MOST_COPIED_BYTES
        self.tensors, self.whole = (Counter(), False) if self.tensors_skipped else tensors()

    def growth_until(self, later: _Sample) -> Json:
        """The growth up to a later sample."""
        first, last = self.step, later.step
        steps = None if first is None or last is None or last <= first else last - first
        skipped = self.tensors_skipped or later.tensors_skipped
        lines = []
        if self.traces is not None and later.traces is not None:
            lines = _grown_lines(self.traces, later.traces, steps)
        return {
            "seconds": later.mono_s - self.mono_s,
            "steps": steps,
            "refused": self.refused,
            "lines": lines,
            "tensors": [] if skipped else _grown_tensors(self.tensors, later.tensors),
            "complete": self.whole and later.whole,
            "tensors_counted": not skipped,
            "cut_short": False,
        }


def _wait(seconds: float) -> bool:
    """
    Sleep; return whether the sleep ended early.

    It ends early if the traces take much memory, because memory is short during such a search.
    """
    import tracemalloc

    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_INTERVAL_S))
        if tracemalloc.get_tracemalloc_memory() > _MOST_TRACES_BYTES:
            return True
    return False


_is_tracing = [False]  # whether tracing is on and was started here


def _stop_in_child() -> None:
    if _is_tracing[0]:
        import tracemalloc

        _is_tracing[0] = False
        tracemalloc.stop()


# A worker that is forked during the trace must not be traced for its whole life.
os.register_at_fork(after_in_child=_stop_in_child)


def tensors(budget_s: float = _BUDGET_S) -> tuple[Counter[Kind], bool]:
    """
    The live tensors by type and shape, and whether all objects were seen within the budget.

    The budget is processor time of this thread. The youngest objects come first, because growing
    objects are among them. The garbage collector does not know NumPy arrays.

    Args:
        budget_s: processor seconds.
    """
    # With wall time, a training that holds the GIL would use the budget up.
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
            # in C, thirty nanoseconds per object
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
        # Objects that each step makes and drops are in both samples: the difference has grown.
        if each.size_diff:
            grown[_program_line(each.traceback)] += each.size_diff
    # Compare with the largest growth of each kind: a line that keeps tensors grows by little.
    found: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    for place, size in grown.most_common():
        is_own = stacks.is_program_file(place[0])
        known, least = found[is_own], _LEAST_OWN_BYTES if is_own else _LEAST_BYTES
        if size >= max(least, _LEAST_SHARE * grown[(known or [place])[0]]):
            known.append(place)
    # A list that keeps tensors grows by eight bytes each: the program's own lines say the most.
    largest = sorted(found[True] + found[False], key=lambda place: -grown[place])
    told = {*found[True][:_MOST_OWN], *largest[:_MOST_LINES]}
    return [
        {
            "file": stacks.display_name(file)[-_PATH_CHARS:],
            "line": line,
            "own": (file, line) in found[True],
            "bytes": grown[file, line],
            "bytes_per_step": None if steps is None else grown[file, line] / steps,
        }
        for file, line in largest
        if (file, line) in told
    ]


def _program_line(traceback: Any) -> tuple[str, int]:
    """The program's own line that led to an object; else the line that made it."""
    for frame in reversed(traceback):  # the innermost is the last
        if stacks.is_program_file(frame.filename):
            return frame.filename, frame.lineno
    return traceback[-1].filename, traceback[-1].lineno


_OWN = "/proc/self/smaps_rollup"


def shared_bytes(path: str = _OWN) -> int | None:
    """
    Upper bound of this process's memory that a write would copy.

    Walks the page tables, 6 us per MiB.

    Args:
        path: /proc/PID/smaps_rollup.

    Returns:
        Bytes; None if the kernel does not report them (not Linux, or before 4.14).
    """
    data = read_or_empty(path)
    anonymous = status_bytes(data, b"Anonymous")
    dirty = status_bytes(data, b"Shared_Dirty")
    if anonymous is None or dirty is None:
        return None
    # Pages written since the fork belong to this process alone; the rest of its anonymous pages
    # were written before. Pages of shared memory can be dirty too, which makes this an upper bound.
    return min(anonymous, dirty)


_Version = tuple[int, int, int]


def crash_risk(version: _Version = sys.version_info[:3]) -> str | None:
    """
    Why a trace could crash this program; None: no known risk.

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
    """A framework whose native threads call Python here; None: no known one."""
    scripts: Any = sys.modules.get("tensorflow.python.ops.script_ops")
    if scripts is not None:
        try:
            # Python functions in a graph: numpy_function, py_function, from_generator.
            registered = int(scripts._py_funcs.size())
        except Exception:  # another version keeps them elsewhere
            registered = 1
        if registered:
            return "TensorFlow"
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    try:
        if cuda is not None and cuda.is_initialized():
            return "PyTorch"  # a GPU's backward pass runs in a separate thread
    except Exception:
        return "PyTorch"
    return "JAX" if _jax_is_initialized() else None


def _jax_is_initialized() -> bool:
    """Whether JAX uses a device: Keras imports JAX with every other backend, too."""
    if "jax" not in sys.modules:
        return False
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    try:
        return bool(bridge.backends_are_initialized())
    except Exception:  # another version keeps them elsewhere
        return True


Post = Callable[[str, Mapping[str, Any]], None]

_LONGEST = 200  # length of a request's name
_guard = Guard("the agent's search for what grows")
_tracing = _thread.allocate_lock()  # one trace at a time per process


def handle_message(
    message: Mapping[str, Any],
    post: Post,
    trainer: int | None = None,
    step: Callable[[], int | None] = lambda: None,
) -> None:
    """
    Answer a message that asks for stacks or growing memory; ignore all others.

    Args:
        message: from the daemon.
        post: sends a notification back, now or later, from any thread.
        trainer: identity of the thread that makes the steps.
        step: returns the current step of the training; None: unknown.
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
            # In a separate thread: the link must still receive a request to save.
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
