"""
Draw the icon: a container filled to the used ratio; colour and shape show the level.

Each size is drawn separately, not scaled from another size. Vectors are drawn on a finer grid and
averaged, so the icon is sharp at 16 and at 64 pixels. The outlines differ, so users need not tell
colours apart. The colours are those of Okabe and Ito (2008), which colour-blind people can tell
apart. A thin edge of the opposite lightness keeps the outline visible on any panel colour.
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
_MIN_FILL = 0.16  # fraction of the height: two pixels of an icon of 16 pixels


@dataclass(frozen=True, slots=True)
class _Canvas:
    """An icon being drawn, on a grid `scale` times finer than the pixels."""

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
        """Draw a filled polygon."""
        self.pen.polygon([(round(x), round(y)) for x, y in points], fill=color)

    def box(self, left: float, top: float, right: float, bottom: float, color: Color) -> None:
        """Draw a filled rectangle without its right and bottom edge, as in pixel coordinates."""
        self.pen.rectangle(
            (round(left), round(top), round(right) - 1, round(bottom) - 1), fill=color
        )

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        """Draw a filled circle."""
        self.pen.ellipse((x - radius, y - radius, x + radius - 1, y + radius - 1), fill=color)


def draw(picture: Picture, size: int, dark_panel: bool = True) -> Image.Image:
    """
    Draw the icon as an RGBA image of `size` x `size` pixels.

    Args:
        picture: content of the icon.
        size: pixels, 8 or more.
        dark_panel: the background is dark, so the outline is light.
    """
    scale = 8 if size <= 24 else 4
    image = Image.new("RGBA", (size * scale, size * scale), _CLEAR)
    line, edge = (_LIGHT, _DARK) if dark_panel else (_DARK, _LIGHT)
    if picture.level is Level.UNKNOWN:
        line = _GREY
    canvas = _Canvas(image, ImageDraw.Draw(image), size, scale, line, edge)
    # Line width is 1.5 pixels at size 16, and whole pixels above: thinner lines are blurred.
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
    """Return the pixels in StatusNotifierItem's format: ARGB32 in network byte order."""
    red, green, blue, alpha = image.split()
    return bytes(Image.merge("RGBA", (alpha, red, green, blue)).tobytes())


def _background(dark_panel: bool) -> Color:
    """Return the almost transparent colour of the container's empty part."""
    return (0, 0, 0, 110) if dark_panel else (255, 255, 255, 150)


def _outline(level: Level, canvas: _Canvas) -> list[Point]:
    """Return the outline of the container: circle, rounded square, triangle or square."""
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
    """Return the polygon with every edge moved outwards by `by` (negative: inwards)."""
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
    """Draw the used part, from the bottom; only the last step reaches the top."""
    if picture.fill <= 0:
        return
    top = min(y for _, y in inner)
    bottom = max(y for _, y in inner)
    # The first step is visible at every size: an empty container would mean that nothing is used.
    above = (min(picture.fill, FILL_STEPS) - 1) / (FILL_STEPS - 1)
    part = _MIN_FILL + (1 - _MIN_FILL) * above
    level = bottom - (bottom - top) * part
    mask = Image.new("L", canvas.size, 0)
    pen = ImageDraw.Draw(mask)
    pen.polygon([(round(x), round(y)) for x, y in inner], fill=255)
    pen.rectangle((0, 0, canvas.size[0], round(level) - 1), fill=0)
    canvas.paste(picture.level.rgb, (0, 0), mask)


def _draw_strike(canvas: _Canvas, width: float) -> None:
    """Draw a diagonal line: nothing is watched."""
    start, end = 0.2 * canvas.unit, 0.8 * canvas.unit
    for color, times in ((canvas.edge, 1.9), (canvas.line, 1.1)):
        canvas.pen.line([(start, end), (end, start)], fill=color, width=round(width * times))


def _draw_exclamation(canvas: _Canvas) -> None:
    """Draw an exclamation mark of whole pixels, so that it is readable at 16 pixels."""
    pixel = canvas.scale
    half = max(1, round(canvas.size * 0.075)) * pixel
    middle = canvas.unit / 2
    top, foot = (round(canvas.size * part) * pixel for part in (0.24, 0.80))
    dot = max(1, round(canvas.size * 0.13)) * pixel
    gap = max(1, round(canvas.size * 0.08)) * pixel
    canvas.box(middle - half, top, middle + half, foot - dot - gap, _LIGHT)
    canvas.box(middle - half, foot - dot, middle + half, foot, _LIGHT)


def _draw_badge(canvas: _Canvas, mark: Mark) -> None:
    """Draw a mark in the lower right corner, on a disc with a gap around it."""
    unit, scale, edge = canvas.unit, canvas.scale, canvas.edge
    # A radius with half a pixel gives one middle pixel and equally many on both sides.
    radius = (max(4, round(0.27 * canvas.size)) + 0.5) * scale
    x = y = unit - radius
    canvas.disc(x, y, radius + max(1.0 * scale, 0.03 * unit), _CLEAR)
    canvas.box(x, y, unit, unit, _CLEAR)  # clear the rest of the container in the corner
    canvas.disc(x, y, radius, edge)
    canvas.disc(x, y, radius - max(0.5 * scale, 0.02 * unit), canvas.line)
    part = radius / 4.5  # one pixel at the smallest size
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
    """One picture at every size, each drawn when it is requested."""

    def __init__(self, picture: Picture, dark_panel: bool = True) -> None:
        self.picture = picture
        self._dark_panel = dark_panel

    def at(self, size: int) -> Image.Image:
        """Return the icon with `size` x `size` pixels."""
        return draw(self.picture, size, self._dark_panel)

    def pixmaps(self) -> list[list[int | bytes]]:
        """Return every size as (width, height, ARGB32), the format of a StatusNotifierItem."""
        return [[size, size, argb(self.at(size))] for size in SIZES]
