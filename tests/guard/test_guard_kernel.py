"""A Jupyter kernel under a guard: a jump is an error in one cell, and the variables stay."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.finished import finished

pytest.importorskip("ipykernel")
client_of = pytest.importorskip("jupyter_client.manager")

READY_S = 120.0
ANNOUNCED = Path(__file__).parent.parent / "agent" / "programs" / "announced.py"


def watchdog(desk, *words):
    return finished(
        [sys.executable, "-m", "watchdog_app", *words],
        env={
            **desk.env,
            "HOME": str(desk.folder / "home"),
            "XDG_DATA_HOME": "",
            "JUPYTER_DATA_DIR": str(desk.folder / "jupyter"),
        },
    )


@contextmanager
def kernel(desk, name):
    manager = client_of.KernelManager(kernel_name=name)
    manager.kernel_spec_manager.kernel_dirs = [str(desk.folder / "jupyter" / "kernels")]
    manager.start_kernel(
        cwd=str(desk.folder), env={**desk.env, "IPYTHONDIR": str(desk.folder / "ipython")}
    )
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=READY_S)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def run(client, code):
    """The output of a cell, or the name of its error."""
    said = []

    def hear(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=60, output_hook=hear)
    return reply["content"].get("ename") or "".join(said)


def test_a_kernel_that_jumps_lives_on_with_its_variables(desk):
    """
    `watchdog exec --kernel` creates a kernel, whose guard refuses a jump, and removes it cleanly.
    """
    made = watchdog(desk, "exec", "--kernel", "--limit", "400M")
    spec = desk.folder / "jupyter" / "kernels" / "python3-guarded"
    argv = json.loads((spec / "kernel.json").read_text())["argv"]
    with kernel(desk, "python3-guarded") as client:
        named = run(client, "print(watchdog.resume.__name__)")
        group = run(client, "print(open('/proc/self/cgroup').read())")
        run(client, "kept = list(range(1000))")
        jump = run(client, "bytearray(1200 << 20)")
        after = run(client, "print(sum(kept))")
    desk.until(lambda: not list((desk.folder / "run" / "guard").glob("*")), "the guard is left")
    undone = watchdog(desk, "exec", "--kernel", "--undo")

    assert (0, "") == (made.returncode, made.stderr)
    assert os.path.isabs(argv[argv.index("--") + 1])
    assert "resume\n" == named
    assert "watchdog-guard-" in group
    assert ("MemoryError", "499500\n") == (jump, after)
    assert 0 == undone.returncode
    assert not spec.exists()
    # The records of its guards stay, because `watchdog explain` uses them.
    left = [path for path in Path(desk.folder / "state").rglob("*") if path.is_file()]
    assert ["guards"] == [path.parent.name for path in left]


def test_a_kernel_that_is_held_goes_on_where_it_was_with_more(desk):
    """Memory that is being filled cannot be refused: the cell waits, and then finishes."""
    watchdog(desk, "exec", "--kernel", "--limit", "250M", "--no-refuse")
    with kernel(desk, "python3-guarded") as client:
        run(client, "kept = 41")
        client.execute("big = bytearray(b'x') * (400 << 20)")
        guard = desk.until(lambda: held(desk), "never held")
        told = desk.run("limit", str(guard["pid"]), "900M")
        after = run(client, "print(len(big) >> 20, kept + 1)")

    assert 0 == told.returncode, told.stderr
    assert "400 42\n" == after


def test_a_kernel_that_its_guard_ends_is_resumed_by_the_next(desk):
    """Nobody shut it down: its training begins where it was saved."""
    watchdog(desk, "exec", "--kernel", "--limit", "400M")
    short = desk.folder / "short"
    cell = (
        f"import os, sys; sys.argv = ['it', {str(desk.folder / 'rescues')!r}, 'training']\n"
        f"sys.argv[2] = 'short' if os.path.exists({str(short)!r}) else 'training'\n"
        f"exec(compile(open({str(ANNOUNCED)!r}).read(), 'announced.py', 'exec'))"
    )
    (desk.folder / "rescues").mkdir()
    with kernel(desk, "python3-guarded") as client:
        client.execute(cell)
        desk.until((desk.folder / "rescues" / "third-step").exists, "it never trained")
        (path,) = (desk.folder / "run" / "guard").glob("*/guard.json")
        pid = str(json.loads(path.read_text())["pid"])
        desk.run("limit", pid, "40M")
        desk.until(lambda: held(desk), "never held")
        desk.run("limit", pid, "--end")
        desk.until(lambda: list((desk.folder / "rescues").glob("rescue-*")), "never saved")
    short.touch()
    with kernel(desk, "python3-guarded") as client:
        said = run(client, cell)

    assert "resumed from step" in said


@pytest.mark.slow
def test_a_kernel_that_was_interrupted_at_its_limit_can_free_its_memory(desk):
    """It keeps the reserve longer than a script, which gets 30 s to end."""
    watchdog(desk, "exec", "--kernel", "--limit", "250M", "--no-refuse")
    with kernel(desk, "python3-guarded") as client:
        run(client, "import time; kept = []")
        client.execute("while True: kept.append(bytearray(b'x') * (4 << 20)); time.sleep(0.02)")
        desk.until(lambda: held(desk), "never held")
        client.parent.interrupt_kernel()
        desk.until(lambda: state(desk) == "exiting", "the interrupt was not noticed")
        time.sleep(45)
        after_wait = state(desk)
        freed = run(client, "kept.clear(); print('freed')")
        desk.until(lambda: state(desk) == "running", "never running again")

    assert ("exiting", "freed\n") == (after_wait, freed)


def state(desk):
    """The state in the record of the one guard."""
    (path,) = (desk.folder / "run" / "guard").glob("*/guard.json")
    return json.loads(path.read_text())["state"]


def held(desk):
    for path in (desk.folder / "run" / "guard").glob("*/guard.json"):
        found = json.loads(path.read_text())
        if found["state"] == "stopped":
            return found
    return None
