"""
The engine's assessment of recorded memory traces, compared with its earlier one.

`support.decisions` compares the decisions of these tests, and of all scenarios in tests/core. The
traces come from real programs, each in its own memory group, with ten samples a second.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from support import decisions

from watchdog_app.core.model.settings import Settings
from watchdog_app.core.replay.play import Moment, play
from watchdog_app.core.replay.trace import read

_HERE = Path(__file__).parent
_TRACES = sorted((_HERE / "recorded_traces").glob("*.csv.gz"))
_EACH = 10  # the moments in between are noted if more than a figure changes


@pytest.mark.parametrize("path", _TRACES, ids=lambda path: path.name.removesuffix(".csv.gz"))
def test_recorded_trace_is_assessed_as_before(path: Path) -> None:
    before: object = None
    played = play(read(str(path)), Settings())
    for index, moment in enumerate(played.moments):
        words = _words(moment)
        if index % _EACH == 0 or words != before:
            decisions.note({"t": moment.t, "assessment": moment.assessment})
        before = words
    assert played.moments


def _words(moment: Moment) -> object:
    now = moment.assessment
    return now.stage, now.regime, now.notify, now.rescue, now.forecast is None


def test_recorded_tests_still_exist() -> None:
    recordings = list(decisions.FOLDER.glob("*.jsonl"))
    assert len(recordings) > 10
    for path in recordings:
        tree = ast.parse((_HERE / f"{path.stem}.py").read_text("utf-8"))
        names = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        recorded = {test.partition("[")[0] for test in decisions.load(path)}
        assert recorded <= names, f"{path.name}: record anew, and say why a test went"


def test_comparison_names_line_field_and_both_values() -> None:
    before = [{"kind": "notify", "figures": {"eta_s": 3.0}}, {"kind": "pause"}]
    now = [{"kind": "notify", "figures": {"eta_s": 4.0}}]
    told = decisions.comparison(before, now)
    assert "line 1\n    figures.eta_s\n      before: 3.0\n      now:    4.0" in told
    assert "line 2 is missing: {'kind': 'pause'}" in told


def test_comparison_takes_rounding_and_renames_as_equal() -> None:
    before = {"kind": "hold", "figures": {"ceiling": "hold", "used": 1e9, "left": math.nan}}
    renames = {"keys": {"ceiling": "resource"}, "kind": {"hold": "pause"}}
    now = {"kind": "pause", "figures": {"resource": "hold", "used": 1e9 + 0.5, "left": math.nan}}
    assert decisions.comparison([decisions.renamed(before, renames)], [now]) == ""
    now["kind"] = "hold"
    assert decisions.comparison([decisions.renamed(before, renames)], [now])
