"""`plan explain`."""

from __future__ import annotations

from rich.text import Text

from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner


@app.command("explain")
def explain(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Why the cuts are where they are, what crosses them, what each device holds and what the next best cut costs."""
    from planner.planning import explain_plan

    with connect(server) as client, spinner("weighing other cuts"):
        found = client.get_plan(plan)
        costs = client.stored_costs(found.graph_id, [device.kind for device in found.inventory.devices])
        lines = explain_plan(client.read_graph(found.graph_id), found, *costs)
    emit({"id": plan, "lines": lines}, output, lambda: Text("\n".join(lines)))
