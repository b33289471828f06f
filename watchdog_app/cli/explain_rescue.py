"""What has become of the rescue that a dead task left: still there, whole, verified or gone."""

from __future__ import annotations

import os
import time

from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def state_of_rescue(death: dict[str, Any]) -> str | None:
    """One sentence; None where nothing was saved."""
    rescue = death.get("rescue")
    path = rescue.get("path") if isinstance(rescue, dict) else None
    if not isinstance(path, str):
        return None
    from watchdog_app.agent.saving.inventory import examine
    from watchdog_app.agent.saving.names import RescueName
    from watchdog_app.cli.verified import Verified

    name = RescueName.parse(os.path.basename(path))
    found = None if name is None else examine(path, name, finished=False)
    if found is None:
        return (
            "The rescue is not there any more: a newer one may have taken its place. "
            "See: watchdog rescues"
        )
    if found.condition != "complete":
        return f"The rescue is {found.condition}: {plain(found.problem or 'why is not known')}."
    verified = Verified()
    if (damage := verified.damage(path)) is not None:
        return (
            f"The rescue is damaged: {plain(damage)}. A resume passes it over for the one before."
        )
    at = verified.when(path)
    if at is None:
        return (
            "The rescue is there and its parts fit together; every byte is compared when it is "
            f"loaded, or now with: watchdog rescues verify {plain(path)}"
        )
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    return f"The rescue is there; every byte was verified at {day}."
