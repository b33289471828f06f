"""Notifications on the desktop: text, buttons, replacement and acknowledgement."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from support.waiting import until
from tray_readings import leaking, notice, status, task

from watchdog_app.core.model.status import Notification, Status
from watchdog_app.tray.notifications import ShownNotifications, buttons


@pytest.fixture
def shown(desktop, request):
    """A daemon, with a status of the test's own, a notification service and a tray program."""
    desktop.daemon.status = getattr(request, "param", status())
    desktop.daemon.start()
    desktop.screen_ = desktop.screen()
    desktop.process = desktop.companion()
    desktop.daemon.wait_call("subscribe")
    until(lambda: desktop.daemon.reads, "it has read the status")
    return desktop


def test_a_notice_is_shown_with_its_buttons_and_acknowledged(shown):
    """The tray acknowledges it within the two seconds that the daemon waits."""
    begin = time.monotonic()
    shown.daemon.tell(notice())

    told = shown.daemon.acknowledged("n1")

    assert time.monotonic() - begin < 2.0
    assert {"id": "n1", "delivered": True, "detail": "shown by the companion"} == told
    seen = shown.screen_.wait("RAM full")
    assert "RAM: 14.0 of 16.0 GiB.\nIt is asked to save its state now." == seen["body"]
    assert ["default", "save", "pause", "snooze", "show"] == list(seen["buttons"])
    assert "Snooze 15 min" == seen["buttons"]["snooze"]
    assert (1, 0) == (seen["urgency"], seen["replaces"])
    assert 0 == seen["expire"], "it stays until it is no longer true"


@pytest.mark.parametrize(
    ("key", "method", "params"),
    [
        ("save", "task.checkpoint", {"task": "4711"}),
        ("pause", "task.pause", {"task": "4711"}),
        ("resume", "task.resume", {"task": "4711"}),
        ("snooze", "snooze", {"incident": "i1", "for_s": 900.0}),
    ],
)
@pytest.mark.parametrize("shown", [leaking()], ids=["leaking"], indirect=True)
def test_each_button_does_what_it_says(shown, key, method, params):
    """The request names the task or the incident of the notification."""
    shown.daemon.tell(notice(actions=[{"key": key, "label": "Do it"}]))
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")

    shown.screen_.press(number, key)

    assert params.items() <= shown.daemon.wait_call(method).items()


@pytest.mark.parametrize("key", ["show", "default"])
def test_show_and_a_click_on_the_notice_open_the_live_view(shown, words_of, key):
    """A click on the notification counts as its default action."""
    log = shown.program("xterm")
    shown.daemon.tell(notice())
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")  # the tray knows the notification's id by then
    shown.screen_.press(number, key)

    assert ["--task", "4711"] == words_of(log)[-2:]


@pytest.mark.parametrize("key", ["show", "default"])
def test_show_and_a_click_on_a_death_explain_it(shown, words_of, key):
    """The live view does not show a task that has ended."""
    log = shown.program("xterm")
    panel = shown.panel()
    until(lambda: panel.item, "the icon is there")
    title = "Out of memory: train.ipynb"
    shown.daemon.tell(notice(topic="exited", title=title, unix_s=time.time()))
    seen = shown.screen_.wait("Out of memory")
    shown.daemon.wait_call("notification.shown")
    shown.screen_.press(seen["number"], key)

    assert ["explain", "4711"] == words_of(log)[-2:]
    assert -1 == seen["expire"], "news use the time of the service"
    until(lambda: any(path[0].startswith(title) for path in panel.lines()), "the menu has it")


@pytest.mark.parametrize("shown", [status(tasks=[])], ids=["it is gone"], indirect=True)
def test_a_death_opens_its_page_where_a_browser_is(shown, words_of):
    """The same page as `watchdog report` writes."""
    log = shown.program("xdg-open")
    death = {"pid": 4711, "unix_s": time.time(), "name": "train.ipynb", "reason": "killed"}
    text = "train.ipynb died.\nWhy: Killed by the kernel."
    shown.daemon.answers["explain"] = {"death": death, "death_text": text, "incidents": []}
    shown.daemon.answers["history"] = {"entries": []}
    title = "Out of memory: train.ipynb"
    shown.daemon.tell(notice(topic="exited", title=title, unix_s=time.time()))
    seen = shown.screen_.wait("Out of memory")
    shown.daemon.wait_call("notification.shown")
    shown.screen_.press(seen["number"], "show")

    page = Path(words_of(log)[-1])
    assert page.name == "watchdog-report-4711.html"
    assert "Why: Killed by the kernel." in page.read_text()


def _offer(environment):
    command = f"watchdog agent enable --python {environment}"
    actions = [
        {"key": "enable_saving", "label": "Turn on", "command": command},
        {"key": "not_now", "label": "Not now", "command": ""},
    ]
    title = "train.ipynb cannot be saved"
    return notice(
        topic="unsaved", incident="", stage="ok", urgency="low", title=title, actions=actions
    )


def test_turn_on_turns_saving_on_in_the_environment_of_the_training(shown, tmp_path):
    """No terminal is needed; the answer names the way back."""
    environment = tmp_path / "tf"
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    facts = {"prefix": str(environment), "version": [3, 12], "startup": True}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    python.chmod(0o755)

    shown.daemon.tell(_offer(environment))
    seen = shown.screen_.wait("train.ipynb cannot be saved")
    shown.daemon.wait_call("notification.shown")
    assert ["default", "enable_saving", "not_now"] == list(seen["buttons"])
    assert 0 == seen["urgency"]
    shown.screen_.press(seen["number"], "enable_saving")

    answer = shown.screen_.wait("Saving is on")
    assert (environment / "etc" / "ipython" / "startup" / "90-watchdog.py").exists()
    assert f"watchdog agent disable --python {environment}" in answer["body"]


def test_turn_on_that_fails_says_why_and_not_now_does_nothing(shown, tmp_path):
    """The environment may have been removed since."""
    shown.daemon.tell(_offer(tmp_path / "gone"))
    number = shown.screen_.wait("train.ipynb cannot be saved")["number"]
    shown.daemon.wait_call("notification.shown")

    shown.screen_.press(number, "not_now")
    shown.screen_.press(number, "enable_saving")

    assert "There is no program" in shown.screen_.wait("Saving is off as it was")["body"]


def test_a_snooze_without_an_incident_is_of_the_task(shown):
    """The user can also silence a notification without an incident."""
    shown.daemon.tell(notice(incident=""))
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")  # the tray knows the notification's id by then
    shown.screen_.press(number, "snooze")

    assert {"task": "4711", "for_s": 900.0} == shown.daemon.wait_call("snooze")


def test_a_button_of_another_program_is_none_of_ours(shown):
    """The service numbers the notifications of all programs."""
    shown.daemon.tell(notice())
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")

    shown.screen_.press(number + 500, "pause")
    shown.screen_.press(number, "format-disk")
    shown.screen_.press(number, "save")

    shown.daemon.wait_call("task.checkpoint")
    assert [] == shown.daemon.called("task.pause")


def test_a_button_never_reaches_another_process_with_the_same_number(shown):
    """The notification may be hours old."""
    shown.daemon.tell(notice())
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")
    shown.daemon.status = status(tasks=[task(4711, "innocent.py", start_time=7)])
    shown.daemon.read_again()

    shown.screen_.press(number, "pause")

    assert "has ended" in shown.screen_.wait("Could not pause: train.ipynb")["body"]
    assert [] == shown.daemon.called("task.pause")


def test_names_cannot_become_markup(shown):
    """A notebook's name may contain markup characters."""
    shown.daemon.tell(notice(body="<b>train</b> & <img src=x>\x07\u202e.ipynb"))

    body = shown.screen_.wait("RAM full")["body"]

    assert "&lt;b&gt;train&lt;/b&gt; &amp; &lt;img src=x&gt;\\x07\\u202e.ipynb" == body


def test_a_service_without_markup_gets_the_text_as_it_is(desktop):
    """Such a service would show the escape sequences."""
    desktop.daemon.start()
    screen = desktop.screen("plain")
    desktop.companion()

    desktop.daemon.tell(notice(title="a & b", body="x < y & z"))

    assert "x < y & z" == screen.wait("a & b")["body"]


def test_a_service_without_buttons_gets_none(desktop):
    """The service cannot show buttons, so only the text arrives."""
    desktop.daemon.start()
    screen = desktop.screen("silent")
    desktop.companion()
    actions = [
        {"key": "save", "label": "Save now", "command": "watchdog checkpoint train.ipynb"},
        {"key": "show", "label": "Show", "command": "watchdog top"},
    ]

    desktop.daemon.tell(notice(actions=actions))

    shown = screen.wait("RAM full")
    assert {} == shown["buttons"]
    assert shown["body"].endswith("\nwatchdog checkpoint train.ipynb")


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("refuse", "refused it: too many"),
        ("hang", "did not answer within"),
        (None, "no notification"),
    ],
)
def test_a_notice_that_is_not_shown_is_told_as_such(desktop, mode, why):
    """The report arrives in time for the daemon to notify in another way."""
    desktop.daemon.start()
    if mode is not None:
        desktop.screen(mode)
    desktop.companion()
    begin = time.monotonic()
    desktop.daemon.tell(notice())

    told = desktop.daemon.acknowledged("n1")

    assert not told["delivered"]
    assert why in told["detail"]
    assert time.monotonic() - begin < 10  # most of it is the start of the tray program


def test_without_a_bus_a_notice_is_written_and_left_to_the_daemon(desktop, ended):
    """Without a display and a bus the program prints what it does and why, and continues."""
    desktop.daemon.start()
    process = desktop.companion(DBUS_SESSION_BUS_ADDRESS="unix:path=/nonexistent/bus")
    desktop.daemon.tell(notice())

    told = desktop.daemon.acknowledged("n1")
    time.sleep(7)
    code, said = ended(process)

    assert (False, 0) == (told["delivered"], code)
    assert "RAM full in about 4 min: train.ipynb" in said
    assert "neither a display nor a session bus" in said


def test_notifications_only_shows_no_icon(desktop, ended):
    """The option forbids it, even if a panel runs."""
    desktop.daemon.start()
    panel, screen = desktop.panel(), desktop.screen()
    process = desktop.companion("--notifications-only")
    desktop.daemon.tell(notice())
    screen.wait("RAM full")

    code, said = ended(process)

    assert ([], 0) == (panel.registered, code)
    assert "no icon, as it was asked to" in said


def test_a_later_notice_of_an_incident_takes_the_place_of_the_earlier(shown):
    """One incident has one place on the screen; another task has its own."""
    shown.daemon.tell(notice("n1"))
    first = shown.screen_.wait("RAM full")["number"]
    time.sleep(1)  # the id is on its way to the tray program
    shown.daemon.tell(notice("n2", stage="save", title="Saved: train.ipynb"))
    second = shown.screen_.wait("Saved")
    shown.daemon.tell(notice("n3", stage="pause", task=9, title="Paused: other.py"))

    assert first == second["replaces"]
    assert 0 == shown.screen_.wait("Paused: other.py")["replaces"]


def test_numbers_of_a_service_that_was_restarted_are_forgotten(shown):
    """The service counts from 1 again, so an old id may belong to another program."""
    shown.daemon.tell(notice("n1"))
    shown.screen_.wait("RAM full")
    shown.screen_.close()
    shown._parts.remove(shown.screen_)
    time.sleep(0.3)
    anew = shown.screen("plain")
    time.sleep(0.3)

    shown.daemon.tell(notice("n2", stage="save", title="Saved: a & b"))

    assert (0, "Saved: a & b") == (anew.wait("Saved")["replaces"], anew.shown[-1]["title"])


def test_a_snooze_of_what_is_over_is_answered_and_not_asked_for(shown):
    """Without a message the user would think that the snooze worked."""
    shown.daemon.tell(notice(incident="i9"))

    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")  # the tray knows the notification's id by then
    shown.screen_.press(number, "snooze")

    assert "over already" in shown.screen_.wait("Nothing to snooze")["body"]
    assert not shown.daemon.called("snooze")


def test_what_is_over_is_taken_from_the_screen(shown):
    """A warning of a closed incident is no longer true."""
    shown.daemon.tell(notice(incident="i9"))
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.wait_call("notification.shown")

    until(lambda: number in shown.screen_.closed, "it is closed")
    assert [number] == list(shown.screen_.closed)


def test_warnings_do_not_outlive_the_program(shown, ended):
    """Nobody would close them later, and their buttons would do nothing. A death stays."""
    shown.daemon.tell(notice("n1", incident="i1"))
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.tell(notice("n2", topic="exited", incident="", task=9))
    shown.daemon.acknowledged("n2")

    assert 0 == ended(shown.process)[0]
    assert [number] == list(shown.screen_.closed)


def test_warnings_do_not_outlive_a_stopped_daemon(shown):
    """Nothing is watched then. A death stays."""
    shown.daemon.tell(notice("n1", incident="i1"))
    number = shown.screen_.wait("RAM full")["number"]
    shown.daemon.tell(notice("n2", topic="exited", incident="", task=9))
    shown.daemon.acknowledged("n2")

    shown.daemon.stop()

    until(lambda: shown.screen_.closed, "the warning is closed")
    assert [number] == list(shown.screen_.closed)


# Which shown notifications the program remembers


def shown_with(first):
    shown = ShownNotifications()
    shown.mark_shown(Notification.read(first), 7, 100.0)
    return shown


@pytest.mark.parametrize(
    ("topic", "incident", "task_", "age_s", "expected"),
    [
        ("warning", "i1", 4711, 60, []),
        ("warning", "i9", 4711, 60, [7]),
        ("warning", "i9", 4711, 1, []),
        ("warning", "i1", 9, 60, [7]),
        ("stalled", "i1", 4711, 60, []),
        ("stalled", "i9", 4711, 60, [7]),  # it makes steps again
        ("paused", "i9", 4711, 60, [7]),  # it runs again
        ("paused", "i9", 4800, 60, []),
        ("paused", "i1", 9, 60, [7]),
        ("exited", "i9", 9, 60, []),
        ("rescued", "i9", 9, 60, []),
    ],
)
def test_what_is_over_is_known(topic, incident, task_, age_s, expected):
    """Notifications of a death or a rescue stay, and so do those that just arrived."""
    kept = shown_with(notice(topic=topic, incident=incident, task=task_))
    seen = leaking()
    seen["tasks"][1]["paused_by_watchdog"] = True

    assert expected == kept.outdated(Status.read(seen), 100.0 + age_s)


@pytest.mark.parametrize(
    ("at_s", "now_s", "incident", "expected"),
    [
        (130.0, 161.0, "i1", [7]),
        (130.0, 159.0, "i1", []),  # the death is recent
        (130.0, 161.0, "i9", [8]),  # the warning is over
        (90.0, 161.0, "i1", []),  # the death came after the warning
    ],
)
def test_a_later_danger_takes_an_old_death_from_the_screen(at_s, now_s, incident, expected):
    """A desktop shows few notifications at once, and a death stays in history and menu."""
    kept = shown_with(notice(topic="exited", incident="", task=9))
    kept.mark_shown(Notification.read(notice("n2", incident=incident)), 8, at_s)

    assert expected == kept.outdated(Status.read(leaking()), now_s)


@pytest.mark.parametrize(
    ("later", "replaced"),
    [
        ({}, 7),
        ({"stage": "save"}, 7),
        ({"incident": "i2"}, 0),
        ({"incident": ""}, 0),
        ({"task": 9}, 0),
        ({"topic": "exited", "incident": "", "start_time": 1}, 7),
        ({"topic": "exited", "incident": "", "start_time": 2}, 0),
        ({"topic": "exited", "incident": "", "task": 9}, 0),
    ],
)
def test_a_notification_replaces_one_of_its_incident_and_a_death_any_of_its_task(later, replaced):
    """A reused PID counts as another task."""
    kept = shown_with({**notice(), "start_time": 1})

    assert replaced == kept.replaced_by(Notification.read({**notice("n2"), **later}))


def test_what_is_long_past_is_forgotten():
    """The memory is bounded for any daemon, and unknown ids have no owner."""
    kept = ShownNotifications()
    for number in range(1, 500):
        kept.mark_shown(Notification.read(notice(incident=f"i{number}")), number, float(number))

    assert kept.find(1) is None
    assert "n1" == kept.find(499).id
    assert kept.find(500) is None


@pytest.mark.parametrize(
    "actions",
    [None, "pause", [None, 5, "x"], [{"label": "no key"}], [{"key": "rm -rf", "label": "Go"}]],
)
def test_buttons_that_make_no_sense_are_left_out(actions):
    """A daemon of another version may send them."""
    assert ["default", ""] == buttons(Notification.read(notice(actions=actions)))
