"""`audit list`."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from planner.cli.options import OutputOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit
from planner.cli.tables import audit_table

app = typer.Typer(no_args_is_help=True, help="Who did what, when, from where, and what came of it.")


@app.callback()
def audit() -> None:
    """A lone command would otherwise stand for the group."""


@app.command("list")
def list_audit(
    principal: Annotated[str, typer.Option("--by", help="Only what this holder did.")] = "",
    subject: Annotated[str, typer.Option("--about", help="Only what was done to this id.")] = "",
    since: SinceOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest.")] = 100,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Newest first."""
    with connect(server) as client:
        entries = list(islice(client.list_audit(principal=principal, subject=subject, created_since=since), limit))
    emit(entries, output, lambda: audit_table(entries))
