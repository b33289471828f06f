"""
Draw the icon: a container filled to the used ratio; colour and shape show the level.

Each size is drawn separately, not scaled from another size. Vectors are drawn on a finer grid and
averaged, so the icon is sharp at 16 and at 64 pixels. The outlines differ, so users need not tell
colours apart. The colours are those of Okabe and Ito (2008), which colour-blind people can tell
apart. A thin edge of the opposite lightness keeps the outline visible on any panel colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw

from watchdog_app.core.model.levels import Level
from watchdog_app.tray.state import FILL_STEPS, Mark, Picture

Point = tuple[float, float]
Color = tuple[int, int, int, int]

SIZES = (16, 22, 24, 32, 48, 64)

_LIGHT: Color = (245, 245, 245, 255)
_DARK: Color = (30, 30, 30, 255)
_GREY: Color = (140, 140, 140, 255)
_CLEAR: Color = (0, 0, 0, 0)
# Shapes in a square of width 1: margin and radius of the corners; the triangle, the middle of its
# inner circle and that circle's radius.
_CIRCLE = (0.05, 0.45)
_SQUARES = {Level.WATCH: (0.08, 0.2), Level.CRITICAL: (0.05, 0.0)}
_TRIANGLE = ((0.5, 0.04), (0.98, 0.93), (0.02, 0.93))
_TRIANGLE_MIDDLE, _TRIANGLE_INRADIUS = (0.5, 0.6435), 0.2865
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

    def container(self, pen: ImageDraw.ImageDraw, level: Level, inset: float, color: Any) -> None:
        """
        Draw the filled container of a level: circle, rounded square, triangle or square.

        Args:
            pen: draws on an image of this size.
            level: decides the shape.
            inset: distance of the edges from the container's outline, inwards.
            color: of the image's mode.
        """
        unit = self.unit
        if level is Level.WARNING:
            factor = 1 - inset / (_TRIANGLE_INRADIUS * unit)
            middle_x, middle_y = _TRIANGLE_MIDDLE
            corners = [
                (
                    unit * (middle_x + (x - middle_x) * factor),
                    unit * (middle_y + (y - middle_y) * factor),
                )
                for x, y in _TRIANGLE
            ]
            pen.polygon(corners, fill=color)
            return
        margin, corner = _SQUARES.get(level, _CIRCLE)
        low = max(1, round(margin * self.size)) * self.scale + inset
        box = (low, low, unit - low - 1, unit - low - 1)
        pen.rounded_rectangle(box, max(0.0, corner * unit - inset), fill=color)

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
    canvas.container(canvas.pen, picture.level, -scale * max(0.5, size / 40), edge)
    canvas.container(canvas.pen, picture.level, 0.0, line)
    canvas.container(canvas.pen, picture.level, width, _background(dark_panel))
    _draw_fill(canvas, width, picture)
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


def _draw_fill(canvas: _Canvas, width: float, picture: Picture) -> None:
    """Draw the used part, from the bottom; only the last step reaches the top."""
    if picture.fill <= 0:
        return
    mask = Image.new("L", canvas.image.size, 0)
    pen = ImageDraw.Draw(mask)
    canvas.container(pen, picture.level, width, 255)
    _, top, _, bottom = mask.getbbox() or (0, 0, 0, 0)
    # The first step is visible at every size: an empty container would mean that nothing is used.
    above = (min(picture.fill, FILL_STEPS) - 1) / (FILL_STEPS - 1)
    part = _MIN_FILL + (1 - _MIN_FILL) * above
    pen.rectangle((0, 0, mask.width, round(bottom - (bottom - top) * part) - 1), fill=0)
    canvas.image.paste(picture.level.rgb, (0, 0), mask)


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
