"""`plan create`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli import plan_options as given
from planner.cli.commands.plan.group import app
from planner.cli.graph_names import find_graph
from planner.cli.inventory_file import inventory_path, read_inventory
from planner.cli.mode_options import takes_mode
from planner.cli.options import GRAPH_HELP, OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.cli.tables import plan_table
from planner.partition.objective import Activations, Objective
from planner.plan.options import Mode, Routing


@app.command("create")
@takes_mode
def create_plan(
    mode: Mode,
    graph: Annotated[str | None, typer.Argument(metavar="GRAPH", help=GRAPH_HELP, show_default=False)] = None,
    graph_option: Annotated[str | None, typer.Option("--graph", help="The same, by name.", show_default=False)] = None,
    objective: given.ObjectiveOption = Objective.THROUGHPUT,
    schedule: given.ScheduleOption = None,
    microbatches: given.MicrobatchesOption = 8,
    optimizer_bytes: given.OptimizerBytesOption = 8.0,
    backward_ratio: given.BackwardRatioOption = 2.0,
    activations: given.ActivationsOption = Activations.KEPT,
    routing: given.RoutingOption = Routing.DIRECT,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="ID", help="A registered device to use; repeat. Else all.")
    ] = None,
    inventory: Annotated[
        str | None, typer.Option("--inventory", metavar="FILE|ID", help="Plan over these devices instead.")
    ] = None,
    in_flight: given.InFlightOption = 0,
    symbol: given.SymbolOption = None,
    bucket: given.BucketOption = None,
    fix: given.FixOption = None,
    together: given.TogetherOption = None,
    saturate_host: given.SaturateOption = False,
    rates_from: given.RatesFromOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compute a plan and store it. Without --inventory, over the registered devices."""
    name = graph or graph_option
    if not name or (graph and graph_option):
        wrong = "is given twice" if name else "name the graph to plan, as in `plan create tiny-llama`"
        raise typer.BadParameter(wrong, param_hint="GRAPH")
    options = given.plan_options(
        mode,
        objective=objective,
        training=given.training_of(schedule, microbatches, optimizer_bytes, backward_ratio, activations),
        routing=routing,
        in_flight=in_flight,
        symbols=symbol or (),
        buckets=bucket or (),
        fixed=fix or (),
        together=together or (),
        saturate_host=saturate_host,
        rates_from=rates_from or (),
    )
    file = inventory_path(inventory) if inventory else None
    with connect(server) as client, spinner("planning"):
        plan = client.create_plan(
            find_graph(client, name).id,
            options,
            inventory=read_inventory(file) if file else None,
            inventory_id=None if file else inventory,
            device_ids=device or (),
        )
    emit(plan, output, lambda: plan_table(plan))
