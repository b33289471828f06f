"""Prometheus and its tools, installed or unpacked by packaging/setup.sh."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

UNPACKED = Path(sys.prefix) / "neighbours/root/usr/bin"
RULES = Path(__file__).parents[2] / "packaging/prometheus/watchdog.rules.yml"
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: node
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
alerting:
  alertmanagers:
    - static_configs: [{{targets: {alertmanagers}}}]
"""


def tool(name: str) -> str:
    """Path of a program of Prometheus; skips the test where it is missing."""
    path = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if path is None:
        pytest.skip(f"{name} is not here: apt-get download failed, or this is not Debian")
    return path


def alertmanager(*options: str) -> tuple[str, ...]:
    """
    The command line of Alertmanager, which needs its templates below /usr/share.

    Where it is only unpacked, it sees them there in a mount namespace of its own.
    """
    command = (tool("prometheus-alertmanager"), *options)
    if Path("/usr/share/prometheus/alertmanager/default.tmpl").exists():
        return command
    lower = f"lowerdir={UNPACKED.parent / 'share'}:/usr/share"
    mounted = f'mount -t overlay overlay -o "{lower}" /usr/share && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", mounted, "sh", *command)


def free_port() -> int:
    """A TCP port that nobody uses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


class Prometheus:
    """
    A Prometheus that reads a textfile through node_exporter, each second, with our alert rules.

    Args:
        textfile: the file; node_exporter reads its folder.
        folder: for its configuration, data and log.
        alertmanagers: addresses that get the alerts.
    """

    def __init__(self, textfile: Path, folder: Path, alertmanagers: Sequence[str] = ()) -> None:
        exporter, self._port = free_port(), free_port()
        config = folder / "prometheus.yml"
        targets = json.dumps(list(alertmanagers))
        config.write_text(CONFIG.format(rules=RULES, exporter=exporter, alertmanagers=targets))
        self.commands = (
            (
                tool("prometheus-node-exporter"),
                f"--web.listen-address=127.0.0.1:{exporter}",
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={textfile.parent}",
            ),
            (
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ),
        )

    def query(self, text: str) -> list[Any]:
        """The result of a query; nothing while Prometheus starts."""
        asked = urllib.parse.urlencode({"query": text})
        try:
            url = f"http://127.0.0.1:{self._port}/api/v1/query?{asked}"
            with urllib.request.urlopen(url, timeout=20) as answer:
                found = json.load(answer)
        except OSError:
            return []
        assert found["status"] == "success"
        result: list[Any] = found["data"]["result"]
        return result


@contextmanager
def running(folder: Path, *commands: Sequence[str]) -> Iterator[None]:
    """Run these programs; their output goes to a file in the folder."""
    with ExitStack() as ends, open(folder / "servers.log", "wb") as log:
        for command in commands:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
            ends.callback(process.wait)
            ends.callback(process.terminate)
        yield
