"""`tokens create`, `list` and `revoke`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import OutputOption, ServerOption, SinceOption, connect
from planner.cli.output import OutputFormat, emit, say
from planner.cli.tables import tokens_table

app = typer.Typer(no_args_is_help=True, help="Bearer tokens: who may submit, deploy, operate or administer.")
_DAY_SECONDS = 86_400.0


@app.command("create")
def create_token(
    holder: Annotated[str, typer.Argument(help="Who gets it; owns what is made with it.")],
    scope: Annotated[list[str], typer.Option("--scope", help="submit, deploy, operate or admin; repeatable.")],
    days: Annotated[float, typer.Option("--days", help="How long it is valid.")] = 90.0,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a token. It is written here once, and can never be shown again."""
    with connect(server) as client:
        token, record = client.create_token(holder, scope, days * _DAY_SECONDS)
    say(f"{record.id} of {holder} for {', '.join(record.scopes)}, until {record.expires_at:%Y-%m-%d %H:%M} UTC")
    emit({"token": token, "id": record.id}, output, lambda: token)


@app.command("list")
def list_tokens(
    holder: Annotated[str, typer.Option("--holder", help="Only tokens of this holder.")] = "",
    since: SinceOption = None,
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """All tokens that were ever made, newest first, or those that pass the filters."""
    with connect(server) as client:
        tokens = list(client.list_tokens(holder=holder, created_since=since))
    emit(tokens, output, lambda: tokens_table(tokens))


@app.command("revoke")
def revoke_token(
    token: Annotated[str, typer.Argument(help="Token id, or its first six digits or more.")],
    server: ServerOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End a token: within a second no planner takes it any more."""
    with connect(server) as client:
        record = client.revoke_token(token)
    emit(record, output, lambda: tokens_table([record]))
