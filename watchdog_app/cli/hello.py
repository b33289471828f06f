"""`watchdog` without a command: what is set up here, and the command for what is not."""

from __future__ import annotations

from watchdog_app.base.errors import DaemonNotRunning, WatchdogError
from watchdog_app.base.text.terminal import counted, plain_block
from watchdog_app.cli.output import terminal_columns
from watchdog_app.client.client import Client
from watchdog_app.core.explain.saving import typed_path
from watchdog_app.core.model.status import Task

_ANSWER_S = 3.0
_STATE_COLUMNS = 32  # a longer state, an error, moves only its own command to the right


def lines() -> list[str]:
    """Return the lines to print."""
    tasks, *daemon = _daemon_row()
    rows = (
        ("Daemon", *daemon),
        ("Saving", *_saving_row(tasks)),
        ("At login", *_login_row()),
    )
    columns = max((len(one) for _, one, _ in rows if len(one) <= _STATE_COLUMNS), default=0)
    narrow = 15 + columns + max(len(each) for _, _, each in rows) > (terminal_columns() or 80)
    columns, gap = (0, "\n              ") if narrow else (columns, "   ")
    return [
        "watchdog warns you before memory runs out and saves running trainings.",
        "",
        *(
            f"  {what:<9} {state:<{columns}}{gap}{command}".rstrip()
            for what, state, command in rows
        ),
        "",
        "See it save a real training: watchdog demo",
        "All commands: watchdog --help",
    ]


def _daemon_row() -> tuple[list[Task], str, str]:
    try:
        with Client.connect(timeout_s=_ANSWER_S) as daemon:
            tasks = [Task.read(each) for each in daemon.call("status").get("tasks") or []]
    except DaemonNotRunning:
        return [], "not running: nothing is watched", "watchdog start"
    except WatchdogError as error:
        return [], plain_block(error).partition("\n")[0], "watchdog doctor"
    return tasks, f"running, {counted(len(tasks), 'task')} watched", "watchdog status"


def _saving_row(tasks: list[Task]) -> tuple[str, str]:
    from watchdog_app.cli import agent_choice
    from watchdog_app.cli.agent import enabled_environments

    try:
        found = enabled_environments()
    except WatchdogError as error:
        return plain_block(error).partition("\n")[0], "watchdog agent status"
    if not found:
        known = agent_choice.environments(agent_choice.own_tasks(tasks))
        names = [typed_path(each.prefix) for each in known]
        if not names:
            return "off: no Jupyter found here", "watchdog help saving"
        return _off_in(names), "watchdog agent enable"
    environments = counted(len(found), "environment")
    return f"on in {environments}", "watchdog agent status"


def _off_in(names: list[str]) -> str:
    """Name as many environments as the line can hold, or say how many there are."""
    for shown in (2, 1):
        rest = len(names) - shown
        text = f"off in {', '.join(names[:shown])}" + (f" and {rest} more" if rest > 0 else "")
        if len(text) <= _STATE_COLUMNS:
            return text
    return f"off in {counted(len(names), 'environment')}"


def _login_row() -> tuple[str, str]:
    from watchdog_app.cli.tray import find_login_setting

    setting = find_login_setting()
    on = None if setting is None else setting.state()
    if on is None:
        return "not known", "watchdog desktop status"
    return ("yes", "") if on else ("no", "watchdog desktop install --login")
