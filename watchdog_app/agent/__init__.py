"""The part of watchdog inside the training process: registration, step hook, save, restore."""

from __future__ import annotations


def load_ipython_extension(_shell: object) -> None:
    """Attach a Rescue to fits that name none; IPython calls this for `%load_ext`."""
    from watchdog_app.agent.ipython import load

    load()


def unload_ipython_extension(_shell: object) -> None:
    """Undo `load_ipython_extension`; IPython calls this for `%unload_ext`."""
    from watchdog_app.agent.ipython import unload

    unload()
