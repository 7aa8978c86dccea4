"""`plan explain`."""

from __future__ import annotations

from rich.text import Text

from planner.cli.commands.plan.group import PlanArgument, app
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.progress import spinner
from planner.client import PlannerClient
from planner.client.records import StoredPlan
from planner.errors import NotFound


@app.command("explain")
def explain(plan: PlanArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Why the cuts are where they are, what crosses them, what each device holds and what the next best cut costs."""
    with connect(server) as client, spinner("weighing other cuts"):
        lines = _explanation(client, client.get_plan(plan))
    emit({"id": plan, "lines": lines}, output, lambda: Text("\n".join(lines)))


def _explanation(client: PlannerClient, plan: StoredPlan) -> tuple[str, ...]:
    from planner.plan.explain import explain
    from planner.planning import explain_plan

    try:
        costs = client.recorded_costs(plan)
    except NotFound as error:
        return (*explain(plan), f"other cuts were not weighed: {error.message}")
    return explain_plan(client.read_graph(plan.graph_id), plan, *costs)
