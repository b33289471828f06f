"""
Write one HTML file about a task that died, or one that runs: what happened, a chart of its
memory with the forecast, the timeline, who held memory, what was saved, and advice. The file
needs no network and runs no script. watchdog replay plays the trace in it.

examples:
  watchdog report > death.html         the last death
  watchdog report train.ipynb --share -o death.html
  watchdog replay death.html

exit codes: 0 written, 1 failure or no such task, 2 usage, 3 daemon not running and no journal
"""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

from watchdog_app import __version__
from watchdog_app.base.durable import write_atomic
from watchdog_app.base.errors import EXIT_OK, UsageError, WatchdogError
from watchdog_app.base.text.terminal import plain
from watchdog_app.cli import history
from watchdog_app.cli.explain import describe_rescue, log_lines
from watchdog_app.cli.output import Output, format_timestamp
from watchdog_app.cli.parser import Args, Parser, positive_integer
from watchdog_app.client.client import find_status
from watchdog_app.history import report
from watchdog_app.history.anonymous import anonymous
from watchdog_app.history.past import HistorySource
from watchdog_app.history.past_exits import plot_mark
from watchdog_app.history.report import sentences

_DEFAULT_MINUTES, _MAX_MINUTES = 10, 1440
_MOST_EVENTS = 200


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.task("pid, notebook, script, path, kernel id or incident; dead or alive", optional=True)
    parser.option("-o, --output FILE", "instead of standard output")
    parser.flag("--share", "replace names, paths and arguments, so that others may read it")
    parser.option(
        "--minutes N",
        f"of the chart, before the end; default {_DEFAULT_MINUTES}, at most {_MAX_MINUTES}",
        positive_integer,
        default=_DEFAULT_MINUTES,
    )


def run(args: Args, out: Output) -> int:
    """Write the page to the file or to standard output."""
    if args.minutes > _MAX_MINUTES:
        raise UsageError(f"--minutes is at most {_MAX_MINUTES}, a day.")
    if args.output is None and sys.stdout.isatty():
        raise UsageError("A page is no text for a terminal. Write: watchdog report > death.html")
    content = make_page(args.task, float(args.minutes), share=args.share)
    if args.output is None:
        out.lines(content.rstrip())
        return EXIT_OK
    path = os.path.abspath(args.output)
    try:
        write_atomic(path, content.encode(), 0o600)
    except OSError as error:
        raise WatchdogError(
            f"The report cannot be written to {plain(path)}: {error.strerror or error}. "
            "--output names another file."
        ) from error
    out.lines(f"Written: {plain(path)}")
    return EXIT_OK


def make_page(task: str | None, minutes: float, *, share: bool) -> str:
    """
    The page about a task.

    Args:
        task: pid, name or path; None: the last death, else the machine.
        minutes: time span of the chart.
        share: replace what identifies the user and the programs.

    Raises:
        WatchdogError: there is neither a daemon nor a journal, or no such task.
    """
    source, now = HistorySource(), time.time()
    found = source.explain(task, minutes)
    if found is None:
        raise source.missing or WatchdogError("Nothing is recorded yet.")
    death = found.get("death")
    pid = (death or found).get("pid")
    plot, text = found.get("plot"), found.get("death_text") or found.get("text")
    if not text:
        raise WatchdogError(
            "The journal knows of no death, and no daemon runs. Start it: watchdog start"
        )
    end_unix_s = death["unix_s"] if death else now
    if death is not None:
        text = "\n\n".join([text, *_further_evidence(death)])
    elif pid is not None:
        begin = now - 60 * minutes
        series = source.series(task=str(pid), since_unix_s=begin, until_unix_s=now, limit=10_000)
        plot = report.running_plot(series or [], begin, now)
    entries = history.read_entries(
        task=None if pid is None else str(pid),
        since_unix_s=end_unix_s - 60 * minutes,
        until_unix_s=end_unix_s + 60,
        kinds=list(history.KINDS),
        limit=_MOST_EVENTS,
    )
    if plot is not None and death is None:
        marks = [mark for each in reversed(entries) if (mark := plot_mark(each)) is not None]
        plot = {**plot, "marks": marks}
    shown: dict[str, Any] = {
        "title": _title(death, plot),
        "text": text,
        "plot": plot,
        "events": [
            [_time(unix_s, end_unix_s), sentence]
            for unix_s, sentence in sentences(entries, str((death or plot or {}).get("name")))
        ],
    }
    if share:
        status = find_status()
        shown = anonymous(shown, found, entries, None if status is None else status.to_json())
    system = platform.system() + ("" if share else f" {platform.release()}")
    made = format_timestamp(now)
    return report.page(
        report.Report(
            shown["title"],
            shown["text"],
            shown["plot"],
            [report.Event(*each) for each in shown["events"]],
            f"Made by watchdog {__version__} at {made} on {system}, "
            f"Python {platform.python_version()}.",
        )
    )


def _time(unix_s: float, end_unix_s: float) -> str:
    """The time of day; with the date if it is another than at the end."""
    day, _, clock = format_timestamp(unix_s).partition(" ")
    return clock if format_timestamp(end_unix_s).startswith(day) else f"{day} {clock}"


def _further_evidence(death: dict[str, Any]) -> list[str]:
    saved, lines = describe_rescue(death), log_lines(death)
    more = ["\n".join(["The system's journal:", *lines])] if lines else []
    return [*([f"Its rescue now:\n  {saved}"] if saved else []), *more]


def _title(death: dict[str, Any] | None, plot: dict[str, Any] | None) -> str:
    if death is not None:
        return f"{death.get('name') or death.get('pid')}: {death.get('reason') or 'it ended'}"
    return f"{plot.get('name')} (running)" if plot else "This machine now"
