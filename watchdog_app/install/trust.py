"""
Whether others could change the code of watchdog.

Asked before watchdog writes down anything that runs this code later or in another Python, and by
the startup file at the start of each kernel. The interpreter is not judged: whoever can write to it
runs code of theirs in it without watchdog.
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
    """The real path of this package: a link on the way could be made to point elsewhere later."""
    return os.path.realpath(os.path.dirname(watchdog_app.__file__ or ""))


def importable_package(part: str) -> str:
    """
    Folder of this package, for another Python to import it from.

    Args:
        part: the file that the other Python needs of it, such as `estimate/child.py`.

    Raises:
        WatchdogError: this program was made by PyInstaller and has no such file.
    """
    if not os.path.isfile(os.path.join(package_folder(), part)):
        raise WatchdogError(
            "This watchdog is one program without a package that other Pythons could import. "
            "Install it there: python -m pip install watchdog-app"
        )
    return package_folder()


def refuse_untrusted(*programs: str) -> None:
    """
    Go on only where nobody but this user and root can change the code of watchdog.

    Args:
        programs: paths of what starts it, where that is written down.

    Raises:
        WatchdogError: somebody can; the message names the file or folder and what to do.
    """
    if not hasattr(os, "geteuid"):  # Windows: modes say nothing there
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
    """Owners and groups of which the group may write to `code`, since it is the owner's alone."""
    if weak_spot(code, ()) is None:
        return ()  # no group can write: who is in which need not be looked up
    groups = {uid: paths.own_group(uid) for uid in sorted({os.geteuid(), 0})}
    return tuple((uid, gid) for uid, gid in groups.items() if gid is not None)


def _frozen_code() -> list[str]:
    """The program that PyInstaller made, and the folder beside it that holds its modules."""
    program = os.path.realpath(watchdog_argv(())[0])
    modules = os.path.realpath(getattr(sys, "_MEIPASS", program))
    beside = modules.startswith(os.path.dirname(program) + os.sep)
    # A program of one file unpacks itself into a new private folder each time.
    return [program, modules] if beside else [program]


def _refusal_message(path: str, code: str) -> str:
    found = os.stat(path)
    whose = _account_name(found.st_uid, "pwd")
    shown = shlex.quote(path)
    if paths.is_foreign(found):
        who, fix = f"belongs to {whose}, who", ""
    elif found.st_mode & stat.S_IWOTH:
        who = f"belongs to {whose} and is writable by every user of this machine, who"
        fix = f"chmod go-w {shown}"
    else:
        group = _account_name(found.st_gid, "grp")
        who = f"belongs to {whose} and is writable by the group {group}, which"
        fix = f"chmod go-w {shown}"
    if found.st_mode & stat.S_ISVTX:
        fix = ""  # /tmp is to stay open
    elif fix and os.path.isfile(path) and path != code:
        fix = f"chmod -R go-w {shlex.quote(code)}"  # it is seldom one file alone
    cure = f"Close it: {fix} - or install" if fix else "Install"
    return (
        f"{path} {who} could change the code of watchdog, which runs as you. Nothing was done. "
        f"{cure} watchdog where only you can write: pipx install watchdog-app"
    )


def _account_name(number: int, table: str) -> str:
    import grp
    import pwd

    try:
        return pwd.getpwuid(number).pw_name if table == "pwd" else grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


# Its source is part of the startup file: it names nothing from outside itself.
def weak_spot(code: str, group_pairs: tuple[tuple[int, int], ...]) -> str | None:
    """
    The first file or folder of `code`, or above it, that others can change; None: there is none.

    Args:
        code: real path of a folder, all of which is looked at, or of a file.
        group_pairs: owners and groups of which the group may write.

    Raises:
        OSError: something cannot be looked at.
    """
    import os

    def weak(path: str) -> bool:
        found = os.stat(path)
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
            return True
        if not found.st_mode & 0o020:
            return False
        # With an access control list these bits are those of everybody whom it names.
        listed = hasattr(os, "listxattr") and "system.posix_acl_access" in os.listxattr(path)
        return listed or (found.st_uid, found.st_gid) not in group_pairs

    good: set[str] = set()  # judged, and all above them
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
                except FileNotFoundError:  # a link to nowhere, or bytecode that is being written
                    continue
    return None
