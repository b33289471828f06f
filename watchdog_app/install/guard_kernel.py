"""
A kernelspec that starts another one's kernel through `watchdog exec`: under a guard of its own.

It lies beside the original, which is left as it is, under another name: whoever picks it in
Jupyter or VS Code gets the same Python with the same packages, held at its limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from watchdog_app.base.errors import WatchdogError
from watchdog_app.install.pythons import Kernel, user_kernels_folder

SUFFIX = "-guarded"
_MAX_LOGO_BYTES = 1 << 20
_LOGOS = ("logo-32x32.png", "logo-64x64.png", "logo-svg.svg")


def folder(name: str, suffix: str = SUFFIX) -> str:
    """Where the kernelspec of that kernel's guard goes."""
    return os.path.join(user_kernels_folder(), f"{name.lower()}{suffix}")


def files(kernel: Kernel, command: Sequence[str]) -> dict[str, bytes]:
    """
    The files of the kernelspec, by name.

    Args:
        kernel: the one to start under a guard.
        command: what comes before its own words.

    Raises:
        WatchdogError: its kernelspec cannot be read, or is one of these already.
    """
    path = os.path.join(kernel.folder, "kernel.json")
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        argv = [str(word) for word in spec["argv"]]
        if argv[0] in ("python", "python3") and kernel.python:
            argv[0] = kernel.python  # Jupyter knows which one that is only where it comes first
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WatchdogError(f"The kernelspec {path} cannot be read: {error}") from error
    if kernel.name.endswith(SUFFIX) and "exec" in argv:
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
