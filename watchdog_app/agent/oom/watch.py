"""
Errors of memory in the program: recognise them, catch them where they leave it, explain them.

The frameworks share no error class: `is_out_of_memory` recognises their errors by type and text
and imports none of them. The errors of a user's own loop are seen by `sys.excepthook`, and in a
notebook by IPython's event `post_run_cell`.
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

_CAUSES = 5  # errors that lie behind an error and are looked at
_TYPES = frozenset(
    {
        "OutOfMemoryError",  # torch, CuPy
        "_ArrayMemoryError",  # NumPy: a MemoryError
        "ArrayMemoryError",
    }
)
# Frameworks whose errors are told from those of others by their text alone.
_FRAMEWORKS = ("tensorflow.", "torch", "jax", "jaxlib.", "keras.", "cupy", "builtins")
NOTE_PREFIX = "watchdog: memory ran out"  # the beginning of a note whose text was said

_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_guard = Guard("the look at errors of memory")
_previous_hook: Any = None  # the hook that was there
_events: Any = None  # IPython's, while we listen
_keep_hook = False  # our hook, as something was said


def check_on_oom(on_oom: object) -> None:
    """
    Refuse what is no choice of `on_oom`.

    Raises:
        ValueError: it is neither "save" nor "shrink" nor None.
    """
    if on_oom not in CHOICES:
        raise ValueError(f'on_oom must be "save", "shrink" or None, not {on_oom!r}')


def is_out_of_memory(error: BaseException | None) -> bool:
    """
    Whether `error`, or one that it was raised from, says that memory ran out.

    Known are Python's and NumPy's MemoryError, TensorFlow's ResourceExhaustedError and what it
    makes of a MemoryError in a data pipeline, torch.OutOfMemoryError and the RuntimeError of its
    CPU allocator, and the RESOURCE_EXHAUSTED of XLA and JAX. A full disk is none of them.
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
    # The text of a graph's error goes on with the whole stack of its operations.
    said = mentions_memory(str(error)[:4000])
    return exhausted if said is None else said


def raised_in_optimizer(error: BaseException) -> bool:
    """Whether one of PyTorch's optimizers was at work when `error` was raised."""
    place = error.__traceback__
    while place is not None:
        if str(place.tb_frame.f_globals.get("__name__", "")).startswith("torch.optim."):
            return True
        place = place.tb_next
    return False


def drop_frames(error: BaseException) -> None:
    """
    Release what the functions below the caller held when `error` was raised.

    For an error that goes no further: the local variables of each function that it came through
    keep activations alive as long as the error itself.
    """
    below = error.__traceback__
    if below is not None and below.tb_next is not None:
        traceback.clear_frames(below.tb_next)
    error.__traceback__ = None
    error.__context__ = None


def release_memory() -> None:
    """Free unreachable objects, and the GPU allocator's unused cache."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def saved_text(where: str, path: str | None, as_it_was: str, advice: str) -> str:
    """
    What is said of memory that ran out.

    Args:
        where: e.g. "in a training step".
        path: of the rescue; None: none was saved.
        as_it_was: of which moment the rescue is, e.g. "before that batch".
        advice: what to do, as a sentence.
    """
    if path is None:
        return f"memory ran out {where}; no rescue was saved. {advice}"
    return (
        f"memory ran out {where}. The training was saved as it was {as_it_was}: {path}. The next "
        'run of the program resumes from there; in this same process, Rescue(..., resume="newest") '
        f"does. {advice}"
    )


def inconsistent_text(where: str, weights: str) -> str:
    """The message where the weights are not those of a whole step."""
    return (
        f"memory ran out {where}: the weights in memory are {weights}. They were not saved; an "
        "earlier rescue, if there is one, stands and is resumed from by the next run."
    )


class Training(Protocol):
    """A training that is notified."""

    def out_of_memory(self, error: BaseException) -> None:
        """The program was left by this error of memory."""


def register(training: Training) -> None:
    """Notify `training` of errors of memory until `unregister`; keeps no reference to it."""
    global _events
    _registered.add(training)
    _install_excepthook()
    events = _ipython_events()
    if events is not None and _events is None:
        _events = events
        events.register("post_run_cell", _cell_ended)


def unregister(training: Training) -> None:
    """Stop notifying `training`. The last one restores the hooks of before."""
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
    Print a message at once, and add it to the error as a note for whoever logs it.

    In a cell it is printed alone: IPython shows the error itself, below the message.
    """
    global _keep_hook
    print_message(text)
    if _ipython_events() is not None:
        return
    error.add_note(f"watchdog: {text}")
    _keep_hook = True  # the training is over before the error leaves the program
    _install_excepthook()


def _ipython_events() -> Any:
    """IPython's events where this is a prompt or a notebook, else None."""
    return getattr(ipython_shell(), "events", None)


def _install_excepthook() -> None:
    global _previous_hook
    if _previous_hook is None:
        _previous_hook, sys.excepthook = sys.excepthook, _excepthook


def notify_trainings(error: BaseException | None) -> None:
    """Notify each registered training once of the error that left the program."""
    if error is None or not is_out_of_memory(error):
        return
    for training in list(_registered):
        with _guard:
            training.out_of_memory(error)


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    notify_trainings(error)
    # It was said at once: not a second time below the traceback.
    notes = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        notes[:] = [each for each in notes if not str(each).startswith(NOTE_PREFIX)]
    (_previous_hook or sys.__excepthook__)(kind, error, trace)


def _cell_ended(result: Any = None) -> None:
    # IPython has shown the error by now: what is noted in it is only said.
    notify_trainings(getattr(result, "error_in_exec", None))
