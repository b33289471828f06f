"""The notebook that a kernel serves, from all sources."""

from __future__ import annotations

import pytest
from sensor_trees import FIXTURES

from watchdog_app.core.model.machine import TaskKind
from watchdog_app.machine.sensors.command_line import identify
from watchdog_app.machine.sensors.notebooks import (
    ProcessReaders,
    Session,
    absolute,
    kernel_facts,
    name_kernel,
    parse_connection_file,
    program_of_fork,
)

NOTEBOOK, CONSOLE, KERNEL = TaskKind.NOTEBOOK, TaskKind.CONSOLE, TaskKind.KERNEL
PYTHON = TaskKind.PYTHON


@pytest.mark.parametrize(
    ("sessions", "session_name", "parents", "expected"),
    [
        # The server's answer comes first.
        (
            [Session("/p/new.ipynb", NOTEBOOK)],
            "/p/old.ipynb",
            ["x.ipynb"],
            (NOTEBOOK, "new.ipynb", "/p/new.ipynb"),
        ),
        # Then the session's name, then the parent's command line, relative to its folder.
        ([], "/p/old.ipynb", ["x.ipynb"], (NOTEBOOK, "old.ipynb", "/p/old.ipynb")),
        ([], None, ["sub/x.ipynb"], (NOTEBOOK, "x.ipynb", "/cwd/sub/x.ipynb")),
        # Without a source: the folder.
        ([], None, [], (KERNEL, "kernel in cwd", None)),
        ([], "", [], (KERNEL, "kernel in cwd", None)),
        # One kernel, several documents.
        (
            [Session("/p/b.ipynb", NOTEBOOK), Session("/p/a.ipynb", NOTEBOOK)],
            None,
            [],
            (NOTEBOOK, "a.ipynb, b.ipynb", "/p/a.ipynb"),
        ),
        # A console attached to a notebook's kernel does not hide the notebook.
        (
            [Session("Console 1", CONSOLE), Session("/p/a.ipynb", NOTEBOOK)],
            None,
            [],
            (NOTEBOOK, "a.ipynb", "/p/a.ipynb"),
        ),
        ([Session("Console 1", CONSOLE)], None, [], (CONSOLE, "Console 1", None)),
        ([], "/p/Console 1", [], (CONSOLE, "Console 1", None)),
        ([], "/p/paired.py", [], (NOTEBOOK, "paired.py", "/p/paired.py")),
        ([], "/", [], (CONSOLE, "/", None)),
        ([], "/p/évil\n\x1b.ipynb", [], (NOTEBOOK, "évil\n\x1b.ipynb", "/p/évil\n\x1b.ipynb")),
    ],
)
def test_sources_are_heard_in_their_order(sessions, session_name, parents, expected):
    """The order is server, session, parent, folder."""
    found = name_kernel(sessions, session_name, parents, "/cwd")

    assert expected == (found.kind, found.name, found.notebook)


def test_kernel_of_which_nothing_is_known_is_a_kernel():
    """Even its folder may not be readable."""
    assert "kernel" == name_kernel([], None, [], None).name


def test_captured_connection_file_names_its_notebook():
    """The file has the format of jupyter_client 8."""
    path = next((FIXTURES / "jupyter_runtime").glob("kernel-*.json"))

    assert "/home/user/project/train.ipynb" == parse_connection_file(path.read_bytes())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"jupyter_session": ""}',
        b'{"jupyter_session": 3}',
        b"\xff",
        b"[" * 60_000,
        b'{"jupyter_session": "\\u0000"}',
    ],
)
def test_connection_file_without_a_name_is_none(data: bytes):
    """Also if it is incomplete or belongs to another program."""
    assert parse_connection_file(data) is None


@pytest.mark.parametrize(
    ("path", "cwd", "expected"),
    [
        ("train.py", "/home/u", "/home/u/train.py"),
        ("../train.py", "/home/u", "/home/train.py"),
        ("/a/./b/../train.py", None, "/a/train.py"),
        ("train.py", None, None),
        (None, "/home/u", None),
    ],
)
def test_relative_paths_need_a_folder(path, cwd, expected):
    """A path whose folder is unknown stays unknown."""
    assert expected == absolute(path, cwd)


def test_a_long_path_is_kept_and_one_that_no_file_can_have_is_none():
    """A system path has at most 4096 bytes."""
    long = "/" + "/".join(["d" * 254] * 16)
    assert 4080 == len(long)

    assert f"{long}/train.py" == absolute("train.py", long)
    assert f"{long}/train.py" == absolute(f"{long}/train.py", None)
    assert absolute(f"{'d' * 50}/train.py", long) is None
    assert absolute("x" * 65_536, "/home/u") is None


def test_a_kernel_of_many_notebooks_has_a_name_that_can_be_shown():
    """All paths stay known, because each of them names the kernel."""
    sessions = [Session(f"/p/{number}-{'x' * 200}.ipynb", NOTEBOOK) for number in range(100)]

    found = name_kernel(sessions, None, [], None)

    assert 270 == len(found.name)
    assert found.name.startswith("0-xxx")
    assert 100 == len({found.notebook, *found.others})


def _facts(
    command: str,
    environ: dict[str, str],
    parent: str,
    ppid: int = 10,
    parent_environ: dict[str, str] | None = None,
):
    return kernel_facts(
        identify(command.split()),
        command.split(),
        ppid,
        "/cwd",
        variables=environ,
        reads=ProcessReaders(
            argv={ppid: tuple(parent.split())}.__getitem__,
            environ=lambda _: parent_environ or {},
            cwd={ppid: "/above"}.__getitem__,
        ),
    )


def test_papermill_inside_a_notebook_is_not_that_notebook():
    """The inner kernel inherits the outer environment; its parent's command line is right."""
    found = _facts(
        "python -m ipykernel_launcher -f /tmp/x.json",
        {"JPY_SESSION_NAME": "/p/outer.ipynb", "JPY_PARENT_PID": "10"},
        "python /b/papermill inner.ipynb out.ipynb",
    )

    assert ("/above/inner.ipynb",) == found.parent_notebooks


def test_kernel_that_a_notebook_starts_is_not_that_notebook():
    """It inherits the notebook's name in its environment and its connection file."""
    environ = {"JPY_SESSION_NAME": "/p/outer.ipynb", "JPY_PARENT_PID": "10"}
    command = "python -m ipykernel_launcher -f /tmp/x.json"

    inner = _facts(command, environ, "python -m ipykernel_launcher -f /y", parent_environ=environ)
    served = _facts(command, environ, "python /b/jupyter-lab", parent_environ={})

    assert (None, "/p/outer.ipynb") == (inner.session_name, served.session_name)


@pytest.mark.parametrize(
    ("command", "parent", "expected"),
    [
        (
            "python -m ipykernel_launcher -f /t/x.json",
            "python /b/jupyter-console",
            "jupyter-console",
        ),
        ("python -m ipykernel_launcher -f /t/x.json", "python -m qtconsole", "qtconsole"),
        ("python -m spyder_kernels.console -f /t/x.json", "python /b/spyder", "Spyder console"),
        ("python -m spyder_kernels.console -f /t/kernel-x.json", "", "Spyder console"),
        ("python -m ipykernel_launcher -f /t/x.json", "python /b/jupyter-lab", None),
        ("python -m ipykernel_launcher -f /t/x.json", "python train.py", None),
    ],
)
def test_kernel_behind_a_prompt_is_a_console(command, parent, expected):
    """Its user sees a prompt instead of a notebook."""
    assert expected == _facts(command, {}, parent).console


def test_fork_of_a_kernel_is_none():
    """A DataLoader's worker in a notebook has the kernel's command line."""
    argv = ["python", "-m", "ipykernel_launcher", "-f", "/t/kernel-1.json"]
    program = identify(argv)

    worker = program_of_fork(program, argv, 10, lambda _: argv)

    assert (PYTHON, "forked worker of kernel") == (worker.kind, worker.name)
    assert worker.connection_file is None
    assert program == program_of_fork(program, argv, 10, lambda _: ["python", "/b/jupyter-lab"])


def test_server_that_opened_a_notebook_does_not_name_its_kernels():
    """`jupyter lab train.ipynb` serves other notebooks too."""
    found = _facts(
        "python -m ipykernel_launcher -f /tmp/x.json",
        {"JPY_SESSION_NAME": "/p/other.ipynb"},
        "python /b/jupyter-lab train.ipynb",
    )

    assert ((), "/p/other.ipynb") == (found.parent_notebooks, found.session_name)


def test_kernel_that_hides_behind_a_title_is_found():
    """setproctitle overwrites the command line; Jupyter's variables identify it."""
    environ = {"JPY_PARENT_PID": "10", "JPY_SESSION_NAME": "/p/a.ipynb"}

    assert "/p/a.ipynb" == _facts("busy", environ, "python /b/jupyter-lab").session_name


def test_child_that_inherited_the_variables_is_no_kernel():
    """A worker of a kernel has the kernel's environment, but another parent."""
    environ = {"JPY_PARENT_PID": "10", "JPY_SESSION_NAME": "/p/a.ipynb"}

    assert _facts("worker", environ, "python x.py", ppid=99) is None


@pytest.mark.parametrize(
    ("parent_pid", "expected"),
    [("10", (10,)), ("7", (10, 7)), ("", (10,)), ("x", (10,)), ("-3", (10,)), ("٣", (10,))],
)
def test_possible_servers_are_the_parent_and_whom_jupyter_names(parent_pid, expected):
    """A wrapper can stand between a server and its kernel."""
    found = _facts("python -m ipykernel_launcher -f /t/x.json", {"JPY_PARENT_PID": parent_pid}, "")

    assert expected == found.server_pids
