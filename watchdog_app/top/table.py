"""
The table of tasks; it keeps its scroll position when tasks change places.

Rows are slots: a task that moves up changes the text of two slots. Scrolling and unchanged cells
are not affected. This module computes the column widths: the library would measure every cell of
500 tasks each second, which costs half a CPU core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from textual.widgets import DataTable

from watchdog_app.base.text.terminal import width
from watchdog_app.core.model.status import Task
from watchdog_app.top import rows
from watchdog_app.top.past import Key, SeriesHistory, task_key

_OVERSCAN_ROWS = 60  # rows above and below the screen whose trend is drawn, too
_MAX_SINGLE_REMOVALS = 16  # more rows than this: clear the table and add all rows again


class TaskTable(DataTable[Text]):
    """Tasks in order; the chosen task stays chosen when the order changes."""

    def __init__(self, **more: Any) -> None:
        # Under the cursor a badge keeps both of its colours.
        super().__init__(cursor_type="row", cursor_foreground_priority="renderable", **more)
        self.tasks: list[Task] = []
        self.titles: tuple[str, ...] = ()
        self._widths: tuple[int, ...] = ()
        self._room = 0
        self._grid: list[list[Text]] = []
        self._last: Task | None = None
        self.follows_order = True  # the first task is chosen until the user chooses another one

    def action_cursor_up(self) -> None:
        """Choose the task above; at the top, the first task stays chosen."""
        self.follows_order = False
        super().action_cursor_up()

    @property
    def chosen(self) -> Task | None:
        """The task under the cursor."""
        row = self.cursor_row
        return self.tasks[row] if 0 <= row < len(self.tasks) else None

    @property
    def last_chosen(self) -> Task | None:
        """The chosen task; the previous one while a filter shows no task."""
        return self.chosen or self._last

    def show(
        self,
        tasks: list[Task],
        titles: tuple[str, ...],
        columns: int,
        past: SeriesHistory,
        series_by_task: Mapping[Key, Key] | None = None,
    ) -> None:
        """
        Show tasks.

        Args:
            tasks: the tasks from the top.
            titles: column titles, see `rows.column_titles`.
            columns: width of the terminal.
            past: series for the trends.
            series_by_task: for some tasks, the series to draw instead of their RAM.
        """
        if self.cursor_row > 0:  # the user moved it: by a key, a page or a click
            self.follows_order = False
        self._last = chosen = self.last_chosen
        top = self.scroll_offset.y
        drawn_rows = range(top - _OVERSCAN_ROWS, top + self.size.height + _OVERSCAN_ROWS)
        grid = [
            rows.task_cells(
                one,
                titles,
                columns,
                past if number in drawn_rows else None,
                (series_by_task or {}).get(task_key(one)),
            )
            for number, one in enumerate(tasks)
        ]
        self._set_columns(titles, columns, grid)
        self._set_rows(grid)
        self.tasks, self._grid = tasks, grid
        if not self.follows_order and chosen is not None:
            key = task_key(chosen)
            place = next((n for n, one in enumerate(tasks) if task_key(one) == key), None)
            if place is not None and place != self.cursor_row:
                # If the user has scrolled away from the cursor, do not scroll back to it.
                seen = 0 <= self.cursor_row - top < self.size.height - 1
                self.move_cursor(row=place, animate=False, scroll=seen)

    def _set_columns(
        self, titles: tuple[str, ...], columns: int, grid: Sequence[Sequence[Text]]
    ) -> None:
        """Set the columns. Widths only grow, so that the table does not flicker."""
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

    def _set_rows(self, grid: Sequence[list[Text]]) -> None:
        if len(grid) < len(self._grid) - _MAX_SINGLE_REMOVALS:
            self.clear()
            self._grid = []
        for number in range(len(self._grid) - 1, len(grid) - 1, -1):
            self.remove_row(str(number))
        for number, row in enumerate(grid):
            if number >= len(self._grid):
                self.add_row(*row, key=str(number))
                continue
            for title, before, cell in zip(self.titles, self._grid[number], row, strict=True):
                if not _looks_same(before, cell):
                    self.update_cell(str(number), title, cell)


def _looks_same(one: Text, other: Text) -> bool:
    return one.plain == other.plain and one.style == other.style and one.spans == other.spans
