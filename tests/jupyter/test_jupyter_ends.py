"""A real Jupyter server interrupts, restarts and culls kernels that train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import JupyterServer, Kernel
from support.waiting import until

PROGRAM = Path(__file__).parent.parent / "agent" / "programs" / "announced.py"
CULLED_AFTER_S = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    folder = tmp_path_factory.mktemp("server")
    env = {
        "WATCHDOG_RUNTIME_DIR": str(folder / "run"),
        "WATCHDOG_STATE_DIR": str(folder / "state"),
        "WATCHDOG_AGENT_STRICT": "1",
    }
    found = JupyterServer(
        folder,
        f"--MappingKernelManager.cull_idle_timeout={CULLED_AFTER_S}",
        "--MappingKernelManager.cull_interval=1",
        "--MappingKernelManager.cull_busy=True",
        env=env,
    )
    yield found.wait()
    found.close()


CELL = """
import sys
sys.argv = ["announced.py", {folder!r}, open({folder!r} + "/case").read()]
exec(compile(open({program!r}).read(), "announced.py", "exec"))
"""


def begin(kernel: Kernel, folder: Path, case: str) -> str:
    """Run the cell, whose text is the same for each case; return its message."""
    (folder / "case").write_text(case)
    return kernel.begin(CELL.format(folder=str(folder), program=str(PROGRAM)))


def train(kernel: Kernel, folder: Path) -> str:
    """Begin to train in a cell; return its message when steps have ended."""
    message = begin(kernel, folder, "training")
    until((folder / "third-step").exists, "it trains")
    return message


def rescues(folder: Path) -> list[Path]:
    return sorted(folder.glob("rescue-*"))


def test_a_restarted_kernel_is_saved_and_resumed_only_on_request(
    server: JupyterServer, tmp_path: Path
) -> None:
    kernel = server.open("restarted.ipynb")
    train(kernel, tmp_path)

    kernel.restart()

    (saved,) = rescues(tmp_path)
    said = kernel.finish(begin(kernel, tmp_path, "short"))
    assert f"{saved} was saved when its kernel was shut down or restarted" in said
    assert "resumed from step" not in said
    said = kernel.finish(begin(kernel, tmp_path, "short newest"))
    assert "resumed from step" in said


def test_an_interrupted_cell_gets_its_interrupt_and_nothing_is_saved(
    server: JupyterServer, tmp_path: Path
) -> None:
    kernel = server.open("interrupted.ipynb")
    message = train(kernel, tmp_path)

    server.rest("POST", f"api/kernels/{kernel.id}/interrupt")

    assert "KeyboardInterrupt" in kernel.finish(message)
    assert rescues(tmp_path) == []


def test_a_culled_kernel_is_saved(server: JupyterServer, tmp_path: Path) -> None:
    kernel = server.open("culled.ipynb")
    train(kernel, tmp_path)
    kernel.close()

    until(lambda: rescues(tmp_path), "it is culled and saved")
