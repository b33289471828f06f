"""
The tasks as a table that stays where it is.

Rows are slots: a task that moves up changes the text of two slots, and neither scrolling nor the
cells that stay the same are touched. Widths are counted here: measuring every cell of 500 tasks
each second, as the table would, costs half a core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from textual.widgets import DataTable

from watchdog_app.base.text.terminal import width
from watchdog_app.core.model.status import Task
from watchdog_app.top import rows
from watchdog_app.top.past import Key, Past, task_key

_AROUND = 60  # rows beyond the screen whose trend is drawn as well: scrolling meets no blanks
_FEW = 16  # rows taken away one by one; more, and all are laid anew


class TaskTable(DataTable[Text]):
    """Tasks in order; the chosen one stays chosen when the order changes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(cursor_type="row", **more)
        self.tasks: list[Task] = []
        self.titles: tuple[str, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._room = 0
        self._grid: list[list[Text]] = []
        self._last: Task | None = None

    @property
    def chosen(self) -> Task | None:
        """The task that the cursor stands on."""
        row = self.cursor_row
        return self.tasks[row] if 0 <= row < len(self.tasks) else None

    @property
    def meant(self) -> Task | None:
        """As `chosen`; where a filter has left nothing, the one that was before."""
        return self.chosen or self._last

    def show(
        self,
        tasks: list[Task],
        titles: tuple[str, ...],
        columns: int,
        past: Past,
        drawn: Mapping[Key, Key] | None = None,
    ) -> None:
        """
        Show these.

        Args:
            tasks: from the top.
            titles: of the columns, see `rows.heads`.
            columns: of characters that there is room for.
            past: for the trends.
            drawn: by task the series that is drawn in place of its RAM.
        """
        self._last = meant = self.meant
        top = self.scroll_offset.y
        near = range(top - _AROUND, top + self.size.height + _AROUND)
        grid = [
            rows.cells(
                one,
                titles,
                columns,
                past if number in near else None,
                (drawn or {}).get(task_key(one)),
            )
            for number, one in enumerate(tasks)
        ]
        self._lay_columns(titles, columns, grid)
        self._lay_rows(grid)
        self.tasks, self._grid = tasks, grid
        if meant is not None:
            key = task_key(meant)
            place = next((n for n, one in enumerate(tasks) if task_key(one) == key), None)
            if place is not None and place != self.cursor_row:
                # Who has scrolled away from the cursor is not taken back to it.
                seen = 0 <= self.cursor_row - top < self.size.height - 1
                self.move_cursor(row=place, animate=False, scroll=seen)

    def _lay_columns(
        self, titles: tuple[str, ...], columns: int, grid: Sequence[Sequence[Text]]
    ) -> None:
        """Columns as wide as their widest cell was, so that they do not breathe."""
        same = titles == self.titles and columns == self._room
        least = self._widths if same else tuple(map(width, titles))
        widths = tuple(
            max(known, *(row[at].cell_len for row in grid)) if grid else known
            for at, known in enumerate(least)
        )
        if same and widths == self._widths:
            return
        top = self.scroll_offset.y
        self.clear(columns=True)
        self._grid = []
        for title, columns_ in zip(titles, widths, strict=True):
            self.add_column(title, key=title, width=columns_)
        self.titles, self._widths, self._room = titles, widths, columns
        self.call_after_refresh(self.scroll_to, y=top, animate=False)

    def _lay_rows(self, grid: Sequence[list[Text]]) -> None:
        if len(grid) < len(self._grid) - _FEW:
            self.clear()
            self._grid = []
        for number in range(len(self._grid) - 1, len(grid) - 1, -1):
            self.remove_row(str(number))
        for number, row in enumerate(grid):
            if number >= len(self._grid):
                self.add_row(*row, key=str(number))
                continue
            for title, before, cell in zip(self.titles, self._grid[number], row, strict=True):
                if not _same(before, cell):
                    self.update_cell(str(number), title, cell)


def _same(one: Text, other: Text) -> bool:
    return one.plain == other.plain and one.style == other.style and one.spans == other.spans
