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
from pathlib import Path

from watchdog_app.install import trust


@dataclass(frozen=True, slots=True)
class Target:
    """The environment or profile in which the agent is enabled."""

    path: str  # path of the startup file
    python: str | None  # Python of the environment; None: every environment of this user


def content() -> bytes:
    """Return the startup file, the same for every environment."""
    package = trust.package_folder()
    template = Path(__file__).with_suffix(".txt").read_text("utf-8")
    text = template.format(
        package=package,
        group_pairs=trust.group_pairs(package),
        weak_spot=textwrap.indent(inspect.getsource(trust.weak_spot), " " * 4),
    )
    return text.encode("utf-8", "surrogateescape")
