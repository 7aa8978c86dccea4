"""How long one large message keeps a server's event loop from everything else.

Run from the repository's root: `.venv/bin/python -m benchmarks.loop_stalls`. The planner runs here, with a task that
wakes every 2 ms and notes how late it is; a process of its own sends the messages. A stall is the longest such delay
while one message is under way; beside it the same with a small message.
"""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import grpc

from planner.api.server import PlannerServer
from planner.settings import Settings
from protos.v1 import graph_pb2, planner_pb2

TICK_SECONDS = 0.002
TRIES = 3
LIMIT_BYTES = 64 << 20
SENT = (
    "GetGraph",
    "CreateInventory of 2 MiB",
    "CreateCheckpoint of 13 MiB",
    "CreateCheckpoint of 30 MiB",
    "hostile 14 MiB",
)


def main() -> None:
    asyncio.run(_measure())


async def _measure() -> None:
    loop = asyncio.get_running_loop()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes,
    ):
        server = await PlannerServer.start(Settings(listen="127.0.0.1:0", data_dir=Path(folder)))
        # As planner-server does.
        gc.collect()
        gc.freeze()
        print(f"{'':<28}{'stall ms':>10}{'':>4}answer")
        for name in SENT:
            content = await loop.run_in_executor(processes, _message, name)
            stalls, answer = [], ""
            for _ in range(TRIES):
                ticking = asyncio.create_task(_latest())
                answer = await loop.run_in_executor(processes, _send, server.address, name, content)
                ticking.cancel()
                stalls.append(await ticking)
            print(f"{name:<28}{sorted(stalls)[TRIES // 2] * 1e3:>10.1f}{'':>4}{answer}", flush=True)
        await server.stop(0.0)


async def _latest() -> float:
    """Until it is cancelled: by how much it woke too late at most."""
    clock, most = asyncio.get_running_loop().time, 0.0
    try:
        while True:
            wanted = clock() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            most = max(most, clock() - wanted)
    except asyncio.CancelledError:
        return most


def _message(name: str) -> bytes:
    if name == "CreateInventory of 2 MiB":
        inventory = planner_pb2.CreateInventoryRequest()
        for index in range(256):
            inventory.inventory.devices.add(id=f"gpu{index}", kind="h100", memory_bytes=1 << 36)
        for index in range(255 * 256):
            source, target = index // 255, index % 255
            link = inventory.inventory.links.add(source=f"gpu{source}", target=f"gpu{target + (target >= source)}")
            link.bytes_per_second, link.latency_seconds = 1e9, 1e-5
        return inventory.SerializeToString()
    if name.startswith("CreateCheckpoint"):
        checkpoint = planner_pb2.CreateCheckpointRequest()
        file = os.urandom(32)
        checkpoint.checkpoint.record.run = "run"
        checkpoint.checkpoint.record.files.add(sha256=file, size_bytes=1 << 40)
        for index in range(98_000 if "13" in name else 210_000):
            checkpoint.checkpoint.tensors.add(
                name=f"model.layers.{index}.self_attn.q_proj.weight",
                dtype=graph_pb2.DTYPE_BFLOAT16,
                dims=[4096, 4096],
                file_sha256=file,
                length_bytes=1 << 25,
                sha256=os.urandom(32),
            )
        return checkpoint.SerializeToString()
    # As many links as fit, each with nothing in it.
    links = b"\x12\x00" * (7 << 20)
    return b"\x1a\x80\x80\x80\x07" + links if name.startswith("hostile") else b""


def _send(address: str, name: str, content: bytes) -> str:
    method = name.partition(" ")[0].replace("hostile", "CreateInventory")
    with grpc.insecure_channel(address, [("grpc.max_send_message_length", LIMIT_BYTES)]) as channel:
        grpc.channel_ready_future(channel).result()
        call = channel.unary_unary(f"/partition_planner.v1.PlannerService/{method}")
        try:
            return f"{len(call(content, timeout=300)):,} bytes"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"[:90]


if __name__ == "__main__":
    main()
