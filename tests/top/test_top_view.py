"""The live view, driven by its keys against a fake daemon."""

from __future__ import annotations

import asyncio
import functools
import inspect

import pytest
from rich.console import Console
from support.statuses import GIB, HOSTILE_NAMES, MIB, NOW_UNIX_S, agent, leaking, process, status
from textual.widgets import DataTable, Static

from watchdog_app.base.errors import DaemonNotRunning, RequestError
from watchdog_app.base.text import terminal
from watchdog_app.core.model.status import Status
from watchdog_app.top import charts, rows
from watchdog_app.top.app import TopApp
from watchdog_app.top.charts import sparkline
from watchdog_app.top.past import task_key
from watchdog_app.top.screens import KEYS, PAGE_COLUMNS, Page, Question


class Daemon:
    """A fake daemon: records requests and returns prepared answers."""

    def __init__(self):
        self.asked = []
        self.answers = {}

    def start(self):
        pass

    def stop(self):
        pass

    def ask(self, method, answer, wait_s=10.0, **params):
        self.asked.append((method, params))
        found = self.answers.get(method, {})
        error = found if isinstance(found, Exception) else None
        answer(None if error else found, error)


def text_of(app, selector):
    return str(app.query_one(selector, Static).render())


def column(app, title):
    table = app.query_one("#tasks", DataTable)
    return [str(cell).strip() for cell in table.get_column(title)]


def live(size=(80, 24)):
    """
    Run the test as a coroutine next to the view, in a terminal of the given or parametrized size.
    """

    def decorate(test):
        def run(**parameters):
            async def view():
                app = TopApp()
                app._feed.stop()
                daemon = app._feed = Daemon()
                async with app.run_test(size=parameters.get("size", size)) as pilot:
                    await test(app, pilot, daemon, **parameters)

            asyncio.run(view())

        shown = list(inspect.signature(test).parameters.values())[3:]
        run.__signature__ = inspect.Signature(shown)
        return functools.update_wrapper(run, test, updated=())

    return decorate


async def show(app, pilot, *objects):
    for one in objects:
        app._receive_status(Status.read(one), None)
        await pilot.pause()


def keys_of(app):
    """Return the descriptions of the keys that the footer shows."""
    return {each.binding.description for each in app.screen.active_bindings.values()}


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 12)])
@live()
async def test_what_is_about_to_end_is_first_on_every_terminal(app, pilot, daemon, size):
    """The first row shows the task, its limit and its time, on the smallest terminal too."""
    await show(app, pilot, leaking())
    assert column(app, "TASK")[0].startswith("!! tr")
    assert "43s" in column(app, "ETA")[0].replace(" ", "")
    assert "87 %" in text_of(app, "#resources")
    assert "rising 21 MiB/s" in text_of(app, "#incidents") or size[0] < 80
    rendered = "\n".join(text_of(app, one) for one in ("#title", "#resources", "#incidents"))
    assert all(len(line) <= size[0] for line in rendered.splitlines())


@live((140, 40))
async def test_a_name_is_shown_and_never_obeyed(app, pilot, daemon):
    """Escape sequences, markup and line ends in a file name do not change the screen."""
    names = (*HOSTILE_NAMES, "[bold]loud[/].ipynb", "[red")
    many = [process(100 + i, name, GIB + i) for i, name in enumerate(names)]
    await show(app, pilot, status(tasks=many))
    shown = "".join(column(app, "TASK"))
    assert "[bold]loud[/].ipynb" in shown
    assert not any(ord(char) < 32 or 0x80 <= ord(char) < 0xA0 for char in shown)
    await pilot.press("down", "p")
    assert isinstance(app.screen, Question)


@live()
async def test_nothing_is_done_without_a_yes(app, pilot, daemon):
    """The keys s, p and r ask first. Only y acts; n and Escape cancel."""
    await show(app, pilot, leaking())
    for key in ("s", "p"):
        for no in ("n", "escape"):
            await pilot.press(key)
            assert isinstance(app.screen, Question)
            await pilot.press(no)
    assert [] == [each for each in daemon.asked if each[0].startswith("task.")]
    await pilot.press("s", "y")
    await pilot.press("p", "y")
    await pilot.press("down")
    assert [
        ("task.checkpoint", {"task": "4711", "wait": True, "timeout_s": 300.0}),
        ("task.pause", {"task": "4711"}),
    ] == [each for each in daemon.asked if each[0].startswith("task.")]


@live()
async def test_a_paused_task_goes_on_and_others_say_that_they_are_not_paused(app, pilot, daemon):
    """The key r asks before it resumes a paused task. On a running task it only shows a message."""
    await show(app, pilot, leaking())
    await pilot.press("r")
    assert not isinstance(app.screen, Question)
    row = next(i for i, name in enumerate(column(app, "STATE")) if "paused" in name)
    app.query_one("#tasks", DataTable).move_cursor(row=row)
    await pilot.press("r", "y")
    assert ("task.resume", {"task": "5000"}) in daemon.asked


@live()
async def test_a_task_without_an_agent_is_not_asked_to_save(app, pilot, daemon):
    """The view shows the reason instead of asking."""
    await show(app, pilot, status())
    await pilot.press("s")
    assert not isinstance(app.screen, Question)
    assert [] == daemon.asked


@live()
async def test_the_chosen_task_stays_chosen_when_the_order_changes(app, pilot, daemon):
    """
    The selection follows the task, because a reordered table could make the user pause the wrong
    training.
    """
    before = [process(1, "a.py", 3 * GIB), process(2, "b.py", 2 * GIB)]
    after = [process(1, "a.py", 3 * GIB), process(2, "b.py", 9 * GIB)]
    await show(app, pilot, status(tasks=before))
    app._sort = "ram"
    await show(app, pilot, status(tasks=before))
    await pilot.press("up")
    chosen = app.query_one("#tasks").chosen.pid
    await show(app, pilot, status(tasks=after))
    assert chosen == app.query_one("#tasks").chosen.pid
    assert ["2", "1"] == column(app, "PID")


@live((110, 30))
async def test_the_plot_is_of_the_most_urgent_task_until_the_user_chooses(app, pilot, daemon):
    """The order changes when another task grows; after a key the chosen task stays chosen."""
    a, b = process(1, "a.py", 3 * GIB), process(2, "b.py", 2 * GIB)
    await show(app, pilot, status(tasks=[a, b]))
    assert text_of(app, "#plot").startswith("a.py")
    await show(app, pilot, status(tasks=[a, {**b, "level": "warning"}]))
    assert text_of(app, "#plot").startswith("b.py")
    await pilot.press("down")
    assert 1 == app._table.chosen.pid
    await show(app, pilot, status(tasks=[a, b]))
    assert 1 == app._table.chosen.pid


@live()
async def test_a_question_is_about_the_task_that_was_chosen_when_it_was_asked(app, pilot, daemon):
    """The view keeps updating behind the question. The answer must not affect another task."""
    two = [process(1, "a.py", 3 * GIB), process(2, "b.py", 2 * GIB)]
    await show(app, pilot, status(tasks=two))
    asked_of = str(app.query_one("#tasks").chosen.pid)
    await pilot.press("p")
    rest = [one for one in two if str(one["pid"]) != asked_of]
    await show(app, pilot, status(tasks=rest))
    await pilot.press("y")
    assert [("task.pause", {"task": asked_of})] == daemon.asked


@live()
async def test_a_filter_narrows_and_escape_shows_all(app, pilot, daemon):
    """The filter matches a part of the name and ignores case."""
    await show(app, pilot, leaking())
    every = len(column(app, "TASK"))
    await pilot.press("slash", *"EDA")
    assert ["eda.py"] == column(app, "TASK")
    await pilot.press("enter")
    assert app.query_one("#tasks").has_focus
    await pilot.press("escape")
    assert every == len(column(app, "TASK"))


@pytest.mark.parametrize("idle", [False, True])
@live()
async def test_what_a_filter_found_stays_chosen_when_all_is_shown_again(app, pilot, daemon, idle):
    """
    A small task that the view would normally fold stays selected, so the next key acts on the
    intended task.
    """
    small = process(77, "slow.py", (10 * MIB if idle else 2 * GIB), kind="script")
    others = [process(100 + i, f"task{i}.py", GIB + i) for i in range(4)]
    await show(app, pilot, status(tasks=[*others, small]))
    await pilot.press("slash", *"slow", "enter", "escape")
    await show(app, pilot, status(tasks=[*others, small]))
    assert "slow.py" == app._table.chosen.name
    await pilot.press("slash", *"slowx", "escape")
    assert "slow.py" == app._table.chosen.name
    await pilot.press("p", "y")
    assert [("task.pause", {"task": "77"})] == daemon.asked


def test_a_trend_is_drawn_on_one_scale_of_time():
    """Half a minute fills only the last cell of a quarter of an hour; the rest stays blank."""
    young = [(1000.0 + second, GIB * (1 + second / 30), None) for second in range(30)]
    old = [(1000.0 + second, GIB * (1 + second / 900), None) for second in range(901)]

    assert (9 * " ", 10) == (sparkline(young, 10)[:9], len(sparkline(young, 10)))
    assert " " not in sparkline(old, 10)
    assert ("▁", "█") == (sparkline(old, 10)[0], sparkline(old, 10)[-1])


@live()
async def test_the_end_of_the_chosen_task_is_told(app, pilot, daemon):
    """The view reports the end, because the cursor is now on another task's row."""
    first, second = process(71, "first.py", 2 * GIB), process(72, "second.py", GIB)
    await show(app, pilot, status(tasks=[first, second]))
    gone, left = app._table.tasks[0], app._table.tasks[1]
    await show(app, pilot, status(tasks=[first if left.pid == 71 else second]))
    said = [note.message for note in app._notifications]
    assert [f"{gone.name} has ended. {left.name} is chosen now."] == said


@live()
async def test_the_orders_go_round(app, pilot, daemon):
    """The key o cycles the orders, starting with the largest RAM."""
    await show(app, pilot, leaking())
    await pilot.press("o")
    assert "order: ram" in app.query_one("#incidents").border_title
    assert "4711" == column(app, "PID")[0]
    for _ in range(8):
        await pilot.press("o")
    assert "order: urgency" in app.query_one("#incidents").border_title


@live((120, 40))
async def test_enter_draws_the_past_from_the_journal_and_the_cone(app, pilot, daemon):
    """The view requests the samples from before its start once."""
    points = [[NOW_UNIX_S - 600 + 10 * i, (1 + i / 20) * GIB, 7 * GIB, 0] for i in range(58)]
    series = {
        "series": [
            {"kind": "task", "ident": "boot:4711:1", "points": points},
            {"kind": "cgroup", "ident": "cgroup:", "points": points},
        ]
    }
    daemon.answers = {"series": series}
    await show(app, pilot, leaking())
    await pilot.pause()
    picture = text_of(app, "#plot")
    assert 2 == picture.count("-10 min"), "the task's own memory, and the limit that it fills"
    own, limit = picture.splitlines()[0].split("  memory limit of the group")
    assert own.startswith("train_resnet_with")
    assert "full in 43 s" in limit
    assert "now" in picture
    assert "+" in picture.splitlines()[-2]
    assert any("⠁" <= char <= "⣿" for char in picture)
    assert "rescue at step 1200" in picture
    await show(app, pilot, leaking())
    await pilot.press("enter")
    assert not app.query_one("#detail").display
    assert 1 == len([each for each in daemon.asked if each[0] == "series"])


@pytest.mark.parametrize(("size", "strips"), [((80, 24), 0), ((110, 30), 2), ((200, 60), 2)])
@live()
async def test_a_large_terminal_shows_the_plot_of_the_most_urgent_task(
    app, pilot, daemon, size, strips
):
    """Enter hides it; on a small terminal Enter shows the plot of the limit under its own name."""
    await show(app, pilot, leaking())
    assert bool(strips) == app.query_one("#detail").display
    await pilot.press("enter")
    assert bool(strips) != app.query_one("#detail").display
    if not strips:
        assert "memory limit of the group jupyter-ada" in text_of(app, "#plot").splitlines()[0]
    await pilot.press("escape")
    assert not app.query_one("#detail").display


@live()
async def test_explain_is_read_on_a_page(app, pilot, daemon):
    """The page shows names as plain text, and errors too."""
    daemon.answers = {"explain": {"text": "train.ipynb grows.\x1b[2J\nSo what?"}}
    await show(app, pilot, leaking())
    await pilot.press("e")
    assert isinstance(app.screen, Page)
    await pilot.press("escape")
    daemon.answers["explain"] = RequestError("No such task.")
    await pilot.press("e")
    assert isinstance(app.screen, Page)
    assert "No such task." == app.screen._text.plain


@live()
async def test_without_a_daemon_it_says_how_to_start_one_and_goes_on_when_it_is_there(
    app, pilot, daemon
):
    """The first message says how to start the daemon, and the view marks old figures as old."""
    app._receive_status(None, DaemonNotRunning("The watchdog daemon is not running."))
    await pilot.pause()
    assert "watchdog start" in text_of(app, "#lost")
    await show(app, pilot, status())
    assert not app.query_one("#lost").display
    assert "pause" in keys_of(app)
    app._receive_status(None, DaemonNotRunning("The daemon has ended the connection."))
    await pilot.pause()
    assert "old" in text_of(app, "#lost")
    assert app.query_one("#lost").display
    assert "UNKNOWN" in text_of(app, "#incidents")
    await pilot.press("o")
    assert "OK" not in text_of(app, "#incidents")
    assert not keys_of(app) & {"save", "pause", "resume", "explain"}
    await pilot.press("p")
    assert not isinstance(app.screen, Question)


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"tasks": None, "resources": "x", "incidents": [1, None], "host": None},
        {"tasks": [{}], "resources": [{}], "incidents": [{}], "problems": [{}]},
        status(tasks=[process(1, "x", None, cpu_percent="much", agent={})]),
        status(time_unix_s=None),
    ],
)
@live()
async def test_a_status_with_holes_is_drawn_all_the_same(app, pilot, daemon, broken):
    """A newer daemon may send more fields, a broken one fewer."""
    await show(app, pilot, broken)
    await pilot.press("enter", "o", "a", "enter")
    await show(app, pilot, leaking(), broken)
    assert app.is_running


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
@live()
async def test_what_is_in_danger_is_never_what_is_left_out(app, pilot, daemon, size):
    """With six limits and space for fewer, the view keeps the one that runs out."""
    far = {"unit": "bytes", "used": GIB, "limit": 4 * GIB, "ratio": 0.25, "stage": "watch"}
    limits = [{**far, "kind": "cgroup", "subject": str(n), "label": f"far {n}"} for n in range(6)]
    limits[-1] |= {"label": "near", "stage": "save", "eta_s": 20.0}
    await show(app, pilot, status(resources=limits))
    assert "!! near" in text_of(app, "#resources")
    assert "full in 20 s" in text_of(app, "#resources")


@live()
async def test_the_last_line_does_not_call_growth_nothing(app, pilot, daemon):
    """The last line must not deny a forecast shown above it."""
    grows = {"kind": "cgroup", "label": "group", "stage": "watch", "eta_s": 90.0, "ratio": 0.5}
    said = "at this pace group is full in about 2 min; it may level off"
    await show(app, pilot, status(level="watch", headline=said, resources=[grows]))
    assert f"WATCH: {said}." in text_of(app, "#incidents")


@live()
async def test_the_view_says_what_cannot_be_saved_and_that_nothing_runs_yet(app, pilot, daemon):
    """The words are those of the status; an empty table says what comes next."""
    await show(app, pilot, status(tasks=[process(1, "train.ipynb", GIB, can_save=False)]))
    assert "1 possible training cannot be saved: watchdog status says how" in text_of(
        app, "#incidents"
    )
    await show(app, pilot, status(tasks=[]))
    assert "no Python process is running yet" in app.query_one("#incidents").border_title


@live()
async def test_a_question_leaves_the_view_in_sight(app, pilot, daemon):
    """The user needs the figures behind the question to answer it."""
    await show(app, pilot, leaking())
    await pilot.press("p")
    await pilot.pause()
    lines = ["".join(part.text for part in line) for line in app.screen._compositor.render_strips()]
    assert any("full in 43 s" in line for line in lines)


@live()
async def test_a_pid_that_is_used_again_is_not_paused(app, pilot, daemon):
    """The question was about the previous process with that PID."""
    await show(app, pilot, status(tasks=[process(7, "mine.py", GIB)]))
    await pilot.press("p")
    other = process(7, "other.py", GIB, start_time=12345)
    await show(app, pilot, status(tasks=[other]))
    await pilot.press("y")
    assert [] == daemon.asked


@live()
async def test_rows_stay_scrolled_when_the_order_changes(app, pilot, daemon):
    """A user who reads row 80 of 100 stays at that task."""
    many = [process(n, f"t{n}.py", GIB + n) for n in range(1, 101)]
    await show(app, pilot, status(tasks=many))
    table = app.query_one("#tasks")
    table.scroll_to(y=60, animate=False)
    await pilot.pause()
    await show(app, pilot, status(tasks=[{**many[50], "level": "warning"}, *many[1:50]]))
    await show(app, pilot, status(tasks=[{**many[0], "level": "warning"}, *many[1:]]))
    await pilot.pause()
    before = table.scroll_offset.y
    await show(app, pilot, status(tasks=[{**many[9], "level": "warning"}, *many[1:9], *many[10:]]))
    await pilot.pause()
    assert before == table.scroll_offset.y
    assert "10" == column(app, "PID")[0]


@live((160, 40))
async def test_graphics_memory_has_a_column_where_there_is_a_card(app, pilot, daemon):
    """The column appears only on a machine that has a GPU."""
    await show(app, pilot, status())
    assert "GPU-MEM" not in app.query_one("#tasks").titles
    one = process(1, "gpu.py", GIB, gpu_memory_bytes=512 * MIB)
    none = process(2, "ram.py", GIB)
    unknown = process(3, "other.py", GIB, gpus=[{"index": 0}])
    await show(app, pilot, status(tasks=[one, none, unknown], gpus=[{"index": 0}]))
    assert {"512 MiB", "-", "N/A"} == set(column(app, "GPU-MEM"))


def cards_status(**more):
    """A status with two GPUs, of which one is lost with a task on it, and a task on both."""
    lost = {
        "index": 1,
        "id": "GPU-1",
        "uuid": "GPU-1",
        "name": "RTX 4090",
        "state": "lost",
        "health": {"severity": "critical", "title": "is lost"},
        "level": "critical",
    }
    well = lost | {
        "index": 0, "id": "GPU-0", "uuid": "GPU-0", "state": "ok", "health": None, "level": "ok",
        "temperature_c": 71.0,
        "memory_used_bytes": 20 * GIB, "memory_total_bytes": 24 * GIB,
    }  # fmt: skip
    incident = {
        "id": "1", "resource": "gpu_fault", "subject": "GPU-1", "label": "GPU 1 (RTX 4090)",
        "stage": "save", "reason": "it has fallen off the bus", "advice": ["Restart."],
        "contributors": [{"name": "job.py", "pid": 4711}], "opened_unix_s": NOW_UNIX_S,
    }  # fmt: skip
    job = process(4711, "job.py", GIB, gpus=[{"index": 0}, {"index": 1}], gpu_memory_bytes=3 * GIB)
    return status(gpus=[well, lost], incidents=[incident], tasks=[job], **more)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@live()
async def test_each_card_has_a_line_and_each_task_its_cards(app, pilot, daemon, size):
    """
    The view shows memory, temperature and lost GPUs.

    At 80 by 24 it shows the incident and the affected task.
    """
    await show(app, pilot, cards_status())
    cards = text_of(app, "#gpus")
    assert "GPU 0" in cards
    assert "71 °C" in cards
    assert "LOST" in cards
    assert ["0,1"] == column(app, "DEV")
    assert column(app, "GPU-MEM")[0].startswith("3.00")
    said = text_of(app, "#incidents")
    assert "fallen off the bus; on it: job.py" in said
    assert "grows" not in said
    assert app.query_one("#incidents").region.bottom <= size[1]


@pytest.mark.parametrize("count", [0, 1, 8])
@pytest.mark.parametrize("size", [(110, 30), (110, 40), (110, 52), (200, 60)])
@live()
async def test_a_full_machine_shows_its_cards_and_its_tasks(app, pilot, daemon, size, count):
    """Many limits, tasks, incidents and remarks leave each card its line, and the tasks theirs."""
    machine = cards_status()
    other = {"pid": 812, "task": None, "name": "ollama", "memory_bytes": 12 * GIB}
    machine["gpus"] = [
        {**machine["gpus"][0], "id": f"GPU-{n}", "index": n, "processes": [other]}
        for n in range(count)
    ]
    machine["tasks"] = [process(100 + n, f"job_{n}.py", GIB) for n in range(30)]
    machine["resources"] = [leaking()["resources"][2] | {"subject": str(n)} for n in range(15)]
    machine["incidents"] = [machine["incidents"][0] | {"id": str(n)} for n in range(9)]
    await show(app, pilot, machine)
    cards = text_of(app, "#gpus") if app.query_one("#gpus").display else ""
    assert [f"GPU {n}" in cards for n in range(9)] == [n < count for n in range(9)]
    table = app.query_one("#tasks").region
    assert table.height >= 4
    assert table.bottom <= app.query_one("#incidents").region.y
    assert app.query_one("#incidents").region.bottom <= size[1] - 1


@live()
async def test_urgent_remarks_come_first_where_not_all_have_room(app, pilot, daemon):
    """At 80 by 24 one card of three has room for a remark."""
    machine = cards_status()
    other = {"pid": 812, "task": None, "name": "ollama", "memory_bytes": 12 * GIB}
    machine["gpus"] = [
        {**machine["gpus"][0], "id": f"GPU-{n}", "index": n, "processes": [other]} for n in range(3)
    ]
    machine["gpus"][2] |= {"level": "warning", "throttling": ["power_brake"]}
    found = rows.gpu_rows(Status.read(machine), 80, False, 4)
    assert ["GPU 0", "GPU 1", "GPU 2", "power brake"] == [
        next(word for word in ("GPU 0", "GPU 1", "GPU 2", "power brake") if word in line.plain)
        for line in found
    ]
    assert 3 == len(rows.gpu_rows(Status.read(machine), 80, False, 3))
    fewer = [line.plain for line in rows.gpu_rows(Status.read(machine), 80, False, 2)]
    assert "GPU 2" in fewer[0]
    assert "  and 2 cards more (g)" == fewer[1]


@live(size=(110, 30))
async def test_a_page_shows_every_figure_of_the_cards_and_follows_them(app, pilot, daemon):
    """`g` opens it and closes it."""
    machine = cards_status()
    machine["gpus"][0] |= {"graphics_clock_mhz": 1755.0, "graphics_clock_max_mhz": 1980.0}
    await show(app, pilot, machine)
    await pilot.press("g")
    assert "graphics 1755 MHz of 1980 MHz" in text_of(app.screen, "#text")
    machine["gpus"][0] |= {"graphics_clock_mhz": 210.0}
    await show(app, pilot, machine)
    assert "graphics 210 MHz of 1980 MHz" in text_of(app.screen, "#text")
    assert app.screen.query_one("#hint").region.bottom < 30
    await pilot.press("g")
    assert not isinstance(app.screen, Page)


@pytest.mark.parametrize("size", [(80, 24), (110, 30), (200, 60)])
@live()
async def test_all_of_eight_cards_are_in_sight(app, pilot, daemon, size):
    """With few tasks no terminal counts cards beside empty rows."""
    machine = cards_status()
    machine["gpus"] = [
        {**machine["gpus"][0], "id": f"GPU-{n}", "index": n, "notes": []} for n in range(8)
    ]
    await show(app, pilot, machine)
    assert app.query_one("#gpus").display
    assert all(f"GPU {n}" in text_of(app, "#gpus") for n in range(8))
    assert app.query_one("#incidents").region.bottom <= size[1]


XTERM = {
    "black": (0, 0, 0), "red": (205, 0, 0), "yellow": (205, 205, 0), "cyan": (0, 205, 205),
    "bright_white": (255, 255, 255),
}  # fmt: skip


def luminance(name):
    """Return the relative luminance of a colour of xterm's palette (WCAG 2)."""
    parts = [value / 255 for value in XTERM[name]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("pair", charts.BADGES.values())
def test_the_letters_of_a_badge_have_contrast(pair):
    """A badge brings both colours, so its contrast is the same on each background."""
    light, dark = sorted(map(luminance, pair.split(" on ")), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("name", charts.BADGES)
def test_a_mark_on_the_command_line_looks_as_in_the_live_view(name):
    """The codes of a terminal name the same two colours."""
    palette = ("black", "red", "green", "yellow", "blue", "magenta", "cyan")
    names = {str(30 + number): color for number, color in enumerate(palette)} | {
        "97": "bright_white"
    }
    letters, ground = terminal._CODES[name].split(";")

    assert charts.BADGES[name] == f"{names[letters]} on {names[str(int(ground) - 10)]}"


@pytest.mark.parametrize("level", ["watch", "warning", "critical", "unknown"])
def test_no_letter_has_a_colour_on_an_unknown_background(level):
    """Yellow letters on white have a contrast of 1.7 to 1."""
    found = cards_status()
    for part in ("resources", "tasks", "gpus", "incidents"):
        for one in found[part]:
            one["level"] = level
    found["daemon"]["protection"] = {"on": False}
    found["tasks"][0]["agent"] = agent(saving=True)
    made = Status.read(found)
    titles = rows.column_titles(120, True)
    texts = [
        *(rows.title_line(made, 120), *rows.resource_rows(made, 120, True, 9)),
        *(*rows.gpu_rows(made, 120, True, 9), *rows.incident_rows(made, 120, 9)),
        *(cell for task in made.tasks for cell in rows.task_cells(task, titles, 120, None)),
    ]
    console = Console()
    for text in texts:
        styles = [text.get_style_at_offset(console, at) for at in range(len(text))]
        for char, known in zip(text.plain, styles, strict=True):
            assert char in "█▒░ " or known.color is None or known.bgcolor is not None, text.plain
        badges = "".join(
            char for char, known in zip(text.plain, styles, strict=True) if known.bgcolor
        )
        assert badges.strip() in ("", "~", "!", "!!", "?", "protection is OFF"), text.plain


@pytest.mark.parametrize("columns", range(60, 200))
@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_row_of_the_table_fits_its_terminal(columns, has_gpu):
    """No column is cut off, and a name of usual length is whole in all wide tables."""
    titles = rows.column_titles(columns, has_gpu)
    task = Status.read(leaking()).tasks[0]
    task.name = "torch_loop.py"
    cells = rows.task_cells(task, titles, columns, None)
    name = cells[titles.index("TASK")].plain

    others = {"PID": 6, "STATE": 9, "RAM": 9, "SWAP": 9, "GPU-MEM": 9, "TREND": 9, "ETA": 14}
    if columns >= rows.WIDE:
        widths = (max(others.get(title, 5), cell.cell_len)
                  for title, cell in zip(titles, cells, strict=True))  # fmt: skip
        assert sum(each + 2 for each in widths) <= columns
        assert "torch_loop.py" in name or columns < 115


@live((80, 24))
async def test_what_is_wrong_elsewhere_comes_before_the_advice_on_the_first(app, pilot, daemon):
    """Each of three incidents has its line in a small terminal."""
    many = cards_status()
    first = many["incidents"][0]
    many["incidents"] = [first | {"id": str(n), "label": f"GPU {n}"} for n in range(3)]
    await show(app, pilot, many)
    assert [f"GPU {n}" for n in range(3)] == sorted(
        word for word in ("GPU 0", "GPU 1", "GPU 2") if word in text_of(app, "#incidents")
    )


def test_the_trend_beside_a_time_is_of_what_runs_out():
    """The view draws the trend of the GPU that fills up, not the steady RAM."""
    filling = {
        "kind": "gpu_memory", "subject": "GPU-0", "label": "GPU 0 memory", "stage": "warn",
        "used": 20 * GIB, "limit": 24 * GIB, "unit": "bytes", "ratio": 0.83, "eta_s": 60.0,
        "tasks": [4711],
    }  # fmt: skip
    job = process(4711, "job.py", GIB, eta_s=60.0)
    still = process(4712, "still.py", GIB)
    read = Status.read(status(resources=[filling], tasks=[job, still]))

    expected = {task_key(read.tasks[0]): ("gpu_memory", "GPU-0")}
    assert expected == rows.series_by_task(read, read.tasks)


@live()
async def test_the_task_of_a_click_is_chosen_and_its_plot_opens(app, pilot, daemon, monkeypatch):
    """The tray opens one live view; a later click chooses another task in it."""
    tasks = [process(100 + number, f"job{number}.py", GIB) for number in range(40)]
    app._wanted = 137
    await show(app, pilot, status(tasks=tasks), status(tasks=tasks))
    assert 137 == app._table.chosen.pid
    assert app.query_one("#detail").display

    monkeypatch.setattr("watchdog_app.client.live_view.wanted_task", lambda: 103)
    app._name_filter = "job9"
    await pilot.press("question_mark")
    assert isinstance(app.screen, Page)
    app._come_forward()
    await pilot.pause()
    assert 103 == app._table.chosen.pid
    assert not isinstance(app.screen, Page), "the page does not cover the task"

    monkeypatch.setattr("watchdog_app.client.live_view.wanted_task", lambda: 9)
    app._come_forward()
    await pilot.pause()
    assert 103 == app._table.chosen.pid
    assert "Process 9 has ended" in next(iter(app._notifications)).message


@pytest.mark.parametrize("key", ["pagedown", "j", "down", "click"])
@live((120, 24))
async def test_every_way_to_choose_a_task_keeps_it_chosen(app, pilot, daemon, key):
    """The next status does not move the cursor back to the most urgent task."""
    seen = status(tasks=[process(100 + number, f"job{number}.py", GIB) for number in range(40)])
    await show(app, pilot, seen)
    if key == "click":
        await pilot.click("#tasks", offset=(4, 3))
    else:
        await pilot.press(key)
    chosen = app._table.chosen.pid
    assert 100 != chosen

    await show(app, pilot, seen)
    assert chosen == app._table.chosen.pid


@live((120, 24))
async def test_the_wheel_scrolls_before_a_task_is_chosen(app, pilot, daemon):
    """The next status does not scroll back to the most urgent task."""
    seen = status(tasks=[process(100 + number, f"job{number}.py", GIB) for number in range(40)])
    await show(app, pilot, seen)
    while app._table.max_scroll_y < 12:  # the layout comes later on a busy machine
        await pilot.pause()
    app._table.scroll_to(y=12, animate=False, immediate=True)
    await pilot.pause()

    await show(app, pilot, seen)
    assert 12 == app._table.scroll_offset.y


@live()
async def test_a_click_while_no_daemon_answers_waits_for_the_next_status(app, pilot, daemon):
    """An old status cannot show that the task has ended."""
    await show(app, pilot, status(tasks=[process(100, "old.py", GIB)]))
    app._receive_status(None, DaemonNotRunning("The daemon is not running."))
    await pilot.pause()
    app._wanted = 101
    app._draw()
    assert not app._notifications

    await show(app, pilot, status(tasks=[process(pid, "a.py", GIB) for pid in (100, 101)]))
    assert 101 == app._table.chosen.pid


def test_no_line_of_the_keys_page_is_wrapped():
    """Its box, padding and scroll bar take six columns."""
    assert PAGE_COLUMNS - 6 >= max(map(len, KEYS.splitlines()))
