"""`device list`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.tables import devices_table

app = typer.Typer(no_args_is_help=True, help="Devices whose daemons have registered.")


@app.callback()
def device() -> None:
    """A lone command would otherwise stand for the group."""


@app.command("list")
def list_devices(
    kind: Annotated[str, typer.Option("--kind", help="Only devices of this kind.")] = "",
    host: Annotated[str, typer.Option("--host", help="Only devices of this host.")] = "",
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Devices that are there now."""
    with connect(server) as client:
        devices = client.list_devices(kind=kind, host=host)
    emit(devices, output, lambda: devices_table(devices))
