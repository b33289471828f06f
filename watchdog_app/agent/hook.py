"""
Switch the agent on without a change to the program: it waits until a framework is imported.

    from watchdog_app.agent import hook
    hook.switch_on()

One finder on `sys.meta_path` reads the name of each imported module. It does nothing until the
program imports one of `WATCHED_MODULES`. The finder imports no framework and nothing that starts
slowly, because it runs at the start of every kernel and every script.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Framework module -> (an attribute that exists once the import is complete, the agent module that
# gets `attach(module)` then). `attach` is called once per module; `detach()` undoes all of them.
WATCHED_MODULES = {
    # A kernel: its first cell defines the name `watchdog`, and offers to resume.
    "ipykernel.zmqshell": ("ZMQInteractiveShell", "watchdog_app.agent.ipython"),
    # Only Keras 3 has this module. Every fit of every backend uses it.
    "keras.src.callbacks.callback_list": ("CallbackList", "watchdog_app.agent.found.fits"),
    # A loop over Keras 3's `train_on_batch` uses it.
    "keras.src.trainers.trainer": ("model_supports_jit", "watchdog_app.agent.found.fits"),
    # Keras 2, for programs that still use it.
    "tf_keras.src.callbacks": ("UpdateEmbeddingCallback", "watchdog_app.agent.found.fits"),
    # Every optimizer of Keras 3 steps through it, in a fit and in the user's own loops.
    "keras.src.optimizers.base_optimizer": (
        "BaseOptimizer",
        "watchdog_app.agent.found.tensorflow_signals",
    ),
    # PyTorch reports each step of each optimizer; its loaders report each pass over the data.
    "torch.optim.optimizer": ("Optimizer", "watchdog_app.agent.found.torch_signals"),
    "torch.utils.data.dataloader": (
        "_MultiProcessingDataLoaderIter",
        "watchdog_app.agent.found.torch_signals",
    ),
}


# Set by the memory guard. An allocation that the guard refuses raises an error that does not name
# the guard.
_GUARD_VARIABLES = ("WATCHDOG_GUARD", "WATCHDOG_GUARD_LIMIT")

# Programs that compute import one of these. From then on the agent records how the process ends.
# Before that the agent does not even load its module for it.
_COMPUTING_LIBRARIES = frozenset(("numpy", "torch", "tensorflow", "keras", "jax"))


class _Finder:
    """Leaves the search to the other finders and wraps the loader of a watched module."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, str]] = set()  # (thread, module) pairs being searched for

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's spec with our loader around its own; None for any other module."""
        if name not in WATCHED_MODULES:
            if name in _COMPUTING_LIBRARIES:
                _install_crash_report()
            return None
        asked = (get_ident(), name)
        if asked in self._asked:
            return None  # called by another finder that asks every finder, as this one does
        self._asked.add(asked)
        try:
            # The finder stays in the list: TensorFlow asks for specs of modules it does not import.
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
    """The module's own loader, followed by `_attach`."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restore the loader first: inspect and pickle read these attributes.
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
    Attach a Rescue to later trainings that name none. Never raises.

    Returns:
        False if the agent was already on.
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
        # A module that another thread is importing is incomplete: leave it to that import.
        if module is not None and hasattr(module, last):
            _attach(module)
    return True


def switch_off() -> bool:
    """
    Undo `switch_on`; a running fit keeps its Rescue.

    Returns:
        False if the agent was not on.
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
    except Exception:  # noqa: S110 - a missing crash report must not break the start of the program
        pass


def _explain_refusals() -> None:
    try:
        from watchdog_app.agent.oom import refused

        WATCHED_MODULES.update(refused.WATCHED_MODULES)
        refused.install()
    except Exception:  # noqa: S110 - without the explanation the program still starts
        pass


def _attach(module: ModuleType) -> None:
    try:
        from importlib import import_module

        import_module(WATCHED_MODULES[module.__name__][1]).attach(module)
    except Exception as error:  # the program must be able to import its framework without the agent
        from watchdog_app.agent.contain import describe, print_message

        framework = module.__name__.partition(".")[0]
        print_message(
            f"trainings that name no Rescue are not saved: this {framework} could not be attached "
            f"to ({describe(error)}). Your program is not affected; Rescue(...) still works."
        )
