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

from watchdog_app import paths
from watchdog_app.agent.contain import Guard, say
from watchdog_app.agent.notebook import program_path

RESUME = "WATCHDOG_AGENT_RESUME"
_NO = ("0", "no", "off", "false")
# A search over parameters fits thousands of times, and each Rescue takes 15 to 40 ms to begin.
_MOST_FITS = 100

_guard = Guard("the agent that was switched on")
_attached: tuple[Any, Any, Any] | None = None  # the class, its __init__ before, ours
_fits = 0


def attach(module: ModuleType) -> None:
    """
    Stand in the way of Keras's CallbackList. Does nothing where that was done.

    Args:
        module: `keras.src.callbacks.callback_list`.
    """
    global _attached
    if _attached is not None:
        return
    kind: Any = module.CallbackList
    before = kind.__init__

    @functools.wraps(before)
    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        if _attached is not None:  # else detached, and somebody else stands on top of us
            caller = sys._getframe(1)
            inside_keras = str(caller.f_globals.get("__name__")).startswith("keras.src.")
            if inside_keras and caller.f_code.co_name == "fit":
                with _guard:
                    callbacks = _with_rescue(callbacks)
        before(self, callbacks, *args, **kwargs)

    kind.__init__ = __init__
    _attached = kind, before, __init__


def detach() -> None:
    """As it was before, unless somebody else has changed it since: then ours does nothing."""
    global _attached
    if _attached is None:
        return
    kind, before, ours = _attached
    _attached = None
    if kind.__init__ is ours:
        kind.__init__ = before


def place(env: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """
    The folder of rescues for this program, and whether a later run will come to the same.

    `rescues/NAME` beside the notebook or script; arguments of a script make it another program.
    Where nothing can be written there it lies beside the journal.
    """
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


def _with_rescue(callbacks: Any) -> Any:
    """The callbacks of a fit with a Rescue before them, or as they are."""
    global _fits
    import keras

    named = _flat(callbacks)
    if keras.backend.backend() != "tensorflow":
        _guard.tell_once(
            f"this is Keras on {keras.backend.backend()}: its fits are watched, but not saved. "
            "Rescues work with Keras on TensorFlow."
        )
        return callbacks
    if os.environ.get("TF_CONFIG"):
        _guard.tell_once(
            "TF_CONFIG is set: a training of several workers is not saved by itself. "
            "TensorFlow's own checkpoints do that."
        )
        return callbacks
    from watchdog_app.agent.keras import Rescue

    if any(isinstance(each, Rescue) for each in named):
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
    from watchdog_app.agent.automatic_rescue import AutomaticRescue

    directory, known = place()
    _fits += 1
    if _fits == 1:
        say(f"fits are saved in {shown(directory)} when memory runs out. See: watchdog rescues")
    return [AutomaticRescue(directory, resume=known and resumes()), *named]


def shown(directory: str) -> str:
    """A folder as a person here would write it."""
    here = os.path.join(os.getcwd(), "")
    return directory.removeprefix(here) if directory.startswith(here) else directory


def _arguments(words: list[str]) -> str:
    """Another fold or another learning rate is another training: its rescues lie elsewhere."""
    return f"-{zlib.crc32(os.fsencode(chr(0).join(words))):08x}" if words else ""


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
