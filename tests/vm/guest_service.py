"""
Inside the virtual machine: run the host's commands, received over a virtio serial port.

Each request is a line of JSON, `{"id": "...", "argv": [...], "timeout_s": 60}`. The answers are
lines with that id: any number of `{"out": "..."}`, then `{"rc": 0}`. Requests run one at a time.
When the host disconnects, its command is killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

PORT = "/dev/virtio-ports/watchdog"


def answer(port: int, **fields: object) -> None:
    """Send one line to the host, which may have disconnected."""
    data = json.dumps(fields).encode() + b"\n"
    while data:
        data = data[os.write(port, data) :]


def serve(port: int, request: dict[str, object]) -> None:
    """Run the command, pass on its output, report its exit status."""
    ident = request["id"]
    try:
        child = subprocess.Popen(
            request["argv"],  # type: ignore[arg-type]
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/root",
            env={**os.environ, "HOME": "/root", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"},
        )
    except OSError as error:
        answer(port, id=ident, out=f"{error}\n")
        answer(port, id=ident, rc=127)
        return
    assert child.stdout is not None
    end = time.monotonic() + float(request.get("timeout_s", 600))  # type: ignore[arg-type]
    out = child.stdout.fileno()
    poll = select.poll()
    poll.register(out, select.POLLIN)
    poll.register(port, 0)  # POLLHUP alone: the host has disconnected
    rc = None
    while rc is None:
        gone = False
        for fd, event in poll.poll(500):
            if fd == port and event & select.POLLHUP:
                gone = True
            elif fd == out:
                data = os.read(out, 65536)
                if data:
                    answer(port, id=ident, out=data.decode(errors="replace"))
                else:
                    poll.unregister(out)
        rc = child.poll()
        if rc is None and (gone or time.monotonic() > end):
            os.killpg(child.pid, signal.SIGKILL)
            rc = child.wait()
            rc = 124
            if gone:
                return
            answer(port, id=ident, out="\n[killed: it took too long]\n")
    # output that its children still hold open is not awaited
    while select.select([out], [], [], 0)[0]:
        data = os.read(out, 65536)
        if not data:
            break
        answer(port, id=ident, out=data.decode(errors="replace"))
    child.stdout.close()
    answer(port, id=ident, rc=rc)


def main() -> None:
    """Serve requests for ever."""
    while not os.path.exists(PORT):  # udev has not named it yet
        time.sleep(0.1)
    port = os.open(PORT, os.O_RDWR)
    buffer = b""
    while True:
        data = os.read(port, 65536)
        if not data:  # the host is not connected
            buffer = b""
            time.sleep(0.1)
            continue
        buffer += data
        while b"\n" in buffer:
            line, buffer = buffer.split(b"\n", 1)
            serve(port, json.loads(line))


if __name__ == "__main__":
    main()
