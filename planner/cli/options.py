"""Options that every command takes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from planner.cli.moments import parse_moment
from planner.cli.output import OutputFormat, say
from planner.client import PlannerClient
from planner.client.config import find_restart_seconds, find_server, find_tls, find_token_file, is_server_named

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar="PLANNER_SERVER",
        help="Planner to talk to. Else: the config file's, the one that `up` started here, 127.0.0.1:50051.",
    ),
]
OwnerOption = Annotated[str, typer.Option("--owner", help="Only what this holder of a token owns.")]
GRAPH_HELP = "Graph id, its first six digits or more, or its name."
GraphArgument = Annotated[str, typer.Argument(metavar="GRAPH", help=GRAPH_HELP)]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        metavar="MOMENT",
        parser=parse_moment,
        help="Only newer ones: 90m, 12h, 3d, 2026-01-31 …",
    ),
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to write the result.")]


def connect(server: str | None) -> PlannerClient:
    return PlannerClient(
        find_server(server),
        tls=find_tls(),
        token_file=find_token_file(),
        restart_seconds=find_restart_seconds(),
        awaits_first=is_server_named(server),
        on_away=say,
    )
