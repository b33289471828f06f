"""A shell on a separate terminal, and a program in a guard that the shell has started."""

from __future__ import annotations

import fcntl
import os
import pty
import shlex
import subprocess
import termios
from contextlib import suppress

from guest import Session, as_me, ordinary, until
from guest_guards import WATCHDOG, Guarded


class GuardedInShell(Guarded):
    """A user at a prompt; `type` is the keyboard, `said` the screen."""

    def __init__(self, me: Session, *words: str, options: tuple[str, ...] = ()) -> None:
        self.root = False
        self._screen = b""
        self._asked = 0
        self._keys, terminal = pty.openpty()
        os.set_blocking(self._keys, False)

        def own_terminal() -> None:
            ordinary()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [*as_me(), "bash", "--norc", "--noprofile", "-i"],
            stdin=terminal, stdout=terminal, stderr=terminal, text=True,
            preexec_fn=own_terminal, start_new_session=True, cwd=me.folder,
        )  # fmt: skip
        os.close(terminal)
        self.type(shlex.join([*WATCHDOG, "exec", *options, "--", *words]) + "\n")

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._keys, keys.encode())

    def output(self) -> str:
        """The whole screen output."""
        with suppress(BlockingIOError, OSError):  # EIO: no process writes to it any more
            while data := os.read(self._keys, 65536):
                self._screen += data
        return self._screen.decode(errors="replace")

    def see(self, text: str) -> None:
        """Wait until the screen shows this text."""
        try:
            until(lambda: text in self.output(), f"{text!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.record()} {self.output()}") from None

    def until_prompt(self) -> None:
        """Wait until the shell has its terminal and runs a command."""
        self._asked += 1
        # The screen also echoes the input, but only the shell computes the sum.
        self.type(f"echo prompt-$(({self._asked} + 1000))\n")
        self.see(f"prompt-{self._asked + 1000}")

    def close(self) -> None:
        """Close the program, the shell and the terminal."""
        super().close()
        os.close(self._keys)
