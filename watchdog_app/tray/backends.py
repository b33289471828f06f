"""
Which of pystray's backends shows the icon here.

First ours on the session bus, where a panel for such icons runs; else pystray's
for the old trays of X11. On Windows and macOS their own. A panel may come
after us: a caller that finds nothing asks again.
"""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAMES = ("auto", "sni", "xorg")


def own_of_system() -> Any:
    """pystray's own backend of Windows or macOS; None on other systems."""
    name = {"win32": "_win32", "darwin": "_darwin"}.get(sys.platform)
    return None if name is None else _load(name)


def for_x11(wanted: str = "auto", env: Mapping[str, str] = os.environ) -> tuple[Any, str] | None:
    """
    A backend for a tray of the old kind (XEmbed) that runs now, and its name; None: there is none.

    Args:
        wanted: one of `NAMES`: that one alone.
        env: DISPLAY says whether there is a screen at all.
    """
    if not env.get("DISPLAY") or wanted == "sni":
        return None
    logging.getLogger("pystray").setLevel(logging.CRITICAL)  # it logs tracebacks of what is normal
    try:
        xorg = import_module("watchdog_app.tray.xorg")
    except Exception:  # no python-xlib, no such display, no right to it
        return None
    if not xorg.tray_there():
        return None
    return xorg.Icon, "xorg"


def _load(module: str) -> Any:
    try:
        return import_module(f"pystray.{module}").Icon
    except Exception:  # ImportError, ValueError (a missing typelib), errors of the display
        return None
