"""
The IPython startup file that loads the agent: its content and its path.

IPython runs PREFIX/etc/ipython/startup/*.py in each kernel of the environment PREFIX, also in
kernels of Jupyter, VS Code, papermill or a terminal. We add one file and change no other file. A
kernelspec that wraps another would not work: VS Code bypasses it, and each update of ipykernel
overwrites it.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass

from watchdog_app.install import trust

_TEXT = """\
# Placed by `watchdog agent enable`, taken away by `watchdog agent disable`.
# Trainings that name no Rescue are saved when memory runs out. Nothing happens before a framework
# is imported but a look for a training that was left, and nothing at all where watchdog is gone.
def _watchdog_agent():
    import os
    import sys

    if sys.version_info < (3, 11):
        return
    # Loaded from here alone: a folder of notebooks may hold another package of this name.
    package = {package!r}
    group_pairs = {group_pairs!r}

{weak_spot}
    name = "watchdog_app"
    try:
        if hasattr(os, "geteuid") and weak_spot(package, group_pairs) is not None:
            return
        known = sys.modules.get(name)
        if known is None:
            from importlib.util import module_from_spec, spec_from_file_location

            spec = spec_from_file_location(
                name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
            sys.modules[name] = module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules[name])
            except BaseException:
                del sys.modules[name]
                raise
        elif "watchdog_app.agent.hook" not in sys.modules and package not in map(
            os.path.realpath, known.__path__
        ):
            return  # the user's own of that name, imported before
        from watchdog_app.agent.hook import switch_on
        from watchdog_app.agent.ipython import kernel_starts

        switch_on()
        kernel_starts()
    except Exception:
        pass


_watchdog_agent()
del _watchdog_agent
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The environment or profile in which the agent is enabled."""

    path: str  # path of the startup file
    python: str | None  # Python of the environment; None: every environment of this user


def content() -> bytes:
    """Return the startup file, the same for every environment."""
    package = trust.package_folder()
    text = _TEXT.format(
        package=package,
        group_pairs=trust.group_pairs(package),
        weak_spot=textwrap.indent(inspect.getsource(trust.weak_spot), " " * 4),
    )
    return text.encode("utf-8", "surrogateescape")
