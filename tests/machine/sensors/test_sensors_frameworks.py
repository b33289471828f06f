"""The framework and the environment of a process are known without an agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from sensor_trees import NOW_UNIX_S, Tree, by_pid
from support.records import info, process

from watchdog_app.machine.sensors.identity import (
    Loaded,
    LoadedReader,
    find_environment,
    find_framework,
)

_TORCH = "7f00-7f01 r-xp 00000000 08:01 12 /venv/lib/torch/lib/libtorch_cpu.so\n"
_OTHER = "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libc.so.6\n"
_MB = 1 << 20


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("torch/lib/libtorch_python.so", "torch"),
        ("torch/lib/libtorch.so", "torch"),
        ("tensorflow/libtensorflow_cc.so.2", "tensorflow"),
        ("tensorflow/python/_pywrap_tensorflow_internal.so", "tensorflow"),
        ("jaxlib/libjax_common.so", "jax"),
        ("jaxlib/xla_extension.so", "jax"),
        ("numpy/core/_multiarray_umath.so", None),
        ("mylibtorch/readme.so", None),
    ],
)
def test_a_framework_is_recognised_by_its_libraries(file: str, found: str | None) -> None:
    maps = f"7f00-7f01 r-xp 00000000 08:01 12   /venv/lib/{file}\n{_OTHER}"
    assert find_framework(maps.encode()) == found


def test_tensorflow_is_named_although_it_loads_files_of_jax() -> None:
    both = b"x /v/jaxlib/libjax_common.so\nx /v/tensorflow/libtensorflow_framework.so.2\n"
    assert find_framework(both) == "tensorflow"


def _venv(folder: Path, base: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(base)
    return folder


def test_the_environment_is_that_of_the_interpreter_and_not_of_the_server(tmp_path: Path) -> None:
    """
    A kernel inherits VIRTUAL_ENV from a Jupyter server of another environment. A bare name was
    found on PATH, in an environment that nobody need have activated.
    """
    base = tmp_path / "usr" / "bin" / "python3"
    base.parent.mkdir(parents=True)
    base.touch()
    (base.parent / "python").symlink_to(base)
    own, server = _venv(tmp_path / "tf", base), _venv(tmp_path / "lab", base)
    variables = {"PATH": f"{tmp_path}/none:{server}/bin:{own}/bin", "VIRTUAL_ENV": str(own)}
    kernel = info(process(1), exe=str(base), argv=(f"{own}/bin/python", "-m", "ipykernel"))
    assert find_environment(kernel, variables) == str(own)
    relative = info(process(1), exe=str(base), argv=("tf/bin/python", "x.py"), cwd=str(tmp_path))
    assert find_environment(relative, variables) == str(own)
    by_name = info(process(1), exe=str(base), argv=("python", "train.py"))
    assert find_environment(by_name, variables) == str(server)
    assert find_environment(by_name, {}) == str(tmp_path / "usr")
    assert find_environment(by_name, {"PATH": f"{base.parent}:{own}/bin"}) == str(tmp_path / "usr")


def test_a_process_is_read_at_ten_seconds_and_after_more_files_were_mapped() -> None:
    reader = LoadedReader()
    assert not reader.is_due(9.0, 12 * _MB)
    assert reader.is_due(10.0, 12 * _MB)
    reader.record(Loaded(None, "/venv", agent_waits=False), 12 * _MB)
    assert not reader.is_due(3600.0, 40 * _MB), "a framework adds more"
    assert reader.is_due(3600.0, 75 * _MB)
    reader.record(Loaded("torch", "/venv", agent_waits=False), 75 * _MB)
    assert not reader.is_due(7200.0, 900 * _MB), "nothing new to learn"


def test_a_sample_shows_the_framework_of_a_program(tree: Tree) -> None:
    machine = tree.machine()
    tree.write("431/maps", _OTHER)
    machine.sample(0.0, NOW_UNIX_S)
    assert by_pid(machine.sample(1.0, NOW_UNIX_S + 1))[431].framework is None
    tree.write("431/maps", _OTHER + _TORCH)
    tree.write("431/statm", "903735 203073 101637 1 0 1676 0")
    tree.fault(431)
    machine.sample(2.0, NOW_UNIX_S + 2)
    found = by_pid(machine.sample(3.0, NOW_UNIX_S + 3))[431]
    assert found.framework == "torch"


def test_the_hook_of_exec_and_of_an_environment_is_seen(tree: Tree, tmp_path: Path) -> None:
    shim = "PYTHONPATH=/venv/lib/watchdog_app/agent/shim\0HOME=/home/user\0"
    tree.write("431/environ", shim)
    placed = tmp_path / "etc" / "ipython" / "startup" / "90-watchdog.py"
    placed.parent.mkdir(parents=True)
    placed.touch()
    (tmp_path / "pyvenv.cfg").touch()
    kernel = (tree.proc / "420" / "cmdline").read_bytes()
    tree.write("420/cmdline", kernel.replace(b"/home/user/venv", str(tmp_path).encode()))
    infos = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))
    waits = {pid: infos[pid].agent_waits for pid in (420, 431, 440)}
    assert waits == {420: True, 431: True, 440: False}
