"""
The IPython startup file that switches the agent on: what it holds, where it goes.

IPython runs PREFIX/etc/ipython/startup/*.py in each kernel of the environment PREFIX, whoever
starts it: Jupyter, VS Code, papermill, a terminal. One file of ours there, and no file of
anybody else's is changed. A kernelspec that wraps another would be passed by in VS Code, and
be overwritten whenever ipykernel is updated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import watchdog_app

FILE = "90-watchdog.py"

_TEXT = """\
# Placed by `watchdog agent enable`, taken away by `watchdog agent disable`.
# Trainings that name no Rescue are saved when memory runs out. Nothing happens before a framework
# is imported but a look for a training that was left, and nothing at all where watchdog is gone.
def _watchdog_agent():
    import sys

    root = {root!r}
    try:
        try:
            from watchdog_app.agent.hook import switch_on
            from watchdog_app.agent.ipython import kernel_starts
        except ImportError:
            # Enabled from another environment: only the package itself is found from there.
            sys.path.append(root)
            try:
                from watchdog_app.agent.hook import switch_on
                from watchdog_app.agent.ipython import kernel_starts
            finally:
                sys.path.remove(root)
        switch_on()
        kernel_starts()
    except Exception:
        pass


_watchdog_agent()
del _watchdog_agent
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the agent is to be switched on."""

    path: str  # of the startup file
    python: str | None  # of the environment; None: every environment of this user


def content() -> bytes:
    """The startup file, the same for every environment."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(watchdog_app.__file__)))
    return _TEXT.format(root=root).encode("utf-8", "surrogateescape")


def of_prefix(prefix: str, python: str) -> Target:
    """For the kernels of one environment."""
    return Target(os.path.join(prefix, "etc", "ipython", "startup", FILE), python)


def of_user(env: Mapping[str, str] = os.environ) -> Target:
    """For every kernel of this user with the default profile."""
    home = env.get("HOME") or os.path.expanduser("~")
    base = env.get("IPYTHONDIR") or os.path.join(home, ".ipython")
    return Target(os.path.join(base, "profile_default", "startup", FILE), None)
