"""
What a cell does in addition to Python: shell commands, questions, its own resume call.

IPython first turns a cell into Python, so a line with `!` inside a string is not taken for a shell
command. A resume skips shell commands unless the user asks for them. They ran once already, and a
second run may do harm.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

# Magics that run other programs or overwrite the user's files.
_OUTSIDE_CELLS = frozenset(
    {
        *("bash", "sh", "script", "cmd", "perl", "ruby", "system", "sx", "!"),
        *("writefile", "file", "powershell", "pwsh", "zsh", "fish"),
        *("python", "python2", "python3", "pypy"),
    }
)
_OUTSIDE_LINES = frozenset(
    {
        *("system", "sx", "sc", "pip", "conda", "mamba", "uv", "micromamba", "killbgscripts"),
        *("save", "notebook", "edit", "reset", "reset_selective", "logstart"),
    }
)
_LOADS = "%load_ext watchdog_app.agent"
_OURS = ("watchdog", "watchdog_app")
# A line that begins with `!`, `x = !` or a magic, also behind options of the magic before it.
_COMMAND = re.compile(r"^\s*(?:-\S+\s+)*(?:[\w, ]+=\s*)?(?:!|%%?(\w+))", re.MULTILINE)
_SHELL = 'left out: shell commands (run="all" runs them)'


@dataclass(frozen=True, slots=True)
class Step:
    """One cell of a resume."""

    number: int  # its number in the session that died
    text: str  # original text
    run: str | None  # text to run; None: the cell is left out
    why: str | None  # message: why the cell, or a part of it, is left out
    trains: bool = False


def plan(
    texts: Sequence[tuple[int, str]],
    running: int,
    failed: Sequence[int],
    *,
    everything: bool,
    skip: Sequence[int],
    transform: Callable[[str], str],
    aliases: Collection[str] = (),
) -> list[Step]:
    """
    Decide what to do with each cell.

    Args:
        texts: number and text of the cells that had run, in order.
        running: the number of the cell that trained.
        failed: numbers of the cells that ended with an error.
        everything: leave out only the cells in `skip`.
        skip: numbers of cells to leave out.
        transform: turns a cell into Python, like IPython's `transform_cell`.
        aliases: magics that run programs: `rm`, `mv`, ...
    """
    reader = _Reader(transform, frozenset(aliases) | _OUTSIDE_LINES)
    found = []
    for number, text in texts:
        run: str | None = text
        why = None
        if number in skip:
            run, why = None, "left out, as you said"
        elif not text.strip():
            continue
        elif text.strip() == _LOADS:
            run, why = None, "left out: it is on already"
        elif number in failed and number != running and not everything:
            run, why = None, "left out: it ended with an error"
        else:
            run, why = reader.read(text, everything=everything)
        found.append(Step(number, text, run, why, number == running))
    return found


class _Reader:
    """Turns cells into Python and finds the commands in them."""

    def __init__(self, transform: Callable[[str], str], outside: Collection[str]) -> None:
        self._transform = transform
        self._outside = outside

    def read(self, text: str, *, everything: bool) -> tuple[str | None, str | None]:
        """The text to run and a message about it; text None: run nothing of the cell."""
        tree = self._tree(text)
        if tree is None:
            return text, None  # it fails with the same error as before
        if any(_is_resume_call(node) for node in ast.walk(tree)):
            return None, "left out: it was a resume itself"
        if everything:
            return text, None
        commands = sum(map(self._starts_command, ast.walk(tree)))
        if not commands:
            asks = any(_called_name(node) in ("input", "getpass") for node in ast.walk(tree))
            return text, "it asks for an answer" if asks else None
        if text.lstrip().startswith("%%"):
            return None, _SHELL
        lines = text.splitlines()
        taken = [line for line in lines if self._is_command(line)]
        lines = [
            f"{line[: len(line) - len(line.lstrip())]}pass" if line in taken else line
            for line in lines
        ]
        kept = self._tree("\n".join(lines))
        # A command that is part of a longer line or of a text, or that spans several lines.
        others = len(taken) != commands or any(each.endswith("\\") for each in taken)
        if kept is None or others:
            return None, 'left out: it needs what a shell command prints (run="all" runs it)'
        if all(isinstance(each, ast.Pass) for each in kept.body):
            return None, _SHELL
        return "\n".join(lines), 'without its shell commands (run="all" runs them)'

    def _tree(self, text: str) -> ast.Module | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # IPython shows them when the cell runs
                return ast.parse(self._transform(text))
        except (SyntaxError, ValueError, RecursionError):
            return None

    def _is_command(self, line: str) -> bool:
        text = line.strip()
        tree = self._tree(text) if text[:1] in ("!", "%") else None
        return tree is not None and any(map(self._starts_command, ast.walk(tree)))

    def _starts_command(self, node: ast.AST) -> bool:
        """`get_ipython().system(...)`, `getoutput`, or a magic that starts a command."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        if _called_name(node.func.value) != "get_ipython":
            return False
        if node.func.attr in ("system", "getoutput"):
            return True
        magic, *code = [
            each.value if isinstance(each, ast.Constant) and isinstance(each.value, str) else ""
            for each in (*node.args, ast.Constant(""))
        ]
        outside = _OUTSIDE_CELLS if node.func.attr == "run_cell_magic" else self._outside
        # The code of a magic may start a command: `%time !rm x`, or a line below `%%time`.
        return magic in outside or any(
            name is None or name in self._outside or name in _OUTSIDE_CELLS
            for each in code
            for name in (found[1] for found in _COMMAND.finditer(each))
        )


def _is_resume_call(node: ast.AST) -> bool:
    """Whether a node is `watchdog.resume(...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return node.func.attr == "resume" and isinstance(owner, ast.Name) and owner.id in _OURS


def _called_name(node: ast.AST) -> str | None:
    """The function name in a call; `getpass` for `getpass.getpass` as well."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return node.func.id
    return node.func.attr if isinstance(node.func, ast.Attribute) else None
