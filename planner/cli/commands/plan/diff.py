"""`plan diff`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.commands.plan.group import app
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.study_tables import diff_table


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="Plan id, or its first six digits or more.")],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="Plan id, or its first six digits or more; of the same graph.")
    ],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """What changes from one plan to another: nodes that move, and bytes that have to."""
    from planner.plan.diff import diff_plans

    with connect(server) as client:
        one, other = client.get_plan(before), client.get_plan(after)
        difference = diff_plans(client.read_graph(one.graph_id), one, other)
    emit(difference, output, lambda: diff_table(before, after, difference))
