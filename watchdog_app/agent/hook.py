"""
The agent switched on without a word in the program: it waits until a framework is imported.

    from watchdog_app.agent import hook
    hook.switch_on()

One finder on `sys.meta_path` looks at the name of each module that is imported, and does nothing
until one of those in `WATCHED_MODULES` is. It imports nothing of a framework, and nothing that
starts slowly: this runs at the start of every kernel and every script.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# A framework's module: what it has once it is complete, and the module of ours that is then
# given it: `attach(module)`, once a module, and `detach()`, which undoes all of them.
WATCHED_MODULES = {
    # Keras 3 alone has it. Each fit of every backend comes by here.
    "keras.src.callbacks.callback_list": ("CallbackList", "watchdog_app.agent.found.fits"),
    # What a loop over Keras 3's `train_on_batch` comes by.
    "keras.src.trainers.trainer": ("model_supports_jit", "watchdog_app.agent.found.fits"),
    # Keras 2, where a program still uses it.
    "tf_keras.src.callbacks": ("UpdateEmbeddingCallback", "watchdog_app.agent.found.fits"),
    # Every optimizer of Keras 3 steps through it, in a fit and in loops of the user's own.
    "keras.src.optimizers.base_optimizer": (
        "BaseOptimizer",
        "watchdog_app.agent.found.tensorflow_signals",
    ),
    # PyTorch tells of each step of each optimizer; its loaders, of each pass over data.
    "torch.optim.optimizer": ("Optimizer", "watchdog_app.agent.found.torch_signals"),
    "torch.utils.data.dataloader": (
        "_MultiProcessingDataLoaderIter",
        "watchdog_app.agent.found.torch_signals",
    ),
}


# Under a guard: what it refuses is an error that does not name it.
_GUARD_VARIABLES = ("WATCHDOG_GUARD", "WATCHDOG_GUARD_LIMIT")

# What computes imports one of these: from then on the end of the process is noted. Before that
# not even our module for it is loaded.
_COMPUTING_LIBRARIES = frozenset(("numpy", "torch", "tensorflow", "keras", "jax"))


class _Finder:
    """Lets others find the module, and has a look at it when it is made."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, str]] = set()  # thread and module that is being looked for

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's spec with a loader of ours around its own; None for any other module."""
        if name not in WATCHED_MODULES:
            if name in _COMPUTING_LIBRARIES:
                _install_crash_report()
            return None
        asked = (get_ident(), name)
        if asked in self._asked:
            return None  # by another finder that asks everybody, as we do
        self._asked.add(asked)
        try:
            # It stays in the list: TensorFlow asks for specs of what it does not import.
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = None if finder is self or find is None else find(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
            return None
        finally:
            self._asked.discard(asked)


class _Loader:
    """The module's own loader, and `_attach` behind it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # As if we had never been there: inspect and pickle ask these.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _attach(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_finder = _Finder()


def switch_on() -> bool:
    """
    From now on trainings that name no Rescue get one. Never raises.

    Returns:
        False where it was on already.
    """
    if is_on():
        return False
    sys.meta_path.insert(0, _finder)
    if any(name in os.environ for name in _GUARD_VARIABLES):
        _explain_refusals()
    if not _COMPUTING_LIBRARIES.isdisjoint(sys.modules):
        _install_crash_report()
    for name, (last, _) in WATCHED_MODULES.items():
        module = sys.modules.get(name)
        # While it is being imported by another thread it is not complete: that import is let be.
        if module is not None and hasattr(module, last):
            _attach(module)
    return True


def switch_off() -> bool:
    """
    Everything as it was before; a fit under way keeps what it has.

    Returns:
        False where it was not on.
    """
    if not is_on():
        return False
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    for ours in {ours for _, ours in WATCHED_MODULES.values()}:
        attached: Any = sys.modules.get(ours)
        if attached is not None:
            attached.detach()
    crash_report: Any = sys.modules.get("watchdog_app.agent.runtime.crash_report")
    if crash_report is not None:
        crash_report.uninstall()
    return True


def is_on() -> bool:
    """Whether trainings of this process get a Rescue."""
    return any(finder is _finder for finder in sys.meta_path)


def _install_crash_report() -> None:
    try:
        from watchdog_app.agent.runtime.crash_report import install

        install()
    except Exception:  # noqa: S110 - an end that nobody explains is no reason to fail at the start
        pass


def _explain_refusals() -> None:
    try:
        from watchdog_app.agent.oom import refused

        WATCHED_MODULES.update(refused.WATCHED_MODULES)
        refused.install()
    except Exception:  # noqa: S110 - an error that is not explained is no reason to fail either
        pass


def _attach(module: ModuleType) -> None:
    try:
        from importlib import import_module

        import_module(WATCHED_MODULES[module.__name__][1]).attach(module)
    except Exception as error:  # the program imports its framework, with us or without
        from watchdog_app.agent.contain import describe, print_message

        framework = module.__name__.partition(".")[0]
        print_message(
            f"trainings that name no Rescue are not saved: this {framework} could not be attached "
            f"to ({describe(error)}). Your program is not affected; Rescue(...) still works."
        )
