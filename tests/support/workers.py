"""
Distribute test files to workers: most have a process namespace, some must see the real PIDs.

A daemon reads every process of the user. Therefore each worker that packaging/apart.sh starts has a
separate process namespace and runtime folder. Tests that compare with the kernel's log need real
PIDs: one worker without a namespace runs them in sequence.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdist.workermanage import WorkerController

APART = "WATCHDOG_TESTS_APART"  # set by packaging/apart.sh inside a namespace
# The kernel's log names kills by their real PIDs; real desktops and system-wide settings.
OUTSIDE = ("e2e", "tray", "examples", "install")
# Files of these folders that run in a namespace: their tests read no log of the kernel.
INSIDE = (
    *("test_e2e_advice.py", "test_e2e_fill.py", "test_e2e_replay.py", "test_e2e_stalls.py"),
    *("test_install_exec.py", "test_install_hook.py", "test_install_kernels.py"),
    *("test_install_mismatch.py", "test_install_resume.py", "test_install_trust.py"),
)
# Folders with a long run time, the longest first, so that the workers end together.
LONG_FIRST: tuple[str, ...] = (
    "agent",
    "install",
    "e2e",
    "daemon",
    "packaging",
    "guard",
    "jupyter",
    "estimate",
    "demo",
)


def is_outside(file: str) -> bool:
    """Whether a test file must run without a process namespace."""
    parts = file.partition("::")[0].split("/")
    if parts[-1] in INSIDE:
        return False
    return "tests" in parts and parts[parts.index("tests") + 1] in OUTSIDE


def order(files: Sequence[str], tests: dict[str, int]) -> list[str]:
    """Test files, the longest first."""

    def key(file: str) -> tuple[int, int]:
        found = [at for at, part in enumerate(LONG_FIRST) if f"/{part}/" in file]
        return (found[0] if found else len(LONG_FIRST), -tests[file])

    return sorted(files, key=key)


class ByFile(LoadScopeScheduling):
    """Give each worker one file after the other; files of OUTSIDE go to workers outside."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _may_run(self, node: WorkerController, scope: str) -> bool:
        inside = [each for each in self.nodes if _apart(each)]
        if not inside or len(inside) == len(self.nodes):
            return True  # workers of one kind only
        return is_outside(scope) != _apart(node)

    def _next(self, node: WorkerController) -> str | None:
        return next((scope for scope in self.workqueue if self._may_run(node, scope)), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next(node)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if not node.shutting_down and self._next(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def schedule(self) -> None:
        """
        As in the base class, but in this class's order and without shutting down workers first.
        """
        if self.collection is not None:
            super().schedule()
            return
        if not self._check_nodes_have_same_collection():
            return
        self.collection = list(next(iter(self.registered_collections.values())))
        scopes: dict[str, dict[str, bool]] = {}
        for nodeid in self.collection:
            scopes.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        for scope in order(list(scopes), {scope: len(tests) for scope, tests in scopes.items()}):
            self.workqueue[scope] = scopes[scope]
        for node in self.nodes:
            self._assign_work_unit(node)
        for node in self.nodes:
            self._reschedule(node)


def _apart(node: WorkerController) -> bool:
    return "apart.sh" in str(node.gateway.spec.python or "")


def namespaces() -> bool:
    """Whether this user may create process namespaces here."""
    if shutil.which("unshare") is None:
        return False
    words = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "true")
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)


def pytest_report_header(config: pytest.Config) -> str | None:
    if not any("apart.sh" in each for each in config.getoption("tx", None) or ()):
        return None
    if namespaces():
        return "workers: each has a process namespace of its own; one is outside, for real PIDs"
    return "workers: unshare is not permitted here, so they run WITHOUT process namespaces"


_runtime = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # A shell's background process ignores Ctrl-C, and all children of tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        return
    # A worker starts with `-c`, without a program path, unlike pytest's main process.
    sys.argv = list(config.workerinput["mainargv"])
    sys.modules["__main__"].__file__ = str(Path(pytest.__file__).with_name("__main__.py"))
    if os.environ.get(APART):
        config.stash[_runtime] = tempfile.mkdtemp(prefix="watchdog-tests-")
        os.environ["WATCHDOG_RUNTIME_DIR"] = config.stash[_runtime]


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(_runtime, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
