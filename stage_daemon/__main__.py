"""stage-daemon: composes the supervisor, its server and its registration, and ends them in order on SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import structlog
from pydantic import ValidationError

from access.addresses import parse_endpoint
from access.errors import AccessError, CannotListen
from access.files import WatchedCredentials, tls_files
from access.listening import check_listening
from access.metrics import ServiceMetrics
from access.misspelt import misspelt
from protos.v1 import inventory_pb2, planner_pb2
from stage_daemon.allocator import keep_freed_memory
from stage_daemon.control.device import LocalDevice, find_device
from stage_daemon.control.logs import configure_logs
from stage_daemon.control.metrics import daemon_state
from stage_daemon.control.registration import Registration
from stage_daemon.control.server import SERVICE, DaemonServer
from stage_daemon.control.supervisor import Supervisor
from stage_daemon.control.worker_process import forkserver_is_warm, preload_forkserver
from stage_daemon.custom_operators import parse_custom_operators
from stage_daemon.errors import DaemonError, InvalidRequest, Unavailable
from stage_daemon.settings import Settings

STOP_GRACE_SECONDS = 2.0
# A few large microbatches on their way through.
KEPT_BYTES = 1 << 26
# A planner that is just coming back is waited for this long, so that it can stop deployments in order.
RECONNECT_SECONDS = 5.0

log = structlog.get_logger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        settings = read_settings(arguments)
    except ValidationError as error:
        for problem in error.errors():
            where = "".join(f"--{part}: ".replace("_", "-") for part in problem["loc"])
            print(f"stage-daemon: {where}{problem['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return 2
    configure_logs(settings.log_level, settings.log_format)
    for variable, meant in misspelt("STAGE_DAEMON_", Settings.model_fields).items():
        log.warning("no setting is called so", variable=variable, meant=meant)
    keep_freed_memory(KEPT_BYTES)
    try:
        asyncio.run(serve(settings))
    except DaemonError as error:
        print(f"stage-daemon: {error.message}", file=sys.stderr)
        _exit(1)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """Ends the process at once: everything is closed, and the interpreter's own end can hang in threads of torch."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def read_settings(arguments: Sequence[str] | None) -> Settings:
    """One option per setting; what is not given comes from the environment, then from the default."""
    parser = argparse.ArgumentParser(prog="stage-daemon", description="Runs stages of deployed plans on one device.")
    for name, field in Settings.model_fields.items():
        help_text = f"{field.description} [STAGE_DAEMON_{name.upper()}]".replace("%", "%%")
        flag: dict[str, Any] = {"action": "store_true", "default": None} if field.annotation is bool else {}
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, help=help_text, **flag)
    options = vars(parser.parse_args(arguments))
    return Settings(**{name: text for name, text in options.items() if text is not None})


def find_credentials(settings: Settings) -> WatchedCredentials | None:
    """Raises InvalidRequest where a port that others can reach would be served without TLS."""
    try:
        files = tls_files(settings.tls_certificate, settings.tls_key, settings.tls_ca, settings.tls_revoked)
        for address in filter(None, (settings.listen, settings.metrics_listen)):
            check_listening(
                parse_endpoint(address, 0).host,
                has_tls=files is not None,
                plaintext_allowed=settings.insecure_plaintext_beyond_loopback,
            )
        return WatchedCredentials(files) if files else None
    except AccessError as error:
        raise InvalidRequest(error.message) from None


def serve_metrics(address: str, credentials: WatchedCredentials | None, metrics: ServiceMetrics) -> Callable[[], None]:
    """What stops it. Raises DaemonError where the address cannot be had; without one nothing listens."""
    if not address:
        return lambda: None
    try:
        listening_at, stop = metrics.serve(address, credentials)
    except CannotListen as error:
        raise Unavailable(error.message) from None
    except AccessError as error:
        raise InvalidRequest(error.message) from None
    log.info("serving metrics", address=listening_at)
    return stop


async def serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises DaemonError where it cannot start or the planner will never take it."""
    credentials = find_credentials(settings)
    preload_forkserver()
    device = await asyncio.to_thread(
        find_device,
        gpu_index=settings.gpu_index,
        device_id=settings.device_id,
        kind=settings.kind,
        memory_bytes=settings.memory,
    )
    supervisor = Supervisor(
        device_id=device.id,
        torch_device=device.torch_device,
        planner_address=settings.planner,
        listen_host=parse_endpoint(settings.listen, 0).host or "0.0.0.0",
        worker_silence_seconds=settings.worker_silence_seconds,
        tls=credentials.files if credentials else None,
        operators=parse_custom_operators(settings.custom_operators),
    )
    metrics = ServiceMetrics(SERVICE)
    server = DaemonServer(
        settings.listen,
        settings.advertise,
        supervisor,
        credentials,
        settings.planner_identity,
        metrics,
        max_sessions_per_caller=settings.max_sessions_per_caller,
    )
    introduction = _introduction(device, str(server.endpoint), supervisor.incarnation_id)
    registration = Registration(settings.planner, introduction, supervisor, credentials)
    metrics.observe_state(partial(daemon_state, device, supervisor, registration))
    stop_metrics = serve_metrics(settings.metrics_listen, credentials, metrics)
    await server.start()
    try:
        await _run_until_signal(registration, supervisor, settings.drain_seconds, str(server.endpoint))
    finally:
        await supervisor.close()
        await server.stop(STOP_GRACE_SECONDS)
        await registration.close()
        stop_metrics()


async def _run_until_signal(
    registration: Registration, supervisor: Supervisor, drain_seconds: float, address: str
) -> None:
    asked_to_end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked_to_end.set)
    running = asyncio.create_task(_take_part(registration))
    announcing = asyncio.create_task(_announce(registration, supervisor.device_id, address))
    ending = asyncio.create_task(asked_to_end.wait())
    try:
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        supervisor.leave()
        if await registration.is_connected(min(drain_seconds, RECONNECT_SECONDS)):
            await supervisor.wait_until_empty(drain_seconds)
    finally:
        for task in (running, announcing, ending):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, DaemonError):
                await task


async def _take_part(registration: Registration) -> None:
    """Once a worker can be forked at once: what recovers is placed on whoever is registered, and would wait for it."""
    await forkserver_is_warm()
    await registration.run()


async def _announce(registration: Registration, device_id: str, address: str) -> None:
    await registration.registered.wait()
    print(f"stage-daemon of {device_id} registered, listening on {address}", flush=True)


def _introduction(device: LocalDevice, address: str, incarnation_id: str) -> planner_pb2.RegisterDaemonRequest:
    return planner_pb2.RegisterDaemonRequest(
        device=inventory_pb2.Device(
            id=device.id,
            kind=device.kind,
            host=device.host,
            memory_bytes=device.memory_bytes,
            shares_cores=device.shares_cores,
        ),
        address=address,
        torch_version=importlib.metadata.version("torch"),
        incarnation_id=incarnation_id,
    )


if __name__ == "__main__":
    sys.exit(main())
