"""
Xid events of the last hour, from the driver's event set and from the kernel log, each once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from watchdog_app.core.model.hardware import XidEvent

KEEP_S = 3600.0
_MOST = 64  # a card: a broken one says hundreds a minute
# How far apart both sources may tell one event.
_SAME_S = 15.0


@dataclass(slots=True)
class _Entry:
    event: XidEvent
    sources: set[str]


class Xids:
    """Events by card."""

    def __init__(self) -> None:
        self._by_card: dict[str, list[_Entry]] = {}

    def add(self, card: str, event: XidEvent, source: str) -> None:
        """
        Args:
            card: whatever names the card: here its UUID, or its address.
            event: what happened.
            source: "driver" or "log". The same event told by both is one.
        """
        entries = self._by_card.setdefault(card, [])
        for entry in entries:
            same = entry.event.code == event.code and source not in entry.sources
            if same and abs(entry.event.at_unix_s - event.at_unix_s) <= _SAME_S:
                entry.sources.add(source)
                entry.event = replace(
                    entry.event,
                    pid=entry.event.pid if entry.event.pid is not None else event.pid,
                    text=entry.event.text or event.text,
                )
                return
        entries.append(_Entry(event, {source}))
        entries.sort(key=lambda each: each.event.at_unix_s)
        while len(entries) > _MOST:
            # One that says what happened is not to drown in a thousand that follow from it.
            counts = Counter(each.event.code for each in entries)
            commonest = counts.most_common(1)[0][0]
            entries.remove(next(each for each in entries if each.event.code == commonest))

    def of(self, names: tuple[str | None, ...], now_unix_s: float) -> tuple[XidEvent, ...]:
        """Events of a card that goes by these names, of the last hour, oldest first."""
        found: list[XidEvent] = []
        for name in names:
            entries = self._by_card.get(name or "")
            if entries is None:
                continue
            kept = [each for each in entries if now_unix_s - each.event.at_unix_s <= KEEP_S]
            if kept:
                self._by_card[name or ""] = kept
            else:
                del self._by_card[name or ""]
            found += [each.event for each in kept]
        return tuple(sorted(found, key=lambda event: event.at_unix_s))
