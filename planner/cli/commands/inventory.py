"""`inventory create`, `list`, `get` and `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cli.documents import inventory_document
from planner.cli.inventory_file import read_inventory
from planner.cli.options import OutputOption, OwnerOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, emit_deleted
from planner.cli.tables import inventories_table, inventory_table
from planner.client.records import InventoryRecord

app = typer.Typer(no_args_is_help=True, help="Stored sets of devices and links to plan over.")

InventoryArgument = Annotated[
    str, typer.Argument(metavar="INVENTORY", help="Inventory id, or its first six digits or more.")
]


@app.command("create")
def create_inventory(
    file: Annotated[Path, typer.Argument(help="YAML or JSON: devices, links, default_link.")],
    name: Annotated[str, typer.Option("--name", help="For display.")] = "",
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Store an inventory."""
    inventory = read_inventory(file)
    with connect(server) as client:
        record = client.create_inventory(inventory, name=name)
    emit(record, output, lambda: inventory_table(record))


@app.command("list")
def list_inventories(
    name: Annotated[str, typer.Option("--name", help="Only inventories of this name.")] = "",
    owner: OwnerOption = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All inventories, or those that pass the filters."""
    with connect(server) as client:
        records = list(client.list_inventories(name=name, owner=owner, created_since=since))
    emit(records, output, lambda: inventories_table(records))


@app.command("get")
def get_inventory(
    inventory: InventoryArgument,
    as_file: Annotated[bool, typer.Option("--as-file", help="Only what `inventory create` reads.")] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """One inventory."""
    with connect(server) as client:
        record = client.get_inventory(inventory)
    emit(_document(record, as_file), _format(output, as_file), lambda: inventory_table(record))


@app.command("delete")
def delete_inventory(
    inventory: InventoryArgument, server: ServerOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Delete an inventory that no plan is over."""
    with connect(server) as client:
        deleted = client.delete_inventory(inventory)
    emit_deleted(deleted, output)


def _document(record: InventoryRecord, as_file: bool) -> object:
    return inventory_document(record.inventory) if as_file else record


def _format(output: OutputFormat, as_file: bool) -> OutputFormat:
    return OutputFormat.YAML if as_file and output is OutputFormat.TABLE else output
