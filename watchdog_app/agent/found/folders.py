"""Where the rescues of trainings lie that name no Rescue, and whether they are resumed from."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.runtime import run_choice
from watchdog_app.base import paths
from watchdog_app.rescue.identity import arguments
from watchdog_app.rescue.identity.notebook import program_path

RESUME = run_choice.RESUME
MOST_PLACES = 50  # folders of one program, beside one another
_NO = ("0", "no", "off", "false")

_chosen_folder: str | None = None


def resume_in(directory: str) -> None:
    """Use this folder for the rescues of this process, as the user asked."""
    global _chosen_folder
    _chosen_folder = directory


def rescue_folder(env: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """
    The folder of rescues for this program, and whether a later run will come to the same.

    `rescues/NAME` beside the notebook or script; arguments of a script make it another program.
    Where nothing can be written there it lies beside the journal.
    """
    if _chosen_folder is not None:
        return _chosen_folder, True
    program, module = program_path(env), _module_name()
    if program is not None and module == "__main__":  # of a folder or a zip archive, which is run
        program, module = os.path.dirname(program), None
    if program is None:
        # A bare kernel or prompt: two of them in one folder are not to be mixed up.
        name, beside, known = f"unnamed-{os.getpid()}", _working_directory(), False
    else:
        # Of a link the name is its target's. The place is its own: a link in another folder may be
        # run with other data.
        name = os.path.basename(os.path.realpath(program))
        beside, known = os.path.dirname(program), True
        if not program.endswith(".ipynb"):
            if module is not None and name != f"{module}.py":  # of a package
                name = module
            name += _arguments_suffix(sys.argv[1:])
            if module or program.startswith(os.path.join(sys.prefix, "")):
                beside = _working_directory()
    if not os.path.isdir(beside):  # renamed, or told in another way than as a path of this machine
        beside = _working_directory()
    if _is_writable(os.path.join(beside, "rescues", name)):
        return os.path.join(beside, "rescues", name), known
    apart = zlib.crc32(os.fsencode(beside))
    return os.path.join(paths.state_dir(env), "rescues", f"{name}-{apart:08x}"), known


def is_resume_enabled(env: Mapping[str, str] = os.environ) -> bool:
    """Whether an unfinished rescue is resumed from; the environment can say no."""
    return env.get(RESUME, "").strip().lower() not in _NO


def has_several_workers(guard: Guard) -> bool:
    """Whether TensorFlow trains in several processes, which is said once."""
    if not os.environ.get("TF_CONFIG"):
        return False
    guard.print_once(
        "TF_CONFIG is set: a training of several workers is not saved automatically. "
        "TensorFlow's own checkpoints do that."
    )
    return True


def report_other_rescues(directory: str, *, include_own: bool = False) -> None:
    """
    Name what another program left beside this folder, or this one with other arguments.

    Args:
        include_own: in this folder as well, as nothing else names it.
    """
    if not is_resume_enabled():
        return
    line = run_choice.run_beside_message(directory, include_own=include_own)
    if line is not None:
        print_message(line)


def display_path(directory: str) -> str:
    """A folder as a person here would write it."""
    return directory.removeprefix(os.path.join(_working_directory(), ""))


def missing_parent(directory: str) -> str | None:
    """The folder around `directory` where that is not there yet and will be made with it."""
    above = os.path.dirname(directory)
    return None if os.path.lexists(above) else above


def remove_empty(*folders: str | None) -> None:
    """Remove the folders of a training that had to save nothing, where they are empty."""
    for each in folders:
        if each is not None:
            with suppress(OSError):
                os.rmdir(each)


def _working_directory() -> str:
    """The working directory; where it was deleted, a folder in which nothing can be made."""
    try:
        return os.getcwd()
    except OSError:
        return os.path.join(os.devnull, "")


def _arguments_suffix(words: list[str]) -> str:
    """
    Another fold or another seed is another training: its rescues lie elsewhere.

    Of a path its last part counts, as `c.yaml`, `./c.yaml` and its absolute path are the same. Two
    files of one name share a folder, where their trainings are told apart by their keys.
    """
    others = arguments.parse(words).others
    parts = [
        part
        for name, values in sorted(others.items())
        for part in (name, *map(_last_part, values.split("\0")))
    ]
    text = "\0".join(parts)
    return f"-{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}" if text else ""


def _last_part(value: str) -> str:
    return os.path.basename(os.path.normpath(value)) if "/" in value.rstrip("/") else value


def _module_name() -> str | None:
    """The module that `python -m` was given; "__main__" of a folder or archive; else None."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", None)
    return name.removesuffix(".__main__") if isinstance(name, str) else None


def _is_writable(folder: str) -> bool:
    """Whether this folder could be made and written: its nearest parent that is there says."""
    while not os.path.isdir(folder):
        if os.path.lexists(folder):
            return False
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)
