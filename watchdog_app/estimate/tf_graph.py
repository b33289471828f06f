"""
What a TensorFlow graph takes and gives back while it runs on a CPU, from the graph alone.

The executor is simulated: operations run as they become ready, first come first served; an output
lives until its last reader is done. Operations that hand on their input, or write their result
into an input that nobody else needs, take nothing, as in TensorFlow's kernels.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from watchdog_app.estimate.tf_nodes import FREE, SAME, FlatGraph, Node

Event = tuple[int, int]  # key of a block, its bytes (0: it is given back)

# The output is written into an input of its size, where nobody else needs that.
_IN_PLACE = frozenset(
    {
        "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", "Maximum",
        "Minimum",
        "SquaredDifference", "Pow", "Neg", "Exp", "Log", "Log1p", "Expm1", "Sqrt", "Rsqrt",
        "Square", "Tanh", "Sigmoid", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus", "Erf",
        "Erfc", "Abs", "Sign", "Reciprocal", "Floor", "Round", "Softmax", "LogSoftmax", "BiasAdd",
        "ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad", "TanhGrad",
        "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "AddN", "SelectV2", "Cos", "Sin",
    }
)  # fmt: skip
_EFFECTS = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparse", "ResourceStridedSlice")
_PRODUCTS = ("MatMul", "BatchMatMul", "Conv", "Depthwise", "Einsum", "While", "StatelessWhile")
_PRODUCT_COST = 20  # times as long for a byte
_WORKERS = 2  # operations that run side by side


@dataclass(slots=True)
class Simulation:
    """How a graph ran: what it took and gave back, and shapes that were not known."""

    events: list[Event]
    peak_bytes: int
    kept_bytes: int = 0  # what the forward pass leaves for the backward pass
    unknown_shapes: int = 0
    operations: int = 0  # of the graph and of all functions that it calls


def simulate(graph: Any, workers: int = _WORKERS, *, compiled: bool = False) -> Simulation:
    """
    Simulate one run of a graph and count its memory.

    Args:
        graph: a FuncGraph; all its shapes should be known.
        workers: operations that run side by side.
        compiled: by XLA, whose convolutions on a CPU unfold the whole batch.
    """
    flat = FlatGraph(lambda nodes, keep: simulate_nodes(nodes, keep).peak_bytes, compiled)
    outputs = flat.add(graph)
    keep = {source[0] for source in outputs}
    simulation = simulate_nodes(flat.nodes, keep, workers)
    simulation.unknown_shapes, simulation.operations = flat.unknown, flat.ops
    return simulation


def simulate_nodes(nodes: list[Node], keep: set[int], workers: int = _WORKERS) -> Simulation:
    """Run the nodes that an output or an effect needs; `keep`: outputs live to the end."""
    needed = _reachable(nodes, keep)
    waiting = dict.fromkeys(needed, 0)
    readers: dict[int, list[int]] = {n: [] for n in needed}
    for n in needed:
        before = {source for source, _ in nodes[n].inputs} | set(nodes[n].after)
        for source in before & needed:
            readers[source].append(n)
            waiting[n] += 1
    memory = _Memory(nodes, needed, keep)
    ready = deque(n for n in sorted(needed) if not waiting[n])
    running: list[tuple[float, int]] = []  # when it is done, node
    now = 0.0
    while ready or running:
        while ready and len(running) < workers:
            n = ready.popleft()
            memory.start(n)
            heappush(running, (now + _duration(nodes, n), n))
        now, n = heappop(running)
        memory.finish(n)
        for reader in readers[n]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return Simulation(memory.events, memory.peak, sum(memory.kept.values()))


def _duration(nodes: list[Node], n: int) -> float:
    """How long an operation takes, in bytes moved: products of matrices longer than the rest."""
    node = nodes[n]
    moved = sum(node.sizes) + sum(nodes[at].sizes[out] for at, out in node.inputs)
    return 1000 + moved * (_PRODUCT_COST if node.kind.startswith(_PRODUCTS) else 1)


class _Memory:
    """Blocks by who made them, with the count of readers still to come."""

    def __init__(self, nodes: list[Node], needed: set[int], keep: set[int]) -> None:
        self.nodes = nodes
        self.events: list[Event] = []
        self.live = 0
        self.peak = 0
        self._block: dict[tuple[int, int], int] = {}  # tensor -> block, 0: none of ours
        self._uses: dict[int, int] = {}  # block -> readers to come
        self._size: dict[int, int] = {}
        self._readers: dict[tuple[int, int], int] = {}
        self._next = 1
        self._forward: set[int] = set()
        self.kept: dict[int, int] = {}
        for n in needed:
            for source in nodes[n].inputs:
                self._readers[source] = self._readers.get(source, 0) + 1
        for n in keep:
            for at in range(len(nodes[n].sizes)):
                self._readers[(n, at)] = self._readers.get((n, at), 0) + 1

    def start(self, n: int) -> None:
        node = self.nodes[n]
        for at, size in enumerate(node.sizes):
            self._add_output(n, at, size, node)
        if node.extra:
            self._add_lists(n, node)
        if node.scratch:
            self._add_scratch(node.scratch)

    def finish(self, n: int) -> None:
        node = self.nodes[n]
        for source in node.inputs:
            block = self._block.get(source, 0)
            if block:
                if node.backward and block in self._forward:
                    self.kept[block] = self._size[block]
                self._release(block)
        for at, size in enumerate(node.sizes):  # what nobody reads
            if size and not self._readers.get((n, at)):
                block = self._block.get((n, at), 0)
                if block and self._uses[block] <= 0:
                    self._uses[block] = 1
                    self._release(block)

    def _add_output(self, n: int, at: int, size: int, node: Node) -> None:
        key = (n, at)
        uses = self._readers.get(key, 0)
        if node.kind in SAME and node.inputs:
            source = node.inputs[at if node.kind == "IdentityN" else 0]
            self._block[key] = self._block.get(source, 0)
            if self._block[key]:
                self._uses[self._block[key]] += uses
            return
        if not size or node.kind in FREE or node.kind.startswith(_EFFECTS):
            return
        if node.kind in _IN_PLACE and at == 0:
            for source in node.inputs:
                block = self._block.get(source, 0)
                if block and self._uses[block] == 1 and self._size[block] == size:
                    self._block[key] = block
                    self._uses[block] += uses
                    return
        self._block[key] = block = self._allocate(size, uses)
        if not node.backward:
            self._forward.add(block)

    def _allocate(self, size: int, uses: int) -> int:
        block = self._next
        self._next += 1
        self._uses[block], self._size[block] = uses, size
        self.events.append((block, size))
        self.live += size
        self.peak = max(self.peak, self.live)
        return block

    def _add_lists(self, n: int, node: Node) -> None:
        """The lists of a loop are one block, until the last of them is read to its end."""
        lists = [(n, at) for at, size in enumerate(node.sizes) if not size]
        uses = sum(self._readers.get(key, 0) for key in lists)
        if not uses:
            self._add_scratch(node.extra)
            return
        self._allocate(node.extra, uses)
        block = self._next - 1
        if not node.backward:
            self._forward.add(block)
        for key in lists:
            self._block[key] = block

    def _add_scratch(self, size: int) -> None:
        block = self._next
        self._next += 1
        self.events += ((block, size), (block, 0))
        self.peak = max(self.peak, self.live + size)

    def _release(self, block: int) -> None:
        self._uses[block] -= 1
        if self._uses[block] == 0:
            self.events.append((block, 0))
            self.live -= self._size[block]


def _reachable(nodes: list[Node], keep: set[int]) -> set[int]:
    waiting = [*keep, *(n for n, each in enumerate(nodes) if each.kind.startswith(_EFFECTS))]
    found: set[int] = set()
    while waiting:
        n = waiting.pop()
        if n in found:
            continue
        found.add(n)
        waiting += [source for source, _ in nodes[n].inputs]
        waiting += nodes[n].after
    return found
