"""Inputs and outputs of a captured program as records, with the structure they come in."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from planner.client.export.arguments import argument_of
from planner.client.export.containers import leaf_names, tree_of
from planner.client.export.encode_nodes import NodeEncoder
from planner.errors import UnsupportedModule
from planner.graph.ir import Argument, Input, Output, PyTree


def encode_inputs(program: ExportedProgram, encoder: NodeEncoder) -> tuple[tuple[Input, ...], PyTree]:
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            content = argument_of(spec.arg.value, _no_reference, f"input {spec.arg.name!r}")
        else:
            content = encoder.define_input(placeholders[spec.arg.name])
        inputs.append(Input(name=spec.arg.name, content=content))
    assert program.call_spec.in_spec is not None
    return tuple(inputs), tree_of(program.call_spec.in_spec)


def encode_outputs(program: ExportedProgram, encoder: NodeEncoder) -> tuple[tuple[Output, ...], PyTree]:
    assert program.call_spec.out_spec is not None
    tree = tree_of(program.call_spec.out_spec)
    returned = _returned(program)
    outputs = []
    for name, (leaf, kind) in zip(leaf_names(tree), returned, strict=True):
        if kind is not OutputKind.USER_OUTPUT:
            raise UnsupportedModule(f"output {name!r} is a {kind.name.lower()}, which cannot be carried")
        outputs.append(Output(name=name, content=argument_of(leaf, encoder.reference, f"output {name!r}")))
    return tuple(outputs), tree


def _returned(program: ExportedProgram) -> list[tuple[Any, OutputKind]]:
    node = next(node for node in program.graph.nodes if node.op == "output")
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    return list(zip(node.args[0], kinds, strict=True))


def _no_reference(node: fx.Node) -> Argument:
    raise AssertionError(f"a constant input refers to {node}")
