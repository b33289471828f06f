"""The tasks of a status object as a table: what is most urgent first."""

from __future__ import annotations

from watchdog_app.base.json_values import number_or_none
from watchdog_app.base.text.quantities import MIB, size_above
from watchdog_app.cli import figures
from watchdog_app.cli.color import Look
from watchdog_app.cli.grid import Grid
from watchdog_app.cli.text import plain, wrap
from watchdog_app.core.model.levels import Level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]

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
SORTS = ("urgency", "ram", "swap", "gpu", "cpu", "trend", "eta", "name", "pid")

_NAME = HEADS.index("NOTEBOOK/SCRIPT") + 1  # the mark comes first
_RIGHT = {HEADS.index(head) + 1 for head in HEADS} - {
    HEADS.index(head) + 1 for head in ("NOTEBOOK/SCRIPT", "STATE", "DEV", "ETA")
}
_KERNELS = ("notebook", "kernel", "console")
_SHORT_STATES = {"running": "run", "sleeping": "sleep"}
_SMALL_BYTES = 64 * MIB

# How the table gives way to a narrow terminal: sizes, times, columns, least room for the name.
_FORMS: tuple[tuple[bool, bool, tuple[str, ...], int], ...] = (
    (False, False, HEADS, 24),
    (True, False, HEADS, 18),
    (True, True, HEADS, 15),
    (True, True, tuple(head for head in HEADS if head not in ("DEV", "GPU-MEM")), 15),
    (True, True, ("PID", "NOTEBOOK/SCRIPT", "STATE", "RAM", "ETA"), 8),
)


def ordered(processes: list[Json], sort: str = "urgency") -> list[Json]:
    """The tasks in the order of `SORTS`; what is unknown comes last, equals by pid."""
    return sorted(processes, key=_SORT_KEYS[sort])


def folded(processes: list[Json]) -> tuple[list[Json], list[Json]]:
    """The tasks worth a line, and the small idle ones that are only counted."""
    shown: list[Json] = []
    hidden: list[Json] = []
    for process in processes:
        (hidden if _idle(process) else shown).append(process)
    return shown, hidden


def task_lines(
    processes: list[Json],
    now_unix_s: float,
    columns: int | None,
    look: Look,
    *,
    cards: bool = False,
) -> list[str]:
    """
    Heading and rows in at most `columns` (None: as wide as they want), remarks under their task.

    Args:
        processes: entries of the status object, in the order they are to be shown in.
        now_unix_s: what ages are counted to.
        columns: of the terminal.
        look: colours and symbols.
        cards: whether there are graphics cards: a task that is on none holds nothing there, and
            that is known.
    """
    grid = _fitting(processes, columns, cards)
    head, *rows = grid.lines(columns, look.ellipsis)
    lines = [look.paint(head, "bold")]
    for process, row in zip(processes, rows, strict=True):
        lines.append(look.level(row, Level.of(process)))
        for remark in _remarks(process, now_unix_s):
            limit = columns if columns is not None else 10_000
            lines += [look.paint(line, "dim") for line in wrap(remark, limit, first="      ")]
    return lines


def agent_text(agent: Json | None, now_unix_s: float) -> str:
    """`keras, step 1210, loss 0.312; rescue at step 1200, 12 s ago`, or `no agent`."""
    if not agent:
        return "no agent"
    parts = [plain(agent.get("framework") or "agent")]
    if agent.get("step") is not None:
        parts.append(f"step {figures.whole(agent['step'])}")
    loss = number_or_none(agent.get("loss"))
    if loss is not None:
        parts.append(f"loss {loss:.4g}")
    if agent.get("saving"):
        parts.append("saving now")
    elif not agent.get("training"):
        parts.append("not training")
    rescue = agent.get("rescue")
    if not rescue:
        return ", ".join(parts) + "; no rescue yet"
    saved = number_or_none(rescue.get("saved_unix_s"))
    when = "" if saved is None else f", {figures.age(now_unix_s - saved)}"
    return f"{', '.join(parts)}; rescue at step {figures.whole(rescue.get('step'))}{when}"


def _fitting(processes: list[Json], columns: int | None, cards: bool) -> Grid:
    gpu = any(process.get("gpu_memory_bytes") is not None for process in processes)
    grid = None
    for compact, short, heads, least in _FORMS:
        if gpu and "RAM" in heads and "SWAP" in heads and "GPU-MEM" not in heads:
            continue  # never hide a figure that is known while an unknown one could go
        grid = _grid(processes, heads, compact=compact, short=short, cards=cards)
        if columns is None or grid.room(columns) >= min(grid.wanted(), least):
            break
    assert grid is not None  # noqa: S101 - _FORMS is not empty
    return grid


def _grid(
    processes: list[Json], heads: tuple[str, ...], *, compact: bool, short: bool, cards: bool
) -> Grid:
    rows = [["", *heads]]
    for process in processes:
        cells = _cells(process, compact=compact, short=short, cards=cards)
        rows.append([Level.of(process).mark, *(cells[head] for head in heads)])
    right = {index for index, head in enumerate(rows[0]) if head and _aligned_right(head)}
    return Grid(rows, right, gives_way=_NAME, gap=1 if compact else 2)


def _aligned_right(head: str) -> bool:
    return HEADS.index(head) + 1 in _RIGHT


def _cells(process: Json, *, compact: bool, short: bool, cards: bool) -> dict[str, str]:
    gpus = process.get("gpus")
    gpus = [one for one in gpus if isinstance(one, dict)] if isinstance(gpus, list) else []
    nothing = figures.NONE if cards and not gpus else figures.UNKNOWN
    held = process.get("gpu_memory_bytes")
    return {
        "PID": figures.whole(process.get("pid")),
        "NOTEBOOK/SCRIPT": plain(process.get("name") or "?"),
        "STATE": _state(process, compact=compact),
        "RAM": figures.size(process.get("ram_bytes"), compact=compact),
        "SWAP": figures.size(process.get("swap_bytes"), compact=compact),
        "DEV": devices(process) or nothing,
        "GPU-MEM": nothing if held is None else figures.size(held, compact=compact),
        "CPU%": figures.whole(process.get("cpu_percent")),
        "TREND": figures.rate(process.get("trend_bytes_per_s"), compact=compact),
        "ETA": figures.eta(process, compact=short),
    }


def devices(process: Json) -> str:
    """The cards that a task is on: `0`, `0,2`, and `0-7` of eight in a row; empty: on none."""
    gpus = process.get("gpus")
    held = [one for one in gpus if isinstance(one, dict)] if isinstance(gpus, list) else []
    known = [number_or_none(one.get("index")) for one in held]
    runs: list[list[int]] = []
    for index in sorted({int(each) for each in known if each is not None}):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = [",".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in runs]
    return ",".join([*texts, *(figures.UNKNOWN for each in known if each is None)])


def _state(process: Json, *, compact: bool) -> str:
    agent = process.get("agent") or {}
    state = plain(process.get("state") or figures.UNKNOWN)
    if agent.get("saving") and state != "paused":
        return "saving"
    return _SHORT_STATES.get(state, state) if compact else state


def _remarks(process: Json, now_unix_s: float) -> list[str]:
    remarks = []
    urgent = Level.of(process) >= Level.WARNING
    if process.get("paused_by_watchdog"):
        pid = figures.whole(process.get("pid"))
        remarks.append(f"paused by watchdog; let it go on with: watchdog resume {pid}")
    bag = process.get("airbag")
    if isinstance(bag, dict):
        remarks += bag_remarks(bag)
    agent = process.get("agent")
    if agent:
        remarks.append(agent_text(agent, now_unix_s))
    elif urgent:
        remarks.append("no agent: watchdog can pause this task, but cannot save its work")
    return remarks


def bag_remarks(bag: Json) -> list[str]:
    """`airbag 3.1 GiB of 12.0 GiB, reserve 512 MiB`, and what to do where it is held."""
    pid = figures.whole(bag.get("pid"))
    used, limit = figures.size(bag.get("used_bytes")), figures.size(bag.get("limit_bytes"))
    known = [number_or_none(bag.get(key)) or 0 for key in ("used_bytes", "limit_bytes")]
    more = size_above(max(known)) if max(known) > 0 else "SIZE"
    stage = bag.get("stage")
    text = f"airbag {used} of {limit}, reserve {figures.size(bag.get('reserve_bytes'))}"
    remarks = [f"{text}, {plain(bag.get('kind') or '')}".rstrip(", ")]
    if stage == "held":
        remarks.append(
            f"held at its limit; let it go on with: watchdog limit {pid} {more}; "
            f"end it with: watchdog limit {pid} --end"
        )
    elif stage == "refusing":
        remarks.append(f"further memory is refused; more with: watchdog limit {pid} {more}")
    elif stage not in (None, "calm"):
        remarks.append(f"at its limit: {plain(stage)}")
    return remarks


def _idle(process: Json) -> bool:
    """Small, quiet and nobody's notebook: the interpreters that a desktop keeps around."""
    ram = number_or_none(process.get("ram_bytes"))
    cpu = number_or_none(process.get("cpu_percent"))
    return (
        process.get("kind") not in _KERNELS
        and process.get("state") == "sleeping"
        and ram is not None
        and ram + (number_or_none(process.get("swap_bytes")) or 0) < _SMALL_BYTES
        and (cpu is None or cpu < 1)
        and not process.get("agent")
        and not process.get("airbag")
        and not process.get("paused_by_watchdog")
        and process.get("gpu_memory_bytes") is None
        and not process.get("gpus")
        and Level.of(process) is Level.OK
    )


def _most_first(key: str) -> Callable[[Json], tuple[bool, float, float]]:
    def order(process: Json) -> tuple[bool, float, float]:
        value = number_or_none(process.get(key))
        return value is None, -(value or 0), _pid(process)

    return order


def _soonest(process: Json) -> tuple[bool, float, float]:
    value = number_or_none(process.get("eta_s"))
    return value is None, value or 0, _pid(process)


def _urgency(process: Json) -> tuple[float, ...]:
    none, ram, pid = _most_first("ram_bytes")(process)
    return -Level.of(process), none, ram, pid


def _pid(process: Json) -> float:
    return number_or_none(process.get("pid")) or 0


_SORT_KEYS: dict[str, Callable[[Json], Any]] = {
    "urgency": _urgency,
    "ram": _most_first("ram_bytes"),
    "swap": _most_first("swap_bytes"),
    "gpu": _most_first("gpu_memory_bytes"),
    "cpu": _most_first("cpu_percent"),
    "trend": _most_first("trend_bytes_per_s"),
    "eta": _soonest,
    "name": lambda process: (str(process.get("name")).lower(), _pid(process)),
    "pid": _pid,
}
