"""Pipes over NCCL between two processes, beside torch's own send and receive over NCCL, and what goes by the host.

On one GPU the processes tell NCCL that they are of two hosts: else it refuses two ranks there. What crosses then goes
over NCCL's sockets, so that figures count on two GPUs only; what arrives counts on one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from benchmarks.gpu.bench import Bench, Row, shown
from stage_daemon.transport.nccl import connect_nccl

CONNECT_SECONDS = 60.0
NUM_SENT = 32
_CONTEXT = multiprocessing.get_context("spawn")
_Send = Callable[[torch.Tensor], object]
_Receive = Callable[[torch.Tensor], torch.Tensor]


def nccl(bench: Bench) -> Iterator[Row]:
    if bench.device.type != "cuda":
        yield Row(suite="nccl", name="none without a GPU", figure="")
        return
    sizes_bytes = (1 << 12,) if bench.quick else (1 << 12, 1 << 18, 1 << 20, 1 << 24)
    ends = [_CONTEXT.Pipe() for _ in range(2)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        _CONTEXT.Process(target=_run, args=(rank, store.port, sizes_bytes, theirs), daemon=True)
        for rank, (_, theirs) in enumerate(ends)
    ]
    for process in processes:
        process.start()
    try:
        receiver = ends[1][0]
        for size in sizes_bytes:
            if not receiver.poll(CONNECT_SECONDS):
                yield Row(suite="nccl", name="connecting", figure="nothing came", is_right=False)
                return
            is_right, ours, peer = receiver.recv()
            yield Row(
                suite="nccl",
                name=f"{size >> 10} KiB",
                figure=shown(ours),
                peer="torch's send and recv",
                ratio=ours / peer,
                is_right=is_right,
            )
    finally:
        for process in processes:
            process.kill()
            process.join()


def _run(rank: int, port: int, sizes_bytes: tuple[int, ...], connection: Connection) -> None:
    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        os.environ["NCCL_HOSTID"] = f"rank {rank}"
    device = torch.device("cuda", rank % num_gpus)
    torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=CONNECT_SECONDS))
    pipe = connect_nccl(
        store, "ours", rank=rank, device=device, connect_seconds=CONNECT_SECONDS, deadline_seconds=CONNECT_SECONDS
    )
    dist.init_process_group("nccl", store=dist.PrefixStore("torch's", store), rank=rank, world_size=2, device_id=device)

    def receive_by_torch(like: torch.Tensor) -> torch.Tensor:
        received = torch.empty_like(like)
        dist.recv(received, 0)
        torch.cuda.current_stream().synchronize()
        return received

    ways: tuple[tuple[_Send, _Receive], ...] = (
        (lambda payload: pipe.send([payload]), lambda like: pipe.receive([like.numel()])[0]),
        (lambda payload: dist.send(payload, 1), receive_by_torch),
    )
    for size in sizes_bytes:
        generator = torch.Generator(device).manual_seed(size)
        payload = torch.randint(256, (size,), dtype=torch.uint8, device=device, generator=generator)
        figures: list[float] = []
        is_right = True
        for send, receive in ways:
            for begins in (None, time.perf_counter):
                began = begins() if begins else 0.0
                for _ in range(NUM_SENT):
                    if rank == 0:
                        send(payload)
                    else:
                        is_right = torch.equal(receive(payload), payload) and is_right
                if begins:
                    figures.append((time.perf_counter() - began) / NUM_SENT)
                torch.cuda.synchronize(device)
                dist.barrier()
        if rank == 1:
            connection.send((is_right, *figures))
    # Until the receiver has told all of it.
    dist.barrier()
