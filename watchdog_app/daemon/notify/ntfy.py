"""
Notifications on a phone by a server of ntfy, and answers from there.

The daemon opens no connection itself. `ntfy_helper` publishes, in a process for each notification.
With `answers` another one listens to the topic `TOPIC-answers`. Both read their secrets from
standard input, because every user can see command lines.

A button makes the phone post a one-time token to that topic. The helper hands it to the daemon as
the request `notification.answer`. Each reader of the notifications sees the tokens. So answers need
an access token and an encrypted connection.
"""

from __future__ import annotations

import os
import re
import time

from watchdog_app.base import children, paths
from watchdog_app.base.errors import RequestError
from watchdog_app.base.line_child import Backoff, LineChild
from watchdog_app.core.model.actions import button_commands
from watchdog_app.core.model.machine import Fault
from watchdog_app.core.model.status import Notification
from watchdog_app.daemon.notify import TEST, Channel, Delivery, Offer, ask, delivery, plain_text
from watchdog_app.daemon.notify.dispatcher import Until

_HELPER = "watchdog_app.daemon.notify.ntfy_helper"
_DEADLINE_S = 12.0  # more than the helper takes for its attempts
_VALID_S = 600.0  # how long a button can be pressed
_MOST_OFFERS = 256
_MOST_BUTTONS = 3
_MOST_BODY_BYTES = 3500  # ntfy makes a file of a message over 4096
_OFFERED = ("save", "pause", "resume", "snooze", TEST)
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 300.0
_PRIORITIES = {"low": 2, "normal": 3, "critical": 5}
_TAGS = {"low": "information_source", "normal": "warning", "critical": "rotating_light"}
_URL = re.compile(r"(https?)://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?/?", re.ASCII)
_LOOPBACK = re.compile(r"127(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}|localhost|\[::1\]", re.ASCII)
_TOPIC = re.compile(r"[-\w]{1,56}", re.ASCII)  # ntfy allows 64, with the suffix for answers
_TOKEN = re.compile(r"[!-~]{0,200}")
_MESSAGE_ID = re.compile(r"[-\w]{1,64}", re.ASCII)


class NtfyChannel(Channel):
    """
    Publishes notifications to a topic of an ntfy server.

    Args:
        url: the server, such as "https://ntfy.example.org".
        topic: where the notifications go.
        token: access token of the server; empty: none.
        answers: offer buttons, and accept answers from `TOPIC-answers`.
    """

    name = "ntfy"

    def __init__(self, *, url: str, topic: str, token: str = "", answers: bool = False) -> None:
        place = _URL.fullmatch(url)
        if place is None:
            raise ValueError('url must be such as "https://ntfy.example.org", without a password')
        if not _TOPIC.fullmatch(topic) or not _TOKEN.fullmatch(token):
            raise ValueError("topic must have 1 to 56 letters, digits, _ or -, token no spaces")
        if not isinstance(answers, bool):
            raise TypeError("answers must be true or false")
        if answers and not (token and (place[1] == "https" or _LOOPBACK.fullmatch(place[2]))):
            raise ValueError(
                "answers = true needs a token and https, as a reader of the topic can answer, too"
            )
        self._answers = answers
        self._server = {"url": url.rstrip("/"), "token": token, "topic": topic}
        self._offers: dict[str, Offer] = {}  # by one-time token
        self._socket = os.path.abspath(paths.socket_path())
        self._listener: LineChild | None = None
        self._retry = Backoff()
        self._since = str(int(time.time()))  # id of the last answer, or this time

    def send(self, notification: Notification) -> Delivery:
        """Publish the notification; blocks some seconds at most."""
        actions = self._offer(notification) if self._answers else []
        title, body = plain_text(notification, [] if actions else button_commands(notification))
        document = {
            "topic": self._server["topic"],
            "title": title,
            "message": body.encode()[:_MOST_BODY_BYTES].decode("utf-8", "ignore"),
            "priority": _PRIORITIES[notification.urgency],
            "tags": [_TAGS[notification.urgency], os.uname().nodename],
            "actions": actions,
        }
        argv, request = children.bare_module_argv(_HELPER), {**self._server, "document": document}
        answer = ask(argv, request, _DEADLINE_S, service=self._server["url"])
        return delivery(answer, self._secrets())

    def follow(self, now_mono_s: float) -> None:
        """Keep one helper listening for answers; wait longer after each failure."""
        if self._listener is not None:
            self._collect(self._listener, now_mono_s)
        if self._answers and self._listener is None and now_mono_s >= self._retry.until_mono_s:
            try:
                argv = (*children.module_argv(_HELPER), "--listen")
                self._listener = LineChild(argv, os.environ)
            except OSError as error:
                self._failed(now_mono_s, f"the helper cannot be started: {error.strerror}")
                return
            self._listener.ask({**self._server, "since": self._since, "socket": self._socket})

    def redeem(self, token: str) -> Offer | None:
        """
        What was offered with this one-time token; None: nothing, or it was answered before.

        Raises:
            RequestError: it was offered too long ago.
        """
        offer = self._offers.pop(token, None)
        if offer is not None and offer.until.has_passed(time.monotonic(), time.time()):
            raise RequestError(f"the button {offer.key} is older than {_VALID_S / 60:.0f} minutes.")
        return offer

    def close(self) -> None:
        """End the helper that listens."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.kill()
            listener.wait(1.0)

    def _offer(self, notification: Notification) -> list[dict[str, object]]:
        """Up to three buttons, each with a token of its own."""
        until = Until(time.monotonic() + _VALID_S, time.time() + _VALID_S)
        known = notification.start_time is not None
        fitting = _OFFERED if known else ("snooze", TEST) if notification.incident else (TEST,)
        url = "{url}/{topic}-answers".format_map(self._server)
        actions: list[dict[str, object]] = []
        for button in [each for each in notification.actions if each.key in fitting][
            :_MOST_BUTTONS
        ]:
            token = os.urandom(16).hex()
            self._offers[token] = Offer(button.key, notification, until)
            request = {"url": url, "method": "POST", "body": token}
            actions.append({"action": "http", "label": button.label, **request, "clear": True})
        while len(self._offers) > _MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        return actions

    def _collect(self, listener: LineChild, now_mono_s: float) -> None:
        """Read what the helper reports; note its end."""
        status = listener.status
        problem = "" if status is None else f"the helper ended with status {status}"
        for message in listener.answers():
            problem = str(message.get("problem", problem))
            since = str(message.get("since"))
            self._since = since if _MESSAGE_ID.fullmatch(since) else self._since
            if "listening" in message:
                self.fault, self._retry.failures = None, 0
        if problem:
            self.close()
            self._failed(now_mono_s, problem)

    def _failed(self, now_mono_s: float, problem: str) -> None:
        self._retry.failed(now_mono_s, _FIRST_RETRY_S, _LAST_RETRY_S)
        shown = delivery({"detail": problem}, self._secrets()).detail
        remedy = "Check [notify.ntfy] and the server: watchdog notify test"
        self.fault = Fault("ntfy", f"Answers from the phone do not arrive: {shown}.", remedy)

    def _secrets(self) -> list[str]:
        return [self._server["token"], self._server["topic"], *self._offers]
