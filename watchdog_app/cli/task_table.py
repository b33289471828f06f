"""The tasks of a status object as a table: what is most urgent first."""

from __future__ import annotations

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import size_above
from watchdog_app.base.text.terminal import Style, Table, plain, wrap
from watchdog_app.core.explain.selection import gpu_numbers
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from watchdog_app.core.model.status import Agent, Guard, Task

HEADS = (
    "PID",
    "NOTEBOOK/SCRIPT",
    "STATE",
    "RAM",
    "SWAP",
    "DEV",
    "GPU-MEM",
    "CPU%",
    "TREND",
    "ETA",
)

_NAME = HEADS.index("NOTEBOOK/SCRIPT") + 1  # the mark comes first
_RIGHT = {HEADS.index(head) + 1 for head in HEADS} - {
    HEADS.index(head) + 1 for head in ("NOTEBOOK/SCRIPT", "STATE", "DEV", "ETA")
}
_SHORT_STATES = {"running": "run", "sleeping": "sleep"}

# How the table gives way to a narrow terminal: sizes, times, columns, least room for the name.
_FORMS: tuple[tuple[bool, bool, tuple[str, ...], int], ...] = (
    (False, False, HEADS, 24),
    (True, False, HEADS, 18),
    (True, True, HEADS, 15),
    (True, True, tuple(head for head in HEADS if head not in ("DEV", "GPU-MEM")), 15),
    (True, True, ("PID", "NOTEBOOK/SCRIPT", "STATE", "RAM", "ETA"), 8),
)


def task_lines(
    tasks: Sequence[Task],
    now_unix_s: float,
    columns: int | None,
    style: Style,
    *,
    gpus: bool = False,
) -> list[str]:
    """
    Heading and rows in at most `columns`, remarks under their task.

    Args:
        tasks: in the order they are to be shown in.
        now_unix_s: what ages are counted to.
        columns: of the terminal; None: nothing is shortened.
        style: colours and symbols.
        gpus: whether it is known who uses the GPUs: a task that is on none holds nothing there.
    """
    table = _fitting(tasks, columns, gpus)
    head, *rows = table.lines(columns, style.ellipsis)
    lines = [style.paint(head, "bold")]
    for task, row in zip(tasks, rows, strict=True):
        lines.append(style.paint(row, task.level.color))
        for remark in _remarks(task, now_unix_s):
            limit = columns if columns is not None else 10_000
            lines += [style.paint(line, "dim") for line in wrap(remark, limit, first="      ")]
    return lines


def agent_text(agent: Agent | None, now_unix_s: float) -> str:
    """`keras, step 1210, loss 0.312; rescue at step 1200, 12 s ago`, or `no agent`."""
    if agent is None:
        return "no agent"
    parts = [plain(agent.framework or "agent")]
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
        return ", ".join(parts) + "; no rescue yet"
    saved = rescue.saved_unix_s
    when = "" if saved is None else f", {quantities.age(now_unix_s - saved)}"
    return f"{', '.join(parts)}; rescue at step {quantities.whole(rescue.step)}{when}"


def _fitting(tasks: Sequence[Task], columns: int | None, gpus: bool) -> Table:
    on_gpus = any(task.gpu_memory_bytes is not None for task in tasks)
    table = None
    for compact, short, heads, least in _FORMS:
        if on_gpus and "RAM" in heads and "SWAP" in heads and "GPU-MEM" not in heads:
            continue  # never hide a figure that is known while an unknown one could go
        table = _table(tasks, heads, compact=compact, short=short, gpus=gpus)
        if columns is None or table.room(columns) >= min(table.wanted(), least):
            break
    assert table is not None  # noqa: S101 - _FORMS is not empty
    return table


def _table(
    tasks: Sequence[Task], heads: tuple[str, ...], *, compact: bool, short: bool, gpus: bool
) -> Table:
    rows = [["", *heads]]
    for task in tasks:
        cells = _cells(task, compact=compact, short=short, gpus=gpus)
        rows.append([task.level.mark, *(cells[head] for head in heads)])
    right = {index for index, head in enumerate(rows[0]) if head and _aligned_right(head)}
    return Table(rows, right, gives_way=_NAME, gap=1 if compact else 2)


def _aligned_right(head: str) -> bool:
    return HEADS.index(head) + 1 in _RIGHT


def _cells(task: Task, *, compact: bool, short: bool, gpus: bool) -> dict[str, str]:
    nothing = quantities.NONE if gpus and not task.gpus else quantities.UNKNOWN
    held = task.gpu_memory_bytes
    return {
        "PID": quantities.whole(task.pid),
        "NOTEBOOK/SCRIPT": plain(task.name or "?"),
        "STATE": _state(task, compact=compact),
        "RAM": quantities.size(task.ram_bytes, compact=compact),
        "SWAP": quantities.size(task.swap_bytes, compact=compact),
        "DEV": gpu_numbers(task) or nothing,
        "GPU-MEM": nothing if held is None else quantities.size(held, compact=compact),
        "CPU%": quantities.whole(task.cpu_percent),
        "TREND": quantities.rate(task.slope_bytes_per_s, compact=compact),
        "ETA": quantities.eta(task.eta_s, task.eta_low_s, task.eta_high_s, compact=short),
    }


def _state(task: Task, *, compact: bool) -> str:
    state = plain(task.state or quantities.UNKNOWN)
    if task.agent is not None and task.agent.saving and state != "paused":
        return "saving"
    return _SHORT_STATES.get(state, state) if compact else state


def _remarks(task: Task, now_unix_s: float) -> list[str]:
    remarks = []
    if task.paused_by_watchdog:
        command = ACTIONS["resume"].command_for(quantities.whole(task.pid))
        remarks.append(f"paused by watchdog; resume it: {command}")
    if task.guard is not None:
        remarks += guard_remarks(task.guard)
    if task.agent is not None:
        remarks.append(agent_text(task.agent, now_unix_s))
        lost = "; ".join(map(plain, task.agent.not_restored))
        if lost:
            remarks.append(f"a resume will not bring back: {lost}")
        if task.agent.outdated:
            remarks.append("its agent is outdated: restart its kernel to save it")
    elif task.level >= Level.WARNING:
        remarks.append("no agent: watchdog can pause this task, but cannot save its work")
    return remarks


def guard_remarks(guard: Guard) -> list[str]:
    """`guard 3.1 GiB of 12.0 GiB, reserve 512 MiB`, and what to do where it is stopped."""
    pid = quantities.whole(guard.pid)
    used, limit = quantities.size(guard.used_bytes), quantities.size(guard.limit_bytes)
    most = max(guard.used_bytes or 0, guard.limit_bytes or 0)
    more = size_above(most) if most > 0 else "SIZE"
    text = f"guard {used} of {limit}, reserve {quantities.size(guard.reserve_bytes)}"
    remarks = [f"{text}, {plain(guard.kind or '')}".rstrip(", ")]
    if guard.stopped:
        remarks.append(
            f"stopped at its limit; resume it: watchdog limit {pid} {more}; "
            f"end it with: {ACTIONS['end'].command_for(pid)}"
        )
    elif guard.state == "refusing":
        remarks.append(f"further memory is refused; more with: watchdog limit {pid} {more}")
    elif guard.state not in (None, "running"):
        remarks.append(f"at its limit: {plain(guard.state)}")
    return remarks
