"""
Hours of the day in which only critical notifications are shown.

Local time: where clocks change for daylight saving, that night is an hour shorter or longer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FORM = re.compile(r"([01][0-9]|2[0-4]|[0-9]):([0-5][0-9])")
_DAY_MIN = 24 * 60


def span(text: str) -> tuple[int, int]:
    """
    Begin and end of "22:00-07:00" in minutes after midnight; the end may be on the next day.

    Raises:
        ValueError: it is not of that form, or says nothing: both times are the same.
    """
    begin, dash, end = text.partition("-")
    if not dash:
        raise ValueError(f"{text!r} holds no two times with - between them")
    found = (_minute(begin.strip()), _minute(end.strip()))
    if found[0] == found[1] or found[0] == _DAY_MIN:
        raise ValueError(f"{text!r} begins where it ends, or at 24:00")
    return found


def covering(spans: Sequence[str], hour: int, minute: int) -> str | None:
    """
    The first of these hours that this time of day falls into; None: it is not quiet.

    A span includes its begin and not its end.

    Args:
        spans: such as "22:00-07:00".
        hour: local, 0 to 23.
        minute: 0 to 59.
    """
    now = hour * 60 + minute
    for text in spans:
        begin, end = span(text)
        inside = begin <= now < end if begin < end else (now >= begin or now < end)
        if inside:
            return text
    return None


def _minute(text: str) -> int:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day such as 22:00")
    minutes = int(found[1]) * 60 + int(found[2])
    if minutes > _DAY_MIN:
        raise ValueError(f"{text!r} is past midnight")
    return minutes
