"""
Recognise out-of-memory errors, catch them when they leave the program, and explain them.

The frameworks share no error class. So `is_out_of_memory` recognises their errors by type and text,
and imports no framework. `sys.excepthook` sees the errors of a user's own loop; in a notebook
IPython's event `post_run_cell` does.
"""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from types import TracebackType
from typing import Any, Protocol

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.base.oom_text import mentions_memory
from watchdog_app.rescue.identity.notebook import ipython_shell

REASON = "out of memory in the program"

CHOICES = ("save", "shrink", None)

_CAUSES = 5  # length of the checked chain of an error and its causes
_TYPES = frozenset(
    {
        "OutOfMemoryError",  # torch, CuPy
        "_ArrayMemoryError",  # NumPy: a MemoryError
        "ArrayMemoryError",
    }
)
# Modules of frameworks whose out-of-memory errors only the text of the message distinguishes.
_FRAMEWORKS = ("tensorflow.", "torch", "jax", "jaxlib.", "keras.", "cupy", "builtins")
NOTE_PREFIX = "watchdog: memory ran out"  # start of a note whose text was printed already

_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_guard = Guard("the look at errors of memory")
_previous_hook: Any = None  # the excepthook before ours
_events: Any = None  # IPython's events while we are registered
_keep_hook = False  # whether our excepthook must stay, because a message was printed


def check_on_oom(on_oom: object) -> None:
    """
    Check the argument `on_oom`.

    Raises:
        ValueError: `on_oom` is neither "save" nor "shrink" nor None.
    """
    if on_oom not in CHOICES:
        raise ValueError(f'on_oom must be "save", "shrink" or None, not {on_oom!r}')


def is_out_of_memory(error: BaseException | None) -> bool:
    """
    Whether `error`, or a cause that it was raised from, says that memory ran out.

    It recognises:

    - MemoryError of Python and NumPy;
    - ResourceExhaustedError of TensorFlow, and its error for a MemoryError in a data pipeline;
    - torch.OutOfMemoryError, and the RuntimeError of PyTorch's CPU allocator;
    - RESOURCE_EXHAUSTED of XLA and JAX.

    A full disk does not count.
    """
    for _ in range(_CAUSES):
        if error is None:
            return False
        if _is_memory_error(error):
            return True
        error = error.__cause__
    return False


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    kind = type(error)
    if kind.__name__ in _TYPES:
        return True
    if not isinstance(error, Exception) or isinstance(error, OSError):
        return False
    if not (kind.__module__ or "").startswith(_FRAMEWORKS):
        return False
    exhausted = kind.__name__ == "ResourceExhaustedError"
    if not exhausted and not isinstance(error, RuntimeError) and not hasattr(error, "error_code"):
        return False
    # After its message, the text of a graph's error lists the whole stack of its operations.
    said = mentions_memory(str(error)[:4000])
    return exhausted if said is None else said


def raised_in_optimizer(error: BaseException) -> bool:
    """Whether a PyTorch optimizer may have changed some weights when `error` was raised."""
    changing, repeats = False, False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.optim."):
            changing, repeats = True, module == "torch.optim.lbfgs"
        elif not module.startswith("torch."):  # a closure; only LBFGS has begun before it
            changing = changing and repeats
    return changing


def drop_frames(error: BaseException) -> None:
    """
    Release the local variables of the functions below the caller, which `error` keeps alive.

    Call this for an error that the caller does not raise again. Each function in the traceback
    keeps activations in its local variables as long as the error exists.
    """
    below = error.__traceback__
    if below is not None and below.tb_next is not None:
        traceback.clear_frames(below.tb_next)
    error.__traceback__ = None
    error.__context__ = None


def release_memory() -> None:
    """Free unreachable objects and the unused cache of PyTorch's GPU allocator."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def saved_text(where: str, path: str | None, advice: str) -> str:
    """
    The message after memory ran out.

    Args:
        where: the place in the training, e.g. "in a training step".
        path: folder of the rescue, perhaps of an earlier one, which is kept; None: there is none.
        advice: what the user can do, as a sentence.
    """
    if path is None:
        return (
            f"memory ran out {where}; no rescue was saved at this point, earlier ones stay "
            f"(watchdog rescues). {advice}"
        )
    return (
        f"memory ran out {where}. The training is saved: {path}. The next run of the program "
        'resumes from there; in this same process, Rescue(..., resume="newest") does. '
        f"{advice}"
    )


def inconsistent_text(where: str, weights: str) -> str:
    """The message if the weights are not those of a whole step."""
    return (
        f"memory ran out {where}: the weights in memory are {weights}. They were not saved; an "
        "earlier rescue, if there is one, stands and is resumed from by the next run."
    )


class Training(Protocol):
    """A training that `register` can notify."""

    def out_of_memory(self, error: BaseException) -> None:
        """Handle an out-of-memory error that has left the program."""


def register(training: Training) -> None:
    """Notify `training` of out-of-memory errors until `unregister`; holds it only weakly."""
    global _events
    _registered.add(training)
    _install_excepthook()
    events = _ipython_events()
    if events is not None and _events is None:
        _events = events
        events.register("post_run_cell", _cell_ended)


def unregister(training: Training) -> None:
    """Stop notifying `training`; without any training left, restore the previous hooks."""
    global _previous_hook, _events
    _registered.discard(training)
    if _registered:
        return
    if _previous_hook is not None and sys.excepthook is _excepthook and not _keep_hook:
        sys.excepthook, _previous_hook = _previous_hook, None
    events, _events = _events, None
    if events is not None:
        events.unregister("post_run_cell", _cell_ended)


def print_and_add_note(error: BaseException, text: str) -> None:
    """
    Print a message at once, and add it to the error as a note for code that logs the error.

    In a notebook the error gets no note: IPython shows the error itself below the message.
    """
    global _keep_hook
    print_message(text)
    if _ipython_events() is not None:
        return
    error.add_note(f"watchdog: {text}")
    _keep_hook = True  # the training ends before the error leaves the program
    _install_excepthook()


def _ipython_events() -> Any:
    """IPython's events; None if this process is not an IPython prompt or notebook."""
    return getattr(ipython_shell(), "events", None)


def _install_excepthook() -> None:
    global _previous_hook
    if _previous_hook is None:
        _previous_hook, sys.excepthook = sys.excepthook, _excepthook


def notify_trainings(error: BaseException | None) -> None:
    """Notify each registered training once of an out-of-memory error that left the program."""
    if error is None or not is_out_of_memory(error):
        return
    for training in list(_registered):
        with _guard:
            training.out_of_memory(error)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    notify_trainings(error)
    # The message was printed already: do not repeat it below the traceback.
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        notes[:] = [each for each in notes if not str(each).startswith(NOTE_PREFIX)]
    (_previous_hook or sys.__excepthook__)(kind, error, trace)


def _cell_ended(result: Any = None) -> None:
    # IPython has shown the error before this event, so a note would not be visible.
    notify_trainings(getattr(result, "error_in_exec", None))
