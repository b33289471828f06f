"""What has become of the rescue that a dead task left: still there, whole or gone."""

from __future__ import annotations

import os

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
    from watchdog_app.rescue.checkpoint.inventory import examine
    from watchdog_app.rescue.checkpoint.names import RescueName

    name = RescueName.parse(os.path.basename(path))
    found = None if name is None else examine(path, name)
    if found is None:
        return (
            "The rescue is not there any more: a newer one may have taken its place. "
            "See: watchdog rescues"
        )
    if found.condition != "complete":
        return f"The rescue is {found.condition}: {plain(found.problem or 'why is not known')}."
    return (
        "The rescue is complete. Its checksums are compared when it is loaded, or now: "
        f"watchdog rescues verify {plain(path)}"
    )
