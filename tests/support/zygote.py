"""
Run test programs in forks of a process that has already imported TensorFlow with Keras, or PyTorch.

Example:
    zygote.run(PROGRAM, folder, env=...)    # as subprocess.run([sys.executable, PROGRAM, folder])

A fork has its program's arguments, environment, folder and output, and new random seeds. It shares
the hash seed, and /proc shows another command line.

With `--fresh` each program gets a new interpreter. Programs that enable the agent's hook before the
import always need a new interpreter. Use it from one thread of tests only, because two threads
would start two zygotes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path

fresh = False  # set by --fresh
_zygotes: dict[str, _Zygote] = {}


def run(
    program: str | Path,
    *argv: str | Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float = 280,
    framework: str = "tensorflow",
) -> subprocess.CompletedProcess[str]:
    """
    Run a program to its end; `program` is a path, or `-c` with the text as first argument.

    Args:
        framework: what the fork has imported: `tensorflow` or `torch`.
    """
    words = [str(each) for each in (program, *argv)]
    if fresh:
        return subprocess.run(
            [sys.executable, *words], env=env, cwd=cwd, timeout=timeout_s,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if framework not in _zygotes:
        _zygotes[framework] = _Zygote(framework)
    return _zygotes[framework].run(words, env, cwd or Path.cwd(), timeout_s)


def stop() -> None:
    """End the zygotes that were started."""
    while _zygotes:
        _zygotes.popitem()[1].stop()


class _Zygote:
    """The zygote's handle in the test process."""

    def __init__(self, framework: str) -> None:
        self._errors = tempfile.TemporaryFile("w+")
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), framework],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=self._errors,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            )

    def stop(self) -> None:
        self._socket.close()
        self._process.kill()  # a fork of the tests may still hold the socket
        self._process.wait()
        self._errors.close()

    def run(
        self, words: list[str], env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        request = json.dumps({"words": words, "env": dict(env), "cwd": str(cwd)}).encode()
        reader, writer = os.pipe()
        with (
            open(reader) as told,
            tempfile.TemporaryFile("w+") as output,
            tempfile.TemporaryFile("w+") as errors,
        ):
            files = [output.fileno(), errors.fileno(), writer]
            socket.send_fds(self._socket, [request], files)
            os.close(writer)
            pid = told.readline()
            if not pid:
                self._errors.seek(0)
                raise AssertionError(f"the zygote has ended: {self._errors.read()}")
            with selectors.DefaultSelector() as selector:
                selector.register(told, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    os.kill(int(pid), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(words, timeout_s)
            code = int(told.readline())
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(words, code, output.read(), errors.read())


def _next_program(control: socket.socket) -> list[str]:
    """Fork for each request. Return in the child, which runs the program, with its words."""
    while True:
        request, files, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for each in files:
            os.close(each)
    control.close()
    output, errors, told = files
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:  # the program's parent reports its end
        os.write(told, b"%d\n" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(told, b"%d\n" % code)
        os._exit(0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    for each in files:
        os.close(each)
    about = json.loads(request)
    os.environ.clear()
    os.environ.update(about["env"])
    os.chdir(about["cwd"])
    sys.orig_argv = [sys.executable, *about["words"]]
    return about["words"]


def _main() -> None:
    import numpy as np

    # The first optimizer of a program imports torch._dynamo, which takes a second.
    names = {"tensorflow": ("keras", "tensorflow"), "torch": ("torch", "torch._dynamo")}
    for name in names[sys.argv[2]]:
        importlib.import_module(name)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    words = _next_program(socket.socket(fileno=int(sys.argv[1])))
    random.seed()
    np.random.seed()
    main = types.ModuleType("__main__")
    if words[0] == "-c":
        text, path = words.pop(1), "<string>"
        sys.path[0] = ""
    else:
        path = main.__file__ = words[0]
        text = Path(path).read_text()
        sys.path[0] = str(Path(path).resolve().parent)
    sys.argv = words
    sys.modules["__main__"] = main
    exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    _main()
