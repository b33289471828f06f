"""Messages of a guard on its program's terminal: what happened, what it means, what to do."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from watchdog_app.base.text.plain import line_start
from watchdog_app.base.text.quantities import (
    AUTOMATIC_LIMIT,
    format_bytes,
    guard_level,
    limit_above,
)
from watchdog_app.guard.record import ASKED_BY_PERSON, TIME_IS_OVER, CopiedRescue, GuardRecord

_WRITE_WAIT_MS = 200
_MOST_BYTES = 4000  # per write into a pipe: less than its smallest buffer
_NEAR_SHARE = 0.9  # of the limit
_PIDFD_GETFD = 438  # the same number on every architecture


def start_line(record: GuardRecord) -> str:
    """One line at the start: which guard, and what it does."""
    return (
        f"watchdog: guard: limit {format_bytes(record.limit_bytes)}"
        f"{f' ({AUTOMATIC_LIMIT})' if record.follows_machine else ''}, "
        f"reserve {format_bytes(record.reserve_bytes)}, {record.kind}"
    )


_REPORTS = {
    "stopped": "{who} reached its memory limit of {limit} and was stopped there: it loses "
    "nothing. {saved}\n{choices}",
    "copying": "{who} is stopped for a moment, near its memory limit of {limit}, while its guard "
    "saves what can be saved.",
    "refusing": "{who} reached its memory limit of {limit}. {saved} From here on further "
    "memory is refused: the program gets a MemoryError, or a library in it aborts.\n"
    "Give it more:  watchdog limit {pid} {next}\n"
    "If it ends:    {again}",
    "unlimited": "{who} continues without a memory limit of its own. {saved} "
    "The next limit is the machine's, at about {limit}, and that one kills.",
    "ending": "{who} is ended{where}. {saved}{higher}",
}


def report(record: GuardRecord) -> str:
    """What has happened to a guard, by its state; several lines."""
    prompt = "" if record.notebook else " Where a shell shows its prompt, fg brings it back."
    again = _restart_command(record)
    return _REPORTS.get(record.state, "{who} continues; its limit is {limit}.{prompt}").format(
        who=f"{_plain(record.name)} (pid {record.pid})",
        pid=record.pid,
        limit=format_bytes(record.limit_bytes),
        saved=rescue_text(record),
        choices=choices(record),
        next=next_limit(record),
        again=again,
        where=_end_reason(record),
        higher=f"\nStart it again with a higher one: {again}" if was_full(record) else "",
        prompt=prompt,
    )


def choices(record: GuardRecord) -> str:
    """The commands that resume or end a stopped guard, one per line."""
    lines = [
        f"Resume it:     watchdog limit {record.pid} {next_limit(record)}",
        f"With no limit: watchdog limit {record.pid} --go-on   (the kernel may kill it then)",
        f"End it:        watchdog limit {record.pid} --end",
    ]
    if record.notebook:
        lines.append("End the cell:  interrupt the kernel   (its variables stay)")
    else:
        lines.append("Type it in another terminal, or here where the shell shows its prompt.")
    if record.follows_machine:
        lines.append("Or end something else: it continues once there is room.")
    return "\n".join(lines)


def cause_of_end(record: GuardRecord) -> str | None:
    """Why the guard ended its program, to follow the program's name; None: it did not."""
    if record.state != "ending":
        return None
    return f"ended by its guard{_end_reason(record)}"


def was_full(record: GuardRecord) -> bool:
    """Whether the guard ended at its limit; a user may have ended it far below."""
    near = record.used_bytes >= _NEAR_SHARE * record.limit_bytes
    # The usage is read again while the program ends, and may be small by then.
    kinds = [each.kind for each in record.events]
    before = [kind for kind in kinds if kind in ("stopped", "running", "unlimited")]
    stopped = before[-1:] == ["stopped"]
    return near or stopped or record.because not in (ASKED_BY_PERSON, TIME_IS_OVER)


def _end_reason(record: GuardRecord) -> str:
    """The limit at which the guard ends its program, and the reason."""
    limit = (
        f" at its memory limit of {format_bytes(record.limit_bytes)}" if was_full(record) else ""
    )
    return f"{limit}: {_plain(record.because)}" if record.because else limit


def stopped_at_end(record: GuardRecord) -> str | None:
    """That it was stopped at its limit when it ended, to follow "ended"; None: it was not."""
    if record.state not in ("stopped", "exiting"):
        return None
    who = "it was interrupted while " if record.state == "exiting" else ""
    since = "after " if who else "while "
    return f"{since}{who}it was stopped at its memory limit of {format_bytes(record.limit_bytes)}"


def past_summary(record: GuardRecord) -> str:
    """A summary of a guard that has ended, in a sentence or two; empty if nothing happened."""
    who = f"{_plain(record.name)} (pid {record.pid})"
    kinds = [each.kind for each in record.events]
    limit = format_bytes(record.limit_bytes)
    if record.state == "ending":
        text = f"{who} was {cause_of_end(record)}."
    elif record.state in ("stopped", "exiting"):
        text = f"{who} ended {stopped_at_end(record)}."
    elif record.state == "unlimited":
        text = f"{who} reached its memory limit, continued without one, and has ended."
    elif "refusing" in kinds:
        text = f"{who} reached its memory limit of {limit}, was refused more memory, and ended."
    elif "limit" in kinds:
        text = f"{who} reached its memory limit, continued, and has ended since."
    elif record.rescues and _can_resume(record.rescues[-1].path):  # killed below its limit
        return (
            f"{who} ended before its training was complete. {_last_save(record.rescues[-1])} "
            "Start it again with the same command: it resumes from its rescue, or says how or why "
            "not."
        )
    else:
        return ""
    if record.rescues and _is_finished(record.rescues[-1].path):
        return f"{text} It was run again since, resumed from its rescue and ended well."
    again = ""
    if ended_at_limit(record):
        again = f" Start it again with a higher one: {_restart_command(record)}"
    return f"{text} {rescue_text(record)}{again}"


def ended_at_limit(record: GuardRecord) -> bool:
    """Whether the program of a past guard ended because of its limit."""
    refused = any(each.kind == "refusing" for each in record.events)
    acted = record.state != "running" or refused
    return record.state != "unlimited" and acted and was_full(record)


def describe_ended(record: GuardRecord, ago: str) -> str:
    """
    For `watchdog limit`: that the program has ended, and the command that starts it again.

    Args:
        record: a past guard.
        ago: time since its end, as text for people.
    """
    full = ended_at_limit(record)
    where = f" at its limit of {format_bytes(record.limit_bytes)}" if full else ""
    more, limit = (" with more", next_limit(record)) if full else ("", "...")
    return (
        f"{_plain(record.name)} (pid {record.pid}) ended {ago} ago{where}. "
        f"Start it again{more}: {start_command(record, limit)}"
    )


def explanation(record: GuardRecord) -> str:
    """For `watchdog explain`: which guard, how full, and what its state means."""
    level = guard_level(record, automatic=record.follows_machine)
    text = (
        f"It runs under a guard ({record.kind}): {level}. At that limit it is stopped and not "
        "killed; the reserve is for saving."
    )
    return text if record.state == "running" else f"{text}\n{report(record)}"


def rescue_text(record: GuardRecord) -> str:
    """Whether the work was saved: the one answer of the terminal, `explain` and the daemon."""
    newest = record.rescues[-1] if record.rescues else None
    if newest is not None and record.agents and record.saved:
        failed = record.agents - record.saved
        others = f" ({failed} of {record.agents} trainings could not be saved.)" if failed else ""
        return f"Its work is saved: {_place(newest)}.{others}{_missing(newest)}"
    old = f" {_last_save(newest)}" if newest is not None else ""
    lost = (
        f" If it is ended now, its work {'may be' if record.agents else 'is'} lost."
        if record.state == "stopped" and newest is None
        else ""
    )
    if not record.agents:
        seen = newest is not None or record.seen
        none = "runs in it now" if seen else "that can be saved was seen in it"
        return f"{'No' if old else 'Nothing of it was saved: no'} training {none}.{old}{lost}"
    reasons = dict.fromkeys(_plain(each) for each in (record.because, record.trouble) if each)
    if record.state == "ending":  # the text contains the reason already
        reasons.pop(_plain(record.because), None)
    because = "; ".join(reasons)
    # At its end its agent may still save.
    return f"Its guard could not save its work{': ' if because else ''}{because}.{old}{lost}"


def _can_resume(path: str) -> bool:
    return os.path.isdir(path) and not _is_finished(path)


def _is_finished(path: str) -> bool:
    from watchdog_app.rescue.checkpoint import names

    return names.is_finished(path)


def _last_save(rescue: CopiedRescue) -> str:
    return f"What was saved before is of {_place(rescue)}.{_missing(rescue)}"


def _place(rescue: CopiedRescue) -> str:
    return f"step {rescue.step}, {_plain(rescue.path)}"


def _missing(rescue: CopiedRescue) -> str:
    """What a resume will not restore, as a sentence after a space; empty: nothing is missing."""
    lacks = "; ".join(map(_plain, rescue.missing))
    return f" A resume will not bring back: {lacks}." if lacks else ""


def _restart_command(record: GuardRecord) -> str:
    command = start_command(record, next_limit(record))
    if _is_kernel(record):
        then = "; watchdog.resume() in it resumes its training" if record.rescues else ""
        return f"{command}   (then shut the kernel down and start it again{then})"
    return (
        f"{command}   (it resumes from its rescue, or says how or why not)"
        if record.rescues
        else command
    )


def _is_kernel(record: GuardRecord) -> bool:
    """Whether a Jupyter server started it: its command cannot be typed again."""
    return record.notebook and "ipykernel" in record.command


def start_command(record: GuardRecord, limit: str) -> str:
    """The command that starts the program of a guard with a limit."""
    if _is_kernel(record):
        return f"watchdog exec --kernel --limit {limit}"
    known = record.command and record.command.isprintable()
    return f"watchdog exec --limit {limit} -- {record.command if known else '...'}"


def next_limit(record: GuardRecord) -> str:
    """The limit with which it can resume: above the present one, and above its usage."""
    return limit_above(record.limit_bytes, record.used_bytes)


def _plain(text: str) -> str:
    from watchdog_app.base.text.plain import clean

    return clean(text, 1000)


def write_to_terminal(pid: int, text: str) -> None:
    """Write lines to the program's stderr; never waits for a reader."""
    lines = "".join(f"watchdog: {line}\n" for line in text.split("\n"))
    data = lines.encode("utf-8", "replace")[:_MOST_BYTES]
    fd = _error_stream(pid)
    if fd is None:
        return
    data = line_start(fd).encode() + data
    with suppress(OSError):
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        if poll.poll(_WRITE_WAIT_MS):
            os.write(fd, data)
    os.close(fd)


def _error_stream(pid: int) -> int | None:
    """The program's own stderr: its open file if the kernel gives access, else its path."""
    if sys.platform == "linux":
        with suppress(OSError, ImportError, AttributeError):
            import ctypes

            handle = os.pidfd_open(pid)
            try:
                fd = int(ctypes.CDLL(None).syscall(_PIDFD_GETFD, handle, 2, 0))
            finally:
                os.close(handle)
            if fd >= 0:
                return fd
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(f"/proc/{pid}/fd/2", flags)
    return None
