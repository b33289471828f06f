"""watchdog itself: does its daemon run, can it write, is its configuration valid."""

from __future__ import annotations

import os
from collections.abc import Iterator

from watchdog_app import __version__
from watchdog_app.base import paths
from watchdog_app.base.codec import objects
from watchdog_app.base.errors import ConfigError, DaemonNotRunning, WatchdogError
from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding

_MAX_PROBLEMS = 10


def check(facts: Facts) -> Iterator[Finding]:
    """Check configuration, journal and daemon."""
    machine = facts.machine
    yield _configuration(facts)
    folder = paths.state_dir(machine.env)
    above = machine.nearest(folder)
    writable = machine.access(machine.path(above), os.W_OK | os.X_OK)
    tell = facts.fine if writable else facts.finding
    yield tell("watchdog.journal", above=above, folder=folder)
    yield _daemon(facts)
    for problem in objects(facts.daemon(), "problems")[:_MAX_PROBLEMS]:
        source, remedy = f"source: {problem.get('source')}", problem.get("remedy") or ""
        words = {"message": problem.get("message"), "remedy": remedy}
        yield facts.finding("watchdog.not-watched", source, **words)
    yield from _linger(facts)


def _daemon(facts: Facts) -> Finding:
    told = facts.ask_daemon()
    if isinstance(told.error, DaemonNotRunning):
        return facts.finding("watchdog.daemon.stopped")
    if told.error is not None:
        return facts.finding("watchdog.daemon", reason=str(told.error))
    if told.version != __version__:
        return facts.finding("watchdog.version", running=told.version, ours=__version__)
    return facts.fine("watchdog.daemon", version=told.version)


def _configuration(facts: Facts) -> Finding:
    from watchdog_app.config import load

    where = paths.config_file(facts.machine.env)
    old_keys: list[str] = []
    try:
        load(where, facts.machine.env, warn=old_keys.append)
    except ConfigError as error:
        return facts.finding("watchdog.configuration.bad", error=error)
    except (WatchdogError, OSError) as error:
        return facts.finding("watchdog.configuration", reason=str(error))
    if old_keys:
        return facts.finding("watchdog.configuration.old-keys", keys="; ".join(old_keys))
    shown = where if os.path.exists(where) else "the defaults; there is no file"
    return facts.fine("watchdog.configuration", file=shown)


def _linger(facts: Facts) -> Iterator[Finding]:
    """Check whether the daemon of an ssh user outlives the connection."""
    machine = facts.machine
    user = machine.env.get("USER") or machine.env.get("LOGNAME") or ""
    if not machine.exists("/run/systemd/system") or not user or "/" in user or machine.uid == 0:
        return
    if machine.exists("/var/lib/systemd/linger", user):
        yield facts.fine("watchdog.linger")
    elif machine.env.get("SSH_CONNECTION"):
        yield facts.finding("watchdog.linger")
