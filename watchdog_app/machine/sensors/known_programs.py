"""
Programs written in Python that are known by name, because their own name tells a user nothing.
"""

from __future__ import annotations

# They run somebody else's script: that script is what the user is waiting for.
LAUNCHERS = frozenset(
    (
        "accelerate",
        "coverage",
        "cprofile",
        "debugpy",
        "deepspeed",
        "horovodrun",
        "ipdb",
        "ipython",
        "ipython3",
        "kernprof",
        "launcher",
        "memory_profiler",
        "memray",
        "mprof",
        "pdb",
        "profile",
        "pudb",
        "pydevd",
        "pyinstrument",
        "runpy",
        "scalene",
        "streamlit",
        "torch.distributed.launch",
        "torch.distributed.run",
        "torchrun",
        "trace",
        "viztracer",
    )
)

# What they start is not a part of them: Jupyter's servers, supervisors, terminals, desktops.
SERVERS = frozenset(
    (
        "circusd",
        "guake",
        "honcho",
        "jupyter-enterprisegateway",
        "jupyter-kernel",
        "jupyter-kernelgateway",
        "jupyter-lab",
        "jupyter-labhub",
        "jupyter-nbclassic",
        "jupyter-notebook",
        "jupyter-server",
        "jupyter-voila",
        "jupyter_server",
        "jupyterhub",
        "jupyterhub-singleuser",
        "jupyterhub.singleuser",
        "kernel_gateway",
        "jupyterlab",
        "jupyter_client.kernelapp",
        "nbclassic",
        "notebook",
        "qtile",
        "spyder",
        "supervisord",
        "terminator",
        "voila",
        "xonsh",
    )
)

CONSOLES = frozenset(
    (
        "bpython",
        "jupyter-console",
        "jupyter-qtconsole",
        "jupyter_console",
        "ptipython",
        "ptpython",
        "pydevconsole",
        "qtconsole",
    )
)

# The only ones known by a name in .py: a user may well call a script trace.py or notebook.py.
KNOWN_FILES = frozenset(("pydevd.py", "pydevconsole.py"))

# The first word after `watchdog`; a test compares them with the commands that there are.
OWN_COMMANDS = frozenset(
    (
        "agent",
        "checkpoint",
        "completion",
        "config",
        "demo",
        "doctor",
        "estimate",
        "exec",  # until it has become the program that it was given
        "explain",
        "history",
        "install-desktop",
        "limit",
        "pause",
        "protect",
        "record",
        "reload",
        "replay",
        "rescues",
        "resume",
        "run",
        "snooze",
        "stacks",
        "start",
        "status",
        "stop",
        "top",
        "trace",
        "tray",
        "uninstall-desktop",
        "watch",
    )
)
