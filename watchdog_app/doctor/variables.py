"""Variables of the shell that the doctor was started from, which frameworks read without a word."""

from __future__ import annotations

from collections.abc import Iterator

from watchdog_app.doctor.facts import Facts
from watchdog_app.doctor.finding import Finding, Severity


def check(facts: Facts) -> Iterator[Finding]:
    """Visible devices, TensorFlow's memory growth, slow launches."""
    env = facts.machine.env
    if "CUDA_VISIBLE_DEVICES" in env:
        yield _visible(facts, env["CUDA_VISIBLE_DEVICES"])
    growth = env.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth is not None and growth.lower() not in ("true", "false"):
        yield facts.finding("framework.memory-growth", value=growth)
    if env.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield facts.finding("driver.launch-blocking")


def _visible(facts: Facts, value: str) -> Finding:
    """What a value of CUDA_VISIBLE_DEVICES hides."""
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
    """Whether CUDA finds a device for one word of the list, as far as the driver can tell."""
    driver = facts.driver()
    if word.isdigit():
        return driver.devices is None or int(word) < driver.devices
    if not word.startswith(("GPU-", "MIG-")):
        return False
    uuids = [str(card.get("uuid")) for card in driver.usable]
    uuids += [str(one) for card in driver.usable for one in card.get("mig_uuids") or []]
    return not driver.answers or any(uuid.startswith(word) for uuid in uuids)
