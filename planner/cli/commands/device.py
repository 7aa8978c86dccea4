"""`device list`, `device drain`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.tables import devices_table

# From one look at what is on a drained device to the next.
PERIOD_SECONDS = 0.25

app = typer.Typer(no_args_is_help=True, help="Devices whose daemons have registered.")


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


@app.command("drain")
def drain_device(
    device_id: Annotated[str, typer.Argument(help="The device; `device list` shows them.")],
    undo: Annotated[bool, typer.Option("--undo", help="Put deployments on it again.")] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put nothing new on a device until its daemon has been started again, and move what can move.

    Deployments with the recovery policy `replan` go on on other devices, without a failed request; the others stay.
    """
    with connect(server) as client:
        while not all((stays := client.drain_device(device_id, undo=undo)).values()):
            time.sleep(PERIOD_SECONDS)
    emit(
        {"device_id": device_id, "stays": dict(stays)},
        output,
        lambda: "\n".join(f"{name} stays: {why}" for name, why in stays.items()) or f"nothing is on {device_id}",
    )
