"""The child of `watchdog estimate`: which Python it is, how it is started, heard and ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

from watchdog_app.base.errors import UsageError, WatchdogError
from watchdog_app.base.text.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LAST_LINES = 3  # of what it wrote on its standard error, where it died

# The package of this very program, whatever Python runs it: nothing else of this program's
# environment may come before that Python's own packages.
_BOOT = """\
import importlib.util, sys
root = {root!r}
spec = importlib.util.spec_from_file_location(
    "watchdog_app", root + "/__init__.py", submodule_search_locations=[root])
sys.modules["watchdog_app"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from watchdog_app.estimate.child import main
main()
"""


def interpreter(named: str | None) -> str:
    """
    The Python that has the framework.

    Raises:
        UsageError: there is none by that name.
    """
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"--python: there is no program {named}.")
        return found
    folder = "Scripts" if sys.platform == "win32" else "bin"
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        root = os.environ.get(name)
        found = shutil.which(os.path.join(root, folder, "python")) if root else None
        if found is not None:
            return found
    frozen = getattr(sys, "frozen", False)  # this program is no Python then
    if not frozen and _has_framework():
        return sys.executable
    on_path = shutil.which("python") or shutil.which("python3")
    if on_path is not None:
        return on_path
    if frozen:
        raise UsageError("There is no Python on PATH. Name the one that trains: --python PATH")
    return sys.executable


def ask(python: str, plan: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """
    Run the child to its answer; what it is doing is shown on a terminal meanwhile.

    Raises:
        WatchdogError: it said what is wrong, died or took too long.
        KeyboardInterrupt: Ctrl-C; the child is ended.
    """
    import tempfile

    words = [python, "-c", _BOOT.format(root=_root())]
    read_fd, write_fd = os.pipe()
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    with tempfile.TemporaryFile() as errors, os.fdopen(read_fd, "rb") as answers:
        try:
            child = subprocess.Popen(
                [*words, json.dumps({**plan, "answer_fd": write_fd})],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=env,
                pass_fds=(write_fd,),
                start_new_session=True,
                preexec_fn=_limited(plan) if plan.get("measure") else None,  # noqa: PLW1509
            )
        except OSError as error:
            raise WatchdogError(f"{python} cannot be started: {error.strerror}.") from error
        finally:
            os.close(write_fd)
        try:
            answer = _answer(answers.fileno(), time.monotonic() + timeout_s)
        finally:
            _end(child)
            _progress("")
        if answer is None:
            raise WatchdogError(
                f"No answer within {format_duration(timeout_s)}. --timeout gives it longer."
            )
        if "error" in answer:
            raise WatchdogError(str(answer["error"]))
        if not answer:
            errors.seek(0)
            raise WatchdogError(_death(python, child.returncode, errors.read()))
    return answer


def _answer(fd: int, end_mono_s: float) -> dict[str, Any] | None:
    """The last message; empty where there is none before the end, None at the deadline."""
    import select

    held = b""
    while True:
        left = end_mono_s - time.monotonic()
        if left <= 0:
            return None
        if not select.select([fd], [], [], left)[0]:
            continue
        piece = os.read(fd, 65536)
        if not piece:
            return {}
        held += piece
        *lines, held = held.split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if "progress" not in message:
                return message
            _progress(f"{message['progress']} ...")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    """Its whole session: a script may have started workers."""
    try:
        child.wait(0.5)  # an answer is its last act
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    child.wait()


def _limited(plan: dict[str, Any]) -> Any:
    """A measured run must not take the machine down: its address space ends above the limit."""
    limit = plan.get("limit")
    if not limit:
        return None

    def limit_address_space() -> None:
        import resource

        # Frameworks reserve some gigabytes that they never use.
        most = int(limit) + 16 * 2**30
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    return limit_address_space


def _death(python: str, code: int, errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").strip().splitlines()[-_LAST_LINES:]
    if code == -signal.SIGKILL:
        return "The estimate was killed, most likely because memory ran out."
    said = f" It said: {' / '.join(lines)}" if lines else ""
    return f"{python} ended with status {code} and no answer.{said}"


def _has_framework() -> bool:
    import importlib.util

    return any(importlib.util.find_spec(name) for name in ("torch", "keras", "tensorflow"))


def _root() -> str:
    import watchdog_app

    root = os.path.dirname(os.path.abspath(watchdog_app.__file__ or ""))
    if not os.path.isfile(os.path.join(root, "estimate", "child.py")):
        raise WatchdogError(
            "This watchdog is one program without a package that other Pythons could import. "
            "Install it where the framework is: python -m pip install watchdog-app"
        )
    return root
