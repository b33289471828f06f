"""
The agent in a kernel: `%load_ext watchdog_app.agent`, the startup file, and `watchdog exec`.

Once on, the agent defines the name `watchdog` in the notebook and records which cells fail. If the
previous kernel died in the middle of a training, the agent says so in one line.
"""

from __future__ import annotations

from typing import Any

from watchdog_app.agent import hook
from watchdog_app.agent.contain import Guard
from watchdog_app.agent.wrapping import Wrapped

_NAME = "watchdog"
_offered = False
_shells = Wrapped()


def attach(module: Any) -> None:
    """Start in each kernel whose shell is made after this; `hook` calls it for ipykernel."""

    def make(init_events: Any) -> Any:
        def init_events_and_start(shell: Any) -> None:
            init_events(shell)
            with Guard("the start in a kernel"):
                if _shells.is_on:
                    _start_with_first_cell(shell.events)

        return init_events_and_start

    if not _shells.is_on:
        _shells.wrap(module.ZMQInteractiveShell, "init_events", make)


def detach() -> None:
    """Undo `attach`."""
    _shells.unwrap()


def load() -> None:
    """Switch the agent on in this kernel, and say so in one line."""
    from watchdog_app.agent.found import folders

    if not hook.switch_on():
        print("watchdog: it is on already in this kernel.")
        return
    directory, _ = folders.rescue_folder()
    print(
        f"watchdog: trainings are saved in {folders.display_path(directory)} when memory runs out. "
        "Off again: %unload_ext watchdog_app.agent"
    )
    _start()


def unload() -> None:
    """Undo `load`."""
    hook.switch_off()
    import watchdog_app

    names = _user_namespace()
    if names.get(_NAME) is watchdog_app:
        del names[_NAME]


def kernel_starts() -> None:
    """Start with the first cell; the startup file calls this."""
    from watchdog_app.rescue.identity.notebook import ipython_shell

    events = getattr(ipython_shell(), "events", None)
    if events is not None:
        _start_with_first_cell(events)


def _start_with_first_cell(events: Any) -> None:
    # Output has no cell to appear under before that.
    def first_cell(info: Any = None) -> None:
        events.unregister("pre_run_cell", first_cell)
        if hook.is_on():
            text = str(getattr(info, "raw_cell", ""))
            _start(quiet=f"{_NAME}.resume(" in text or "watchdog_app.resume(" in text)

    events.register("pre_run_cell", first_cell)


def _start(*, quiet: bool = False) -> None:
    import watchdog_app
    from watchdog_app.agent.runtime import kernel_cells
    from watchdog_app.rescue.identity.notebook import ipython_shell

    global _offered
    _report_notebook()
    with Guard("the look for a training that was left"):
        kernel_cells.record_failed_cells()
        # Do not touch a variable of the user's; a later `import watchdog` takes the name.
        if _user_namespace().setdefault(_NAME, watchdog_app) is watchdog_app:
            ipython_shell().user_ns_hidden[_NAME] = watchdog_app  # %who lists the user's own
        if quiet or _offered:
            return
        _offered = True
        from watchdog_app.agent import resume
        from watchdog_app.agent.found import folders

        what = resume.unfinished() if folders.is_resume_enabled() else None
        if what is not None:
            print(f"watchdog: {resume.offer_text(what)}")


def _report_notebook() -> None:
    """
    Send the daemon the path of this notebook, if only this kernel knows it: in VS Code.

    A separate thread sends one message. A daemon that starts later gets the path from the training.
    """
    from watchdog_app.rescue.identity.notebook import read_vscode_notebook

    path = read_vscode_notebook()
    if path is None:
        return

    def send() -> None:
        from contextlib import suppress

        from watchdog_app.base.errors import WatchdogError
        from watchdog_app.client.client import Client
        from watchdog_app.rescue.checkpoint.owner import this_process

        with suppress(WatchdogError, OSError), Client.connect(role="agent") as daemon:
            me = this_process()
            told = {"pid": me.pid, "start_time": me.start_time, "notebook": path}
            daemon.notify("agent.notebook", **told)

    import threading

    try:
        threading.Thread(target=send, name="watchdog-notebook", daemon=True).start()
    except RuntimeError:  # no more threads can be started
        pass


def _user_namespace() -> dict[str, Any]:
    from watchdog_app.rescue.identity.notebook import ipython_shell

    names: dict[str, Any] = getattr(ipython_shell(), "user_ns", {})
    return names
