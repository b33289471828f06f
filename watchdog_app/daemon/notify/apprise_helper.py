"""
The helper that sends one notification by apprise, run with `python -m`.

Reads {"urls", "title", "body", "urgency"} as JSON on standard input. Writes {"delivered": bool,
"detail": str} as the last line of standard output. apprise takes 44 MB, which the daemon never
pays.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_KINDS = {"low": "info", "normal": "warning", "critical": "failure"}


def main() -> int:
    """Send the notification from standard input."""
    failures = send(json.loads(sys.stdin.buffer.read()))
    print(json.dumps({"delivered": not failures, "detail": "; ".join(failures)}))
    return 1 if failures else 0


def send(request: dict[str, Any]) -> list[str]:
    """What has failed. Services are named by their number, because their addresses are secrets."""
    try:
        import apprise
    except ImportError:
        return ["the package is missing: pip install apprise"]
    failures = []
    for number, url in enumerate(request["urls"], 1):
        service = apprise.Apprise()
        if not service.add(url):
            failures.append(f"apprise does not understand number {number} of urls")
        elif not service.notify(request["body"], request["title"], _KINDS[request["urgency"]]):
            failures.append(f"number {number} of urls did not take it")
    return failures


if __name__ == "__main__":
    sys.exit(main())
