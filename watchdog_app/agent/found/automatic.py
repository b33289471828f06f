"""
A Rescue for each Keras `fit` that names none: which fits, and where their rescues go.

Fits are met where Keras makes their list of callbacks: from there on all is as if the program
had named the Rescue itself, order and threads of the callbacks included.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.notebook import program_path
from watchdog_app.agent.saving import arguments, chapters
from watchdog_app.base import paths

RESUME = chapters.RESUME
_NO = ("0", "no", "off", "false")
# A search over parameters fits thousands of times, and each Rescue takes 15 to 40 ms to begin.
_MOST_FITS = 100

_guard = Guard("the agent that was switched on")
_attached: list[tuple[Any, Any, Any]] = []  # each class, its __init__ before, ours
_fits = 0
_asked_for: str | None = None


def attach(module: ModuleType) -> None:
    """
    Stand in the way of Keras's CallbackList. Does nothing where that was done.

    Args:
        module: `keras.src.callbacks.callback_list`, or Keras 2's `tf_keras.src.callbacks`.
    """
    kind: Any = module.CallbackList
    if any(kind is each for each, _, _ in _attached):
        return
    before = kind.__init__
    inside = f"{module.__name__.partition('.')[0]}.src."

    @functools.wraps(before)
    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        if _attached:  # else detached, and somebody else stands on top of us
            caller = sys._getframe(1)
            inside_keras = str(caller.f_globals.get("__name__")).startswith(inside)
            if inside_keras and caller.f_code.co_name == "fit":
                with _guard:
                    callbacks = _with_rescue(callbacks, inside.partition(".")[0])
        before(self, callbacks, *args, **kwargs)

    kind.__init__ = __init__
    _attached.append((kind, before, __init__))


def detach() -> None:
    """As it was before, unless somebody else has changed it since: then ours does nothing."""
    for kind, before, ours in _attached:
        if kind.__init__ is ours:
            kind.__init__ = before
    _attached.clear()


def go_on_in(directory: str) -> None:
    """The rescues of this process lie there: those that a person asked to go on from."""
    global _asked_for
    _asked_for = directory


def place(env: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """
    The folder of rescues for this program, and whether a later run will come to the same.

    `rescues/NAME` beside the notebook or script; arguments of a script make it another program.
    Where nothing can be written there it lies beside the journal.
    """
    if _asked_for is not None:
        return _asked_for, True
    program = program_path(env)
    if program is None:
        # A bare kernel or prompt: two of them in one folder are not to be mixed up.
        name, beside, known = f"unnamed-{os.getpid()}", os.getcwd(), False
    else:
        name, beside, known = os.path.basename(program), os.path.dirname(program), True
        if not program.endswith(".ipynb"):
            module = _module()
            name = (module or name) + _arguments(sys.argv[1:])
            if module or program.startswith(os.path.join(sys.prefix, "")):
                beside = os.getcwd()
    if not os.path.isdir(beside):  # renamed, or told in another way than as a path of this machine
        beside = os.getcwd()
    if _writable(os.path.join(beside, "rescues", name)):
        return os.path.join(beside, "rescues", name), known
    apart = zlib.crc32(os.fsencode(beside))
    return os.path.join(paths.state_dir(env), "rescues", f"{name}-{apart:08x}"), known


def resumes(env: Mapping[str, str] = os.environ) -> bool:
    """Whether an unfinished rescue is gone on from; the environment can say no."""
    return env.get(RESUME, "").strip().lower() not in _NO


def tell_of_others(directory: str) -> None:
    """Name what another program left beside this folder, or this one with other arguments."""
    line = chapters.left_beside(directory) if resumes() else None
    if line is not None:
        say(line)


def _with_rescue(callbacks: Any, package: str) -> Any:
    """The callbacks of a fit of `package` with a Rescue before them, or as they are."""
    global _fits
    named = _flat(callbacks)
    on_tensorflow = package == "tf_keras" or "tensorflow" in sys.modules
    if on_tensorflow and os.environ.get("TF_CONFIG"):
        _guard.tell_once(
            "TF_CONFIG is set: a training of several workers is not saved by itself. "
            "TensorFlow's own checkpoints do that."
        )
        return callbacks
    from watchdog_app.agent.fit.keras_fit import FitRescue

    if any(isinstance(each, FitRescue) for each in named):
        return callbacks
    if any(type(each).__name__ == "BackupAndRestore" for each in named):
        _guard.tell_once(
            "this fit has BackupAndRestore, which resumes it in its own way: no Rescue is added."
        )
        return callbacks
    if _fits >= _MOST_FITS:
        _guard.tell_once(
            f"this program has begun {_MOST_FITS} fits; further ones are not saved by themselves. "
            "Give Rescue(...) to those that matter."
        )
        return callbacks
    from watchdog_app.agent.found.automatic_rescue import automatic

    obstacle = _obstacle(package)
    if obstacle is not None:
        _guard.tell_once(f"{obstacle} Its fits are watched, but not saved.")
        return callbacks
    directory, known = place()
    _fits += 1
    if _fits == 1:
        say(f"fits are saved in {shown(directory)} when memory runs out. See: watchdog rescues")
        tell_of_others(directory)
    return [automatic(package)(directory, resume=known and resumes()), *named]


def _obstacle(package: str) -> str | None:
    """Why fits cannot be saved here, in words."""
    if package == "tf_keras":
        return None
    from watchdog_app.agent.fit import keras_backend

    backend = keras_backend.current()
    return keras_backend.UNKNOWN if backend is None else backend.obstacle()


def shown(directory: str) -> str:
    """A folder as a person here would write it."""
    here = os.path.join(os.getcwd(), "")
    return directory.removeprefix(here) if directory.startswith(here) else directory


def _arguments(words: list[str]) -> str:
    """Another fold or another seed is another training: its rescues lie elsewhere."""
    text = arguments.distinguishing(words)
    return f"-{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}" if text else ""


def _module() -> str | None:
    """The module that `python -m` was given; None where the program was started otherwise."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", None)
    return name.removesuffix(".__main__") if isinstance(name, str) else None


def _flat(callbacks: Any) -> list[Any]:
    """Keras takes lists within lists, and one alone."""
    if isinstance(callbacks, list | tuple):
        return [one for each in callbacks for one in _flat(each)]
    return [] if callbacks is None else [callbacks]


def _writable(folder: str) -> bool:
    """Whether this folder could be made and written: its nearest parent that is there says."""
    while not os.path.isdir(folder):
        if os.path.lexists(folder):
            return False
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)
