"""The tray program on a real bus: its icon, every menu line, over restarts of each service."""

from __future__ import annotations

import signal
import time

import pytest
from support.waiting import until
from tray_readings import GIB, agent, leaking, status, task


@pytest.fixture
def tray(desktop):
    """Daemon, panel and notification service, and a tray program whose icon is visible."""
    desktop.daemon.start()
    desktop.panel_ = desktop.panel()
    desktop.screen_ = desktop.screen()
    desktop.process = desktop.companion()
    until(lambda: desktop.panel_.registered, "the icon is registered")
    until(lambda: "train.ipynb" in str(desktop.panel_.lines()), "the task is in the menu")
    until(lambda: "Nothing" in desktop.panel_.property("Title"), "the icon is drawn")
    return desktop


def test_the_icon_is_an_item_that_panels_can_read(tray):
    """The item has pixels in every size, a tooltip, a menu and a left-click action."""
    panel = tray.panel_

    sizes = [width for width, _, _ in panel.property("IconPixmap")]

    assert [16, 22, 24, 32, 48, 64] == sizes
    assert {0, 255} <= {pixel[0] for pixel in panel.pixels(32)}
    assert "watchdog: Nothing is about to run out" == panel.property("Title")
    assert panel.property("Title") == panel.property("ToolTip")[2]
    assert "/MenuBar" == panel.property("Menu")
    assert panel.property("ItemIsMenu") is False
    assert "Active" == panel.property("Status")


def test_properties_come_all_at_once_and_the_object_describes_itself(tray):
    """Panels differ in whether they call GetAll or Introspect."""
    panel = tray.panel_
    path, props = "/StatusNotifierItem", "org.freedesktop.DBus.Properties"

    (every,) = panel.call(panel.item, path, props, "GetAll", "s", ["org.kde.StatusNotifierItem"])
    (xml,) = panel.call(panel.item, path, "org.freedesktop.DBus.Introspectable", "Introspect")

    assert {"Id", "IconPixmap", "ToolTip", "Menu", "ItemIsMenu"} <= set(every)
    assert all(f'name="{name}"' in xml for name in every)


def test_the_menu_says_what_is_and_offers_what_can_be_done(tray):
    """The test reads the whole menu from top to bottom."""
    lines = tray.panel_.lines()

    top = [path[0] for path in lines if len(path) == 1]
    below = [path[1] for path in lines if len(path) == 2 and path[0].startswith("train")]
    assert "Nothing is about to run out" == top[0]
    assert "RAM 6.00 of 16.0 GiB" == top[1]
    assert "train.ipynb: 3.00 GiB" == top[2]
    assert [
        "Protection: on",
        "Explain what is going on",
        "Open live view",
        "Start at login",
        "Settings",
        "Quit",
    ] == top[3:]
    assert [
        "RAM: 3.00 GiB",
        "Trend: steady",
        "End: none in sight",
        below[3],
        "Save checkpoint now",
        "Pause",
        "Resume",
        "Explain",
        "Open folder of rescues",
    ] == below
    assert below[3].startswith("Saved at step 1200, 1")
    assert not lines[(top[0],)][1]["enabled"]


def test_a_name_with_underscores_is_shown_as_it_is(tray):
    """The protocol reads a single underscore as an access-key mark."""
    tray.daemon.status = status(tasks=[task(5, "a_b__c.ipynb")])

    until(lambda: "a__b____c.ipynb" in str(tray.panel_.lines()), "the name is doubled")
    assert "a_b__c.ipynb" not in str(tray.panel_.lines())


@pytest.mark.parametrize(
    ("labels", "method", "params"),
    [
        (("train", "Save checkpoint"), "task.checkpoint", {"task": "4711", "wait": True}),
        (("train", "Pause"), "task.pause", {"task": "4711"}),
        (("Protection", "Off for an hour"), "protection.set", {"on": False, "for_s": 3600.0}),
        (("Protection", "Off until"), "protection.set", {"on": False, "for_s": None}),
        (("Protection", "On"), "protection.set", {"on": True}),
    ],
)
def test_a_click_asks_the_daemon(tray, labels, method, params):
    """The request names the task of the submenu."""
    tray.panel_.click(*labels)

    asked = tray.daemon.wait_call(method)
    assert params.items() <= asked.items()


def test_a_paused_task_can_be_resumed_and_not_paused_again(tray):
    """
    The menu disables useless lines instead of removing them, so lines do not move under the
    pointer.
    """
    tray.daemon.status = status(
        level="warning",
        headline="paused: train.ipynb",
        tasks=[task(4711, "train.ipynb", state="paused", paused_by_watchdog=True)],
    )
    until(lambda: "Paused" in str(tray.panel_.lines()), "the pause is seen")

    tray.panel_.click("train", "Pause")  # the line is disabled: nothing happens
    tray.panel_.click("train", "Resume")

    assert {"task": "4711"} == tray.daemon.wait_call("task.resume")
    assert [] == tray.daemon.called("task.pause")
    assert "Running again: train.ipynb" == tray.screen_.wait("Running again")["title"]


def test_what_is_held_in_its_guard_can_be_given_more_let_go_and_ended(tray):
    """
    The menu has each choice of the terminal.

    A task that is not held can only get a higher limit.
    """
    guard = {"stopped": True, "used_bytes": 1, "limit_bytes": 2, "reserve_bytes": 3}
    held = task(4711, "train.ipynb", state="stopped", guard=guard)
    calm = task(4712, "calm.py", guard={**guard, "stopped": False})
    tray.daemon.status = status(tasks=[held, calm])
    tray.daemon.answers["guard.limit"] = {"text": "It goes on."}
    until(lambda: "Continue without" in str(tray.panel_.lines()), "the hold is seen")

    for asked, label in enumerate(("Raise the limit", "Continue without", "End it"), 1):
        tray.panel_.click("train", label)
        until(lambda asked=asked: asked == len(tray.daemon.called("guard.limit")), "not asked")

    assert [{"more": True}, {"unlimited": True}, {"end": True}] == [
        {key: value for key, value in each.items() if key != "task"}
        for each in tray.daemon.called("guard.limit")
    ]
    assert {"4711"} == {each["task"] for each in tray.daemon.called("guard.limit")}
    assert 1 == sum("Continue without" in str(path) for path in tray.panel_.lines())


def test_a_refusal_is_shown_as_a_notice(tray):
    """The notification shows the daemon's text."""
    tray.daemon.answers["task.pause"] = RuntimeError("train.ipynb (pid 4711) is paused already.")

    tray.panel_.click("train", "Pause")

    shown = tray.screen_.wait("Could not pause: train.ipynb")
    assert "train.ipynb (pid 4711) is paused already." == shown["body"]


def test_a_paused_notebook_comes_with_a_warning_of_what_not_to_press(tray):
    """A restart in Jupyter kills a paused kernel; the button resumes it."""
    tray.panel_.click("train", "Pause")

    shown = tray.screen_.wait("Paused: train.ipynb")
    tray.screen_.press(shown["number"], "resume")

    assert "Do not press Restart" in shown["body"]
    assert {"task": "4711"} == tray.daemon.wait_call("task.resume")


def test_a_save_says_what_became_of_it(tray):
    """The notification has step, size, seconds and path."""
    rescue = {"path": "/r/step-1300", "step": 1300, "bytes": 2**20, "seconds": 0.84}
    done = {"task": 4711, "name": "train.ipynb", "status": "done", "rescue": rescue}
    tray.daemon.answers["task.checkpoint"] = {"requests": [done]}

    tray.panel_.click("train", "Save checkpoint")

    said = "train.ipynb: saved at step 1300, 1.00 MiB in 0.84 s: /r/step-1300"
    assert said == tray.screen_.wait("Saved")["body"]


def test_a_save_that_is_refused_is_no_success(tray):
    """The daemon answered the request, but the training cannot save."""
    answer = {"requests": [{"status": "refused", "detail": "No agent is connected."}]}
    tray.daemon.answers["task.checkpoint"] = answer

    tray.panel_.click("train", "Save checkpoint")

    assert "No agent is connected." == tray.screen_.wait("Not saved: train.ipynb")["body"]


def test_a_click_never_reaches_another_process_with_the_same_number(tray):
    """A slow panel may show an ended task whose PID another process now has."""
    number, _ = tray.panel_.line("train", "Pause")
    tray.daemon.status = status(tasks=[task(4711, "other.py", start_time=1)])
    until(lambda: "other.py" in str(tray.panel_.lines()), "the other one is seen")

    tray.panel_.event(number)
    time.sleep(0.5)

    assert [] == tray.daemon.called("task.pause")


def test_the_live_view_opens_in_a_terminal(tray, words_of):
    """Both the menu line and a left click on the icon open it."""
    log = tray.program("xterm")

    tray.panel_.activate()
    first = words_of(log)
    tray.panel_.click("Open live view")
    until(lambda: len(words_of(log)) > len(first), "it opens again")

    assert ("xterm", True) == (first[0], "-e" in first)
    assert ["top", "--window"] == first[-2:]


def test_without_a_terminal_it_is_said_what_to_type(tray):
    """Without a message the click would seem to do nothing."""
    tray.panel_.activate()

    shown = tray.screen_.wait("The live view could not be opened")
    assert "Type it yourself: watchdog" in shown["body"]


def test_an_explanation_opens_in_a_terminal_that_stays(tray, words_of):
    """The menu offers one for the task and one for the machine."""
    log = tray.program("xterm")

    tray.panel_.click("train", "Explain")

    words = words_of(log)
    assert ["explain", "4711"] == words[-2:]
    assert any("Press Enter" in word for word in words)


def test_an_explanation_is_a_notice_where_there_is_no_terminal(tray):
    """The notification holds as much of the daemon's text as fits."""
    tray.daemon.answers["explain"] = {"text": "It holds 3 GiB <of> RAM.", "incidents": []}

    tray.panel_.click("Explain what is going on")

    assert "It holds 3 GiB &lt;of&gt; RAM." == tray.screen_.wait("Explained")["body"]


def test_the_folder_of_rescues_opens(tray, words_of):
    """The file manager opens it. A missing folder causes a message."""
    log = tray.program("xdg-open")
    folder = tray.folder / "rescues"
    tray.daemon.status = status(
        tasks=[task(4711, "train.ipynb", agent=agent(directory=str(folder)))]
    )
    tray.panel_.event(0, "opened")  # the menu reads the status at once
    time.sleep(0.5)

    tray.panel_.click("train", "Open folder")
    assert "nothing has been saved yet" in tray.screen_.wait("The folder could")["body"]
    folder.mkdir()
    tray.panel_.click("train", "Open folder")

    assert ["xdg-open", str(folder)] == words_of(log)


def test_labels_change_in_an_open_menu_without_closing_it(tray):
    """New values change properties; the layout and its revision stay."""
    panel = tray.panel_
    panel.event(0, "opened")
    revision, _ = panel.layout()
    panel.signals.clear()

    tray.daemon.status = status(tasks=[task(4711, "train.ipynb", 4 * GIB, agent=agent())])
    until(lambda: "4.00 GiB" in str(panel.lines()), "the figure changes")

    told = [name for name, _ in panel.signals]
    assert "ItemsPropertiesUpdated" in told
    assert "LayoutUpdated" not in told
    assert revision == panel.layout()[0]


def test_the_icon_is_not_sent_again_while_it_looks_the_same(tray):
    """Values change every second, but the picture stays the same."""
    panel = tray.panel_
    panel.event(0, "opened")  # panels open the menu every second
    time.sleep(0.3)
    panel.signals.clear()

    for index in range(4):
        tray.daemon.status = status(
            tasks=[task(4711, "train.ipynb", (3 + index) * GIB, agent=agent())]
        )
        time.sleep(0.8)

    told = [name for name, _ in panel.signals]
    assert "ItemsPropertiesUpdated" in told
    assert "NewIcon" not in told


def test_danger_changes_icon_tooltip_and_headline(tray):
    """The next sample changes all three."""
    panel = tray.panel_
    before = panel.pixels(22)

    tray.daemon.status = leaking()
    until(lambda: "full in about" in panel.property("Title"), "the tooltip tells")

    assert "watchdog: RAM full in about 4 min: train.ipynb" == panel.property("Title")
    headline = "RAM full in about 4 min: train.ipynb"
    until(lambda: headline == next(iter(panel.lines()))[0], "the menu tells")
    assert before != panel.pixels(22)
    assert "End: 4 min (3-7 min)" in [path[-1] for path in panel.lines()]


def test_it_starts_before_a_tray_and_registers_when_one_comes(desktop, ended):
    """It registers again with the next tray, because panels can crash."""
    desktop.daemon.start()
    process = desktop.companion()
    until(lambda: desktop.daemon.called("subscribe"), "it runs")

    first = desktop.panel()
    until(lambda: first.registered, "the first panel has it")
    first.close()
    desktop._parts.remove(first)
    second = desktop.panel()
    until(lambda: second.registered, "the second panel has it")

    assert second.pixels(16)
    assert 0 == ended(process)[0]


def test_the_daemon_may_come_and_go(tray):
    """Without a daemon the icon is grey and the menu can start one; the icon recovers alone."""
    panel = tray.panel_
    colored = panel.pixels(24)

    tray.daemon.stop()
    until(lambda: "Start the daemon" in str(panel.lines()), "its end is seen")
    assert "The daemon is not running" == next(iter(panel.lines()))[0]
    grey = panel.pixels(24)
    assert all(max(p[1:]) - min(p[1:]) < 16 for p in grey if p[0] > 0)
    tray.daemon.start()

    until(lambda: "train.ipynb" in str(panel.lines()), "it is back")
    until(lambda: colored == panel.pixels(24), "it has its colour again")


def test_it_outlives_the_bus(tray):
    """After a bus restart at the same address icon and notifications return."""
    tray.panel_.close()
    tray.screen_.close()
    tray._parts.clear()
    tray.bus.stop()
    time.sleep(0.3)
    tray.bus.start()

    panel, screen = tray.panel(), tray.screen()
    until(lambda: panel.registered, "the icon is back", 30)
    panel.click("train", "Pause")

    assert "Nothing is about" in next(iter(panel.lines()))[0]
    assert screen.wait("Paused: train.ipynb")


def test_a_second_companion_leaves_the_first_alone(tray):
    """A login may start it twice. The second prints a message and exits with 0."""
    second = tray.companion()

    said, _ = second.communicate(timeout=20)

    assert 0 == second.returncode
    assert "runs already" in said
    assert tray.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_cleanly_when_it_is_told_to(tray, ended, number):
    """After Ctrl-C, SIGTERM or a closed terminal: exit code 0, no traceback, no icon."""
    code, said = ended(tray.process, number)

    assert 0 == code
    assert "Traceback" not in said
    with pytest.raises(RuntimeError):
        tray.panel_.property("Title")


def test_quit_ends_it(tray):
    tray.panel_.click("Quit")

    said, _ = tray.process.communicate(timeout=20)
    assert 0 == tray.process.returncode
    assert "Traceback" not in said


def test_start_at_login_is_a_check_mark_that_keeps_its_word(tray):
    """It creates and removes the autostart entry of this user."""
    entry = tray.home / ".config" / "autostart" / "org.watchdog_app.watchdog.desktop"
    assert 0 == tray.panel_.line("Start at login")[1]["toggle-state"]

    tray.panel_.click("Start at login")
    until(lambda: tray.panel_.line("Start at login")[1]["toggle-state"], "it is checked")
    assert " tray" in entry.read_text()
    tray.panel_.click("Start at login")
    until(lambda: not tray.panel_.line("Start at login")[1]["toggle-state"], "unchecked")

    assert not entry.exists()


def test_the_check_mark_is_true_after_somebody_else_changed_it(tray):
    """A desktop's settings may remove the entry; the menu reads it on every opening."""
    entry = tray.home / ".config" / "autostart" / "org.watchdog_app.watchdog.desktop"
    tray.panel_.click("Start at login")
    until(lambda: tray.panel_.line("Start at login")[1]["toggle-state"], "it is checked")

    entry.unlink()

    def unchecked():
        tray.panel_.event(0, "opened")
        return not tray.panel_.line("Start at login")[1]["toggle-state"]

    until(unchecked, "the open menu shows it")


def test_strange_calls_are_answered_with_errors(tray):
    """After unknown ids, methods and properties the icon still works."""
    panel = tray.panel_
    strange = [
        ("/MenuBar", "com.canonical.dbusmenu", "GetLayout", "iias", [99999, -1, []]),
        ("/MenuBar", "com.canonical.dbusmenu", "AboutToShow", "i", [-5]),
        ("/MenuBar", "com.canonical.dbusmenu", "Explode", "", []),
        ("/StatusNotifierItem", "org.freedesktop.DBus.Properties", "Get", "ss", ["x", "y"]),
        ("/StatusNotifierItem", "org.kde.StatusNotifierItem", "Activate", "s", ["x"]),
    ]
    for path, interface, member, signature, body in strange[:4]:
        with pytest.raises(RuntimeError):
            panel.call(panel.item, path, interface, member, signature, body)

    missing = panel.call(
        panel.item, "/MenuBar", "com.canonical.dbusmenu", "AboutToShowGroup", "ai", [[0, 424242]]
    )
    assert [[], [424242]] == missing
    assert "Active" == panel.property("Status")


def test_what_a_faulty_daemon_sends_ends_nothing(tray):
    """The icon survives nonsense in every field and is right again with the next valid status."""
    panel = tray.panel_

    tray.daemon.status = {"tasks": [{"pid": 1, "start_time": []}], "resources": [{"ratio": {}}]}
    tray.daemon.read_again()
    tray.daemon.status = status(tasks=[task(6, "good.ipynb")])

    until(lambda: "good.ipynb" in str(panel.lines()), "the good one is shown")
    assert tray.process.poll() is None


def test_an_open_menu_keeps_its_lines_under_the_pointer(tray):
    """Ended and new tasks move no line. The next opening sorts them."""
    panel = tray.panel_
    number, _ = panel.line("train")
    panel.event(0, "opened")
    panel.signals.clear()

    tray.daemon.status = status(tasks=[task(5000, "new.ipynb")])
    until(lambda: "has ended" in str(panel.lines()), "the menu says that it has ended")

    assert "LayoutUpdated" not in [name for name, _ in panel.signals]
    assert (number, False) == (
        panel.line("train.ipynb has ended")[0],
        panel.line("train")[1]["enabled"],
    )
    panel.event(number)  # as a slow panel does
    assert number < panel.line("new.ipynb")[0]

    panel.call(panel.item, "/MenuBar", "com.canonical.dbusmenu", "AboutToShow", "i", [0])
    until(lambda: "train.ipynb" not in str(panel.lines()), "its line is gone")
    assert number == panel.line("new.ipynb")[0]
