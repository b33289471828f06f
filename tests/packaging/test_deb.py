"""The Debian package: built, checked by lintian, installed in a clean Debian, run there, purged."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("dpkg-buildpackage", "dh_python3", "pybuild", "fakeroot", "lintian", "debootstrap")
MIRROR = "http://deb.debian.org/debian"
CLEAN_ENV = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
}

OWN_BUSINESS = ("/proc", "/tmp", "/var/cache", "/var/log", "/var/lib/dpkg", "/var/lib/apt")
LOADED = """
import watchdog_app.base.paths as paths
paths.add_vendored()
import pynvml, textual.app
print(pynvml.__file__, textual.app.__file__)
"""

pytestmark = [pytest.mark.packages, pytest.mark.timeout(900)]


def run(*argv, **options):
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The .deb of this tree."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; run packaging/setup.sh test")
    folder = tmp_path_factory.mktemp("deb")
    run(str(ROOT / "packaging/linux/build-deb.sh"), str(folder))
    (found,) = folder.glob("watchdog-app_*.deb")
    return found


@pytest.fixture(scope="module")
def clean(package, tmp_path_factory):
    """A Debian 12 with the package's dependencies and without watchdog."""
    if os.getuid() != 0:
        pytest.skip("a clean Debian is made with debootstrap, which needs root")
    root = tmp_path_factory.mktemp("clean") / "root"
    wanted = run("dpkg-deb", "-f", str(package), "Depends").replace(":any", "")
    names = " ".join(name.split()[0] for name in wanted.split(","))
    run("debootstrap", "--variant=minbase", "bookworm", str(root), MIRROR)
    # The chroot uses this machine's mirror settings.
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copytree("/etc/apt/apt.conf.d", root / "etc/apt/apt.conf.d", dirs_exist_ok=True)
    run("mount", "-t", "proc", "proc", str(root / "proc"))
    try:
        chroot(root, "apt-get update -qq")
        chroot(root, f"apt-get install -y -qq --no-install-recommends {names}")
        yield root
    finally:
        run("umount", "--recursive", str(root / "proc"))
        shutil.rmtree(root)


def chroot(root, script):
    """Return a shell's output in the chroot."""
    return run("chroot", str(root), "/bin/sh", "-ec", script, env=CLEAN_ENV)


def files(root):
    """Return every path, except files that dpkg and logs keep about themselves."""
    pruned = " -o ".join(f"-path {each}" for each in OWN_BUSINESS)
    found = chroot(root, f"find / -xdev '(' {pruned} ')' -prune -o -print")
    return set(found.splitlines())


def test_lintian_has_nothing_to_say(package):
    """lintian runs with its strictest options."""
    said = run("lintian", "--pedantic", "--allow-root", "--fail-on", "none", str(package))

    assert [] == [line for line in said.splitlines() if line.startswith(("E:", "W:", "I:", "P:"))]


def test_the_units_start_what_the_package_installs(package, tmp_path):
    """The unit uses the full path, so a session's PATH does not matter."""
    run("dpkg-deb", "-x", str(package), str(tmp_path))
    units = (tmp_path / "usr/lib/systemd/user").glob("*.service")

    programs = [
        line.removeprefix("ExecStart=").split()[0]
        for unit in units
        for line in unit.read_text().splitlines()
        if line.startswith(("ExecStart=", "Environment=PATH"))
    ]
    assert ["/usr/bin/watchdog", "/usr/bin/watchdog"] == programs
    assert (tmp_path / "usr/bin/watchdog").is_file()


def test_it_runs_in_a_clean_debian_and_goes_without_residue(package, clean):
    """
    After the install the daemon runs and the bundled libraries load.

    After the purge no file is left.
    """
    before = files(clean)
    shutil.copy(package, clean / "tmp/watchdog.deb")
    chroot(clean, "dpkg -i /tmp/watchdog.deb")

    chroot(clean, "watchdog start")
    try:
        status = chroot(clean, "watchdog status --json")
    finally:
        chroot(clean, "watchdog stop")
    # The package's files serve all users: the command undoes only the user's own start at login.
    login = chroot(clean, "watchdog desktop install --login; find /root/.config -type f")
    chroot(clean, "watchdog desktop remove")
    loaded = chroot(
        clean, f"/usr/bin/python3 -c '{LOADED}'; watchdog top --help; watchdog doctor --help"
    )
    chroot(clean, "dpkg --purge watchdog-app; rm -rf /root/.local/state")

    assert '"schema_version"' in status
    assert "for every user already" in login
    assert 2 == login.count("/root/.config/autostart/org.watchdog_app.watchdog.")
    assert "applications" not in login
    assert 2 == loaded.split("usage:")[0].count("/watchdog_app/_vendor/")
    after = files(clean)
    assert (set(), set()) == (after - before - {"/root/.local"}, before - after)
