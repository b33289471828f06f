"""What lives in the training process: registration, step hook, save and restore."""

from __future__ import annotations


def load_ipython_extension(_shell: object) -> None:
    """What `%load_ext watchdog_app.agent` calls: fits that name no Rescue get one."""
    from watchdog_app.agent.ipython import load

    load()


def unload_ipython_extension(_shell: object) -> None:
    """What `%unload_ext watchdog_app.agent` calls: as it was before."""
    from watchdog_app.agent.ipython import unload

    unload()
