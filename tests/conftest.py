"""What all tests share: errors that the agent contains are failures here."""

from __future__ import annotations

import os

os.environ.setdefault("WATCHDOG_AGENT_STRICT", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
