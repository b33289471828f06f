"""
`copier.copy` as a process of its own, for the daemon, which has no seconds to spare.

    python -m watchdog_app.guard.copy PID START_TIME PAGE DIRECTORY DEADLINE_S REASON

Says one line of JSON: `path`, `step`, `bytes` and `seconds` of the rescue, or `error`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from watchdog_app.guard import copier


def main(words: Sequence[str]) -> int:
    """Copy what `words` name; 0 where a rescue was saved."""
    pid, start_time, page, directory, deadline_s, reason = words
    try:
        saved = copier.copy(int(pid), int(start_time), page, directory, float(deadline_s), reason)
    except copier.CopyError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    found = {"path": saved.path, "step": saved.step, "bytes": saved.bytes}
    print(json.dumps({**found, "seconds": saved.seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
