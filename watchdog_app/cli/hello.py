"""
`watchdog` without a command: what is set up here, and the command for what is not.

Also the topics of `watchdog help`.
"""

from __future__ import annotations

from watchdog_app.base.errors import DaemonNotRunning, WatchdogError
from watchdog_app.base.text.terminal import counted, plain_block
from watchdog_app.cli.output import terminal_columns
from watchdog_app.client.client import request
from watchdog_app.core.explain.saving import typed_path
from watchdog_app.core.model.levels import Level
from watchdog_app.core.model.status import Status, Task

_ANSWER_S = 3.0
_STATE_COLUMNS = 32  # a longer state, an error, moves only its own command to the right

_SAVING = """\
How a training is saved when memory runs out, and resumes afterwards:

  from watchdog_app.agent.keras import Rescue

  - a Keras fit:            model.fit(..., callbacks=[Rescue("rescues/")])
  - a script as it is:      watchdog exec -- python train.py
  - a notebook as it is:    %load_ext watchdog_app.agent
  - every new kernel:       watchdog agent enable --kernel python3
  - another environment:    watchdog agent enable --python ~/venvs/tf/bin/python

Kernels and scripts that run already are left as they are. A fit resumes when it is run again;
in a notebook whose kernel was killed: watchdog.resume(). Saved so far: watchdog rescues"""
_EXIT_CODES = """\
Exit codes of all commands:

    0  done
    1  failure
    2  usage: a word or an option that makes no sense
    3  no daemon runs
  130  ended by Ctrl-C
  141  the reader of a pipe has ended

Exit codes of `watchdog status --check`, as for monitoring plugins:
"""


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
        tasks = list(Status.read(request("status", wait_s=_ANSWER_S)).tasks)
    except DaemonNotRunning:
        return [], "not running: nothing is watched", "watchdog start"
    except WatchdogError as error:
        return [], plain_block(error).partition("\n")[0], "watchdog doctor"
    return tasks, f"running, {counted(len(tasks), 'task')} watched", "watchdog status"


def _saving_row(tasks: list[Task]) -> tuple[str, str]:
    from watchdog_app.cli import agent

    try:
        found = agent.enabled_environments()
    except WatchdogError as error:
        return plain_block(error).partition("\n")[0], "watchdog agent status"
    if not found:
        known = agent.environments(agent.own_tasks(tasks))
        names = [typed_path(each.prefix) for each in known]
        if not names:
            return "off: no Jupyter found here", "watchdog help saving"
        where = names[0] if len(names) == 1 else counted(len(names), "environment")
        return f"off in {where}", "watchdog agent enable"
    environments = counted(len(found), "environment")
    return f"on in {environments}", "watchdog agent status"


def _login_row() -> tuple[str, str]:
    from watchdog_app.cli.tray import find_login_setting

    setting = find_login_setting()
    on = None if setting is None else setting.state()
    if on is None:
        return "not known", "watchdog desktop status"
    return ("yes", "") if on else ("no", "watchdog desktop install --login")


def _exit_codes() -> str:
    shown = [level for level in Level if level is not Level.WATCH]  # it has the code of "ok"
    return _EXIT_CODES + "".join(f"\n    {one.exit_code}  {one.name.lower()}" for one in shown)


def _colours() -> str:
    lines = ["A mark at the start of a line, and its colour, show its level:", ""]
    for level in Level:
        color = {"": "plain", "alarm": "red"}.get(level.color, level.color)
        lines.append(f"  {level.mark:2}  {level.name.lower():<9} {color}")
    return "\n".join(
        [*lines, "", "Without colours: NO_COLOR=1, or --color never. Always: FORCE_COLOR=1."]
    )


TOPICS = {"saving": _SAVING, "exit-codes": _exit_codes(), "colours": _colours()}
