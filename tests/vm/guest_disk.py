"""A separate disk in the virtual machine that can be made to fail through the device mapper."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path


class Disk:
    """A small ext4 at `place`, on a device that refuses everything after `fail`."""

    def __init__(self, place: Path, owner: str) -> None:
        self.place = place
        self._name = f"test-{time.monotonic_ns()}"
        self._file = Path(f"/root/{self._name}.img")
        with open(self._file, "wb") as file:
            file.truncate(64 << 20)
        self._loop = _run("losetup", "--find", "--show", str(self._file)).strip()
        self._sectors = (64 << 20) // 512
        table = f"0 {self._sectors} linear {self._loop} 0"
        _run("dmsetup", "create", self._name, "--table", table)
        self._device = f"/dev/mapper/{self._name}"
        _run("mke2fs", "-q", "-t", "ext4", self._device)
        place.mkdir(parents=True, exist_ok=True)
        _run("mount", self._device, str(place))
        _run("chown", f"{owner}:", str(place))

    def fail(self) -> None:
        """From now on every read and write fails with EIO."""
        # Without the lock, because a file system on a failing disk cannot be frozen.
        _run("dmsetup", "suspend", "--noflush", "--nolockfs", self._name)
        _run("dmsetup", "load", self._name, "--table", f"0 {self._sectors} error")
        _run("dmsetup", "resume", self._name)

    def away(self) -> None:
        """Unmount it lazily, as for a replacement; open files stay open."""
        subprocess.run(["umount", "--lazy", str(self.place)], check=False, timeout=300)

    def close(self) -> None:
        """Remove all of it; its content is lost."""
        self.away()
        for words in (
            ("dmsetup", "remove", "--force", "--deferred", self._name),
            ("losetup", "--detach", self._loop),
        ):
            subprocess.run(words, check=False, capture_output=True, timeout=300)
        self._file.unlink()


def _run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)
    assert not done.returncode, f"{words} ended with {done.returncode}: {done.stderr}"
    return done.stdout
