"""
Build, boot, use and stop the virtual machine, from outside. See tests/vm/README.md.

Usage:
    python tests/vm/machine.py test [--keep] [--committed] [FILE ... | words for pytest]
    python tests/vm/machine.py up | down | log
    python tests/vm/machine.py run COMMAND [WORD ...]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build" / "vm"
# Another name is another machine from the same image, so that two users do not collide.
NAME = os.environ.get("WATCHDOG_VM", "default")
PLACE = BUILD / f"machine-{NAME}"
MEMORY_MB = int(os.environ.get("WATCHDOG_VM_MB", "1024"))
CORES = int(os.environ.get("WATCHDOG_VM_CORES", "2"))
BOOT_S = 900.0  # 15 s on a quiet machine, more than 240 s next to thirty other programs
# Packages besides the dependencies of the project.
FOR_TESTS = ("pytest>=8.2", "pytest-timeout>=2.3", "numpy<2.3")
TESTS_S = 10800.0  # forty minutes next to other work, hours on a very busy machine

# Modules that udev would load for an emulated board and that are not needed: a third of the boot.
_UNUSED = (
    "kvm,kvm_amd,cfg80211,rfkill,ata_piix,ata_generic,powernow_k8,floppy,pcspkr,psmouse,i2c_piix4,"
    "parport_pc,aesni_intel,ghash_clmulni_intel,cryptd,sha512_ssse3,sha1_ssse3,sha256_ssse3,"
    "crc32_pclmul,evdev,button,serio_raw"
)
KERNEL_WORDS = (
    "root=/dev/vda rw console=ttyS0 psi=1 mitigations=off panic=-1 audit=0 nokaslr "
    f"systemd.show_status=0 random.trust_cpu=on module_blacklist={_UNUSED}"
)


class VmError(Exception):
    """A failure and its remedy."""


def say(text: str) -> None:
    print(f"vm: {text}", file=sys.stderr, flush=True)


def call(argv: Sequence[str], **options: object) -> None:
    """Run a step of the build; raises VmError with the end of its output."""
    done = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False, **options)  # type: ignore[call-overload]  # fmt: skip
    if done.returncode:
        raise VmError(
            f"{' '.join(argv[:4])} ... ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )


# The image


def dependencies() -> list[str]:
    """The project's dependencies from pyproject.toml."""
    import tomllib

    with open(ROOT / "pyproject.toml", "rb") as file:
        return [str(word) for word in tomllib.load(file)["project"]["dependencies"]]


def image() -> None:
    """Make the disk, unless one with the same recipe exists."""
    wanted = [*dependencies(), *FOR_TESTS]
    recipe = hashlib.sha256(
        (HERE / "image.sh").read_bytes() + "\n".join(wanted).encode()
    ).hexdigest()
    stamp = BUILD / "recipe"
    if stamp.exists() and stamp.read_text() == recipe and (BUILD / "root.ext4").exists():
        return
    if os.getuid() != 0:
        raise VmError(
            "Making the disk of the virtual machine needs root once, for mmdebstrap.\n"
            f"Run: sudo {sys.executable} {HERE / 'machine.py'} image"
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    wheels = BUILD / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    say("fetching the wheels of what watchdog and its tests need")
    call([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
          "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp",
          "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64",
          "--dest", str(wheels), *wanted])  # fmt: skip
    done = subprocess.run([str(HERE / "image.sh"), str(BUILD), str(wheels)], check=False)
    if done.returncode:
        raise VmError(f"The disk could not be made; see {BUILD / 'image.log'}.")
    stamp.write_text(recipe)


# The machine


def pid() -> int | None:
    """The pid of the running emulator, or None."""
    try:
        number = int((PLACE / "pid").read_text())
        command = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return number if str(PLACE).encode() in command else None


def up() -> None:
    """Boot it unless it runs; returns when it answers."""
    if pid() is not None:
        return
    image()
    emulator = shutil.which("qemu-system-x86_64")
    if emulator is None:
        raise VmError("qemu-system-x86_64 was not found. Run: packaging/setup.sh vm")
    share = PLACE / "share"
    shutil.rmtree(PLACE, ignore_errors=True)
    share.mkdir(parents=True)
    shutil.copy(HERE / "guest_service.py", share)
    say(f"booting with {MEMORY_MB} MB and {CORES} processors, emulated")
    began = time.monotonic()
    call([
        emulator, "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", str(CORES),
        "-m", f"{MEMORY_MB}M", "-nodefaults", "-no-user-config", "-display", "none",
        "-no-reboot", "-daemonize", "-pidfile", str(PLACE / "pid"),
        "-serial", f"file:{PLACE / 'console.log'}",
        "-kernel", str(BUILD / "vmlinuz"), "-initrd", str(BUILD / "initrd.img"),
        "-append", KERNEL_WORDS,
        "-drive", f"file={BUILD / 'root.ext4'},format=raw,if=virtio,snapshot=on,cache=unsafe",
        "-virtfs", f"local,path={share},mount_tag=share,security_model=none,multidevs=remap",
        "-device", "virtio-serial",
        "-chardev", f"socket,id=port,path={PLACE / 'port'},server=on,wait=off",
        "-device", "virtserialport,chardev=port,name=watchdog",
        "-device", "virtio-rng-pci",
    ])  # fmt: skip
    rc, out = run(["uname", "-r"], BOOT_S, echo=False)
    if rc:
        raise VmError(f"It did not boot: {out}\n{console()}")
    say(f"Linux {out.strip()} is up after {time.monotonic() - began:.0f} s")


def down() -> None:
    """End it; all its data except /share are lost."""
    number = pid()
    if number is not None:
        os.kill(number, signal.SIGTERM)
        for _ in range(100):
            if pid() is None:
                break
            time.sleep(0.05)
        else:
            os.kill(number, signal.SIGKILL)


def console() -> str:
    """The last lines of the kernel."""
    with contextlib.suppress(OSError):
        return (PLACE / "console.log").read_text(errors="replace")[-3000:]
    return ""


def run(argv: Sequence[str], timeout_s: float = 600.0, echo: bool = True) -> tuple[int, str]:
    """
    Run a command in it as root; return the exit status and the output.

    Raises:
        VmError: the machine does not answer, or has ended.
    """
    ident = uuid.uuid4().hex
    request = {"id": ident, "argv": list(argv), "timeout_s": timeout_s}
    end = time.monotonic() + timeout_s + 30
    said = ""
    with socket.socket(socket.AF_UNIX) as port:
        port.connect(str(PLACE / "port"))
        port.sendall(json.dumps(request).encode() + b"\n")
        port.settimeout(1.0)
        buffer = b""
        while True:
            try:
                data = port.recv(65536)
            except TimeoutError:
                if pid() is not None and time.monotonic() < end:
                    continue
                data = b""
            if not data:
                raise VmError(
                    f"The virtual machine has ended or hangs. Its last words:\n{console()}"
                )
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                try:
                    answer = json.loads(line)
                except ValueError:
                    continue  # the end of output that was not read
                if answer.get("id") != ident:
                    continue
                if "rc" in answer:
                    return int(answer["rc"]), said
                said += answer["out"]
                if echo:
                    print(answer["out"], end="", flush=True)


# The tests


def install(committed: bool) -> None:
    """Install the project as a wheel, and the present tests, into the running machine."""
    wheels, source = PLACE / "wheel", ROOT
    shutil.rmtree(wheels, ignore_errors=True)
    if committed:  # leaves out uncommitted changes
        source = PLACE / "source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        call(["sh", "-c", f"git archive HEAD | tar -x -C '{source}'"], cwd=ROOT)
    # Without isolation if the build backend is installed: nothing is downloaded.
    apart = subprocess.run([sys.executable, "-c", "import hatchling"], check=False, stderr=-3)
    call([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
          "--no-deps", *(["--no-build-isolation"] if not apart.returncode else []),
          "--wheel-dir", str(wheels), "."], cwd=source)  # fmt: skip
    (wheel,) = wheels.glob("*.whl")
    share = PLACE / "share"
    for old in share.glob("*.whl"):
        old.unlink()
    shutil.copy(wheel, share)
    tests = share / "tests"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(HERE, tests, ignore=shutil.ignore_patterns("__pycache__"))
    (share / "out").mkdir(exist_ok=True)
    rc, out = run(["python3", "/share/tests/install.py"], 900, echo=False)
    if rc:
        raise VmError(f"The wheel could not be installed in the machine:\n{out}")


def run_tests(words: Sequence[str], keep: bool, committed: bool) -> int:
    """Boot, install, run the tests inside; returns pytest's exit code."""
    ran = pid() is not None
    up()
    try:
        install(committed)
        inside = []
        for word in words:
            path, mark, rest = word.partition("::")
            known = (ROOT / path).is_relative_to(HERE) and (ROOT / path).exists()
            inside.append(
                f"/root/tests/{(ROOT / path).relative_to(HERE)}{mark}{rest}" if known else word
            )
        if not any(word.startswith("/root/tests") for word in inside):
            inside.append("/root/tests")
        rc, _ = run(["/opt/watchdog/bin/python", "-m", "pytest", "-c", "/root/tests/pytest.ini",
                     "--junitxml=/share/out/junit.xml", *inside], TESTS_S)  # fmt: skip
        report = BUILD / "junit.xml"
        with contextlib.suppress(OSError):
            shutil.copy(PLACE / "share" / "out" / "junit.xml", report)
            say(f"the report as JUnit: {report}; figures and logs: {PLACE / 'share' / 'out'}")
        return rc
    finally:
        if not keep and not ran:
            down()


def main() -> int:
    """Return pytest's exit code, that of the command, or 1 with a reason on stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("test", "up", "down", "run", "log", "image"))
    parser.add_argument("--keep", action="store_true", help="test: leave the machine running")
    parser.add_argument("--committed", action="store_true", help="test: HEAD, not the working tree")
    options, words = parser.parse_known_args()
    try:
        if options.what == "test":
            return run_tests(words, options.keep, options.committed)
        if options.what == "run":
            up()
            return run(words, TESTS_S)[0]
        if options.what == "log":
            print(console())
        else:
            {"up": up, "down": down, "image": image}[options.what]()
    except VmError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
