"""`plan create`, `get`, `list`, `explain` and `delete`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from planner.cli.graph_names import find_graph
from planner.cli.inventory_file import read_inventory
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit, say
from planner.cli.progress import spinner
from planner.cli.tables import plan_table, plans_table
from planner.errors import OptionsError
from planner.plan.options import BalancedMode, CutMode, Mode, PlanOptions, Routing, SizeBasedMode

app = typer.Typer(no_args_is_help=True, help="How a graph is cut over devices.")

PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="Plan id.")]


class ModeName(Enum):
    CUT = "cut"
    SIZE_BASED = "size_based"
    BALANCED = "balanced"


@app.command("create")
def create_plan(
    graph: Annotated[str, typer.Option("--graph", help="Graph id, a prefix of it, or its name.")],
    mode: Annotated[
        ModeName | None, typer.Option("--mode", help="How to choose the cuts; `cut` where --cut is given.")
    ] = None,
    cut: Annotated[
        list[str] | None, typer.Option("--cut", metavar="PATH", help="Cut after this module; repeat for more cuts.")
    ] = None,
    stages: Annotated[int, typer.Option("--stages", min=0, help="balanced: how many; 0 means as many as help.")] = 0,
    routing: Annotated[
        Routing, typer.Option("--routing", help="Straight to each consumer, or hop by hop.")
    ] = Routing.DIRECT,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="ID", help="A registered device to use; repeat. Else all.")
    ] = None,
    inventory: Annotated[
        str | None, typer.Option("--inventory", metavar="FILE|ID", help="Plan over these devices instead.")
    ] = None,
    in_flight: Annotated[int, typer.Option("--in-flight", min=0, help="Microbatches per edge; 0 means 2.")] = 0,
    symbol: Annotated[
        list[str] | None, typer.Option("--symbol", metavar="NAME=VALUE", help="Plan for this size of a dimension.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compute a plan and store it. Without --inventory, over the registered devices."""
    options = PlanOptions(
        mode=_mode(mode, cut or [], stages),
        routing=routing,
        microbatches_in_flight=in_flight,
        symbol_values=tuple(map(_symbol_value, symbol or [])),
    )
    file = Path(inventory) if inventory and Path(inventory).exists() else None
    with connect(server) as client, spinner("planning"):
        plan = client.create_plan(
            find_graph(client, graph).id,
            options,
            inventory=read_inventory(file) if file else None,
            inventory_id=None if file else inventory,
            device_ids=device or (),
        )
    emit(plan, output, lambda: plan_table(plan))


@app.command("get")
def get_plan(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """One plan."""
    with connect(server) as client:
        found = client.get_plan(plan)
    emit(found, output, lambda: plan_table(found))


@app.command("list")
def list_plans(
    graph: Annotated[str | None, typer.Option("--graph", help="Only plans of this graph.")] = None,
    mode: Annotated[ModeName | None, typer.Option("--mode", help="Only plans made this way.")] = None,
    device: Annotated[str, typer.Option("--device", help="Only plans that use this device.")] = "",
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All plans, or those that pass the filters."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        plans = list(client.list_plans(graph_id=graph_id, mode=mode.value if mode else "", device_id=device))
    emit(plans, output, lambda: plans_table(plans))


@app.command("explain")
def explain_plan(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Why the cuts are where they are, what crosses them and what each device holds."""
    from planner.plan.explain import explain

    with connect(server) as client:
        lines = explain(client.get_plan(plan))
    emit({"id": plan, "lines": lines}, output, lambda: Text("\n".join(lines)))


@app.command("delete")
def delete_plan(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a plan that no deployment needs any more."""
    with connect(server) as client:
        client.delete_plan(plan)
    if output is OutputFormat.TABLE:
        say(f"deleted {plan}")
    else:
        emit({"id": plan, "deleted": True}, output, Text)


def _mode(name: ModeName | None, cuts: list[str], num_stages: int) -> Mode:
    if name is None:
        name = ModeName.CUT if cuts else ModeName.BALANCED
    if cuts and name is not ModeName.CUT:
        raise OptionsError(f"--cut with --mode {name.value}: only --mode cut takes module paths")
    if num_stages and name is not ModeName.BALANCED:
        raise OptionsError(f"--stages with --mode {name.value}: only --mode balanced takes a number of stages")
    if name is ModeName.CUT:
        return CutMode(module_paths=tuple(cuts))
    return SizeBasedMode() if name is ModeName.SIZE_BASED else BalancedMode(num_stages=num_stages)


def _symbol_value(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.isdecimal():
        raise OptionsError(f"--symbol {text!r} is no NAME=VALUE with a whole number, such as batch=8")
    return name, int(value)
