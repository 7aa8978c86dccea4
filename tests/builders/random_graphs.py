"""Random programs with views, in-place writes, tied and written states, scalars and branches, and splits of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from planner.graph.alias import no_cut_groups
from planner.graph.expression import SymbolReference
from planner.graph.ir import (
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
    SubgraphReference,
    Symbol,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
    values_read,
)

MULTIPLY = Operator(kind=OperatorKind.ATEN, name="aten::mul", overload="Tensor")
CONCATENATE = Operator(kind=OperatorKind.ATEN, name="aten::cat", overload="default")
VIEW = Operator(kind=OperatorKind.ATEN, name="aten::view", overload="default", aliased_arguments=(0,))
CHUNK = Operator(kind=OperatorKind.ATEN, name="aten::chunk", overload="default", aliased_arguments=(0,))
ADD_IN_PLACE = Operator(
    kind=OperatorKind.ATEN, name="aten::add_", overload="Tensor", mutated_arguments=(0,), aliased_arguments=(0,)
)
SIZE = Operator(kind=OperatorKind.ATEN, name="aten::sym_size", overload="int")
COND = Operator(kind=OperatorKind.HIGHER_ORDER, name="cond")

BATCH = Symbol(id=1, name="batch", lower=1, upper=64, hint=3)


class GraphWriter:
    """Writes a graph node by node; ids are given in order from 1."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.nodes: list[Node] = []
        self.states: list[State] = []
        self.inputs: list[Input] = []
        self.subgraphs: list[Graph] = []

    def tensor(self, width: int = 4) -> int:
        dims = (SymbolReference(BATCH.id), width)
        return self._value(Value(id=len(self.values) + 1, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=dims))

    def scalar(self) -> int:
        return self._value(Value(id=len(self.values) + 1, kind=ValueKind.SYM_INT, expression=SymbolReference(BATCH.id)))

    def _value(self, value: Value) -> int:
        self.values.append(value)
        return value.id

    def input(self, width: int = 4) -> int:
        value_id = self.tensor(width)
        self.inputs.append(Input(name=f"input_{len(self.inputs)}", content=ValueReference(value_id)))
        return value_id

    def state(self, *, tie_group: int = 0, mutated: bool = False, width: int = 4) -> int:
        value_id = len(self.values) + 1
        self._value(Value(id=value_id, kind=ValueKind.TENSOR, dtype=Dtype.FLOAT32, dims=(width,)))
        kind = StateKind.BUFFER if mutated else StateKind.PARAMETER
        name = f"block.{len(self.states)}.weight"
        self.states.append(State(name=name, value_id=value_id, kind=kind, tie_group=tie_group, mutated=mutated))
        return value_id

    def call(self, operator: Operator, *arguments: object, outputs: Sequence[int], module_path: str = "") -> None:
        self.nodes.append(
            Node(
                operator=operator,
                arguments=tuple(arguments),  # type: ignore[arg-type]
                outputs=tuple(outputs),
                returns_tuple=len(outputs) > 1,
                module_path=module_path,
                name=f"node_{len(self.nodes)}",
            )
        )

    def multiply(self, *value_ids: int, module_path: str = "") -> int:
        output = self.tensor()
        self.call(MULTIPLY, *map(ValueReference, value_ids), outputs=[output], module_path=module_path)
        return output

    def view(self, value_id: int) -> int:
        output = self.tensor()
        self.call(VIEW, ValueReference(value_id), outputs=[output])
        return output

    def add_in_place(self, target: int, other: int) -> int:
        output = self.tensor()
        self.call(ADD_IN_PLACE, ValueReference(target), ValueReference(other), outputs=[output])
        return output

    def graph(self, *returned: int) -> Graph:
        outputs = tuple(Output(name=f"output_{i}", content=ValueReference(value)) for i, value in enumerate(returned))
        return Graph(
            torch_version="2.13.0",
            name="random",
            symbols=(BATCH,),
            values=tuple(self.values),
            nodes=tuple(self.nodes),
            subgraphs=tuple(self.subgraphs),
            states=tuple(self.states),
            inputs=tuple(self.inputs),
            outputs=outputs,
            input_tree=TreeTuple((TreeLeaf(),) * len(self.inputs)),
            output_tree=TreeTuple((TreeLeaf(),) * len(outputs)),
        )


def random_graph(seed: int, num_nodes: int) -> Graph:
    """Deterministic in both. Nodes favour recent values, as real programs do."""
    choice = random.Random(seed)
    writer = GraphWriter()
    tensors = [writer.input() for _ in range(choice.randint(1, 4))]
    states = [writer.state(tie_group=choice.choice([0, 0, 1]), mutated=False) for _ in range(choice.randint(0, 5))]
    may_write_given = choice.random() < 0.3
    for _ in range(num_nodes):
        _add_node(writer, choice, tensors, states, may_write_given=may_write_given)
    returned = choice.sample([*tensors, *states], k=min(choice.randint(1, 4), len(tensors)))
    return writer.graph(*returned)


def _add_node(
    writer: GraphWriter, choice: random.Random, tensors: list[int], states: list[int], *, may_write_given: bool
) -> None:
    def pick() -> int:
        if states and choice.random() < 0.25:
            return choice.choice(states)
        return choice.choice(tensors[-5:] if choice.random() < 0.8 else tensors)

    kind = choice.choices(["multiply", "cat", "view", "chunk", "write", "size", "cond"], [8, 2, 3, 1, 2, 1, 1])[0]
    if kind == "cat":
        output = writer.tensor()
        items = ArgumentList(tuple(ValueReference(pick()) for _ in range(choice.randint(1, 3))))
        writer.call(CONCATENATE, items, 0, outputs=[output])
        tensors.append(output)
    elif kind == "view":
        tensors.append(writer.view(pick()))
    elif kind == "chunk":
        parts = [writer.tensor(), writer.tensor(), 0]
        writer.call(CHUNK, ValueReference(pick()), 3, outputs=parts)
        tensors.extend(parts[:2])
    elif kind == "write":
        num_inputs = len(writer.inputs)
        targets = tensors if may_write_given else tensors[num_inputs:]
        target = choice.choice(targets[-4:]) if targets else writer.multiply(pick())
        tensors.append(writer.add_in_place(target, pick()))
    elif kind == "size":
        size = writer.scalar()
        writer.call(SIZE, ValueReference(pick()), 0, outputs=[size])
        output = writer.tensor()
        writer.call(VIEW, ValueReference(pick()), ArgumentList((ValueReference(size), 4)), outputs=[output])
        tensors.append(output)
    elif kind == "cond":
        _add_cond(writer, pick(), pick(), tensors)
    else:
        tensors.append(writer.multiply(*(pick() for _ in range(choice.randint(1, 3)))))


def _add_cond(writer: GraphWriter, predicate: int, operand: int, tensors: list[int]) -> None:
    for _ in range(2):
        branch = GraphWriter()
        entered = branch.input()
        body = branch.graph(branch.multiply(entered, entered))
        # Its dims speak of the outer program's symbols.
        writer.subgraphs.append(replace(body, symbols=()))
    references = (SubgraphReference(len(writer.subgraphs) - 2), SubgraphReference(len(writer.subgraphs) - 1))
    output = writer.tensor()
    operands = ArgumentList((ValueReference(operand),))
    writer.call(COND, ValueReference(predicate), *references, operands, outputs=[output])
    tensors.append(output)


def random_stages(graph: Graph, seed: int, num_stages: int, *, may_part_groups: bool = False) -> tuple[int, ...]:
    """A stage for each node: data goes to higher stages only, groups stay whole, the last node is in the last stage.

    Stages need not be contiguous in program order; each has a node. `may_part_groups` makes splits that are wrong.
    """
    choice = random.Random(seed)
    drift = choice.random()
    stages = [
        min(num_stages - 1, int(choice.gauss(index * num_stages / len(graph.nodes), drift)) % num_stages)
        for index in range(len(graph.nodes))
    ]
    groups = () if may_part_groups else no_cut_groups(graph)
    stages[-1] = num_stages - 1
    while _raise_stages(graph, stages, groups):
        pass
    dense = {stage: index for index, stage in enumerate(sorted(set(stages)))}
    return tuple(dense[stage] for stage in stages)


def _raise_stages(graph: Graph, stages: list[int], groups: Sequence[Sequence[int]]) -> bool:
    before = list(stages)
    made_in: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        stages[index] = max([stages[index], *(made_in.get(value_id, 0) for value_id in values_read(node))])
        made_in.update((value_id, stages[index]) for value_id in node.outputs if value_id)
    for group in groups:
        highest = max(stages[index] for index in group)
        for index in group:
            stages[index] = highest
    return stages != before


graphs = st.builds(random_graph, seed=st.integers(0, 2**32), num_nodes=st.integers(1, 40))
