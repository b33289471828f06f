"""What the daemon asks of the agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Save at the next step boundary."""

    id: str | int  # returned with every answer
    reason: str  # for people: what is running out
    received_mono_s: float
    deadline_s: float | None = None  # after which it is too late to matter; None: no deadline
    then: str = "continue"

    def expired(self, now_mono_s: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_s is not None and now_mono_s > self.received_mono_s + self.deadline_s

    @classmethod
    def read(cls, params: Any, now_mono_s: float) -> CheckpointRequest | None:
        """The request in the parameters of `agent.checkpoint`; None when they hold none."""
        if not isinstance(params, dict):
            return None
        id_ = params.get("request")
        if isinstance(id_, bool) or not isinstance(id_, str | int):
            return None
        deadline = params.get("deadline_s")
        if isinstance(deadline, bool) or not isinstance(deadline, int | float):
            deadline = None
        return cls(
            id_,
            str(params.get("reason") or "asked by the watchdog"),
            now_mono_s,
            deadline,
            str(params.get("then") or "continue"),
        )
