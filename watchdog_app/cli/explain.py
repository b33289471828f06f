"""`watchdog explain`: why a kernel died, and what is seen and decided now, in words."""

from __future__ import annotations

from watchdog_app.base.errors import EXIT_OK, TaskNotFound, UsageError
from watchdog_app.base.text.terminal import style_of
from watchdog_app.cli.explain_text import (
    deaths_table,
    find_task,
    folded,
    render,
    render_death,
)
from watchdog_app.cli.terminal import columns_of
from watchdog_app.core.model.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from watchdog_app.base.errors import WatchdogError

    Json = dict[str, Any]

NAME = "explain"
HELP = "say why a task died, and what watchdog sees now"
DESCRIPTION = """\
Explain why a notebook, kernel or script died: the cause, its evidence and certainty, what used
the memory, a plot of the last minutes, what was saved, and how to continue. Without TASK it
shows the last death of the past hours and what watchdog sees now. A running TASK can be
named too. Works without a daemon, from the journal."""
EPILOG = """\
examples:
  watchdog explain                     the last death, and the machine now
  watchdog explain train.ipynb
  watchdog explain 4242 --minutes 60   by pid, with the last hour drawn
  watchdog explain --deaths            all that died, newest first

exit codes: 0 answered, 1 failure or no such task, 2 usage, 3 daemon not running and no journal"""

_MOST_ENTRIES = 20
_MOST_DEATHS = 50
_GOOD_ENDS = ("ended", "closed")
_MINUTES = 10.0
_MOST_MINUTES = 1440.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The task, if one is meant, and how it is shown."""
    from watchdog_app.cli.parser import add_color, positive_integer

    parser.add_argument(
        "task",
        metavar="TASK",
        nargs="?",
        help="pid, notebook, script, path, kernel id or incident; dead or alive",
    )
    parser.add_argument(
        "--deaths", action="store_true", help="list what died, newest first; of TASK alone if given"
    )
    parser.add_argument(
        "--minutes",
        type=positive_integer,
        metavar="N",
        help=f"of the plot, before the end; default {_MINUTES:.0f}, at most {_MOST_MINUTES:.0f}",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no plot")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Ask for all that there is on it, and put it into words."""
    if args.minutes is not None and args.minutes > _MOST_MINUTES:
        raise UsageError(f"--minutes is at most {_MOST_MINUTES:.0f}, a day.")
    if args.deaths:
        if args.minutes is not None:
            raise UsageError("--minutes goes with the plot of one death, not with --deaths.")
        return _list(args)
    from watchdog_app.history.past import Source

    source = Source()
    minutes = None if args.minutes is None else float(args.minutes)
    entries: list[Json] | None = None
    result, unknown = None, None
    try:
        result = source.explain(args.task, minutes)
    except TaskNotFound as error:
        if source.missing is None:
            raise
        unknown = error
    if source.missing is not None:
        result = _with_guards(args.task, result, unknown or source.missing)
    elif result is not None and not args.json and result.get("text") != result.get("death_text"):
        entries = _decided(args.task)
    result = result or {}
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps(result))
        return EXIT_OK
    print("\n".join(_lines(result, entries, args)))
    return EXIT_OK


def _lines(result: Json, entries: list[Json] | None, args: argparse.Namespace) -> list[str]:
    columns, shown = columns_of(), style_of(args.color)
    lines: list[str] = []
    for told in result.get("guards") or ():
        lines += [*folded(told, columns), ""]
    if result.get("death_text"):
        from watchdog_app.cli.explain_log import log_lines
        from watchdog_app.cli.explain_rescue import state_of_rescue
        from watchdog_app.cli.plot import plot

        drawn = plot(result.get("plot") or {}, columns, shown)
        saved = state_of_rescue(result.get("death") or {})
        more = log_lines(result.get("death") or {})
        lines += render_death(result["death_text"], drawn, saved, columns, shown, more=more)
    if result.get("text") is None:
        return [
            *lines,
            *[""] * bool(lines and lines[-1]),
            "No daemon runs: nothing is watched now. Start it: watchdog start",
        ]
    if entries is not None:
        if lines:
            lines += ["", shown.paint("Now:", "bold")]
        lines += render(result["text"], entries, columns, shown)
    return lines


def _with_guards(task: str | None, found: Json | None, error: WatchdogError) -> Json:
    """What the journal knows, with what supervisors wrote down; `error` if there is none."""
    from watchdog_app.cli import guards_seen

    died = ((found or {}).get("death") or {}).get("unix_s")
    guards = guards_seen.explained(task, died if isinstance(died, int | float) else 0.0)
    if found is None and not guards:
        raise error
    return {"text": None, "incidents": [], **(found or {}), "guards": guards}


def _decided(task: str | None) -> list[Json]:
    """What was decided, newest first."""
    from watchdog_app.client.client import Client
    from watchdog_app.history.past import Source

    if task:
        with Client.connect() as daemon:
            found = find_task(Status.read(daemon.call("status")), task)
        task = str(found.pid) if found is not None and found.pid else task
    kinds = ["decision", "outcome", "death"]
    return Source().history(task=task, limit=_MOST_ENTRIES, kinds=kinds) or []


def _list(args: argparse.Namespace) -> int:
    from watchdog_app.history.past import Source

    wanted = {"task": args.task, "limit": 4 * _MOST_DEATHS, "kinds": ["death", "end"]}
    source = Source()
    found = source.history(**wanted)
    entries = found or []
    if source.missing is not None:
        from watchdog_app.cli import guards_seen

        entries = guards_seen.entries(entries, wanted)
        if found is None and not entries:
            raise source.missing
    if args.task is None:  # that something came to its end as it should is no news
        entries = [one for one in entries if one.get("cause") not in _GOOD_ENDS]
    entries = entries[:_MOST_DEATHS]
    if args.json:
        from watchdog_app.cli.json_output import dumps

        print(dumps({"schema_version": 1, "deaths": entries}))
        return EXIT_OK
    print("\n".join(deaths_table(entries, columns_of(), style_of(args.color))))
    return EXIT_OK
