"""A Keras fit in several processes is not saved and not changed; it says so."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "fit_workers.py"
PATIENCE_S = 180.0


def two_free_ports() -> int:
    """The first of two ports in a row that nobody listens at."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return int(port)


@pytest.mark.tensorflow
def test_a_fit_in_two_processes_says_that_it_is_not_saved_and_trains_to_its_end(tmp_path):
    """Reading a metric in one process would wait for the other one, or end both."""
    pytest.importorskip("tf_keras")
    port = two_free_ports()
    words = [sys.executable, str(PROGRAM)]
    processes = [
        subprocess.Popen(
            [*words, str(rank), str(port), str(tmp_path / "rescues")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]

    try:
        ended = [each.communicate(timeout=PATIENCE_S) for each in processes]
    finally:
        for each in processes:
            each.kill()

    why = "This training runs in 2 processes (MultiWorkerMirroredStrategy)"
    for printed, errors in ended:
        assert "epochs 2" in printed, errors
        assert f"loop: {why}" in printed
        assert f"watchdog: {why}" in errors
    assert not list((tmp_path / "rescues").glob("rescue-*"))
