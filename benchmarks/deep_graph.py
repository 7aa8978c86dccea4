"""A decoder-only transformer of any depth as a planning graph, written node by node: no torch, no weights."""

from __future__ import annotations

from planner.graph.ir import (
    Argument,
    ArgumentList,
    Dtype,
    Graph,
    Input,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)

WIDTH, HEADS, HIDDEN, VOCABULARY, BATCH, LENGTH = 1024, 16, 2816, 32_000, 4, 256
NODES_PER_LAYER = 36


def _operator(name: str, overload: str = "default", aliased: tuple[int, ...] = ()) -> Operator:
    return Operator(kind=OperatorKind.ATEN, name=f"aten::{name}", overload=overload, aliased_arguments=aliased)


LINEAR, RMS_NORM, SILU, EMBEDDING = (_operator(name) for name in ("linear", "rms_norm", "silu", "embedding"))
ATTENTION = _operator("scaled_dot_product_attention")
VIEW, TRANSPOSE, SLICE = (
    _operator("view", aliased=(0,)),
    _operator("transpose", "int", (0,)),
    _operator("slice", "Tensor", (0,)),
)
MULTIPLY, ADD, NEGATE, CONCATENATE = (
    _operator("mul", "Tensor"),
    _operator("add", "Tensor"),
    _operator("neg"),
    _operator("cat"),
)


def deep_graph(num_nodes: int) -> Graph:
    """About `num_nodes` nodes: as many layers as they make, at least one."""
    return _Writer().model(max(1, (num_nodes - 3) // NODES_PER_LAYER))


class _Writer:
    def __init__(self) -> None:
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.states: list[State] = []
        self.path = ""

    def model(self, num_layers: int) -> Graph:
        tokens = self.value((BATCH, LENGTH), Dtype.INT64)
        cosine, sine = (self.value((LENGTH, WIDTH // HEADS)) for _ in range(2))
        self.path = "embed"
        hidden = self.call(EMBEDDING, (self.state((VOCABULARY, WIDTH)), tokens), (BATCH, LENGTH, WIDTH))
        for layer in range(num_layers):
            self.path = f"layers.{layer}"
            hidden = self.layer(hidden, cosine, sine)
        self.path = "head"
        hidden = self.call(RMS_NORM, (hidden, self.state((WIDTH,))), (BATCH, LENGTH, WIDTH))
        logits = self.call(LINEAR, (hidden, self.state((VOCABULARY, WIDTH))), (BATCH, LENGTH, VOCABULARY))
        inputs = tuple(
            Input(name=name, content=ValueReference(value))
            for name, value in (("tokens", tokens), ("cosine", cosine), ("sine", sine))
        )
        return Graph(
            torch_version="2.13.0",
            name=f"deep-{num_layers}",
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            states=tuple(self.states),
            inputs=inputs,
            outputs=(Output(name="logits", content=ValueReference(logits)),),
            input_tree=TreeTuple((TreeLeaf(),) * 3),
            output_tree=TreeTuple((TreeLeaf(),)),
        )

    def layer(self, hidden: int, cosine: int, sine: int) -> int:
        shape = (BATCH, LENGTH, WIDTH)
        normal = self.call(RMS_NORM, (hidden, self.state((WIDTH,))), shape)
        query, key = (self.rotated(self.heads(normal), cosine, sine) for _ in range(2))
        value = self.heads(normal)
        attended = self.call(ATTENTION, (query, key, value), (BATCH, HEADS, LENGTH, WIDTH // HEADS))
        turned = self.call(TRANSPOSE, (attended,), (BATCH, LENGTH, HEADS, WIDTH // HEADS))
        joined = self.call(VIEW, (turned,), shape)
        hidden = self.call(ADD, (hidden, self.linear(joined, WIDTH, WIDTH)), shape)
        normal = self.call(RMS_NORM, (hidden, self.state((WIDTH,))), shape)
        gate = self.call(SILU, (self.linear(normal, WIDTH, HIDDEN),), (BATCH, LENGTH, HIDDEN))
        product = self.call(MULTIPLY, (gate, self.linear(normal, WIDTH, HIDDEN)), (BATCH, LENGTH, HIDDEN))
        return self.call(ADD, (hidden, self.linear(product, HIDDEN, WIDTH)), shape)

    def heads(self, normal: int) -> int:
        flat = self.call(VIEW, (self.linear(normal, WIDTH, WIDTH),), (BATCH, LENGTH, HEADS, WIDTH // HEADS))
        return self.call(TRANSPOSE, (flat,), (BATCH, HEADS, LENGTH, WIDTH // HEADS))

    def rotated(self, hidden: int, cosine: int, sine: int) -> int:
        whole, half = (BATCH, HEADS, LENGTH, WIDTH // HEADS), (BATCH, HEADS, LENGTH, WIDTH // HEADS // 2)
        first, second = (self.call(SLICE, (hidden,), half) for _ in range(2))
        swapped = self.call(CONCATENATE, ((self.call(NEGATE, (second,), half), first),), whole)
        straight, turned = self.call(MULTIPLY, (hidden, cosine), whole), self.call(MULTIPLY, (swapped, sine), whole)
        return self.call(ADD, (straight, turned), whole)

    def linear(self, hidden: int, width: int, out: int) -> int:
        return self.call(LINEAR, (hidden, self.state((out, width))), (BATCH, LENGTH, out))

    def state(self, dims: tuple[int, ...]) -> int:
        value = self.value(dims)
        name = f"{self.path}.{len(self.states)}.weight"
        self.states.append(State(name=name, value_id=value, kind=StateKind.PARAMETER))
        return value

    def value(self, dims: tuple[int, ...], dtype: Dtype = Dtype.BFLOAT16) -> int:
        self.values.append(Value(id=len(self.values) + 1, kind=ValueKind.TENSOR, dtype=dtype, dims=dims))
        return len(self.values)

    def call(self, operator: Operator, inputs: tuple[int | tuple[int, ...], ...], dims: tuple[int, ...]) -> int:
        """A tuple in `inputs` is a list argument."""
        output = self.value(dims)
        arguments: tuple[Argument, ...] = tuple(
            ArgumentList(tuple(map(ValueReference, one))) if isinstance(one, tuple) else ValueReference(one)
            for one in inputs
        )
        self.nodes.append(
            Node(
                operator=operator,
                arguments=arguments,
                outputs=(output,),
                module_path=self.path,
                name=f"node_{len(self.nodes)}",
            )
        )
        return output
