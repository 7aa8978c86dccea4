"""planner-server: reads the settings, builds the server, serves until SIGTERM.

Worker processes import this module again, so that everything heavy is imported where it is used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.settings import Settings

OPTIONS = {
    "listen": "host:port to serve on; port 0 takes a free one (default 127.0.0.1:50051)",
    "data-dir": "folder for the database, blobs and unfinished uploads (default planner-data)",
    "database-url": "sqlite:///... or postgresql://... (default planner.db in the data folder)",
    "blob-url": "file:///... or s3://... (default the folder blobs in the data folder)",
    "lease-seconds": "a daemon that is silent for longer is gone (default 10)",
    "plan-workers": "plans computed at the same time (default 2)",
    "rates-from": "own or newest: whose fitted rates serve plans whose requests do not say (default own)",
    "log-level": "debug, info, warning or error (default info)",
    "log-format": "console or json (default console)",
    "metrics-listen": "host:port for Prometheus (default none)",
    "tls-certificate": "PEM file; with --tls-key and --tls-ca calls go over mutual TLS",
    "tls-key": "PEM file, the certificate's private key",
    "tls-ca": "PEM file, authorities whose certificates are accepted",
    "access": "off or tokens: every call needs a bearer token (default off)",
}

ADMIN_TOKEN_DAYS = 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 stopped, 1 could not start, 2 wrong arguments, 3 --scrub found damage."""
    from pydantic import ValidationError

    from planner.settings import Settings

    flags = vars(_parser().parse_args(arguments))
    scrub, administrator = flags.pop("scrub"), flags.pop("create_admin_token")
    try:
        settings = Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(map(_given_as, map(str, problem["loc"])))
            print(f"planner-server: {where}: {problem['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    if administrator is not None:
        return _create_admin_token(settings, administrator)
    return _scrub(settings) if scrub else _run(settings)


def _given_as(setting: str) -> str:
    """As an option, where it is one, else as a variable of the environment."""
    option = setting.replace("_", "-")
    return f"--{option}" if option in OPTIONS else f"PLANNER_{setting.upper()}"


def _create_admin_token(settings: Settings, holder: str) -> int:
    """The first token, with which others are made. Whoever can write to the database may make one."""
    import asyncio
    from datetime import timedelta

    from sqlalchemy.exc import DBAPIError

    from planner.api.access_service import create_token
    from planner.errors import PlannerError
    from planner.redaction import without_secrets
    from planner.store.database import Database

    async def create() -> str:
        database = Database(settings.database)
        try:
            await database.migrate()
            return (await create_token(database, holder, ("admin",), timedelta(days=ADMIN_TOKEN_DAYS)))[0]
        finally:
            await database.close()

    try:
        print(asyncio.run(create()))
    except (PlannerError, OSError, DBAPIError) as error:
        print(f"planner-server: {without_secrets(str(error))}", file=sys.stderr)
        return 1
    return 0


def _scrub(settings: Settings) -> int:
    """Beside a server that runs, too: it reads, and renames what is damaged."""
    from planner.errors import PlannerError
    from planner.redaction import without_secrets
    from planner.store.blobs import DAMAGED, BlobStore

    num_blobs, num_damaged = 0, 0
    try:
        for sha256, is_whole in BlobStore(settings.blobs, settings.staging_dir).scrub():
            num_blobs += 1
            num_damaged += not is_whole
            if not is_whole:
                print(f"{sha256.hex()} is damaged; it is in the folder {DAMAGED} now, upload it again", flush=True)
    except (PlannerError, OSError) as error:
        print(f"planner-server: {without_secrets(str(error))}", file=sys.stderr)
        return 1
    print(f"{num_blobs} blobs read, {num_damaged} damaged")
    return 3 if num_damaged else 0


def _run(settings: Settings) -> int:
    import asyncio
    import gc
    import os

    # Until all is imported: collections that look through it again and again are an eighth of the time until it serves.
    gc.disable()
    # Workers never use gRPC, and its fork handlers complain at each start of one.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

    import structlog
    from sqlalchemy.exc import DBAPIError

    from access.misspelt import misspelt
    from planner.api.logs import configure_logs
    from planner.api.threads import short_turns
    from planner.errors import PlannerError
    from planner.partition.placement.compiled import HAS_COMPILER, WITHOUT_COMPILER
    from planner.redaction import without_secrets

    configure_logs(settings.log_level, settings.log_format)
    log = structlog.get_logger(__name__)
    for variable, meant in misspelt("PLANNER_", type(settings).model_fields).items():
        log.warning("no setting is called so", variable=variable, meant=meant)
    if not HAS_COMPILER:
        log.warning(WITHOUT_COMPILER)
    try:
        with short_turns():
            asyncio.run(_serve(settings))
    except (PlannerError, OSError, DBAPIError) as error:
        print(f"planner-server: {without_secrets(str(error))}", file=sys.stderr)
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    import asyncio
    import gc
    import signal

    from planner.api.garbage import rare_collections
    from planner.api.server import PlannerServer

    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    server = await PlannerServer.start(settings)
    async with rare_collections():
        gc.enable()
        print(f"planner-server listening on {server.address}", flush=True)
        await stopped.wait()
        await server.stop(settings.stop_grace_seconds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner-server",
        description="Takes model graphs, computes partition plans and rolls them out to stage daemons.",
        epilog="Each option, and more, can be given in the environment: PLANNER_LISTEN=..., PLANNER_DATA_DIR=...",
        allow_abbrev=False,
    )
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument(
        "--create-admin-token", metavar="HOLDER", help="write a token for an administrator to standard output, and end"
    )
    parser.add_argument("--scrub", action="store_true", help="read every blob, put the damaged away, and end")
    parser.add_argument(
        "--insecure-plaintext-beyond-loopback",
        action="store_true",
        default=None,
        help="listen without TLS where others than this host can connect: whoever can, may do everything",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
