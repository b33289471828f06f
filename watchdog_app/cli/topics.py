"""The topics of `watchdog help`."""

from __future__ import annotations

from watchdog_app.core.model.levels import Level

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
