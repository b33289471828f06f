"""The path from a program to the GPU, on many kinds of broken machines."""

from __future__ import annotations

import pytest
from doctor_tree import KERNEL, LIBRARIES, Tree, answers, card, found, troubles

from watchdog_app.doctor import driver, variables
from watchdog_app.doctor.machine import Library, libraries, module_version


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def nouveau(tree):
    (tree.root / "sys/module/nouveau").mkdir(parents=True)
    tree.card(driver="nouveau").library()


def module_file(tree, kernel):
    tree.write(f"lib/modules/{kernel}/modules.dep", "updates/dkms/nvidia.ko.zst: kernel/drm.ko\n")


def with_secure_boot(tree):
    tree.card().library()
    module_file(tree, KERNEL)
    tree.write("sys/firmware/efi/efivars/SecureBoot-8be4df61", b"\x06\0\0\0\x01")


def other_kernel(tree):
    tree.card().library()
    module_file(tree, "6.8.0-40-generic")


def installed_not_loaded(tree):
    tree.card().library()
    module_file(tree, KERNEL)


def container_without_gpus(tree):
    tree.write(".dockerenv", "")
    tree.card().module()


def stub_first(tree):
    tree.gpu()
    tree.write("opt/cuda/lib64/stubs/libcuda.so.1", "")


def wsl_with_linux_driver(tree):
    tree.write("dev/dxg", "")
    tree.write("usr/lib/wsl/lib/libcuda.so.1", "")
    tree.library()


def switches(tree):
    tree.gpu().card(9, class_="0x068000")


def rocm(tree):
    tree.card(vendor="0x1002", driver="amdgpu")
    for name in ("kfd", "dri/renderD128", "dri/card0"):
        tree.write(f"dev/{name}", "")
    tree.write("opt/rocm/.info/version", "6.4.1-83\n")


CASES = {
    "all is well": (Tree.gpu, {}),
    "no card": (lambda tree: None, {"driver.device": "info"}),
    "an AMD card without its driver": (
        lambda tree: tree.card(vendor="0x1002"),
        {"driver.amd": "warning"},
    ),
    "an AMD card without ROCm's part of the driver": (
        lambda tree: (
            tree.card(vendor="0x1002", driver="amdgpu"),
            tree.write("dev/dri/renderD128", ""),
        ),
        {"driver.amd": "warning"},
    ),
    "an AMD card that this user may not use": (
        lambda tree: (rocm(tree), tree.shut.add("/dev/dri/renderD128")),
        {"driver.amd": "error"},
    ),
    "an AMD card that works": (rocm, {}),
    "an AMD card beside one of NVIDIA's": (
        lambda tree: (tree.gpu(), tree.card(9, vendor="0x1002")),
        {},
    ),
    "an Intel card": (lambda tree: tree.card(vendor="0x8086"), {"driver.device": "info"}),
    "a sound device of NVIDIA's": (
        lambda tree: tree.card(class_="0x040300"),
        {"driver.device": "info"},
    ),
    "a card for computing only": (
        lambda tree: tree.card(class_="0x030200").module().library().nodes(),
        {},
    ),
    "nouveau": (nouveau, {"driver.nouveau": "error"}),
    "nothing installed": (
        Tree.card,
        {"driver.module": "error", "driver.library": "error", "driver.nvml-library": "warning"},
    ),
    "installed, not loaded": (installed_not_loaded, {"driver.module": "error"}),
    "built for another kernel": (other_kernel, {"driver.module": "error"}),
    "secure boot": (with_secure_boot, {"driver.secure-boot": "error"}),
    "set aside for virtual machines": (
        lambda tree: tree.card(driver="vfio-pci").library(),
        {"driver.module": "error"},
    ),
    "driver updated underneath": (
        lambda tree: tree.card().module("550.54.14").library("550.90.07").nodes(),
        {"driver.version-mismatch": "error"},
    ),
    "an older library first": (
        lambda tree: tree.card().module("550.54.14").library("535.10.01").nodes(),
        {"driver.version-mismatch": "error"},
    ),
    "no device nodes": (lambda tree: tree.card().module().library(), {"driver.nodes": "error"}),
    "container without --gpus": (container_without_gpus, {"driver.nodes": "error"}),
    "no unified memory": (
        lambda tree: tree.card().module().library().nodes("nvidia0", "nvidiactl"),
        {"driver.uvm": "warning"},
    ),
    "two cards, one in the container": (
        lambda tree: tree.gpu().card(2),
        {"driver.some-nodes": "info"},
    ),
    "WSL": (
        lambda tree: (tree.write("dev/dxg", ""), tree.write("usr/lib/wsl/lib/libcuda.so.1", "")),
        {},
    ),
    "WSL on a computer without NVIDIA": (
        lambda tree: (
            tree.write("dev/dxg", ""),
            tree.write("usr/lib/wsl/lib/libd3d12.so", ""),
            tree.write("usr/lib/wsl/drivers/iigd_dch.inf_amd64_0a/igd.dll", ""),
        ),
        {"driver.device": "info"},
    ),
    "WSL that lost Windows' libraries": (
        lambda tree: (
            tree.write("dev/dxg", ""),
            tree.write("usr/lib/wsl/drivers/nv_dispi.inf_amd64_0a/nvcuda64.dll", ""),
        ),
        {"driver.library": "error"},
    ),
    "CUDA's forward compatibility in a container": (
        lambda tree: (
            tree.gpu(),
            tree.write(".dockerenv", ""),
            tree.library("575.57.08", "usr/local/cuda/compat/lib.real"),
            tree.write("etc/ld.so.cache", b"\0/usr/local/cuda/compat/lib.real/libcuda.so.1\0"),
        ),
        {},
    ),
    "WSL with a Linux driver": (wsl_with_linux_driver, {"driver.wsl-library": "error"}),
    "switches without their manager": (switches, {"driver.fabric-manager": "error"}),
    "a Jetson": (lambda tree: (tree.write("etc/nv_tegra_release", ""), tree.library()), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_odd_machine_gets_its_finding_and_no_other(tree, name):
    """A false alarm costs as much trust as a missing one."""
    lay_out, expected = CASES[name]
    lay_out(tree)

    assert expected == troubles(driver.check(tree.facts()))


def test_a_stub_library_on_the_path_is_told(tree):
    """The CUDA toolkit's stub library hides the real driver."""
    stub_first(tree)

    facts = tree.facts(env={"LD_LIBRARY_PATH": "/opt/cuda/lib64/stubs"})

    assert "error" == troubles(driver.check(facts))["driver.stub-library"]


def test_a_mismatch_names_both_versions_and_the_restart(tree):
    """The user needs the reason and the command."""
    tree.card().module("550.54.14").library("550.90.07").nodes()

    finding = found(driver.check(tree.facts()))["driver.version-mismatch"]

    assert "550.54.14" in finding.what
    assert "550.90.07" in finding.what
    assert "sudo reboot" == finding.commands[0]
    assert "sudo modprobe nvidia nvidia_uvm" == finding.commands[-1]


def test_in_a_container_the_advice_is_the_containers(tree):
    """A user cannot load a kernel module from inside a container."""
    tree.write(".dockerenv", "")
    tree.card().library()

    finding = found(driver.check(tree.facts()))["driver.module"]

    assert "Docker" in finding.what
    assert "--gpus all" in finding.commands[0]


def test_nodes_that_the_user_may_not_open_are_named(tree):
    """Root can open the nodes; normal users cannot."""
    tree.gpu()
    tree.shut.add("/dev/nvidia0")

    finding = found(driver.check(tree.facts()))["driver.permissions"]

    assert "/dev/nvidia0" in finding.what


def test_an_amd_machine_hears_nothing_of_nvidia(tree):
    """What is fine is told with the version of ROCm; a missing group is named."""
    rocm(tree)

    fine = list(driver.check(tree.facts()))
    tree.shut.add("/dev/kfd")
    closed = list(driver.check(tree.facts()))

    assert ["driver.amd"] == [each.id for each in fine] == [each.id for each in closed]
    assert "6.4.1-83" in fine[0].what
    assert "/dev/kfd" in closed[0].what
    assert any("usermod" in command for command in closed[0].commands)
    told = f"{fine} {closed}".lower()
    assert "nvidia" not in told
    assert "cuda" not in told


def test_a_fabric_manager_that_runs_is_enough(tree):
    """/proc cuts names after 15 characters."""
    switches(tree)
    tree.process(77, "/usr/bin/nv-fabricmanager", name="nv-fabricmanage")

    assert {} == troubles(driver.check(tree.facts()))


def test_the_first_library_is_the_one_that_the_loader_takes(tree):
    """LD_LIBRARY_PATH precedes the cache, and the cache precedes the default folders."""
    tree.library("550.90.07").library("535.10.01", "opt/old").library("560.1.2", "opt/cached")
    tree.write("etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\0\0/opt/cached/libcuda.so.1\0other\0")

    versions = [
        one.version
        for one in libraries(tree.machine(env={"LD_LIBRARY_PATH": ":/opt/old"}), "libcuda.so.1")
    ]

    assert [(535, 10, 1), (560, 1, 2), (550, 90, 7)] == versions


def test_a_dangling_link_is_no_library(tree):
    """An uninstalled package leaves such links."""
    (tree.root / LIBRARIES).mkdir(parents=True)
    (tree.root / LIBRARIES / "libcuda.so.1").symlink_to("libcuda.so.550.1.1")

    assert [] == libraries(tree.machine(), "libcuda.so.1")


def test_a_library_without_a_version_in_its_name_is_taken(tree):
    """WSL and Jetson name the library so."""
    tree.write("usr/lib/wsl/lib/libcuda.so.1", "")

    assert [Library("/usr/lib/wsl/lib/libcuda.so.1", (), False)] == libraries(
        tree.machine(), "libcuda.so.1"
    )


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ((550, 54, 14), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n"),
        (
            (570, 86),
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n",
        ),
        ((), "nonsense \xff"),
        ((), ""),
    ],
)
def test_the_modules_version_is_read_from_either_form(tree, version, text):
    """The closed and the open module print different lines."""
    tree.write("proc/driver/nvidia/version", text)

    assert version == module_version(tree.machine())


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ({"driver.visible-devices": "error"}, ""),
        ({"driver.visible-devices": "error"}, " "),
        ({"driver.visible-devices": "error"}, "-1"),
        ({"driver.visible-devices": "error"}, "7"),
        ({"driver.visible-devices": "error"}, "none"),
        ({"driver.visible-devices": "error"}, "GPU-nobody"),
        ({"driver.visible-devices": "error"}, "0,0"),
        ({"driver.visible-devices": "warning"}, "0,5,1"),
        ({"driver.visible-devices": "warning"}, "1,-1"),
        ({}, "0"),
        ({}, "1, 0"),
        ({}, "GPU-1ab"),
        ({}, "MIG-7"),
    ],
)
def test_what_hides_gpus_is_told(tree, expected, value):
    """CUDA reports no error, and the training runs on the CPU."""
    tree.gpu()
    told = answers(card(0), card(1, partitioned=True, mig_uuids=["MIG-77"]))

    facts = tree.facts(told, env={"CUDA_VISIBLE_DEVICES": value})

    assert expected == troubles(variables.check(facts))


def test_an_override_of_the_amd_model_is_told_where_there_is_such_a_card(tree):
    """ROCm then runs code of another model."""
    env = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
    nowhere = troubles(variables.check(tree.facts(env=env)))
    rocm(tree)

    finding = found(variables.check(tree.facts(env=env)))["driver.hsa-override"]

    assert {} == nowhere
    assert "10.3.0" in finding.what


@pytest.mark.parametrize(
    ("id_", "env"),
    [
        ("framework.memory-growth", {"TF_FORCE_GPU_ALLOW_GROWTH": "yes"}),
        ("driver.launch-blocking", {"CUDA_LAUNCH_BLOCKING": "1"}),
        ("framework.allocator", {"TF_GPU_ALLOCATOR": "jemalloc"}),
        ("framework.torch-allocator", {"PYTORCH_ALLOC_CONF": "expandable_segments"}),
        ("framework.torch-allocator", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20"}),
        ("framework.torch-allocator", {"PYTORCH_CUDA_ALLOC_CONF": "backend:mine"}),
        ("framework.torch-allocator", {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:1.5"}),
        ("driver.container-devices", {"container": "docker", "NVIDIA_VISIBLE_DEVICES": "void"}),
    ],
)
def test_variables_with_a_slip_are_told(tree, id_, env):
    """Each wrong value has its finding, and right values have none."""
    options = (
        "backend:cudaMallocAsync, expandable_segments:True,garbage_collection_threshold:0.8",
        "max_split_size_mb:512,roundup_power2_divisions:[256:1,512:2,>:8],",
    )
    right = {
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "CUDA_LAUNCH_BLOCKING": "0",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        "PYTORCH_ALLOC_CONF": ",".join(options),
        "NVIDIA_VISIBLE_DEVICES": "none",  # has no meaning outside a container
    }

    assert [id_] == list(troubles(variables.check(tree.facts(env=env))))
    assert {} == troubles(variables.check(tree.facts(env=right)))
