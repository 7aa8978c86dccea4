"""`graph list`, `get`, `attach-weights` and `delete`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.commands.submit import attach_weights
from planner.cli.graph_names import find_graph
from planner.cli.options import GraphArgument, OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted
from planner.cli.tables import graphs_table

app = typer.Typer(no_args_is_help=True, help="Graphs that the server holds.")
app.command("attach-weights")(attach_weights)


@app.command("list")
def list_graphs(
    name: Annotated[str, typer.Option("--name", help="Only graphs that were submitted under this name.")] = "",
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All graphs, or those that pass the filters."""
    with connect(server) as client:
        graphs = list(client.list_graphs(name=name, owner=owner, created_since=since))
    emit(graphs, output, lambda: graphs_table(graphs))


@app.command("get")
def get_graph(
    graph: GraphArgument,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One graph."""
    with connect(server) as client:
        record = find_graph(client, graph)
    emit(record, output, lambda: graphs_table([record]))


@app.command("delete")
def delete_graph(graph: GraphArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a graph that no plan, profile or deployment is of."""
    with connect(server) as client:
        deleted = client.delete_graph(find_graph(client, graph).id)
    emit_deleted(deleted, output)
