"""Memory values of the frameworks' GPU allocators, mostly with fake frameworks."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.finished import finished

from watchdog_app.agent.telemetry import allocators
from watchdog_app.agent.telemetry.allocators import Allocators

GIB = 2**30
CARD = "GPU-00112233-4455-6677-8899-aabbccddeeff"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Torch:
    """The parts of torch.cuda that the agent uses; `asked` records calls that would wake a GPU."""

    def __init__(self, *, initialized: bool = True, reserved: tuple[int, ...] = (6 * GIB,)) -> None:
        self.initialized, self.reserved = initialized, reserved
        self.asked: list[str] = []
        self.cuda = self

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        self.asked.append("count")
        return len(self.reserved)

    def memory_stats(self, index: int) -> dict[str, int]:
        held = self.reserved[index]
        if not held:
            return {}
        return {
            "reserved_bytes.all.current": held,
            "allocated_bytes.all.current": 4 * GIB,
            "allocated_bytes.all.peak": 5 * GIB,
            "inactive_split_bytes.all.current": GIB,
            "num_alloc_retries": 3,
            "num_ooms": 1,
        }

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.asked.append(f"mem_get_info {index}")
        return 2 * GIB, 16 * GIB

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=CARD.removeprefix("GPU-"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove both frameworks from sys.modules, whatever other tests loaded."""
    for name in ("torch", "tensorflow", "tensorflow.python.eager.context", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return monkeypatch


def test_torch_tells_live_memory_against_what_it_can_still_have(alone, clock):
    """Headroom is free + reserved - allocated - inactive split: here 3 of 8 GiB."""
    alone.setitem(sys.modules, "torch", Torch())

    (found,) = Allocators(clock).read()

    assert {
        "device": "cuda:0",
        "used_bytes": 5 * GIB,
        "limit_bytes": 8 * GIB,
        "gpu_uuid": CARD,
        "peak_bytes": 5 * GIB,
        "retries": 3,
        "ooms": 1,
    } == found
    assert found == json.loads(json.dumps(found))


def test_a_share_that_the_program_allowed_itself_is_the_limit(alone, clock):
    """set_per_process_memory_fraction(0.4) limits the process to 0.4 of 16 GiB."""
    torch = Torch()
    torch.get_per_process_memory_fraction = lambda index: 0.4  # type: ignore[attr-defined]
    alone.setitem(sys.modules, "torch", torch)

    assert [int(0.4 * 16 * GIB)] == [each["limit_bytes"] for each in Allocators(clock).read()]


def test_a_torch_that_has_not_begun_with_cuda_is_not_made_to(alone, clock):
    """Even reading the number of devices would initialise CUDA."""
    torch = Torch(initialized=False)
    alone.setitem(sys.modules, "torch", torch)

    assert [] == Allocators(clock).read()
    assert [] == torch.asked


def test_a_card_that_torch_holds_nothing_of_gets_no_context_of_ours(alone, clock):
    """mem_get_info would create a context of hundreds of MB on it."""
    torch = Torch(reserved=(0, 6 * GIB))
    alone.setitem(sys.modules, "torch", torch)

    assert ["cuda:1"] == [each["device"] for each in Allocators(clock).read()]
    assert "mem_get_info 0" not in torch.asked


@pytest.mark.parametrize("broken", [SimpleNamespace(), SimpleNamespace(cuda=None), None, 7])
def test_a_torch_of_another_shape_costs_its_figures_and_nothing_else(alone, clock, broken):
    """Examples are a half-imported torch, one without CUDA and a later version."""
    alone.setitem(sys.modules, "torch", broken)

    assert [] == Allocators(clock).read()


@pytest.mark.parametrize("name", ["memory_stats", "mem_get_info", "get_device_properties"])
def test_an_error_of_the_driver_stays_in_torch(alone, clock, name):
    """A lost GPU raises from every call."""
    torch = Torch()

    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA error: device-side assert triggered")

    setattr(torch, name, fail)
    alone.setitem(sys.modules, "torch", torch)

    assert [] == Allocators(clock).read()


def test_figures_are_taken_once_a_second(alone, clock):
    """More frequent reports reuse the values."""
    torch = Torch()
    alone.setitem(sys.modules, "torch", torch)
    allocators = Allocators(clock)

    for _ in range(9):
        allocators.read()
        clock.now_s += 0.25

    assert 3 == torch.asked.count("count")


def test_more_devices_than_the_daemon_takes_are_left_out(alone, clock):
    """The limit is 64 devices."""
    alone.setitem(sys.modules, "torch", Torch(reserved=(GIB,) * 100))

    assert allocators.MOST_DEVICES == len(Allocators(clock).read())


class Jax:
    """The parts of JAX that the agent uses; `asked` says whether a call would have taken a card."""

    def __init__(self, *stats: dict[str, int] | None, initialized: bool = True) -> None:
        self.stats, self.initialized, self.asked = stats, initialized, False

    def backends_are_initialized(self) -> bool:
        return self.initialized

    def local_devices(self) -> list[SimpleNamespace]:
        self.asked = True
        return [
            SimpleNamespace(
                platform="gpu" if each is not None else "cpu",
                local_hardware_id=number,
                memory_stats=lambda each=each: each,
            )
            for number, each in enumerate(self.stats)
        ]


@pytest.mark.parametrize("initialized", [True, False])
def test_jax_tells_live_memory_against_the_share_that_it_took(alone, clock, initialized):
    """JAX takes 75 % of a card at its start: to the driver the card looks as full all the time."""
    figures = {"bytes_in_use": GIB, "bytes_limit": 6 * GIB, "peak_bytes_in_use": 2 * GIB}
    jax = Jax(figures, None, {}, initialized=initialized)
    alone.setitem(sys.modules, "jax", jax)
    alone.setitem(sys.modules, "jax._src.xla_bridge", jax)
    alone.setattr(allocators, "_loaded_library", lambda path: path)
    alone.setattr(allocators, "uuid_of", lambda cuda, ordinal: CARD)

    told = Allocators(clock).read()

    row = {
        "device": "gpu:0", "used_bytes": GIB, "limit_bytes": 6 * GIB, "gpu_uuid": CARD,
        "peak_bytes": 2 * GIB,
    }  # fmt: skip
    assert ([row] if initialized else []) == told
    assert jax.asked is initialized


class TensorFlow:
    """The parts of tf.config that the agent uses: physical GPUs and their configured limits."""

    def __init__(self, cards: dict[int, list[int] | None], told: dict[str, int]) -> None:
        self.cards, self.told = cards, told
        self.silent: set[str] = set()
        self.listed = 0
        self.config = self.experimental = self
        self.__file__ = "/nowhere/tensorflow/__init__.py"

    def list_logical_devices(self, kind: str) -> list[SimpleNamespace]:
        self.listed += 1
        count = sum(len(parts or [0]) for parts in self.cards.values())
        return [SimpleNamespace(name=f"/device:GPU:{index}") for index in range(count)]

    def get_visible_devices(self, kind: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"/physical_device:GPU:{card}") for card in self.cards]

    def get_logical_device_configuration(self, card: SimpleNamespace) -> Any:
        parts = self.cards[int(card.name[-1])]
        return parts and [SimpleNamespace(memory_limit=part) for part in parts]

    def get_memory_info(self, name: str) -> dict[str, int]:
        if name in self.silent:
            raise ValueError(f"Allocator stats not available for device '{name}'")
        return {"current": self.told[name], "peak": 2 * self.told[name]}


def install(monkeypatch: pytest.MonkeyPatch, tensorflow: TensorFlow, context: Any = None) -> None:
    made = SimpleNamespace(_context_handle=object()) if context is None else context
    monkeypatch.setitem(sys.modules, "tensorflow", tensorflow)
    monkeypatch.setitem(
        sys.modules,
        "tensorflow.python.eager.context",
        SimpleNamespace(context_safe=lambda: made),
    )


def test_tensorflow_tells_live_memory_against_each_device_s_limit(alone, clock):
    """Two logical devices on one GPU and a second GPU, with configured limits in MiB."""
    install(
        alone,
        TensorFlow({0: [1024, 2048], 3: [4096]}, {"GPU:0": 10, "GPU:1": 20, "GPU:2": 30}),
    )

    found = Allocators(clock).read()

    told = [(each["device"], each["used_bytes"], each["limit_bytes"]) for each in found]
    assert [("GPU:0", 10, GIB), ("GPU:1", 20, 2 * GIB), ("GPU:2", 30, 4 * GIB)] == told
    assert [20, 40, 60] == [each["peak_bytes"] for each in found]


def test_a_device_whose_limit_nobody_knows_is_left_out(alone, clock):
    """A value without a limit allows no forecast, and a guessed limit gives a wrong one."""
    install(alone, TensorFlow({0: None}, {"GPU:0": 10}))

    assert [] == Allocators(clock).read()


def test_an_allocator_without_figures_is_asked_once(alone, clock):
    """cuda_malloc_async raises each time; the agent still reads the other devices."""
    tensorflow = TensorFlow({0: [1024], 1: [1024]}, {"GPU:0": 10, "GPU:1": 20})
    tensorflow.silent.add("GPU:0")
    install(alone, tensorflow)
    allocators = Allocators(clock)

    first = allocators.read()
    tensorflow.silent.clear()
    clock.now_s = 5.0

    assert ["GPU:1"] == [each["device"] for each in first]
    assert ["GPU:1"] == [each["device"] for each in allocators.read()]


def test_a_tensorflow_that_has_not_made_its_devices_is_not_made_to(alone, clock):
    """Creating devices would reserve the whole GPU before the program sets its limit."""
    tensorflow = TensorFlow({0: [1024]}, {"GPU:0": 10})
    install(alone, tensorflow, SimpleNamespace(_context_handle=None))

    assert [] == Allocators(clock).read()
    assert 0 == tensorflow.listed


class Cuda:
    """The driver library: GPUs by ordinal, and MIG parts with their UUIDs."""

    def __init__(self, card: bytes | None, part: bytes | None) -> None:
        self.card, self.part = card, part

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return 0 if ordinal.value == 1 else 101

    def cuDeviceGetUuid(self, into: Any, device: Any) -> int:
        return self._give(into, self.card)

    def cuDeviceGetUuid_v2(self, into: Any, device: Any) -> int:
        return self._give(into, self.part)

    def _give(self, into: Any, raw: bytes | None) -> int:
        if raw is None:
            return 1
        into[0:16] = raw
        return 0


RAW = bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize(
    ("card", "part", "ordinal", "expected"),
    [
        (RAW, RAW, 1, CARD),
        (RAW, None, 1, CARD),
        (RAW, RAW[::-1], 1, "MIG-ffeeddcc-bbaa-9988-7766-554433221100"),
        (None, RAW, 1, CARD),
        (None, None, 1, None),
        (RAW, RAW, 2, None),
    ],
)
def test_a_card_is_named_as_its_driver_names_it(card, part, ordinal, expected):
    """A MIG part has its own UUID; an unknown ordinal has none."""
    assert expected == allocators.uuid_of(Cuda(card, part), ordinal)


@pytest.mark.tensorflow
def test_the_real_tensorflow_tells_its_devices_memory(tmp_path):
    """
    The agent uses TensorFlow's C API.

    The CPU's limit is always 256 MiB; other handles are refused.
    """
    program = """
import time
import tensorflow as tf
from tensorflow.python.eager import context
from watchdog_app.agent.telemetry import allocators
untouched = allocators.Allocators(time.monotonic).read()
made_before = context.context()._context_handle is not None
tf.constant(1.0)
class Odd:
    _context_handle = object()
print(
    untouched,
    made_before,
    allocators.memory_limits(context.context()),
    allocators.memory_limits(Odd()),
    allocators.Allocators(time.monotonic).read(),
)
"""
    done = finished(
        [
            sys.executable,
            "-c",
            program.replace(
                "\nimport tensorflow",
                "\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport tensorflow",
                1,
            ),
        ],
        check=True,
    )

    assert "[] False {'CPU:0': 268435456} {} []" == done.stdout.strip()


@pytest.mark.gpu
@pytest.mark.tensorflow
def test_a_real_card_s_limit_is_that_of_tensorflow(tmp_path):
    """
    One more tensor adds its size to the used memory, and the limit is a large part of the GPU.
    """
    program = """
import json, time
import tensorflow as tf
from watchdog_app.agent.telemetry.allocators import Allocators
if not tf.config.list_physical_devices("GPU"):
    print("null")
    raise SystemExit
one = tf.zeros((1,))
before = Allocators(time.monotonic).read()
held = tf.zeros((64, 2**20))
after = Allocators(time.monotonic).read()
print(json.dumps([before, after]))
"""
    done = finished([sys.executable, "-c", program], check=True)
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if told is None:
        pytest.skip("TensorFlow sees no GPU here: needs a card, its driver and CUDA's libraries")

    before, after = (each[0] for each in told)
    assert after["used_bytes"] - before["used_bytes"] >= 64 * 2**22
    assert GIB < after["limit_bytes"]
    assert after["gpu_uuid"].startswith(("GPU-", "MIG-"))
