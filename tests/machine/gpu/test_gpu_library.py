"""The search for the driver library, on trees of files."""

from __future__ import annotations

import pytest

from watchdog_app.machine.gpu.nvml_driver import find_library, module_version
from watchdog_app.machine.gpu.pci import short_address

NAME = "libnvidia-ml.so.1"


def _put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


def test_no_library_is_none(tmp_path):
    assert find_library({}, str(tmp_path)) is None


def test_the_loaders_own_path_goes_first(tmp_path):
    """The loader searches it first too."""
    mine = _put(tmp_path / "mine" / NAME)
    _put(tmp_path / "usr/lib/x86_64-linux-gnu" / NAME)

    found = find_library({"LD_LIBRARY_PATH": f":/none:{tmp_path}/mine"}, str(tmp_path))

    assert (mine, None) == (found.path, found.folder)


def test_the_loaders_cache_is_read(tmp_path):
    """A 32-bit library, or one that was removed, does not count."""
    _put(tmp_path / "opt/nv" / NAME)
    _put(tmp_path / "usr/lib/i386-linux-gnu" / NAME)
    cache = tmp_path / "etc/ld.so.cache"
    cache.parent.mkdir()
    names = ["/gone", "/usr/lib/i386-linux-gnu", "/opt/nv"]
    entries = b"".join(f"{name}/{NAME}\0".encode() for name in names)
    cache.write_bytes(b"glibc-ld.so.cache1.1\x03\0\0\0" + NAME.encode() + b"\0" + entries)

    found = find_library({}, str(tmp_path))

    assert (f"{tmp_path}/opt/nv/{NAME}", None) == (found.path, found.folder)


@pytest.mark.parametrize(
    "folder", ["usr/lib/wsl/lib", "run/opengl-driver/lib", "usr/local/nvidia/lib64"]
)
def test_folders_that_the_loader_does_not_know_are_named(tmp_path, folder):
    """WSL, NixOS, containers: the reader gets the folder."""
    path = _put(tmp_path / folder / NAME)

    found = find_library({}, str(tmp_path))

    assert (path, str(tmp_path / folder)) == (found.path, found.folder)


def test_the_version_is_that_of_the_file_behind_the_link(tmp_path):
    """libnvidia-ml.so.1 is a link to libnvidia-ml.so.570.124.06."""
    folder = tmp_path / "usr/lib64"
    _put(folder / "libnvidia-ml.so.570.124.06")
    (folder / NAME).symlink_to("libnvidia-ml.so.570.124.06")

    assert "570.124.06" == find_library({}, str(tmp_path)).version


def test_the_modules_version_is_read(tmp_path):
    """It is None without a loaded module."""
    assert module_version(str(tmp_path)) is None
    file = tmp_path / "sys/module/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text("570.124.06\n")

    assert "570.124.06" == module_version(str(tmp_path))


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:65:00", "0000:65:00.0"),
        ("00000001:0A:1F.7", "0001:0a:1f.7"),
        ("10000000:65:00.0", "10000000:65:00.0"),
        ("65:00.0", None),
        ("", None),
        (None, None),
        ("a:b:zz", None),
        ("::", None),
    ],
)
def test_one_address_is_written_in_one_way(bus_id, address):
    """The driver, the kernel log and sysfs each write it differently."""
    assert address == short_address(bus_id)
