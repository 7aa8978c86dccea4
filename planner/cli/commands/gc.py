"""`gc`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOption, ServerOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.quantities import format_bytes


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Free the bytes of deleted graphs and of submissions that were given up.

    The server does so every hour too.
    """
    with connect(server) as client:
        collection = client.collect_blobs(dry_run=dry_run)
    blobs = "1 blob" if collection.num_blobs == 1 else f"{collection.num_blobs} blobs"
    done = "would be freed" if dry_run else "freed"
    text = (
        f"{blobs} {done}, {format_bytes(collection.size_bytes)}; "
        f"kept: {collection.num_referenced} of graphs, {collection.num_young} used lately"
    )
    emit(collection, output, lambda: text)
