"""Ask a helper process: it reads a request as JSON and answers with one line of JSON."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence

from watchdog_app.base.text.plain import HIDDEN, clean
from watchdog_app.daemon.notify import Delivery

_SHORT = 8  # characters: a shorter secret is also a part of other words


def ask(
    argv: Sequence[str],
    request: Mapping[str, object],
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    *,
    service: str,
) -> dict[str, object]:
    """
    The helper's answer, or a description of its failure in `detail`.

    Args:
        argv: command line of the helper.
        request: written to its standard input, which other users cannot see.
        deadline_s: time limit, after which the helper is killed.
        env: environment of the helper; None: that of this process.
        service: what it talks to, for people, such as "the desktop".
    """
    data = json.dumps(request).encode()
    try:
        done = subprocess.run(
            argv, input=data, capture_output=True, timeout=deadline_s, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        late = f"{service} did not answer within {deadline_s:g} s"
        return {"detail": f"{late}; the notification is in `watchdog history`"}
    except (OSError, ValueError) as error:
        return {"detail": f"the helper for {service} could not be started: {error}"}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        error_lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = error_lines[-1][:200] if error_lines else "it said nothing"
        return {"detail": f"the helper for {service} failed (status {done.returncode}): {last}"}
    return answer


def delivery(answer: Mapping[str, object], secrets: Sequence[str]) -> Delivery:
    """
    The result that a helper reports.

    Args:
        answer: from `ask`; its text may quote what a server has written.
        secrets: left out of the text.
    """
    detail = str(answer.get("detail", ""))
    for secret in filter(None, secrets):
        form = re.escape(secret)
        form = rf"(?<!\w){form}(?!\w)" if len(secret) < _SHORT else form
        detail = re.sub(form, HIDDEN, detail)
    return Delivery(answer.get("delivered") is True, clean(detail, 300) if detail else "")
