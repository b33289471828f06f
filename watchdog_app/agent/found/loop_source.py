"""The loop of one training in the program's source: its place, the calls to it, and its files."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from threading import get_ident
from traceback import walk_tb
from types import CodeType, FrameType

from watchdog_app.agent.found import folders
from watchdog_app.agent.identity import names, source_loops
from watchdog_app.agent.identity.audit import unwrapped
from watchdog_app.agent.identity.code import is_program
from watchdog_app.agent.identity.names import Named
from watchdog_app.agent.identity.source_loops import Loop, Place
from watchdog_app.agent.source.program import Called
from watchdog_app.agent.telemetry.stacks import callers, current_frames

_MOST_CHARS = 400_000  # of the files that are read for the lines
_INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


class LoopSource:
    """The loops around the steps of the training of this thread, and the text around them."""

    def __init__(self) -> None:
        self.places: tuple[Place, ...] = ()  # at the first step of the newest optimizer
        self.loops: list[Loop] = []  # around its steps, the innermost first
        self._lines: dict[CodeType, int] = {}  # where its functions were at such a step
        self.calls: list[Called] = []  # from such a step to the outermost loop
        self._files: dict[str, str] = {}  # the text of their files, and of what these import
        self._thread = get_ident()

    def is_in_loop(self) -> bool:
        """Whether the program is still in the innermost loop."""
        return bool(self.loops) and self._is_inside(self.loops[0])

    def find_loops(self, frame: FrameType) -> None:
        """Find the loops around a step in `frame`."""
        places = source_loops.program_places(frame)
        self.loops, self._lines = source_loops.enclosing_loops(places), dict(reversed(places))

    def is_beside(self, frame: FrameType) -> bool:
        """Whether a step in `frame` is in another loop, or one called elsewhere: not its part."""
        known, is_inside = self.loops, False
        for each in callers(frame) if known else ():
            if is_inside and self._lines.get(each.f_code, each.f_lineno) != each.f_lineno:
                return True
            is_inside = is_inside or known[0].contains(each.f_code, each.f_lineno or 0)
            if is_inside and each.f_code is known[-1].code:
                return False
        own = source_loops.enclosing_loops(source_loops.program_places(frame)) if known else []
        around = next((each for each in own if each in known), None)
        reads = None if around is None else getattr(around.node, "iter", None)
        is_data = reads is not None and not re.search(r"\b(range|count)\(", ast.unparse(reads))
        return bool(own) and not is_inside and own[0] is not around and not is_data

    def has_left_loops(self) -> bool:
        """Whether the program has left the loop and all loops around it; for any thread."""
        return bool(self.loops) and not self._is_inside(self.loops[-1])

    def is_before_step(self) -> bool:
        """Whether an iteration of the program's own loop has begun and not reached its step."""
        lines = dict(reversed(self.places))
        return any(
            self._is_inside(replace(each, last=lines[each.code] - 1))
            for each in self.loops[:1]
            if each.code in lines and each.node is not None
        )

    def contains_step(self, frame: FrameType) -> bool:
        """Whether a step in `frame` belongs to this loop."""
        return source_loops.in_same_loop(self.places, source_loops.program_places(frame))

    def was_interrupted(self) -> bool:
        """Whether the last uncaught exception passed through the function of the loop."""
        places = walk_tb(getattr(sys, "last_traceback", None))
        return bool(self.loops) and any(each.f_code is self.loops[0].code for each, _ in places)

    def assigned_names(self) -> frozenset[str]:
        """The variables that the loops assign again."""
        return source_loops.assigned_names(self.places)

    def find_calls(self, frame: FrameType | None, objects: Sequence[Named]) -> None:
        """Find the calls that lead to a step in `frame`, with the names of these objects."""
        self._files = {}
        self.calls = list(self._calls_to(frame, objects))

    def add_files(self, things: Iterable[object]) -> None:
        """Add the files of classes, functions and modules; of two with a name the last counts."""
        found = source_loops.files_of(things)
        texts = {folders.file_of(each): text for each, text in found.items()}
        left = _MOST_CHARS - sum(map(len, self._files.values()))
        for name, text in texts.items():
            if name not in self._files and len(text) <= left:
                left -= len(text)
                self._files = {name: text, **self._files}

    def files(self) -> list[str]:
        """The names of the files with the calls and the loops."""
        return list(self._files)

    def text(self) -> str | dict[str, str]:
        """The text of the files that get the lines."""
        code = self.loops[-1].code if self.loops else None
        if code is None or not is_program(code):  # no lines for a library's own file
            main = sys.modules.get("__main__")
            return "".join(linecache.getlines(getattr(main, "__file__", None) or ""))
        return self._files or source_loops.source(code)

    def description(self) -> str:
        """The file and the function of the innermost loop; empty without one."""
        code = self.loops[0].code if self.loops else None
        return "" if code is None else f"{os.path.basename(code.co_filename)}, {code.co_name}"

    def _is_inside(self, loop: Loop) -> bool:
        frames = callers(current_frames().get(self._thread))
        return any(loop.contains(each.f_code, each.f_lineno or 0) for each in frames)

    def _calls_to(self, frame: FrameType | None, objects: Sequence[Named]) -> Iterator[Called]:
        places = source_loops.program_places(frame)
        passing = source_loops.assigned_names(places)
        imported = list[object]()
        while frame is not None and self.loops:
            code: CodeType = frame.f_code
            call = source_loops.call_at(frame) if is_program(code) else None
            if call is not None:
                name = "" if code.co_name in _INNER else code.co_name
                file, text = folders.file_of(code.co_filename), source_loops.source(code)
                if self._files.setdefault(file, text) == text:  # of two without a name the first
                    own = _names_in(frame, passing, objects)
                    yield Called(name, ast.unparse(call), call.lineno, own, file)
                imported += frame.f_globals.values()
            frame = None if code is self.loops[-1].code else frame.f_back
        self.add_files(imported)


def _names_in(
    frame: FrameType, passing: Collection[str], objects: Sequence[Named]
) -> dict[str, str]:
    """The expressions with which a frame alone reaches the objects, by their keywords."""
    own = {id(each.get()): each.name for each in objects}
    found = names.search(frame, lambda one: id(unwrapped(one)[0]) in own, passing, most=1)
    told = [(*unwrapped(each.thing), each.expression) for each in found]
    texts = {own[id(thing)]: expression + word for thing, word, expression in told}
    # A search sees the globals that the code of the frame uses; lines can name all.
    shared = {each.name: each.expression for each in objects
              if each.expression not in frame.f_code.co_varnames
              and frame.f_globals.get(each.expression) is each.get()}  # fmt: skip
    return {**shared, **texts}
