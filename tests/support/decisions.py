"""
The decisions of the tests in tests/core, compared with recorded ones.

A test that lets an engine decide passes only if all decisions equal
tests/core/decisions/TEST_FILE.jsonl. Names that were changed since are in renames.toml there. A
test without a recording passes, but fails in a file `test_recorded_*`. `make record-decisions`
records all of them again.
"""

from __future__ import annotations

import functools
import json
import math
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from watchdog_app.core.model.status import Record

FOLDER = Path(__file__).parents[1] / "core" / "decisions"
_IDS = frozenset(("id", "incident", "unix_s", "at_unix_s"))  # new in each run
_FILLED_LATER = ("level", "start_time", "name")  # of a notification, by the dispatcher
_TOLERANCE = 1e-9
_DIGITS = 12
_SHOWN = 5
# lines of a test; later checkpoints, which repeat the first ones, are recorded without figures
_IN_FULL = 20

Line = dict[str, Any]

_lines: list[Line] = []  # of the running test
_recorded: dict[Path, dict[str, list[Line]]] = {}  # by file and test, with --record-decisions


def note(line: Line) -> None:
    """Add a line to the comparison of the running test."""
    _lines.append(plain(line))


def plain(value: Any) -> Any:
    """A record as JSON values: enumerations by name, processes by pid, no ids."""
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, float):
        return value if not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Record):
        names = (name for name in value.to_json() if name not in (*_IDS, *_FILLED_LATER))
        return {name: plain(getattr(value, name)) for name in names}
    if is_dataclass(value):
        names = [each.name for each in fields(value)]
        if names[0] == "pid":  # ProcessKey
            return value.pid  # type: ignore[union-attr]
        return {name: plain(getattr(value, name)) for name in names if name not in _IDS}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items() if key not in _IDS}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


# Comparing


def renamed(value: Any, renames: Mapping[str, Mapping[str, str]], field: str = "") -> Any:
    """
    Return a recorded value with the present names.

    Args:
        value: the recorded value.
        renames: old names to new ones: "keys" for field names, otherwise by field for values.
        field: the old name of the value's field.
    """
    keys = renames.get("keys", {})
    if isinstance(value, dict):
        return {keys.get(key, key): renamed(each, renames, key) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, renames, field) for each in value]
    return renames.get(field, {}).get(value, value) if isinstance(value, str) else value


def differences(before: Any, now: Any, field: str = "") -> Iterator[str]:
    """Each field that differs, with its value before and now."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            where = f"{field}.{key}" if field else key
            yield from differences(before.get(key), now.get(key), where)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{field}[{index}]")
    elif not _same(before, now):
        yield f"{field}\n      before: {before!r}\n      now:    {now!r}"


def _same(before: Any, now: Any) -> bool:
    figures = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (before, now))
    if not figures:
        return bool(before == now)
    if math.isnan(before) or math.isnan(now):
        return math.isnan(before) and math.isnan(now)
    return math.isclose(before, now, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


def comparison(before: list[Line], now: list[Line]) -> str:
    """The differences between two runs of a test, as readable lines; empty if there are none."""
    found = []
    for index in range(max(len(before), len(now))):
        if index >= len(before):
            found.append(f"  line {index + 1} is new: {now[index]}")
        elif index >= len(now):
            found.append(f"  line {index + 1} is missing: {before[index]}")
        else:
            record = list(differences(before[index], now[index]))
            if record:
                found.append(f"  line {index + 1}\n    " + "\n    ".join(record))
    more = len(found) - _SHOWN
    return "\n".join(found[:_SHOWN] + ([f"  and {more} more lines"] if more > 0 else []))


# Files


@functools.cache
def load(path: Path) -> dict[str, list[Line]]:
    """The recorded lines of each test."""
    tests: dict[str, list[Line]] = {}
    if path.exists():
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            if "test" in line:
                lines = tests[line["test"]] = []
            else:
                lines.append(line)
    return tests


def save(path: Path, tests: Mapping[str, list[Line]]) -> None:
    """Write the lines of each test below a line with its name."""
    rows: list[Line] = []
    for test in sorted(tests):
        rows += [{"test": test}, *tests[test]]
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows),
        "utf-8",
    )


def renames() -> dict[str, dict[str, str]]:
    """Names that have changed since the recording."""
    return tomllib.loads((FOLDER / "renames.toml").read_text("utf-8"))


# Pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-decisions", action="store_true", help="record the decisions of tests/core anew"
    )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    random = getattr(pyfuncitem.obj, "is_hypothesis_test", False)
    if pyfuncitem.path.parent != FOLDER.parent or random:
        return (yield)
    _lines.clear()
    with pytest.MonkeyPatch.context() as patch:
        _watch_engines(patch)
        result = yield
    path = FOLDER / f"{pyfuncitem.path.stem}.jsonl"
    # In the form of the file, in which a tuple is a list.
    lines = json.loads(json.dumps(_lines))
    if pyfuncitem.config.getoption("--record-decisions"):
        _recorded.setdefault(path, {})[pyfuncitem.name] = lines
        return result
    before = load(path).get(pyfuncitem.name)
    if before is None and path.stem.startswith("test_recorded_"):
        pytest.fail(f"{path.name} has no recording of it: make record-decisions", pytrace=False)
    if before is not None:
        told = comparison(renamed(before, renames()), lines)
        if told:
            pytest.fail(
                f"Not the decisions of {path.name}, {pyfuncitem.name}:\n{told}\n"
                "If that is meant: make record-decisions, and give the reason in the commit.",
                pytrace=False,
            )
    return result


def pytest_sessionfinish() -> None:
    for path, tests in _recorded.items():
        merged = load(path) | tests
        if any(merged.values()):
            save(path, merged)


def _watch_engines(patch: pytest.MonkeyPatch) -> None:
    """Note each decision, and its notification."""
    from watchdog_app.core.model.decisions import DecisionKind
    from watchdog_app.core.policy.engine import Engine

    def record(decision: Any) -> None:
        line = plain(decision)
        if decision.kind is DecisionKind.CHECKPOINT and len(_lines) >= _IN_FULL:
            del line["evidence"]
        _lines.append(line)

    def watched(tick: Callable[..., Any], death: Callable[..., Any]) -> None:
        def ticked(engine: Any, snapshot: Any, tasks: Any, readings: Any, agents: Any) -> Any:
            result = tick(engine, snapshot, tasks, readings, agents)
            for decision in result.decisions:
                record(decision)
            return result

        def died(engine: Any, task: Any, agent: Any, cause: Any, snapshot: Any) -> Any:
            decisions = death(engine, task, agent, cause, snapshot)
            for decision in decisions:
                record(decision)
            return decisions

        patch.setattr(Engine, "tick", ticked)
        patch.setattr(Engine, "task_ended", died)

    watched(Engine.tick, Engine.task_ended)
