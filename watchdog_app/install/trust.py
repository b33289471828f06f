"""
Check whether other users could change watchdog's code; the startup file that checks it, too.

Two callers check: watchdog, before it places anything that runs this code later or in another
Python, and the startup file, at the start of each kernel. The interpreter is not checked: users who
can write to it can run their code in it without watchdog.

IPython runs PREFIX/etc/ipython/startup/*.py in each kernel of the environment PREFIX, also in
kernels of Jupyter, VS Code, papermill or a terminal. We add one file and change no other file. A
kernelspec that wraps another would not work: VS Code bypasses it, and each update of ipykernel
overwrites it.
"""

from __future__ import annotations

import os
import shlex
import stat
import sys

import watchdog_app
from watchdog_app.base import paths
from watchdog_app.base.children import is_frozen, watchdog_argv
from watchdog_app.base.errors import WatchdogError


def package_folder() -> str:
    """Return the real path of this package, because a link could later point elsewhere."""
    return os.path.realpath(os.path.dirname(watchdog_app.__file__ or ""))


def importable_package(part: str) -> str:
    """
    Return the folder of this package, for another Python to import it.

    Args:
        part: file of the package that the other Python needs, such as `estimate/child.py`.

    Raises:
        WatchdogError: this program was made by PyInstaller and has no such file.
    """
    if not os.path.isfile(os.path.join(package_folder(), part)):
        raise WatchdogError(
            "This watchdog is one program without a package that other Pythons could import. "
            "Install it there, in a checkout of watchdog: python -m pip install ."
        )
    return package_folder()


def startup_file() -> bytes:
    """Return the startup file that loads the agent, the same for every environment."""
    import inspect
    import textwrap

    package = package_folder()
    with open(os.path.join(package, "install", "startup_file.txt"), encoding="utf-8") as template:
        text = template.read().format(
            package=package,
            group_pairs=group_pairs(package),
            weak_spot=textwrap.indent(inspect.getsource(weak_spot), " " * 4),
        )
    return text.encode("utf-8", "surrogateescape")


def refuse_untrusted(*programs: str) -> None:
    """
    Check that only this user and root can change watchdog's code.

    Args:
        programs: paths of programs that start watchdog and that are about to be recorded.

    Raises:
        WatchdogError: others can; the message names the file or folder and the remedy.
    """
    if not hasattr(os, "geteuid"):  # on Windows file modes have no meaning
        return
    checked = _frozen_code() if is_frozen() else [package_folder()]
    for code in [*checked, *map(os.path.realpath, programs)]:
        try:
            found = weak_spot(code, group_pairs(code))
        except OSError as error:
            raise WatchdogError(
                f"Whether others can change the code of watchdog cannot be seen: {error}. Nothing "
                "was done. Install watchdog where only you can write: pipx install watchdog-app"
            ) from error
        if found is not None:
            raise WatchdogError(_refusal_message(found, code))


def group_pairs(code: str) -> tuple[tuple[int, int], ...]:
    """Return owners and groups whose group may write to `code`, because only the owner is in it."""
    if weak_spot(code, ()) is None:
        return ()  # no group can write, so group members do not matter
    groups = {uid: paths.own_group(uid) for uid in sorted({os.geteuid(), 0})}
    return tuple((uid, gid) for uid, gid in groups.items() if gid is not None)


def _frozen_code() -> list[str]:
    """Return the program made by PyInstaller, and its folder of modules if it has one."""
    program = os.path.realpath(watchdog_argv(())[0])
    modules = os.path.realpath(getattr(sys, "_MEIPASS", program))
    beside = modules.startswith(os.path.dirname(program) + os.sep)
    # A one-file program unpacks itself into a new private folder at each start.
    return [program, modules] if beside else [program]


def _refusal_message(path: str, code: str) -> str:
    import pwd  # not on Windows

    found = os.stat(path)
    shown = shlex.quote(path)
    try:
        who = f"belongs to {pwd.getpwuid(found.st_uid).pw_name}"
    except KeyError:
        who = f"belongs to {found.st_uid}"
    fix = ""
    if not paths.is_foreign(found):
        who += " and is writable by others"
        fix = f"chmod go-w {shown}"
    if found.st_mode & stat.S_ISVTX:
        fix = ""  # /tmp must stay writable for all
    elif fix and os.path.isfile(path) and path != code:
        fix = f"chmod -R go-w {shlex.quote(code)}"  # usually several files are affected
    cure = f"Close it: {fix} - or install" if fix else "Install"
    return (
        f"{path} {who}, who could change the code of watchdog, which runs as you. Nothing was "
        f"done. {cure} watchdog where only you can write: pipx install watchdog-app"
    )


# The startup file contains this function's source, so it uses no names from outside.
def weak_spot(code: str, group_pairs: tuple[tuple[int, int], ...]) -> str | None:
    """
    Return the first file or folder of `code`, or above it, that other users can change.

    Args:
        code: real path of a file, or of a folder that is checked with all its contents.
        group_pairs: owners and groups whose group may write.

    Returns:
        The path; None: only the user and root can change the code.

    Raises:
        OSError: a path cannot be read.
    """
    import os

    def weak(path: str) -> bool:
        found = os.stat(path)
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
            return True
        if not found.st_mode & 0o020:
            return False
        # With an access control list, these bits are the maximum for everyone in the list.
        listed = hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(path)
        return listed or (found.st_uid, found.st_gid) not in group_pairs

    good: set[str] = set()  # checked, with all folders above
    waiting, scanned = [code], set()
    while waiting:
        path = at = waiting.pop()
        while at not in good:
            if weak(at):
                return at
            good.add(at)
            at = os.path.dirname(at)
        if path in scanned or not os.path.isdir(path):
            continue
        scanned.add(path)
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    if entry.is_symlink():
                        waiting.append(os.path.realpath(entry.path, strict=True))
                    elif entry.is_dir():
                        waiting.append(entry.path)
                    elif weak(entry.path):
                        return entry.path
                except FileNotFoundError:  # a broken link, or bytecode that is being written
                    continue
    return None
