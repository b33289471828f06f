"""`watchdog` without a command: what is set up here, and the command for what is not."""

from __future__ import annotations

from watchdog_app.base.errors import DaemonNotRunning, WatchdogError
from watchdog_app.base.text.terminal import counted, plain_block
from watchdog_app.client.client import Client

_ANSWER_S = 3.0
_STATE_COLUMNS = 32  # a longer state, an error, moves only its own command to the right


def lines() -> list[str]:
    """Return the lines to print."""
    rows = (
        ("Daemon", *_daemon_row()),
        ("Saving", *_saving_row()),
        ("At login", *_login_row()),
    )
    columns = max((len(one) for _, one, _ in rows if len(one) <= _STATE_COLUMNS), default=0)
    return [
        "watchdog warns you before memory runs out and saves running trainings.",
        "",
        *(f"  {what:<9} {state:<{columns}}   {command}".rstrip() for what, state, command in rows),
        "",
        "See it save a real training: watchdog demo",
        "All commands: watchdog --help",
    ]


def _daemon_row() -> tuple[str, str]:
    try:
        with Client.connect(timeout_s=_ANSWER_S) as daemon:
            tasks = daemon.call("status").get("tasks") or []
    except DaemonNotRunning:
        return "not running: nothing is watched", "watchdog start"
    except WatchdogError as error:
        return plain_block(error).partition("\n")[0], "watchdog doctor"
    return f"running, {counted(len(tasks), 'task')} watched", "watchdog status"


def _saving_row() -> tuple[str, str]:
    from watchdog_app.cli.agent import enabled_environments

    try:
        found = enabled_environments()
    except WatchdogError as error:
        return plain_block(error).partition("\n")[0], "watchdog agent status"
    if not found:
        return "off in new kernels", "watchdog help saving"
    environments = counted(len(found), "environment")
    return f"on in {environments}", "watchdog agent status"


def _login_row() -> tuple[str, str]:
    from watchdog_app.cli.tray import find_login_setting

    setting = find_login_setting()
    on = None if setting is None else setting.state()
    if on is None:
        return "not known", "watchdog desktop status"
    return ("yes", "") if on else ("no", "watchdog desktop install --login")
