"""A deployed pipeline of two stages beside what it competes with, in interleaved windows of one run.

    python -m benchmarks.pipeline_peers [windows] [peer ...]

Peers: a stage alone in this process, torch.distributed.pipelining, a loop of blocking sends and receives over Gloo, and
a ring in shared memory with a socket for wake-ups. Only the deployed pipeline also carries inputs from a client and
outputs back to it. Every process runs one thread per operator.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from benchmarks.one_thread_daemons import one_thread_daemons
from planner.client import export
from planner.plan.options import CutMode

MICROBATCHES_PER_STEP = 32
RING_SLOTS = 4
MEMORY_BYTES = 1 << 30
DEFAULT_WINDOWS = 5
_CONTEXT = multiprocessing.get_context("spawn")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What crosses the edge is `rows` x `columns` of float32. Without layers a stage is one multiplication."""

    name: str
    rows: int
    columns: int
    layers: int
    microbatches: int

    def input(self) -> torch.Tensor:
        return torch.randn(self.rows, self.columns, generator=torch.Generator().manual_seed(1))


SHAPES = (
    Shape(name="near-empty, 4 KiB", rows=1, columns=1024, layers=0, microbatches=256),
    Shape(name="2 ms, 96 KiB", rows=32, columns=768, layers=3, microbatches=128),
    Shape(name="8 ms, 256 KiB", rows=64, columns=1024, layers=4, microbatches=64),
    Shape(name="tiny, 1 MiB", rows=256, columns=1024, layers=0, microbatches=64),
)


class Stage(torch.nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(shape.columns, shape.columns) for _ in range(shape.layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if not self.layers:
            return hidden * 1.0001
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of one window: on the clock, and of all the peer's processes together."""

    wall: float
    cpu: float


# Runs so many microbatches to their end.
Window = Callable[[int], Spent]


@contextmanager
def alone(shape: Shape) -> Iterator[Window]:
    """One stage in this process; both stages of the others together take twice this CPU."""
    stage, sample = Stage(shape), shape.input()

    def window(num: int) -> Spent:
        began, began_cpu = time.monotonic(), time.process_time()
        with torch.no_grad():
            for _ in range(num):
                stage(sample)
        return Spent(wall=time.monotonic() - began, cpu=time.process_time() - began_cpu)

    yield window


@contextmanager
def deployed(shape: Shape) -> Iterator[Window]:
    module = torch.nn.Sequential(Stage(shape), Stage(shape))
    sample = shape.input()
    with one_thread_daemons(2, MEMORY_BYTES) as (cluster, client):
        graph = client.submit(export(module, args=(sample,)))
        deployment = client.deploy(client.create_plan(graph.id, CutMode(module_paths=("0",))).id)
        daemons = [daemon.process_id for daemon in cluster.daemons.values()]
        with client.pipeline(deployment.id) as pipeline, torch.no_grad():
            (output,) = pipeline.run_leaves([(sample,)])
            if isinstance(output, Exception) or not torch.equal(output[0], module(sample)):
                raise SystemExit(f"{shape.name}: the deployed pipeline gives {output}")
            if len(deployment.stages) != 2:
                raise SystemExit(f"{shape.name}: {len(deployment.stages)} stages, needs 2")

            processes = processes_under([os.getpid(), *daemons])

            def window(num: int) -> Spent:
                began, began_cpu = time.monotonic(), cpu_seconds(processes)
                for _ in pipeline.run_leaves([(sample,)] * num):
                    pass
                wall = time.monotonic() - began
                return Spent(wall=wall, cpu=cpu_seconds(processes) - began_cpu)

            yield window
        client.stop(deployment.id)


def processes_under(roots: list[int]) -> tuple[int, ...]:
    """These processes and all that they have started, this one's other children left out."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int(_stat(int(folder.name))[1])
    family = set(roots)
    for process_id in parents:
        above, chain = process_id, []
        while above in parents and above not in family:
            chain.append(above)
            above = parents[above]
        if above in family and above != os.getpid():
            family.update(chain)
    return tuple(family)


def cpu_seconds(process_ids: tuple[int, ...]) -> float:
    """Of these processes, as far as they are there. Costs microseconds, which count as the peer's own; a walk through
    /proc would cost as much as a window's microbatches."""
    seconds = 0.0
    for process_id in process_ids:
        with suppress(OSError):
            fields = _stat(process_id)
            seconds += (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return seconds


def _stat(process_id: int) -> list[str]:
    """What /proc says of a process after its name: its state, its parent and so on."""
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()


RankMain = Callable[[int, Shape, socket.socket, torch.Tensor], Callable[[int], None]]


@contextmanager
def two_ranks(shape: Shape, prepare: RankMain) -> Iterator[Window]:
    """Two processes; `prepare` gives what each runs per window."""
    ring = torch.empty(RING_SLOTS, shape.rows, shape.columns).share_memory_()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    wakers = socket.socketpair()
    pairs = [_CONTEXT.Pipe() for _ in range(2)]
    ranks = [
        _CONTEXT.Process(
            target=_run_rank, args=(rank, shape, prepare, port, pairs[rank][1], wakers[rank], ring), daemon=True
        )
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    ours = [pair[0] for pair in pairs]
    for connection in ours:
        connection.recv()

    def window(num: int) -> Spent:
        began = time.monotonic()
        for connection in ours:
            connection.send(num)
        cpu = sum(connection.recv() for connection in ours)
        return Spent(wall=time.monotonic() - began, cpu=cpu)

    yield window
    for connection, process in zip(ours, ranks, strict=True):
        connection.send(0)
        process.join()


def _run_rank(
    rank: int,
    shape: Shape,
    prepare: RankMain,
    port: int,
    connection: Connection,
    waker: socket.socket,
    ring: torch.Tensor,
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    work = prepare(rank, shape, waker, ring)
    connection.send(True)
    with torch.no_grad():
        while num := connection.recv():
            began = time.process_time()
            work(num)
            connection.send(time.process_time() - began)
    dist.destroy_process_group()


def _torch_pipelining(rank: int, shape: Shape, waker: socket.socket, ring: torch.Tensor) -> Callable[[int], None]:
    stage = PipelineStage(Stage(shape), rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICROBATCHES_PER_STEP)
    whole = shape.input().repeat(MICROBATCHES_PER_STEP, 1)

    def work(num: int) -> None:
        for _ in range(num // MICROBATCHES_PER_STEP):
            schedule.eval(*((whole,) if rank == 0 else ()))

    return work


def _send_receive(rank: int, shape: Shape, waker: socket.socket, ring: torch.Tensor) -> Callable[[int], None]:
    stage, sample, buffer = Stage(shape), shape.input(), torch.empty(shape.rows, shape.columns)

    def work(num: int) -> None:
        for _ in range(num):
            if rank == 0:
                dist.send(stage(sample), 1)
            else:
                dist.recv(buffer, 0)
                stage(buffer)

    return work


def _shared_ring(rank: int, shape: Shape, waker: socket.socket, ring: torch.Tensor) -> Callable[[int], None]:
    stage, sample = Stage(shape), shape.input()

    def work(num: int) -> None:
        free = RING_SLOTS
        for index in range(num):
            slot = ring[index % RING_SLOTS]
            if rank == 0:
                output = stage(sample)
                if not free:
                    free += len(waker.recv(RING_SLOTS))
                free -= 1
                slot.copy_(output)
                waker.sendall(b"f")
            else:
                waker.recv(1)
                stage(slot)
                waker.sendall(b"e")
        while rank == 0 and free < RING_SLOTS:
            free += len(waker.recv(RING_SLOTS))

    return work


def torch_pipelining(shape: Shape) -> AbstractContextManager[Window]:
    return two_ranks(shape, _torch_pipelining)


def send_receive(shape: Shape) -> AbstractContextManager[Window]:
    return two_ranks(shape, _send_receive)


def shared_ring(shape: Shape) -> AbstractContextManager[Window]:
    return two_ranks(shape, _shared_ring)


PEERS: dict[str, Callable[[Shape], AbstractContextManager[Window]]] = {
    "alone": alone,
    "deployed": deployed,
    "torch pipelining": torch_pipelining,
    "send/recv": send_receive,
    "ring": shared_ring,
}


def main(num_windows: int = DEFAULT_WINDOWS, *names: str) -> None:
    torch.set_num_threads(1)
    peers = {name: peer for name, peer in PEERS.items() if not names or name in names}
    print("µs per microbatch on the clock (median window), and of CPU in all processes")
    print(" | ".join(["| stage", *peers]), "|")
    print("|---" * (1 + len(peers)), "|", sep="")
    for shape in SHAPES:
        with ExitStack() as stack:
            windows = {name: stack.enter_context(peer(shape)) for name, peer in peers.items()}
            windows_of: dict[str, list[Spent]] = {name: [] for name in peers}
            for _ in range(1 + num_windows):
                for name, window in windows.items():
                    windows_of[name].append(window(shape.microbatches))
        cells = [_cell(windows_of[name][1:], shape.microbatches) for name in peers]
        print(" | ".join([f"| {shape.name}", *cells]), "|", flush=True)


def _cell(windows: list[Spent], microbatches: int) -> str:
    wall = statistics.median(each.wall for each in windows) / microbatches
    cpu = sum(each.cpu for each in windows) / len(windows) / microbatches
    return f"{wall * 1e6:,.0f}, {cpu * 1e6:,.0f}"


if __name__ == "__main__":
    main(*[int(sys.argv[1])] if len(sys.argv) > 1 else [], *sys.argv[2:])
