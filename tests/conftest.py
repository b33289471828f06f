"""Settings for all tests: an error that the agent would only log is a failure here."""

from __future__ import annotations

import os
import signal
import sys

# Tests send these signals to their children, which would inherit that a shell or nohup ignores
# them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ.setdefault("WATCHDOG_AGENT_STRICT", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Bytecode saves each child a compilation: TensorFlow imports in 3.4 s, not 8.5 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ("support.lanes", "support.workers", "support.failures", "support.decisions")
