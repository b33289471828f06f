"""`python -m watchdog_app.daemon.show_notice`: shows one notice and says how that went."""

from __future__ import annotations
