"""A table of text cells: each column as wide as it needs, one column gives way."""

from __future__ import annotations

from watchdog_app.base.text.layout import pad, shorten, width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Table:
    """
    Rows of cells in columns.

    Args:
        rows: cells as plain text, the same number in every row.
        right: indexes of the columns that are aligned to the right.
        gives_way: index of the column that is shortened when there is not enough room.
        gap: blanks between columns.
    """

    def __init__(
        self, rows: Sequence[Sequence[str]], right: set[int], gives_way: int, gap: int = 1
    ) -> None:
        self._rows = rows
        self._right = right
        self._gives_way = gives_way
        self._gap = gap
        columns = len(rows[0]) if rows else 0
        self._widths = [max(width(row[column]) for row in rows) for column in range(columns)]

    def room(self, columns: int | None) -> int:
        """Columns that are left for the one that gives way, of `columns` in all."""
        wanted = self._widths[self._gives_way]
        if columns is None:
            return wanted
        others = [one for index, one in enumerate(self._widths) if index != self._gives_way and one]
        return min(wanted, columns - sum(others) - self._gap * len(others))

    def wanted(self) -> int:
        """Columns that the one that gives way needs to be whole."""
        return self._widths[self._gives_way]

    def lines(self, columns: int | None, ellipsis: str = "…") -> list[str]:
        """The rows as text without trailing blanks; columns without any text are left out."""
        widths = list(self._widths)
        widths[self._gives_way] = max(1, self.room(columns))
        found = []
        for row in self._rows:
            cells = [
                pad(shorten(cell, one, ellipsis), one, right=index in self._right)
                for index, (cell, one) in enumerate(zip(row, widths, strict=True))
                if one
            ]
            line = (" " * self._gap).join(cells).rstrip()
            found.append(line if columns is None else shorten(line, columns, ellipsis))
        return found
