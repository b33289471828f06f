"""The folders for rescues of trainings without a Rescue, and whether to resume from them."""

from __future__ import annotations

import os
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.runtime import relation, run_choice
from watchdog_app.agent.telemetry.stacks import display_name
from watchdog_app.base import paths
from watchdog_app.rescue.identity import arguments
from watchdog_app.rescue.identity.notebook import program_path

RESUME = relation.RESUME
MOST_PLACES = 50  # rescue folders of one program: NAME, NAME-2, NAME-3 and so on
# A hyperparameter search may train thousands of times, and each start takes 15 to 40 ms.
_MOST_TRAININGS = 100
_EXEC_FOLDER = os.path.join(
    "watchdog_app", "agent", "shim"
)  # `watchdog exec` adds it to PYTHONPATH
_NO = ("0", "no", "off", "false")

_chosen_folder: str | None = None


def resume_in(directory: str) -> None:
    """Use this folder, which the user chose, for the rescues of this process."""
    global _chosen_folder
    _chosen_folder = directory


def rescue_folder(env: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """
    The rescue folder of this program, and whether a later run will use the same folder.

    It is `rescues/NAME` in the folder of the notebook or script. A script with other arguments
    counts as another program. If nothing can be written there, the rescue folder is in the
    daemon's state folder.
    """
    if _chosen_folder is not None:
        return _chosen_folder, True
    program, module = program_path(env), _module_name()
    if program is not None and module == "__main__":  # Python runs a folder or a zip archive
        program, module = os.path.dirname(program), None
    if program is None:
        # A bare kernel or prompt: the pid separates two of them that run in one folder.
        name, beside, known = f"unnamed-{os.getpid()}", _working_directory(), False
    else:
        # For a symbolic link, use the name of its target but the folder of the link: the user may
        # run a link in another folder with other data.
        name = os.path.basename(os.path.realpath(program))
        beside, known = os.path.dirname(program), True
        if not program.endswith(".ipynb"):
            if module is not None and name != f"{module}.py":  # a module of a package
                name = module
            name += _arguments_suffix(sys.argv[1:])
            if module or program.startswith(os.path.join(sys.prefix, "")):
                beside = _working_directory()
    if not os.path.isdir(beside):  # the folder was renamed, or is not a path of this machine
        beside = _working_directory()
    if _is_writable(os.path.join(beside, "rescues", name)):
        return os.path.join(beside, "rescues", name), known
    apart = zlib.crc32(os.fsencode(beside))
    return os.path.join(paths.state_dir(env), "rescues", f"{name}-{apart:08x}"), known


def is_resume_enabled(env: Mapping[str, str] = os.environ) -> bool:
    """Whether to resume from an unfinished rescue; the environment can switch that off."""
    return env.get(RESUME, "").strip().lower() not in _NO


def start_over_advice(env: Mapping[str, str] = os.environ) -> str:
    """How to run the program without a resume: by the option of `watchdog exec` if it runs so."""
    if is_started_by_exec(env):
        return "To start over: watchdog exec --no-resume -- COMMAND"
    return f"To start over: run it with {RESUME}=no in the environment."


def is_started_by_exec(env: Mapping[str, str] = os.environ) -> bool:
    """Whether `watchdog exec` runs this program; False in kernels, which no command starts."""
    python_path = env.get("PYTHONPATH", "").split(os.pathsep)
    return "ipykernel" not in sys.modules and any(
        each.endswith(_EXEC_FOLDER) for each in python_path
    )


def has_begun_too_many(count: int, kind: str, guard: Guard) -> bool:
    """Whether `count` trainings are the most that are saved; prints a message once if so."""
    if count < _MOST_TRAININGS:
        return False
    guard.print_once(
        f"this program has begun {_MOST_TRAININGS} {kind}; further ones are not saved by "
        "themselves. Give Rescue(...) to those that matter."
    )
    return True


def has_several_workers(guard: Guard) -> bool:
    """Whether TensorFlow trains in several processes; prints a message once if so."""
    if not os.environ.get("TF_CONFIG"):
        return False
    guard.print_once(
        "TF_CONFIG is set: a training of several workers is not saved automatically. "
        "TensorFlow's own checkpoints do that."
    )
    return True


def report_other_rescues(directory: str, left_alone: Sequence[str] = ()) -> None:
    """
    Print which rescue of another program or other arguments exists.

    Args:
        directory: the rescue folder of this program.
        left_alone: messages about rescues in it; without any, one in a folder next to it is named.
    """
    if not is_resume_enabled():
        return
    beside = None if left_alone else run_choice.beside_message(directory)
    for line in left_alone if beside is None else [beside]:
        print_message(line)


def file_of(path: str) -> str:
    """
    The name of a file of the program, relative to the folder of the program.

    Returns:
        "Cell In[2]" for a cell; empty for the program itself, and where no program is known.
    """
    program, shown = program_path(), display_name(path)
    if shown != path:
        return shown
    if program is None or path.startswith("<"):
        return ""
    is_program = os.path.realpath(path) == os.path.realpath(program)
    return "" if is_program else os.path.relpath(path, os.path.dirname(program))


def display_path(directory: str) -> str:
    """The path of a folder as the user would write it: relative to the working directory."""
    return directory.removeprefix(os.path.join(_working_directory(), ""))


def see_rescues(directory: str) -> str:
    """How to list the rescues in the folder of a program."""
    above = os.path.dirname(display_path(directory))
    return "See: watchdog rescues" + (f" {shlex.quote(above)}" if above != "rescues" else "")


def missing_parent(directory: str) -> str | None:
    """The parent of `directory` if it does not exist, so that it will be created as well."""
    above = os.path.dirname(directory)
    return None if os.path.lexists(above) else above


def remove_empty(*folders: str | None) -> None:
    """Remove the folders of a training if they are empty, because it had to save nothing."""
    for each in folders:
        if each is not None:
            with suppress(OSError):
                os.rmdir(each)


def _working_directory() -> str:
    """The working directory; if it was deleted, a path where no folder can be created."""
    try:
        return os.getcwd()
    except OSError:
        return os.path.join(os.devnull, "")


def _arguments_suffix(words: list[str]) -> str:
    """
    A suffix of the folder's name from a hash of the arguments; empty without arguments.

    Another fold or another seed is another training, so it gets its own folder. Only the last part
    of a path counts, because `c.yaml`, `./c.yaml` and its absolute path are the same file. Two
    files of the same name share a folder, where the keys of the rescues separate their trainings.
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
    """The module of `python -m`; "__main__" for a folder or zip archive; otherwise None."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = getattr(spec, "name", None)
    return name.removesuffix(".__main__") if isinstance(name, str) else None


def _is_writable(folder: str) -> bool:
    """Whether this folder could be created and written, by its nearest existing parent."""
    while not os.path.isdir(folder):
        if os.path.lexists(folder):
            return False
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)
