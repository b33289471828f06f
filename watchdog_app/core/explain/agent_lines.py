"""Text for an agent, a task in an incident, the outcome of a save request, a pause. Pure."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.terminal import plain
from watchdog_app.core.explain.selection import KERNELS, RUN_CELLS
from watchdog_app.core.model.status import Rescue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from watchdog_app.core.model.status import Agent, Contributor, Incident


def agent_line(agent: Agent | None, now_unix_s: float) -> str:
    """
    Return `keras, epoch 4, step 1210, loss 0.312; rescue at step 1200, 12 s ago`.

    Args:
        agent: agent of a task. None gives `no agent`.
        now_unix_s: current time, for the age of the rescue.
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
        unsaved = unsaved_reason(agent)
        parts.append(f"cannot be saved: {unsaved}" if unsaved else "not training")
    rescue = agent.rescue
    if rescue is None:
        return f"{', '.join(parts)}; no rescue yet"
    saved = rescue.saved_unix_s
    when = "" if saved is None else f", {quantities.age(now_unix_s - saved)}"
    return f"{', '.join(parts)}; rescue at step {quantities.whole(rescue.step)}{when}"


def unsaved_reason(agent: Agent) -> str:
    """Why an agent cannot save the training that it sees; empty if it can, or sees none."""
    never = agent.step is None and not agent.training and agent.rescue is None
    return "; ".join(map(plain, agent.not_restored)) if never else ""


def contributor_line(incident: Incident, contributor: Contributor) -> str:
    """
    Return the role of a task in an incident: `train.ipynb (pid 7) grows by 21.0 MiB/s, 95 % ...`.

    Args:
        incident: an incident.
        contributor: one of its contributors.
    """
    text = f"{plain(contributor.name or '?')} (pid {quantities.whole(contributor.pid)})"
    if incident.is_fault or incident.resource == "walltime":
        return f"hit: {text}" if incident.is_gpu_fault else text
    if incident.blame == "work":
        return f"{text} {quantities.ratio(contributor.share)} of the work"
    return f"{text} {quantities.growth(contributor.slope_bytes_per_s, contributor.share)}"


def save_line(request: Mapping[str, Any]) -> str:
    """Return one line on the outcome of a request. A save shows path, step, size and seconds."""
    name = plain(request.get("name") or request.get("task") or "?")
    status = request.get("status")
    detail = plain(request.get("detail") or "")
    if status == "done":
        rescue = Rescue.read(request.get("rescue"))
        at, size = quantities.whole(rescue.step), quantities.format_bytes(rescue.bytes)
        took = "" if rescue.seconds is None else f" in {rescue.seconds:.2f} s"
        return f"{name}: saved at step {at}, {size}{took}: {plain(rescue.path or '?')}"
    if status == "requested":
        return f"{name}: asked to save; it does so at the end of its step. --wait waits for it."
    word = {"failed": "NOT saved", "refused": "not asked"}.get(str(status), plain(status))
    return f"{name}: {word}. {detail}".rstrip()


def pause_advice(kind: str | None) -> list[str]:
    """Return what not to do while a task is paused. None: the kind of the task is unknown."""
    lines = []
    # Measured: after a shutdown request, jupyter_client waits 5 s for the kernel, then kills it.
    if kind is None or kind in RUN_CELLS:
        lines.append(
            "Do not press Restart or Shutdown in Jupyter meanwhile: that kills a paused kernel and "
            "its state is lost. Jupyter itself shows nothing of the pause."
        )
    if kind not in KERNELS:
        lines.append(
            "If it runs in a terminal, its shell says Stopped. After the resume it runs in the "
            "background there; type fg in that terminal if it reads from it."
        )
    return lines
