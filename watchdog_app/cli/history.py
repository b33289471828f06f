"""
List what happened, newest first: incidents, decisions with their outcomes, exits with their
causes, starts and stops of the daemon. A series of saves of one training is one entry. Times
are local. Works without a daemon, from the journal.

examples:
  watchdog history --since 2h
  watchdog history --kind exit         all that died
  watchdog history --task train.ipynb --kind exit
  watchdog history --runs train.py
  watchdog history --since 2026-11-21 --until '2026-11-21 18:00' --json

exit codes: 0 answered, 1 failure, 2 usage, 3 daemon not running and no journal
"""

from __future__ import annotations

from typing import Any

from watchdog_app.base.errors import EXIT_OK, UsageError
from watchdog_app.base.text.quantities import number_or_none
from watchdog_app.base.text.terminal import Style, pad, plain, shorten, width, wrap
from watchdog_app.cli import offline_status
from watchdog_app.cli.output import Output, format_timestamp
from watchdog_app.cli.parser import Args, Parser, positive_integer, task_argument, timestamp
from watchdog_app.cli.plot import plot
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Incident
from watchdog_app.history.past import HistorySource

Json = dict[str, Any]
_MIB = 1024**2


KINDS = ("incident", "decision", "outcome", "exit", "restart", "daemon")
_LIMIT = 50
_NORMAL_ENDS = ("ended", "closed")
_STYLES = {"incident": "bold", "exit": "bold"}
_KIND_COLUMNS = 8  # length of the longest kind
_NAME_COLUMNS = 24
_MIN_TEXT_COLUMNS = 30  # with fewer columns for the text, the text goes below the other columns


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.option("--since WHEN", "2h, 3d, 14:30 or '2026-11-21 14:30'", timestamp)
    parser.option("--until WHEN", "as --since", timestamp)
    parser.option("--task TASK", "pid, or part of a name or path", task_argument)
    parser.option(
        "--kind KIND",
        f"only these; may be repeated: {', '.join(KINDS)}",
        action="append",
        choices=KINDS,
    )
    parser.option(
        "--limit N",
        f"most entries, the newest; default {_LIMIT}",
        positive_integer,
        default=_LIMIT,
    )
    parser.option("--runs PROGRAM", "the last runs of a program and their memory", task_argument)
    parser.json("print the entries as JSON")
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Read the history from the daemon, or from the journal without a daemon."""
    if args.since is not None and args.until is not None and args.since > args.until:
        raise UsageError("--since is later than --until; nothing can lie between.")
    kinds = ["run"] if args.runs else args.kind or list(KINDS)
    found = read_entries(
        since_unix_s=args.since,
        until_unix_s=args.until,
        task=args.runs or args.task,
        limit=args.limit,
        kinds=kinds,
        all_exits=kinds in (["exit"], ["run"]),
    )
    if args.runs is not None:
        out.result({"entries": found}, lambda: render_runs(found, out.columns, out.style))
        return EXIT_OK
    more = [f"Only the newest {args.limit}; more with --limit."] * (len(found) == args.limit)
    if kinds == ["exit"]:  # all deaths
        found = [each for each in found if each.get("cause") not in _NORMAL_ENDS]
    out.result({"entries": found}, lambda: [*render(found, out.columns, out.style), *more])
    return EXIT_OK


def read_entries(**filters: Any) -> list[Json]:
    """
    Return past events, newest first. Without a daemon read the journal and the guards' records.

    Args:
        filters: the arguments of `Journal.history`.

    Raises:
        DaemonNotRunning: neither a daemon nor a journal nor a guard's record exists.
    """
    source = HistorySource()
    found = source.history(**filters)
    if source.missing is None:
        return found or []
    merged = offline_status.merge_guard_entries(found or [], filters)
    if found is None and not merged:
        raise source.missing
    return merged


def render(
    entries: list[Json], columns: int | None = None, style: Style | None = None
) -> list[str]:
    """
    Return a line for each entry. A long text wraps within its own column.

    Args:
        entries: entries as the protocol's `history` returns them.
        columns: width of the terminal; None: no wrapping.
        style: colours and symbols.
    """
    if not entries:
        return ["Nothing has happened in that time. All that is known: watchdog history"]
    style = style or Style()
    names = [shorten(_task_name(entry), _NAME_COLUMNS, style.ellipsis) for entry in entries]
    name_columns = max(map(width, names))
    lines = []
    for entry, name in zip(entries, names, strict=True):
        kind = plain(entry.get("kind") or "?")
        when, text = format_timestamp(entry.get("unix_s")), describe(entry)
        left = f"{when}  {pad(kind, _KIND_COLUMNS)}  {pad(name, name_columns)}"
        painted = left.replace(kind, style.paint(kind, _STYLES.get(kind, "")), 1)
        if columns is not None and width(left) + 2 + _MIN_TEXT_COLUMNS > columns:
            lines += [painted.rstrip(), *wrap(text, columns, first="    ")]
            continue
        first, *rest = wrap(text, columns, first=left + "  ")
        lines += [painted + first[len(left) :], *rest]
    return lines


def render_runs(entries: list[Json], columns: int | None, style: Style) -> list[str]:
    """
    Return a line for each run and a chart of the newest.

    Args:
        entries: runs, the newest first.
        columns: width of the terminal; None: no wrapping.
        style: colours and symbols.
    """
    if not entries:
        return ["No run of that program is known. What else happened: watchdog history"]
    lines = render(entries, columns, style)
    run = entries[0]
    points = [[place * run["curve_s"], each * _MIB] for place, each in enumerate(run["curve"])]
    past = {
        "name": f"highest memory of {run.get('name')}",
        "points": [*points[:-1], [run["seconds"], run["peak_bytes"]]],
        "begin_unix_s": 0.0,
        "end_unix_s": run["seconds"],
        "resource": {"limit": run["limit_bytes"]},
    }
    return [*lines, "", *plot(past, columns, style)]


def describe(entry: Json) -> str:
    """Describe an entry in words, from the fields that its kind has."""
    text = plain(next((entry[key] for key in _TEXT_FIELDS if entry.get(key)), ""))
    describe_kind = _DESCRIPTIONS.get(str(entry.get("kind")))
    lead = describe_kind(entry) if describe_kind else ""
    return f"{lead}: {text}" if lead and text else lead or text or "no details"


def _describe_incident(entry: Json) -> str:
    label = plain(entry.get("label") or entry.get("resource") or "a limit")
    if Incident.read(entry).is_fault:
        peak = Level.from_stage(entry.get("peak")).fault.lower()
        over = "" if entry.get("closed_unix_s") is None else "over: "
        return f"{over}{label}, {peak}"
    if entry.get("closed_unix_s") is not None:
        return f"over: {label}, reached {plain(entry.get('peak') or '?')}"
    return f"{label} at {plain(entry.get('stage') or '?')}"


def _describe_decision(entry: Json) -> str:
    return f"{plain(entry.get('decision_kind') or '')}{_format_repetition(entry)}"


def _describe_outcome(entry: Json) -> str:
    what = plain(entry.get("decision_kind") or "")
    status = plain(entry.get("status") or "")
    seconds = number_or_none(entry.get("seconds"))
    took = "" if seconds is None else f" in {seconds:.2f} s"
    evidence = entry.get("evidence")
    title = evidence.get("title") if isinstance(evidence, dict) else None
    missed = "" if title is None else f': "{plain(title)}" was not shown'
    return f"{what} {status}{_format_repetition(entry)}{took}{missed}".strip()


def _format_repetition(entry: Json) -> str:
    """Describe how often a series of saves happened, and from when to when."""
    count = number_or_none(entry.get("count"))
    if count is None or count < 2:
        return ""
    first, last = entry.get("first_unix_s"), entry.get("last_unix_s")
    begin, end = format_timestamp(first), format_timestamp(last)
    same_day = begin[:10] == end[:10]
    since = f"{begin[11:] if same_day else begin}{_format_step(entry.get('first_step'))}"
    until = f"{end[11:] if same_day else end}{_format_step(entry.get('last_step'))}"
    newest = ", the last one" if entry.get("kind") == "outcome" else ""
    return f" {count:.0f} times, from {since} to {until}{newest}"


def _format_step(step: object) -> str:
    known = number_or_none(step)
    return "" if known is None else f" (step {known:.0f})"


def _describe_daemon(entry: Json) -> str:
    version = f" (watchdog {plain(entry['version'])})" if entry.get("version") else ""
    return f"{plain(entry.get('what') or '')}{version}"


_TEXT_FIELDS = ("text", "reason", "why", "detail", "message")
_DESCRIPTIONS = {
    "incident": _describe_incident,
    "decision": _describe_decision,
    "outcome": _describe_outcome,
    "daemon": _describe_daemon,
}


def _task_name(entry: Json) -> str:
    named = (each.name for each in Incident.read(entry).contributors[:1])
    return plain(entry.get("name") or next(named, None) or "-")
