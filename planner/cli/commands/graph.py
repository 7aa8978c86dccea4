"""`graph list`, `graph get` and `graph attach-weights`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.commands.submit import attach_weights
from planner.cli.graph_names import find_graph
from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.tables import graphs_table

app = typer.Typer(no_args_is_help=True, help="Graphs that the server holds.")
app.command("attach-weights")(attach_weights)


@app.command("list")
def list_graphs(server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """All graphs."""
    with connect(server) as client:
        graphs = list(client.list_graphs())
    emit(graphs, output, lambda: graphs_table(graphs))


@app.command("get")
def get_graph(
    graph: Annotated[str, typer.Argument(help="Graph id, a prefix of it, or its name.")],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One graph."""
    with connect(server) as client:
        record = find_graph(client, graph)
    emit(record, output, lambda: graphs_table([record]))
