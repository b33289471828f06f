"""The watched processes of a captured machine that changes between samples."""

from __future__ import annotations

import os
import shutil

import pytest
from sensor_trees import NOW_UNIX_S, Tree, by_pid

from watchdog_app.base.errors import Gone, Unsupported
from watchdog_app.core.model.machine import ProcessKey, TaskKind
from watchdog_app.machine.sensors.machine import LinuxMachine

UUID = "0f21e5a4-86a8-4d52-9c1c-7a0a3ce1b111"
PAGE = os.sysconf("SC_PAGESIZE")


def test_captured_machine_shows_its_python_processes(tree: Tree):
    """Kind, name and paths as the user knows them; no shell, no kernel thread, no zombie."""
    with_names = {
        pid: (info.kind, info.name)
        for pid, info in by_pid(tree.machine().sample(0.0, NOW_UNIX_S)).items()
    }

    assert {
        410: (TaskKind.SERVER, "jupyter-lab"),
        420: (TaskKind.NOTEBOOK, "train.ipynb"),
        421: (TaskKind.PYTHON, "multiprocessing worker"),
        431: (TaskKind.SCRIPT, "train.py"),
        432: (TaskKind.SCRIPT, "train.py"),
        433: (TaskKind.SCRIPT, "train.py"),
        440: (TaskKind.KERNEL, "kernel in vision"),
        450: (TaskKind.SCRIPT, "odd.py"),
        471: (TaskKind.SCRIPT, "report.py"),
    } == with_names


def test_all_that_is_known_of_a_kernel(tree: Tree):
    """The info has notebook, kernel id, memory group, folder and start."""
    info = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))[420]
    uptime_s = float((tree.proc / "uptime").read_text().split()[0])

    assert "/home/user/project/train.ipynb" == info.notebook
    assert UUID == info.kernel_id
    assert f"{tree.groups}/memory/jupyter/train" == info.cgroup
    assert "/home/user/project" == info.cwd
    assert pytest.approx(NOW_UNIX_S - uptime_s + 52.0) == info.started_unix_s
    assert ProcessKey(410, 5100) == info.ancestor
    assert "hidden" not in repr(info)


def test_script_is_resolved_by_its_folder_and_carries_its_limit(tree: Tree):
    """The command line says `train.py`; the folder completes it."""
    info = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))[431]

    assert "/home/user/project/train.py" == info.script
    assert 34359738368 == info.rlimit_as_bytes


def test_ancestors_go_through_shells_but_not_through_terminals(tree: Tree):
    """A notebook's `!python report.py` belongs to the notebook; a terminal's script is separate."""
    infos = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))

    assert ProcessKey(420, 5200) == infos[471].ancestor
    assert ProcessKey(420, 5200) == infos[421].ancestor
    assert infos[431].ancestor is None
    assert ProcessKey(431, 5310) == infos[432].ancestor


def test_figures_of_a_process(tree: Tree):
    """
    Resident and shared bytes, state and processor time are read; swap is 0 on a machine without
    swap.
    """
    samples = {s.key.pid: s for s in tree.machine().sample(0.0, NOW_UNIX_S).processes}
    shared_pages = int((tree.proc / "420/statm").read_text().split()[2])

    assert 300000 * PAGE == samples[420].rss_bytes
    assert shared_pages * PAGE == samples[420].shared_bytes
    assert ("S", 0, 410) == (samples[420].state, samples[420].swap_bytes, samples[420].ppid)


def test_swap_of_processes_is_read_once_the_machine_swaps(tree: Tree):
    """VmSwap of status; unknown if the process has none."""
    tree.rewrite("meminfo", "SwapTotal:             0 kB", "SwapTotal:       1000000 kB")
    tree.rewrite("420/status", "VmSwap:\t       0 kB", "VmSwap:\t    2048 kB")
    tree.write("431/status", "Name:\tpython\n")

    samples = {s.key.pid: s for s in tree.machine().sample(0.0, NOW_UNIX_S).processes}

    assert 2048 * 1024 == samples[420].swap_bytes
    assert samples[431].swap_bytes is None


def test_shared_memory_is_told_from_pages_of_files_whenever_shared_pages_have_moved(tree: Tree):
    """RssShmem of status, which is read only when the shared pages have changed."""
    machine = tree.machine()

    def shmem(pages: int, kib: int) -> int | None:
        tree.write("420/statm", f"900000 300000 {pages} 1 0 1676 0\n")
        tree.fault(420)
        tree.write("420/status", f"Name:\tpython\nRssShmem:\t{kib:8} kB\n")
        moment_s = float(len(seen))
        found = {s.key.pid: s for s in machine.sample(moment_s, NOW_UNIX_S).processes}
        return found[420].shmem_bytes

    step = (4 << 20) // PAGE
    seen: list[int | None] = []
    for pages, kib in ((step - 1, 7), (2 * step, 5000), (2 * step + 1, 5004), (4 * step, 13000)):
        seen.append(shmem(pages, kib))

    assert [None, 5000 * 1024, 5000 * 1024, 13000 * 1024] == seen


def test_a_process_whose_line_has_not_changed_is_not_read_further(tree: Tree):
    """It was idle: no fault, no tick, no page. When it becomes active, its change shows at once."""
    machine = tree.machine()
    key = ProcessKey(420, 5200)
    before = {s.key: s for s in machine.sample(0.0, NOW_UNIX_S).processes}[key]
    tree.write("420/statm", "900000 400000 5 1 0 1676 0\n")

    idle = {s.key: s for s in machine.sample(1.0, NOW_UNIX_S).processes}[key]
    tree.fault(420)
    busy = {s.key: s for s in machine.sample(2.0, NOW_UNIX_S).processes}[key]

    assert before is idle
    assert 400000 * PAGE == busy.rss_bytes
    assert 400000 * PAGE == machine.read_process(key).rss_bytes


def test_process_that_ends_is_dropped_and_its_descriptors_with_it(
    tree: Tree, machine: LinuxMachine
):
    """A process may end between two ticks: no error, no fault."""
    before = len(os.listdir("/proc/self/fd"))
    tree.remove(450)

    snapshot = machine.sample(1.0, NOW_UNIX_S)

    assert 450 not in by_pid(snapshot)
    assert 450 not in {sample.key.pid for sample in snapshot.processes}
    assert () == snapshot.faults
    assert len(os.listdir("/proc/self/fd")) < before


def test_process_that_begins_is_found_by_the_next_tick(tree: Tree, machine):
    """Only the new process is read in full."""
    tree.copy(450, 900, start=9000)

    assert ProcessKey(900, 9000) == by_pid(machine.sample(1.0, NOW_UNIX_S))[900].key


def test_zombie_has_ended(tree: Tree, machine):
    """Its memory is already freed, although its parent has not reaped it."""
    tree.rewrite("450/stat", ") S 1", ") Z 1")

    assert 450 not in by_pid(machine.sample(1.0, NOW_UNIX_S))
    assert not machine.alive(ProcessKey(450, 5500))


def test_process_whose_first_thread_has_ended_lives(tree: Tree):
    """It has a zombie's state letter, but other threads."""
    machine = tree.machine()
    tree.rewrite("450/stat", ") S 1", ") Z 1")
    tree.rewrite("450/stat", " 0 20 0 1 0 ", " 0 20 0 3 0 ")

    assert machine.alive(ProcessKey(450, 5500))


def test_pid_that_another_process_took_over_is_another_process(tree: Tree, machine):
    """Same pid, other start time: the old process is gone and the new one is read."""
    tree.rewrite("450/stat", " 5500 ", " 7700 ")
    tree.write("450/cmdline", b"python\0/home/user/new.py\0")

    machine.sample(1.0, NOW_UNIX_S)
    found = by_pid(machine.sample(2.0, NOW_UNIX_S))[450]

    assert (ProcessKey(450, 7700), "new.py") == (found.key, found.name)
    assert not machine.alive(ProcessKey(450, 5500))
    assert machine.alive(ProcessKey(450, 7700))
    with pytest.raises(Gone):
        machine.read_process(ProcessKey(450, 5500))


def test_shell_that_becomes_python_is_found(tree: Tree, machine):
    """By exec, with the same pid and start time: at once while it is young."""
    tree.link("430/exe", "/usr/bin/python3.11")
    tree.write("430/cmdline", b"python\0/home/user/late.py\0")

    assert "late.py" == by_pid(machine.sample(1.0, NOW_UNIX_S))[430].name


def test_old_shell_that_becomes_python_is_found_within_a_round(tree: Tree):
    """Old processes are checked in turn, each within about twenty-five seconds."""
    machine = tree.machine()
    for second in range(10):
        machine.sample(float(second), NOW_UNIX_S)
    tree.link("430/exe", "/usr/bin/python3.11")
    tree.write("430/cmdline", b"python\0/home/user/late.py\0")

    names = [by_pid(machine.sample(float(second), NOW_UNIX_S)).get(430) for second in range(10, 38)]

    assert "late.py" == names[-1].name


def test_python_that_becomes_another_script_is_read_anew(tree: Tree):
    """exec moves the stack, which the figures of the same tick show."""
    machine = tree.machine()
    for second in range(10):
        machine.sample(float(second), NOW_UNIX_S)
    tree.write("450/cmdline", b"python\0/home/user/second.py\0")
    tree.rewrite("450/stat", " 140000000000450 ", " 140000000999999 ")

    assert "second.py" == by_pid(machine.sample(10.0, NOW_UNIX_S))[450].name


def test_python_that_becomes_a_shell_is_watched_no_longer(tree: Tree, machine):
    """A program may exec another one."""
    tree.link("450/exe", "/usr/bin/bash")
    tree.rewrite("450/stat", " 140000000000450 ", " 140000000999999 ")

    assert 450 not in by_pid(machine.sample(1.0, NOW_UNIX_S))


def test_title_that_changes_keeps_the_name_of_a_script(tree: Tree, machine):
    """setproctitle is not an exec: the script stays the script."""
    tree.write("450/cmdline", b"odd: epoch 5\0\0\0\0")
    tree.rewrite("450/stat", "() Z ()", "(odd: epoch 5)")

    assert "odd.py" == by_pid(machine.sample(1.0, NOW_UNIX_S))[450].name


def test_title_of_a_worker_is_followed(tree: Tree):
    """Ray's workers describe their work in it."""
    tree.write("450/cmdline", b"ray::IDLE\0")
    machine = tree.machine()
    machine.sample(0.0, NOW_UNIX_S)
    tree.write("450/cmdline", b"ray::train\0")

    assert "ray::train" == by_pid(machine.sample(1.0, NOW_UNIX_S))[450].name


def test_limit_and_group_that_a_program_takes_on_are_noticed(tree: Tree, machine):
    """`resource.setrlimit` at the start of a script; a launcher that moves itself."""
    shutil.copy(tree.proc / "431/limits", tree.proc / "450/limits")
    tree.enter_group(450, "4:memory:/jupyter/train")

    info = by_pid(machine.sample(1.0, NOW_UNIX_S))[450]

    assert 34359738368 == info.rlimit_as_bytes
    assert f"{tree.groups}/memory/jupyter/train" == info.cgroup


def test_the_group_of_a_process_that_announces_growth_is_looked_at_anew(
    tree: Tree, machine: LinuxMachine
):
    """It is read at once, not a second later."""
    machine.sample(21.0, NOW_UNIX_S)
    os.mkdir(f"{tree.groups}/memory/elsewhere")
    for pid in (431, 450):
        tree.enter_group(pid, "4:memory:/elsewhere")
    before = by_pid(machine.sample(21.1, NOW_UNIX_S))[450]
    machine.review(ProcessKey(450, before.key.start_time + 1))  # another process with that pid
    same = by_pid(machine.sample(21.2, NOW_UNIX_S))[450]

    machine.review(before.key)
    after = by_pid(machine.sample(21.3, NOW_UNIX_S))

    moved = f"{tree.groups}/memory/elsewhere"
    assert before.cgroup == same.cgroup != moved
    assert moved == after[450].cgroup


def test_the_limits_above_a_process_that_announces_growth_are_read_anew(tree: Tree):
    """They are read at once, not some seconds later."""
    machine = tree.machine()
    first = machine.sample(0.0, NOW_UNIX_S)
    (key,) = [one.key for one in first.processes if one.key.pid == 450]
    group = first.infos[key].cgroup
    assert group is not None
    with open(f"{group}/memory.limit_in_bytes", "w") as file:
        file.write("123457536\n")
    same = {each.path: each.limit_bytes for each in machine.sample(1.0, NOW_UNIX_S).cgroups}

    machine.review(key)
    after = {each.path: each.limit_bytes for each in machine.sample(2.0, NOW_UNIX_S).cgroups}

    assert 123457536 != same.get(group)
    assert 123457536 == after[group]


def test_infos_are_the_same_object_until_something_changes(tree: Tree):
    """A caller can see cheaply that nothing is new."""
    machine = tree.machine()
    first = machine.sample(0.0, NOW_UNIX_S).infos
    second = machine.sample(0.1, NOW_UNIX_S).infos
    tree.remove(450)
    third = machine.sample(0.2, NOW_UNIX_S).infos

    assert first is second
    assert ProcessKey(450, 5500) in second
    assert ProcessKey(450, 5500) not in third


def test_watchdog_and_this_very_process_are_not_watched(tree: Tree):
    """The command line or the pid excludes them."""
    own = os.getpid()
    # In a container this pid is small: the tree may have a process with it.
    shutil.rmtree(tree.proc / str(own), ignore_errors=True)
    tree.copy(450, own, start=9000)

    infos = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))

    assert 460 not in infos
    assert own not in infos


def test_other_users_are_not_watched(tree: Tree):
    """A user watches their own processes; root watches all."""
    other = os.getuid() + 1

    assert {} == dict(tree.machine(own_uid=other).sample(0.0, NOW_UNIX_S).infos)
    assert 9 == len(tree.machine(own_uid=0).sample(0.0, NOW_UNIX_S).infos)


def test_program_that_merely_embeds_python_is_not_watched(tree: Tree):
    """For example frozen by PyInstaller: only its memory map shows Python."""
    tree.link("450/exe", "/home/user/dist/segment")
    tree.write("450/maps", "7f00-7f01 r-xp 0 0:0 1 /home/user/dist/libpython3.11.so.1.0\n")

    assert 450 not in by_pid(tree.machine().sample(0.0, NOW_UNIX_S))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("450/stat", b""),
        ("450/stat", b"450 (x) S 1"),
        ("450/statm", b""),
        ("450/statm", b"1 2"),
        ("450/cmdline", b"\xff\xfe\0\xff"),
        ("450/cmdline", b""),
        ("450/cgroup", b"\xff:\n::::\n"),
        ("450/limits", b"Max address space"),
        ("450/environ", b"\0\0\xff=\xff"),
    ],
)
def test_file_full_of_rubbish_costs_no_other_process(tree: Tree, path: str, data: bytes):
    """At worst that one process is missing."""
    tree.write(path, data)

    assert {410, 420, 431} <= set(by_pid(tree.machine().sample(0.0, NOW_UNIX_S)))


def test_half_a_line_for_a_moment_is_not_a_death(tree: Tree):
    """The last figures stay until the next tick."""
    machine = tree.machine()
    before = {s.key: s for s in machine.sample(0.0, NOW_UNIX_S).processes}
    tree.write("450/statm", b"1 2")
    tree.fault(450)

    after = {s.key: s for s in machine.sample(0.1, NOW_UNIX_S).processes}

    assert before[ProcessKey(450, 5500)] == after[ProcessKey(450, 5500)]
    with pytest.raises(Unsupported):  # an action needs a current reading
        machine.read_process(ProcessKey(450, 5500))
    assert machine.alive(ProcessKey(450, 5500))


@pytest.mark.parametrize("name", ["cmdline", "environ", "cgroup", "limits", "cwd", "status"])
def test_file_that_may_not_be_read_leaves_that_unknown(tree: Tree, name: str):
    """The process is still watched."""
    (tree.proc / f"420/{name}").unlink()

    assert 420 in by_pid(tree.machine().sample(0.0, NOW_UNIX_S))


def test_kernel_without_environment_is_named_by_its_connection_file(tree: Tree, tmp_path):
    """The file is at the path of the command line."""
    (tree.proc / "420/environ").unlink()
    connection = tmp_path / f"kernel-{UUID}.json"
    connection.write_text('{"jupyter_session": "/home/user/other.ipynb", "key": "secret"}')
    tree.write("420/cmdline", f"python\0-m\0ipykernel_launcher\0-f\0{connection}\0")

    info = by_pid(tree.machine().sample(0.0, NOW_UNIX_S))[420]

    assert ("other.ipynb", "/home/user/other.ipynb") == (info.name, info.notebook)


def test_machine_without_a_process_list_says_so_and_watches_memory(
    tree: Tree, machine: LinuxMachine
):
    """There is one fault while it lasts, and none afterwards."""
    hidden = tree.proc.rename(tree.proc.with_name("hidden"))

    broken = machine.sample(1.0, NOW_UNIX_S)
    hidden.rename(tree.proc)
    healed = machine.sample(2.0, NOW_UNIX_S)

    assert ["processes"] == [fault.source for fault in broken.faults]
    assert broken.host.total_bytes > 0
    assert () == healed.faults
    machine.close()


def test_v2_machine_gives_the_groups_above_its_processes(tree: Tree):
    """Only limited groups are listed, each once."""
    tree.use_v2()
    scope = "user.slice/user-1000.slice/user@1000.service/app.slice/train.scope"
    for pid in (420, 421):
        tree.enter_group(pid, f"0::/{scope}")

    snapshot = tree.machine().sample(0.0, NOW_UNIX_S)

    assert f"{tree.groups}/{scope}" == by_pid(snapshot)[420].cgroup
    assert ["user-1000.slice", "train.scope"] == [
        os.path.basename(group.path) for group in snapshot.cgroups
    ]


def test_disks_are_watched_as_asked(tree: Tree, tmp_path):
    """For a missing folder its parent counts."""
    machine = tree.machine()
    path = str(tmp_path / "rescues" / "later")
    machine.watch_disks([path])
    machine.watch_disks([path])
    both = machine.sample(0.0, NOW_UNIX_S).gauges
    machine.watch_disks([])

    assert [path] == [disk.subject for disk in both]
    assert shutil.disk_usage(tmp_path).total == both[0].limit
    assert () == machine.sample(1.0, NOW_UNIX_S).gauges


def test_closing_gives_every_descriptor_back(tree: Tree):
    """This also holds after many ticks."""
    before = sorted(os.listdir("/proc/self/fd"))
    machine = tree.machine()
    for second in range(20):
        machine.sample(float(second), NOW_UNIX_S)

    machine.close()

    assert before == sorted(os.listdir("/proc/self/fd"))


def test_descriptors_stay_bounded_where_many_are_watched(tree: Tree):
    """Above its share of the limit the table reopens files at each tick."""
    import resource

    for pid in range(1000, 1120):
        tree.copy(450, pid, start=pid)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        machine = tree.machine()
        found = [len(machine.sample(float(s), NOW_UNIX_S).processes) for s in range(3)]
        machine.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [129, 129, 129] == found


def test_process_tree_of_reused_pids_ends(tree: Tree):
    """Two shells that are each other's parents cause no endless loop."""
    tree.copy(430, 902, start=1)
    tree.rewrite("430/stat", "S 410 430 430 34816", "S 902 77 77 0")
    tree.rewrite("902/stat", "S 410 430 430 34816", "S 430 77 77 0")

    assert by_pid(tree.machine().sample(0.0, NOW_UNIX_S))[431].ancestor is None


def test_real_machine_has_this_test_as_its_parent_process():
    """Its own pid is not watched, its user is known, memory is plausible."""
    machine = LinuxMachine()

    snapshot = machine.sample(0.0, NOW_UNIX_S)

    assert os.getpid() not in by_pid(snapshot)
    assert 0 < snapshot.host.available_bytes <= snapshot.host.total_bytes
    machine.close()
