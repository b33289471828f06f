"""
The agent's connection to the daemon, kept by a background thread.

The training thread reads one attribute, `Link.pending_request`, and puts messages into a bounded
queue. The background thread connects, sends, waits and retries. Without a daemon it sleeps and
retries, at least every ten seconds.
"""

from __future__ import annotations

import _thread
import atexit
import operator
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from watchdog_app.agent.contain import Guard
from watchdog_app.agent.runtime import crash_report, kernel_cells
from watchdog_app.agent.telemetry import diagnose, stacks
from watchdog_app.base import signals
from watchdog_app.base.errors import RequestError, WatchdogError
from watchdog_app.client.client import Client
from watchdog_app.rescue.checkpoint import run_lock
from watchdog_app.rescue.checkpoint.owner import this_process
from watchdog_app.rescue.identity.program_key import cell_checksum, rank_and_world_size

_CLOSE_WAIT_S = 1.0


class Link:
    """
    One training's connection to the daemon. Every method returns at once and raises no error.

    `pending_request` is the request that waits for the next step boundary, or None. It is a plain
    attribute, so reading it costs a training nothing.
    """

    def __init__(
        self,
        framework: str,
        directory: str,
        notebook: str | None = None,
        socket_path: str | None = None,
        *,
        by_lines: bool = False,
    ) -> None:
        """
        Create a link; it does nothing before `start`.

        Args:
            framework: "keras", "tensorflow", ...
            directory: folder for rescues, an absolute path.
            notebook: path of the notebook, if known.
            socket_path: socket of the daemon; None: that of this user's daemon.
            by_lines: the program needs added lines of code to resume from a rescue.
        """
        self.pending_request: CheckpointRequest | None = None
        self.step: int | None = None  # completed steps; sent with the next report
        # Whether the program has left its loop; for loops that do not report their own end.
        self.loop_has_ended: Callable[[], bool] | None = None
        self.segments_socket: str | None = None  # where the daemon takes segments; None: nowhere
        self.ignores_sigterm = False  # the framework catches it, and the training continues
        self.grace_s: float | None = None  # the daemon's setting `agent.grace_s`
        # The background thread reads these. `fields` is replaced as a whole, never changed in
        # place.
        rank, world_size = rank_and_world_size()
        self.registration: dict[str, Any] = {
            "framework": framework,
            "directory": directory,
            "notebook": notebook,
            "resumes_itself": not by_lines,
            "rank": rank,
            "world_size": world_size,
            "cell": cell_checksum(),
        }
        self.fields: dict[str, Any] = {}
        self.last_saved: dict[str, Any] | None = None
        self.training_thread_id: int | None = None  # `get_ident()` of the training thread
        self._socket_path = socket_path
        self._thread: LinkThread | None = None

    @property
    def connected(self) -> bool:
        """Whether the daemon has registered this training and is connected."""
        return self._thread is not None and self._thread.connected

    @property
    def is_sending(self) -> bool:
        """Whether messages wait to be sent to a connected daemon."""
        return self._thread is not None and self._thread.is_sending

    def start(self) -> None:
        """Start the background thread, unless it runs. A forked child may call this again."""
        if self._thread is not None:
            return
        line = LinkThread(self, self._socket_path)
        try:
            line.start()
        except RuntimeError:  # no more threads can be started, or the interpreter is exiting
            return
        self._thread = line
        _open_links.add(self)
        weakref.finalize(self, line.stop).atexit = False
        _register_exit_handlers()

    def report(self, **fields: Any) -> None:
        """Store fields of `agent.report`; the thread sends the newest ones once a second."""
        self.fields = {**self.fields, **fields}
        self.training_thread_id = _thread.get_ident()

    def report_soon(self, **fields: Any) -> None:
        """Like `report`, but sent within a quarter of a second: a new phase, announced growth."""
        self.report(**fields)
        if self._thread is not None:
            self._thread.send_soon()

    def accepted(self, request: str | int) -> None:
        """Report that the save for `request` starts."""
        self._post("agent.progress", request=request)

    def saved(
        self,
        request: str | int | None,
        path: str,
        step: int,
        bytes_: int,
        seconds: float,
        **extra: Any,
    ) -> None:
        """Report a complete rescue; `request` is None if the daemon did not ask for it."""
        told = {"path": path, "step": step, "bytes": bytes_, "seconds": seconds, **extra}
        told["saved_unix_s"] = time.time()
        self.last_saved = told
        self._post("agent.saved", request=request, rescue=told)

    def restored_from(self, path: str, step: int, bytes_: int, saved_unix_s: float) -> None:
        """Report the rescue that this training was restored from as its last one."""
        if self.last_saved is None:
            self.last_saved = {
                "path": path,
                "step": step,
                "bytes": bytes_,
                "seconds": 0.0,
                "saved_unix_s": saved_unix_s,
            }

    def failed(self, request: str | int | None, error: str, remedy: str | None) -> None:
        """Report that the save failed; the training continues."""
        self._post("agent.failed", request=request, error=error, remedy=remedy)

    def report_before_close(self) -> None:
        """Send the reported fields, without announced growth, although the training has ended."""
        fields = {k: v for k, v in self.fields.items() if not k.startswith("expected_")}
        self._post("agent.report", **_json_fields(fields))

    def close(
        self, wait_s: float = _CLOSE_WAIT_S, *, finished: bool = True, failed: bool = False
    ) -> None:
        """
        Report the end of the training to the daemon, and end the thread.

        Args:
            wait_s: longest wait for the thread.
            finished: whether the training ended well. If not, it ends with the interpreter, and the
                daemon keeps its record of the training until the process has ended.
            failed: whether an exception ends the training.
        """
        line = self._detach_thread()
        if line is None:
            return
        line.post("agent.bye", {"finished": finished, "failed": failed})
        line.stop()
        if line.connected:
            line.join(wait_s)

    def _post(self, method: str, **params: Any) -> None:
        if self._thread is not None:
            self._thread.post(method, params)

    def _close_in_child(self) -> None:
        """In a forked child: close the parent's connection and send nothing."""
        line = self._detach_thread()
        if line is not None:
            line.close_in_child()

    def _detach_thread(self) -> LinkThread | None:
        line, self._thread = self._thread, None
        self.pending_request = self.segments_socket = None
        return line


def registered_links(framework: str) -> list[Link]:
    """The links of running trainings of this process for which the program made a Rescue."""
    return [
        each
        for each in list(_open_links)
        if each._thread is not None
        and each.registration["framework"] == framework
        and each.registration["resumes_itself"]
    ]


_open_links: weakref.WeakSet[Link] = weakref.WeakSet()
_exit_handlers_registered = False


def _register_exit_handlers() -> None:
    global _exit_handlers_registered
    if _exit_handlers_registered:
        return
    _exit_handlers_registered = True
    crash_report.install()
    atexit.register(_close_all)
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _close_all() -> None:
    failed = crash_report.failed()
    for link in list(_open_links):
        link.close(finished=False, failed=failed)


def _after_fork_in_child() -> None:
    for link in list(_open_links):
        link._close_in_child()


_MOST_WAITING = 100  # messages; the oldest is dropped
_REPORT_EVERY_S = 1.0
_URGENT_REPORT_EVERY_S = 0.25  # drops phases of a hundredth of a second
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 10.0
_ANSWER_S = 5.0
_STALE_S = 3.0  # growth announced longer before the connection has already begun

# Sent to a daemon that starts later; all other messages are dropped at a reconnect.
_SENT_AFTER_RECONNECT = frozenset({"agent.saved", "agent.failed", "agent.bye"})


# These fields contain only JSON values already.
_JSON_FIELDS = frozenset({"allocators", "memory", "not_restored"})

_guard = Guard("the agent's line to the daemon")


class LinkThread:
    """One thread and, while a daemon listens, one connection."""

    def __init__(self, link: Link, socket_path: str | None) -> None:
        # A weak reference: if the program drops the training, its link must be freed and the thread
        # end.
        self._link = weakref.ref(link)
        self._socket_path = socket_path
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=_MOST_WAITING)
        self._client: Client | None = None
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._pipe_lock = threading.Lock()
        self._connected_s = 0.0
        self._sent_fields: Mapping[str, Any] | None = None
        self._last_step: int | None = None
        self._next_report_mono_s = 0.0
        self._send_is_urgent = False
        self._is_notifying = False
        self._ended_lock = threading.Lock()  # released when the thread has ended
        self._ended_lock.acquire()

    @property
    def connected(self) -> bool:
        """Whether the daemon has registered the training."""
        return self._client is not None

    @property
    def is_sending(self) -> bool:
        """Whether messages wait to be sent to a connected daemon."""
        return self.connected and (bool(self._waiting) or self._is_notifying)

    def start(self) -> None:
        """
        Start the thread.

        Raises:
            RuntimeError: the thread cannot be started.
        """
        try:
            # Not threading.Thread: Ctrl-C during its start becomes a RuntimeError (Python 3.11).
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            self._close_pipe()
            raise

    def post(self, method: str, params: Mapping[str, Any]) -> None:
        """Queue a message; never waits."""
        self._waiting.append((method, params))
        self._wake()

    def send_soon(self) -> None:
        """Send `fields` within a quarter of a second."""
        if not self._send_is_urgent:
            self._send_is_urgent = True
            self._wake()

    def stop(self) -> None:
        """End the thread after it has sent the queue, if it can send the queue at once."""
        self._stopping = True
        self._wake()

    def join(self, wait_s: float) -> None:
        """Wait for the end of the thread, at most `wait_s`."""
        self._ended_lock.acquire(timeout=wait_s)

    def close_in_child(self) -> None:
        """In a forked child: close our copies of the parent's files and send nothing."""
        self._stopping = True
        self._disconnect()
        self._pipe_lock = threading.Lock()  # another thread may have held it at the fork
        self._close_pipe()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        signals.block_in_thread()
        try:
            while not self._stopping:
                try:
                    self._connect()
                    retry_s = _FIRST_RETRY_S
                    self._serve()
                except RequestError as error:  # it will refuse again: tell the user
                    _guard.print_once(f"the daemon does not take this training: {error}")
                except (WatchdogError, OSError):
                    pass  # no daemon, an ended daemon, or a wrong answer: retry later
                except Exception as error:
                    _guard.caught(error)
                finally:
                    self._disconnect()
                if not self._stopping:
                    self._sleep(retry_s)
                    retry_s = min(2 * retry_s, _LAST_RETRY_S)
        finally:
            self._close_pipe()
            self._ended_lock.release()

    def _connect(self) -> None:
        client = Client.connect(self._socket_path, role="agent", timeout_s=_ANSWER_S)
        try:
            me = this_process()
            link = self._get_link()
            # `rescue`: a daemon that started later learns of a rescue that it did not see.
            answer = client.call(
                "agent.register",
                pid=me.pid,
                start_time=me.start_time,
                rescue=link.last_saved,
                **link.registration,
            )
            link.segments_socket = answer.get("segments")
            link.grace_s = answer.get("grace_s")
        except BaseException:
            client.close()
            raise
        for _ in range(len(self._waiting)):  # one by one: other threads may be posting
            message = self._waiting.popleft()
            if message[0] in _SENT_AFTER_RECONNECT:
                self._waiting.append(message)
        self._client = client
        self._connected_s = time.monotonic()
        self._sent_fields = None

    def _serve(self) -> None:
        client = self._client
        assert client is not None  # noqa: S101 - _connect() made it
        self._next_report_mono_s = 0.0
        self._receive_messages(client)  # messages that arrived with the answer to the registration
        while True:
            self._send_waiting(client)
            if self._stopping:
                return
            self._refuse_after_end(self._get_link())
            self._send_report(client, self._get_link())
            if self._wait(_URGENT_REPORT_EVERY_S if self._send_is_urgent else _REPORT_EVERY_S):
                self._receive_messages(client)

    def _get_link(self) -> Link:
        """
        The link, kept alive while the caller uses it.

        Raises:
            WatchdogError: the program has dropped the link.
        """
        link = self._link()
        if link is None:
            raise WatchdogError("The training was given up.")
        return link

    def _send_report(self, client: Client, link: Link) -> None:
        """Send the fields if they are due."""
        now = time.monotonic()
        due = self._next_report_mono_s
        if self._send_is_urgent:
            due -= _REPORT_EVERY_S - _URGENT_REPORT_EVERY_S
            if now >= due:
                # clear it before reading the fields: later fields set it again
                self._send_is_urgent = False
        fields: Mapping[str, Any] = link.fields
        if link.loop_has_ended is not None and fields.get("training") and link.loop_has_ended():
            # no more steps follow: the daemon must not report a stall
            fields = {**fields, "training": False}
        fields = self._with_current_step(fields, link)
        if fields is self._sent_fields or now < due:
            return
        if fields and fields != self._sent_fields:
            report = _json_fields(self._without_stale_announcement(fields))
            report["place"] = stacks.current_line(link.training_thread_id)
            client.notify("agent.report", **report)
            self._next_report_mono_s = now + _REPORT_EVERY_S
        self._sent_fields = fields

    def _refuse_after_end(self, link: Link) -> None:
        """Answer a request that no step boundary will answer, because the loop has ended."""
        request = link.pending_request
        if request is None or link.loop_has_ended is None or not link.loop_has_ended():
            return
        link.pending_request = None
        link.failed(request.id, "The training has ended.", None)

    def _without_stale_announcement(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields without a stale announcement: its growth began before the daemon connected."""
        announced_s = fields.get("expected_mono_s")
        stale = announced_s is not None and self._connected_s - announced_s > _STALE_S
        return {
            key: value
            for key, value in fields.items()
            if key != "expected_mono_s" and not (stale and key.startswith("expected_"))
        }

    def _send_waiting(self, client: Client) -> None:
        while self._waiting:
            self._is_notifying = True
            message = self._waiting.popleft()
            method, params = message
            try:
                client.notify(method, **params)
            except BaseException:
                self._waiting.appendleft(message)
                raise
            if method == "agent.bye":
                self._stopping = True  # send nothing after it, even if `stop` is called late
        self._is_notifying = False

    def _receive_messages(self, client: Client) -> None:
        for message in client.notifications(0):
            if message.get("method") == "agent.checkpoint":
                request = CheckpointRequest.read(message.get("params"), time.monotonic())
                link = self._get_link()
                before = link.pending_request
                if request is not None and (before is None or before.end is None):
                    link.pending_request = request
                continue
            if message.get("method") == "agent.notification":
                with _guard:
                    kernel_cells.show_notification(message.get("params"))
                continue
            with _guard:
                diagnose.handle_message(
                    message, self.post, self._get_link().training_thread_id, self._current_step
                )

    def _with_current_step(self, fields: Mapping[str, Any], link: Link) -> Mapping[str, Any]:
        # A training reports its fields once a second but sets its step at each step. If it stops
        # between two reports, the daemon still gets the step at which it stopped.
        step = _current_step_of_link(link)
        seen, self._last_step = self._last_step, step
        if step is None or step != seen or step == fields.get("step"):
            return fields
        return {**fields, "step": step, "batch": None}

    def _current_step(self) -> int | None:
        link = self._link()
        return None if link is None else _current_step_of_link(link)

    def _wait(self, seconds: float) -> bool:
        """Sleep until something arrives; True if the daemon sent it."""
        run_lock.heartbeat()
        # poll(2), not select(2): a training may have more than 1024 files open.
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        client = self._client
        if client is not None:
            poll.register(client.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poll.poll(seconds * 1000)}
        if self._wake_read in ready:
            ready.discard(self._wake_read)
            os.read(self._wake_read, 4096)
        return bool(ready)

    def _sleep(self, seconds: float) -> None:
        """Sleep; only `stop` ends it early."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            self._wait(left)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
            with _guard:
                kernel_cells.show_notification({})  # without a daemon it would stay

    def _wake(self) -> None:
        # Under a lock: after the pipe is closed, another file may get its number.
        with self._pipe_lock:
            if self._wake_write >= 0:
                try:
                    os.write(self._wake_write, b"x")
                except BlockingIOError:  # the pipe is full: the thread wakes anyway
                    pass

    def _close_pipe(self) -> None:
        with self._pipe_lock:
            for fd in (self._wake_read, self._wake_write):
                if fd >= 0:
                    os.close(fd)
            self._wake_read = self._wake_write = -1


def _current_step_of_link(link: Link) -> int | None:
    step = link.fields.get("step") if link.step is None else link.step
    return step if isinstance(step, int) else None


def _json_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON values: scalars become numbers; other objects are left out."""
    found: dict[str, Any] = {}
    for key, value in fields.items():
        if value is None or isinstance(value, bool | int | float | str) or key in _JSON_FIELDS:
            found[key] = value
            continue
        # NumPy's integers and tensors are not Python numbers
        for number in (operator.index, float):
            try:
                found[key] = number(value)
            except (TypeError, ValueError):
                continue
            break
    return found


@dataclass(eq=False, slots=True)
class End:
    """An announced end of the process; the training's thread sets `begun` and `answered`."""

    name: str  # the signal, or the time limit
    begun: bool = False  # a save for it has begun
    answered: bool = False  # the save has ended
    # The training need not wait: the signal was raised again, or the end is that of its time.
    over: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request to save at the next step boundary."""

    id: str | int | None  # returned with every answer; None: not of the daemon
    reason: str  # shown to the user: what is running out
    received_mono_s: float
    # seconds after receipt when the save is too late; None: no deadline
    deadline_s: float | None = None
    end: End | None = None  # the end of the process that it is for

    def expired(self, now_mono_s: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and now_mono_s > self.received_mono_s + self.deadline_s

    @classmethod
    def read(cls, params: Any, now_mono_s: float) -> CheckpointRequest | None:
        """The request in the parameters of `agent.checkpoint`; None if they contain none."""
        if not isinstance(params, dict):
            return None
        id_ = params.get("request")
        if isinstance(id_, bool) or not isinstance(id_, str | int):
            return None
        deadline = params.get("deadline_s")
        if isinstance(deadline, bool) or not isinstance(deadline, int | float):
            deadline = None
        return cls(
            id_,
            str(params.get("reason") or "asked by the watchdog"),
            now_mono_s,
            deadline,
        )
