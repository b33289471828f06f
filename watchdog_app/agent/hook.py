"""
The agent switched on without a word in the program: it waits until Keras is imported.

    from watchdog_app.agent import hook
    hook.switch_on()

One finder on `sys.meta_path` looks at the name of each module that is imported, and nothing
else happens until Keras's list of callbacks is. Nothing of a framework is imported here, and
nothing at all that starts slowly: this runs at the start of every kernel and every script.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Keras 3 alone has it. Each fit of every backend comes by here.
CALLBACKS = "keras.src.callbacks.callback_list"


class _Finder:
    """Lets others find the module, and has a look at it when it is made."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's spec with a loader of ours around its own; None for any other module."""
        if name != CALLBACKS:
            return None
        # It stays in the list: TensorFlow asks for specs of what it does not import.
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


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
    From now on fits that name no Rescue get one. Never raises.

    Returns:
        False where it was on already.
    """
    if is_on():
        return False
    sys.meta_path.insert(0, _finder)
    module = sys.modules.get(CALLBACKS)
    # While it is being imported by another thread it has no class yet: that import is let be.
    if module is not None and hasattr(module, "CallbackList"):
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
    automatic = sys.modules.get("watchdog_app.agent.automatic")
    if automatic is not None:
        automatic.detach()
    return True


def is_on() -> bool:
    """Whether fits of this process get a Rescue."""
    return any(finder is _finder for finder in sys.meta_path)


def _attach(module: ModuleType) -> None:
    try:
        from watchdog_app.agent import automatic

        automatic.attach(module)
    except Exception as error:  # the program imports Keras, with us or without
        from watchdog_app.agent.contain import describe, say

        say(
            "fits that name no Rescue are not saved: this Keras could not be attached to "
            f"({describe(error)}). Your program is not affected; Rescue(...) still works."
        )
