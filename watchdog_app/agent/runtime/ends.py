"""
Save running trainings when a signal announces the end of the process, then let the signal act.

The signals are SIGTERM, SIGHUP and those that the user asks for. A handler is installed only where
the program has none, and only while a training runs. It is that of Python's `faulthandler`: C code
that writes to a pipe, so it needs neither the main thread nor the GIL. For `signal.getsignal` the
program still has no handler. If the program sets one later, it replaces ours. `set_wakeup_fd` is
not used, so it stays free for asyncio.

A thread reads the pipe. It asks each training to save at its next step boundary, which happens in
the training's own thread. Then it restores the default action and raises the signal again. It
waits `grace_s` at most, also for a main thread that is in C code. While C code holds the GIL, the
thread cannot run and the signal waits.

Where the environment announces the time of the end, another thread asks for a save before it.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from watchdog_app.agent.contain import Guard, print_message
from watchdog_app.agent.runtime.link import CheckpointRequest, End, Link
from watchdog_app.agent.wrapping import Wrapped
from watchdog_app.base import signals, time_limit
from watchdog_app.base.linux import process
from watchdog_app.base.linux.files import read_or_empty
from watchdog_app.base.text.plain import few_names
from watchdog_app.rescue.identity.notebook import ipython_shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.rescue.checkpoint.store import SavedRescue

SAVE_ON = "WATCHDOG_AGENT_SAVE_ON"  # same name as in `cli.exec`
_GRACE_S = 4.0  # default of the setting
_ALWAYS = ("TERM", "HUP")
_POLL_S = 0.01
_CLOSES_S = 0.3  # Jupyter interrupts a kernel (SIGINT) so long before its shutdown, or less
_SHUTDOWN_S = 2.0  # Jupyter sends SIGTERM after 2.5 s and SIGKILL after 5 s
_SEND_S = 0.3  # for the report to the daemon
_SURVIVED_S = 0.2  # a process that lives so long after its signal continues
_TIME_LEFT_S = 2.0  # before the end of its time, besides two saves and steps
_UNKNOWN_S = 1.0  # assumed for a step or save that was not measured

_guard = Guard("saving at an announced end")


class _Ends:
    """The signals that this process is saved at."""

    def __init__(self) -> None:
        self.links: weakref.WeakSet[Link] = weakref.WeakSet()  # of running trainings
        self.pipes: dict[int, tuple[int, int]] = {}  # by signal: read and write end
        self.lock = threading.Lock()  # held while an end is handled
        self.pending: int | None = None  # the signal that is being handled
        self.kernel_hook = Wrapped()
        self.closing = threading.Event()  # ipykernel shuts down
        self.saved = threading.Event()  # no signal is being handled
        self.saved.set()

    def take(self, number: int) -> None:
        """Install our handler for a signal, unless the program handles, ignores or blocks it."""
        masks = [] if number == signal.SIGINT else ["SigIgn", "SigBlk", "SigCgt"]
        if number == signal.SIGTERM and any(each.ignores_sigterm for each in list(self.links)):
            masks.remove("SigCgt")  # the framework's handler gets the signal after the save
        if not _is_default(number) or process.own_signal_masks(*masks) >> (number - 1) & 1:
            return  # handled, also by C code, blocked in the main thread, or ours already
        if number in self.pipes:
            faulthandler.unregister(number)  # other code has set SIG_DFL since
        else:
            self.pipes[number] = pipe = os.pipe()
            os.set_blocking(pipe[1], False)
            _thread.start_new_thread(self._watch, (number, pipe[0]))
        # Without `all_threads` it writes nothing in a thread of a C library. The kernel chooses one
        # while the main thread has another signal to handle: a logout sends SIGTERM and SIGHUP.
        faulthandler.register(number, file=self.pipes[number][1], all_threads=True)

    def give_back(self, number: int) -> None:
        """Restore the default action, unless the program has set a handler since."""
        if _is_default(number):
            faulthandler.unregister(number)

    def release(self) -> None:
        """Let signals act as if the agent was not there: no training runs."""
        self.kernel_hook.unwrap()
        for number in self.pipes:
            self.give_back(number)

    def after_saves(self, before: Callable[[bool], Any]) -> Callable[[bool], Any]:
        """A method `do_shutdown` of ipykernel that waits until the trainings are saved."""

        async def do_shutdown(restart: bool) -> Any:
            import asyncio  # ipykernel has imported it

            self.closing.set()
            await asyncio.to_thread(self.saved.wait, _SHUTDOWN_S)
            result = before(restart)
            return await result if hasattr(result, "__await__") else result

        return do_shutdown

    def _watch(self, number: int, fd: int) -> None:
        signals.block_in_thread()
        while os.read(fd, 65536):
            with self.lock:
                self.pending = number
                self.saved.clear()
                ends: list[tuple[Link, End]] = []
                try:
                    with _guard:
                        # A user's interrupt is passed on; one before a shutdown waits for a save.
                        # Workers got it too: without them the training would fail meanwhile.
                        alone = not read_or_empty(f"/proc/self/task/{os.getpid()}/children")
                        if number != signal.SIGINT or (alone and self.closing.wait(_CLOSES_S)):
                            ends = self._ask(signal.Signals(number).name)
                            _wait_for_saves(ends)
                            _report_saves(ends)
                finally:
                    self._deliver(number)
                    self.pending = None
                    self.saved.set()
                    for _, end in ends:
                        end.over = True
                with _guard:
                    if not self.links:  # it has ended meanwhile
                        self.release()

    def _ask(self, name: str) -> list[tuple[Link, End]]:
        """Ask each training that has made a step to save at its next boundary."""
        asked = [(link, End(name)) for link in list(self.links)]
        return [(link, end) for link, end in asked if _ask_to_save(link, end)]

    def _deliver(self, number: int) -> None:
        """Let the signal do what it would have done; returns if the process survives it."""
        self.give_back(number)
        os.kill(os.getpid(), number)
        # It survives if it is PID 1 of a container, or if the program blocks or handles the signal
        # by now.
        time.sleep(_SURVIVED_S)
        with _guard:
            _drop_rest(self.pipes[number][0])
            if self.links:
                self.take(number)


def _drop_rest(fd: int) -> None:
    """Drop what the handler wrote of the same signal after the first part was read."""
    os.set_blocking(fd, False)
    with suppress(BlockingIOError):
        while os.read(fd, 65536):
            pass
    os.set_blocking(fd, True)


def _ask_to_save(link: Link, end: End) -> bool:
    """Ask a training to save at its next boundary; False: it has nothing to lose."""
    if link.step is None or (link.loop_has_ended is not None and link.loop_has_ended()):
        return False
    link.pending_request = CheckpointRequest(
        None, f"the program ends: {end.name}", time.monotonic(), end=end
    )
    return True


def _watch_clock(training: weakref.ref[Link], end_unix_s: float) -> None:
    """Ask a training twice to save before its time is over, with room for two saves."""
    signals.block_in_thread()
    name = time.strftime("time limit at %H:%M:%S", time.localtime(end_unix_s))
    with _guard:
        for times in (2.0, 1.0):
            while (link := training()) is not None and link in _ends.links:
                costs = (link.fields.get("save_s"), link.fields.get("step_s"))
                cost_s = sum(_UNKNOWN_S if each is None else each for each in costs)
                early_s = end_unix_s - time.time() - times * (_TIME_LEFT_S + 2 * cost_s)
                if early_s <= 0 and link.step is not None:
                    with _ends.lock:
                        _ask_to_save(link, End(name, over=True))
                    break
                del link  # do not keep it alive
                time.sleep(min(max(early_s, _POLL_S), _UNKNOWN_S))


def _is_default(number: int) -> bool:
    """Whether the program has no handler: for SIGINT, none but Python's own."""
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return signal.getsignal(number) is default


def _wait_for_saves(ends: Sequence[tuple[Link, End]]) -> None:
    """Wait until each training has saved or ended, at most `grace_s`."""
    latest = time.monotonic() + min((grace_s(link) for link, _ in ends), default=0.0)
    while time.monotonic() < latest and any(map(_is_awaited, ends)):
        time.sleep(_POLL_S)


def _report_saves(ends: Sequence[tuple[Link, End]]) -> None:
    """Say of each training whose time is over that it was not saved; wait for the daemon."""
    for link, end in filter(_is_awaited, ends):
        why = "the save was not complete" if end.begun else "no step ended"
        text = f"{end.name}: not saved: {why} within {grace_s(link):g} s (agent.grace_s)"
        if not end.begun and link.loop_has_ended is None:  # only the program knows its end
            text += "; if its loop has ended, call rescue.finish() there"
        link.failed(None, text, None)
        print_message(text)
    latest = time.monotonic() + _SEND_S
    while time.monotonic() < latest and any(link.is_sending for link, _ in ends):
        time.sleep(_POLL_S)


def _is_awaited(ended: tuple[Link, End]) -> bool:
    link, end = ended
    if end.answered or link not in _ends.links:
        return False
    request = link.pending_request
    return end.begun or (request is not None and request.end is end)


_ends = _Ends()
_at_fork = threading.local()
_registered = False


def begin(link: Link, save_on: Sequence[int]) -> None:
    """
    Save a training at an announced end from now on. Never raises.

    Args:
        link: of the training.
        save_on: signals to save at, besides SIGTERM and SIGHUP.
    """
    global _registered
    if not hasattr(faulthandler, "register"):  # Windows
        return
    with _guard:
        if not _registered:
            _registered = True
            atexit.register(_end_by_signal)
            os.register_at_fork(
                before=_before_fork,
                after_in_parent=_unblock,
                after_in_child=_undo_in_child,
            )
        _ends.links.add(link)
        end_unix_s = time_limit.end_unix_s(os.environ)
        if end_unix_s is not None and end_unix_s > time.time():
            _thread.start_new_thread(_watch_clock, (weakref.ref(link), end_unix_s))
        wanted = {*signals.parse(_ALWAYS), *save_on}
        with suppress(ValueError):  # of another program
            wanted.update(signals.parse(os.environ.get(SAVE_ON, "").split()))
        if kernel() is not None:
            wanted.add(signal.SIGINT)
            if not _ends.kernel_hook.is_on:
                _ends.kernel_hook.wrap(kernel(), "do_shutdown", _ends.after_saves)
        for number in sorted(wanted):
            _ends.take(number)


def give_back_blocked() -> None:
    """
    Give back the signals that the calling thread blocks now.

    The kernel would deliver them to a thread without Python, where faulthandler writes nothing.
    """
    if _ends.pipes:  # stays empty on Windows
        for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()) & _ends.pipes.keys():
            _ends.give_back(number)


def end(link: Link) -> None:
    """The training has ended. Without another one, signals act as if the agent was not there."""
    if link not in _ends.links:
        return
    _ends.links.discard(link)
    if not _ends.links and _ends.pending is None:
        _ends.release()


def answer(end: End, link: Link, saved: SavedRescue | None) -> None:
    """
    Report the save of a training, and hold the training until the signal ends the process.

    A thread in which another training still has to save is not held.
    """
    place = "not saved" if saved is None else f"saved at step {saved.step} in {saved.path}"
    resumes = link.registration["resumes_itself"] and kernel() is None
    how = "Run it again to resume." if resumes else "The next run prints how to resume, or why not."
    if saved is None:
        how = "The reason is above."
    if end.over:
        how = "It continues until then."
    elif end.name == "SIGTERM" and link.ignores_sigterm:
        how = "Its framework ignores the signal, so it continues until it is killed."
    if os.getpid() == 1:
        how = "As PID 1 of a container it continues until it is killed."
    if saved is not None and saved.missing and not link.registration["resumes_itself"]:
        how += f" A resume will not bring back: {'; '.join(map(few_names, saved.missing))}."
    print_message(f"{end.name}: {place}. {how}")
    end.answered = True
    latest = time.monotonic() + grace_s(link) + _SEND_S + _SURVIVED_S
    waits = [
        each
        for each in list(_ends.links)
        if each.training_thread_id == link.training_thread_id
        and (request := each.pending_request) is not None
        and request.end is not None
    ]
    while not waits and not end.over and time.monotonic() < latest:
        time.sleep(_POLL_S)


def kernel() -> Any:
    """The kernel that this process is, whose end is the user's wish; None: it is none."""
    return getattr(ipython_shell(), "kernel", None)


def grace_s(link: Link) -> float:
    """The longest delay of a signal, seconds: the environment, the daemon's setting or 4."""
    return signals.grace_s(_GRACE_S if link.grace_s is None else link.grace_s)


def _end_by_signal() -> None:
    """At the exit of a program: it ends by the signal that has come, or by one that comes now."""
    number = _ends.pending
    _ends.links.clear()
    for each in _ends.pipes:  # soon the thread that reads them cannot run any more
        if each != number:
            _ends.give_back(each)
    if number is not None and number != signal.SIGINT:
        _ends.give_back(number)
        os.kill(os.getpid(), number)


def _before_fork() -> None:
    """Block our signals until the child has the default actions: it shares our pipes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ends.pipes)
    _at_fork.blocked = _ends.pipes.keys() - before


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _at_fork.blocked)


def _undo_in_child() -> None:
    global _ends
    parents, _ends = _ends, _Ends()
    for number, pipe in parents.pipes.items():
        parents.give_back(number)
        for fd in pipe:
            os.close(fd)
    _unblock()
