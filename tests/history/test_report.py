"""The page of `watchdog report`: complete, harmless with any name, anonymous on request."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from support.hostile import NAMES
from support.statuses import process

from watchdog_app.base.text.plain import clean
from watchdog_app.core.explain.exits import describe_death
from watchdog_app.core.explain.status import describe_task
from watchdog_app.core.model.status import Resource, Status, Task
from watchdog_app.core.replay.trace import read
from watchdog_app.history.anonymous import anonymous
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


def test_a_shared_page_names_nobody():
    death = {
        "name": "train_customers.py",
        "path": "/home/ada/acme/train_customers.py",
        "cwd": "/home/ada/acme",
        "argv": ["python", "train_customers.py", "--data", "s3://acme-sales", "--epochs", "5"],
        "takers": {"watched": [{"name": "secret_project.ipynb", "pid": 9}]},
    }
    entries = [{"kind": "incident", "subject": "/sys/fs/cgroup/ada-lab", "name": "eda.py"}]
    told = {
        "title": "train_customers.py: killed",
        "text": (
            "train_customers.py died in ada-lab. /proc/7/status and /dev/shm were full.\n"
            "  2 GiB secret_project.ipynb\n  s3://acme-sales\n  /home/ada/.cache/x: No space\n\n"
            "To start it again:\n  cd /home/ada/acme && watchdog exec -- python train_customers.py"
        ),
        "plot": plot("train_customers.py"),
        "events": [["12:00", "eda.py: saved in /mnt/acme/step-5"]],
    }
    shown = repr(anonymous(told, {"death": death}, entries))
    for word in ("customers", "acme", "ada", "secret", "eda.py", "watchdog exec"):
        assert word not in shown, word
    assert "/proc/7/status" in shown
    assert "memory limit of the group" in shown
    assert "2 GiB" in shown


@pytest.mark.parametrize(
    "told",
    [
        "https://ml.acme:8443/team/secret",
        "http://user:acme@host.corp/x",
        "hdfs://nn1:8020/user/acme",
        "/home/ada/My Secret Project/x",
        "/data/a,b/acme",
        "/data/acme:2024/x",
        "../acme/x",
        "data/customers/acme.csv",
        "~acme/x",
        "/dev/shm/acme/cache",
        "C:\\Users\\acme\\x",
        "\\\\acme\\share",
        "someone@acme.com",
        "10.0.0.7 acme/x",
        "fe80::acde:48ff",
        "2001:db8:0:1:1:acde:0:1",
        "acme-node:8020",
        "node1.acme.internal:8020",
        "loader_of_acme.py:12",
        "GPU-acdeacde-12ab-34cd-56ef-1234567890ab",
        "'/data/My secret of acme x/y.csv'",
        '"My acme of Ada\'s/x secret y.csv"',
        "x of My Secret Notes",
        "The kernel log says: Killed process 4711 (acme_trainer) total-vm:1kB",
        "  [exact] The system's journal says: earlyoom cmdline acme",
        "  cd x && watchdog exec -- python --client acme",
        "ADA_cache of ada_x",
    ],
)
def test_a_shared_text_keeps_no_identifier(told):
    notebook = "My Secret Notes.ipynb"
    about = {"user": "ada", "path": "/home/ada/My Secret Project/x", "notebook": notebook}
    content = {"title": "t", "text": f"Why: {told} was full.", "plot": None, "events": []}
    shown = anonymous(content, about)["text"].lower()
    for word in ("acme", "secret", "ada", "nn1", "10.0.0.7", "acde", "8020"):
        assert word not in shown, shown


@pytest.mark.parametrize(
    "name",
    [
        "acme_".ljust(70, "z") + "_acme",
        ("acme of acme " * 7)[:72] + ".py",
        "acme\nmade for acme.py",
        "acme  for acme\x1b.py",
        "acme " * 50,
    ],
)
@pytest.mark.parametrize("running", [True, False])
def test_a_shared_text_has_no_part_of_a_name_that_it_shortens(name, running):
    assert clean(name) != name
    label = f"memory limit of {name}"
    limit = Resource(kind="guard", label=label, reason=f"{label} grows", tasks=(7,))
    task = Task.read(process(7, name, MIB, resource="guard", reason=f"{label} grows", past=label))
    status = Status(tasks=(task,), resources=(limit,))
    row = {"pid": 7, "name": name, "bytes": MIB}
    death = {**row, "reason": f"{label} is full", "takers": {"watched": [row]}}
    if running:
        text = describe_task(status, task, 5.0)
    else:
        text = describe_death(death, at="12:00", now_unix_s=5.0, advice=[f"Limit {name}."])
    title = f"{name}: killed"
    content = {"title": title, "text": text, "plot": plot(name), "events": [["12:00", title]]}
    shown = anonymous(content, status.to_json() if running else death)
    assert "acme" not in repr(shown), shown
    assert shown["title"].split(":")[0] in shown["text"], "one name stays one name"


def test_a_shared_text_keeps_its_words_and_figures():
    about = {"name": "To start.py", "argv": ["python", "--steps", "100", "a"], "subject": "4711"}
    words = (
        "It held 100 MiB, 3/4 of RAM w/o swap, and grew by 3.5 MiB/s; a guard (pid 4711) ended it "
        'at 12:03:04. std::bad_alloc on cuda:0, and "what is this?" in step 3:\n  (path):12 reads.'
    )
    text = f"To start.py died.\n{words}"
    content = {"title": "t", "text": text, "plot": None, "events": []}
    shown = anonymous(content, about)["text"]
    assert "name-" in shown.split(" died")[0]
    assert words in shown


def test_the_trace_of_a_task_begins_with_it(tmp_path):
    drawn = plot()
    drawn["resource"]["points"][:1] = [[at, 650 * MIB, 700 * MIB] for at in (600.0, 900.0)]
    path = tmp_path / "page.html"
    path.write_text(page(report(drawn=drawn)))
    samples = read(str(path)).samples
    assert samples[:2] == [(0.0, 650 * MIB, 700 * MIB), (1.0, 11 * MIB, 700 * MIB)]
