"""
Print a Grafana dashboard of watchdog's metrics.

    python packaging/prometheus/dashboard.py > packaging/prometheus/dashboard.json

It needs grafana-foundation-sdk, which `make setup-test` installs.
"""

from __future__ import annotations

import sys

from grafana_foundation_sdk.builders.common import ReduceDataOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

# Row of the dashboard: title, unit, query and legend of each panel.
PANELS = {
    "Now": (
        (
            "Level (3 critical, 4 unknown)",
            "none",
            'watchdog_level{instance=~"$instance"}',
            "level",
        ),
        (
            "First exhaustion",
            "s",
            'min(watchdog_resource_eta_seconds{instance=~"$instance",bound="median"})',
            "median",
        ),
        ("Trainings not saved", "none", 'sum(watchdog_task_unsaved{instance=~"$instance"})', ""),
        (
            "Deaths in a day",
            "none",
            'round(sum(increase(watchdog_deaths_total{instance=~"$instance"}[1d])))',
            "",
        ),
    ),
    "Resources": (
        (
            "Used part of each resource",
            "percentunit",
            'watchdog_resource_used_ratio{instance=~"$instance"}',
            "{{instance}} {{name}}",
        ),
        (
            "Predicted time until exhaustion",
            "s",
            'watchdog_resource_eta_seconds{instance=~"$instance"}',
            "{{instance}} {{name}} ({{bound}})",
        ),
        (
            "Growth",
            "Bps",
            'watchdog_resource_growth_bytes_per_second{instance=~"$instance"}',
            "{{instance}} {{name}}",
        ),
    ),
    "Tasks": (
        (
            "RAM",
            "bytes",
            'watchdog_task_ram_bytes{instance=~"$instance"}',
            "{{instance}} {{task}}",
        ),
        (
            "GPU memory",
            "bytes",
            'watchdog_task_gpu_memory_bytes{instance=~"$instance"}',
            "{{instance}} {{task}}",
        ),
        (
            "Age of the last rescue",
            "s",
            'time() - watchdog_task_rescue_timestamp_seconds{instance=~"$instance"}',
            "{{instance}} {{task}}",
        ),
    ),
    "GPUs": (
        (
            "Memory",
            "percentunit",
            (
                'watchdog_gpu_memory_used_bytes{instance=~"$instance"}'
                ' / watchdog_gpu_memory_total_bytes{instance=~"$instance"}'
            ),
            "{{instance}} {{gpu}} {{name}}",
        ),
        (
            "Temperature",
            "celsius",
            'watchdog_gpu_temperature_celsius{instance=~"$instance"}',
            "{{instance}} {{gpu}} {{name}}",
        ),
        (
            "Power",
            "watt",
            'watchdog_gpu_power_watts{instance=~"$instance"}',
            "{{instance}} {{gpu}} {{name}}",
        ),
    ),
    "What happened": (
        (
            "Saves, pauses and notifications",
            "none",
            'increase(watchdog_actions_total{instance=~"$instance"}[$__rate_interval]) > 0',
            "{{instance}} {{action}} {{result}}",
        ),
        (
            "Deaths by cause",
            "none",
            'increase(watchdog_deaths_total{instance=~"$instance"}[$__rate_interval]) > 0',
            "{{instance}} {{cause}}",
        ),
    ),
}


def build() -> str:
    """The dashboard as JSON text."""
    newest = ReduceDataOptions().calcs(["lastNotNull"])
    source = DataSourceRef(type_val="prometheus", uid="${datasource}")
    board = (
        Dashboard("watchdog")
        .uid("watchdog")
        .tags(["machine learning", "memory"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .label("Machine")
            .datasource(source)
            .query("label_values(watchdog_level, instance)")
            .multi(True)
            .include_all(True)
        )
    )
    for row, panels in PANELS.items():
        board = board.with_row(Row(row))
        for title, unit, query, legend in panels:
            panel = Stat().reduce_options(newest) if row == "Now" else TimeSeries()
            target = Dataquery().ref_id("A").expr(query).legend_format(legend or "__auto")
            board = board.with_panel(
                panel.title(title)
                .unit(unit)
                .datasource(source)
                .span(24 // len(panels))
                .height(4 if row == "Now" else 8)
                .with_target(target)
            )
    return JSONEncoder(sort_keys=True, indent=2).encode(board.build()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(build())
