"""Protection that is off and suppressed notices: for how long, and which notices pass."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from support.waiting import until

from watchdog_app.base.errors import RequestError
from watchdog_app.core.model.decisions import Decision, DecisionKind, Stage
from watchdog_app.core.model.resource import ResourceKey, ResourceKind
from watchdog_app.core.model.settings import NotifySettings, Settings, parse_span_of_day
from watchdog_app.core.model.status import Incident, Notification, Status
from watchdog_app.daemon.notify import Channel, Delivery
from watchdog_app.daemon.notify.dispatcher import NotificationFilter, quiet_span_at, summary
from watchdog_app.history.past import open_read_only

NOON = 1_793_450_000.0


class Clocks:
    """A monotonic and a wall clock, both moved by the test."""

    def __init__(self, unix_s: float = NOON) -> None:
        self.mono_s, self.unix_s = 1000.0, unix_s

    def pass_(self, seconds: float) -> None:
        self.mono_s += seconds
        self.unix_s += seconds

    def quiet(self, hours: tuple[str, ...] = ()) -> NotificationFilter:
        settings = Settings(notify=NotifySettings(quiet_hours=hours))
        return NotificationFilter(settings, lambda: self.mono_s, lambda: self.unix_s)


def warning(**changes) -> Notification:
    about = {
        "id": "n1", "incident": "i1", "stage": "warn", "urgency": "normal", "title": "t",
        "body": "b", "task": 7, "unix_s": 0.0, "topic": "warning",
    }  # fmt: skip
    return Notification(**{**about, **changes})


@pytest.fixture
def zone(monkeypatch):
    """Set this process's time zone."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


# Protection


def test_protection_comes_on_by_itself_when_the_time_is_over():
    """It says so once."""
    clocks = Clocks()
    quiet = clocks.quiet()
    quiet.protect(False, 3600)

    clocks.pass_(3599)
    assert (False, []) == quiet.expire()
    assert not quiet.protecting
    clocks.pass_(1)
    assert quiet.expire()[0]
    assert quiet.protecting
    assert {"on": True, "until_unix_s": None} == quiet.protection.to_json()
    assert not quiet.expire()[0]


@pytest.mark.parametrize(
    ("mono_s", "unix_s"),
    [(3600, -86400), (0, 3600), (3600, 0)],
    ids=["the clock is set back a day", "the machine slept", "the clock stands"],
)
def test_no_clock_can_keep_it_off_for_longer(mono_s, unix_s):
    """The clock that reaches the end first counts."""
    clocks = Clocks()
    quiet = clocks.quiet()
    quiet.protect(False, 3600)

    clocks.mono_s += mono_s
    clocks.unix_s += unix_s

    assert quiet.expire()[0]


def test_another_daemon_goes_on_with_what_was_asked_for():
    """Also after a reboot, when only the wall clock is valid."""
    clocks = Clocks()
    before = clocks.quiet()
    before.protect(False, 3600)
    before.snooze("i1", None, None, 3600)
    before.snooze(None, None, None, 3600)
    dumped = before.dump()
    clocks.pass_(600)
    later = Clocks(clocks.unix_s)
    later.mono_s = 5.0
    after = later.quiet()

    after.load(dumped, same_boot=False)

    assert not after.protecting
    assert NOON + 3600 == after.protection.until_unix_s
    assert [None] == [each.incident for each in after.snoozed]  # that incident has ended
    later.pass_(3000)
    assert after.expire()[0]
    assert not after.snoozed


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"protecting": False, "until": "x"},
        {"protecting": 0, "until": None, "snoozes": [[1]], "owed": []},
    ],
)
def test_nonsense_on_the_disk_leaves_protection_on(value):
    """A partial load would be worse."""
    quiet = Clocks().quiet()

    with pytest.raises(ValueError, match="not what was written down"):
        quiet.load(value, same_boot=True)

    assert quiet.protecting
    assert not quiet.snoozed


@pytest.mark.parametrize(
    ("topic", "urgency", "out"),
    [
        ("warning", "normal", False),
        ("warning", "critical", False),
        ("stalled", "normal", False),
        ("resolved", "low", False),
        ("exited", "critical", True),
        ("resumed", "normal", True),
        ("paused", "critical", True),
    ],
)
def test_while_it_is_off_only_what_has_happened_is_told(topic, urgency, out):
    """A death has already happened; a warning has not."""
    quiet = Clocks().quiet()
    quiet.protect(False)

    assert out is (quiet.reason(warning(topic=topic, urgency=urgency)) is None)


# Snooze


@pytest.mark.parametrize(
    ("meant", "notice", "held"),
    [
        (("i1", None), warning(), True),
        (("i1", None), warning(incident="i2"), False),
        ((None, 7), warning(incident="i2"), True),
        ((None, 7), warning(task=8), False),
        ((None, 7), warning(task=None), False),
        ((None, None), warning(task=None, incident="i9"), True),
        (("i1", None), warning(urgency="critical", stage="pause"), False),
        ((None, None), warning(urgency="critical", topic="exited"), False),
    ],
)
def test_a_snooze_holds_back_what_was_meant_and_nothing_critical(meant, notice, held):
    """A snooze covers one incident, one task, or everything."""
    quiet = Clocks().quiet()
    quiet.snooze(*meant, "train.py", 900)

    why = quiet.reason(notice)

    assert held is (why is not None)
    if held:
        assert "snoozed until" in why
        assert 1 == quiet.suppressed


def test_when_a_snooze_ends_what_it_suppressed_is_told():
    """Once; of one incident the last, without the end of a danger that was not shown."""
    clocks = Clocks()
    quiet = clocks.quiet()
    quiet.snooze(None, None, None, 900)
    quiet.reason(warning(title="early"))
    quiet.reason(warning(incident="i2", topic="rescued", title="saved"))
    quiet.reason(warning(title="late"))
    quiet.reason(warning(incident="i2", topic="resolved"))

    clocks.pass_(899)
    assert [] == quiet.expire()[1]
    clocks.pass_(1)
    assert ["saved", "late"] == [each.title for each in quiet.expire()[1]]
    assert [] == quiet.expire()[1]
    assert quiet.reason(warning()) is None


def test_what_another_snooze_still_suppresses_waits_longer():
    """And what became critical was told."""
    clocks = Clocks()
    quiet = clocks.quiet()
    quiet.snooze("i1", None, None, 60)
    quiet.snooze("i2", None, None, 900)
    for incident in ("i1", "i2"):
        quiet.reason(warning(incident=incident))

    clocks.pass_(60)
    first = quiet.expire()[1]
    quiet.reason(warning(incident="i2", urgency="critical"))
    clocks.pass_(900)

    assert ["i1"] == [each.incident for each in first]
    assert [] == quiet.expire()[1]


def test_suppressed_notifications_are_summarised_in_one(zone):
    """Each with its time; a warning that is no longer true is said as past."""
    zone("UTC")
    seen = [
        warning(incident="i1", title="RAM full in about 4 h", unix_s=60.0, task=None),
        warning(incident="i2", title="GPU 0 full in about 3 h", unix_s=3660.0, task=None),
    ]
    now = Status(incidents=(Incident(id="i2"),))

    both = summary(seen, now, 9.0)
    mixed = summary([*seen, warning(topic="rescued", title="Saved: a.py", unix_s=7260.0)], now, 9.0)
    past = summary(seen[:1], now, 9.0)

    assert "2 warnings while notifications were off" == both.title
    first, second = both.body.splitlines()
    assert first.endswith("00:01 RAM full in about 4 h (over)")
    assert second.endswith("01:01 GPU 0 full in about 3 h (still true)")
    assert ("summary", "normal", "") == (both.topic, both.urgency, both.incident)
    assert "3 messages while notifications were off" == mixed.title
    assert mixed.body.endswith("02:01 Saved: a.py")
    assert ("1 warning while notifications were off", "low") == (past.title, past.urgency)


def test_a_long_night_has_a_short_summary():
    """The newest are listed; the history has all."""
    found = summary([warning(title=f"w{n}") for n in range(20)], Status(), 9.0)

    lines = found.body.splitlines()
    assert 9 == len(lines)
    assert "w19" in lines[7]
    assert "12 earlier ones: watchdog history" == lines[8]


def test_when_a_snooze_ends_people_get_one_summary(parts, control, loop, screen):
    """As a notification like any other: in the journal, through the filter, by the channels."""
    loop.sample()
    control.snooze(None, None, 900, "a test")
    for number in range(3):
        parts.executor.tell(warning(id=f"n{number}", incident=f"i{number}"))
    assert not screen.shown

    control.snooze(None, None, 0, "a test")
    control.expire_quiet()
    until(lambda: parts.dispatcher.poll(0.0) or screen.shown)

    (told,) = screen.shown
    assert "3 warnings while notifications were off" == told.title
    assert 3 == told.body.count("(over)")


def test_a_screen_learns_within_seconds_what_is_over(parts, loop, screen):
    """Only while it shows a warning: a status takes time to make."""
    loop.sample()
    loop._housekeeping(time.monotonic())
    screen.standing = True

    loop._housekeeping(time.monotonic())
    until(lambda: parts.dispatcher.poll(0.0) or screen.seen)

    assert [parts.observer.latest.snapshot.unix_s] == [each.time_unix_s for each in screen.seen]


class Screen(Channel):
    """A channel that records what it shows, and what it is to compare that with."""

    name = "screen"

    def __init__(self) -> None:
        self.shown: list[Notification] = []
        self.seen: list[Status] = []

    def close_over(self, status: Status) -> None:
        self.seen.append(status)

    def send(self, notification: Notification) -> Delivery:
        self.shown.append(notification)
        return Delivery(True)


@pytest.fixture
def screen() -> Screen:
    """The only channel of the daemon."""
    return Screen()


@pytest.fixture
def channels(screen: Screen) -> list[Screen]:
    """The channels of the daemon."""
    return [screen]


def test_a_snooze_can_be_ended_and_replaced():
    """The last request counts."""
    quiet = Clocks().quiet()
    quiet.snooze("i1", None, None, 900)
    quiet.snooze("i1", None, None, 60)
    assert [NOON + 60] == [each.until_unix_s for each in quiet.snoozed]

    quiet.reason(warning())

    assert quiet.snooze("i1", None, None, 0) is None

    assert not quiet.snoozed
    assert ["i1"] == [each.incident for each in quiet.expire()[1]]


def test_snoozes_are_bounded():
    """A broken tray must not fill the memory."""
    quiet = Clocks().quiet()

    for number in range(500):
        quiet.snooze(f"i{number}", None, None, 900)
        quiet.reason(warning(incident=f"j{number}"))

    assert 64 == len(quiet.snoozed)
    assert not quiet.knows_incident("j0")
    assert quiet.knows_incident("j499")


# Quiet hours


@pytest.mark.parametrize(
    ("zone_name", "utc", "held"),
    [
        ("UTC", "2026-11-21T22:00", True),
        ("UTC", "2026-11-21T06:59", True),
        ("UTC", "2026-11-21T07:00", False),
        ("Europe/Berlin", "2026-11-21T21:30", True),  # 22:30 there
        ("Europe/Berlin", "2026-11-21T06:30", False),  # 07:30 there
        ("America/New_York", "2026-11-21T12:00", False),  # 07:00 there
        ("America/New_York", "2026-11-21T11:59", True),
        ("Asia/Kolkata", "2026-11-21T16:30", True),  # 22:00 there
        # Clocks go back at 03:00 on 25 October and forward at 02:00 on 29 March.
        ("Europe/Berlin", "2026-10-25T04:30", True),  # 05:30 there; 06:30 before
        ("Europe/Berlin", "2026-10-25T06:00", False),
        ("Europe/Berlin", "2026-10-25T05:59", True),
        ("Europe/Berlin", "2026-03-29T04:59", True),
        ("Europe/Berlin", "2026-03-29T05:00", False),
    ],
)
def test_quiet_hours_go_by_the_clock_on_the_wall(zone, zone_name, utc, held):
    """In every time zone, and on the days of a clock change."""
    from datetime import UTC, datetime

    zone(zone_name)
    at = datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()
    quiet = Clocks(at).quiet(("22:00-07:00",))

    why = quiet.reason(warning())

    assert held is (why is not None)
    if held:
        assert "quiet from 22:00 to 07:00" in why
    assert quiet.reason(warning(urgency="critical")) is None


def test_when_quiet_hours_end_the_danger_is_to_be_told(zone):
    """A danger that began at 06:50 and still exists at 07:00 is then reported."""
    zone("UTC")
    clocks = Clocks(1_793_450_000 - 1_793_450_000 % 86400 + 6 * 3600 + 50 * 60)
    quiet = clocks.quiet(("22:00-07:00",))
    quiet.expire()
    quiet.reason(warning())
    quiet.snooze(None, None, None, 60)
    clocks.pass_(120)
    assert [] == quiet.expire()[1]  # the snooze is over, the quiet hours are not

    clocks.pass_(8 * 60)

    assert ["i1"] == [each.incident for each in quiet.expire()[1]]


def test_what_was_suppressed_is_told_although_the_hours_ended_without_a_daemon(zone):
    """The daemon was stopped at 06:55 and started again at 07:05."""
    zone("UTC")
    clocks = Clocks(1_793_450_000 - 1_793_450_000 % 86400 + 6 * 3600 + 55 * 60)
    before, after = clocks.quiet(("22:00-07:00",)), clocks.quiet(("22:00-07:00",))
    before.reason(warning())
    clocks.pass_(600)

    after.load(before.dump(), same_boot=False)

    assert ["i1"] == [each.incident for each in after.expire()[1]]


def test_a_suppressed_warning_outlives_the_daemon(parts, control, loop):
    """It is saved at once, so that a later daemon reports the danger when the time is over."""
    control.protect(False, None, "a test")
    decision = Decision(
        "d1", DecisionKind.NOTIFY, "i1", ResourceKey(ResourceKind.RAM), Stage.WARN, None, 0.0, 0.0,
        "it grows", notification=warning(),
    )  # fmt: skip
    loop._carry_out_decisions(
        SimpleNamespace(result=SimpleNamespace(decisions=[decision]), tasks=())
    )
    parts.journal.close(10)

    with open_read_only(str(parts.journal._folder)) as journal:
        (saved,) = journal.load_state("quiet")["quiet"]["pending"]
        assert "i1" == json.loads(saved)["incident"]


@pytest.mark.parametrize(
    ("text", "times", "quiet"),
    [
        ("22:00-07:00", ["22:00", "23:59", "00:00", "06:59"], True),
        ("22:00-07:00", ["21:59", "07:00", "12:00"], False),
        ("12:30-13:15", ["12:30", "13:14"], True),
        ("12:30-13:15", ["12:29", "13:15", "00:30"], False),
        ("00:00-24:00", ["00:00", "12:00", "23:59"], True),
        ("7:05-8:00", ["07:05"], True),
        (" 22:00 - 24:00 ", ["23:59"], True),
        ("22:00-24:00", ["00:00"], False),
        ("23:59-00:00", ["23:59"], True),
        ("23:59-00:00", ["00:00", "23:58"], False),
    ],
)
def test_hours_include_their_begin_and_not_their_end(text, times, quiet):
    """This holds across midnight and within a day."""
    for at in times:
        hour, minute = map(int, at.split(":"))
        assert (text if quiet else None) == quiet_span_at([text], hour, minute)


def test_of_several_hours_any_counts():
    """The matching span is returned."""
    assert "12:00-13:00" == quiet_span_at(["22:00-07:00", "12:00-13:00"], 12, 30)
    assert quiet_span_at([], 12, 30) is None


@pytest.mark.parametrize(
    "text",
    ["", "22:00", "22-07", "22:00-22:00", "24:00-07:00", "24:01-07:00", "25:00-07:00",
     "22:60-07:00", "22:00-07:00-08:00", "-1:00-07:00", "22:00-", "\uff12\uff12:00-07:00",
     "22.00-07.00", "10pm-7am"],
)  # fmt: skip
def test_what_is_no_span_of_hours_is_refused(text):
    """A span with equal ends could mean nothing, or the whole day."""
    with pytest.raises(ValueError, match=r".+"):
        parse_span_of_day(text)


# The daemon


def test_protection_outlives_the_daemon(world):
    """Also after a kill; it comes on again at its time."""
    client = world.start()
    assert {"on": True, "until_unix_s": None} == client.call("status")["daemon"]["protection"]
    answer = client.call("protection.set", on=False, for_s=3600)
    assert not answer["on"]
    assert 3590 < answer["until_unix_s"] - time.time() <= 3600
    world.until(lambda: client.call("history", kinds=["daemon"])["entries"], "it is written down")
    world.kill()

    client = world.start()

    assert answer == client.call("status")["daemon"]["protection"]
    assert "protection is still switched off" in world.log()
    assert client.call("protection.set", on=True)["on"]
    what = [each["what"] for each in client.call("history", kinds=["daemon"])["entries"]]
    assert any("protection switched on by the cli" in each for each in what)
    world.end()
    assert world.start().call("status")["daemon"]["protection"]["on"]


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("protection.set", {}, "on is missing"),
        ("protection.set", {"on": 1}, "on must be true or false"),
        ("protection.set", {"on": True, "for_s": 60}, "goes with on = false"),
        ("protection.set", {"on": False, "for_s": 0}, "for_s must be between"),
        ("protection.set", {"on": False, "for_s": 1e9}, "for_s must be between"),
        ("snooze", {}, "for_s is missing"),
        ("snooze", {"for_s": -1}, "for_s must be between"),
        ("snooze", {"for_s": 1e6}, "for_s must be between"),
        ("snooze", {"for_s": 60, "incident": "x", "task": "y"}, "not both"),
        ("snooze", {"for_s": 60, "incident": "x\x1b" * 50}, "no incident"),
        ("snooze", {"for_s": 60, "task": "nobody-has-this-name"}, "nobody-has-this-name"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(standing, method, params, named):
    """The error names the parameter."""
    with standing.connect() as client:
        with pytest.raises(RequestError) as caught:
            client.call(method, **params)
        status = client.call("status")["daemon"]

    assert named in str(caught.value)
    assert status["protection"]["on"]
    assert [] == status["snoozed"]


def test_a_snooze_of_a_task_names_it_and_outlives_the_daemon(world):
    """`for_s=0` ends it."""
    client = world.start()
    pid = world.sleeper("long.py")
    answer = client.call("snooze", task=str(pid), for_s=900)
    assert (None, pid, "long.py") == (answer["incident"], answer["task"], answer["name"])
    world.end()

    client = world.start()

    assert [answer] == client.call("status")["daemon"]["snoozed"]
    world.seen(pid)
    assert client.call("snooze", task=str(pid), for_s=0)["until_unix_s"] is None
    assert [] == client.call("status")["daemon"]["snoozed"]
