"""
Libraries shipped inside the package, for distributions that lack them or have old versions.

Packagers fill the folder `_vendor` (see packaging/linux/build-deb.sh). A pip installation does not
have the folder, and this module does nothing.
"""

from __future__ import annotations

import os
import sys


def add_to_path() -> None:
    """Put the vendored packages first on sys.path; call it before importing one of them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(package, "_vendor")
    if folder not in sys.path and os.path.isdir(folder):
        # First in the path, before an older version from the distribution.
        sys.path.insert(0, folder)
