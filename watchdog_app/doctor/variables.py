"""Variables of the doctor's shell that frameworks read silently."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity
from watchdog_app.machine.gpu.pci import AMD

# Values that PyTorch's allocator accepts. PyTorch itself reports an option that it does not know.
_TORCH_OPTIONS = {
    "backend": "native|cudaMallocAsync",
    "expandable_segments": "(?i:true|false|1|0)",
    "garbage_collection_threshold": r"0?\.\d*[1-9]\d*",
    "max_split_size_mb": r"2[1-9]|[3-9]\d|[1-9]\d{2,}",
}


def check(facts: Facts) -> Iterator[Finding]:
    """Check visible devices, the frameworks' allocators and slow launches."""
    env = facts.machine.env
    if "CUDA_VISIBLE_DEVICES" in env:
        yield _visible(facts, env["CUDA_VISIBLE_DEVICES"])
    growth = env.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth is not None and growth.lower() not in ("true", "false"):
        yield facts.finding("framework.memory-growth", value=growth)
    if env.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield facts.finding("driver.launch-blocking")
    if env.get("HSA_OVERRIDE_GFX_VERSION") and facts.pci_gpus(AMD):
        yield facts.finding("driver.hsa-override", value=env["HSA_OVERRIDE_GFX_VERSION"])
    allocator = env.get("TF_GPU_ALLOCATOR")
    if allocator not in (None, "", "cuda_malloc_async"):
        yield facts.finding("framework.allocator", value=allocator)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        wrong = _wrong_torch_option(env.get(name, ""))
        if wrong is not None:
            yield facts.finding(
                "framework.torch-allocator", name=name, value=env[name], wrong=wrong
            )
    given = env.get("NVIDIA_VISIBLE_DEVICES")
    if facts.machine.container and given in ("", "none", "void"):
        severity = Severity.ERROR if facts.expects_gpu else None
        yield facts.finding("driver.container-devices", severity=severity, value=given)


def _wrong_torch_option(value: str) -> str | None:
    """Return the first setting that PyTorch's allocator refuses; None: none known."""
    for option in re.split(r",(?![^\[]*\])", value):  # not within [lists]
        name, _, setting = (part.strip() for part in option.partition(":"))
        if option.strip() and not re.fullmatch(_TORCH_OPTIONS.get(name, ".*"), setting):
            return option.strip()
    return None


def _visible(facts: Facts, value: str) -> Finding:
    """Report what a value of CUDA_VISIBLE_DEVICES hides."""
    if not facts.expects_gpu:
        return facts.finding("driver.visible-devices.no-gpu", value=value)
    if not value.strip():
        return facts.finding("driver.visible-devices.empty")
    words = [word.strip() for word in value.split(",")]
    good = next((at for at, word in enumerate(words) if not _names_device(facts, word)), len(words))
    if good < len(words):
        count = facts.driver().devices
        return facts.finding(
            "driver.visible-devices.wrong",
            severity=Severity.WARNING if good else Severity.ERROR,
            value=value,
            hidden=f"all but the first {good} that it names" if good else "every GPU",
            word=words[good],
            there="the GPUs" if count is None else f"{count} GPU{'' if count == 1 else 's'}",
        )
    if len(set(words)) < len(words):
        return facts.finding("driver.visible-devices.twice", value=value)
    return facts.fine("driver.visible-devices", value=value)


def _names_device(facts: Facts, word: str) -> bool:
    """Return whether CUDA finds a device for one entry of the list, as far as the driver says."""
    driver = facts.driver()
    if word.isdigit():
        return driver.devices is None or int(word) < driver.devices
    if not word.startswith(("GPU-", "MIG-")):
        return False
    uuids = [str(card.get("uuid")) for card in driver.usable]
    uuids += [str(one) for card in driver.usable for one in card.get("mig_uuids") or []]
    return not driver.answers or any(uuid.startswith(word) for uuid in uuids)
