"""
Stop a task and its child processes. Nothing is lost and nothing grows; the memory stays in
use.

examples:
  watchdog pause train.ipynb
  watchdog pause 4711
  watchdog resume train.ipynb

While a notebook is paused, do not press Restart or Shutdown in Jupyter:
it kills a paused kernel after 5 s, and the state is lost.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import EXIT_OK
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli.output import Output, wrap_lines
from watchdog_app.cli.parser import Args, Parser
from watchdog_app.client.client import request
from watchdog_app.core.explain.agent_lines import pause_advice


def add_arguments(parser: Parser) -> None:
    """Add the task."""
    parser.task()
    parser.json()


def run(args: Args, out: Output) -> int:
    """Pause the task and print advice for its kind."""
    result = request("task.pause", task=args.task, wait_s=30.0)
    text = "\n".join(_report_lines(result, args.task))
    out.result(result, lambda: wrap_lines(text, out.columns))
    return EXIT_OK


def _report_lines(result: dict[str, Any], task: str) -> list[str]:
    name, pid = plain(result.get("name") or task), result.get("task")
    rest = sum(each != pid for each in result.get("pids") or [])
    children = f" and {rest} child process{'es' if rest > 1 else ''}" if rest > 0 else ""
    return [
        f"Paused {name} (pid {pid}){children}. It keeps its memory and its state.",
        f"Resume it: watchdog resume {pid}",
        *pause_advice(result.get("kind")),
    ]
