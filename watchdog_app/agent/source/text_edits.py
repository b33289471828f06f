"""Collect edits of the text of a program, by the nodes of its syntax tree."""

from __future__ import annotations

import ast

from watchdog_app.agent.source.program import Program, lines_of


class TextEdits:
    """Edits of the text of one program, which keep the rest of it as it is."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._lines = [line.encode() for line in lines_of(program.source)]
        self._spans: list[tuple[int, int, bytes]] = []

    def result(self) -> dict[str, str]:
        """The text of each file after the edits."""
        whole, edited = b"".join(self._lines), {}
        for name, (before, last) in self.program.places.items():
            begins, ends = self._at(before + 1, 0), self._at(last + 1, 0)
            text = whole[begins:ends]
            own = [each for each in self._spans if begins <= each[0] <= ends]
            # Of two edits at one place, the later one stands behind.
            for begin, end, new in sorted(own, key=lambda one: one[0])[::-1]:
                text = text[: begin - begins] + new + text[end - begins :]
            # The joined text has an end of line that the file may lack.
            lacks_end = not self.program.files[name].endswith("\n") and ends < len(whole)
            edited[name] = text.decode().removesuffix("\n" * lacks_end)
        return edited

    def _at(self, line: int | None, column: int | None) -> int:
        return sum(map(len, self._lines[: (line or 1) - 1])) + (column or 0)

    def _line_of(self, place: int) -> int:
        return b"".join(self._lines)[:place].count(b"\n") + 1

    def _put(self, begin: int, end: int, text: str) -> None:
        self._spans.append((begin, end, text.encode()))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self._at(node.lineno, node.col_offset)
        return begin, self._at(node.end_lineno, node.end_col_offset)

    def _replace(self, node: ast.expr, text: str) -> None:
        self._put(*self._span(node), text)

    def _insert(self, statement: ast.stmt, *lines: str, after: bool = False) -> None:
        """Put lines before or after a statement, as far indented as it, or into its line."""
        indent = self._lines[statement.lineno - 1][: statement.col_offset].decode()
        if indent.strip():  # a simple statement behind another one or behind `if c:`
            text, (begin, end) = "; ".join(lines), self._span(statement)
            return (
                self._put(end, end, f"; {text}") if after else self._put(begin, begin, f"{text}; ")
            )
        first = min(
            [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]
        )
        place = self._at((statement.end_lineno or 0) + 1 if after else first, 0)
        lacks_end = place >= sum(map(len, self._lines)) and not self._lines[-1].endswith(b"\n")
        text = "".join(f"{indent}{each}\n" for each in lines)
        return self._put(place, place, f"\n{text}" if lacks_end and after else text)

    def _give(self, call: ast.Call, name: str, text: str) -> None:
        """Give a keyword argument to a call, in place of one of that name."""
        for each in call.keywords:
            if each.arg == name:
                return self._replace(each.value, text)
        last = [*call.args, *(each.value for each in call.keywords)]
        end = max((self._span(each)[1] for each in last), default=self._span(call)[1] - 1)
        self._put(end, end, f"{', ' if last else ''}{name}={text}")
        return None

    def _import(self, module: str, name: str) -> None:
        """Import a name of a module of the agent."""
        self._import_line(f"from watchdog_app.agent.{module} import {name}")

    def _import_line(self, line: str) -> None:
        """Put an import behind the last import before the edits of a file, which may use it."""
        lines = sorted(self._line_of(begin) for begin, _, _ in self._spans)
        # The first edit of each file, the last file first.
        for file, first in {self.program.file_at(line): line for line in lines[::-1]}.items():
            body = [each for each in self.program.tree.body
                    if self.program.file_at(each.lineno) == file]  # fmt: skip
            imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
            early = [each for each in imports if each.lineno < first] or imports
            self._insert((early or body)[-1 if early else 0], line, after=bool(early))
            self._spans.insert(0, self._spans.pop())  # before another line at the same place
