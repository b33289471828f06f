"""A notebook of two PyTorch cells: the first one's training fails, the second one's ends well."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

SETUP = """
from watchdog_app.agent import hook
hook.switch_on()
import time, torch
from watchdog_app.agent.found import automatic_torch
from watchdog_app.agent.reporting.checkpoint_request import CheckpointRequest
"""
CELL = """
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for count in range(12):
    if count == 2:
        time.sleep(0.55)
    if count == 8:
        session = automatic_torch.of_this_thread().session
        session.link.wanted = CheckpointRequest(1, "a test", time.monotonic())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    if count == 10 and fails:
        raise RuntimeError("out of luck")
"""

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.run_cell(SETUP)
    for fails in (True, False):
        shell.user_ns["fails"] = fails
        shell.run_cell(CELL)
        print(fails, len(shell.user_ns["automatic_torch"].under_way()))
