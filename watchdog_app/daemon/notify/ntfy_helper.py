"""
The helper of the channel ntfy. It reads one request as JSON from standard input.

It publishes `document` with `url` and `token`, and writes {"delivered": bool, "detail": str}.

With `--listen` it reads the answers to `topic` since the message `since`, and hands each to the
daemon at `socket`. It publishes what has become of it, and writes {"listening": true}, {"since":
id} and, before it ends, {"problem": str}. It ends with the daemon, which closes its input.

Publishing starts without site and package, so that a machine in danger need not load them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

_PUBLISH_S = 8.0
_ATTEMPT_S = 5.0
_AGAIN_S = 1.0
_SILENCE_S = 150.0  # a server sends a sign of life every 45 s
_MOST_BYTES = 65536
_MOST_AT_ONCE = 8  # answers that the daemon works on
_KNOWN = 100  # messages that are recognized when they come again
_SAVED_S = 310.0  # a save may take 300
_NOT_FOUND = -32002  # the daemon did not offer that: no phone waits for an outcome

Json = dict[str, Any]


def main() -> int:
    """Carry out the request from standard input."""
    request = json.loads(sys.stdin.buffer.readline())
    if "--listen" in sys.argv[1:]:
        threading.Thread(target=_end_with_daemon, daemon=True).start()
        _report(problem=listen(request))
        return 1
    problem = publish(request)
    _report(delivered=not problem, detail=problem)
    return 1 if problem else 0


def publish(request: Json) -> str:
    """
    Publish `document`; try again if the server is busy or cannot be reached.

    Returns:
        Why it was not published; empty: it was.
    """
    end = time.monotonic() + _PUBLISH_S
    body = json.dumps(request["document"])
    while True:
        status = 0
        try:
            with _send(request, "/", _ATTEMPT_S, body) as response:
                status, answer = response.status, _object(response.read(_MOST_BYTES))
            if answer.get("event") == "message":
                return ""
            problem = f"it answered {status} {answer.get('error') or 'as no ntfy server does'}"
        except (OSError, HTTPException) as error:
            problem = _reason(error)
        busy = status in (0, 429) or status >= 500
        if not busy or time.monotonic() + _AGAIN_S >= end:
            return f"{request['url']}: {problem}"
        time.sleep(_AGAIN_S)


def listen(request: Json) -> str:
    """Hand answers to the daemon until the connection ends; return why it did."""
    places = threading.Semaphore(_MOST_AT_ONCE)
    # ntfy sends a message that arrives with the listener twice: as stored, and as new.
    known: deque[Any] = deque(maxlen=_KNOWN)
    path = "/{topic}-answers/json?since={since}".format_map(request)
    try:
        with _send(request, path, _SILENCE_S) as response:
            while line := response.readline(_MOST_BYTES):
                message = _object(line)
                if message.get("event") == "open":
                    _report(listening=True)
                elif message.get("event") == "message" and message.get("id") not in known:
                    known.append(message.get("id"))
                    places.acquire()
                    work = (request, str(message.get("message"))[:100], places)
                    threading.Thread(target=_answer, args=work, daemon=True).start()
                    _report(since=message.get("id"))
                elif "error" in message:
                    return f"{response.status} {message['error']}"
    except (OSError, HTTPException) as error:
        return _reason(error)
    return f"the server has closed the connection (status {response.status})"


def _answer(request: Json, token: str, places: threading.Semaphore) -> None:
    """Hand an answer to the daemon, and publish what has become of it."""
    from watchdog_app.base.errors import RequestError, WatchdogError
    from watchdog_app.client.client import Client

    try:
        with Client.connect(request["socket"], "phone") as daemon:
            result = daemon.call("notification.answer", token=token, reply_timeout_s=_SAVED_S)
        if "method" in result:
            return  # of a pause the daemon sends a notification, with the button Resume
        about = (result.get("requests") or result.get("resumed") or [result])[0]
        title = str(about.get("name") or "watchdog")
        text = " ".join([about.get("detail") or "Done.", *result.get("failures", ())])
    except WatchdogError as error:
        if isinstance(error, RequestError) and error.code == _NOT_FOUND:
            return
        title, text = "Not done", str(error)
    finally:
        places.release()
    publish({**request, "document": {"topic": request["topic"], "title": title, "message": text}})


def _send(request: Json, path: str, timeout_s: float, body: str | None = None) -> HTTPResponse:
    """Send a request. Follows no redirect: another server must not get the token."""
    scheme, _, host = request["url"].partition("://")
    kind = HTTPSConnection if scheme == "https" else HTTPConnection
    connection = kind(host, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {request['token']}"} if request["token"] else {}
    connection.request("POST" if body else "GET", path, body, headers)
    return connection.getresponse()


def _object(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reason(error: Exception) -> str:
    return f"the server cannot be reached or used: {type(error).__name__}: {error}"


def _report(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _end_with_daemon() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
