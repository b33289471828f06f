"""watchdog itself: does its daemon run, can it write, is its configuration good."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any

from watchdog_app import __version__
from watchdog_app.base import paths
from watchdog_app.base.codec import objects
from watchdog_app.base.errors import ConfigError, DaemonNotRunning, WatchdogError
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity, fine, unchecked

_MOST_PROBLEMS = 10


def check(facts: Facts) -> Iterator[Finding]:
    """Configuration, journal, daemon."""
    machine = facts.machine
    yield _configuration(facts)
    yield _journal(facts)
    status = None
    try:
        from watchdog_app.client.client import Client

        with Client.connect(paths.socket_path(machine.env), timeout_s=5.0) as daemon:
            status = daemon.call("status")
            version = daemon.daemon_version
    except DaemonNotRunning:
        yield Finding(
            "watchdog.daemon",
            Severity.WARNING,
            "watchdog's daemon does not run.",
            "Nobody sees memory run out, and nobody saves the work.",
            "Start it.",
            ("watchdog start",),
        )
    except WatchdogError as error:
        yield unchecked(
            "watchdog.daemon",
            "The daemon",
            str(error),
            severity=Severity.WARNING,
            remedy="Start it again.",
            commands=("watchdog stop; watchdog start",),
        )
    if isinstance(status, dict):
        if version != __version__:
            yield Finding(
                "watchdog.version",
                Severity.WARNING,
                f"The daemon is version {version}, and this command is {__version__}.",
                "The daemon was not started again after an update.",
                "Start it again; it goes on where it was.",
                ("watchdog stop; watchdog start",),
            )
        else:
            yield fine("watchdog.daemon", f"The daemon runs, version {version}.")
        yield from _problems(status)
    yield from _linger(facts)


def _problems(status: dict[str, Any]) -> Iterator[Finding]:
    """What the daemon says it cannot do."""
    for problem in objects(status, "problems")[:_MOST_PROBLEMS]:
        yield Finding(
            "watchdog.not-watched",
            Severity.INFO,
            f"The daemon says: {problem.get('message')}",
            remedy=str(problem.get("remedy") or ""),
            details=(f"source: {problem.get('source')}",),
        )


def _configuration(facts: Facts) -> Finding:
    from watchdog_app.config import load

    where = paths.config_file(facts.machine.env)
    old_keys: list[str] = []
    try:
        load(where, facts.machine.env, warn=old_keys.append)
    except ConfigError as error:
        return Finding(
            "watchdog.configuration",
            Severity.ERROR,
            f"The configuration is not good: {error}",
            "The daemon does not start with it; one that runs keeps the settings from before.",
            "Correct it.",
            ("watchdog config --check",),
        )
    except (WatchdogError, OSError) as error:
        return unchecked("watchdog.configuration", "The configuration", str(error))
    if old_keys:
        return Finding(
            "watchdog.configuration",
            Severity.WARNING,
            f"The configuration has keys of an earlier version: {'; '.join(old_keys)}.",
            "They still work, and will not in a later version.",
            "Rename them.",
            ("watchdog config edit",),
        )
    shown = where if os.path.exists(where) else "the defaults; there is no file"
    return fine("watchdog.configuration", f"The configuration is good ({shown}).")


def _journal(facts: Facts) -> Finding:
    folder = paths.state_dir(facts.machine.env)
    above = folder
    while not os.path.exists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if facts.machine.access(above, os.W_OK | os.X_OK):
        return fine("watchdog.journal", f"The journal can be written ({folder}).")
    return Finding(
        "watchdog.journal",
        Severity.WARNING,
        f"{above} may not be written to by this user: there is no room for the journal.",
        "Watching goes on, and nothing of it is remembered after a restart of the daemon.",
        "Make the folder yours, or name another.",
        # Never by chown of what is there: that can be / or /home.
        (
            f'sudo install -d -o "$USER" {shlex.quote(folder)}',
            "export WATCHDOG_STATE_DIR=/var/tmp/watchdog-$USER",
        ),
    )


def _linger(facts: Facts) -> Iterator[Finding]:
    """Whether the daemon of a user who comes by ssh outlives the connection."""
    machine = facts.machine
    user = machine.env.get("USER") or machine.env.get("LOGNAME") or ""
    if not machine.exists("/run/systemd/system") or not user or "/" in user or machine.uid == 0:
        return
    if machine.exists("/var/lib/systemd/linger", user):
        yield fine("watchdog.linger", "Services of this user go on without a session (linger).")
    elif machine.env.get("SSH_CONNECTION"):
        yield Finding(
            "watchdog.linger",
            Severity.WARNING,
            "This is an ssh session, and services of this user end with its last session.",
            "The daemon ends when you log out, and the training that goes on is not watched.",
            "Let services of this user go on.",
            ("loginctl enable-linger",),
        )
