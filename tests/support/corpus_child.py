"""
Run one program of `tests/programs` unmodified: to its end, or up to a save and a kill.

    python -c DRIVER PROGRAM ROLE ASK KILL

An event is a loss that is differentiated (PyTorch), or an eager call of a `tf.function` or a tape
(TensorFlow). The roles:

- `plain`: writes the number of events to `events.txt`, and to `cpu.txt` the processor seconds
  after a quarter of ASK events;
- `asked`: with the agent; a rescue is requested at event ASK, and a kill follows at event KILL;
- `leaks`: under `watchdog exec --limit`, which loads the agent; takes memory from event ASK on,
  and writes the steps that are complete to `steps.txt`;
- `again`: with the agent, to the end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SLOW_EVENTS = 14  # the agent does not watch a training that ends at once
_SLEEP_S = 0.05
# More than any limit of `corpus`, in the second half of a program; an iteration may have several
# events, and the reserve of a guard is 256 MiB.
_LEAK_BYTES, _MOST_LEAK_BYTES = 2 << 30, 96 << 20
_TESTS = str(Path(__file__).resolve().parents[1])
DRIVER = f"import sys; sys.path.insert(1, {_TESTS!r}); import support.corpus_child as c; c.main()"


class Events:
    """Counts events, and acts at some of them."""

    def __init__(self, role: str, ask: int, kill: int) -> None:
        self.count = 0
        self._role, self._ask, self._kill = role, ask, kill
        self._held: list[object] = []
        self.cpu_s = 0.0  # at a quarter of the events

    def happen(self) -> None:
        """Handle one event, before it happens."""
        self.count += 1
        if self._role in ("asked", "leaks") and self.count <= _SLOW_EVENTS:
            time.sleep(_SLEEP_S)
        if self.count == self._ask // 4:
            self.cpu_s = time.process_time()
        if self._role == "asked":
            if self.count == self._ask:
                self._request()
            if self.count == self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
        if self._role == "leaks" and self.count >= self._ask:
            from watchdog_app.agent.runtime import link

            done = max((each.step or 0 for each in list(link._open_links)), default=0)
            Path("steps.txt").write_text(str(done))
            self._held.append(bytearray(b"x") * min(_LEAK_BYTES // self._ask, _MOST_LEAK_BYTES))

    def _request(self) -> None:
        from watchdog_app.agent.runtime import link

        request = link.CheckpointRequest(1, "a test", time.monotonic())
        for each in list(link._open_links):
            each.pending_request = request


def _counted(happen: Callable[[], None], before: Callable[..., object], when: Callable[[], bool]):
    def call(*args: object, **kwargs: object) -> object:
        if when():
            happen()
        return before(*args, **kwargs)

    # The agent must not take this function for one of the program.
    call.__code__ = call.__code__.replace(co_filename=os.__file__)
    return call


def _watch(events: Events, framework: str) -> None:
    """Count the events of a framework, which is imported for it."""
    if framework == "torch":
        import torch

        torch.Tensor.backward = _counted(events.happen, torch.Tensor.backward, lambda: True)
        return
    import tensorflow as tf
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    for kind, name in ((Function, "__call__"), (tf.GradientTape, "__enter__")):
        setattr(kind, name, _counted(events.happen, getattr(kind, name), tf.executing_eagerly))


def main() -> None:
    """Run the program as `__main__`, with the role that `sys.argv` names."""
    program, role, ask, kill = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sys.argv[:] = [program]
    sys.orig_argv[:] = [sys.executable, program]
    framework = "torch" if Path(program).stem.startswith("torch") else "tensorflow"
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
    else:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.experimental.enable_op_determinism()
    if role in ("asked", "again"):
        from watchdog_app.agent import hook

        hook.switch_on()
    events = Events(role, ask, kill)
    _watch(events, framework)
    module = sys.modules["__main__"]
    module.__file__ = program
    sys.path[0] = os.path.dirname(program)
    exec(compile(Path(program).read_text(), program, "exec", dont_inherit=True), module.__dict__)
    Path("events.txt").write_text(str(events.count))
    Path("cpu.txt").write_text(str(time.process_time() - events.cpu_s))
