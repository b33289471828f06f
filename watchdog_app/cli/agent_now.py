"""Where the agent is at work at this moment, as the daemon sees it: for `watchdog agent status`."""

from __future__ import annotations

import os

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import counted, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ANSWER_S = 3.0
_FIELDS = ("framework", "directory", "training", "step", "epoch", "loss", "rescue")


def ask() -> tuple[list[dict[str, Any]] | None, str | None]:
    """
    The processes whose trainings the agent has, and why that is not known.

    Returns:
        The processes, None where no daemon answers; and the reason in words, None where it does.
    """
    from watchdog_app.client.client import Client

    try:
        with Client.connect(timeout_s=_ANSWER_S) as client:
            status = client.call("status")
    except WatchdogError as error:
        return None, str(error)
    found = []
    for one in status.get("tasks") or []:
        agent = one.get("agent")
        if isinstance(agent, dict):
            whose = {key: one.get(key) for key in ("name", "notebook", "script")}
            told = {key: agent.get(key) for key in _FIELDS}
            found.append({"pid": agent.get("pid") or one.get("pid"), **whose, **told})
    return found, None


def lines(running: list[dict[str, Any]] | None, why: str | None) -> list[str]:
    """The same for a person."""
    if running is None:
        return [f"Trainings now: not known. {plain(why or '')}".rstrip()]
    if not running:
        return ["Trainings now: none has an agent. (One that has not begun to train is not seen.)"]
    rows = [f"Trainings now: {counted(len(running), 'program')} with an agent"]
    for one in running:
        what = [plain(one["framework"] or "an unknown framework")]
        if one["training"]:
            if one["epoch"] is not None:
                what.append(f"epoch {quantities.whole(int(one['epoch']) + 1)}")
            what.append(f"step {quantities.whole(one['step'])}")
        else:
            what.append("not training")
        rescue = one["rescue"]
        what.append(_saved(rescue) if isinstance(rescue, dict) else "nothing saved yet")
        rows.append(f"  {plain(one['name'])} (pid {one['pid']}): {', '.join(what)}")
        if one["directory"]:
            rows.append(f"     rescues: {plain(_near(str(one['directory'])))}")
    return rows


def _saved(rescue: dict[str, Any]) -> str:
    return f"saved at step {quantities.whole(rescue.get('step'))}"


def _near(directory: str) -> str:
    here = os.path.join(os.getcwd(), "")
    return directory.removeprefix(here)
