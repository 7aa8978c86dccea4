"""`profile run`, `list`, `get`, `import`, `export` and `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.graph_names import find_graph
from planner.cli.options import GraphArgument, OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted
from planner.cli.plan_options import symbol_values
from planner.cli.profile_tables import profile_table, profiles_table
from planner.cli.progress import profile_bars
from planner.cli.times import read_times_file
from planner.cost.times_file import write_times

app = typer.Typer(no_args_is_help=True, help="Measured times of a graph's nodes; plans use them where there are any.")

ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help="Profile id, or its first six digits or more.")]


@app.command("run")
def run_profile(
    graph: GraphArgument,
    device: Annotated[
        list[str] | None, typer.Option("--device", metavar="ID", help="A registered, free device; repeat for more.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="A free device of this kind; repeat. Without either: of each kind that is there."),
    ] = None,
    symbol: Annotated[
        list[str] | None, typer.Option("--symbol", metavar="NAME=VALUE", help="Measure at this size of a dimension.")
    ] = None,
    repetitions: Annotated[int, typer.Option("--repetitions", min=0, help="Of each distinct node; 0 means 20.")] = 0,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Calls before those; 0 means 3.")] = 0,
    backward: Annotated[
        bool, typer.Option("--backward", help="The backward passes too, for plans that train.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads of an operator, as `deploy` has them; else all."),
    ] = None,
    neighbours: Annotated[
        int | None,
        typer.Option("--neighbours", min=0, help="Busy CPU workers beside it; else one per other daemon of the host."),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Time each distinct node of a graph on a device, and store the times."""
    symbols = dict(symbol_values(symbol or []))
    with connect(server) as client, profile_bars() as on_progress:
        records = client.profile_graph(
            find_graph(client, graph).id,
            device_ids=device or (),
            device_kinds=kind or (),
            symbol_values=symbols,
            repetitions=repetitions,
            warmup=warmup,
            backward=backward,
            num_threads=threads,
            num_neighbours=neighbours,
            on_progress=on_progress,
        )
    emit(records, output, lambda: profiles_table(records))


@app.command("list")
def list_profiles(
    graph: Annotated[str | None, typer.Option("--graph", help="Only times of this graph.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="Only times on devices of this kind.")] = "",
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All measured times, and the rates fitted to them."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        records = list(client.list_profiles(graph_id=graph_id, device_kind=kind, owner=owner, created_since=since))
    emit(records, output, lambda: profiles_table(records))


@app.command("get")
def get_profile(
    profile: ProfileArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """What was measured, the rates fitted to it, and which nodes have no time; plans name the profiles they used."""
    with connect(server) as client:
        record = client.get_profile(profile)
    emit(record, output, lambda: profile_table(record))


@app.command("import")
def import_times(
    file: Annotated[Path, typer.Argument(help="JSON: device_kind, times [{node, seconds}], symbol_values, source.")],
    graph: Annotated[
        str | None, typer.Option("--graph", help="Whose times they are, if the file does not say.")
    ] = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Store times that were measured elsewhere."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        records = [client.import_times(times, graph_id or None) for times in read_times_file(file, graph_id)]
    emit(records, output, lambda: profiles_table(records))


@app.command("export")
def export_times(
    profile: ProfileArgument,
    file: Annotated[Path | None, typer.Argument(help="Written to; else to stdout.")] = None,
    server: ServerOption = None,
) -> None:
    """Write measured times as JSON, as `profile import` and --times read them."""
    with connect(server) as client:
        text = write_times([client.get_profile(profile).times])
    if file is None:
        typer.echo(text, nl=False)
    else:
        file.write_text(text)


@app.command("delete")
def delete_profile(
    profile: ProfileArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Delete measured times; plans that were made with them stay."""
    with connect(server) as client:
        deleted = client.delete_profile(profile)
    emit_deleted(deleted, output)
