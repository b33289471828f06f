"""A program with the agent ends, whenever Python deletes its optimizers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.finished import finished

pytestmark = pytest.mark.torch
PROGRAM = """
from watchdog_app.agent import hook
hook.switch_on()
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
optimizer.itself = optimizer  # a cycle, which Python deletes after the last thread has ended
"""


def test_a_short_training_whose_optimizer_is_deleted_at_the_very_end_does_not_hang(tmp_path: Path):
    """Before Python 3.12 a thread that starts so late never runs, and its starter waits for it."""
    (tmp_path / "train.py").write_text(PROGRAM)

    done = finished([sys.executable, "train.py"], cwd=tmp_path, timeout=90)

    assert 0 == done.returncode, done.stderr
