"""A real JupyterLab with the extension of this checkout, in a real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import NO_PAUSE, World
from real_server import JupyterServer

from watchdog_app.base.errors import ActionError
from watchdog_app.base.jupyter import user_startup_file
from watchdog_app.guard.backends import create
from watchdog_app.install import trust

if TYPE_CHECKING:
    from playwright.sync_api import Page

EXTENSION = Path(__file__).parents[2] / "packaging" / "jupyterlab"
CHROMIUM = shutil.which("chromium")
LIMIT = 1100 << 20  # PyTorch's files count too

# A fit that leaks, frees, dies or ends when the file of that name exists.
DEFINITIONS = """\
import os, signal, time
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
class Ordered(keras.callbacks.Callback):
    held = []
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.05)
        if os.path.exists("leak"):
            self.held.append(b"x" * (2 << 20))
        if os.path.exists("free"):
            self.held.clear()
        if os.path.exists("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.path.exists("end"):
            self.model.stop_training = True
x = np.random.default_rng(1).normal(size=(640, 8)).astype("float32")
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
"""
FIT = 'model.fit(x, x[:, :1], 16, 1000, verbose=0, callbacks=[Ordered()])\nprint("has ended")'


def require() -> str:
    """The path of Chromium; skips the test where something is missing."""
    for module in ("jupyterlab", "playwright"):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    return CHROMIUM


def use_extension(config: Path, data: Path) -> None:
    """Put what the wheel installs into the folders that a server uses."""
    servers, pages = config / "jupyter_server_config.d", data / "labextensions"
    for folder in (servers, pages):
        folder.mkdir(parents=True)
    (servers / "watchdog.json").symlink_to(EXTENSION / "watchdog.json")
    (pages / "watchdog-app").symlink_to(EXTENSION / "labextension")


@contextmanager
def lab(folder: Path) -> Iterator[tuple[World, JupyterServer]]:
    """A daemon, and a JupyterLab whose kernels "roomy" have the agent and a memory limit."""
    world = World(folder)
    env = {**world.env, "IPYTHONDIR": str(folder / "ipython")}
    own = Path(user_startup_file(env))
    own.parent.mkdir(parents=True)
    own.write_bytes(trust.startup_file())
    use_extension(folder / "config", folder / "data")
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    env["JUPYTERLAB_SETTINGS_DIR"] = str(folder / "settings")
    try:
        group = create(f"watchdog-lab-{os.getpid()}", LIMIT)
    except ActionError as error:
        pytest.skip(str(error))
    spec = folder / "data" / "kernels" / "roomy"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": group.command(argv), "display_name": "roomy", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(about))
    server = JupyterServer(folder, env=env)
    try:
        world.start_daemon(NO_PAUSE)
        yield world, server.wait()
    finally:
        server.close()
        world.close()
        group.close()


@contextmanager
def browser_page(server: JupyterServer, **options: Any) -> Iterator[Page]:
    """
    A page of Chromium that is logged in.

    Args:
        server: a server that answers.
        options: of the page, as for `Browser.new_page`.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=require(), args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": 1100, "height": 700}, **options)
            page.set_default_timeout(60_000)
            yield page
        finally:
            browser.close()


def address(server: JupyterServer, notebook: str, app: str = "lab/tree") -> str:
    """The address of a notebook in JupyterLab, with the token and an empty workspace."""
    return f"{server.about['url']}{app}/{notebook}?token={server.token}&reset"
