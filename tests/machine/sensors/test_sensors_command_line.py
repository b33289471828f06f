"""The program of a Python process, from its command line."""

from __future__ import annotations

import shlex

import pytest

from watchdog_app.core.model.machine import TaskKind
from watchdog_app.machine.sensors.command_line import (
    identify,
    is_interpreter,
    kernel_id,
    truncate_argv,
)

UUID = "0f21e5a4-86a8-4d52-9c1c-7a0a3ce1b111"


@pytest.mark.parametrize(
    ("command", "kind", "name"),
    [
        ("python train.py", TaskKind.SCRIPT, "train.py"),
        ("/venv/bin/python -u train.py --epochs 5", TaskKind.SCRIPT, "train.py"),
        ("python -uBX dev -W ignore -Xfaulthandler train.py -m x", TaskKind.SCRIPT, "train.py"),
        ("python --check-hash-based-pycs never train.py", TaskKind.SCRIPT, "train.py"),
        ("python -W train.py", TaskKind.PYTHON, "python"),
        ("python dir/train/", TaskKind.SCRIPT, "train"),
        ("python train/__main__.py", TaskKind.SCRIPT, "train/__main__.py"),
        ("python -m package.train", TaskKind.MODULE, "package.train"),
        ("python -um package.train x.py", TaskKind.MODULE, "package.train"),
        ("python -mtrain", TaskKind.MODULE, "train"),
        ("python -m", TaskKind.MODULE, "python -m"),
        ("python", TaskKind.PYTHON, "python"),
        ("python -i", TaskKind.PYTHON, "python"),
        ("python -", TaskKind.PYTHON, "python -"),
        ("python -c 'import time'", TaskKind.PYTHON, "python -c import time"),
        (
            "python -c 'from multiprocessing.spawn import spawn_main; spawn_main(a=5)' --x",
            TaskKind.PYTHON,
            "multiprocessing worker",
        ),
        (
            "python -s -c 'from multiprocessing.resource_tracker import main;main(5)'",
            TaskKind.PYTHON,
            "multiprocessing resource tracker",
        ),
        ("ray::IDLE", TaskKind.PYTHON, "ray::IDLE"),
        ("'my job: epoch 5'", TaskKind.PYTHON, "my job: epoch 5"),
        ("python /venv/bin/jupyter-lab --no-browser", TaskKind.SERVER, "jupyter-lab"),
        ("python -m jupyter lab", TaskKind.SERVER, "jupyter-lab"),
        ("python -m jupyter_server", TaskKind.SERVER, "jupyter_server"),
        ("python -m notebook train.ipynb", TaskKind.SERVER, "notebook"),
        ("python /usr/bin/supervisord -n", TaskKind.SERVER, "supervisord"),
        ("python /b/jupyterhub-singleuser --port=1", TaskKind.SERVER, "jupyterhub-singleuser"),
        ("python -m jupyterhub.singleuser", TaskKind.SERVER, "jupyterhub.singleuser"),
        ("python /b/jupyter kernelgateway", TaskKind.SERVER, "jupyter-kernelgateway"),
        ("python -m kernel_gateway", TaskKind.SERVER, "kernel_gateway"),
        ("python /b/jupyter kernel", TaskKind.SERVER, "jupyter-kernel"),
        ("python -m jupyter_client.kernelapp", TaskKind.SERVER, "jupyter_client.kernelapp"),
        ("python /b/ptipython", TaskKind.CONSOLE, "ptipython"),
        ("python -m jupyter console", TaskKind.CONSOLE, "jupyter-console"),
        ("python /venv/bin/ipython", TaskKind.CONSOLE, "ipython"),
        ("python /venv/bin/ipython -i train.py", TaskKind.SCRIPT, "train.py"),
        ("python /venv/bin/torchrun --nproc-per-node 4 train.py", TaskKind.SCRIPT, "train.py"),
        ("python -m torch.distributed.run --nproc 4 a/train.py", TaskKind.SCRIPT, "train.py"),
        ("python /venv/bin/accelerate launch train.py --lr 1", TaskKind.SCRIPT, "train.py"),
        ("python -m cProfile -o out train.py", TaskKind.SCRIPT, "train.py"),
        ("python /x/debugpy/launcher 4123 -- /home/u/train.py", TaskKind.SCRIPT, "train.py"),
        ("python /x/pydevd.py --port 1 --file /home/u/train.py", TaskKind.SCRIPT, "train.py"),
        ("python /venv/bin/marimo edit flow.py", TaskKind.NOTEBOOK, "flow.py"),
        ("python -m marimo edit", TaskKind.SERVER, "marimo"),
        ("python /venv/bin/papermill in.ipynb out.ipynb", TaskKind.SCRIPT, "papermill"),
        # Scripts with the names of known programs are still scripts.
        ("python trace.py", TaskKind.SCRIPT, "trace.py"),
        ("python notebook.py lab", TaskKind.SCRIPT, "notebook.py"),
        ("python server.py", TaskKind.SCRIPT, "server.py"),
        ("python .py", TaskKind.SCRIPT, ".py"),
        ("python '-rf .py'", TaskKind.PYTHON, "python"),
        ("python 'a\nb.py'", TaskKind.SCRIPT, "a\nb.py"),
        # -f has another meaning in most programs.
        ("python train.py -f config.json", TaskKind.SCRIPT, "train.py"),
        ("python -m train -f=settings.json", TaskKind.MODULE, "train"),
        ("python -c 'kernel' -f x.json", TaskKind.PYTHON, "python -c kernel"),
    ],
)
def test_process_is_named_as_its_user_knows_it(command: str, kind: TaskKind, name: str):
    """Kind and name come from the interpreter's arguments."""
    program = identify(shlex.split(command), "/usr/bin/python3.11")

    assert (kind, name) == (program.kind, program.name)
    assert not program.own


@pytest.mark.parametrize(
    ("command", "connection_file", "expected_id"),
    [
        (
            f"python -m ipykernel_launcher -f /run/kernel-{UUID}.json",
            f"/run/kernel-{UUID}.json",
            UUID,
        ),
        (
            f"python -m ipykernel_launcher --f=/run/kernel-{UUID}.json",
            f"/run/kernel-{UUID}.json",
            UUID,
        ),
        (
            f"python -m ipykernel_launcher -f=/run/kernel-{UUID}.json",
            f"/run/kernel-{UUID}.json",
            UUID,
        ),
        (
            "python -m ipykernel_launcher --f=/r/kernel-v35a1c.json",
            "/r/kernel-v35a1c.json",
            "v35a1c",
        ),
        (
            "python -Xfrozen_modules=off -m ipykernel_launcher -f /t/tmpab.json",
            "/t/tmpab.json",
            None,
        ),
        ("python -m ipykernel -f /t/tmpab.json", "/t/tmpab.json", None),
        ("python -m colab_kernel_launcher -f /r/kernel-1.json", "/r/kernel-1.json", "1"),
        ("python -m spyder_kernels.console -f /r/kernel-2.json", "/r/kernel-2.json", "2"),
        ("python /x/ipykernel_launcher.py -f /r/kernel-3.json", "/r/kernel-3.json", "3"),
        ("xpython -f /r/kernel-4.json", "/r/kernel-4.json", "4"),
        (
            "python -m ipykernel --IPKernelApp.connection_file=/r/kernel-5.json",
            "/r/kernel-5.json",
            "5",
        ),
        ("python -m bash_kernel -f /r/kernel-6.json", "/r/kernel-6.json", "6"),
    ],
)
def test_kernel_is_known_by_its_connection_file(
    command: str, connection_file: str, expected_id: str | None
):
    """Every spelling of the option; the file's name holds the kernel's id."""
    program = identify(command.split())

    assert TaskKind.KERNEL is program.kind
    assert connection_file == program.connection_file
    assert expected_id == kernel_id(connection_file)


@pytest.mark.parametrize("command", ["python -m ipykernel_launcher", "python /b/ipython kernel"])
def test_kernel_without_a_connection_file_is_a_kernel(command: str):
    """It creates the file itself; the name is not on the command line."""
    program = identify(command.split())

    assert (TaskKind.KERNEL, None) == (program.kind, program.connection_file)


@pytest.mark.parametrize(
    "command",
    [
        "python -m watchdog_app run",
        "python -m watchdog_app.cli status",
        "python -m watchdog_app.machine.gpu_reader",
        "/usr/bin/python3 /venv/bin/watchdog run",
        "python /venv/bin/watchdog status --watch",
        "python /venv/bin/watchdog --json",
        "python /src/watchdog_app/__main__.py run",
        "python -I -B -S /src/watchdog_app/guard/process.py begin /run/guard/1.2 3 6",
        "/venvs/tf/bin/python -I /src/watchdog_app/doctor/probe.py torch use",
        "python /src/watchdog_app run",
    ],
)
def test_watchdog_itself_is_never_a_task(command: str):
    """Every command that runs watchdog is marked as own."""
    assert identify(command.split()).own


@pytest.mark.parametrize(
    "command",
    [
        "python watchdog.py run",
        "python /home/u/watchdog --train",
        "python /home/u/watchdog run",
        "python train.py -m watchdog_app",
        "python -m watchdog_apple",
        "python -m watchdog",
        "python -m watchdog_app.demo.train",
        "python /tmp/demo/train.py",
    ],
)
def test_programs_with_similar_names_are_watched(command: str):
    """A user's script called watchdog, and the demo's training."""
    assert not identify(command.split()).own


def test_process_without_arguments_is_named_by_its_executable():
    """The command line may be empty or hidden."""
    assert "python3.11" == identify((), "/usr/bin/python3.11").name
    assert "python" == identify(()).name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin/python3.11", True),
        ("/usr/bin/python3-dbg", True),
        ("python3.13t", True),
        ("/opt/pypy/bin/pypy3.10", True),
        ("/nix/store/x/bin/.python3.12-wrapped", True),
        ("/Library/Frameworks/Python.app/Contents/MacOS/Python", True),
        ("graalpy", True),
        ("/usr/bin/bash", False),
        ("/usr/bin/ipython", False),
        ("/home/python/bin/node", False),
        ("", False),
    ],
)
def test_interpreters_are_known_by_file_name(path: str, *, expected: bool):
    """The folder does not matter."""
    assert expected is is_interpreter(path)


@pytest.mark.parametrize("argv", [["\\xff" * 65_536], ["python", "-m", "m" * 65_536]])
def test_a_title_of_any_length_is_a_name_that_can_be_shown(argv: list[str]):
    """A process can write anything over its command line."""
    assert 270 == len(identify(truncate_argv(argv), "/usr/bin/python3.11").name)


def test_names_of_files_are_whole_however_long():
    """Up to the longest file name, with the folder of a program that is a folder."""
    name, folder = "s" * 252 + ".py", "f" * 255

    assert name == identify(["python", f"/p/{name}"]).name
    assert f"{folder}/__main__.py" == identify(["python", f"/p/{folder}/__main__.py"]).name


def test_of_a_command_line_is_kept_what_is_of_use():
    """Ordinary command lines stay complete; a truncated path is longer than any real one."""
    ordinary = ("python", "train.py", "/data/" + "x" * 4000, *("--option",) * 200)

    found = truncate_argv(["python", "/" + "x" * 65_536, *("y" * 1000,) * 65])

    assert ordinary == truncate_argv(ordinary)
    assert ("python", 4097) == (found[0], len(found[1]))
    assert sum(map(len, found)) <= 4 * 4096
    assert kernel_id(f"/run/kernel-{'x' * 4000}.json") is None
