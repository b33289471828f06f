"""Memory, its limits and other processes that kill; disks, shared memory, batteries and the CPU."""

from __future__ import annotations

import errno
import os
import shlex

import pytest
from doctor_tree import GIB, Tree, found, troubles

from watchdog_app.doctor import memory, power, storage, watchdogs
from watchdog_app.doctor.machine import Machine, Space, disk_space, process_limits, processes

MIB = 1024**2


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def swaps(tree, device, rotational=None, disk=None):
    tree.write("proc/swaps", f"Filename Type Size Used Priority\n{device} partition 8388604 0 -2\n")
    if disk:
        name = device.removeprefix("/dev/")
        tree.write(f"sys/devices/block/{disk}/{name}/partition", "2")
        (tree.root / "sys/class/block").mkdir(parents=True, exist_ok=True)
        (tree.root / f"sys/class/block/{name}").symlink_to(f"../../devices/block/{disk}/{name}")
        tree.write(f"sys/block/{disk}/queue/rotational", str(rotational))


MEMORY_CASES = {
    "all is well": (lambda tree: None, {}),
    "no swap": (lambda tree: tree.meminfo(SwapTotal=0, SwapFree=0), {"memory.swap": "warning"}),
    "little swap": (
        lambda tree: tree.meminfo(SwapTotal=1 << 18, SwapFree=1 << 18),
        {"memory.swap": "warning"},
    ),
    "swap nearly full": (lambda tree: tree.meminfo(SwapFree=1000), {"memory.swap-full": "warning"}),
    "swap on a disk that turns": (
        lambda tree: swaps(tree, "/dev/sda2", 1, "sda"),
        {"memory.swap-slow": "info"},
    ),
    "swap on an SSD": (lambda tree: swaps(tree, "/dev/sda2", 0, "sda"), {}),
    "swap in compressed RAM": (lambda tree: swaps(tree, "/dev/zram0"), {}),
    "RAM is short": (lambda tree: tree.meminfo(MemAvailable=1 << 20), {"memory.ram": "warning"}),
    "RAM is gone": (lambda tree: tree.meminfo(MemAvailable=100 << 10), {"memory.ram": "error"}),
    "strict overcommit": (
        lambda tree: tree.write("proc/sys/vm/overcommit_memory", "2"),
        {"memory.overcommit": "error"},
    ),
    "overcommit not readable": (
        lambda tree: (tree.root / "proc/sys/vm/overcommit_memory").unlink(),
        {"memory.overcommit": "info"},
    ),
    "swappiness 0": (
        lambda tree: tree.write("proc/sys/vm/swappiness", "0"),
        {"memory.swappiness": "info"},
    ),
    "no meminfo": (lambda tree: (tree.root / "proc/meminfo").unlink(), {"memory.ram": "info"}),
}


def test_wsl_is_told_of_its_own_file_for_swap(tree):
    """Swap that a user enables inside WSL is gone after its next start."""
    tree.meminfo(SwapTotal=0, SwapFree=0)
    tree.write("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2")

    finding = found(memory.check(tree.facts()))["memory.swap"]

    assert ".wslconfig" in finding.remedy
    assert ("wsl --shutdown",) == finding.commands


@pytest.mark.parametrize("name", MEMORY_CASES)
def test_each_state_of_memory_has_its_finding(tree, name):
    """Each state has exactly one finding."""
    lay_out, expected = MEMORY_CASES[name]
    lay_out(tree)

    assert expected == troubles(memory.check(tree.facts()))


def group_v2(tree, group="jupyter-ada.service", **files):
    tree.write("proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    tree.write("proc/self/cgroup", f"0::/user.slice/{group}\n")
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
    base = f"sys/fs/cgroup/user.slice/{group}"
    defaults = {"memory.max": "max", "memory.high": "max", "memory.current": "0",
                "memory.swap.max": "max", "memory.stat": "inactive_file 0\n",
                "memory.events": "oom 0\noom_kill 0\n"}  # fmt: skip
    for name, text in (defaults | {key.replace("_", "."): v for key, v in files.items()}).items():
        tree.write(f"{base}/{name}", text)


def group_v1(tree, limit):
    tree.write(
        "proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    )
    tree.write("proc/self/cgroup", "4:memory:/docker/abc\n8:pids:/docker/abc\n0::/\n")
    base = "sys/fs/cgroup/memory"
    for folder, at in ((base, 2**63 - 4096), (f"{base}/docker/abc", limit)):
        tree.write(f"{folder}/memory.limit_in_bytes", str(at))
        tree.write(f"{folder}/memory.memsw.limit_in_bytes", str(at))
        tree.write(f"{folder}/memory.usage_in_bytes", str(GIB))
        tree.write(f"{folder}/memory.stat", "total_inactive_file 0\n")
        tree.write(f"{folder}/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n")


@pytest.mark.parametrize(
    ("severity", "files"),
    [
        (None, {}),
        ("info", {"memory_max": str(6 * GIB)}),
        ("warning", {"memory_max": str(6 * GIB), "memory_current": str(int(5.5 * GIB))}),
        ("warning", {"memory_max": str(GIB)}),
        (
            "warning",
            {
                "memory_max": str(6 * GIB),
                "memory_current": str(2 * GIB),
                "memory_events": "oom 1\noom_kill 1\n",
            },
        ),
        (
            "info",
            {
                "memory_max": str(6 * GIB),
                "memory_current": str(GIB // 5),
                "memory_events": "oom 1\noom_kill 1\n",
            },
        ),
        ("info", {"memory_high": str(6 * GIB)}),
        (None, {"memory_max": str(64 * GIB)}),
    ],
)
def test_the_group_of_the_shell_is_a_limit_below_ram(tree, severity, files):
    """The check reads cgroup v2. A limit above the RAM has no effect."""
    group_v2(tree, **files)

    assert severity == troubles(memory.check(tree.facts())).get("memory.group")


def test_a_guard_is_no_limit_at_which_the_kernel_kills(tree):
    """`watchdog limit` shows the guard."""
    group_v2(tree, "watchdog-guard-77-1", memory_max=str(GIB))

    assert "memory.group" not in troubles(memory.check(tree.facts()))


def test_a_v1_group_is_found_and_its_kills_are_told(tree):
    """Docker creates v1 groups on older systems."""
    group_v1(tree, 4 * GIB)

    finding = found(memory.check(tree.facts()))["memory.group"]

    assert "4.00 GiB" in finding.what
    assert "this shell" in finding.what
    assert any("has killed 2" in detail for detail in finding.details)


def test_few_threads_are_a_warning(tree):
    """TensorFlow starts hundreds of threads."""
    group_v1(tree, 2**63 - 4096)
    tree.write("sys/fs/cgroup/pids/docker/abc/pids.max", "100\n")
    tree.write("sys/fs/cgroup/pids/docker/abc/pids.current", "12\n")

    assert {"memory.pids": "warning"} == troubles(memory.check(tree.facts()))


@pytest.mark.parametrize(
    ("expected", "limits"),
    [
        ({}, {}),
        ({}, {"open_files": 1024, "processes": 60000}),
        ({"memory.address-space": "error"}, {"address_space": 32 * GIB}),
        ({"memory.data-segment": "warning"}, {"data": 32 * GIB}),
        ({"memory.open-files": "warning"}, {"open_files": 256}),
        ({"memory.processes": "warning"}, {"processes": 200}),
        ({"memory.file-size": "error"}, {"file_size": 100 * MIB}),
        ({"memory.cpu-time": "warning"}, {"cpu_s": 3600}),
    ],
)
def test_limits_of_the_shell(tree, expected, limits):
    """A training inherits the ulimit of its shell."""
    assert expected == troubles(memory.shell_limits(tree.facts(limits=lambda: limits)))


def test_the_real_limits_can_be_read():
    """The test uses the real system call."""
    limits = process_limits()

    assert {"address_space", "open_files"} <= set(limits)
    assert all(one is None or one >= 0 for one in limits.values())


@pytest.mark.parametrize(
    ("expected", "process"),
    [
        ({"memory.earlyoom": "info"}, ("/usr/bin/earlyoom", "-r", "3600", "-m", "5")),
        (
            {"memory.earlyoom": "warning"},
            ("/usr/bin/earlyoom", "--prefer", "(^|/)(python3?|chrome)$"),
        ),
        ({"memory.earlyoom": "info"}, ("/usr/bin/earlyoom", "--avoid=python", "--prefer", "[")),
        ({"memory.systemd-oomd": "info"}, ("/usr/lib/systemd/systemd-oomd",)),
        ({"memory.nohang": "info"}, ("/usr/bin/nohang", "--monitor")),
        ({}, ("/usr/bin/vim", "earlyoom")),
    ],
)
def test_daemons_that_kill_are_named(tree, expected, process):
    """The finding says what they do to a training."""
    tree.process(300, *process)

    assert expected == troubles(memory.killers(tree.facts()))


def test_earlyooms_own_threshold_is_told(tree):
    """The finding shows the configured threshold, not the default."""
    tree.process(300, "/usr/bin/earlyoom", "-m", "5,3", "-s", "100")

    assert "below 5 % of RAM and 100 % of swap" in (
        found(memory.killers(tree.facts()))["memory.earlyoom"].what
    )


_KILLS, _SPARES = "[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n"


@pytest.mark.parametrize(
    ("kills", "texts"),
    [
        (True, {"etc/systemd/logind.conf.d/10.conf": _KILLS}),
        (False, {"etc/systemd/logind.conf.d/10.conf": "[Login]\n#KillUserProcesses=yes\n"}),
        (False, {"etc/systemd/logind.conf.d/10.conf": _SPARES}),
        (False, {"etc/systemd/logind.conf.d/10.conf.off": _KILLS}),
        # The user's file replaces that of the distribution, and drop-ins come after it.
        (True, {"etc/systemd/logind.conf": _KILLS, "usr/lib/systemd/logind.conf": _SPARES}),
        (True, {"usr/lib/systemd/logind.conf": _KILLS}),
        (True, {"etc/systemd/logind.conf": _SPARES, "run/systemd/logind.conf.d/1.conf": _KILLS}),
        # Drop-ins are sorted by name across folders; of two with one name, /etc has priority.
        (
            True,
            {
                "etc/systemd/logind.conf.d/10.conf": _SPARES,
                "usr/lib/systemd/logind.conf.d/20.conf": _KILLS,
            },
        ),
        (
            False,
            {
                "etc/systemd/logind.conf.d/10.conf": _SPARES,
                "usr/lib/systemd/logind.conf.d/10.conf": _KILLS,
            },
        ),
    ],
)
def test_a_log_out_that_kills_is_told(tree, kills, texts):
    """The check reads logind's files as logind does. A tmux session does not survive it either."""
    for path, text in texts.items():
        tree.write(path, text)

    assert kills == ("memory.log-out" in troubles(memory.killers(tree.facts())))


def test_processes_with_hostile_names_are_read(tree):
    """Other users choose these names."""
    tree.process(9, "", name=") Z (")
    tree.process(10, "a\nb", name="x")
    tree.write("proc/11/comm", "")
    tree.write("proc/not-a-pid/comm", "x")

    assert [9, 10, 11] == [one.pid for one in processes(tree.machine())]


# Storage


SHM = "/dev/shm"


@pytest.mark.parametrize(
    ("severity", "space"),
    [
        ("error", Space(64 * MIB, 64 * MIB)),
        ("warning", Space(512 * MIB, 512 * MIB)),
        ("warning", Space(8 * GIB, 100 * MIB)),
        (None, Space(8 * GIB, 8 * GIB)),
        (None, Space(0, 0)),
        ("info", PermissionError(errno.EACCES, "Permission denied")),
    ],
)
def test_shared_memory(tree, severity, space):
    """Docker's default of 64 MiB kills DataLoader workers."""
    tree.spaces[SHM] = space

    assert severity == troubles(storage.check(tree.facts())).get("storage.shared-memory")


def test_in_a_container_the_remedy_is_its_option(tree):
    """A user cannot remount it inside the container."""
    tree.write(".dockerenv", "")
    tree.spaces[SHM] = Space(64 * MIB, 64 * MIB)

    finding = found(storage.check(tree.facts()))["storage.shared-memory"]

    assert finding.commands[0].startswith("docker run --shm-size")


@pytest.mark.parametrize(
    ("expected", "space"),
    [
        ({"storage.disk": "error"}, Space(500 * GIB, 100 * MIB)),
        ({"storage.disk": "warning"}, Space(500 * GIB, 5 * GIB)),
        ({}, Space(20 * GIB, 5 * GIB)),
        ({"storage.inodes": "error"}, Space(500 * GIB, 100 * GIB, 1000000, 12)),
        ({}, Space(500 * GIB, 100 * GIB, 0, 0)),
        ({"storage.read-only": "error"}, Space(500 * GIB, 100 * GIB, 10, 9, read_only=True)),
        ({"storage.disk": "info"}, OSError(errno.ESTALE, "Stale file handle")),
    ],
)
def test_room_for_checkpoints(tree, expected, space):
    """The check uses the current folder, where the training writes."""
    tree.spaces["/work/project"] = space

    assert expected == troubles(storage.check(tree.facts(cwd="/work/project")))


def test_standing_in_a_folder_of_others_is_no_error(tree):
    """Running the doctor from / must not report an error."""
    tree.shut = {"/", "/opt"}

    findings = found(storage.check(tree.facts(cwd="/opt")))

    assert {"storage.read-only": "warning"} == troubles(findings.values())
    assert "failed" not in findings["storage.read-only"].why


@pytest.mark.parametrize(
    ("expected", "free"), [({}, 900 * MIB), ({"storage.disk": "warning"}, 20 * MIB)]
)
def test_a_small_folder_for_temporary_files_is_large_enough(tree, expected, free):
    """No checkpoint goes there."""
    tree.spaces["/tmp"] = Space(GIB, free)

    assert expected == troubles(storage.check(tree.facts()))


def test_a_folder_with_a_quote_in_its_name_is_quoted(tree):
    """The user copies the command unchanged."""
    tree.spaces["/data/ada's; reboot"] = Space(500 * GIB, 5 * GIB)

    told = [one for one in storage.check(tree.facts(cwd="/data/ada's; reboot")) if one.commands]

    assert [["df", "-h", "/data/ada's; reboot"]] == [shlex.split(one.commands[0]) for one in told]


def test_nobody_is_told_to_take_a_whole_tree_over(tree, tmp_path):
    """If the home folder is missing, its nearest existing parent is the root."""
    tree.shut = {"/"}
    facts = tree.facts(env={"HOME": "/no such home"}, access=lambda path, mode: False)

    finding = found(watchdogs.check(facts))["watchdog.journal"]

    assert not any("chown" in command for command in finding.commands)
    assert "'/no such home/.local/state/watchdog'" in finding.commands[0]


def test_files_in_ram_are_told_with_where_they_lie(tree):
    """A data set in /tmp takes memory from the training."""
    tree.write(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:30 / /tmp rw - tmpfs tmpfs rw\n"
        "31 22 0:31 / /run rw - tmpfs tmpfs rw\n",
    )
    tree.spaces["/tmp"] = Space(8 * GIB, 3 * GIB)
    tree.spaces["/run"] = Space(2 * GIB, 2 * GIB)

    findings = found(storage.check(tree.facts(cwd="/tmp/project")))

    assert "/tmp take 5.00 GiB" in findings["storage.ram-disk"].what
    assert "tmpfs" in findings["storage.cwd-in-ram"].what


def test_a_journal_on_a_network_disk_is_told(tree):
    """SQLite's write-ahead log needs a local disk."""
    tree.write(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:30 / /home rw - nfs4 server:/home\\040of\\040all rw\n",
    )

    assert "info" == troubles(storage.check(tree.facts()))["storage.journal-network"]


def test_a_home_that_links_to_a_network_disk_is_told(tree):
    """The list of mounts has the target of the link."""
    tree.write(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:30 / /net rw - nfs4 server:/net rw\n",
    )
    (tree.root / "net/grace").mkdir(parents=True)
    (tree.root / "home/grace").symlink_to("../net/grace")

    told = troubles(storage.check(tree.facts(env={"HOME": "/home/grace"})))

    assert "info" == told["storage.journal-network"]


def test_real_disks_are_as_large_as_python_says(tmp_path):
    """The test compares with the standard library."""
    import shutil

    assert shutil.disk_usage(tmp_path).total == disk_space(str(tmp_path)).total_bytes


# Power


def supply(tree, name, **files):
    for key, value in files.items():
        tree.write(f"sys/class/power_supply/{name}/{key}", f"{value}\n")


@pytest.mark.parametrize(
    ("expected", "battery", "online"),
    [
        ({}, {"status": "Charging", "capacity": 80}, 1),
        ({}, {"status": "Full", "capacity": 100}, 1),
        ({"power.battery": "warning"}, {"status": "Discharging", "capacity": 80}, 0),
        ({"power.battery": "error"}, {"status": "Discharging", "capacity": 7}, 0),
        ({"power.supply-too-weak": "warning"}, {"status": "Discharging", "capacity": 80}, 1),
    ],
)
def test_batteries(tree, expected, battery, online):
    """The doctor reads batteries as the daemon does."""
    supply(tree, "BAT0", type="Battery", **battery)
    supply(tree, "AC", type="Mains", online=online)

    assert expected == troubles(power.check(tree.facts()))


@pytest.mark.parametrize(
    ("expected", "count"), [({}, 0), ({}, 90), ({"power.cpu-heat": "warning"}, 5000)]
)
def test_a_hot_cpu(tree, expected, count):
    """The machine is up for ten hours; a rare short throttling is normal."""
    for cpu in (0, 1):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        tree.write(f"{folder}/package_throttle_count", f"{count}\n")

    assert expected == troubles(power.check(tree.facts()))


@pytest.mark.parametrize(
    ("expected", "governor", "driver"),
    [
        ({"power.governor": "info"}, "powersave", "acpi-cpufreq"),
        ({}, "powersave", "intel_pstate"),
        ({}, "schedutil", "acpi-cpufreq"),
    ],
)
def test_the_cpus_governor(tree, expected, governor, driver):
    """The governor powersave has two meanings, depending on the driver."""
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor)
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver)

    assert expected == troubles(power.check(tree.facts()))


# The machine as a folder


@pytest.mark.parametrize(
    ("name", "files", "env"),
    [
        ("Docker", {".dockerenv": ""}, {}),
        ("Podman", {"run/.containerenv": ""}, {}),
        ("Kubernetes", {}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        ("Apptainer", {}, {"APPTAINER_CONTAINER": "/x.sif"}),
        ("lxc", {}, {"container": "lxc"}),
        ("Docker", {"proc/1/cgroup": "0::/docker/abc\n"}, {}),
        (None, {"proc/1/cgroup": "0::/init.scope\n"}, {}),
    ],
)
def test_containers_are_told(tree, name, files, env):
    """The remedies differ inside a container."""
    for path, text in files.items():
        tree.write(path, text)

    assert name == tree.machine(env=env).container


@pytest.mark.parametrize("path", ["/proc/version", "/proc/self/mem", "/dev/null", "/", "/dev/zero"])
def test_reading_any_file_ends(path):
    """Reading devices, folders or forbidden files returns text or None at once."""
    text = Machine().read(path)

    assert text is None or len(text) <= 1 << 22


def test_a_pipe_nobody_writes_to_is_empty(tree):
    """Opening the pipe must not block."""
    os.mkfifo(tree.root / "pipe")

    assert "" == tree.machine().read("/pipe")
