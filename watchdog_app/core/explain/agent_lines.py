"""What the agent in a task says, as one line: framework, position, loss, what is saved. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.core.model.status import Agent


def agent_line(agent: Agent | None, now_unix_s: float) -> str:
    """
    `keras, epoch 4, step 1210, loss 0.312; rescue at step 1200, 12 s ago`, or `no agent`.

    Args:
        agent: of a task; None: it has none.
        now_unix_s: what the age of the rescue is counted to.
    """
    if agent is None:
        return "no agent"
    parts = [plain(agent.framework or "agent")]
    if agent.epoch is not None:
        parts.append(f"epoch {agent.epoch + 1}")
    if agent.step is not None:
        parts.append(f"step {agent.step}")
    if agent.loss is not None:
        parts.append(f"loss {agent.loss:.4g}")
    if agent.saving:
        parts.append("saving now")
    elif not agent.training:
        parts.append("not training")
    rescue = agent.rescue
    if rescue is None:
        return f"{', '.join(parts)}; no rescue yet"
    saved = rescue.saved_unix_s
    when = "" if saved is None else f", {quantities.age(now_unix_s - saved)}"
    return f"{', '.join(parts)}; rescue at step {quantities.whole(rescue.step)}{when}"
