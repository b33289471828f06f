"""
The icon, drawn: a vessel whose fill is the use and whose colour and shape is the level.

Each size is drawn for itself and not scaled from another, with vectors on a
finer grid that is then averaged: sharp at 16 pixels and at 64. Shapes differ
in their outline alone, so nobody needs to tell colours apart; the colours are
those of Okabe and Ito (2008), which colour-blind people can. A thin edge of
the opposite lightness keeps the outline readable on a panel of any colour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image, ImageDraw

from watchdog_app.core.model.levels import Level
from watchdog_app.tray.state import FILL_STEPS, Mark, Picture

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Point = tuple[float, float]
    Color = tuple[int, int, int, int]

SIZES = (16, 22, 24, 32, 48, 64)

_LIGHT: Color = (245, 245, 245, 255)
_DARK: Color = (30, 30, 30, 255)
_GREY: Color = (140, 140, 140, 255)
_CLEAR: Color = (0, 0, 0, 0)
_MIN_FILL = 0.16  # of the height: a vessel of 16 pixels shows two of it


@dataclass(frozen=True, slots=True)
class _Canvas:
    """One icon in the making, on a grid `scale` times finer than the pixels."""

    image: Image.Image
    pen: ImageDraw.ImageDraw
    size: int
    scale: int
    line: Color
    edge: Color

    @property
    def unit(self) -> float:
        """Width and height on the fine grid."""
        return float(self.size * self.scale)

    def polygon(self, points: Sequence[Point], color: Color) -> None:
        """A filled polygon."""
        self.pen.polygon([(round(x), round(y)) for x, y in points], fill=color)

    def box(self, left: float, top: float, right: float, bottom: float, color: Color) -> None:
        """A filled rectangle without its right and bottom ends, as pixels are counted."""
        self.pen.rectangle(
            (round(left), round(top), round(right) - 1, round(bottom) - 1), fill=color
        )

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        """A filled circle."""
        self.pen.ellipse((x - radius, y - radius, x + radius - 1, y + radius - 1), fill=color)


def draw(picture: Picture, size: int, dark_panel: bool = True) -> Image.Image:
    """
    The icon as RGBA, `size` pixels in square.

    Args:
        picture: what it shows.
        size: in pixels, 8 or more.
        dark_panel: it stands on a dark ground, so its outline is light.
    """
    scale = 8 if size <= 24 else 4
    image = Image.new("RGBA", (size * scale, size * scale), _CLEAR)
    line, edge = (_LIGHT, _DARK) if dark_panel else (_DARK, _LIGHT)
    if picture.level is Level.UNKNOWN:
        line = _GREY
    canvas = _Canvas(image, ImageDraw.Draw(image), size, scale, line, edge)
    # A line is a pixel and a half at 16, and whole pixels above: thinner is a blur.
    width = scale * max(1.5, round(size / 11))
    outline = _outline(picture.level, canvas)
    canvas.polygon(_offset_polygon(outline, scale * max(0.5, size / 40)), edge)
    canvas.polygon(outline, line)
    inner = _offset_polygon(outline, -width)
    canvas.polygon(inner, _background(dark_panel))
    _draw_fill(image, inner, picture)
    if picture.level is Level.UNKNOWN:
        _draw_strike(canvas, width)
    elif picture.level is Level.CRITICAL and not picture.mark:
        _draw_exclamation(canvas)
    if picture.mark:
        _draw_badge(canvas, picture.mark)
    return image.reduce(scale)


def argb(image: Image.Image) -> bytes:
    """Pixels as StatusNotifierItem wants them: ARGB32 in network byte order."""
    red, green, blue, alpha = image.split()
    return bytes(Image.merge("RGBA", (alpha, red, green, blue)).tobytes())


def _background(dark_panel: bool) -> Color:
    """What the empty part of the vessel shows: hardly anything."""
    return (0, 0, 0, 110) if dark_panel else (255, 255, 255, 150)


def _outline(level: Level, canvas: _Canvas) -> list[Point]:
    """The vessel: circle, rounded square, triangle, square."""
    unit, scale = canvas.unit, canvas.scale
    middle = 0.5 * unit
    if level in (Level.WATCH, Level.CRITICAL):
        critical = level is Level.CRITICAL
        margin = max(1, round((0.05 if critical else 0.08) * canvas.size)) * scale
        return _rounded_square(margin, unit - margin, 0.0 if critical else 0.2 * unit)
    if level is Level.WARNING:
        return [(middle, 0.04 * unit), (0.98 * unit, 0.93 * unit), (0.02 * unit, 0.93 * unit)]
    return _arc(middle, middle, 0.45 * unit, 0, 360)


def _arc(x: float, y: float, radius: float, start: float, end: float) -> list[Point]:
    steps = max(8, int(abs(end - start) / 4))
    angles = [math.radians(start + (end - start) * index / steps) for index in range(steps)]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def _rounded_square(low: float, high: float, radius: float) -> list[Point]:
    if radius <= 0:
        return [(high, high), (low, high), (low, low), (high, low)]
    first, last = low + radius, high - radius
    corners = ((last, last, 0), (first, last, 90), (first, first, 180), (last, first, 270))
    return [point for x, y, angle in corners for point in _arc(x, y, radius, angle, angle + 90)]


def _offset_polygon(points: Sequence[Point], by: float) -> list[Point]:
    """The polygon with every edge moved outwards by `by`; inwards where that is negative."""
    count = len(points)
    edges = []
    for index, (x, y) in enumerate(points):
        x2, y2 = points[(index + 1) % count]
        length = math.hypot(x2 - x, y2 - y) or 1.0
        nx, ny = (y2 - y) / length, -(x2 - x) / length
        edges.append((x + nx * by, y + ny * by, x2 - x, y2 - y))
    grown = []
    for index in range(count):
        x1, y1, dx1, dy1 = edges[index - 1]
        x2, y2, dx2, dy2 = edges[index]
        cross = dx1 * dy2 - dy1 * dx2
        if abs(cross) < 1e-9:
            grown.append((x2, y2))
            continue
        along = ((x2 - x1) * dy2 - (y2 - y1) * dx2) / cross
        grown.append((x1 + along * dx1, y1 + along * dy1))
    return grown


def _draw_fill(canvas: Image.Image, inner: Sequence[Point], picture: Picture) -> None:
    """What is used, from the bottom; the last step alone reaches the top."""
    if picture.fill <= 0:
        return
    top = min(y for _, y in inner)
    bottom = max(y for _, y in inner)
    # The first step is seen at every size: a vessel that looks empty says that nothing is used.
    above = (min(picture.fill, FILL_STEPS) - 1) / (FILL_STEPS - 1)
    part = _MIN_FILL + (1 - _MIN_FILL) * above
    level = bottom - (bottom - top) * part
    mask = Image.new("L", canvas.size, 0)
    pen = ImageDraw.Draw(mask)
    pen.polygon([(round(x), round(y)) for x, y in inner], fill=255)
    pen.rectangle((0, 0, canvas.size[0], round(level) - 1), fill=0)
    canvas.paste(picture.level.rgb, (0, 0), mask)


def _draw_strike(canvas: _Canvas, width: float) -> None:
    """A stroke across: nothing is watched."""
    start, end = 0.2 * canvas.unit, 0.8 * canvas.unit
    for color, times in ((canvas.edge, 1.9), (canvas.line, 1.1)):
        canvas.pen.line([(start, end), (end, start)], fill=color, width=round(width * times))


def _draw_exclamation(canvas: _Canvas) -> None:
    """The end is here: whole pixels, so that it is read at 16 of them."""
    pixel = canvas.scale
    half = max(1, round(canvas.size * 0.075)) * pixel
    middle = canvas.unit / 2
    top, foot = (round(canvas.size * part) * pixel for part in (0.24, 0.80))
    dot = max(1, round(canvas.size * 0.13)) * pixel
    gap = max(1, round(canvas.size * 0.08)) * pixel
    canvas.box(middle - half, top, middle + half, foot - dot - gap, _LIGHT)
    canvas.box(middle - half, foot - dot, middle + half, foot, _LIGHT)


def _draw_badge(canvas: _Canvas, mark: Mark) -> None:
    """A sign in the lower right corner, on a disc of its own with a gap around it."""
    unit, scale, edge = canvas.unit, canvas.scale, canvas.edge
    # Half pixels: a middle of one pixel, and as many on both sides of it.
    radius = (max(4, round(0.27 * canvas.size)) + 0.5) * scale
    x = y = unit - radius
    canvas.disc(x, y, radius + max(1.0 * scale, 0.03 * unit), _CLEAR)
    canvas.box(x, y, unit, unit, _CLEAR)  # nothing of the vessel is left in the corner
    canvas.disc(x, y, radius, edge)
    canvas.disc(x, y, radius - max(0.5 * scale, 0.02 * unit), canvas.line)
    part = radius / 4.5  # a pixel at the smallest size
    if mark is Mark.PAUSED:
        for left in (-1.5, 0.5):
            canvas.box(x + left * part, y - 2.5 * part, x + (left + 1) * part, y + 2.5 * part, edge)
    elif mark is Mark.SAVING:
        canvas.box(x - 0.5 * part, y - 2.5 * part, x + 0.5 * part, y + 0.5 * part, edge)
        head = [(x - 2.5 * part, y), (x + 2.5 * part, y), (x, y + 2.5 * part)]
        canvas.polygon(head, edge)
    elif mark is Mark.OFF:
        reach = 1.8 * part
        for sign in (1, -1):
            ends = [(x - reach, y - sign * reach), (x + reach, y + sign * reach)]
            canvas.pen.line(ends, fill=edge, width=round(1.4 * part))


class Renditions:
    """One picture at every size, each drawn when it is first asked for."""

    def __init__(self, picture: Picture, dark_panel: bool = True) -> None:
        self.picture = picture
        self._dark_panel = dark_panel

    def at(self, size: int) -> Image.Image:
        """The icon with `size` pixels in square."""
        return draw(self.picture, size, self._dark_panel)

    def pixmaps(self) -> list[list[int | bytes]]:
        """Every size as (width, height, ARGB32), as a StatusNotifierItem has them."""
        return [[size, size, argb(self.at(size))] for size in SIZES]
