"""`up`: a planner and its daemons on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from planner.cli.options import OutputOption
from planner.cli.output import OutputFormat, emit, say
from planner.cli.progress import spinner
from planner.cli.quantities import format_bytes, parse_bytes
from planner.client.config import announced
from planner.client.local_cluster import LocalCluster, ServiceProcess
from planner.errors import InvalidArgument, Unavailable

POLL_SECONDS = 0.5
# Ctrl-C is for now: what a microbatch or a call still takes is cut off, and who waits for the prompt waits no longer.
DRAIN_SECONDS = 0.5
CALL_SECONDS = 0.2
STOP_SECONDS = 1.5


class DeviceClass(Enum):
    CPU = "cpu"
    GPU = "gpu"


def up(
    daemons: Annotated[int, typer.Option("--daemons", min=1, max=64, help="How many stage daemons.")] = 2,
    device: Annotated[
        DeviceClass, typer.Option("--device", help="What they run on; with gpu, one GPU each.")
    ] = DeviceClass.CPU,
    memory: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="SIZE", help='What plans may fill ("2GiB"): once for all, or once for each.'),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Keeps database, blobs and logs; else they go with `up`.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the planner listens; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a planner and daemons here for trying things out; Ctrl-C ends them all. Other commands find the planner."""
    memory_bytes = _memory_of_each(memory or [], daemons)
    try:
        _run(memory_bytes, device, data_dir, listen, output)
    except KeyboardInterrupt:
        services = "daemon has" if daemons == 1 else f"{daemons} daemons have"
        say(f"the planner and its {services} ended")
        raise


def _run(
    memory_bytes: list[int | None], device: DeviceClass, data_dir: Path | None, listen: str, output: OutputFormat
) -> None:
    """Until a signal, or until the planner ends by itself; everything has ended and is gone by then."""
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        folder = data_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partition-planner-")))
        with spinner("starting the planner and its daemons"):
            cluster = stack.enter_context(
                LocalCluster(
                    data_dir=folder,
                    memory_bytes=memory_bytes,
                    device=device.value,
                    planner_listen=listen,
                    daemon_arguments=("--drain-seconds", str(DRAIN_SECONDS)),
                    environment={"PLANNER_STOP_GRACE_SECONDS": str(CALL_SECONDS)},
                    stop_seconds=STOP_SECONDS,
                )
            )
        stack.enter_context(announced(cluster.planner_address))
        document = _document(cluster, memory_bytes, folder)
        emit(document, output, lambda: _table(document))
        say(_how_to_end())
        _watch(cluster)


def _memory_of_each(sizes: list[str], num_daemons: int) -> list[int | None]:
    if not sizes:
        return [None] * num_daemons
    parsed: list[int | None] = [parse_bytes(size) for size in sizes]
    if len(parsed) == 1:
        return parsed * num_daemons
    if len(parsed) != num_daemons:
        raise InvalidArgument(f"--memory is given {len(parsed)} times, needs once or once for each of {num_daemons}")
    return parsed


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP end the children too. What it was started to ignore stays ignored, SIGTERM excepted.

    A shell has its background jobs ignore SIGINT, and nohup has its command ignore SIGHUP: neither is meant for it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    unless_ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if not _is_ignored(number)]
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, *unless_ignored)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def _how_to_end() -> str:
    return f"`kill {os.getpid()}` ends them all." if _is_ignored(signal.SIGINT) else "Ctrl-C ends them all."


def _watch(cluster: LocalCluster) -> None:
    """Returns only by KeyboardInterrupt, or by Unavailable once the planner has ended."""
    ended: set[str] = set()
    while True:
        time.sleep(POLL_SECONDS)
        planner = cluster.planner
        if planner is not None and planner.exit_status is not None:
            raise Unavailable(f"the planner ended with status {planner.exit_status}; its log: {_log_end(planner)}")
        for device_id, daemon in cluster.daemons.items():
            if daemon.exit_status is not None and device_id not in ended:
                ended.add(device_id)
                say(f"the daemon of {device_id} ended with status {daemon.exit_status}; its log: {daemon.log_path}")


def _log_end(process: ServiceProcess) -> str:
    """Its own words: the log may go with a temporary folder."""
    return process.log_path.read_text(errors="replace")[-1000:].strip() or "empty"


def _document(cluster: LocalCluster, memory_bytes: list[int | None], folder: Path) -> dict[str, Any]:
    assert cluster.planner is not None
    return {
        "server": cluster.planner_address,
        "process_id": cluster.planner.process_id,
        "data_dir": str(folder),
        "daemons": [
            {
                "device_id": device_id,
                "address": daemon.address,
                "process_id": daemon.process_id,
                "memory_bytes": size_bytes,
            }
            for (device_id, daemon), size_bytes in zip(cluster.daemons.items(), memory_bytes, strict=True)
        ],
    }


def _table(document: dict[str, Any]) -> Table:
    table = Table("service", "address", "process", "memory", box=box.SIMPLE_HEAD)
    table.add_row("planner", document["server"], str(document["process_id"]), "")
    for daemon in document["daemons"]:
        memory = format_bytes(daemon["memory_bytes"]) if daemon["memory_bytes"] else "its own figure"
        table.add_row(f"daemon {daemon['device_id']}", daemon["address"], str(daemon["process_id"]), memory)
    return table
