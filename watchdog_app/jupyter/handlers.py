"""The addresses below /watchdog. Threads ask the daemon, which may be slow or gone."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pwd
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, cast

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from watchdog_app.base.errors import DaemonNotRunning, ProtocolError, RequestError, WatchdogError
from watchdog_app.base.text.terminal import plain_block
from watchdog_app.client.client import request
from watchdog_app.core.explain.agent_lines import save_line
from watchdog_app.core.model.actions import ACTIONS
from watchdog_app.core.model.status import Status, Task
from watchdog_app.jupyter import view

T = TypeVar("T")

_ANSWER_S = 3.0  # of the daemon
_SAVE_S = 120.0
_MOST_WAITING = 16  # threads that wait for the daemon
_MOST_KERNELS = 1000  # kernel ids that are remembered after their kernels died
_SETTING = "watchdog"


def add_to(application: web.Application) -> None:
    """
    Add the addresses to a server.

    Args:
        application: the server's `web_app`.
    """
    base = url_path_join(application.settings["base_url"], "watchdog")
    application.settings[_SETTING] = _Shared()
    rows = (("state", _State), ("explain", _Explain), ("death", _Death), ("action", _Act))
    application.add_handlers(".*$", [(url_path_join(base, name), each) for name, each in rows])


class _Shared:
    """What all handlers of a server share."""

    def __init__(self) -> None:
        self.kernels: dict[str, None] = {}  # ids of this server, the latest last
        self._waiting = 0
        self._shared: dict[str, asyncio.Task[Any]] = {}  # requests that several may wait for
        try:
            self.user: str | None = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            self.user = None

    async def status(self) -> Status:
        """The daemon's status; requests at the same time share one answer."""
        return Status.read(await self._share("status", lambda: self._call("status", _ANSWER_S)))

    async def save(self, pid: int | None) -> dict[str, Any]:
        """
        The outcome of a save; requests at the same time share it.

        Args:
            pid: of the task.
        """
        params = {**ACTIONS["save"].params, "task": str(pid), "timeout_s": _SAVE_S}
        method, limit_s = ACTIONS["save"].method, _SAVE_S + _ANSWER_S
        found = await self._share(f"save {pid}", lambda: self.ask(method, limit_s, **params))
        return cast("dict[str, Any]", found)

    async def ask(self, method: str, answer_s: float = _ANSWER_S, **params: Any) -> dict[str, Any]:
        """
        The daemon's answer.

        Args:
            method: a request of docs/protocol.md.
            answer_s: time limit for the answer.
            params: parameters of the request.

        Raises:
            WatchdogError: the daemon refused, did not answer in time, or does not run.
        """
        if self._waiting >= _MOST_WAITING:
            raise RequestError("Too many requests wait for the watchdog daemon. Try it again.")
        self._waiting += 1
        try:
            return await self._call(method, answer_s, **params)
        finally:
            self._waiting -= 1

    async def _share(self, key: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._shared = {each: job for each, job in self._shared.items() if not job.done()}
        if key not in self._shared:
            self._shared[key] = asyncio.create_task(ask())
        return await asyncio.shield(self._shared[key])

    async def _call(self, method: str, answer_s: float, **params: Any) -> dict[str, Any]:
        answer = await _in_thread(partial(request, method, wait_s=answer_s, **params))
        if not isinstance(answer, dict):
            raise ProtocolError(f"The watchdog daemon's answer to {method} is not an object.")
        return answer


async def _in_thread(job: Callable[[], T]) -> T:
    """
    The result of a blocking call.

    Its thread ends with the server, which does not wait for it as it would for an executor.
    """
    result: Future[T] = Future()

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(job())
        except Exception as error:  # raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=run, name="watchdog", daemon=True).start()
    return await asyncio.wrap_future(result)


class _Handler(APIHandler):
    """A handler that knows the kernels of its server."""

    auth_resource = "kernels"  # who may restart a kernel may pause it

    @property
    def shared(self) -> _Shared:
        shared: _Shared = self.settings[_SETTING]
        for kernel in self.kernel_manager.list_kernel_ids():
            shared.kernels.setdefault(kernel)
        while len(shared.kernels) > _MOST_KERNELS:
            del shared.kernels[next(iter(shared.kernels))]
        return shared

    def kernel(self, kernel_id: object) -> str:
        """
        A kernel id, if the kernel is or was one of this server.

        Raises:
            HTTPError: 404, it is not.
        """
        if not isinstance(kernel_id, str) or kernel_id not in self.shared.kernels:
            raise web.HTTPError(404, "This server has no such kernel.")
        return kernel_id

    async def task(self, kernel_id: object) -> Task:
        """
        The task of a kernel of this server.

        Raises:
            HTTPError: 404, the daemon does not list it.
            WatchdogError: the daemon does not answer.
        """
        found = view.own_task(await self.shared.status(), self.kernel(kernel_id), self.shared.user)
        if found is None:
            raise web.HTTPError(404, "The watchdog daemon does not see this kernel.")
        return found

    def refuse(self, error: Exception) -> None:
        """Answer 503 with the reason."""
        self.set_status(503)
        self.finish(json.dumps({"message": str(error)}))


class _State(_Handler):
    _track_activity = False  # an open browser tab alone keeps no idle server alive

    @web.authenticated
    @authorized
    async def get(self) -> None:
        shared, running = self.shared, self.kernel_manager.list_kernel_ids()
        try:
            found = view.state(await shared.status(), running, shared.user, time.time())
        except DaemonNotRunning as error:
            found = view.no_daemon(str(error))
        except (WatchdogError, OSError) as error:  # the page keeps what it shows
            self.refuse(error)
            return
        self.finish(json.dumps(found))


class _Explain(_Handler):
    @web.authenticated
    @authorized
    async def get(self) -> None:
        try:
            task = await self.task(self.get_argument("kernel"))
            answer = await self.shared.ask("explain", task=str(task.pid))
        except (WatchdogError, OSError) as error:
            self.refuse(error)
            return
        self.finish(json.dumps({"text": plain_block(answer.get("text") or "")}))


class _Death(_Handler):
    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        kernel = self.kernel(self.get_argument("kernel"))
        try:
            within_s = float(self.get_argument("within_s"))
        except ValueError:
            within_s = math.nan
        if not math.isfinite(within_s) or within_s < 0:
            raise web.HTTPError(400, "within_s must be a number of seconds, at least 0.")
        try:
            answer = await self.shared.ask("explain", task=kernel)
        except RequestError:  # neither a task nor an end of this kernel is known yet
            answer = {}
        except (WatchdogError, OSError) as error:
            self.refuse(error)
            return
        self.finish(json.dumps({"death": view.death(answer, time.time(), within_s)}))


class _Act(_Handler):
    @web.authenticated
    @authorized
    async def post(self) -> None:
        body = self.get_json_body()
        key = body.get("action") if isinstance(body, dict) else None
        if not isinstance(body, dict) or key not in view.OFFERED:
            raise web.HTTPError(400, "The action must be one of: " + ", ".join(view.OFFERED))
        try:
            task = await self.task(body.get("kernel"))
            text = await self._carry_out(str(key), task)
        except (WatchdogError, OSError) as error:
            self.refuse(error)
            return
        self.finish(json.dumps({"text": text}))

    async def _carry_out(self, key: str, task: Task) -> str:
        """Why it was not done; empty if it was."""
        if key != "save":
            action = ACTIONS[key]
            await self.shared.ask(action.method, **action.params, task=str(task.pid))
            return ""
        answer = await self.shared.save(task.pid)
        unsaved = [each for each in answer["requests"] if each.get("status") != "done"]
        return "\n".join(map(save_line, unsaved))
