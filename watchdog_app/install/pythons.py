"""Python environments of kernels: find them by kernelspec, query them, put one under a guard."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchdog_app.base.errors import UsageError, WatchdogError

_QUERY = """
import json, sys
found = {"prefix": sys.prefix, "version": list(sys.version_info[:2]), "startup": None}
try:
    import inspect
    from IPython.core.shellapp import InteractiveShellApp as app
    found["startup"] = "ENV_CONFIG_DIRS" in inspect.getsource(app._run_startup_files)
except Exception:
    pass
print(json.dumps(found))
"""
_QUERY_TIMEOUT_S = 60.0
_SUFFIX = "-guarded"
_MAX_LOGO_BYTES = 1 << 20
_LOGOS = ("logo-32x32.png", "logo-64x64.png", "logo-svg.svg")


@dataclass(frozen=True, slots=True)
class Environment:
    """The facts that a Python reports about itself."""

    prefix: str
    version: tuple[int, int]
    startup: bool | None  # True: IPython runs startup files of the environment; None: no IPython


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernelspec on disk."""

    name: str
    folder: str
    python: str | None  # None: not an ipykernel


def query_environment(python: str) -> Environment:
    """
    Run a Python and return its prefix, its version and what its IPython supports.

    Raises:
        UsageError: the program does not exist.
        WatchdogError: the program is not a Python, or does not answer.
    """
    program = shutil.which(python)
    if program is None:
        raise UsageError(f"There is no program {python}. Name a Python: --python PATH")
    program = os.path.abspath(program)  # do not resolve the link of a virtual environment
    try:
        done = subprocess.run(
            [program, "-c", _QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            # not in the user's folder, where files could hide modules
            cwd=os.path.dirname(program),
            check=True,
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
        version = (int(found["version"][0]), int(found["version"][1]))
        return Environment(str(found["prefix"]), version, found["startup"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise WatchdogError(
            f"{program} is no Python, or it does not start. "
            "Name a Python, such as --python .venv/bin/python"
        ) from error


def has_watchdog(prefix: str) -> bool:
    """
    Return whether the environment in this folder can import watchdog, without starting its Python.

    With pipx watchdog has an environment of its own.
    """
    # the second: an editable installation
    return has_package(prefix, "watchdog_app") or has_package(prefix, "watchdog_app-*.dist-info")


def has_package(prefix: str, name: str) -> bool:
    """
    Return whether a package is installed in the environment in this folder.

    Args:
        prefix: folder of the environment.
        name: folder of the package, as a pattern.
    """
    packages = ("site-packages", "dist-packages")  # the second: Debian's Python
    lib = os.path.join(glob.escape(prefix), "lib", "python3*")
    return any(glob.glob(os.path.join(lib, each, name)) for each in packages)


def installed_frameworks(prefix: str) -> set[str]:
    """Return the frameworks that are installed in the environment in this folder."""
    return {name for name in ("tensorflow", "torch", "jax") if has_package(prefix, name)}


def environment_prefix(python: str) -> str | None:
    """
    Return the prefix of a Python's environment by the rules of PEP 405, without starting Python.

    Returns:
        The prefix; None: the caller has to ask the Python.
    """
    if python == sys.executable:
        return sys.prefix
    folder = os.path.dirname(os.path.dirname(os.path.abspath(os.path.expanduser(python))))
    known = any(os.path.exists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", "conda-meta"))
    return folder if known else None


def python_of(path: str) -> str:
    """
    Return the Python of an environment.

    Args:
        path: its Python, or its folder; `~` stands for the home folder.
    """
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        return path
    found = [os.path.join(path, "bin", name) for name in ("python", "python3")]
    return next(filter(os.path.exists, found), found[0])


def kernels(env: Mapping[str, str] = os.environ, root: str = "") -> Iterator[Kernel]:
    """
    Yield every kernelspec that Jupyter would find here, the first of each name.

    Args:
        env: environment of the user.
        root: folder used as root of the file system; "": this machine's root.
    """
    seen = set()
    for folder in _kernel_folders(env):
        try:
            names = sorted(os.listdir(f"{root}{folder}"))
        except OSError:
            continue
        for name in names:
            where = f"{root}{os.path.join(folder, name)}"
            if name.lower() in seen or not os.path.isfile(os.path.join(where, "kernel.json")):
                continue
            seen.add(name.lower())
            yield Kernel(name, where, _kernel_python(where))


def find_kernel(name: str, env: Mapping[str, str] = os.environ) -> Kernel:
    """
    Return the kernelspec with a name.

    Raises:
        UsageError: no such kernelspec, or it is not a Python kernel.
    """
    known = list(kernels(env))
    for each in known:
        if each.name.lower() == name.lower():
            if each.python is None:
                raise UsageError(f"The kernel {name} in {each.folder} runs no ipykernel.")
            return each
    there = ", ".join(each.name for each in known) or "none"
    raise UsageError(f"There is no kernel {name}. Known here: {there}.")


def user_kernels_folder(env: Mapping[str, str] = os.environ) -> str:
    """Return this user's own folder of kernelspecs; see `_kernel_folders`."""
    home = env.get("HOME") or os.path.expanduser("~")
    data = env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
    own = os.path.join(data, "jupyter")
    if sys.platform == "darwin":
        own = os.path.join(home, "Library", "Jupyter")
    return os.path.join(env.get("JUPYTER_DATA_DIR") or own, "kernels")


def guarded_folder(name: str) -> str:
    """Return the folder of the guarded kernelspec of a kernel."""
    return os.path.join(user_kernels_folder(), f"{name.lower()}{_SUFFIX}")


def guarded_kernel(kernel: Kernel, command: Sequence[str]) -> dict[str, bytes]:
    """
    Return the files of a kernelspec that starts another kernel through `watchdog exec`, by name.

    It is installed under another name, and the original is not changed. A user who selects it in
    Jupyter or VS Code gets the same Python and packages, with a memory limit.

    Args:
        kernel: the kernel to start under a guard.
        command: words in front of the kernel's own command.

    Raises:
        WatchdogError: its kernelspec cannot be read, or is already a guarded one.
    """
    path = os.path.join(kernel.folder, "kernel.json")
    try:
        with open(path, encoding="utf-8") as file:
            spec = json.load(file)
        argv = [str(word) for word in spec["argv"]]
        if argv[0] in ("python", "python3") and kernel.python:
            argv[0] = kernel.python  # Jupyter replaces `python` by its own only as the first word
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WatchdogError(f"The kernelspec {path} cannot be read: {error}") from error
    if kernel.name.endswith(_SUFFIX) and "exec" in argv:
        raise WatchdogError(f"{kernel.name} starts under a guard already.")
    spec["argv"] = [*command, *argv]
    spec["display_name"] = f"{spec.get('display_name', kernel.name)}, under a guard"
    found = {"kernel.json": (json.dumps(spec, indent=1, ensure_ascii=False) + "\n").encode()}
    for name in _LOGOS:
        try:
            with open(os.path.join(kernel.folder, name), "rb") as logo:
                found[name] = logo.read(_MAX_LOGO_BYTES)
        except OSError:
            continue
    return found


def _kernel_folders(env: Mapping[str, str]) -> list[str]:
    """
    Return the folders that Jupyter searches for kernelspecs, in its order.

    Source: Jupyter's documentation, "Common Directories and File Locations", data files.
    """
    named = [part for part in env.get("JUPYTER_PATH", "").split(os.pathsep) if part]
    system = (os.path.join(sys.prefix, "share", "jupyter"), "/usr/local/share/jupyter",
              "/usr/share/jupyter")  # fmt: skip
    first, last = (
        [os.path.join(folder, "kernels") for folder in folders] for folders in (named, system)
    )
    return list(dict.fromkeys([*first, user_kernels_folder(env), *last]))


def _kernel_python(folder: str) -> str | None:
    try:
        with open(os.path.join(folder, "kernel.json"), encoding="utf-8") as file:
            argv = json.load(file)["argv"]
        words = [str(word) for word in argv]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not words or not any("ipykernel" in word for word in words):
        return None
    if os.path.isabs(words[0]):
        return words[0]
    # `python` without a path means the environment that contains the kernelspec.
    prefix = os.path.abspath(os.path.join(folder, *[os.pardir] * 4))
    beside = os.path.join(prefix, "bin", words[0])
    return beside if os.access(beside, os.X_OK) else shutil.which(words[0])
