"""`python -m watchdog_app`: the command line."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from watchdog_app.cli import main

    sys.exit(main())
