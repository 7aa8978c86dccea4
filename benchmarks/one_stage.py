"""One deployed stage beside the bare module, and large tensors beside a bare gRPC stream, in interleaved windows.

    python -m benchmarks.one_stage [windows [stages|models|latencies|large|batches ...]]

First, stages of 3 and 30 ms: microbatches that follow each other, and one at a time. Then small models of many
operators, each whole on one stage. Then the latency that each of one to three near-empty stages adds to a microbatch
that is alone. Then tensors of 16 MiB, into the pipeline, out of it and both: from client to worker, by the public gRPC
streams, and through a bare gRPC stream that echoes bytes. Last, training steps of large batches through a stage that
does little with them. Every process runs one thread per operator.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from unittest import mock

import grpc
import torch

from benchmarks.one_thread_daemons import one_thread_daemons
from benchmarks.pipeline_peers import Spent, Window, cpu_seconds, processes_under
from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.pipeline import Pipeline
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import CutMode, PlanOptions, SingleMode
from tests.builders.case import Case
from tests.builders.registry import FAMILIES

MEMORY_BYTES = 1 << 30
DEFAULT_WINDOWS = 5
LARGE_BYTES = 16 << 20
LARGE_IN_FLIGHT = 4
LARGE_MICROBATCHES = 32
LONE_MICROBATCHES = 300
COUNTS = (1, 2, 3)
MODELS = ("bert", "gpt2", "llama", "t5", "vit", "unet", "resnet50", "dlrm", "mixture")
MODEL_MICROBATCHES = 60
BATCHES_BYTES = (4 << 20, 64 << 20)
BATCH_COLUMNS = 2048
STEP_MICROBATCHES = 8
STEPS = 10
RATE = 1e-3
METHOD = "/benchmarks.Echo/Echo"
MESSAGE_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


class Layers(torch.nn.Module):
    def __init__(self, rows: int, columns: int, layers: int) -> None:
        super().__init__()
        self.sample = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(columns, columns) for _ in range(layers))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden


class Scale(torch.nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 1.0001


class In(torch.nn.Module):
    """Reads little of what comes in, so that a window measures the way in."""

    def forward(self, large: torch.Tensor) -> torch.Tensor:
        return large[:1].clone()


class Out(torch.nn.Module):
    """Gives much for little."""

    large: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("large", torch.randn(LARGE_BYTES // 4))

    def forward(self, small: torch.Tensor) -> torch.Tensor:
        return self.large + small


class Both(torch.nn.Module):
    def forward(self, large: torch.Tensor) -> torch.Tensor:
        return large + 1


def measured(processes: list[int], work: Callable[[int], None]) -> Window:
    """CPU seconds are those of the processes, and of this one."""

    family = processes_under([os.getpid(), *processes])

    def window(num: int) -> Spent:
        began, began_cpu = time.monotonic(), cpu_seconds(family)
        work(num)
        wall = time.monotonic() - began
        return Spent(wall=wall, cpu=cpu_seconds(family) - began_cpu)

    return window


def bare(module: torch.nn.Module, sample: torch.Tensor) -> Window:
    def work(num: int) -> None:
        for _ in range(num):
            module(sample)

    return measured([], work)


@dataclass(frozen=True, slots=True)
class Daemons:
    client: PlannerClient
    process_ids: list[int]


@contextmanager
def deployed(
    daemons: Daemons,
    module: torch.nn.Module,
    sample: torch.Tensor,
    in_flight: int,
    *,
    cuts: tuple[str, ...] = (),
    by_grpc: bool = False,
) -> Iterator[Window]:
    """`by_grpc` leaves the worker's door out, as a client on another host does."""
    client = daemons.client
    graph = client.submit(export(module, args=(sample,)))
    plan = client.create_plan(graph.id, CutMode(module_paths=cuts) if cuts else SingleMode())
    deployment = client.deploy(plan.id)
    with client.pipeline(deployment.id) as pipeline:

        def work(num: int) -> None:
            with mock.patch("planner.client.session.host_identity", return_value="") if by_grpc else nullcontext():
                for _ in pipeline.run_leaves([(sample,)] * num, in_flight):
                    pass

        yield measured(daemons.process_ids, work)
    client.stop(deployment.id)


@contextmanager
def echoed(content: bytes) -> Iterator[Window]:
    """A stream of one process that another sends back as it came, neither of them parsing anything."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_echo, args=(theirs,), daemon=True)
    process.start()
    with grpc.insecure_channel(f"127.0.0.1:{ours.recv()}", options=MESSAGE_OPTIONS) as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            METHOD, request_serializer=None, response_deserializer=None
        )

        def work(num: int) -> None:
            for _ in call(content for _ in range(num)):
                pass

        assert process.pid is not None
        yield measured([process.pid], work)
    ours.send(None)
    process.join()


def _serve_echo(connection: Connection) -> None:
    def echo(requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        echo, request_deserializer=None, response_serializer=None
    )
    service, method = METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(max_workers=2), options=MESSAGE_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    connection.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    connection.recv()
    server.stop(None)


def medians(windows: dict[str, Window], num_windows: int, microbatches: int) -> dict[str, Spent]:
    """Per microbatch, in windows that take turns, the first of each left out: the median by the clock, CPU's mean."""
    spent: dict[str, list[Spent]] = {name: [] for name in windows}
    for _ in range(1 + num_windows):
        for name, window in windows.items():
            spent[name].append(window(microbatches))
    return {
        name: Spent(
            wall=statistics.median(one.wall for one in each[1:]) / microbatches,
            cpu=statistics.fmean(one.cpu for one in each[1:]) / microbatches,
        )
        for name, each in spent.items()
    }


def stages(daemons: Daemons, num_windows: int) -> None:
    print("| stage | bare module, ms | streamed, ms | of the bare rate | one at a time, ms | added, ms |")
    print("|---|---|---|---|---|---|")
    for name, module, microbatches in (("3 ms", Layers(64, 768, 6), 100), ("30 ms", Layers(256, 1024, 8), 20)):
        with ExitStack() as stack:
            windows = {
                "bare": bare(module, module.sample),
                "streamed": stack.enter_context(deployed(daemons, module, module.sample, 4)),
                "single": stack.enter_context(deployed(daemons, module, module.sample, 1)),
            }
            each = medians(windows, num_windows, microbatches)
        alone, streamed, single = (each[name].wall * 1e3 for name in windows)
        print(
            f"| {name} | {alone:.2f} | {streamed:.2f} | {alone / streamed:.3f} | {single:.2f} | {single - alone:.2f} |",
            flush=True,
        )


def models(daemons: Daemons, num_windows: int) -> None:
    print("| model | operators | bare module, ms | streamed, ms | times the bare module's |")
    print("|---|---|---|---|---|")
    client = daemons.client
    for name in MODELS:
        case = FAMILIES[name]()
        exported = export(case.module, case.args, dict(case.kwargs))
        deployment = client.deploy(client.create_plan(client.submit(exported).id, SingleMode()).id)
        batch = Batch(args=case.args, kwargs=dict(case.kwargs))
        with client.pipeline(deployment.id) as pipeline:
            windows = {
                "bare": measured([], partial(_call, case)),
                "streamed": measured(daemons.process_ids, partial(_stream, pipeline, batch)),
            }
            each = medians(windows, num_windows, MODEL_MICROBATCHES)
        client.stop(deployment.id)
        alone, streamed = (each[way].wall * 1e3 for way in windows)
        nodes = len(exported.graph.nodes)
        print(f"| {name} | {nodes} | {alone:.2f} | {streamed:.2f} | {streamed / alone:.2f} |", flush=True)


def _call(case: Case, num: int) -> None:
    for _ in range(num):
        case.module(*case.args, **case.kwargs)


def _stream(pipeline: Pipeline, batch: Batch, num: int) -> None:
    for _ in pipeline.run([batch] * num):
        pass


def latencies(daemons: Daemons, num_windows: int) -> None:
    sample, modules = torch.randn(1, 1024), {num: torch.nn.Sequential(*(Scale() for _ in range(num))) for num in COUNTS}
    with ExitStack() as stack:
        windows = {
            str(num): stack.enter_context(
                deployed(daemons, module, sample, 1, cuts=tuple(str(cut) for cut in range(num - 1)))
            )
            for num, module in modules.items()
        }
        each = medians(windows, num_windows, LONE_MICROBATCHES)
    print("| near-empty stages | a lone microbatch, ms |")
    print("|---|---|")
    for name, spent in each.items():
        print(f"| {name} | {spent.wall * 1e3:.3f} |", flush=True)


def large_tensors(daemons: Daemons, num_windows: int) -> None:
    large, small = torch.randn(LARGE_BYTES // 4), torch.randn(1)
    modules: dict[str, tuple[torch.nn.Module, torch.Tensor]] = {
        "in": (In(), large),
        "out": (Out(), small),
        "in and out": (Both(), large),
    }
    print("| 16 MiB | ms per microbatch | of CPU | GB/s each way |")
    print("|---|---|---|---|")
    for way, (module, sample) in modules.items():
        with ExitStack() as stack:
            windows: dict[str, Window] = {
                "the module alone": bare(module, sample),
                "past the supervisors": stack.enter_context(deployed(daemons, module, sample, LARGE_IN_FLIGHT)),
                "by gRPC": stack.enter_context(deployed(daemons, module, sample, LARGE_IN_FLIGHT, by_grpc=True)),
                "bare gRPC stream, in and out": stack.enter_context(echoed(bytes(LARGE_BYTES))),
            }
            each = medians(windows, num_windows, LARGE_MICROBATCHES)
        for name, spent in each.items():
            rate = LARGE_BYTES / spent.wall / 1e9
            print(f"| {way}: {name} | {spent.wall * 1e3:.2f} | {spent.cpu * 1e3:.2f} | {rate:.2f} |", flush=True)


class Error(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(BATCH_COLUMNS))

    def forward(self, hidden: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(hidden * self.scale, target)


def batches(daemons: Daemons, num_windows: int) -> None:
    print("| training step of a batch | ms per step | of CPU |")
    print("|---|---|---|")
    for size_bytes in BATCHES_BYTES:
        rows = size_bytes // (2 * STEP_MICROBATCHES * BATCH_COLUMNS * 4)
        part = torch.randn(rows, BATCH_COLUMNS)
        batch = (part.repeat(STEP_MICROBATCHES, 1), part.repeat(STEP_MICROBATCHES, 1))
        with torch.enable_grad(), ExitStack() as stack:
            windows = {
                "one process": measured([], partial(_step_here, Error(), batch)),
                "by the door": stack.enter_context(_trained(daemons, part, batch)),
                "by gRPC": stack.enter_context(_trained(daemons, part, batch, by_grpc=True)),
            }
            each = medians(windows, num_windows, STEPS)
        for name, spent in each.items():
            print(f"| {size_bytes >> 20} MiB: {name} | {spent.wall * 1e3:.2f} | {spent.cpu * 1e3:.2f} |", flush=True)


def _step_here(module: torch.nn.Module, batch: tuple[torch.Tensor, ...], num: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(num):
        for part in zip(*(one.chunk(STEP_MICROBATCHES) for one in batch), strict=True):
            (module(*part) / STEP_MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def _trained(
    daemons: Daemons, part: torch.Tensor, batch: tuple[torch.Tensor, ...], *, by_grpc: bool = False
) -> Iterator[Window]:
    client = daemons.client
    options = PlanOptions(
        mode=SingleMode(),
        training=Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=STEP_MICROBATCHES),
    )
    graph = client.submit(export(Error(), args=(part, part)))
    deployment = client.deploy(client.create_plan(graph.id, options).id)
    with (
        mock.patch("planner.client.training.trainer.host_identity", return_value="") if by_grpc else nullcontext(),
        client.train(deployment.id, f"sgd:lr={RATE}") as trainer,
    ):

        def work(num: int) -> None:
            for _ in range(num):
                trainer.step(*batch)

        yield measured(daemons.process_ids, work)
    client.stop(deployment.id)


PARTS: dict[str, Callable[[Daemons, int], None]] = {
    "stages": stages,
    "models": models,
    "latencies": latencies,
    "large": large_tensors,
    "batches": batches,
}


def main(num_windows: int = DEFAULT_WINDOWS, *names: str) -> None:
    torch.set_num_threads(1)
    with one_thread_daemons(max(COUNTS), MEMORY_BYTES) as (cluster, client), torch.no_grad():
        daemons = Daemons(client, [daemon.process_id for daemon in cluster.daemons.values()])
        for name, part in PARTS.items():
            if not names or name in names:
                part(daemons, num_windows)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else DEFAULT_WINDOWS, *arguments[1:])
