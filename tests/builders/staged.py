"""A graph in stages that the daemon's own loader brings to life, run one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.graph.ir import Graph, Input, Output, ValueReference
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.wire.graph import graph_to_bytes
from stage_daemon.loader.load import StageProgram, load_stage
from tests.builders.case import Batch
from tests.builders.weight_files import WeightFiles

CPU = torch.device("cpu")


def load_whole(graph: Graph, files: WeightFiles) -> list[StageProgram]:
    return _load([graph], graph, files)


def load_stages(graph: Graph, plan: Plan, files: WeightFiles) -> list[StageProgram]:
    return _load([stage_graph(graph, plan, index) for index in range(len(plan.stages))], graph, files)


def run_stages(graph: Graph, programs: Sequence[StageProgram], batch: Batch) -> Any:
    leaves = flatten_inputs(graph, batch.args, batch.kwargs)
    environment = dict(zip(_value_ids(graph.inputs), leaves, strict=True))
    for program in programs:
        results = program.module(*(environment[value_id] for value_id in program.input_ids))
        environment.update(zip(program.output_ids, results, strict=True))
    return unflatten_outputs(graph, [environment[value_id] for value_id in _value_ids(graph.outputs)])


def _load(stages: Sequence[Graph], whole: Graph, files: WeightFiles) -> list[StageProgram]:
    places = {location.name: location for location in files.locations(whole)}
    return [
        load_stage(
            graph_to_bytes(stage),
            [places[state.name] for state in stage.states],
            files.read_range,
            CPU,
            lambda loaded, total: None,
        )
        for stage in stages
    ]


def _value_ids(entries: Sequence[Input | Output]) -> Iterator[int]:
    return (entry.content.value_id for entry in entries if isinstance(entry.content, ValueReference))
