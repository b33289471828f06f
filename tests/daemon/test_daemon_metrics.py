"""A real daemon's metrics in a real node_exporter and Prometheus."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.finished import finished
from support.ntfy import TOPIC, Ntfy
from support.prometheus import Prometheus, alertmanager, free_port, running
from support.waiting import until

from watchdog_app.core.explain.metrics import METRICS
from watchdog_app.core.model.status import Status
from watchdog_app.daemon.textfile import Textfile

PACKAGING = Path(__file__).parents[2] / "packaging/prometheus"
NAME = re.compile(r"watchdog_\w+")
PROGRAM = 'keep "quoted".py'
HOLDS = "import time\nheld = bytearray(b'x' * 60_000_000)\ntime.sleep(600)\n"
LEAKS = "import time\nheld = []\nwhile True: held.append(bytearray(1 << 20)); time.sleep(0.1)\n"
LEAKER = 'leaks "{{.status}}" %0a.py'


@pytest.fixture
def textfile(world) -> Path:
    """A daemon that writes metrics, with one task."""
    path = world.folder / "metrics" / "watchdog.prom"
    path.parent.mkdir()
    path.parent.chmod(0o755)
    world.config.write_text(world.config.read_text() + f'[metrics]\ntextfile = "{path}"\n')
    world.start()
    world.seen(world.script(HOLDS, PROGRAM))
    world.until(lambda: path.exists() and "keep" in path.read_text(), "the task is in the file")
    return path


def panels() -> dict[str, str]:
    """The query of each panel of the dashboard by its title."""
    board = json.loads((PACKAGING / "dashboard.json").read_text())
    return {p["title"]: p["targets"][0]["expr"] for p in board["panels"] if p["type"] != "row"}


def test_the_dashboard_is_what_its_script_builds():
    pytest.importorskip("grafana_foundation_sdk.cog", reason="the dashboard is built with it")
    built = finished([sys.executable, str(PACKAGING / "dashboard.py")], check=True)
    assert built.stdout == (PACKAGING / "dashboard.json").read_text()


def test_the_command_prints_open_metrics(world):
    world.start()
    world.seen(world.script(HOLDS, PROGRAM))
    shown = world.command("metrics")
    found = {each.name: each for each in text_string_to_metric_families(shown.stdout)}
    assert PROGRAM in {each.labels["task"] for each in found["watchdog_task_ram_bytes"].samples}
    assert found["watchdog_daemon_samples"].samples[0].value >= 1


def test_a_file_that_cannot_be_written_is_a_problem(world):
    path = world.folder / "absent" / "watchdog.prom"
    world.config.write_text(world.config.read_text() + f'[metrics]\ntextfile = "{path}"\n')
    world.start()
    message = world.until(lambda: world.problems().get("metrics"), "the problem is shown")
    assert str(path.parent) in message


def test_a_disk_that_does_not_answer_delays_nothing_and_is_a_problem(tmp_path, monkeypatch):
    """The daemon's own thread asks for the file, its removal and the end."""
    path, answers, caught = tmp_path / "watchdog.prom", threading.Event(), []

    def late(call):
        def answer(*words, **more):
            if str(path) in map(str, words):
                answers.wait(60)
            return call(*words, **more)

        return answer

    faults = SimpleNamespace(clear=lambda _: caught.clear(), put=lambda *told: caught.append(told))
    file = Textfile(faults, lambda: None)
    for name in ("replace", "rename", "unlink"):
        monkeypatch.setattr(os, name, late(getattr(os, name)))
    file.follow(str(path), Status, 0.0)
    file.follow(str(path), Status, 10.0)
    assert not caught
    file.follow(str(path), Status, 16.0)
    assert "does not answer" in caught[0][1]
    answers.set()
    until(lambda: file.follow(str(path), Status, 14.0) or not caught, "it works again")
    answers.clear()
    file.follow("", Status, 18.0)
    assert path.exists(), "it has waited for the disk"
    file.close()
    answers.set()
    until(lambda: not path.exists(), "the file is removed")


def test_prometheus_reads_every_figure_of_the_dashboard(world, textfile):
    prometheus = Prometheus(textfile, world.folder)
    query = prometheus.query
    with running(world.folder, *prometheus.commands):
        ram = f'watchdog_task_ram_bytes{{task="{PROGRAM}"}}'.replace('"quoted"', r"\"quoted\"")
        found = world.until(lambda: query(ram), "Prometheus has the task")
        assert float(found[0]["value"][1]) > 60_000_000
        world.until(lambda: query("count_over_time(watchdog_level[1m]) > 1"), "two scrapes")
        empty = set()
        for title, text in panels().items():
            assert {each.removesuffix("_total") for each in NAME.findall(text)} <= {*METRICS}
            if not query(text.replace("$instance", ".*").replace("$__rate_interval", "1m")):
                empty.add(title)
    # No GPU is here, nothing is about to end, and nothing was done or has died.
    without_events = {"Saves, pauses and notifications", "Deaths by cause"}
    without_forecast = {"First exhaustion", "Predicted time until exhaustion"}
    assert empty <= {"GPU memory", "Memory", "Temperature", "Power"} | without_events | (
        without_forecast | {"Age of the last rescue"}
    )


def test_an_alert_reaches_a_phone(world, textfile):
    """node_exporter, Prometheus, Alertmanager and ntfy hand it on, with the files that we ship."""
    address = f"127.0.0.1:{free_port()}"
    prometheus = Prometheus(textfile, world.folder, [address])
    ntfy = Ntfy(world.folder / "ntfy")
    try:
        config = world.folder / "alertmanager.yml"
        shipped = (PACKAGING / "alertmanager.yml").read_text()
        config.write_text(shipped.replace("https://ntfy.example.org/alerts", f"{ntfy.url}/{TOPIC}"))
        (world.folder / "ntfy-token").write_text(ntfy.token)
        command = alertmanager(
            f"--config.file={config}",
            f"--storage.path={world.folder / 'alerts'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
        )
        limited = SimpleNamespace(
            command=lambda argv: ["sh", "-c", 'ulimit -v 800000; exec "$@"', "sh", *argv]
        )
        with running(world.folder, *prometheus.commands, command):
            world.script(LEAKS, LEAKER, group=limited)
            (message,) = world.until(  # others may leak on this machine
                lambda: [each for each in ntfy.messages() if LEAKER in each["message"]],
                "the alert arrives",
                timeout_s=180,
            )
    finally:
        ntfy.stop()
    assert message["title"] == "WatchdogExhaustionPredicted"
    assert message["priority"] == 5
    assert "is about to be exhausted Who makes it grow" in message["message"]


def test_the_file_goes_with_the_daemon(world, textfile):
    assert textfile.stat().st_mode & 0o777 == 0o644
    world.end()
    assert not textfile.exists(), "its figures are no longer true"


def test_another_path_removes_the_file_before(world, textfile):
    other = textfile.with_name("other.prom")
    world.config.write_text(world.config.read_text().replace(str(textfile), str(other)))
    assert world.command("reload").returncode == 0
    world.until(other.exists, "the new file is written")
    assert not textfile.exists(), "nobody writes it any more"
