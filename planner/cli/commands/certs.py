"""`certs init`, `issue` and `revoke`: a small certificate authority in a folder, for those who have none."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from access.authority import create_authority
from access.authority import issue as issue_certificate
from access.authority import revoke as revoke_certificates
from access.errors import AccessError
from planner.cli.output import say
from planner.errors import InvalidArgument

app = typer.Typer(no_args_is_help=True, help="Certificates for mutual TLS, from an authority of your own.")
FolderOption = Annotated[Path, typer.Option("--folder", help="Where the authority is; keep its ca.key offline.")]


class Role(Enum):
    PLANNER = "planner"
    DAEMON = "daemon"
    CLIENT = "client"


@app.command("init")
def init(
    folder: FolderOption = Path("partition-planner-ca"),
    days: Annotated[int, typer.Option("--days", min=1, help="How long the authority is valid.")] = 3650,
) -> None:
    """Make an authority: ca.crt, which everyone gets, and ca.key, which nobody else may see."""
    try:
        certificate = create_authority(folder, timedelta(days=days))
    except AccessError as error:
        raise InvalidArgument(error.message) from None
    say(f"{certificate} is what planners, daemons and clients trust; keep {folder / 'ca.key'} to yourself")


@app.command("issue")
def issue(
    name: Annotated[str, typer.Argument(help="Of the host or person; the files are called so.")],
    role: Annotated[Role, typer.Option("--role", help="What the certificate's holder is.")],
    host: Annotated[
        list[str] | None, typer.Option("--host", help="DNS name or address at which others reach it; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where NAME.crt, NAME.key and ca.crt go.")] = Path(),
    folder: FolderOption = Path("partition-planner-ca"),
    days: Annotated[int, typer.Option("--days", min=1, help="How long it is valid.")] = 90,
) -> None:
    """Make a certificate and its key, or renew those that are there: running services take them by themselves."""
    if role is not Role.CLIENT and not host:
        raise InvalidArgument(f"a {role.value} is called by others: give --host NAME or ADDRESS, as they write it")
    try:
        files = issue_certificate(folder, out, role=role.value, name=name, hosts=host or (), valid=timedelta(days=days))
    except AccessError as error:
        raise InvalidArgument(error.message) from None
    say(f"{files.certificate} and {files.key} are valid for {days} days; {files.authorities} goes with them")


@app.command("revoke")
def revoke(
    certificates: Annotated[list[Path], typer.Argument(help="NAME.crt of each; keep a copy of what you issue.")],
    folder: FolderOption = Path("partition-planner-ca"),
) -> None:
    """List certificates that count no longer, in the authority's ca.crl, which all services are to have."""
    try:
        path = revoke_certificates(folder, certificates)
    except AccessError as error:
        raise InvalidArgument(error.message) from None
    say(f"{path} lists them; put it where PLANNER_TLS_REVOKED and STAGE_DAEMON_TLS_REVOKED say, nothing is restarted")
