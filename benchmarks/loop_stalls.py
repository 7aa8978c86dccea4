"""How long one large message keeps a server's event loop from everything else.

Run from the repository's root: `.venv/bin/python -m benchmarks.loop_stalls [postgresql]`. The planner runs here, with a
task that wakes every 2 ms and notes how late it is; a process of its own sends the messages. A stall is the longest
such delay while one message is under way, no more of it than the process was computing, so that other processes do not
count: median and most of some tries. Beside it the same with a small message.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import grpc

from planner.api.garbage import rare_collections
from planner.api.server import PlannerServer
from planner.api.threads import short_turns
from planner.client import PlannerClient
from planner.client.uploads import blob_of_bytes, upload_blob
from planner.settings import Settings
from protos.v1 import graph_pb2, planner_pb2, planner_pb2_grpc
from tests.contract.databases import empty_database
from tests.contract.graphs import chain_bytes

TICK_SECONDS = 0.002
TRIES = 5
LIMIT_BYTES = 64 << 20
SENT = (
    "GetGraph",
    "CreateInventory of 2 MiB",
    "CreateCheckpoint of 13 MiB",
    "GetCheckpoint of 13 MiB",
    "CreateCheckpoint of 30 MiB",
    "GetCheckpoint of 30 MiB",
    "hostile 14 MiB",
)


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "sqlite"
    with tempfile.TemporaryDirectory() as folder, empty_database(kind, Path(folder)) as url, short_turns():
        asyncio.run(_measure(Settings(listen="127.0.0.1:0", data_dir=Path(folder), database_url=url)))


async def _measure(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        server = await PlannerServer.start(settings)
        await loop.run_in_executor(processes, _submit, server.address)
        async with rare_collections():
            print(f"{'':<28}{'median ms':>10}{'most ms':>10}{'':>4}answer")
            for name in SENT:
                content = await loop.run_in_executor(processes, _message, name, server.address)
                stalls, answer = [], ""
                for _ in range(TRIES):
                    ticking = asyncio.create_task(_latest())
                    answer = await loop.run_in_executor(processes, _send, server.address, name, content)
                    ticking.cancel()
                    stalls.append(await ticking * 1e3)
                stalls.sort()
                print(f"{name:<28}{stalls[TRIES // 2]:>10.1f}{stalls[-1]:>10.1f}{'':>4}{answer}", flush=True)
        await server.stop(0.0)


async def _latest() -> float:
    """Until it is cancelled: by how much it woke too late at most, as far as this process was computing meanwhile."""
    clock, most = asyncio.get_running_loop().time, 0.0
    try:
        while True:
            due, computed = clock() + TICK_SECONDS, time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            most = max(most, min(clock() - due, time.process_time() - computed))
    except asyncio.CancelledError:
        return most


def _submit(address: str) -> None:
    """A graph for the checkpoints to be of; its bytes are their file too."""
    with PlannerClient(address) as client:
        connection = client._connection
        upload_blob(connection, blob_of_bytes("graph", chain_bytes()))
        request = planner_pb2.CreateGraphRequest(sha256=hashlib.sha256(chain_bytes()).digest())
        connection.call(connection.stub.CreateGraph, request)


def _message(name: str, address: str) -> bytes:
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
        file, size_bytes = hashlib.sha256(chain_bytes()).digest(), len(chain_bytes())
        checkpoint.checkpoint.record.run = "run"
        checkpoint.checkpoint.record.graph_id = file.hex()
        checkpoint.checkpoint.record.files.add(sha256=file, size_bytes=size_bytes)
        for index in range(98_000 if "13" in name else 210_000):
            checkpoint.checkpoint.tensors.add(
                name=f"model.layers.{index}.self_attn.q_proj.weight",
                dtype=graph_pb2.DTYPE_BFLOAT16,
                dims=[4096, 4096],
                file_sha256=file,
                length_bytes=size_bytes,
                sha256=os.urandom(32),
            )
        return checkpoint.SerializeToString()
    if name.startswith("GetCheckpoint"):
        with grpc.insecure_channel(address) as channel:
            stub: planner_pb2_grpc.PlannerServiceStub = planner_pb2_grpc.PlannerServiceStub(channel)
            [newest] = stub.ListCheckpoints(planner_pb2.ListCheckpointsRequest(page_size=1)).checkpoints
        return planner_pb2.GetCheckpointRequest(checkpoint_id=newest.id).SerializeToString()
    # As many links as fit, each with nothing in it.
    links = b"\x12\x00" * (7 << 20)
    return b"\x1a\x80\x80\x80\x07" + links if name.startswith("hostile") else b""


def _send(address: str, name: str, content: bytes) -> str:
    method = name.partition(" ")[0].replace("hostile", "CreateInventory")
    limits = [(f"grpc.max_{way}_message_length", LIMIT_BYTES) for way in ("send", "receive")]
    with grpc.insecure_channel(address, limits) as channel:
        grpc.channel_ready_future(channel).result()
        call = channel.unary_unary(f"/partition_planner.v1.PlannerService/{method}")
        try:
            return f"{len(call(content, timeout=300)):,} bytes"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"[:90]


if __name__ == "__main__":
    main()
