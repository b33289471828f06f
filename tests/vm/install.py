"""
Inside the virtual machine: install the wheel and the tests from the share.

pip would do the same, but this writes only changed files, because an emulated processor needs
minutes to write and compile all of them.
"""

from __future__ import annotations

import compileall
import glob
import shutil
import subprocess
import zipfile
from pathlib import Path

PREFIX = Path("/opt/watchdog")
SCRIPT = f"""#!{PREFIX}/bin/python
import sys
from watchdog_app.cli import main
sys.exit(main())
"""


def lay(wheel: str) -> None:
    """Write every new or different file of the wheel; remove files that it lacks."""
    (site,) = PREFIX.glob("lib/python3.*/site-packages")
    there: set[Path] = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            head, _, rest = name.partition(".data/data/")
            path = PREFIX / rest if rest else site / head
            there.add(path)
            content = archive.read(name)
            if path.is_file() and path.read_bytes() == content:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o644)
            if path.suffix == ".py":
                compileall.compile_file(path, quiet=2, force=True)
    for path in (site / "watchdog_app").rglob("*.py"):
        if path not in there:
            path.unlink()
    script = PREFIX / "bin" / "watchdog"
    script.write_text(SCRIPT)
    script.chmod(0o755)


def main() -> None:
    """Stop the session's daemon, which would keep the old code, and install everything."""
    manager = ["systemctl", "--machine=me@", "--user"]
    subprocess.run([*manager, "stop", "watchdog.service"], check=False, stderr=subprocess.DEVNULL)
    (wheel,) = glob.glob("/share/*.whl")
    lay(wheel)
    units = Path("/etc/systemd/user")
    shutil.copy(PREFIX / "share/systemd/user/watchdog.service", units)
    # An emulated, shared processor may need long to start a Python or to be scheduled.
    (units / "watchdog.service.d").mkdir(exist_ok=True)
    (units / "watchdog.service.d" / "emulated.conf").write_text(
        "[Service]\nTimeoutStartSec=280\nWatchdogSec=120\n"
    )
    for source, target in (
        ("/share/tests", "/root/tests"),
        ("/share/tests/programs", "/home/me/programs"),
    ):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    subprocess.run(["chown", "-R", "me:", "/home/me/programs"], check=True)
    subprocess.run([*manager, "daemon-reload"], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
