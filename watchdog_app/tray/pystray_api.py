"""
pystray's `Icon`, `Menu` and `MenuItem` without one of its backends.

`import pystray` chooses a backend and connects to a display while it does; it
fails without one, and not with ImportError. Its own dummy backend, asked for by
its own variable, lets the three classes be had anywhere; the backend is chosen
afterwards, by `backends`.
"""

from __future__ import annotations

import os

_CHOICE = "PYSTRAY_BACKEND"

_before = os.environ.get(_CHOICE)
os.environ[_CHOICE] = "dummy"
try:
    import pystray
finally:
    if _before is None:
        del os.environ[_CHOICE]
    else:
        os.environ[_CHOICE] = _before

# The dummy backend's class is the base class of all backends, by definition.
BaseIcon = pystray.Icon
Menu = pystray.Menu
MenuItem = pystray.MenuItem

__all__ = ["BaseIcon", "Menu", "MenuItem"]
