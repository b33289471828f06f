"""What to change after an end for a lack of memory, from what the journal holds of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from watchdog_app.core.death_records import cause_spec

# What PyTorch, concurrent.futures and joblib say when one is gone.
_WORKER = re.compile(
    r"DataLoader worker .*(?:killed by signal: Killed|exited unexpectedly)"
    r"|BrokenProcessPool|TerminatedWorkerError"
)
_MOST_GREW = 4


def after(entry: Mapping[str, Any]) -> Iterator[str]:
    """
    Sentences, the most useful first; none after an end of another cause.

    Args:
        entry: of the journal, of kind "death" or "end".
    """
    cause = entry.get("cause")
    if cause == "failed" and _lost_a_worker(entry):
        yield (
            "A worker process was killed, most often for memory: use fewer workers (num_workers, "
            "prefetch_factor), keep no cache in the data set, and arrays instead of lists."
        )
    spec = cause_spec(cause)
    if not spec.by_error:
        return
    agent = entry.get("agent")
    if isinstance(agent, Mapping):
        yield "Make the batch smaller: the step that failed needs memory in proportion."
        yield (
            'Or keep it and let the agent train in parts what does not fit: Rescue(..., on_oom="'
            'shrink"); the loss stays that of the whole batch (see docs/agent.md).'
        )
        where = " --gpu" if spec.of_card else ""
        yield f"See before the start what fits: watchdog estimate MODEL --batch N{where}"
    else:
        yield (
            "Smaller batches or chunks; if it grew until the end, look for what is kept in a list "
            "or dict."
        )
    if cause == "address_space":
        yield "The shell's own limit stopped it: see `ulimit -v`, and raise it before the start."
    elif spec.of_card:
        yield "Or train in mixed precision, and close what else is on that card."


def grew(entry: Mapping[str, Any]) -> Iterator[str]:
    """
    Which lines and tensors grew, as its agent had told before the end.

    Args:
        entry: of the journal; nothing is said of one that came to an end of its own will.
    """
    told = entry.get("grew")
    if cause_spec(entry.get("cause")).by_itself or not isinstance(told, list):
        return
    yield from (line for line in told[:_MOST_GREW] if isinstance(line, str))


def _lost_a_worker(entry: Mapping[str, Any]) -> bool:
    """Whether its last words say that a worker was killed."""
    evidence = entry.get("evidence")
    return any(
        isinstance(each, Mapping)
        and each.get("source") == "python"
        and _WORKER.search(str(each.get("text"))) is not None
        for each in (evidence if isinstance(evidence, list) else ())
    )
