"""`plan get`, `list` and `delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.graph_names import find_graph
from planner.cli.mode_options import ModeName
from planner.cli.options import OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted
from planner.cli.tables import plan_table, plans_table


@app.command("get")
def get_plan(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """One plan."""
    with connect(server) as client:
        stored_plan = client.get_plan(plan)
    emit(stored_plan, output, lambda: plan_table(stored_plan))


@app.command("list")
def list_plans(
    graph: Annotated[str | None, typer.Option("--graph", help="Only plans of this graph.")] = None,
    mode: Annotated[ModeName | None, typer.Option("--mode", help="Only plans made this way.")] = None,
    device: Annotated[str, typer.Option("--device", help="Only plans that use this device.")] = "",
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All plans, or those that pass the filters."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        plans = list(
            client.list_plans(
                graph_id=graph_id,
                mode=mode.value if mode else "",
                device_id=device,
                owner=owner,
                created_since=since,
            )
        )
    emit(plans, output, lambda: plans_table(plans))


@app.command("delete")
def delete_plan(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a plan that no deployment needs any more."""
    with connect(server) as client:
        deleted = client.delete_plan(plan)
    emit_deleted(deleted, output)
