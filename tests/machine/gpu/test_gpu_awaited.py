"""The modules that read cards are loaded only when there is a driver."""

from __future__ import annotations

import sys
from pathlib import Path

from support.finished import finished

from watchdog_app.machine.gpu import Gpus
from watchdog_app.machine.gpu.backend import GpuSample


def test_a_driver_that_is_installed_later_is_noticed_within_a_minute(tmp_path: Path, monkeypatch):
    """Its library shows it."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    root = tmp_path / "root"
    cards = Gpus(str(root))
    try:
        assert GpuSample() == cards.read(1000.0)
        library = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"")
        cards.read(1001.0)
        assert {} == cards.monitors

        cards.read(1060.0)

        assert ["nvml"] == list(cards.monitors)
    finally:
        cards.close()


def test_without_a_driver_nothing_that_reads_cards_is_loaded(tmp_path: Path):
    """The same holds for temperature sensors on a machine without any."""
    program = (
        "import sys\n"
        "from watchdog_app.machine.sensors.devices import HardwareWatch\n"
        "from watchdog_app.machine.gpu import Gpus\n"
        f"watch = HardwareWatch({str(tmp_path)!r}, Gpus({str(tmp_path)!r}))\n"
        "assert () == watch.read(1.0).gpus\n"
        "watch.close()\n"
        "print(*(name for name in sys.modules if name.startswith('watchdog_app.')))\n"
    )

    done = finished([sys.executable, "-c", program], check=True, env={"LD_LIBRARY_PATH": ""})

    loaded = {name.rpartition(".")[2] for name in done.stdout.split()}
    assert "nvml_driver" in loaded
    assert not loaded & {"monitor", "reader_process", "thermal", "heat_sources", "batteries"}
