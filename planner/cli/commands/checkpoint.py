"""`checkpoint list`, `get`, `download` and `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.graph_names import find_graph
from planner.cli.options import OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted
from planner.cli.tables import checkpoints_table

app = typer.Typer(no_args_is_help=True, help="What trainings have saved.")

CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Checkpoint id, its first six digits or more, or a run, of which the latest is taken.",
    ),
]


@app.command("list")
def list_checkpoints(
    run: Annotated[str, typer.Option("--run", help="Only checkpoints of this run.")] = "",
    graph: Annotated[str | None, typer.Option("--graph", help="Only checkpoints of this graph.")] = None,
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All checkpoints, or those that pass the filters."""
    with connect(server) as client:
        graph_id = find_graph(client, graph).id if graph else ""
        records = list(client.list_checkpoints(run=run, graph_id=graph_id, owner=owner, created_since=since))
    emit(records, output, lambda: checkpoints_table(records))


@app.command("get")
def get_checkpoint(
    checkpoint: CheckpointArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """One checkpoint."""
    with connect(server) as client:
        record = client.find_checkpoint(checkpoint).record
    emit(record, output, lambda: checkpoints_table([record]))


@app.command("download")
def download_checkpoint(
    checkpoint: CheckpointArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.")],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write a checkpoint's files into a new folder: safetensors under the module's own names."""
    with connect(server) as client:
        record = client.download_checkpoint(checkpoint, directory)
    emit(record, output, lambda: checkpoints_table([record]))


@app.command("delete")
def delete_checkpoint(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint id, or its first six digits or more.")
    ],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a checkpoint; `gc` frees the bytes of its files."""
    with connect(server) as client:
        deleted = client.delete_checkpoint(checkpoint)
    emit_deleted(deleted, output)
