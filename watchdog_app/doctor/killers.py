"""Daemons that end processes when memory is short, and what they will do to a training."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine
from watchdog_app.doctor.machine import Process

_LOGIND = ("/etc/systemd/logind.conf", "/usr/lib/systemd/logind.conf")


def check(facts: Facts) -> Iterator[Finding]:
    """Each that runs; and logind, which can end trainings at log-out."""
    found = False
    for process in facts.processes():
        if process.name == "earlyoom":
            found = True
            yield _earlyoom(process)
        elif process.name.startswith("nohang"):
            found = True
            yield Finding(
                "memory.nohang",
                Severity.INFO,
                "nohang runs: it ends the process with the highest score when memory is nearly "
                "gone.",
                "That is mostly the training. watchdog saves before, where a save takes less "
                "time than is left.",
                "Its thresholds are in /etc/nohang/nohang.conf.",
                ("grep -n threshold /etc/nohang/*.conf",),
            )
        elif process.name == "systemd-oomd":
            found = True
            yield Finding(
                "memory.systemd-oomd",
                Severity.INFO,
                "systemd-oomd runs: under memory pressure or with swap nearly full it ends a whole "
                "group at once.",
                "A terminal window with all that was started in it is one such group, a tmux with "
                "every training too.",
                "Start a long training in a group of its own; that also bounds it.",
                ("systemd-run --user --scope python train.py", "oomctl"),
            )
    if not found:
        yield fine("memory.killers", "No other daemon ends processes when memory is short.")
    yield from _log_out(facts)


def _earlyoom(process: Process) -> Finding:
    words = process.argv[1:]
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals:
            options[name] = value
        elif word.startswith("-") and index + 1 < len(words):
            options[word] = words[index + 1]
    memory = options.get("-m", "10").partition(",")[0]
    swap = options.get("-s", "10").partition(",")[0]
    prefer = options.get("--prefer", "")
    aimed = bool(prefer) and _matches(prefer, "python3")
    spared = _matches(options.get("--avoid", ""), "python3")
    return Finding(
        "memory.earlyoom",
        Severity.WARNING if aimed else Severity.INFO,
        f"earlyoom runs: below {memory} % of RAM and {swap} % of swap it ends "
        + (
            "Python processes first (--prefer)."
            if aimed
            else "the largest process" + (", Python last (--avoid)." if spared else ".")
        ),
        "That is the training, on a machine that trains. watchdog saves before, where a save "
        "takes less time than is left.",
        "Do not let it prefer Python." if aimed else "Keep it as a last line; nothing to do.",
        ("sudo systemctl edit earlyoom",) if aimed else (),
        (f"command line: {' '.join(process.argv)}",),
    )


def _matches(pattern: str, name: str) -> bool:
    try:
        return bool(pattern) and re.search(pattern, name) is not None
    except re.error:
        return False


def _log_out(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    files = [*_LOGIND] + [
        f"/etc/systemd/logind.conf.d/{name}" for name in machine.names("/etc/systemd/logind.conf.d")
    ]
    value = ""
    for path in files:
        for line in (machine.read(path) or "").splitlines():
            key, _, word = line.partition("=")
            if key.strip() == "KillUserProcesses":
                value = word.strip().lower()
    if value in ("yes", "true", "1", "on"):
        yield Finding(
            "memory.log-out",
            Severity.WARNING,
            "systemd-logind ends all processes of a user at log-out (KillUserProcesses=yes).",
            "A training under nohup, screen or tmux dies when the ssh session ends.",
            "Let your services outlive the session, and start the training as one.",
            ("loginctl enable-linger", "systemd-run --user --scope tmux"),
        )
