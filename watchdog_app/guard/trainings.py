"""
Save the trainings in a guard that can be saved.

Slow work runs in children. Each child is a fork with a deadline that writes one line into a pipe.
It imports what the work needs. So the supervisor itself stays small, and bad contents of a segment
cannot kill it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from watchdog_app.base.text.plain import few_names
from watchdog_app.guard.policy import CopyResults
from watchdog_app.guard.record import CopiedRescue
from watchdog_app.rescue.segment.exchange import Offer, Registry
from watchdog_app.rescue.segment.segment import SaveAnswer

Result = dict[str, Any]
Watch = Callable[[int, Callable[[], object]], None]

_IN_STEP = frozenset(("in_step",))
_ASKABLE = frozenset(("none", "damaged", "failed"))
_MOST_TRAININGS = 64
_MOST_BYTES = 16384  # of a result
_COPY_DEADLINE_S = 120.0
_LOOK_DEADLINE_S = 5.0
_POLL_S = 0.01
_LONGEST_TEXT, _MOST_TEXTS = 200, 6


class Trainings:
    """
    The trainings of one guard.

    `copies`: results of the last attempt; `rescues`: the rescues saved so far.
    """

    def __init__(
        self, socket_path: str, watch: Watch, forget: Callable[[int], None], eager: bool = False
    ) -> None:
        """
        Args:
            socket_path: where they hand over their segments.
            watch, forget: of the polling loop.
            eager: nothing refuses memory that cannot fit, so any step may be the last.
        """
        self.copies = CopyResults(0, 0, 0)
        self.rescues: list[CopiedRescue] = []
        self.saved_unix_s: float | None = None
        self.registry = Registry(_MOST_TRAININGS)
        self._socket_path = socket_path
        self._watch = watch
        self._forget = forget
        self._eager = eager
        self._trainings: dict[int, Offer] = {}  # of processes in the guard, by pid
        # (start time, folder of the rescues) of every process that trained, by pid
        self._trained: dict[int, tuple[int, str]] = {}
        self._offers: dict[int, Offer] = {}  # that the present copies are of, by pid
        self._children: list[_Child] = []
        self._results: dict[int, Result] = {}
        self._requests: dict[int, int] = {}  # numbers of open save requests, by pid
        # Each training's last copy, with the sequence of its segment, by pid.
        self._copied: dict[int, tuple[Offer, Result]] = {}

    @property
    def agents(self) -> int:
        """The number of processes that publish their state."""
        return len(self._trainings)

    @property
    def seen(self) -> bool:
        """Whether any process has published its state so far."""
        return bool(self._trained)

    def state_bytes(self) -> int:
        """
        Bytes that a save of all trainings would write, as published; 0: nothing published yet.
        """
        return sum(each.segment.state_bytes for each in self._trainings.values())

    def open(self) -> None:
        """Wait for the trainings to offer their segments."""
        with suppress(OSError):
            fd = self.registry.listen(self._socket_path)
            self._watch(fd, self.registry.receive)

    def update(self, pids: list[int], near: bool, *, waits: bool = True) -> None:
        """
        Find the trainings among these processes, and set how often agents publish.

        Args:
            pids: the processes in the guard.
            near: whether their limit is near.
            waits: whether a copy is wanted, so that every batch counts.
        """
        self.registry.receive()
        self.registry.remove_ended()  # also one whose pid another process in the guard has now
        alive, offers = set(pids), self.registry.offers
        self._trainings = {pid: offers[pid] for pid in offers if pid in alive}
        for pid, each in self._trainings.items():
            self._trained[pid] = each.start_time, each.directory
            each.segment.ask_eagerly(self._eager)
            each.segment.ask_every_batch(near, waits=waits)

    def copy(self, pids: list[int]) -> None:
        """
        Start to copy every training in the guard, which is frozen or stopped.

        A training that was asked to save and has answered since keeps its answer.
        """
        self._drop_children()
        self._collect_answers()
        saved = {pid: self._results[pid] for pid in self._requests if self._is_saved(pid)}
        for pid in self._requests.keys() & self._trainings.keys() - saved.keys():
            self._trainings[pid].segment.cancel_save()
        self._results, self._requests = saved, {}
        self.update(pids, True)
        for pid, training in self._trainings.items():
            if pid not in saved:
                offer, last = self._copied.get(pid, (None, {}))
                self._start_child(pid, partial(_copy, training, last if offer is training else {}))
        self._offers = dict(self._trainings)
        for pid in self._trained.keys() & set(pids) - self._trainings.keys():
            self._start_child(pid, partial(_look, pid, *self._trained[pid]))

    def request_save(self) -> None:
        """
        Ask the trainings that were not copied to save themselves at their next boundary.

        Those in a step too: the boundary may be too short for a copy from outside.
        """
        for pid in [pid for pid in self._results if self._copy_state(pid) in _IN_STEP | _ASKABLE]:
            if pid in self._trainings:
                del self._results[pid]
                self._requests[pid] = self._trainings[pid].segment.request_save()

    def finished(self, now: float) -> CopyResults | None:
        """The results of `copy`; None while it runs."""
        if not self._all_ended(now):
            return None
        states = [self._copy_state(pid) for pid in self._results]
        return self._summarize_results(sum(state in _IN_STEP | _ASKABLE for state in states))

    def all_fresh(self) -> bool:
        """Whether every training has published its current boundary."""
        found = self._trainings.values()
        return bool(found) and all(each.segment.fresh for each in found)

    def at_boundary(self, now: float) -> bool:
        """Whether all copyable trainings are at a boundary, and those asked have answered."""
        if not self._all_ended(now):
            return False
        waiting = [
            each for pid, each in self._trainings.items() if self._copy_state(pid) in _IN_STEP
        ]
        return bool(waiting) and all(each.segment.fresh for each in waiting)

    def all_answered(self, now: float) -> bool:
        """Whether every training that was asked has answered, and none is in a step."""
        if not self._requests or not self._all_ended(now):
            return False
        self._summarize_results(0)
        return not any(self._copy_state(pid) in _IN_STEP for pid in self._results)

    def find_last_saves(self) -> None:
        """Find the newest rescue of each training that has ended unfinished; waits for it."""
        self._drop_children()
        self._requests = {}
        for pid, (start_time, directory) in self._trained.items():
            self._start_child(pid, partial(_look, pid, start_time, directory), _LOOK_DEADLINE_S)
        while not self._all_ended(time.monotonic()):
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the children, and give the segments back."""
        self._drop_children()
        self._trainings = {}
        self.registry.close()

    def _copy_state(self, pid: int) -> str:
        return str(self._results.get(pid, {}).get("state", ""))

    def _is_saved(self, pid: int) -> bool:
        return bool(self._results.get(pid, {}).get("ok"))

    def _collect_answers(self) -> None:
        """Collect the answers of the trainings that were asked to save."""
        for pid, number in self._requests.items():
            training = self._trainings.get(pid)
            if pid in self._results:
                continue
            if training is None:
                self._results[pid] = {"ok": False, "state": "failed", "why": "it has ended"}
                continue
            answer = training.segment.save_answer(number)
            if answer is not None:
                result = _answered_result(training.directory, answer)
                if result["ok"]:  # its rescue says what it lacks
                    self._start_child(pid, partial(_look, pid, *self._trained[pid]))
                self._add_result(pid, result)

    def _add_result(self, pid: int, result: Result) -> None:
        if not result.get("over"):
            self._results[pid] = result
        if result.get("ok"):
            self.saved_unix_s = result.get("saved_unix_s", time.time())
            if "sequence" in result:
                self._copied[pid] = self._offers[pid], result
        about = result if result.get("ok") else result.get("before")
        if about:
            self.rescues = [each for each in self.rescues if each.path != about["path"]]
            named = {name: about[name] for name in ("path", "step", "bytes")}
            at, missing = about.get("saved_unix_s", time.time()), about.get("missing", ())
            self.rescues.append(CopiedRescue(pid, **named, saved_unix_s=at, missing=tuple(missing)))

    def _start_child(
        self, pid: int, work: Callable[[], Result], deadline_s: float = _COPY_DEADLINE_S
    ) -> None:
        try:
            child = _Child(pid, work, deadline_s, self._forget)
        except OSError as error:
            self._results[pid] = {"ok": False, "state": "failed", "why": f"no process: {error}"}
            return
        self._children.append(child)
        self._watch(child.fd, lambda: None)  # only wakes the loop; `has_ended` reads the pipe

    def _all_ended(self, now: float) -> bool:
        for child in [each for each in self._children if each.has_ended(now)]:
            self._children.remove(child)
            self._add_result(child.pid, child.result or {})
        self._collect_answers()
        answered = self._requests.keys() <= self._results.keys()
        return answered and not self._children

    def _summarize_results(self, in_step: int) -> CopyResults:
        failed = [each for each in self._results.values() if not each.get("ok")]
        why = str(failed[0].get("why", ""))[:300] if failed else ""
        total = len(self._results)
        self.copies = CopyResults(total, total - len(failed), in_step, why)
        return self.copies

    def _drop_children(self) -> None:
        for child in self._children:
            child.has_ended(float("inf"))
        self._children = []


class _Child:
    """A running child. `fd` becomes readable when it writes its result or ends."""

    def __init__(
        self,
        pid: int,
        work: Callable[[], Result],
        deadline_s: float,
        forget: Callable[[int], None],
    ) -> None:
        """
        Start the child.

        Args:
            pid: of the training that the work is for.
            work: runs in the child; its return value becomes `result`.
            deadline_s: after it the child is killed.
            forget: called with the descriptor when the child has ended.

        Raises:
            OSError: no process can be started.
        """
        self.pid = pid
        self.result: Result | None = None
        self.fd, write = os.pipe()
        self._end_mono_s = time.monotonic() + deadline_s
        self._forget = forget
        self._output = b""
        os.set_blocking(self.fd, False)
        try:
            self._child = os.fork()
        except OSError:
            os.close(self.fd)
            os.close(write)
            raise
        if self._child == 0:
            _run_child(self.fd, write, work)
        os.close(write)

    def has_ended(self, now: float) -> bool:
        """Whether it has ended or its deadline has passed; `result` is then set."""
        if self.result is not None:
            return True
        if now > self._end_mono_s:
            with suppress(OSError):
                os.kill(self._child, signal.SIGKILL)
            self._finish({"ok": False, "why": "it took too long"})
            return True
        try:
            while more := os.read(self.fd, _MOST_BYTES):
                self._output += more
        except BlockingIOError:
            return False
        except OSError:
            pass
        try:
            found = json.loads(self._output)
        except ValueError:
            found = None
        nothing = {"ok": False, "why": "the copier ended without a word"}
        self._finish(found if isinstance(found, dict) else nothing)
        return True

    def _finish(self, result: Result) -> None:
        self.result = result
        self._forget(self.fd)
        os.close(self.fd)
        with suppress(ChildProcessError):
            os.waitpid(self._child, 0)


def _run_child(read: int, write: int, work: Callable[[], Result]) -> None:
    code = 1
    try:
        os.close(read)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.write(write, json.dumps(work()).encode()[:_MOST_BYTES])
        code = 0
    except BaseException as error:
        with suppress(BaseException):
            os.write(write, json.dumps({"ok": False, "why": repr(error)[:500]}).encode())
    finally:
        os._exit(code)


def _copy(training: Offer, last: Result) -> Result:
    """
    Copy one training that is frozen or stopped, unless that would write its last copy again.

    Args:
        training: the training.
        last: the result of its last copy; empty: none.

    Returns:
        {"ok", "path", "step", "bytes", "missing", "sequence", "saved_unix_s"}, or
        {"ok", "state", "why", "before"}.
    """
    from watchdog_app.guard import copier

    found = copier.check(training)
    state, why = str(found.state), found.why or found.state
    if state == "ready" and last.get("sequence") == found.sequence and os.path.isdir(last["path"]):
        return last
    if state == "ready":
        try:
            saved = copier.copy(training, _COPY_DEADLINE_S * 0.9)
        except copier.CopyError as error:
            state, why = "failed", str(error)
        else:
            about = {"path": saved.path, "step": saved.step, "bytes": saved.bytes}
            lacks = {"missing": _shortened(saved.missing)}
            now = {"sequence": found.sequence, "saved_unix_s": time.time()}
            return {"ok": True, **about, **lacks, **now}
    before = _look(training.pid, training.start_time, training.directory)["before"]
    return {"ok": False, "state": state, "why": why, "before": before}


def _look(pid: int, start_time: int, directory: str) -> Result:
    """
    Find the newest rescue of a process whose agent may have saved it before.

    Returns:
        {"over": True, "before": {"path", "step", "bytes", "saved_unix_s", "missing"} or None}.
    """
    from watchdog_app.base.errors import RescueError
    from watchdog_app.rescue.checkpoint import names
    from watchdog_app.rescue.checkpoint.reader import LoadedRescue

    for name in reversed(names.complete_rescues(directory)):
        path = os.path.join(directory, str(name))
        if not name.owner_text.startswith(f"{pid}.{start_time}.") or names.is_finished(path):
            continue
        with suppress(RescueError), LoadedRescue(path) as loaded:
            about = {"path": path, "step": loaded.step, "bytes": loaded.bytes}
            at, missing = loaded.created_unix_s, loaded.meta.get("not_restored") or ()
            before = {**about, "saved_unix_s": at, "missing": _shortened(missing)}
            return {"over": True, "before": before}
    return {"over": True, "before": None}


def _shortened(missing: Sequence[object]) -> list[str]:
    """The texts that fit into the record of a guard."""
    return [few_names(str(each))[:_LONGEST_TEXT] for each in missing[:_MOST_TEXTS]]


def _answered_result(directory: str, answer: SaveAnswer) -> Result:
    """The answer of an agent as the result of `_copy`; the agent is not trusted."""
    if not answer.saved:
        return {"ok": False, "state": "failed", "why": answer.text or "its agent did not save"}
    if not answer.text or "/" in answer.text:
        return {"ok": False, "state": "failed", "why": "its agent named no rescue of its folder"}
    path = os.path.join(directory, answer.text)
    return {"ok": True, "path": path, "step": answer.step, "bytes": answer.bytes}
