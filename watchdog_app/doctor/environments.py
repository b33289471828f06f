"""
The Python environments that trainings run in: which exist, and what each contains.

A child process imports each framework, so that a crash of one does not hide the others.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watchdog_app.base.children import is_frozen
from watchdog_app.base.errors import UsageError
from watchdog_app.base.text.quantities import GIB
from watchdog_app.doctor import children, versions
from watchdog_app.doctor.machine import Machine, Process
from watchdog_app.doctor.versions import Version
from watchdog_app.install.pythons import kernels, python_of

GIVEN = "--python"  # source of an environment that the user named
TENSORFLOWS = ("tensorflow", "tensorflow-gpu", "tensorflow-cpu", "tf-nightly", "intel-tensorflow")
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}

_PYTHON_HINT = "Name an interpreter, a virtual environment or a conda environment: --python PATH"
_MARK = "@watchdog-doctor "
_PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe.py")
_MOST = 4  # environments; more would take minutes
_CAUSES = {
    None: "framework.slow",
    -signal.SIGILL: "framework.cpu-instructions",
    -signal.SIGKILL: "framework.killed",
}
_VERSIONS_S = 15.0
_IMPORT_BYTES = 2 * GIB  # TensorFlow with its CUDA libraries takes about 1 GiB


@dataclass(frozen=True, slots=True)
class Answer:
    """What a framework said about itself."""

    values: Mapping[str, Any] = field(default_factory=dict)
    step: str | None = None  # step at which the probe ended early
    error: str | None = None  # how it ended early; None: it completed
    cause: str = "framework.broken"  # finding for this kind of early end
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """One interpreter and its packages."""

    python: str
    source: str  # how it was found: "VIRTUAL_ENV", "--python"
    installed: Answer = field(default_factory=Answer)
    frameworks: Mapping[str, Answer] = field(default_factory=dict)  # imported frameworks

    @property
    def dists(self) -> dict[str, str]:
        """Versions of the relevant distributions, by name."""
        found = self.installed.values.get("dists")
        return found if isinstance(found, dict) else {}

    @property
    def conda(self) -> list[str]:
        """Relevant conda packages, `name-version-build`."""
        found = self.installed.values.get("conda")
        return found if isinstance(found, list) else []

    def version(self, framework: str) -> str | None:
        """Return the version of an installed framework; None: not installed."""
        names = TENSORFLOWS if framework == "tensorflow" else (framework,)
        for name in names:
            if name in self.dists:
                return self.dists[name]
        for package in self.conda:
            name, _, rest = package.rpartition("-")[0].rpartition("-")
            if name in (framework, f"py{framework}"):
                return rest
        return None

    @property
    def python_version(self) -> Version:
        """Version of the interpreter; empty: unknown."""
        return versions.parse(self.installed.values.get("python"))

    @property
    def pip(self) -> str:
        """Command line of this environment's own pip."""
        return f"{shlex.quote(self.python)} -m pip"

    def text_values(self, framework: str) -> dict[str, Any]:
        """Return the values for texts about a framework of this environment."""
        return {
            "framework": FRAMEWORKS[framework],
            "version": self.version(framework),
            "python": self.python,
            "pip": self.pip,
        }


def find(machine: Machine, running: Iterable[Process]) -> list[tuple[str, str]]:
    """
    List interpreters and how each was found, the likeliest first.

    Raises:
        UsageError: the value of --python is neither an interpreter nor an environment.
    """
    if machine.python is not None:
        return [(_resolve_python(machine, machine.python), GIVEN)]
    found: list[tuple[str, str]] = []
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = machine.env.get(variable, "")
        python = _python_in_folder(folder) if os.path.isabs(folder) else None
        if python:
            found.append((python, variable))
    for process in running:
        python = _python_of_process(machine, process)
        if python:
            found.append((python, f"runs now, pid {process.pid}"))
    for name in ("python3", "python"):
        where = machine.command(name)
        if where:
            found.append((machine.path(where), f"{name} on the PATH"))
    if machine.is_real and sys.executable and not is_frozen():
        found.append((sys.executable, "watchdog's own"))
    for each in kernels(machine.env, machine.root.rstrip("/")):
        if each.python is not None and os.access(each.python, os.X_OK):
            found.append((each.python, f"Jupyter kernel {each.name}"))
    distinct: dict[str, tuple[str, str]] = {}
    for python, source in found:
        # Compare folders: the python of a virtual environment is a link to another environment's.
        distinct.setdefault(os.path.realpath(os.path.dirname(python)), (python, source))
    return list(distinct.values())[:_MOST]


def read_installed(machine: Machine, python: str, source: str) -> Environment:
    """Read which packages an interpreter has, without importing them."""
    # Give an environment that the user named the full timeout: an interpreter on a network disk can
    # need half a minute.
    limit = machine.timeout_s if source == GIVEN else min(_VERSIONS_S, machine.timeout_s)
    return Environment(python, source, _run_probe(machine, python, ["versions"], limit))


def import_frameworks(
    machine: Machine,
    environment: Environment,
    available_bytes: int | None,
    *,
    driver_hangs: bool,
    use_gpu: bool,
    report_progress: Callable[[str], None],
) -> Environment:
    """
    Import each framework of an environment and store what it says about itself.

    Args:
        machine: machine to examine.
        environment: from `read_installed`.
        available_bytes: available RAM; with too little nothing is imported.
        driver_hangs: import nothing, since an import would hang, too.
        use_gpu: whether to try a small computation on the GPU.
        report_progress: called with a text about the current step.
    """
    answers: dict[str, Answer] = {}
    for name, title in FRAMEWORKS.items():
        if environment.version(name) is None:
            continue
        if driver_hangs:
            answers[name] = Answer(error="the driver hangs", cause="framework.use.driver-hangs")
        elif available_bytes is not None and available_bytes < _IMPORT_BYTES:
            answers[name] = Answer(error="too little RAM", cause="framework.use.no-memory")
        else:
            report_progress(f"importing {title}")
            words = [name, "use"] if use_gpu else [name]
            answers[name] = _run_probe(machine, environment.python, words, machine.timeout_s)
    return replace(environment, frameworks=answers)


def _run_probe(machine: Machine, python: str, words: list[str], timeout_s: float) -> Answer:
    env = {
        **machine.env,
        # TensorFlow reports missing libraries at log level 0.
        "TF_CPP_MIN_LOG_LEVEL": "0",
        # The probe must not take the whole card from a running training.
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    env.pop("TF_GPU_ALLOCATOR", None)
    env.pop("__PYVENV_LAUNCHER__", None)
    # A notebook imports modules from its own folder, so the probe runs there, too. The folder may
    # have been removed.
    folder = machine.cwd if os.path.isdir(machine.cwd) else "/"
    try:
        ended = children.run([python, _PROBE, *words], timeout_s, env, cwd=folder)
    except OSError as error:
        return Answer(error=f"{python} could not be started: {error.strerror or error}")
    return parse_probe(ended)


def parse_probe(ended: children.ChildResult) -> Answer:
    """Parse a probe's output, which may contain other lines and end at any point."""
    values: dict[str, Any] = {}
    step: str | None = None
    error: str | None = None
    heard = False
    for said in ended.objects(_MARK):
        heard = True
        if isinstance(said.get("result"), dict):
            values.update(said["result"])
        if "step" in said:
            step = said["step"]
        if isinstance(said.get("error"), str):
            error = said["error"]
    if error is None and (ended.code != 0 or not heard):
        last = ended.stderr.strip().splitlines()[-1:]
        error = ended.end_text + (f": {last[0].strip()}" if last and not ended.timed_out else "")
        if ended.code == 0:
            error = "it ended well and answered nothing, as no Python does"
    cause = _CAUSES.get(ended.code, "framework.broken")
    return Answer(values, step if error else None, error, cause, ended.stderr)


def _resolve_python(machine: Machine, word: str) -> str:
    """Find the interpreter that --python names: a program, a folder, or a conda environment."""
    path = os.path.join(machine.cwd, os.path.expanduser(word)) if word else ""
    if os.path.isdir(path):
        python = _python_in_folder(path)
        if python is None:
            raise UsageError(f"{word} holds no bin/python that you may run. {_PYTHON_HINT}")
        return python
    if os.access(path, os.X_OK):
        return path
    if os.path.exists(path):
        raise UsageError(f"{word} cannot be run. {_PYTHON_HINT}")
    found = machine.command(word) if os.sep not in word else None
    if found:
        return machine.path(found)
    known = machine.read(machine.env.get("HOME", "/"), ".conda/environments.txt") or ""
    for folder in map(str.strip, known.splitlines()):
        python = _python_in_folder(folder) if os.path.basename(folder) == word else None
        if python:
            return python
    raise UsageError(f"There is no Python at {word!r}. {_PYTHON_HINT}")


def _python_in_folder(folder: str) -> str | None:
    path = python_of(folder)
    return path if os.access(path, os.X_OK) and not os.path.isdir(path) else None


def _python_of_process(machine: Machine, process: Process) -> str | None:
    """Find the interpreter of this user's kernel or training; None: the process is neither."""
    if process.uid != machine.uid or not process.argv:
        return None
    kernel = any("ipykernel" in word for word in process.argv[:4])
    if not kernel:
        maps = machine.read("/proc", str(process.pid), "maps") or ""
        if "tensorflow" not in maps and "libtorch" not in maps and "jaxlib" not in maps:
            return None
    first = process.argv[0]
    # The command's path identifies the environment; the executable behind its link does not.
    if os.path.isabs(first) and os.path.basename(first).startswith("python"):
        return first if os.access(first, os.X_OK) else None
    return None
