"""Captured program → passes → records: the order of the export's steps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from planner.client.export.capture import capture
from planner.client.export.compare import difference_of_numbers
from planner.client.export.encode_nodes import NodeEncoder
from planner.client.export.encode_signature import encode_inputs, encode_outputs
from planner.client.export.encode_states import encode_states
from planner.client.export.example_runs import Runs
from planner.client.export.exported_model import ExportedModel
from planner.client.export.independent_rows import dependence_of_rows
from planner.client.export.keyword_inputs import by_name
from planner.client.export.passes.copied_states import copy_written_states
from planner.client.export.passes.default_dtypes import name_default_dtypes
from planner.client.export.passes.dense_gradients import dense_gradients
from planner.client.export.passes.drop_assertions import drop_assertions
from planner.client.export.passes.drop_dead import drop_dead
from planner.client.export.passes.fill_constants import fill_constants
from planner.client.export.passes.flatten_regions import flatten_regions
from planner.client.export.passes.functionalise import functionalise
from planner.client.export.passes.grouped_products import grouped_products
from planner.client.export.passes.integer_histograms import integer_histograms
from planner.client.export.passes.out_arguments import copy_to_out_arguments
from planner.client.export.passes.unroll_scans import unroll_scans
from planner.client.export.passes.unroll_while_loops import unroll_while_loops
from planner.client.export.passes.view_to_reshape import view_to_reshape
from planner.client.export.passes.written_out_attention import write_out_attention
from planner.client.export.states import captured_states, check_tensor
from planner.client.export.symbol_names import symbol_names
from planner.client.export.symbols import SymbolTable
from planner.errors import PlannerWarning, UnsupportedModule
from planner.graph.check import check_graph
from planner.graph.ir import Graph


def translate(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    name: str | None,
    strict: bool,
    compare: bool,
) -> ExportedModel:
    _check_call(module, args, kwargs)
    kwargs = dict(kwargs)
    for index, leaf in enumerate(tree_leaves((args, kwargs))):
        if isinstance(leaf, torch.Tensor):
            check_tensor(leaf, f"input {index}")
    dynamic_shapes = by_name(module, kwargs, dynamic_shapes)
    captured = capture(module, args, kwargs, dynamic_shapes, strict)
    program = captured.program
    runs = Runs(module=module, program=program, args=args, kwargs=kwargs)
    is_compared = compare and runs.are_possible
    warned = [difference_of_numbers(runs)] if is_compared else []
    canonicalise(program.graph_module, _constants(program))
    states = captured_states(program)
    if module.training:
        copy_written_states(program.graph, states)
    fakes = [node.meta.get("val") for node in _inputs(program)]
    symbols = _symbol_table(program, symbol_names(module, args, kwargs, dynamic_shapes, fakes))
    encoder = NodeEncoder(symbols)
    for state in states:
        encoder.define_state(state)
    inputs, input_tree = encode_inputs(program, encoder)
    encoder.encode(program.graph_module)
    outputs, output_tree = encode_outputs(program, encoder)
    graph = Graph(
        torch_version=torch.__version__,
        name=name or type(module).__name__,
        symbols=symbols.symbols(),
        values=encoder.values(),
        nodes=encoder.nodes(),
        subgraphs=encoder.subgraphs(),
        states=encode_states(states, encoder, training=module.training),
        inputs=inputs,
        outputs=outputs,
        input_tree=input_tree,
        output_tree=output_tree,
        training=module.training,
        custom_backwards=captured.custom_backwards,
    )
    check_graph(graph)
    if is_compared:
        warned.append(dependence_of_rows(runs, graph))
    for warning in filter(None, warned):
        warnings.warn(warning, PlannerWarning, stacklevel=3)
    return ExportedModel(graph=graph, tensors=_stored(states))


def _check_call(module: Any, args: Any, kwargs: Any) -> None:
    if isinstance(module, ExportedProgram):
        raise UnsupportedModule("got torch.export's program, needed a torch.nn.Module: give what its .module() returns")
    if not isinstance(module, nn.Module):
        is_class = isinstance(module, type)
        got = f"the class {module.__name__}, not one of it" if is_class else f"a {type(module).__name__}"
        raise UnsupportedModule(f"got {got}, needed a torch.nn.Module: have a module's forward call it")
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedModule(
            "got a module of torch.jit: export the Python module that it was scripted or traced from"
        )
    if not isinstance(args, tuple):
        raise UnsupportedModule(f"got a {type(args).__name__} for args, needed a tuple: (x,) for one example input x")
    if not isinstance(kwargs, Mapping):
        raise UnsupportedModule(f"got a {type(kwargs).__name__} for kwargs, needed a dict of example inputs by name")


def canonicalise(module: fx.GraphModule, constants: Mapping[str, torch.Tensor]) -> None:
    """Rewrites a captured program in place, keeping its numbers bitwise. `constants`: by the placeholder's name."""
    # Bodies before what calls them.
    for part in reversed(list(module.modules())):
        if isinstance(part, fx.GraphModule):
            fill_constants(part)
            unroll_scans(part)
            unroll_while_loops(part, constants if part is module else {})
    flatten_regions(module)
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            name_default_dtypes(part.graph)
            write_out_attention(part)
            drop_assertions(part.graph)
            grouped_products(part.graph)
            integer_histograms(part.graph)
            view_to_reshape(part.graph)
            dense_gradients(part.graph)
            copy_to_out_arguments(part.graph)
            functionalise(part.graph)
            drop_dead(part.graph)


def _constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Tensors that the module's forward makes of numbers, by the placeholder that stands for each."""
    names = program.graph_signature.inputs_to_lifted_tensor_constants
    constants = {name: program.constants[target] for name, target in names.items()}
    return {name: one.cpu() for name, one in constants.items() if type(one) is torch.Tensor and not one.is_meta}


def _inputs(program: ExportedProgram) -> list[fx.Node]:
    names = set(program.graph_signature.user_inputs)
    return [node for node in program.graph.nodes if node.op == "placeholder" and node.name in names]


def _symbol_table(program: ExportedProgram, names: dict[Any, str]) -> SymbolTable:
    fakes = (node.meta.get("val") for node in program.graph.nodes)
    modes = (fake.fake_mode for fake in fakes if isinstance(fake, torch._subclasses.FakeTensor))
    mode = next(modes, None)
    return SymbolTable(getattr(mode, "shape_env", None), program.range_constraints, names)


def _stored(states: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    stored: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for state in states:
        if not state.sha256 or state.tie_group in seen:
            continue
        if state.tie_group:
            seen.add(state.tie_group)
        stored[state.name] = state.tensor.detach()
    return stored
