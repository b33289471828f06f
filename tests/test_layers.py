"""The allowed imports of docs/architecture.md; and that an import has no side effect."""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from support.finished import finished

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "watchdog_app"

# part -> parts that it may import. A part may always import itself. Screens read the status as
# records, the user's possible actions, and the texts about them.
SCREENS = {
    *("core.model.levels", "core.model.status", "core.model.actions"),
    *("core.explain.selection", "core.explain.gpu_lines", "core.explain.agent_lines"),
    "core.explain.saving",
    "core.explain.metrics",
}
MAY_IMPORT = {
    "base": set(),
    "core": set(),
    "core.model": {"base"},
    "core.diagnosis": {"core.model", "base"},
    "core.explain": {"core.model", "core.diagnosis", "base"},
    "core.forecast": {"core.model", "core.explain.phrases", "base"},
    "core.policy": {"core.model", "core.forecast", "core.diagnosis", "core.explain", "base"},
    "core.replay": {"core.model", "core.forecast", "core.policy", "base"},
    "config": {"core", "base"},
    "machine": set(),
    "machine.gpu": {"core.model", "core.diagnosis.gpu_faults", "base"},
    "machine.sensors": {"core", "machine.gpu", "base"},
    "machine.process_control": {"core.model", "base"},
    "client": {"core.model", "base"},
    "history": {"core", "client", "base"},
    "daemon": {"core", "config", "history", "machine", "guard", "rescue", "client", "base"},
    "cli": {"client", "config", *SCREENS, "base"},
    "tray": {"client", "install", *SCREENS, "base"},
    "install": {"base"},
    "top": {"client", *SCREENS, "base"},
    "jupyter": {"client", *SCREENS, "base"},
    "rescue": {"base"},
    "agent": {"client", "guard", "rescue", "base"},
    # It writes rescues as the agent would, and reads the processes in its group.
    "guard": {"core", "rescue", "client", "base"},
    "demo": {"client", "guard.backends", "guard.cgroup", "base"},
    "estimate": {"core", "agent.telemetry", "base"},
    "doctor": {"core", "machine", "config", "client", "install.pythons", "agent.internals", "base"},
}
# Single modules with further imports, and the reason.
EXCEPTIONS = {
    "watchdog_app.cli.exec": {"guard", "install"},
    "watchdog_app.cli.limit": {"guard"},  # needs no daemon
    "watchdog_app.cli.slurm": {"guard"},
    # Reads the records of supervisors and of a daemon; needs no daemon either.
    "watchdog_app.cli.offline_status": {"guard", "daemon.offline"},
    "watchdog_app.cli.run": {"daemon.app"},  # it becomes the daemon
    "watchdog_app.cli.status": {"install.pythons"},  # whether a kernel can import watchdog
    "watchdog_app.cli.start": {"doctor.desktop"},  # whether a desktop shows notifications
    "watchdog_app.cli.stop": {"daemon.instance"},  # waits until the lock is free
    "watchdog_app.cli.history": {"history.past"},  # the journal when no daemon runs
    "watchdog_app.cli.explain": {
        "history.past",  # deaths, from the daemon's journal
        "machine.sensors.kernel_events",  # the same lines, from journald
        "rescue.checkpoint",  # whether the rescue exists
    },
    # The page is made of the journal.
    "watchdog_app.cli.report": {
        *("history.past", "history.past_exits", "history.report", "history.anonymous")
    },
    "watchdog_app.cli.dispatch": {"history.past"},  # how the requested task ended
    "watchdog_app.cli.resume": {"daemon.offline"},  # resumes a task without a daemon
    "watchdog_app.cli.config": {"core.model.settings"},
    "watchdog_app.cli.completion": {"core.model.settings"},  # the keys of `config set`
    # The writers of a file also read it, without a framework.
    "watchdog_app.cli.rescues": {
        "rescue.checkpoint",
        *("guard", "history.past"),  # the folders of past runs
    },
    # Whether a program is the one that saved.
    "watchdog_app.cli.rescues_text": {"rescue", "agent.identity.code", "agent.runtime.relation"},
    # The agent prints the same lines when a rescue waits.
    "watchdog_app.cli.agent": {"install", "agent.found.folders", "agent.found.resume_lines"},
    "watchdog_app.cli.demo": {"demo"},
    "watchdog_app.cli.estimate": {
        *("estimate", "install.trust"),
        "history.past",  # what was measured in earlier runs
        "doctor.children",  # the same deadline for a child that may hang
    },
    "watchdog_app.cli.plot": {"top.glyphs"},  # the same dots
    "watchdog_app.cli.top": {"top"},
    "watchdog_app.cli.doctor": {"doctor"},
    "watchdog_app.cli.desktop": {"install"},
    "watchdog_app.cli.tray": {"tray", "install"},
    "watchdog_app.cli.replay": {
        "core.replay",
        "core.model.settings",
        "core.model.decisions",
        "history.past",  # the daemon's journal
    },
    "watchdog_app.demo.train": {"agent.keras"},  # the training of the demo
    "watchdog_app.__main__": {"cli"},
}
# Inside the agent, from the bottom up. A folder imports itself and what stands before it.
AGENT_ORDER = (
    {"contain", "wrapping", "internals"},
    {"telemetry"},
    {"state"},
    {"source"},
    {"identity"},
    {"snapshot"},
    {"runtime"},
    {"adapters", "oom"},
    {"found"},
    {"hook"},
    {"resume"},
    {"ipython"},
    {"keras", "tf_keras", "torch", "tensorflow", "lightning", "transformers", "shim"},
)
# Modules that the daemon must not load, because it runs when memory is short.
HEAVY = {
    "numpy", "asyncio", "logging", "multiprocessing", "unittest", "xml", "http", "email",
    "psutil", "PIL", "dbus_fast", "pystray", "plyer", "pynvml", "tensorflow", "keras",
    "textual", "tomlkit",
    "torch", "matplotlib", "rich", "click", "pydantic", "concurrent", "urllib.request",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


MODULES = modules()


@cache
def imports(name: str, at_import_only: bool = False) -> frozenset[str]:
    """Modules of the package that a module imports, anywhere in its text."""
    found = set()
    for node in _statements(name, at_import_only):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else str(node.module))
    return frozenset(each for each in found if each.startswith("watchdog_app."))


@cache
def _statements(name: str, at_import_only: bool) -> list[ast.AST]:
    return list(_nodes(ast.parse(MODULES[name].read_text()), at_import_only))


def _nodes(tree: ast.AST, at_import_only: bool):
    for node in ast.iter_child_nodes(tree):
        if at_import_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if at_import_only and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        yield from _nodes(node, at_import_only)


def part(name: str) -> str:
    """The folder of a module; for core and machine the subfolder."""
    first, *more = name.removeprefix("watchdog_app.").split(".")
    is_folder = more and (PACKAGE / first / more[0]).is_dir()
    return f"{first}.{more[0]}" if first in ("core", "machine") and is_folder else first


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_imports_only_what_its_part_may(name):
    """
    The allowed directions are those of docs/architecture.md, also for imports inside functions.
    """
    if name == "watchdog_app":
        assert set() == imports(name)
        return
    allowed = MAY_IMPORT.get(part(name), set()) | EXCEPTIONS.get(name, set())
    for other in imports(name):
        inner = other.removeprefix("watchdog_app.")
        fits = part(other) == part(name) or any(
            inner == each or inner.startswith(f"{each}.") for each in allowed
        )
        assert fits, f"{name} imports {other}"


def test_the_folders_of_the_agent_import_one_way():
    """Also inside functions and under TYPE_CHECKING."""
    place = {folder: number for number, each in enumerate(AGENT_ORDER) for folder in each}
    upwards = [
        f"{name} imports {other}"
        for name in MODULES
        for other in imports(name)
        if name.count(".") > 1 and part_of_agent(name) and other.startswith("watchdog_app.agent.")
        if place[name.split(".")[2]] < place[other.split(".")[2]]
    ]
    # the text of a stop at a guard's limit
    assert ["watchdog_app.agent.runtime.session imports watchdog_app.agent.oom.refused"] == upwards


NOT_RUN_DAILY = [
    path
    for top in ("tests/vm", "bench", "examples", "packaging")
    for path in (ROOT / top).rglob("*.py")
    if path.is_file()  # a benchmark of a program leaves the folder rescues/PROGRAM.py
]


@pytest.mark.parametrize("path", NOT_RUN_DAILY, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_not_run_daily_imports_what_is_there(path):
    """
    Tests in a virtual machine, benchmarks and examples must follow a renamed module or function.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("watchdog_app"):
            continue
        assert node.module in MODULES, f"{node.module} is not there"
        source = MODULES[node.module].read_text()
        for alias in node.names:
            name = alias.name
            is_there = f"{node.module}.{name}" in MODULES or re.search(rf"\b{name}\b", source)
            assert is_there, f"{node.module} has no {name}"


def test_no_modules_import_each_other_in_a_circle():
    """Only imports at import time count."""
    graph = {name: imports(name, at_import_only=True) - {name} for name in MODULES}
    done: set[str] = set()

    def walk(name: str, above: list[str]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name in done:
            return
        for other in graph.get(name, ()):
            # The import of a module first imports its package's __init__.
            if not name.startswith(f"{other}."):
                walk(other, [*above, name])
        done.add(name)

    for name in graph:
        walk(name, [])


# Modules that import each other, including imports in functions and for types. This list may only
# shrink.
CIRCLES: list[set[str]] = []
# The same for whole folders.
FOLDER_CIRCLES: list[set[str]] = []


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of nodes that reach each other."""
    reach = {node: _reached(graph, node) for node in graph}
    found: list[set[str]] = []
    for node in sorted(graph):
        circle = {other for other in reach[node] if node in reach.get(other, ())}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


def test_circles_of_imports_only_become_fewer():
    """Imports inside functions count too."""
    graph = {
        name.removeprefix("watchdog_app."): {
            each.removeprefix("watchdog_app.") for each in imports(name) - {name}
        }
        for name in MODULES
    }
    folders: dict[str, set[str]] = {}
    for name, others in graph.items():
        folder = part(name)
        folders.setdefault(folder, set()).update(map(part, others))
        folders[folder].discard(folder)

    assert sorted(map(sorted, CIRCLES)) == sorted(map(sorted, circles(graph)))
    assert sorted(map(sorted, FOLDER_CIRCLES)) == sorted(map(sorted, circles(folders)))


def test_every_part_is_in_the_table():
    """A new folder must declare its allowed imports."""
    parts = {part(name) for name in MODULES if name != "watchdog_app"} - {"__main__"}
    assert set() == parts - set(MAY_IMPORT)


def test_notifications_go_one_way():
    """Only the executor filters notifications and hands them to the channels."""
    call = re.compile(r"\bnotification_filter\.reason\(|\bdispatcher\.show\(")
    found = {path.name for path in PACKAGE.rglob("*.py") if call.search(path.read_text())}
    assert {"executor.py"} == found


# Colours of levels and of lines in a plot. The cursor codes of the other modules are no colours.
COLOR_TABLES = {"core.model.levels", "base.text.terminal", "top.charts", "cli.plot", "cli.hello"}
COLOR = re.compile(r"\b(red|green|blue|yellow|cyan|magenta)\b|\x1b\[[\d;]*m")


@pytest.mark.parametrize("folder", ["cli", "top", "core", "client", "base", "daemon", "doctor"])
def test_colours_are_in_the_tables(folder):
    """A screen asks the level for its colour, so no two screens can differ."""
    found = [
        f"{name}: {node.value!r}"
        for name, path in MODULES.items()
        if name.startswith(f"watchdog_app.{folder}.")
        and name.removeprefix("watchdog_app.") not in COLOR_TABLES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and len(node.value) < 40
        and COLOR.search(node.value)
    ]
    assert [] == found


def python(code: str, **env: str) -> str:
    return finished([sys.executable, "-c", code], check=True, env={**os.environ, **env}).stdout


# Modules that need a package which the machine may lack.
NEEDS = {
    "keras", "tensorflow", "torch", "pystray", "PIL", "dbus_fast", "plyer", "psutil",
    "matplotlib", "pynvml", "textual", "rich", "tomlkit",
}  # fmt: skip

FRAMEWORKS = {
    *("keras", "tf_keras", "tensorflow", "torch", "jax", "lightning", "transformers"),
    *("numpy", "pystray", "matplotlib", "jupyter_server"),
}

IMPORT_ALL = """
import builtins, importlib, os, sys
before = (os.getcwd(), dict(os.environ), set(os.listdir({folder!r})), os.umask(0o077))
os.umask(before[3])
import signal, threading
handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
touched = []
watch = ("open", "socket.__new__", "socket.connect", "socket.bind", "subprocess.Popen",
         "os.mkdir", "os.remove", "os.rename", "os.kill", "os.putenv", "os.chdir", "os.fork")
def audit(event, args):
    if event not in watch:
        return
    if event == "open":
        path, mode, flags = args
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if isinstance(path, int) or not writes or str(path).endswith((".pyc", "/dev/null")):
            return
        if ".pyc." in str(path) or "__pycache__" in str(path):
            return
    if event in ("os.mkdir", "os.rename") and "__pycache__" in str(args):
        return
    touched.append((name, event, str(args)[:200]))
name = ""
import {preload}
sys.addaudithook(audit)
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in {needs!r}, (name, error)
assert touched == [], touched
after = (os.getcwd(), dict(os.environ), set(os.listdir({folder!r})), os.umask(0o077))
assert before == after, (before, after)
assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
assert threading.active_count() == 1, threading.enumerate()
"""


def test_importing_any_module_changes_nothing(tmp_path):
    """No file, socket, process, thread, handler, folder or variable changes."""
    names = [
        name
        for name in sorted(MODULES)
        if not name.endswith("__main__") and not _imports_framework(name)
    ]
    said = python(
        IMPORT_ALL.format(
            folder=str(tmp_path), names=names, needs=sorted(NEEDS), preload="importlib"
        ),
        HOME=str(tmp_path),
        WATCHDOG_RUNTIME_DIR=str(tmp_path / "run"),
        WATCHDOG_STATE_DIR=str(tmp_path / "state"),
    )

    assert "" == said
    assert [] == list(tmp_path.iterdir())


def _imports_framework(name: str) -> bool:
    """Whether it imports a framework, which opens files and starts threads on import."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in seen or each not in MODULES:
            continue
        seen.add(each)
        waiting += imports(each, at_import_only=True)
        for node in _statements(each, at_import_only=True):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if {full.split(".")[0] for full in named} & FRAMEWORKS:
                return True
    return False


def test_the_daemon_holds_nothing_heavy():
    """Neither directly nor indirectly; this includes the argparse command."""
    loaded = set(
        python(
            "import sys, watchdog_app.daemon.app, watchdog_app.cli.run\n"
            "from watchdog_app.machine.sensors import open_machine\n"
            "open_machine().close()\n"
            "print(*sys.modules)"
        ).split()
    )
    assert set() == HEAVY & loaded


def test_the_agent_holds_no_framework_and_nothing_heavy():
    """A Keras training must not load torch or the daemon."""
    names = [n for n in MODULES if part_of_agent(n) and not _imports_framework(n)]
    loaded = set(
        python(f"import sys\nfor n in {names!r}: __import__(n)\nprint(*sys.modules)").split()
    )
    heavy = {"asyncio", "psutil", "sqlite3", "tensorflow", "torch", "keras", "watchdog_app.daemon"}
    assert set() == heavy & loaded


def part_of_agent(name: str) -> bool:
    return name == "watchdog_app.agent" or name.startswith("watchdog_app.agent.")
