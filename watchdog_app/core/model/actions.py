"""Actions of the user: one table for menus, buttons, keys, hints and notifications."""

from __future__ import annotations

from collections import namedtuple

from watchdog_app.core.model.status import Button, Notification, Task


class Action(
    namedtuple(
        "Action",
        ("key", "label", "menu", "method", "params", "command", "confirm", "hotkey", "shown"),
        defaults=("", "", {}, "", "", "", lambda _: True),
    )
):
    """
    One action.

    Args:
        key: name in notifications and in JSON.
        label: text on a button.
        menu: text in a menu; empty: the label.
        method: request to the daemon; empty: the action only shows something.
        params: parameters of the request, without the task.
        command: equivalent command line; `{task}` stands for the task.
        confirm: question to ask before the action; `{name}` and `{pid}` stand for the task.
        hotkey: key in the live view; empty: no key.
        shown: returns whether the action makes sense for a task.
    """

    __slots__ = ()

    def command_for(self, task: object) -> str:
        """
        The command line for a task.

        Args:
            task: pid or name of the task; empty: no task.
        """
        return " ".join(self.command.format(task=task).split())

    def button(self, task: object) -> Button:
        """
        The button of a notification.

        Args:
            task: pid or name of the task; empty: no task.
        """
        return Button(key=self.key, label=self.label, command=self.command_for(task))


def _can_save(task: Task) -> bool:
    agent = task.agent
    ready = agent is not None and agent.training and not agent.saving and not agent.outdated
    return ready and task.state != "paused"


def _is_stopped(task: Task) -> bool:
    return task.guard is not None and task.guard.stopped


ACTIONS = {
    action.key: action
    for action in (
        Action(
            "save",
            "Save now",
            menu="Save checkpoint now",
            method="task.checkpoint",
            params={"wait": True, "timeout_s": 300.0},
            command="watchdog checkpoint {task}",
            confirm="Save a checkpoint of {name} now?",
            hotkey="s",
            shown=_can_save,
        ),
        Action(
            "pause",
            "Pause",
            method="task.pause",
            command="watchdog pause {task}",
            confirm="Pause {name} (pid {pid})?",
            hotkey="p",
            shown=lambda task: task.state != "paused",
        ),
        Action(
            "resume",
            "Resume",
            method="task.resume",
            command="watchdog resume {task}",
            confirm="Resume {name}?",
            hotkey="r",
            shown=lambda task: task.paused_by_watchdog,
        ),
        Action(
            "more_memory",
            "More memory",
            menu="Raise the limit of its guard",
            method="guard.limit",
            params={"more": True},
            command="watchdog limit {task} SIZE",
            shown=lambda task: task.guard is not None,
        ),
        Action(
            "no_limit",
            "No limit",
            menu="Continue without a limit",
            method="guard.limit",
            params={"unlimited": True},
            command="watchdog limit {task} --go-on",
            shown=_is_stopped,
        ),
        Action(
            "end",
            "End it",
            menu="End it; its rescue stays",
            method="guard.limit",
            params={"end": True},
            command="watchdog limit {task} --end",
            shown=_is_stopped,
        ),
        Action(
            "snooze",
            "Snooze 15 min",
            method="snooze",
            params={"for_s": 900.0},
            command="watchdog snooze {task} --for 15m",
        ),
        Action("explain", "Explain", command="watchdog explain {task}", hotkey="e"),
        Action("show", "Show", command="watchdog top"),
        # In a button `{task}` stands for the folder of the environment.
        Action(
            "enable_saving",
            "Turn on",
            command="watchdog agent enable --python {task}",
            shown=lambda task: task.can_save is False,
        ),
        Action("not_now", "Not now", shown=lambda task: task.can_save is False),
    )
}


def button_commands(notification: Notification) -> list[str]:
    """
    Return the commands of a notification's buttons, for a place that shows no buttons.

    Leaves out commands that the text names, that only show more, and that only suppress it.
    """
    return [
        each.command
        for each in notification.actions
        if each.key in ACTIONS and ACTIONS[each.key].method and each.key != "snooze"
        if each.command and each.command not in notification.body
    ]
