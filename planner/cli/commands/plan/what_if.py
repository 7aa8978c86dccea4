"""`plan what-if`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from rich.console import Group

from planner.cli import plan_options as given
from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.inventory_file import inventory_path, read_inventory
from planner.cli.mode_options import ModeOption, mode_from_flags
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.cli.study_tables import diff_table
from planner.cli.tables import plan_table
from planner.cli.times import TimesOption, read_times_file
from planner.client import PlannerClient
from planner.client.profiles import Costs
from planner.client.records import StoredPlan
from planner.partition.objective import Objective
from planner.plan.options import PlanOptions, RatesFrom, Routing


@app.command("what-if")
def what_if(
    plan: PlanArgument,
    inventory: Annotated[
        str | None, typer.Option("--inventory", metavar="FILE|ID", help="Other devices than the plan's.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="DEVICE", help="Leave a device of the plan's out; repeat.")
    ] = None,
    symbol: given.SymbolOption = None,
    mode: ModeOption = None,
    objective: Annotated[Objective | None, typer.Option("--objective", help="Another thing to make least.")] = None,
    routing: Annotated[Routing | None, typer.Option("--routing", help="Another way for tensors to travel.")] = None,
    rates_from: given.RatesFromOption = None,
    times: TimesOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """What the plan would be with other devices, another batch or another goal. Nothing is stored."""
    from planner.plan.diff import diff_plans
    from planner.planning import make_plan

    with connect(server) as client, spinner("planning"):
        before = client.get_plan(plan)
        graph_id = before.graph_id
        graph = client.read_graph(graph_id)
        devices = before.inventory
        if inventory is not None:
            file = inventory_path(inventory)
            devices = read_inventory(file) if file else client.get_inventory(inventory).inventory
        options = before.options
        changed = dict(options.symbol_values) | dict(given.symbol_values(symbol or []))
        options = replace(
            options,
            mode=mode_from_flags(mode.value, {}) if mode else options.mode,
            objective=objective or options.objective,
            routing=routing or options.routing,
            symbol_values=tuple(sorted(changed.items())),
        )
        if rates_from:
            source, profiles = given.rates_source(rates_from)
            options = replace(options, rates_from=source, rates_from_profiles=profiles)
        devices = devices.without(without or ())
        kinds = [device.kind for device in devices.devices]
        measured, calibrations = _costs(client, before, kinds, options, rates_of_today=bool(rates_from))
        given_times = read_times_file(times, graph_id) if times else ()
        # Of one kind and one setting of the dimensions, the times given count: they stand first.
        after = make_plan(graph, graph_id, devices, options, (*given_times, *measured), calibrations)
        difference = diff_plans(graph, before, after)
    emit(
        {"plan": after, "diff": difference},
        output,
        lambda: Group(plan_table(after), diff_table(before.id, "what if", difference)),
    )


def _costs(
    client: PlannerClient, before: StoredPlan, kinds: Sequence[str], options: PlanOptions, *, rates_of_today: bool
) -> Costs:
    """Those of the plan; today's of kinds that it does not have, and today's rates where those are asked for."""
    measured, calibrations = client.recorded_costs(before)
    rates_from = options.rates_from or RatesFrom.OWN
    kinds_of_plan = {source.device_kind.lower() for source in before.cost_sources}
    others = [kind for kind in kinds if kind.lower() not in kinds_of_plan]
    measured += client.measured_times(before.graph_id, others)
    if rates_of_today:
        return measured, client.fitted_rates(kinds, rates_from, options.rates_from_profiles)
    return measured, calibrations + client.fitted_rates(others, rates_from)
