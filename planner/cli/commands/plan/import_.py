"""`plan import`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group

from planner.cli import plan_options as given
from planner.cli.commands.plan.export import PREFIXES, ExportFormat
from planner.cli.commands.plan.group import app
from planner.cli.document_file import read_text
from planner.cli.graph_names import find_graph
from planner.cli.inventory_file import inventory_path, read_inventory
from planner.cli.options import GRAPH_HELP, OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.cli.study_tables import diff_table
from planner.cli.tables import plan_table
from planner.client import PlannerClient
from planner.cost.inventory import Inventory
from planner.errors import NotFound, OptionsError
from planner.graph.ir import Graph
from planner.partition.objective import Objective
from planner.plan.diff import diff_plans
from planner.plan.imports.layers import (
    split_of_deepspeed,
    split_of_exo,
    split_of_llama_cpp,
    split_of_megatron,
    split_of_mlx,
    split_of_nanotron,
    split_of_vllm,
)
from planner.plan.imports.modules import split_of_device_map, split_of_parts, split_of_split_spec
from planner.plan.imports.split import Split
from planner.plan.options import OptimalMode, PlanOptions, Routing


@app.command("import")
def import_plan(
    split: Annotated[str, typer.Argument(metavar="SPLIT", help="As `plan export` writes it, or a file of it.")],
    format_: Annotated[ExportFormat, typer.Option("--format", help="Whose words the split is in.")],
    graph: Annotated[str, typer.Option("--graph", help=GRAPH_HELP)],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="ID", help="Where its first rank runs, its second, …: repeat. Else in order."),
    ] = None,
    inventory: Annotated[
        str | None, typer.Option("--inventory", metavar="FILE|ID", help="Over these devices, not the registered ones.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Make the best plan over the same devices too, and show the difference.")
    ] = False,
    objective: given.ObjectiveOption = Objective.THROUGHPUT,
    schedule: given.ScheduleOption = None,
    microbatches: given.MicrobatchesOption = 8,
    optimizer_bytes: given.OptimizerBytesOption = 8.0,
    backward_ratio: given.BackwardRatioOption = 2.0,
    symbol: given.SymbolOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a plan of the split that another system runs: what does it cost, and what would the best one?

    A split that begins with dashes goes last, after --.
    """
    content = _content(format_, split)
    with connect(server) as client, spinner("planning"):
        graph_id = find_graph(client, graph).id
        program = client.read_graph(graph_id)
        devices = _devices(client, inventory)
        mode = _READERS[format_](program, content).mode(device or [one.id for one in devices.devices])
        options = PlanOptions(
            mode=mode,
            objective=objective,
            routing=Routing.DIRECT,
            training=given.training_of(schedule, microbatches, optimizer_bytes, backward_ratio),
            symbol_values=given.symbol_values(symbol or ()),
        )
        plan = client.create_plan(graph_id, options, inventory=devices)
        if not best:
            emit(plan, output, lambda: plan_table(plan))
            return
        same = devices.without([one.id for one in devices.devices if one.id not in mode.device_of_partition])
        better = client.create_plan(graph_id, replace(options, mode=OptimalMode()), inventory=same)
        difference = diff_plans(program, plan, better)
    tables = (
        plan_table(plan),
        plan_table(better),
        diff_table(format_.value, "best", difference),
    )
    emit({"plan": plan, "best": better, "diff": difference}, output, lambda: Group(*tables))


def _devices(client: PlannerClient, inventory: str | None) -> Inventory:
    if inventory is None:
        registered = client.list_devices()
        if not registered:
            raise NotFound("no daemon holds a lease; start a stage-daemon, or give --inventory")
        return Inventory(devices=tuple(one.device for one in registered))
    file = inventory_path(inventory)
    return read_inventory(file) if file else client.get_inventory(inventory).inventory


_TEXTS: Mapping[ExportFormat, Callable[[Graph, str], Split]] = {
    ExportFormat.VLLM: split_of_vllm,
    ExportFormat.MEGATRON: split_of_megatron,
    ExportFormat.LLAMA_CPP: split_of_llama_cpp,
}
_READERS: Mapping[ExportFormat, Callable[[Graph, Any], Split]] = {
    **_TEXTS,
    ExportFormat.TORCH_PIPELINING: split_of_split_spec,
    ExportFormat.TORCHTITAN: split_of_parts,
    ExportFormat.DEVICE_MAP: split_of_device_map,
    ExportFormat.EXO: split_of_exo,
    ExportFormat.DEEPSPEED: split_of_deepspeed,
    ExportFormat.NANOTRON: split_of_nanotron,
    ExportFormat.MLX: split_of_mlx,
}


def _content(format_: ExportFormat, split: str) -> Any:
    """The text of a file by that name, else the text itself, without what a shell has around it."""
    text = (read_text(Path(split)) if os.path.isfile(split) else split).strip()
    if format_ in _TEXTS:
        return text.removeprefix(PREFIXES[format_]).strip().strip("\"'")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionsError(
            f"the split is no JSON ({error}), nor the name of a file; {format_.value} needs JSON"
        ) from None
