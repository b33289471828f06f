"""Rescues as a table, one rescue in detail, and both as JSON values."""

from __future__ import annotations

import os

from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.base.text.terminal import Style, Table, counted, plain, wrap
from watchdog_app.cli.output import shorten_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from watchdog_app.rescue.checkpoint.format import TensorInfo
    from watchdog_app.rescue.checkpoint.inventory import Found, Search

_HEADS = ("NOTEBOOK/SCRIPT", "STEP", "EPOCH", "LOSS", "SAVED", "SIZE", "STATE", "TRAINING", "PATH")
_RIGHT = {1, 2, 3, 5}
_GIVES_WAY = 8
_JSON_FIELDS = (
    *("path", "program", "epoch", "batch", "loss"),
    *("bytes", "condition", "problem", "training"),
)
_MAX_TENSORS = 200
_MAX_UNREADABLE = 10
_FIRST_KEYS = ("python", "numpy", "tensorflow", "keras", "tf_keras", "PyTorch", "jax")


def table(
    found: Sequence[Found],
    now_unix_s: float,
    columns: int | None,
    style: Style,
) -> list[str]:
    """Return a line for each rescue, in the given order."""
    rows: list[tuple[str, ...]] = [_HEADS]
    rows += [_row(rescue, now_unix_s) for rescue in found]
    grid = Table(rows, _RIGHT, _GIVES_WAY, gap=2)
    # A truncated path is useless. On a narrow terminal print each path on its own line.
    if grid.fits(columns):
        lines = grid.lines(columns, style.ellipsis)
    else:
        short = Table([row[:-1] for row in rows], _RIGHT, 0, gap=2).lines(columns, style.ellipsis)
        lines = short[:1]
        for rescue, line in zip(found, short[1:], strict=True):
            lines += [line, f"  {plain(shorten_path(rescue.path))}"]
    head, *rest = lines
    painted = [
        style.paint(line, "bold") if " damaged" in line or " unreadable" in line else line
        for line in rest
    ]
    return [style.paint(head, "bold"), *painted]


def remarks(search: Search) -> list[str]:
    """Return lines on search results that the table does not show."""
    lines = []
    if search.writing:
        lines.append(f"{counted(len(search.writing), 'rescue')} being written now.")
    if search.partial:
        lines.append(
            f"{counted(len(search.partial), 'rescue')} left half-written by a process that ended; "
            "the next training there removes it, and so does: watchdog rescues prune FOLDER"
        )
    lines += [f"Not looked into: {plain(path)}" for path in search.unreadable[:_MAX_UNREADABLE]]
    if len(search.unreadable) > _MAX_UNREADABLE:
        lines.append(f"and {len(search.unreadable) - _MAX_UNREADABLE} more folders")
    if search.cut_short:
        lines.append(
            f"The search ended after {search.most_folders} folders. Name a folder that holds fewer."
        )
    return lines


def details(
    rescue: Found,
    meta: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    *,
    now_unix_s: float,
    columns: int | None,
) -> list[str]:
    """Return the contents of a rescue as lines of text."""
    saved = quantities.moment(rescue.created_unix_s)
    age = quantities.age(now_unix_s - (rescue.created_unix_s or now_unix_s))
    facts = [
        ("path", plain(rescue.path)),
        ("program", plain(rescue.program or quantities.UNKNOWN)),
        *([("started", plain(started_as))] if (started_as := _started_as(rescue)) else []),
        ("saved", f"{saved} ({age}), because: {plain(meta.get('reason') or 'not told')}"),
        ("position", _format_position(rescue)),
        ("state", _format_condition(rescue)),
        ("training", rescue.training),
        ("size", f"{format_bytes(rescue.bytes)} on disk, {counted(len(tensors), 'tensor')}"),
        ("versions", _format_versions(meta)),
    ]
    lines: list[str] = []
    for name, text in facts:
        lines += wrap(text, columns, first=f"{name:<10}")
    lost = meta.get("not_restored")
    lost = [plain(text) for text in lost] if isinstance(lost, list) else []
    lines.append("not restored by a resume:" if lost else "A resume brings everything back.")
    for text in lost:
        lines += wrap(text, columns, first="  - ")
    rows = [("TENSOR", "TYPE", "SHAPE", "SIZE")]
    for info in list(tensors.values())[:_MAX_TENSORS]:
        shape = "x".join(map(str, info.shape)) or "scalar"
        rows.append((plain(info.name), info.dtype, shape, format_bytes(info.nbytes)))
    lines += ["", *Table(rows, {3}, 0, gap=2).lines(columns)]
    if len(tensors) > _MAX_TENSORS:
        lines.append(f"and {len(tensors) - _MAX_TENSORS} more; all of them with --json")
    return lines


def as_json(rescue: Found) -> dict[str, Any]:
    """Return one rescue as JSON types; unknown values are null."""
    return {
        **{name: getattr(rescue, name) for name in _JSON_FIELDS},
        "step": rescue.name.step,
        "sequence": rescue.name.sequence,
        "saved_unix_s": rescue.created_unix_s,
    }


def _started_as(rescue: Found) -> str | None:
    """Return the program and its plain options; None if the rescue does not record them."""
    from watchdog_app.rescue.identity import program_key

    return None if rescue.key is None else program_key.describe_program(rescue.key)


def details_json(
    rescue: Found,
    meta: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
) -> dict[str, Any]:
    """Return the contents of a rescue as JSON types, without the tensors' data."""
    return as_json(rescue) | {
        "kind": meta.get("kind"),
        "reason": meta.get("reason"),
        "position": meta.get("position"),
        "not_restored": meta.get("not_restored"),
        "made_by": meta.get("program"),
        "started_as": _started_as(rescue),
        "environment": meta.get("environment"),
        "tensors": [
            {"name": i.name, "dtype": i.dtype, "shape": list(i.shape), "bytes": i.nbytes}
            for i in tensors.values()
        ],
    }


def _row(rescue: Found, now_unix_s: float) -> tuple[str, ...]:
    saved = rescue.created_unix_s
    return (
        plain(os.path.basename(rescue.program) if rescue.program else quantities.UNKNOWN),
        str(rescue.name.step),
        quantities.UNKNOWN if rescue.epoch is None else str(rescue.epoch + 1),
        quantities.UNKNOWN if rescue.loss is None else f"{rescue.loss:.4g}",
        quantities.UNKNOWN if saved is None else quantities.age(now_unix_s - saved),
        quantities.format_bytes(rescue.bytes),
        rescue.condition,
        rescue.training,
        plain(shorten_path(rescue.path)),
    )


def _format_condition(rescue: Found) -> str:
    if rescue.condition != "complete":
        return f"{rescue.condition}: {plain(rescue.problem)}"
    return "complete; every byte is compared with its checksum when it is loaded"


def _format_position(rescue: Found) -> str:
    parts = [f"step {rescue.name.step}"]
    if rescue.epoch is not None:
        parts.append(f"epoch {rescue.epoch + 1}")
    if rescue.batch is not None:
        parts.append(f"after batch {rescue.batch}")
    if rescue.loss is not None:
        parts.append(f"loss {rescue.loss:.6g}")
    return ", ".join(parts)


def _format_versions(meta: Mapping[str, Any]) -> str:
    environment = meta.get("environment")
    environment = environment if isinstance(environment, dict) else {}
    known = [f"{name} {plain(environment[name])}" for name in _FIRST_KEYS if environment.get(name)]
    return ", ".join(known) or quantities.UNKNOWN
