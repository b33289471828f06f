"""The page of `watchdog report`: complete, and harmless with any name."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from support.hostile import NAMES

from watchdog_app.base.text.plain import clean
from watchdog_app.core.replay.trace import read
from watchdog_app.history.report import Event, Report, page, running_plot

MIB = 1 << 20
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "ul", "li", "pre"),
    *("table", "tr", "td", "details", "summary", "footer", "svg", "line", "text", "polyline"),
    "polygon",
}


class Page(HTMLParser):
    """What a browser finds: tags, attributes and text."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(content)
        self.close()
        self.shown = "".join(self.words)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


def plot(name: str = "train.py", **more) -> dict:
    points = [[1000.0 + at, at * 10 * MIB, None] for at in range(60)]
    resource = {
        "kind": "cgroup",
        "label": f"memory limit of the group {name}",
        "limit": 700 * MIB,
        "points": [[at, used + MIB, 700 * MIB] for at, used, _ in points],
    }
    warned = {"unix_s": 1040.0, "kind": "warned", "used": 401 * MIB}
    marks = [
        {**warned, "eta_s": 29.0, "low_s": 20.0, "high_s": 40.0},
        {"unix_s": 1050.0, "kind": "saved"},
        {"unix_s": 1059.0, "kind": "death"},
    ]
    found = {"begin_unix_s": 500.0, "end_unix_s": 1059.0, "name": name, "points": points}
    return {**found, "resource": resource, "marks": marks, **more}


def report(name: str = "train.py", text: str | None = None, drawn: dict | None = None) -> Report:
    shown = clean(name)  # as all texts of the daemon have it
    told = text or (
        f"{shown} (script, pid 7) died at 12:00:00.\nWhy: Killed by the kernel.\n\n"
        f"How we know:\n  [exact] It was ended by signal 9.\n\n"
        f"To start it again:\n  cd /home/ada && python {shown}"
    )
    events = [Event("12:00:00", f"{name}: warning"), Event("12:00:01", "saved")]
    return Report(f"{name}: killed", told, drawn or plot(name), events, "Made by watchdog 1.")


def test_a_page_shows_what_happened():
    found = Page(page(report()))
    for words in ("train.py: killed", "Why: Killed by the kernel.", "How we know", "Timeline"):
        assert words in found.shown
    assert "cd /home/ada && python train.py" in found.shown
    assert {"svg", "polyline", "polygon", "table", "details"} <= set(found.tags)
    assert "Orange: forecast with its 80 % interval." in found.shown


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_name_is_only_text(name):
    content = page(report(name))
    found = Page(content)
    assert set(found.tags) <= TAGS
    assert not [
        key for key, _ in found.attributes if key.startswith("on") or key in ("href", "src")
    ]
    assert found.tags == Page(page(report())).tags
    visible = content.replace("\n", "")
    assert visible.isprintable(), "no control characters and no changes of direction"


def test_words_of_a_chart_do_not_cover_each_other():
    marks = [{"unix_s": 1030.0 + at / 2, "kind": "saved"} for at in range(40)]
    content = page(report(drawn=plot(marks=marks)))
    assert content.count('class="mark"') == 40
    assert 2 <= content.count(">saved</text>") <= 6


def test_the_policy_allows_the_style_and_nothing_else():
    content = page(report())
    style = re.search("<style>(.*)</style>", content, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in content
    assert "style=" not in content, "the policy forbids attributes with styles"
    assert "http://" not in content.replace("http-equiv", "")
    assert "https://" not in content


@pytest.mark.parametrize("name", ["train.py", '<pre class="trace">', "</pre>"])
def test_replay_reads_the_trace_of_a_page(name, tmp_path):
    path = tmp_path / "death.html"
    path.write_text(page(report(name)))
    trace = read(str(path))
    assert len(trace.samples) == 60
    assert trace.samples[0] == (0.0, MIB, 700 * MIB)
    assert trace.samples[-1] == (59.0, 591 * MIB, 700 * MIB)


def test_a_page_without_figures_has_no_chart():
    assert "svg" not in Page(page(report()._replace(plot=None))).tags
    empty = plot(points=[], resource=None)
    assert "svg" not in Page(page(report(drawn=empty))).tags


def test_a_limit_far_above_does_not_flatten_the_chart():
    resource = {**plot()["resource"], "limit": 10**13}
    assert "It is far above." in Page(page(report(drawn=plot(resource=resource)))).shown


def test_a_small_task_is_drawn_without_the_large_resource():
    points = [[1000.0 + at, 40_000 * MIB, 64_000 * MIB] for at in range(60)]
    resource = {**plot()["resource"], "label": "RAM", "limit": 64_000 * MIB, "points": points}
    shown = Page(page(report(drawn=plot(resource=resource)))).shown
    assert "Dashed" not in shown
    assert "Limit of RAM: 62.5 GiB. It is far above." in shown


def test_a_drawn_end_at_the_limit_is_no_sample(tmp_path):
    drawn = plot()
    drawn["resource"]["points"].append([1059.0, 700 * MIB, 700 * MIB])
    path = tmp_path / "page.html"
    path.write_text(page(report(drawn=drawn)))
    assert read(str(path)).samples[-1] == (59.0, 591 * MIB, 700 * MIB)


def test_the_chart_of_a_running_task_has_the_nearest_resource():
    own = {"kind": "task", "name": "a.py", "unit": "bytes", "points": [[1, 5, None], [2, 6, None]]}
    far = {"kind": "ram", "name": "RAM", "unit": "bytes", "points": [[2, 10, 100]]}
    near = {"kind": "cgroup", "name": "group", "unit": "bytes", "points": [[2, 80, 100]]}
    heat = {"kind": "temperature", "name": "GPU", "unit": "celsius", "points": [[2, 95, 100]]}
    found = running_plot([far, own, near, heat], 0.0, 3.0)
    assert found["resource"]["label"] == "group"
    assert found["resource"]["limit"] == 100
    assert running_plot([far], 0.0, 3.0) is None
    assert found["points"][-1] == [3.0, 6, None], "it has not changed since"


def test_the_trace_of_a_task_begins_with_it(tmp_path):
    drawn = plot()
    drawn["resource"]["points"][:1] = [[at, 650 * MIB, 700 * MIB] for at in (600.0, 900.0)]
    path = tmp_path / "page.html"
    path.write_text(page(report(drawn=drawn)))
    samples = read(str(path)).samples
    assert samples[:2] == [(0.0, 650 * MIB, 700 * MIB), (1.0, 11 * MIB, 700 * MIB)]
