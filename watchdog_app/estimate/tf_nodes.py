"""
A TensorFlow graph as a flat list of what it computes: calls inlined, duplicates computed once.

As TensorFlow's own optimizer of graphs does it, of two operations that compute the same from the
same one is left: what a dense gradient of an embedding is made of, for one, has then two readers,
and neither can write into it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

# The output is the first input itself.
SAME = frozenset(
    {
        "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
        "IdentityN", "EnsureShape", "CheckNumerics", "Bitcast", "PlaceholderWithDefault",
        "Snapshot",
    }
)  # fmt: skip
# Nothing is made: the memory is a variable's, a constant of the program or a mere handle.
FREE = frozenset(
    {
        "ReadVariableOp", "VarHandleOp", "Placeholder", "NoOp", "Const", "Shape", "Size", "Rank",
        "_Arg", "Assert", "ControlTrigger",
    }
)  # fmt: skip
_BACKWARD = "gradient_tape/"  # what the names of gradients' operations begin with
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_DISTINCT = frozenset({"Placeholder", "NoOp", "Assert", "ControlTrigger", *_LOOPS})
_MAX_CONSTANT_BYTES = 1024  # larger constants are not compared
_MAX_DEPTH = 4  # of loops that read from loops
_MAX_NODES = 2_000_000


@dataclass(slots=True)
class Node:
    """One operation, and what it puts out."""

    kind: str
    inputs: list[tuple[int, int]]  # node, output
    sizes: list[int]
    after: list[int] = field(default_factory=list)
    extra: int = 0  # held until the last reader is done, beyond the outputs
    scratch: int = 0
    backward: bool = False


PeakOf = Callable[[list[Node], set[int]], int]  # of nodes, and whose outputs live to the end


class FlatGraph:
    """The nodes of a graph with its function calls inlined."""

    def __init__(self, peak_of: PeakOf, compiled: bool = False) -> None:
        self._peak_of = peak_of
        self.compiled = compiled
        self._same: dict[Any, int] = {}  # what is computed -> node
        self.nodes: list[Node] = []
        self.unknown = 0
        self.ops = 0

    def add(self, graph: Any, given: list[tuple[int, int]] | None = None) -> list[tuple[int, int]]:
        """Nodes of one graph; the sources of its outputs come back."""
        place: dict[str, tuple[int, int]] = {}
        control: dict[Any, int] = {}
        formal = (
            {each.name: at for at, each in enumerate(graph.inputs)} if given is not None else {}
        )
        for op in _topological_order(graph):
            self.ops += 1
            if len(self.nodes) > _MAX_NODES:
                raise ValueError("the graph is too large")
            if op.type == "Placeholder" and op.outputs and op.outputs[0].name in formal:
                place[op.outputs[0].name] = given[formal[op.outputs[0].name]]  # type: ignore[index]
                continue
            sources = [place[each.name] for each in op.inputs]
            after = [control[each] for each in op.control_inputs if each in control]
            if op.type in _CALLS:
                inner = _find_function(graph, op.get_attr("f").name)
                if inner is not None:
                    results = self.add(inner, sources)
                    for out, source in zip(op.outputs, results, strict=True):
                        place[out.name] = source
                    control[op] = len(self.nodes) - 1
                    continue
            computed = _node_key(op, sources, after)
            twin = self._same.get(computed)
            if computed is not None and twin is not None:
                control[op] = twin
                for at, out in enumerate(op.outputs):
                    place[out.name] = (twin, at)
                continue
            sizes = [self._bytes(each) for each in op.outputs]
            node = Node(op.type, sources, sizes, after, backward=op.name.startswith(_BACKWARD))
            if op.type in _LOOPS:
                self._measure_loop(graph, op, node)
            if self.compiled and op.type == "Conv2D":
                node.scratch = _unfolded_bytes(op, sizes[0])
            index = len(self.nodes)
            self.nodes.append(node)
            if computed is not None:
                self._same[computed] = index
            control[op] = index
            for at, out in enumerate(op.outputs):
                place[out.name] = (index, at)
        return [place[each.name] for each in graph.outputs]

    def _bytes(self, tensor: Any) -> int:
        size = (
            tensor.dtype.base_dtype.size if tensor.dtype.name not in ("resource", "variant") else 0
        )
        if not size or tensor.dtype.name == "string":
            return 0
        if tensor.shape.rank is None:
            self.unknown += 1
            return 0
        dims = tensor.shape.as_list()
        if None in dims:
            self.unknown += 1
        return int(prod(1 if each is None else each for each in dims) * size)

    def _measure_loop(self, graph: Any, op: Any, node: Node) -> None:
        """What a loop collects in all its turns, and takes for one of them."""
        body = _find_function(graph, op.get_attr("body").name)
        if body is None:
            return
        turns = _iterations(op)
        inner = FlatGraph(self._peak_of, self.compiled)
        outputs = inner.add(body)
        self.unknown += inner.unknown
        self.ops += inner.ops
        node.extra = turns * inner.collected_bytes(outputs)
        keep = {source[0] for source in outputs}
        node.scratch = self._peak_of(inner.nodes, keep)

    def collected_bytes(self, outputs: list[tuple[int, int]]) -> int:
        """Bytes that one turn leaves in the lists of the loop."""
        placeholders = [n for n, each in enumerate(self.nodes) if each.kind == "Placeholder"]
        formal = {index: at for at, index in enumerate(placeholders)}
        roots: dict[tuple[int, int], int] = {}
        for node in self.nodes:
            if node.kind not in ("TensorListPushBack", "TensorListSetItem"):
                continue
            find_storage = self.find_storage(node.inputs[-1])
            if (
                find_storage[0] in formal
            ):  # what the turn before left: the same memory one turn later
                at = formal[find_storage[0]]
                if at < len(outputs):
                    source = self.find_storage(outputs[at])
                    if source[0] in formal:
                        continue  # the same in all turns
                    find_storage = source
            if self.nodes[find_storage[0]].kind not in FREE:
                roots[find_storage] = self.nodes[find_storage[0]].sizes[find_storage[1]]
        return sum(roots.values())

    def find_storage(self, source: tuple[int, int]) -> tuple[int, int]:
        """Where a tensor's memory was made."""
        while self.nodes[source[0]].kind in SAME and self.nodes[source[0]].inputs:
            node = self.nodes[source[0]]
            source = node.inputs[source[1] if node.kind == "IdentityN" else 0]
        return source


def _node_key(op: Any, sources: list[tuple[int, int]], after: list[int]) -> Any:
    """What an operation computes, to be compared; None: each one is its own."""
    if op.type in _DISTINCT or op.op_def.is_stateful or not op.outputs:
        return None
    definition = op.node_def
    if op.type == "Const" and definition.ByteSize() > _MAX_CONSTANT_BYTES:
        return None
    settings = [
        (name, definition.attr[name].SerializeToString(deterministic=True))
        for name in sorted(definition.attr)
        if not name.startswith("_")
    ]
    return op.type, tuple(settings), tuple(sources), tuple(sorted(after))


def _topological_order(graph: Any) -> Iterator[Any]:
    """The operations of a graph, each after those that it reads."""
    operations = graph.get_operations()
    before = {
        each: {*(source.op for source in each.inputs), *each.control_inputs} for each in operations
    }
    readers: dict[Any, list[Any]] = {each: [] for each in operations}
    for each, sources in before.items():
        for source in sources:
            readers[source].append(each)
    count = {each: len(sources) for each, sources in before.items()}
    ready = deque(each for each in operations if not count[each])
    while ready:
        each = ready.popleft()
        yield each
        for reader in readers[each]:
            count[reader] -= 1
            if not count[reader]:
                ready.append(reader)


def _unfolded_bytes(op: Any, out_bytes: int) -> int:
    """The matrix of all patches that a convolution multiplies."""
    kernel = op.inputs[1].shape.as_list()
    if None in kernel or kernel[:2] == [1, 1] or not kernel[-1]:
        return 0
    return int(prod(kernel[:-1]) * out_bytes // kernel[-1])


def _iterations(op: Any, depth: int = 0) -> int:
    """How often a loop runs: by its limit, or by the lists that it walks through; 1 if unknown."""
    import tensorflow as tf

    for tensor in list(op.inputs)[:3]:
        if tensor.dtype.is_integer and tensor.shape.rank == 0:
            value = tf.get_static_value(tensor)
            if value is not None and int(value) > 1:
                return int(value)
    found = 1
    for tensor in op.inputs:
        source = tensor.op
        if tensor.dtype.name != "variant":
            continue
        if source.type == "TensorListFromTensor" and source.inputs[0].shape.rank:
            found = max(found, source.inputs[0].shape[0] or 1)
        elif source.type == "TensorListReserve":
            value = tf.get_static_value(source.inputs[1])
            found = max(found, 1 if value is None else int(value))
        elif source.type in _LOOPS and depth < _MAX_DEPTH:
            found = max(found, _iterations(source, depth + 1))
    return int(found)


def _find_function(graph: Any, name: str) -> Any:
    """A function that a graph calls, as a graph with shapes; None where it is not kept."""
    found = None
    while graph is not None and found is None:
        found = graph._get_function(name)
        graph = getattr(graph, "outer_graph", None)
    return getattr(found, "graph", None)
