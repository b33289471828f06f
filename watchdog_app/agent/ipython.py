"""`%load_ext watchdog_app.agent` and `%unload_ext watchdog_app.agent`."""

from __future__ import annotations

from watchdog_app.agent import hook


def load() -> None:
    """Switch the agent on in this kernel, and say so in one line."""
    from watchdog_app.agent import automatic

    if not hook.switch_on():
        print("watchdog: it is on already in this kernel.")
        return
    directory, _ = automatic.place()
    print(
        f"watchdog: Keras fits are saved in {automatic.shown(directory)} when memory runs out. "
        "Off again: %unload_ext watchdog_app.agent"
    )


def unload() -> None:
    """Everything as it was before."""
    hook.switch_off()
