"""Two daemons do not pull at one training."""

from __future__ import annotations

from support.records import process, task

from watchdog_app.core.model.machine import Task
from watchdog_app.core.model.resource import ResourceKind
from watchdog_app.core.model.settings import ActionSettings, RuleSettings
from watchdog_app.core.policy.rules import allowed

ALL = ActionSettings(notify=True, checkpoint=True, pause=True)
NONE = ActionSettings(notify=False, checkpoint=False, pause=False)


def _task(runtime_dir: str | None) -> Task:
    return task(process(10), name="train.py", runtime_dir=runtime_dir)


def test_a_task_of_another_daemon_is_left_to_it():
    """Its environment names another runtime folder: nothing is permitted, whatever a rule says."""
    rules = (RuleSettings(task="train.py", pause=True),)

    assert NONE == allowed(ALL, rules, _task("/run/b"), ResourceKind.RAM, "/run/a")


def test_a_task_of_this_daemon_and_one_of_no_daemon_are_ours():
    """The same folder, or none named."""
    assert ALL == allowed(ALL, (), _task("/run/a"), ResourceKind.RAM, "/run/a")
    assert ALL == allowed(ALL, (), _task(None), ResourceKind.RAM, "/run/a")


def test_the_same_folder_under_another_name_is_ours(tmp_path):
    """Through a link, and with a slash too many."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")

    for name in (f"{tmp_path}/link", f"{tmp_path}//run/"):
        assert ALL == allowed(ALL, (), _task(name), ResourceKind.RAM, f"{tmp_path}/run")
