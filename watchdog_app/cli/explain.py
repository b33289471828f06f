"""
Explain why a notebook, kernel or script died: the cause, its evidence and certainty, what used
the memory, a plot of the last minutes, what was saved, and how to continue. Without TASK it
shows the last death of the past hours and what watchdog sees now. A running TASK can be
named too. Works without a daemon, from the journal.

examples:
  watchdog explain                     the last death, and the machine now
  watchdog explain train.ipynb
  watchdog explain 4242 --minutes 60   by pid, with the last hour drawn

All that died, newest first: watchdog history --kind exit

exit codes: 0 answered, 1 failure or no such task, 2 usage, 3 daemon not running and no journal
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from typing import Any

from watchdog_app.base.errors import (
    EXIT_OK,
    NOT_FOUND,
    DaemonNotRunning,
    TaskNotFound,
    UsageError,
    WatchdogError,
)
from watchdog_app.base.text.quantities import moment, number_or_none, parse_pid
from watchdog_app.base.text.terminal import Style, plain, plain_block, wrap
from watchdog_app.cli import history, offline_status
from watchdog_app.cli.dispatch import COMMANDS
from watchdog_app.cli.output import Output, type_program, wrap_lines
from watchdog_app.cli.parser import Args, Parser, positive_integer
from watchdog_app.cli.plot import plot
from watchdog_app.client.client import find_status
from watchdog_app.core.model.levels import Level
from watchdog_app.history.past import HistorySource, describe_end
from watchdog_app.rescue.checkpoint import names
from watchdog_app.rescue.checkpoint.inventory import Found, examine
from watchdog_app.rescue.checkpoint.names import RescueName

Json = dict[str, Any]


_KERNEL_LOG = "What the kernel killed for memory: sudo dmesg -T | grep -i 'killed process'"
_MAX_ENTRIES = 20
_DEFAULT_MINUTES = 10.0
_MAX_MINUTES = 1440.0
_BEFORE_S, _AFTER_S = 30.0, 5.0
_JOURNALCTL_TIMEOUT_S = 5.0
_MAX_LINES = 4
_MAX_BYTES = 1 << 20
_MAX_LINE_CHARS = 240


def add_arguments(parser: Parser) -> None:
    """Add the optional task and the options of the display."""
    parser.task("pid, notebook, script, path, kernel id or incident; dead or alive", optional=True)
    parser.option(
        "--minutes N",
        f"of the plot, before the end; default {_DEFAULT_MINUTES:.0f}, at most {_MAX_MINUTES:.0f}",
        positive_integer,
    )
    parser.json("print everything as JSON, no plot")
    parser.color_option()


def run(args: Args, out: Output) -> int:
    """Print the explanation of a task or of the machine."""
    if args.minutes is not None and args.minutes > _MAX_MINUTES:
        raise UsageError(f"--minutes is at most {_MAX_MINUTES:.0f}, a day.")
    source = HistorySource()
    minutes = None if args.minutes is None else float(args.minutes)
    entries: list[Json] | None = None
    result, unknown = None, None
    try:
        with out.progress("asking for the past"):
            result = source.explain(args.task, minutes)
    except TaskNotFound as error:
        if source.missing is None:
            raise _unknown_task(args.task, error) from error
        unknown = error
    if source.missing is not None:
        result = _add_guards(args.task, result, unknown or source.missing)
    elif result is not None and not args.json and result.get("text") != result.get("death_text"):
        # Prefer the pid to the name: part of a name can match several tasks.
        entries = history.read_entries(
            task=str(result.get("pid") or args.task or "") or None,
            limit=_MAX_ENTRIES,
            kinds=["decision", "outcome", "exit"],
        )
    result = result or {}
    if not args.json:
        texts = {key: result[key] for key in ("text", "death_text") if result.get(key)}
        result = {**result, **{key: _type_commands(text) for key, text in texts.items()}}
    urgent = args.task is None and any(
        Level.from_json(one) >= Level.WARNING for one in result.get("incidents") or ()
    )
    out.result(result, lambda: _report_lines(result, entries, out, urgent))
    return EXIT_OK


def _type_commands(text: str) -> str:
    """Return a text of the daemon with its `watchdog` commands as they are typed in this shell."""
    typed = type_program("watchdog")
    pattern = rf"(?<![\w./-])watchdog (?=(?:{'|'.join(COMMANDS)})\b)"
    return re.sub(pattern, lambda _: f"{typed} ", text)


def _unknown_task(task: str, error: TaskNotFound) -> TaskNotFound:
    """Return the error with the time since which the daemon can know of an end."""
    if error.code != NOT_FOUND:
        return error
    message = str(error)
    if parse_pid(task) is None:
        message = f"No task called {task!r} runs, and the history knows no end of one."
    status = find_status()
    measured = None if status is None else status.daemon
    if measured is not None and measured.uptime_s is not None:
        since = moment(time.time() - measured.uptime_s)
        message += f" Watched since {since}; an earlier end is known only if a daemon ran then."
        message += f" {_KERNEL_LOG}"
    return TaskNotFound(message, error.code, error.candidates)


def _report_lines(
    result: Json, entries: list[Json] | None, out: Output, urgent: bool = False
) -> list[str]:
    """
    Return the lines of the report: the death, then what watchdog sees now.

    Args:
        result: the answer to `explain`.
        entries: entries of the journal; None: only the death is reported.
        out: for the width and the colours.
        urgent: a warning is open: what watchdog sees now comes first, and the death in one line.
    """
    columns, shown = out.columns, out.style
    if urgent and result.get("death_text"):
        now = _render_now(result["text"], entries or [], columns, shown)
        return [*now, "", *wrap_lines(f"Last death: {describe_end(result['death'])}", columns)]
    lines: list[str] = []
    for guard_text in result.get("guards") or ():
        lines += [*wrap_lines(guard_text, columns), ""]
    if result.get("death_text"):
        drawn = plot(result.get("plot") or {}, columns, shown)
        saved = describe_rescue(result.get("death") or {})
        more = log_lines(result.get("death") or {})
        lines += render_death(result["death_text"], drawn, saved, columns, shown, more=more)
    if result.get("text") is None:
        return [
            *lines,
            *[""] * bool(lines and lines[-1]),
            *["The journal knows of no death."] * (not lines),
            "No daemon runs: nothing is watched now. Start it: watchdog start",
        ]
    if entries is not None:
        if lines:
            lines += ["", shown.paint("Now:", "bold")]
        lines += _render_now(result["text"], entries, columns, shown)
    return lines


def _add_guards(task: str | None, found: Json | None, error: WatchdogError) -> Json:
    """Add the guards' records to the journal's answer; raise `error` if there is neither."""
    died = ((found or {}).get("death") or {}).get("unix_s")
    guards = offline_status.explain_guards(task, died if isinstance(died, int | float) else 0.0)
    if found is None and not guards:
        if isinstance(error, DaemonNotRunning):
            raise DaemonNotRunning(f"{error}\nNothing is recorded yet. {_KERNEL_LOG}") from error
        raise error
    return {"text": None, "incidents": [], **(found or {}), "guards": guards}


def _render_now(text: str, entries: list[Json], columns: int | None, style: Style) -> list[str]:
    """Return the daemon's explanation, and below it entries of the journal, newest first."""
    past = history.render(entries, columns, style) if entries else ["Nothing yet."]
    heading = style.paint("What was decided, and what came of it:", "bold")
    return [*wrap_lines(text, columns), "", heading, *past]


def render_death(
    text: str,
    plot: list[str],
    saved: str | None,
    columns: int | None,
    style: Style,
    *,
    more: list[str] | None = None,
) -> list[str]:
    """
    Return the lines of one death: the cause, then the plot, then the rest of the explanation.

    Args:
        text: the explanation, in paragraphs separated by blank lines.
        plot: lines of the plot; empty: no plot.
        saved: sentence on the current state of the rescue.
        columns: width of the terminal; None: no wrapping.
        style: colours and symbols.
        more: lines of evidence that this command found, in addition to the daemon's.
    """
    lines: list[str] = []
    for number, part in enumerate(plain_block(text).strip().split("\n\n")):
        head, *rest = part.split("\n")
        first = wrap_lines(head, columns)
        color = "bold" if number == 0 or head.endswith(":") else ""
        lines += [""] * bool(number) + [style.paint(line, color) for line in first]
        if head == "How we know:":
            rest = [*(more or []), *rest]
        for line in rest:
            lines += [_style_certainty(each, style) for each in wrap_lines(line, columns)]
        if head.startswith("What was saved: ") and saved is not None:
            lines += wrap(saved, columns)
        if number == 0 and plot:
            lines += ["", *plot]
    return lines


def _style_certainty(line: str, style: Style) -> str:
    """Make the certainty at the start of a line bold, or dim if nothing is known."""
    for word, color in (("exact", "bold"), ("most likely", "bold"), ("unknown", "dim")):
        mark = f"[{word}]"
        if line.startswith(f"  {mark}"):
            return line.replace(mark, style.paint(mark, color), 1)
    return line


def log_lines(death: dict[str, Any]) -> list[str]:
    """
    Return further lines for "How we know", from the system's journal.

    `kernel.dmesg_restrict` keeps /dev/kmsg from ordinary users on most distributions. Members of
    the groups adm and systemd-journal can read the same lines with journalctl, also days later. At
    the end itself the daemon has asked for the lines of earlyoom, nohang and systemd-oomd.

    Returns:
        The lines; empty if the daemon could read the kernel log, or if this user cannot read the
        journal.
    """
    pid = death.get("worker") or death.get("pid")
    at = number_or_none(death.get("unix_s"))
    evidence = death.get("evidence")
    missing = any(
        isinstance(each, dict) and each.get("source") == "kernel" and each["certainty"] == "unknown"
        for each in (evidence if isinstance(evidence, list) else [])
    )
    if not missing or at is None or not isinstance(pid, int):
        return []
    from watchdog_app.machine.sensors.kernel_events import parse

    found = [
        f"  [exact] The system's journal says: {plain(line[:_MAX_LINE_CHARS])}"
        for line in _read_kernel_journal(at - _BEFORE_S, at + _AFTER_S)
        if (event := parse(line, 0.0)) is not None and event.pid == pid
    ]
    return list(dict.fromkeys(found))[:_MAX_LINES]


def _read_kernel_journal(begin_unix_s: float, end_unix_s: float) -> list[str]:
    command = shutil.which("journalctl")
    if command is None:
        return []
    arguments = [command, "--no-pager", "-q", "-o", "cat", "-n", "2000"]
    arguments += [f"--since=@{begin_unix_s:.0f}", f"--until=@{end_unix_s:.0f}", "_TRANSPORT=kernel"]
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_JOURNALCTL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace").splitlines()


def describe_rescue(death: dict[str, Any]) -> str | None:
    """Describe in one sentence the current state of a death's rescue; None: nothing to say."""
    rescue = death.get("rescue")
    path = rescue.get("path") if isinstance(rescue, dict) else None
    unreported = _find_unreported_rescue(death, path)
    if unreported is not None:
        return (
            f"It saved step {unreported.name.step} right before its end and could not report it: "
            f"{plain(unreported.path)}"
        )
    if not isinstance(path, str):
        return None
    name = RescueName.parse(os.path.basename(path))
    found = None if name is None else examine(path, name)
    if found is None:
        return (
            "The rescue is not there any more: a newer one may have taken its place. "
            "See: watchdog rescues"
        )
    if found.condition != "complete":
        return f"The rescue is {found.condition}: {plain(found.problem or 'why is not known')}."
    return (
        "The rescue is complete. Its checksums are compared when it is loaded, or now: "
        f"watchdog rescues verify {plain(path)}"
    )


def _find_unreported_rescue(death: dict[str, Any], reported: Any) -> Found | None:
    """
    Find a complete rescue of the dead process that is newer than the last one its agent reported.
    """
    agent = death.get("agent")
    directory = agent.get("directory") if isinstance(agent, dict) else None
    if not isinstance(directory, str):
        return None
    process = f"{death.get('pid')}.{death.get('start_time')}."
    for name in reversed(names.complete_rescues(directory)):
        path = os.path.join(directory, str(name))
        if path == reported:
            break
        if name.owner_text.startswith(process):
            found = examine(path, name)
            return found if found is not None and found.condition == "complete" else None
    return None
