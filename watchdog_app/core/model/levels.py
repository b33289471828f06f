"""How urgent something is, as people see it: one scale for every screen, `--check` and metrics."""

from __future__ import annotations

from enum import IntEnum

from watchdog_app.base.text.quantities import format_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_OLD_S = 10.0  # a reading older than this, and than five intervals, says nothing about now
_STAGES = {"ok": 0, "watch": 1, "warn": 2, "rescue": 3, "hold": 3}


class Level(IntEnum):
    """From "nothing to do" to "not known"."""

    OK = 0
    WATCH = 1  # something moves, and needs nobody yet
    WARNING = 2
    CRITICAL = 3
    UNKNOWN = 4  # no reading, or one that is too old

    @property
    def word(self) -> str:
        """The word at the beginning of a headline."""
        return ("OK", "OK", "WARNING", "CRITICAL", "UNKNOWN")[self]

    @property
    def mark(self) -> str:
        """The sign in front of a line; empty while all is well."""
        return ("", "~", "!", "!!", "?")[self]

    @property
    def exit_code(self) -> int:
        """Of `watchdog status --check`, as monitoring plugins use them."""
        return (0, 0, 1, 2, 3)[self]

    @classmethod
    def of_stage(cls, stage: object, *, certain: bool = True) -> Level:
        """
        The level of a stage of the policy.

        Args:
            stage: its name; one that this version does not know is a warning.
            certain: False where trainings are saved on little evidence: nobody is worried yet.
        """
        level = cls(_STAGES.get(str(stage or "ok"), cls.WARNING))
        return level if certain else min(level, cls.WATCH)

    @classmethod
    def of_name(cls, name: object) -> Level:
        """The level by its name in JSON; UNKNOWN for anything else."""
        return next((level for level in cls if level.name.lower() == name), cls.UNKNOWN)

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Level:
        """
        The level of a resource, task, card or incident in JSON.

        Entries of older journals have a stage only.
        """
        return cls.of_name(item["level"]) if "level" in item else cls.of_stage(item.get("stage"))


def headline(status: Mapping[str, Any], now_unix_s: float) -> tuple[Level, str]:
    """
    Level and headline of a status object, or UNKNOWN where it is too old.

    Args:
        status: the status object of docs/status-json.md.
        now_unix_s: what its age is counted to.
    """
    age_s = reading_age_s(status, now_unix_s)
    daemon = status.get("daemon")
    interval = daemon.get("interval_s") if isinstance(daemon, dict) else None
    pace_s = interval if isinstance(interval, int | float) else 1.0
    if age_s is not None and age_s > max(_OLD_S, 5 * pace_s):
        old = format_duration(age_s)
        return Level.UNKNOWN, f"this reading is {old} old; the daemon is stopped or overloaded"
    text = status.get("headline")
    if not isinstance(text, str) or not text:
        return Level.UNKNOWN, "this daemon sends no summary; restart it: watchdog stop, then start"
    return Level.of_name(status.get("level")), text


def reading_age_s(status: Mapping[str, Any], now_unix_s: float) -> float | None:
    """
    Seconds since the daemon measured; None where it does not say.

    Args:
        status: the status object.
        now_unix_s: the time now.
    """
    at = status.get("time_unix_s")
    if isinstance(at, bool) or not isinstance(at, int | float):
        return None
    return max(0.0, now_unix_s - at)
