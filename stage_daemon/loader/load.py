"""From a stage's bytes to a program that is ready to run, checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from protos.v1 import graph_pb2 as pb
from protos.v1 import stage_daemon_pb2 as daemon_pb
from stage_daemon.loader.kept_states import KeptStates
from stage_daemon.loader.meta_check import check_shapes
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.loader.stage_module import StageModule
from stage_daemon.loader.states import OnProgress, ReadRange, find_states, load_states


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """`module` takes the values of `input_ids` and gives a tuple of those of `output_ids`, both in order."""

    module: StageModule
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    graph: pb.Graph


def load_stage(
    graph_bytes: bytes,
    locations: Sequence[daemon_pb.StateLocation],
    read_range: ReadRange,
    device: torch.device,
    on_progress: OnProgress,
    kept_states: KeptStates | None = None,
) -> StageProgram:
    """Everything that can be refused without data is, before the first byte of a weight is read.

    Weights among `kept_states` are not read.

    Raises InvalidGraph, UnsupportedOperator, ShapeMismatch, StateMismatch or InsufficientMemory.
    """
    graph = parse_graph(graph_bytes)
    module = rebuild_module(graph, device)
    states = find_states(graph, locations)
    check_shapes(module, graph, device)
    module.set_states(load_states(states, read_range, device, on_progress, kept_states))
    return StageProgram(
        module=module,
        input_ids=tuple(input_.value for input_ in graph.inputs if input_.WhichOneof("content") == "value"),
        output_ids=tuple(output.value for output in graph.outputs if output.WhichOneof("content") == "value"),
        graph=graph,
    )
