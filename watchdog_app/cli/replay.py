"""
Play a recorded series through the daemon's forecast and policy, and print what it would have
done and when. TRACE is a CSV file (plain or gzipped) with t, used and limit, in seconds and
bytes, or a page of watchdog report. --task plays a task's past from the journal; --jsonl
answers JSON lines one by one. Your configuration is in force; --set tries another value.

examples:
  watchdog replay leak.csv.gz --caution high --set stages.warn_s=300
  watchdog replay --task train.ipynb --since 2h
  my_sampler | watchdog replay --jsonl - --alarm-stage save

A line in is {"t": s, "used": bytes, "limit": bytes}; the line out is {"eta_s", "low_s",
"high_s", "alarm", "stage", "regime"}, times in seconds or null.

exit codes: 0 played, 1 failure (with --jsonl: some lines were no samples), 2 usage
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from watchdog_app import config
from watchdog_app.base.errors import EXIT_FAILURE, EXIT_OK, ConfigError, UsageError
from watchdog_app.base.text.terminal import plain, wrap
from watchdog_app.cli.config import warn_of_old_key
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args, Parser, duration, task_argument, timestamp
from watchdog_app.core.model.decisions import SaveCost, Stage
from watchdog_app.core.model.settings import SETTINGS, Settings
from watchdog_app.core.replay.play import USUAL_COSTS, Played, answer_lines, as_dict, as_lines, play
from watchdog_app.core.replay.trace import Trace, from_series, read
from watchdog_app.history.past import HistorySource

_STAGES = ("warn", "save", "rescue")  # "rescue" is the former name of "save"
_CAUTIONS = ("low", "normal", "high")
_MAX_POINTS = 10_000
_MAX_ENTRIES = 1000
_TEXT_INDENT = 27  # columns of the time and the stage before the text
_UNTIMED_INDENT = 11  # leading blanks of a line without a time


def add_arguments(parser: Parser) -> None:
    """Add the options of the command."""
    parser.positional("TRACE", "CSV file; - is stdin", nargs="?")
    parser.option("--jsonl FILE", "answer JSON lines instead; - is stdin")
    parser.option("--task TASK", "play this task's past from the journal", task_argument)
    parser.option("--since WHEN", "with --task: 2h or 14:30", timestamp)
    parser.option("--until WHEN", "as --since", timestamp)
    parser.option(
        "--alarm-stage STAGE",
        "what counts as the alarm: warn (default), or save, the silent checkpoint",
        choices=_STAGES,
        default="warn",
    )
    parser.option("--caution LEVEL", "low, normal or high", choices=_CAUTIONS)
    parser.option(
        "--set KEY=VALUE",
        "try a setting, e.g. stages.warn_s=60; may be repeated",
        action="append",
        default=[],
    )
    parser.option("--config FILE", "instead of your own configuration")
    parser.option(
        "--save-time TIME",
        "what a checkpoint is assumed to take, e.g. 500ms; default 2s",
        duration,
    )
    parser.option("--step-time TIME", "the same of a step; default 200ms", duration)
    parser.flag("--no-agent", "as if the task had no agent")
    parser.json("print what happened as JSON")


def run(args: Args, out: Output) -> int:
    """Play the trace, the task's past or the JSON lines."""
    if sum(value is not None for value in (args.trace, args.jsonl, args.task)) != 1:
        raise UsageError("Give one of TRACE, --task and --jsonl. More: watchdog replay --help")
    settings = _load_settings(args)
    if args.jsonl is not None:
        return _replay_json_lines(args, settings)
    traces = [read(args.trace)] if args.task is None else _read_task_traces(args)
    costs = _assumed_costs(args)
    if args.task is not None and costs is None and not args.no_agent and not args.json:
        told = (
            f"The journal knows of no agent in {plain(args.task)}: played as without one. "
            "--save-time plays it as with one."
        )
        out.lines(*wrap(told, out.columns))
    with out.progress("playing"):
        every = [play(trace, settings, costs) for trace in traces]
    if args.json:
        out.json({"traces": [as_dict(each) for each in every]})
        return EXIT_OK
    for played in every:
        _print_replay(played, out)
    return EXIT_OK


def _load_settings(args: Args) -> Settings:
    env = dict(os.environ)
    given: dict[str, str] = {}
    assignments = list(args.set)
    if args.caution is not None:
        assignments.append(f"watch.caution={args.caution}")
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or key not in SETTINGS:
            raise UsageError(
                f"--set takes KEY=VALUE with a key that `watchdog config` lists; {plain(text)!r} "
                "is none."
            )
        # The environment overrides the file, and its values get the same checks.
        name = config.env_name(key)
        env[name], given[name] = value, text
    try:
        settings, _ = config.load(
            args.config, env, required=args.config is not None, warn=warn_of_old_key
        )
    except ConfigError as error:
        message = str(error)
        for name, text in given.items():
            message = message.replace(f"environment variable {name}", f"--set {plain(text)}")
        raise ConfigError(message) from error
    return settings


def _replay_json_lines(args: Args, settings: Settings) -> int:
    stage = Stage.WARN if args.alarm_stage == "warn" else Stage.SAVE
    costs = SaveCost(args.save_time, args.step_time)
    if args.jsonl == "-":
        if sys.stdin is None:
            raise UsageError("Standard input is closed; there are no lines to answer.")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # invalid bytes make one bad line, not an error
        bad = answer_lines(sys.stdin, sys.stdout, settings, stage, costs)
    else:
        try:
            with open(args.jsonl, encoding="utf-8", errors="replace") as lines:
                bad = answer_lines(lines, sys.stdout, settings, stage, costs)
        except BrokenPipeError:
            raise  # standard output was closed by its reader; not an error of the input file
        except OSError as error:
            raise UsageError(
                f"The lines of {args.jsonl} cannot be read: {error.strerror or error}."
            ) from error
    return EXIT_FAILURE if bad else EXIT_OK


def _read_task_traces(args: Args) -> list[Trace]:
    series = _query_history(
        "series",
        task=args.task,
        since_unix_s=args.since,
        until_unix_s=args.until,
        limit=_MAX_POINTS,
    )
    own = next((one for one in series if one["kind"] == "task"), {})
    # The journal records no limit of the task's own memory, only those of resources.
    traces = [from_series(one, own) for one in series if one["kind"] != "task"]
    found = [trace for trace in traces if trace is not None]
    if not found:
        raise UsageError(
            f"The journal holds no series of {args.task!r}"
            f"{' in that time' if args.since or args.until else ''}. It writes down what ran "
            "for some seconds under the daemon; watchdog history lists what it knows."
        )
    return found


def _had_agent(task: str) -> bool:
    """
    Return whether the journal has a checkpoint request to the task's agent, or a rescue of it.
    """
    found = _query_history(
        "history", task=task, limit=_MAX_ENTRIES, kinds=["decision", "outcome", "exit"]
    )
    return any(
        entry.get("decision_kind") == "checkpoint" or entry.get("rescue") is not None
        for entry in found
    )


def _query_history(method: str, **filters: Any) -> list[dict[str, Any]]:
    """Ask the daemon for the past; without a daemon read the journal."""
    source = HistorySource()
    found = (source.series if method == "series" else source.history)(**filters)
    if found is None and source.missing is not None:
        raise source.missing
    return found or []


def _assumed_costs(args: Args) -> SaveCost | None:
    if args.no_agent:
        return None
    assumed = args.save_time is not None or args.step_time is not None
    if args.task is not None and not assumed and not _had_agent(args.task):
        return None
    return SaveCost(
        USUAL_COSTS.save_s if args.save_time is None else args.save_time,
        USUAL_COSTS.step_s if args.step_time is None else args.step_time,
    )


def _print_replay(played: Played, out: Output) -> None:
    head, *rest = as_lines(played)
    out.lines(*wrap(plain(head), out.columns))
    for line in map(plain, rest):
        blank = len(line) - len(line.lstrip())
        at = _TEXT_INDENT if 0 < blank < _UNTIMED_INDENT else blank
        out.lines(*wrap(line[at:], out.columns, line[:at], " " * at))
    out.lines("")
