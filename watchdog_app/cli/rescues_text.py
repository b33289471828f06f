"""Rescues as a table, one in detail, and a program compared with its rescues."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from watchdog_app.base.errors import RescueError, WatchdogError
from watchdog_app.base.text import quantities
from watchdog_app.base.text.quantities import format_bytes
from watchdog_app.base.text.terminal import Style, Table, counted, plain, wrap
from watchdog_app.cli.output import shorten_path
from watchdog_app.rescue.checkpoint import inventory, runs
from watchdog_app.rescue.checkpoint.format import TensorInfo
from watchdog_app.rescue.checkpoint.inventory import Found, Search
from watchdog_app.rescue.checkpoint.reader import LoadedRescue
from watchdog_app.rescue.checkpoint.runs import SavedRun
from watchdog_app.rescue.identity import arguments, program_key
from watchdog_app.rescue.identity.compare import changed_statements, format_lines
from watchdog_app.rescue.identity.program_key import Program

_HEADS = ("NOTEBOOK/SCRIPT", "STEP", "EPOCH", "LOSS", "SAVED", "SIZE", "STATE", "TRAINING", "PATH")
_RIGHT = {1, 2, 3, 5}
_GIVES_WAY = 8
_JSON_FIELDS = (
    *("path", "program", "epoch", "batch", "loss"),
    *("bytes", "condition", "problem", "training"),
)
_MAX_TENSORS = 200
_MAX_UNREADABLE = 10
_MAX_RUNS = 5  # newest runs to compare with a program
_AT_RUN = "compared when it runs"
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


# A program compared with its rescues.


def compare_program(script: str, tokens: Sequence[str], roots: Sequence[str]) -> dict[str, Any]:
    """
    Compare a program with its unfinished rescues.

    Args:
        script: path as the user typed it.
        tokens: arguments for the program; empty: unknown.
        roots: folders to search for rescues.

    Raises:
        WatchdogError: no unfinished rescue of the program was found.
    """
    path = os.path.realpath(script)
    program = Program("script", path, arguments.parse(tokens), pooled=False)
    found = [
        _compare_run(left, program, has_arguments=bool(tokens))
        for left in _unfinished_runs(program, roots)
    ]
    if not found:
        raise WatchdogError(
            f"No unfinished rescue of {script} is known here. Rescues in another folder: "
            "watchdog rescues FOLDER"
        )
    return {"program": path, "rescues": found}


def comparison_lines(found: Sequence[Mapping[str, Any]], columns: int | None) -> list[str]:
    """Return the lines of `compare_program`."""
    lines: list[str] = []
    for each in found:
        lines += [""] * bool(lines) + [plain(each["path"])]
        for name in ("saved", "script", "arguments", "code", "model", "data", "resume"):
            lines += wrap(plain(each[name]), columns, first=f"  {name:<11}")
    return lines


def _unfinished_runs(program: Program, roots: Sequence[str]) -> list[SavedRun]:
    """Return the program's unfinished runs, newest first."""
    from watchdog_app.agent.runtime import relation

    path = str(program.path)
    folders = {
        os.path.realpath(folder)
        for root in roots
        if os.path.isdir(root)
        for folder in inventory.find_rescue_folders(root, Search())
    }
    lefts = [left for folder in folders for left in runs.saved_runs(folder) if not left.finished]
    lefts = [
        left
        for left in lefts
        if left.key.get("path") == path or relation.moved_from(left, program) is not None
    ]
    return sorted(lefts, key=lambda left: -left.newest_ns)[:_MAX_RUNS]


def _compare_run(left: SavedRun, program: Program, *, has_arguments: bool) -> dict[str, Any]:
    """Compare one run with the program; return a text for each subject."""
    from watchdog_app.agent.runtime import relation

    try:
        with LoadedRescue(left.path) as loaded:
            meta = loaded.meta
            age = quantities.age(time.time() - loaded.created_unix_s)
            saved = f"step {loaded.step}, {age}"
    except (RescueError, OSError) as error:
        raise WatchdogError(f"{left.path}: {error}.") from error
    identity = meta.get("identity")
    identity = identity if isinstance(identity, dict) else {}
    moved = relation.moved_from(left, program)
    started = program_key.describe_program(left.key) or quantities.UNKNOWN
    another = relation.other_training_reason(left, program, None)
    changes = program_key.describe_changes(left.key, program) if has_arguments else []
    if not has_arguments:
        arguments = f"started as: {started}; give yours behind -- to compare them"
    elif another is not None:
        arguments = another.text
    else:
        arguments = "; ".join(changes) or "the same"
    changed = _changed_functions(identity, str(program.path))
    life = left.verdict()
    if life.life == "alive":
        resume = f"no: it is of {life.owner_label}, which still runs"
    elif another is not None and has_arguments:
        resume = 'no: it is left alone, and a new training begins (resume="force" takes it)'
    elif changed:
        resume = (
            "refused if what has changed computes something else (comments, prints and names do "
            "not count)"
        )
    else:
        only = "" if another is None else " with the arguments of before"
        resume = f"yes{only}, where model and data are the same"
    return {
        "path": left.path,
        "saved": saved,
        "script": _describe_script(identity, str(program.path), moved),
        "arguments": arguments,
        "code": f"changed: {', '.join(changed)}" if changed else "the same",
        "model": _AT_RUN,
        "data": _AT_RUN,
        "resume": resume,
    }


def _describe_script(identity: Mapping[str, Any], path: str, moved: str | None) -> str:
    from watchdog_app.agent.identity import code

    where = "the same" if moved is None else f"moved here from {moved} together with its rescues"
    now = code.statements(path)
    texts = [text for text, _, _ in now]
    saved = identity.get("statements")
    if not saved or not texts:
        return f"{where}; its text cannot be compared"
    if saved == texts:
        return where
    new = [now[place][1:] for place in changed_statements(saved, texts)]
    shown = format_lines(new) if new else ""
    word = "line" if shown.isdigit() else "lines"
    return f"{where}; edited since" + (f": {word} {shown}" if new else "")


def _changed_functions(identity: Mapping[str, Any], path: str) -> list[str]:
    """Return functions that the training used and whose code is no longer in their file."""
    from watchdog_app.agent.identity import code

    folder = os.path.dirname(path)
    known: dict[str, set[str]] = {}
    found: dict[str, None] = {}
    functions = identity.get("code")
    for entry in functions if isinstance(functions, list) else ():
        for name, _, file, text in entry.get("functions", ()):
            if not text:
                continue  # code of a notebook, or without source text
            if file not in known:
                known[file] = code.function_hashes(os.path.join(folder, file))
            if text not in known[file]:
                found[f"{name} ({file})"] = None
    return list(found)
