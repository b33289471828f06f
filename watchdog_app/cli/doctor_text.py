"""A doctor's report as text. Pure."""

from __future__ import annotations

from watchdog_app.base.text.terminal import counted, pad, plain, wrap
from watchdog_app.doctor.finding import Severity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.base.text.terminal import Style
    from watchdog_app.doctor.finding import Finding, Report

_TITLES = {
    "driver": "GPU and driver",
    "framework": "Frameworks",
    "memory": "Memory and its limits",
    "storage": "Disks and shared memory",
    "power": "Power and heat",
    "desktop": "Desktop",
    "watchdog": "watchdog itself",
}
_COLORS = {Severity.ERROR: "alarm", Severity.WARNING: "yellow", Severity.INFO: "cyan",
           Severity.OK: "green"}  # fmt: skip
_WORDS = {Severity.ERROR: "!! error", Severity.WARNING: " ! warning", Severity.INFO: " - note",
          Severity.OK: "   ok"}  # fmt: skip
_INDENT = 12
_WIDE = 100  # longer lines are hard to read


def render(report: Report, columns: int | None, style: Style, verbose: bool) -> list[str]:
    """
    The report in lines.

    Args:
        report: as the doctor gives it.
        columns: of the terminal; None: a pipe or a file.
        style: colours and symbols.
        verbose: show what is fine, and all details.
    """
    room = min(columns or _WIDE, _WIDE)
    lines = [style.paint(line, _verdict_color(report)) for line in wrap(_verdict(report), room)]
    fine = 0
    for group in report.groups:
        found = [one for one in report.findings if one.group == group]
        shown = [one for one in found if verbose or one.severity is not Severity.OK]
        fine += len(found) - len(shown)
        if not shown:
            continue
        lines += ["", style.paint(_TITLES.get(group, group), "bold")]
        for one in shown:
            lines += _finding(one, room, style, verbose)
    if fine:
        lines += ["", f"{counted(fine, 'answer')} without anything to do; --verbose shows them."]
    return lines


def _verdict(report: Report) -> str:
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    parts = [
        counted(number, word)
        for number, word in ((errors, "error"), (warnings, "warning"),
                             (report.count(Severity.INFO), "note"))
        if number
    ]  # fmt: skip
    told = ", ".join(parts) or "nothing to mend"
    if errors:
        return f"watchdog doctor: {told}. Trainings fail or lose work until the errors are mended."
    if warnings:
        return f"watchdog doctor: {told}. No error; what is warned of can end a training."
    return f"watchdog doctor: {told}. Nothing was found that ends trainings."


def _verdict_color(report: Report) -> str:
    if report.count(Severity.ERROR):
        return "alarm"
    return "yellow" if report.count(Severity.WARNING) else "green"


def _finding(one: Finding, room: int, style: Style, verbose: bool) -> list[str]:
    word = pad(_WORDS[one.severity], _INDENT)
    blank = " " * _INDENT
    first, *rest = wrap(plain(one.what), room, first=word, rest=blank)
    lines = [
        style.paint(first[: len(word.rstrip())], _COLORS[one.severity])
        + first[len(word.rstrip()) :],
        *rest,
    ]
    if one.severity is Severity.OK and not verbose:
        return lines
    if one.why:
        lines += wrap(plain(one.why), room, first=f"{blank}Why: ", rest=f"{blank}     ")
    if one.remedy or one.commands:
        remedy = plain(one.remedy) or "Run:"
        lines += wrap(remedy, room, first=f"{blank}Do:  ", rest=f"{blank}     ")
    # Never folded: a command is copied as it stands.
    lines += [style.paint(f"{blank}       {plain(command)}", "bold") for command in one.commands]
    if verbose or one.severity in (Severity.ERROR, Severity.WARNING):
        for detail in one.details:
            folded = wrap(plain(detail), room, first=f"{blank}     | ", rest=f"{blank}     | ")
            lines += [style.paint(line, "dim") for line in folded]
    return lines
