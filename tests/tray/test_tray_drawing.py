"""The icon's pixels: fill, shapes and marks, at every size and on every background."""

from __future__ import annotations

import itertools

import pytest
from PIL import ImageChops

from watchdog_app.core.model.levels import Level
from watchdog_app.tray.drawing import SIZES, Renditions, argb, draw
from watchdog_app.tray.state import FILL_STEPS, Mark, Picture

PICTURES = [Picture(level, 8) for level in Level]
COLORS = {
    Level.OK: (0, 158, 115),
    Level.WATCH: (86, 180, 233),
    Level.WARNING: (240, 200, 40),
    Level.CRITICAL: (213, 40, 30),
}


def pixels(image):
    return [image.getpixel((x, y)) for y in range(image.height) for x in range(image.width)]


def colored(image, color):
    """Count the pixels of about this colour."""
    return sum(
        pixel[3] > 200 and all(abs(a - b) < 40 for a, b in zip(pixel, color, strict=False))
        for pixel in pixels(image)
    )


def silhouette(image):
    """Return which pixels the icon covers, without colour."""
    return image.getchannel("A").point(lambda alpha: 255 * (alpha > 127))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("picture", PICTURES, ids=str)
def test_the_icon_fills_its_square(size, picture):
    """The drawing ends within a pixel or two of the edges of the requested size."""
    image = draw(picture, size)

    left, top, right, bottom = image.getchannel("A").getbbox()
    assert (size, size) == image.size
    assert right - left >= size - max(2, size // 8)
    assert bottom - top >= size - max(2, size // 8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("level", COLORS)
def test_the_fill_grows_with_the_use(size, level):
    """The fill never shrinks with more use. Zero shows none, full shows clearly more than half."""
    amounts = [
        colored(draw(Picture(level, fill), size), COLORS[level]) for fill in range(FILL_STEPS + 1)
    ]

    assert 0 == amounts[0]
    assert amounts == sorted(amounts)
    assert amounts[FILL_STEPS] > 1.4 * max(1, amounts[FILL_STEPS // 4])
    assert len(set(amounts)) > size // 4


@pytest.mark.parametrize("size", SIZES)
def test_levels_are_told_apart_without_any_colour(size):
    """The outlines differ at every size, in a twentieth of the square for each pair."""
    shapes = [silhouette(draw(Picture(level, 8), size)) for level in COLORS]

    for (one, first), (other, second) in itertools.combinations(
        zip(COLORS, shapes, strict=True), 2
    ):
        changed = sum(value > 0 for value in pixels(ImageChops.difference(first, second)))
        assert changed >= size * size / 20, (one, other)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ground", [(35, 35, 38), (240, 240, 238), (90, 110, 130)])
@pytest.mark.parametrize("dark_panel", [True, False])
def test_the_outline_is_readable_on_any_panel(size, ground, dark_panel):
    """A part of the icon contrasts with the background even if the theme guess is wrong."""
    image = draw(Picture(Level.OK, 0), size, dark_panel)

    def light(pixel):
        return sum(pixel[:3]) / 3

    seen = [
        (light(pixel) * pixel[3] + light(ground) * (255 - pixel[3])) / 255
        for pixel in pixels(image)
    ]
    assert max(abs(value - light(ground)) for value in seen) > 80


@pytest.mark.parametrize("size", SIZES)
def test_marks_differ_from_each_other_and_from_none(size):
    """The mark is only in the lower right corner."""
    plain = draw(Picture(Level.OK, 8), size)
    marked = [
        draw(Picture(Level.OK, 8, mark), size) for mark in (Mark.PAUSED, Mark.SAVING, Mark.OFF)
    ]

    for one, other in itertools.combinations([plain, *marked], 2):
        box = ImageChops.difference(one, other).getbbox(alpha_only=False)
        assert box is not None
        assert box[0] >= size * 0.3
        assert box[1] >= size * 0.3


@pytest.mark.parametrize("size", SIZES)
def test_without_a_daemon_everything_is_grey(size):
    """The previous state does not matter."""
    for picture in (Picture(Level.UNKNOWN), Picture(Level.UNKNOWN, 9, Mark.NONE)):
        for pixel in pixels(draw(picture, size)):
            assert max(pixel[:3]) - min(pixel[:3]) < 16


def test_pixels_go_out_as_argb_in_network_byte_order():
    """Alpha comes first, row by row."""
    image = draw(Picture(Level.OK, 8), 16)
    red, green, blue, alpha = image.getpixel((8, 12))

    data = argb(image)

    assert 16 * 16 * 4 == len(data)
    at = 4 * (12 * 16 + 8)
    assert bytes((alpha, red, green, blue)) == data[at : at + 4]


def test_every_size_is_drawn_for_itself():
    """The panel need not scale one picture."""
    pixmaps = Renditions(Picture(Level.WARNING, 9)).pixmaps()

    assert list(SIZES) == [width for width, _, _ in pixmaps]
    assert all(
        width == height and len(data) == 4 * width * height for width, height, data in pixmaps
    )
