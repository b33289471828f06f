"""`python -m watchdog_app`: the same as `watchdog`, where the script is not on the PATH."""

from __future__ import annotations

import sys

from watchdog_app.cli import main

sys.exit(main())
