"""A notebook of PyTorch cells: one training fails, one finishes, and one continues."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

SETUP = """
from watchdog_app.agent import hook
hook.switch_on()
import time, torch
from watchdog_app.agent.found.torch_signals import trainings
from watchdog_app.agent.runtime.link import CheckpointRequest
"""
MODEL = """
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
CELL = """
for count in range(12):
    if count == 2:
        time.sleep(0.55)
    if count == 8:
        session = trainings.current().session
        session.link.pending_request = CheckpointRequest(1, "a test", time.monotonic())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    if count == 10 and fails:
        raise RuntimeError("out of luck")
"""

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.run_cell(SETUP)
    for model, fails in ((MODEL, True), (MODEL, False), ("", False)):
        shell.user_ns["fails"] = fails
        shell.run_cell(model + CELL)
        print(fails, len(shell.user_ns["trainings"].active()))
