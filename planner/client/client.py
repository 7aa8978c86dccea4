"""The planner's front door for Python programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from access.addresses import check_targets
from access.errors import WrongAddress
from access.files import TlsFiles
from planner.client.access import AccessCalls
from planner.client.arguments import check_number
from planner.client.config import find_server, find_tls, find_token_file
from planner.client.connection import Connection
from planner.client.deployments import DeploymentCalls
from planner.client.failover import DEFAULT_RESTART_SECONDS, Restarts, log
from planner.client.inventories import InventoryCalls
from planner.client.lifetime import NotPickled
from planner.client.plans import PlanCalls
from planner.client.profiles import ProfileCalls
from planner.errors import InvalidArgument

DEFAULT_TIMEOUT_SECONDS = 30.0
MIN_TIMEOUT_SECONDS = 1e-3
# A year: beyond some centuries gRPC takes a call's time for over.
MAX_SECONDS = 31_536_000.0


class PlannerClient(InventoryCalls, PlanCalls, ProfileCalls, DeploymentCalls, AccessCalls, NotPickled):
    """Talks to the planner-server at `address` ("host:port"), or to any of several of one database; connects on the
    first call. Without an address to the one that `planner-cli` would talk to, with the same certificate and token:
    PLANNER_SERVER's, the config file's, the one that `planner-cli up` started here, or 127.0.0.1:50051.

    Where a call takes an id, the id's beginning serves, of at least six digits, as long as it fits only one object.
    Every call raises planner.errors types, and Unavailable where nobody answers within `timeout_seconds`. A planner
    that answered before and is away, as while it is restarted, is asked again for `restart_seconds` of these; with
    `awaits_first` one that has never answered too. `on_away` is told once that this is so.
    Planning and rollouts are waited for without that bound. Threads may share a client; each process opens its own,
    forked ones too. `tls` is for servers that ask for a certificate; its files, and the token's, may be replaced while
    the client lives.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        tls: TlsFiles | None = None,
        token_file: Path | None = None,
        restart_seconds: float = DEFAULT_RESTART_SECONDS,
        awaits_first: bool = False,
        on_away: Callable[[str], None] = log.warning,
    ) -> None:
        if address is None:
            address, tls, token_file = find_server(None), tls or find_tls(), token_file or find_token_file()
        self.address = _checked(address)
        _check_seconds("timeout_seconds", timeout_seconds, least=MIN_TIMEOUT_SECONDS)
        _check_seconds("restart_seconds", restart_seconds, least=0)
        self._connection = Connection(
            self.address,
            timeout_seconds=timeout_seconds,
            tls=tls,
            token_file=token_file,
            restarts=Restarts(self.address.split(","), restart_seconds, awaits_first=awaits_first, tell=on_away),
        )

    def close(self) -> None:
        """Calls that are under way end with Cancelled, later ones raise Conflict. What it gave goes on. Idempotent."""
        self._connection.close()

    def __enter__(self) -> PlannerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _checked(address: str | Sequence[str]) -> str:
    """Several joined by commas."""
    addresses = address.split(",") if isinstance(address, str) else address
    if not isinstance(addresses, (list, tuple)) or not all(isinstance(one, str) for one in addresses):
        raise InvalidArgument(f"address is {address!r:.80}, needs host:port, as 127.0.0.1:50051, or several")
    joined = ",".join(addresses)
    try:
        check_targets(joined)
    except WrongAddress as error:
        raise InvalidArgument(error.message) from None
    return joined


def _check_seconds(name: str, value: float, least: float) -> None:
    check_number(name, value)
    if not least <= value <= MAX_SECONDS:
        raise InvalidArgument(f"{name} is {value!r:.80}, needs seconds from {least:g} to {MAX_SECONDS:.0f}")
