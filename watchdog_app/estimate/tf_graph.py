"""
The peak memory of a TensorFlow graph, computed from the graph alone.

The graph becomes a flat list of nodes, with calls inlined and duplicate computations merged.
TensorFlow's own graph optimizer does the same. Two simulated workers run the nodes in the order in
which they become ready. An output lives until its last reader is done.

Some operations return their input, or overwrite an input that no other node needs. These take no
memory, as in TensorFlow's kernels.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import prod
from typing import Any

Source = tuple[int, int]  # node, output

# The output is the first input itself.
_SAME = frozenset(
    {
        "Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient",
        "IdentityN", "EnsureShape", "CheckNumerics", "Bitcast", "PlaceholderWithDefault",
        "Snapshot",
    }
)  # fmt: skip
# No memory is allocated: it belongs to a variable or a constant, or the output is a handle.
_FREE = frozenset(
    {
        "ReadVariableOp", "VarHandleOp", "Placeholder", "NoOp", "Const", "Shape", "Size", "Rank",
        "_Arg", "Assert", "ControlTrigger",
    }
)  # fmt: skip
# The operation overwrites an input of the output's size if no other node needs that input.
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
_PRODUCT_COST = 20  # a product takes this many times as long per byte
_WORKERS = 2  # operations that run in parallel
_BACKWARD = "gradient_tape/"  # name prefix of the gradients' operations
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("While", "StatelessWhile")
_DISTINCT = frozenset({"Placeholder", "NoOp", "Assert", "ControlTrigger", *_LOOPS})
_MAX_CONSTANT_BYTES = 1024  # larger constants are not compared
_MAX_DEPTH = 4  # of loops that read from loops
_MAX_NODES = 2_000_000


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Bytes of one run of a graph, and counts of its operations and unknown shapes."""

    peak_bytes: int
    kept_bytes: int  # kept from the forward pass for the backward pass
    unknown_shapes: int
    operations: int  # of the graph and all functions that it calls


def graph_memory(graph: Any, *, compiled: bool = False) -> GraphMemory:
    """
    Compute the memory of one run of a graph.

    Args:
        graph: a FuncGraph; all its shapes should be known.
        compiled: by XLA, whose convolutions on a CPU unfold the whole batch.
    """
    flat = _FlatGraph(compiled)
    outputs = flat.add(graph)
    run = _Run(flat.nodes, {source[0] for source in outputs})
    return GraphMemory(run.peak_bytes, run.kept_bytes, flat.unknown, flat.ops)


@dataclass(slots=True)
class _Node:
    """One operation and its outputs."""

    kind: str
    inputs: list[Source]
    sizes: list[int]
    after: list[int] = field(default_factory=list)
    extra: int = 0  # kept until the last reader is done, in addition to the outputs
    scratch: int = 0
    backward: bool = False


@dataclass(slots=True)
class _Block:
    """Memory of one output, or of several outputs that share it."""

    size: int
    readers: int  # remaining readers
    forward: bool  # created by the forward pass
    kept: bool = False  # read by the backward pass


class _Run:
    """One run of the nodes that an output or an effect needs; `keep`: outputs live to the end."""

    def __init__(self, nodes: list[_Node], keep: set[int]) -> None:
        self.peak_bytes = self.kept_bytes = self._live_bytes = 0
        self._blocks: dict[Source, _Block] = {}
        needed = _reachable(nodes, keep)
        self._readers = Counter(source for n in needed for source in nodes[n].inputs)
        self._readers.update((n, at) for n in keep for at in range(len(nodes[n].sizes)))
        waiting: dict[int, int] = {}
        followers: dict[int, list[int]] = {n: [] for n in needed}
        for n in sorted(needed):
            before = {source for source, _ in nodes[n].inputs} | set(nodes[n].after)
            waiting[n] = len(before & needed)
            for each in before & needed:
                followers[each].append(n)
        ready = deque(n for n, count in waiting.items() if not count)
        running: list[tuple[float, int]] = []  # time of its end, node
        now = 0.0
        while ready or running:
            while ready and len(running) < _WORKERS:
                n = ready.popleft()
                self._start(n, nodes[n])
                heappush(running, (now + _duration(nodes, nodes[n]), n))
            now, n = heappop(running)
            self._finish(n, nodes[n])
            for each in followers[n]:
                waiting[each] -= 1
                if not waiting[each]:
                    ready.append(each)

    def _start(self, n: int, node: _Node) -> None:
        for at, size in enumerate(node.sizes):
            self._add_output((n, at), size, node)
        if node.extra:
            # The lists of a loop are one block, which lives until the last of them is read
            # completely.
            lists = [(n, at) for at, size in enumerate(node.sizes) if not size]
            block = self._new_block(node.extra, sum(self._readers[key] for key in lists), node)
            self._blocks.update(dict.fromkeys(lists, block))
        self.peak_bytes = max(self.peak_bytes, self._live_bytes + node.scratch)

    def _finish(self, n: int, node: _Node) -> None:
        for source in node.inputs:
            block = self._blocks.get(source)
            if block is not None:
                if node.backward and block.forward and not block.kept:
                    block.kept = True
                    self.kept_bytes += block.size
                block.readers -= 1
        for key in (*node.inputs, *((n, at) for at in range(len(node.sizes)))):
            block = self._blocks.get(key)
            if block is not None and block.readers <= 0:
                self._live_bytes -= block.size
                block.size = 0

    def _add_output(self, key: Source, size: int, node: _Node) -> None:
        source = _handed_on(node, key[1])
        if source is not None:
            block = self._blocks.get(source)
        elif not size or node.kind in _FREE or node.kind.startswith(_EFFECTS):
            return
        else:
            block = self._reusable(size, node) if key[1] == 0 else None
            if block is None:
                block = self._new_block(size, 0, node)
        if block is not None:
            self._blocks[key] = block
            block.readers += self._readers[key]

    def _reusable(self, size: int, node: _Node) -> _Block | None:
        """Find an input of this size without other readers that the operation may overwrite."""
        inputs = map(self._blocks.get, node.inputs) if node.kind in _IN_PLACE else ()
        return next((b for b in inputs if b is not None and (b.readers, b.size) == (1, size)), None)

    def _new_block(self, size: int, readers: int, node: _Node) -> _Block:
        self._live_bytes += size
        return _Block(size, readers, not node.backward)


def _duration(nodes: list[_Node], node: _Node) -> float:
    """Return an operation's duration in bytes moved; matrix products take longer than the rest."""
    moved = sum(node.sizes) + sum(nodes[at].sizes[out] for at, out in node.inputs)
    return 1000 + moved * (_PRODUCT_COST if node.kind.startswith(_PRODUCTS) else 1)


def _handed_on(node: _Node, output: int) -> Source | None:
    """Return the input that an output shares its memory with; None: it has its own."""
    if node.kind not in _SAME or not node.inputs:
        return None
    return node.inputs[output if node.kind == "IdentityN" else 0]


def _reachable(nodes: list[_Node], keep: set[int]) -> set[int]:
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


class _FlatGraph:
    """The nodes of a graph with its function calls inlined."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self._same: dict[Any, int] = {}  # by computation: its node
        self.nodes: list[_Node] = []
        self.unknown = 0
        self.ops = 0

    def add(self, graph: Any, given: list[Source] | None = None) -> list[Source]:
        """Add the nodes of one graph; return the sources of its outputs."""
        place: dict[str, Source] = {}
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
            node = _Node(op.type, sources, sizes, after, backward=op.name.startswith(_BACKWARD))
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

    def _measure_loop(self, graph: Any, op: Any, node: _Node) -> None:
        """Measure what a loop collects over all iterations, and what one iteration takes."""
        body = _find_function(graph, op.get_attr("body").name)
        if body is None:
            return
        turns = _iterations(op)
        inner = _FlatGraph(self.compiled)
        outputs = inner.add(body)
        self.unknown += inner.unknown
        self.ops += inner.ops
        node.extra = turns * inner.collected_bytes(outputs)
        node.scratch = _Run(inner.nodes, {source[0] for source in outputs}).peak_bytes

    def collected_bytes(self, outputs: list[Source]) -> int:
        """Return the bytes that one iteration adds to the lists of the loop."""
        placeholders = [n for n, each in enumerate(self.nodes) if each.kind == "Placeholder"]
        formal = {index: at for at, index in enumerate(placeholders)}
        roots: dict[Source, int] = {}
        for node in self.nodes:
            if node.kind not in ("TensorListPushBack", "TensorListSetItem"):
                continue
            storage = self.find_storage(node.inputs[-1])
            if storage[0] in formal:  # from the iteration before: the same memory, one turn later
                at = formal[storage[0]]
                if at < len(outputs):
                    source = self.find_storage(outputs[at])
                    if source[0] in formal:
                        continue  # the same in all iterations
                    storage = source
            if self.nodes[storage[0]].kind not in _FREE:
                roots[storage] = self.nodes[storage[0]].sizes[storage[1]]
        return sum(roots.values())

    def find_storage(self, source: Source) -> Source:
        """Find the output that owns a tensor's memory."""
        while (before := _handed_on(self.nodes[source[0]], source[1])) is not None:
            source = before
        return source


def _node_key(op: Any, sources: list[Source], after: list[int]) -> Any:
    """Return a key of the computation, equal for duplicates; None: never a duplicate."""
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
    """Yield the operations of a graph, each after its inputs."""
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
    """Return the bytes of the matrix of all patches that a convolution multiplies."""
    kernel = op.inputs[1].shape.as_list()
    if None in kernel or kernel[:2] == [1, 1] or not kernel[-1]:
        return 0
    return int(prod(kernel[:-1]) * out_bytes // kernel[-1])


def _iterations(op: Any, depth: int = 0) -> int:
    """Return a loop's iterations: from its limit, or from the lists that it reads; 1 if unknown."""
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
    """Find the graph of a called function; None: not stored in any graph."""
    found = None
    while graph is not None and found is None:
        found = graph._get_function(name)
        graph = getattr(graph, "outer_graph", None)
    return getattr(found, "graph", None)
