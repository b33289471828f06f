"""
A kernelspec that starts another kernel through `watchdog exec`, so in its own guard.

It is installed under another name, and the original is not changed. A user who selects it in
Jupyter or VS Code gets the same Python and packages, with a memory limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from watchdog_app.base.errors import WatchdogError
from watchdog_app.install.pythons import Kernel, user_kernels_folder

_SUFFIX = "-guarded"
_MAX_LOGO_BYTES = 1 << 20
_LOGOS = ("logo-32x32.png", "logo-64x64.png", "logo-svg.svg")


def folder(name: str) -> str:
    """Return the folder of the guarded kernelspec of a kernel."""
    return os.path.join(user_kernels_folder(), f"{name.lower()}{_SUFFIX}")


def files(kernel: Kernel, command: Sequence[str]) -> dict[str, bytes]:
    """
    Return the files of the kernelspec, by name.

    Args:
        kernel: the kernel to start under a guard.
        command: words in front of the kernel's own command.

    Raises:
        WatchdogError: its kernelspec cannot be read, or is already a guarded one.
    """
    path = os.path.join(kernel.folder, "kernel.json")
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        argv = [str(word) for word in spec["argv"]]
        if argv[0] in ("python", "python3") and kernel.python:
            argv[0] = kernel.python  # Jupyter replaces `python` by its own only as the first word
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WatchdogError(f"The kernelspec {path} cannot be read: {error}") from error
    if kernel.name.endswith(_SUFFIX) and "exec" in argv:
        raise WatchdogError(f"{kernel.name} starts under a guard already.")
    spec["argv"] = [*command, *argv]
    spec["display_name"] = f"{spec.get('display_name', kernel.name)}, under a guard"
    found = {"kernel.json": (json.dumps(spec, indent=1, ensure_ascii=False) + "\n").encode()}
    for name in _LOGOS:
        try:
            with open(os.path.join(kernel.folder, name), "rb") as logo:
                found[name] = logo.read(_MAX_LOGO_BYTES)
        except OSError:
            continue
    return found
