"""Urgency levels for the user: one table for every screen, `--check` and metrics."""

from __future__ import annotations

from enum import IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from watchdog_app.base.text.terminal import Style

_STAGES = {"ok": 0, "watch": 1, "warn": 2, "rescue": 3, "save": 3, "hold": 3, "pause": 3}


class Level(IntEnum):
    """
    Urgency, from "nothing to do" to "unknown".

    Attributes:
        word: name at the start of a headline.
        mark: prefix of a line; empty at level OK.
        exit_code: exit code of `watchdog status --check`, as for monitoring plugins.
        fault: word for a broken or slowed device.
        color: color of a terminal line, a name of `base.text.terminal`.
        rgb: color of the tray icon.
    """

    word: str
    mark: str
    exit_code: int
    fault: str
    color: str
    rgb: tuple[int, int, int]

    def __new__(cls, value: int, *row: Any) -> Self:
        """Create a level from one row of the table."""
        level = int.__new__(cls, value)
        level._value_ = value
        level.word, level.mark, level.exit_code, level.fault, level.color, level.rgb = row
        return level

    OK = 0, "OK", "", 0, "OVER", "", (0, 158, 115)
    # A resource may run out. No notification is sent, because most growth ends in time.
    WATCH = 1, "WATCH", "~", 0, "NOTE", "cyan", (86, 180, 233)
    WARNING = 2, "WARNING", "!", 1, "WARNING", "yellow", (240, 200, 40)
    CRITICAL = 3, "CRITICAL", "!!", 2, "CRITICAL", "alarm", (213, 40, 30)
    # The reading is missing or too old.
    UNKNOWN = 4, "UNKNOWN", "?", 3, "UNKNOWN", "yellow", (128, 128, 128)

    def paint(self, line: str, style: Style) -> str:
        """
        Colour the mark at the start of a line, and make the rest bold from a warning on.

        Args:
            line: the line, beginning with the mark.
            style: colours and symbols of the terminal.
        """
        length = len(self.mark) if line.startswith(self.mark) else 0
        rest = line[length:]
        if self >= Level.WARNING:
            rest = style.paint(rest, "bold")
        return style.paint(line[:length], self.color) + rest

    @classmethod
    def from_stage(cls, stage: object, *, certain: bool = True) -> Level:
        """
        The level of a stage of the policy.

        Args:
            stage: name of the stage; an unknown name counts as a warning.
            certain: False if trainings are saved on weak evidence, which needs no attention yet.
        """
        level = _BY_VALUE[_STAGES.get(str(stage or "ok"), cls.WARNING)]
        return level if certain else min(level, cls.WATCH)

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Level:
        """
        The level of a resource, task, card or incident in JSON; UNKNOWN for an invalid name.

        Entries of older journals only have a stage.
        """
        if "level" not in item:
            return cls.from_stage(item.get("stage"))
        name = item["level"]
        return _BY_NAME.get(name, cls.UNKNOWN) if isinstance(name, str) else cls.UNKNOWN


_BY_NAME = {level.name.lower(): level for level in Level}
_BY_VALUE = tuple(Level)
