"""
Keras trainings without a Rescue: add one to each `fit`, and print advice for `train_on_batch`.

The agent adds the Rescue when Keras makes the fit's list of callbacks. From then on the fit runs as
if the program had named the Rescue itself, with the same order and threads of callbacks. A loop
over `train_on_batch` is not saved: the agent cannot see its start and its next batch.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.found import folders
from watchdog_app.agent.identity.data_facts import flatten
from watchdog_app.agent.wrapping import Wrapped

_TRAINER = "keras.src.trainers.trainer"
_guard = Guard("the agent that was switched on")
_wrapped_lists = Wrapped()
_wrapped_trainers = Wrapped()  # unwrapped after the first message
_fit_count = 0


def attach(module: ModuleType) -> None:
    """
    Wrap Keras's CallbackList or Trainer, unless it is wrapped already.

    Args:
        module: `keras.src.callbacks.callback_list` or `keras.src.trainers.trainer`, or Keras 2's
            `tf_keras.src.callbacks`.
    """
    if module.__name__ == _TRAINER:
        if not _wrapped_trainers.is_on:
            _wrapped_trainers.wrap(module.Trainer, "reset_metrics", _wrap_reset_metrics)
    elif not _wrapped_lists.wraps(module.CallbackList):
        _wrapped_lists.wrap(module.CallbackList, "__init__", _wrap_callback_list)


def detach() -> None:
    """Restore the wrapped classes."""
    _wrapped_lists.unwrap()
    _wrapped_trainers.unwrap()


def _called_by(function: str, package: str) -> bool:
    """Whether Keras's own `function` has called our wrapper, which calls this."""
    caller = sys._getframe(2)
    inside = str(caller.f_globals.get("__name__")).startswith(f"{package}.src.")
    return inside and caller.f_code.co_name == function


def _wrap_callback_list(before: Any) -> Any:
    package = before.__module__.partition(".")[0]

    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        if _wrapped_lists.is_on and _called_by("fit", package):
            with _guard:
                callbacks = _add_rescue(callbacks, package)
        before(self, callbacks, *args, **kwargs)

    return __init__


def _wrap_reset_metrics(before: Any) -> Any:
    def reset_metrics(self: Any) -> Any:
        if _wrapped_trainers.is_on and _called_by("train_on_batch", "keras"):
            with _guard:
                _report_loop(self)
        return before(self)

    return reset_metrics


def _add_rescue(callbacks: Any, package: str) -> Any:
    """The callbacks of a fit of `package`, with a Rescue before them if one can be added."""
    global _fit_count
    # Keras accepts nested lists, and a single callback.
    named = [each for each in flatten(callbacks) if each is not None]
    on_tensorflow = package == "tf_keras" or "tensorflow" in sys.modules
    if on_tensorflow and folders.has_several_workers(_guard):
        return callbacks
    from watchdog_app.agent.adapters.keras.rescue import FitRescue

    if any(isinstance(each, FitRescue) for each in named):
        return callbacks
    if any(type(each).__name__ == "BackupAndRestore" for each in named):
        _guard.print_once(
            "this fit has BackupAndRestore, which resumes it in its own way: no Rescue is added."
        )
        return callbacks
    if folders.has_begun_too_many(_fit_count, "fits", _guard):
        return callbacks
    from watchdog_app.agent.found.fit_rescue import automatic_rescue_class

    obstacle = _obstacle(package)
    if obstacle is not None:
        _guard.print_once(f"{obstacle} Its fits are watched, but not saved.")
        return callbacks
    directory, known = folders.rescue_folder()
    _fit_count += 1
    if _fit_count == 1:
        folders.report_other_rescues(directory)
    made = automatic_rescue_class(package)(
        directory, resume=known and folders.is_resume_enabled(), number=_fit_count
    )
    return [made, *named]


def _obstacle(package: str) -> str | None:
    """Why fits cannot be saved here, as a text; None if they can."""
    if package == "tf_keras":
        return None
    from watchdog_app.agent.adapters.keras.backend import UNKNOWN
    from watchdog_app.agent.adapters.keras.rescue import backend_of_keras

    backend = backend_of_keras()
    return UNKNOWN if backend is None else backend.obstacle(None)


def _report_loop(model: Any) -> None:
    """Print once that a loop over `train_on_batch` is not saved on this backend."""
    _wrapped_trainers.unwrap()
    import keras

    if keras.backend.backend() != "tensorflow":  # there `tensorflow_signals` sees each step
        print_message(
            f"this program trains {type(model).__name__} with train_on_batch: it is watched, but "
            'not saved. A fit with callbacks=[Rescue("rescues/")] of watchdog_app.agent.keras is.'
        )
