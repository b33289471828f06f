"""A real Jupyter kernel, driven as a notebook drives it."""

from __future__ import annotations

import json
import os
import queue
import time
from contextlib import contextmanager

from jupyter_client.manager import KernelManager

READY_S = 120.0


class Kernel:
    """Runs cells and returns their output as one text."""

    def __init__(self, manager, client):
        self._manager = manager
        self._client = client

    def run(self, code, timeout_s=200.0):
        """Return output and errors of a cell; return early if the kernel dies."""
        self._client.execute(code)
        text, until = "", time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                message = self._client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                if not self._manager.is_alive():
                    return text
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                text += "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return text
        raise AssertionError(f"The cell did not end:\n{text}")

    def is_alive(self):
        return self._manager.is_alive()


@contextmanager
def kernel(python, folder, kernel_id=None, **env):
    """Start a kernel of that Python in `folder` and stop it afterwards."""
    spec = folder / "jupyter" / "kernels" / "tried"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "tried", "language": "python"})
    )
    manager = KernelManager(kernel_name="tried")
    if kernel_id is not None:  # a Jupyter server keeps this id over restarts
        manager.connection_file = str(folder / f"kernel-{kernel_id}.json")
    manager.kernel_spec_manager.kernel_dirs = [str(spec.parent)]
    manager.start_kernel(
        cwd=str(folder), env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), **env}
    )
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=READY_S)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
