"""Drawing with Braille dots: two columns and four rows of them in each character cell. Pure."""

from __future__ import annotations

# Bit of each dot by (column, row) in its cell (Unicode, Braille Patterns, U+2800).
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800

DOTS_X = 2
DOTS_Y = 4


class Canvas:
    """
    A field of dots, each with a layer; a cell shows the highest layer of its dots.

    Args:
        columns, rows: size in character cells.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = max(1, columns)
        self.rows = max(1, rows)
        self._bits = [[0] * self.columns for _ in range(self.rows)]
        self._layers = [[0] * self.columns for _ in range(self.rows)]

    @property
    def width(self) -> int:
        """In dots."""
        return self.columns * DOTS_X

    @property
    def height(self) -> int:
        """In dots."""
        return self.rows * DOTS_Y

    def dot(self, x: int, y: int, layer: int = 1) -> None:
        """Set a dot, from the lower left; outside the field nothing happens."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            return
        row, inner = divmod(self.height - 1 - y, DOTS_Y)
        column, across = divmod(x, DOTS_X)
        self._bits[row][column] |= _BITS[across][inner]
        self._layers[row][column] = max(self._layers[row][column], layer)

    def line(self, begin: tuple[int, int], end: tuple[int, int], layer: int = 1) -> None:
        """Set the dots from one point to another, both included."""
        (x0, y0), (x1, y1) = begin, end
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for step in range(steps + 1):
            x = round(x0 + (x1 - x0) * step / steps)
            y = round(y0 + (y1 - y0) * step / steps)
            self.dot(x, y, layer)

    def cells(self) -> list[list[tuple[str, int]]]:
        """Rows from the top, each cell its character and the layer that gives its colour."""
        return [
            [
                (chr(_BLANK + bits) if bits else " ", layer)
                for bits, layer in zip(bits_row, layer_row, strict=True)
            ]
            for bits_row, layer_row in zip(self._bits, self._layers, strict=True)
        ]
