"""A whole planner-server in one object: built from settings, started on a port, stopped in order."""

from __future__ import annotations

import fcntl
import hashlib
import io
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import Metric

from access.addresses import parse_endpoint
from access.channels import KEEPALIVE, TAKES_KEEPALIVE, bind, server_options
from access.errors import AccessError, CannotListen
from access.files import WatchedCredentials, tls_files
from access.large_answers import LargeAnswersInterceptor
from access.listening import check_listening
from access.metrics import ServiceMetrics
from access.request_sizes import RequestSizesInterceptor
from planner.api.access_service import AccessService
from planner.api.audit_trail import AuditTrail
from planner.api.blob_collection import BlobCollection
from planner.api.computing import Computing
from planner.api.gate import GateInterceptor
from planner.api.housekeeping import Housekeeping
from planner.api.metrics import PlanMetrics, planner_state
from planner.api.plan_runner import PlanRunner
from planner.api.principals import Principals
from planner.api.registry_service import DaemonRegistryService
from planner.api.rules import RULES, WORDS_BYTES
from planner.api.service import PlannerService
from planner.api.status import StatusInterceptor
from planner.api.whole_ids import WholeIdsInterceptor
from planner.dispatch.dispatcher import Dispatcher
from planner.errors import Conflict, InvalidArgument, Unavailable
from planner.settings import Settings
from planner.store.blobs import BlobStore
from planner.store.database import Database
from planner.store.secrets import planner_secret
from protos.v1 import access_pb2, access_pb2_grpc, planner_pb2, planner_pb2_grpc

NUM_CHECKS = 2
DATABASE_ID_DIGITS = 16
SERVICES = (
    planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].full_name,
    planner_pb2.DESCRIPTOR.services_by_name["DaemonRegistryService"].full_name,
    access_pb2.DESCRIPTOR.services_by_name["AccessService"].full_name,
)

log = structlog.get_logger(__name__)


class PlannerServer:
    """`address` is where it listens, with the port that it got."""

    def __init__(self, server: grpc.aio.Server, address: str, resources: AsyncExitStack) -> None:
        self._server = server
        self._resources = resources
        self.address = address

    @classmethod
    async def start(cls, settings: Settings) -> PlannerServer:
        """Migrates, recovers and listens. Raises planner.errors where the database, folder or port cannot be had."""
        async with AsyncExitStack() as resources:
            credentials = _credentials(settings)
            _make_folder(settings.data_dir)
            metrics = ServiceMetrics("planner")
            database = Database(settings.database)
            interceptors: list[grpc.aio.ServerInterceptor] = [
                LargeAnswersInterceptor(),
                StatusInterceptor(metrics),
                RequestSizesInterceptor(_most_bytes, InvalidArgument),
            ]
            trail = AuditTrail(database) if credentials is not None else None
            interceptors.append(
                WholeIdsInterceptor(database) if trail is None else _gate(settings, database, credentials, trail)
            )
            server = grpc.aio.server(interceptors=interceptors, options=_options(settings))
            plans = PlanMetrics(metrics.registry, settings.plan_workers)
            if settings.metrics_listen:
                resources.callback(_serve_metrics(settings.metrics_listen, credentials, metrics, plans, database))
            await _add_services(server, settings, credentials, database, trail, plans, resources)
            address = _listen(server, settings.listen, credentials)
            await server.start()
            return cls(server, address, resources.pop_all())
        raise AssertionError("unreachable")

    async def stop(self, grace_seconds: float) -> None:
        """Lets calls finish for `grace_seconds`, then ends plans, connections and files in order."""
        await self._server.stop(grace_seconds)
        await self._resources.aclose()


def _credentials(settings: Settings) -> WatchedCredentials | None:
    """Raises InvalidArgument where a port that others can reach would be served without TLS."""
    try:
        files = tls_files(settings.tls_certificate, settings.tls_key, settings.tls_ca, settings.tls_revoked)
        for address in filter(None, (settings.listen, settings.metrics_listen)):
            check_listening(
                parse_endpoint(address).host,
                has_tls=files is not None,
                plaintext_allowed=settings.insecure_plaintext_beyond_loopback,
            )
        if settings.access == "tokens" and files is None:
            raise AccessError(
                "access by tokens needs --tls-certificate, --tls-key and --tls-ca: tokens travel over TLS alone"
            )
        return WatchedCredentials(files) if files else None
    except AccessError as error:
        raise InvalidArgument(error.message) from None


def _make_folder(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"data folder {data_dir} cannot be made: {error.strerror}; name another --data-dir"
        ) from None


def _serve_metrics(
    address: str,
    credentials: WatchedCredentials | None,
    metrics: ServiceMetrics,
    plans: PlanMetrics,
    database: Database,
) -> Callable[[], None]:
    """What stops it."""

    async def state() -> Iterable[Metric]:
        return *plans.workers(), *await planner_state(database)

    metrics.observe_state(state)
    try:
        listening_at, stop = metrics.serve(address, credentials)
    except CannotListen as error:
        raise Unavailable(error.message) from None
    except AccessError as error:
        raise InvalidArgument(error.message) from None
    log.info("serving metrics", address=listening_at)
    return stop


def _gate(
    settings: Settings, database: Database, credentials: WatchedCredentials | None, trail: AuditTrail
) -> GateInterceptor:
    principals = Principals(
        database,
        credentials,
        asks_for_tokens=settings.access == "tokens",
        daemon_identity=settings.daemon_identity,
    )
    return GateInterceptor(database, principals, trail)


async def _add_services(
    server: grpc.aio.Server,
    settings: Settings,
    credentials: WatchedCredentials | None,
    database: Database,
    trail: AuditTrail | None,
    plans: PlanMetrics,
    resources: AsyncExitStack,
) -> None:
    # Two servers on one folder would write each other's uploads.
    refusal = f"another planner-server uses {settings.staging_dir}; give this one a --data-dir of its own"
    resources.enter_context(_own(settings.staging_dir / "lock", refusal))
    blobs = BlobStore(settings.blobs, settings.staging_dir, settings.max_blob_bytes)
    if database.file is not None:
        # Two planners on one database would each end what the other rolls out.
        refusal = f"another planner-server uses the database {database.file}; on SQLite there is one, stop the other"
        resources.enter_context(_own(database.file.with_name(f"{database.file.name}.lock"), refusal))
    resources.push_async_callback(database.close)
    if trail is not None:
        resources.push_async_callback(trail.close)
    await database.migrate()
    secret = await planner_secret(database, datetime.now(UTC))
    runner = PlanRunner(database, Computing(settings.plan_workers, settings.plan_memory_bytes), settings, plans)
    resources.push_async_callback(runner.close)
    await runner.start()
    blobs.use_for(hashlib.sha256(b"blobs of " + secret).hexdigest()[:DATABASE_ID_DIGITS])
    collection = BlobCollection(database, blobs, timedelta(hours=settings.blob_grace_hours))
    housekeeping = Housekeeping(database, settings.keep_days, collection)
    resources.push_async_callback(housekeeping.close)
    housekeeping.start()
    dispatcher = Dispatcher(
        database, blobs, settings, credentials=credentials, planner_secret=secret, ask_for_plans=runner.wake
    )
    resources.push_async_callback(dispatcher.close)
    dispatcher.start()
    checks = Computing(NUM_CHECKS, settings.plan_memory_bytes)
    service = PlannerService(settings, database, blobs, checks, runner, dispatcher, collection, credentials)
    planner_pb2_grpc.add_PlannerServiceServicer_to_server(service, server)
    planner_pb2_grpc.add_DaemonRegistryServiceServicer_to_server(DaemonRegistryService(dispatcher), server)
    access_pb2_grpc.add_AccessServiceServicer_to_server(AccessService(database, secret), server)
    await _add_health(server)
    reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


async def _add_health(server: grpc.aio.Server) -> None:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for name in ("", *SERVICES):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)


def _listen(server: grpc.aio.Server, address: str, credentials: WatchedCredentials | None) -> str:
    try:
        return str(bind(server, parse_endpoint(address), credentials))
    except CannotListen as error:
        raise Unavailable(error.message) from None


def _most_bytes(method: str) -> int:
    rule = RULES.get(method)
    return WORDS_BYTES if rule is None else rule.most_bytes


def _own(path: Path, refusal: str) -> io.TextIOWrapper:
    """Holds the lock file until it is closed, however the process ends. Raises Conflict where another server has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Conflict(refusal) from None
    return file


def _options(settings: Settings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Two servers on one port would each get half of the calls.
        ("grpc.so_reuseport", 0),
        *KEEPALIVE,
        *TAKES_KEEPALIVE,
        *(server_options() if settings.tls_certificate else ()),
    ]
