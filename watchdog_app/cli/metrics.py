"""
Print resources, forecasts, tasks, saves and deaths once as OpenMetrics text. For Prometheus, let
the daemon write a file that node_exporter reads (metrics.textfile); the daemon opens no port.

examples:
  watchdog metrics
  watchdog metrics | grep eta
  watchdog config set metrics.textfile /var/lib/prometheus/node-exporter/watchdog.prom

exit codes: 0 printed, 1 failure, 2 usage, 3 daemon not running
"""

from __future__ import annotations

from watchdog_app.base.errors import EXIT_OK
from watchdog_app.cli.output import Output
from watchdog_app.cli.parser import Args
from watchdog_app.client.client import request
from watchdog_app.core.model.status import Status


def run(_: Args, out: Output) -> int:
    """Print the metrics of the daemon's status."""
    from watchdog_app.core.explain.metrics import metrics_text

    out.lines(metrics_text(Status.read(request("status"))).rstrip())
    return EXIT_OK
