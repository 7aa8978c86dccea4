"""The planner-server as a process: ready line, SIGTERM, kill -9 and what the next one makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from protos.v1 import planner_pb2, planner_pb2_grpc
from tests.contract.calls import balanced, inventory_message
from tests.contract.graphs import many_nodes, sha256

WAIT_SECONDS = 60.0
READY = "planner-server listening on "


@contextmanager
def running(data_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    command = [sys.executable, "-m", "planner", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), process.communicate()
        yield process, line.removeprefix(READY).strip()
    finally:
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)


def stub(address: str) -> planner_pb2_grpc.PlannerServiceStub:
    return planner_pb2_grpc.PlannerServiceStub(grpc.insecure_channel(address))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    with running(tmp_path, "--log-format", "json") as (process, address):
        stub(address).ListPlans(planner_pb2.ListPlansRequest(), timeout=WAIT_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    assert (tmp_path / "planner.db").exists()


def test_killed_server_leaves_a_failed_plan_and_a_partial_upload(tmp_path: Path) -> None:
    content = many_nodes(60_000)
    with running(tmp_path) as (process, address):
        planner = stub(address)
        planner.UploadBlob(iter(upload_messages(content, 0, 1000)), timeout=WAIT_SECONDS)
        graph = many_nodes(60_001)
        planner.UploadBlob(iter(upload_messages(graph, 0, len(graph))), timeout=WAIT_SECONDS)
        planner.CreateGraph(planner_pb2.CreateGraphRequest(sha256=sha256(graph)), timeout=WAIT_SECONDS)
        request = planner_pb2.CreatePlanRequest(
            graph_id=sha256(graph).hex(), inventory=inventory_message(), options=balanced()
        )
        operation = planner.CreatePlan(request, timeout=WAIT_SECONDS)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_SECONDS)
    with running(tmp_path) as (_, address):
        planner = stub(address)
        wanted = planner_pb2.GetPlanOperationRequest(operation_id=operation.id)
        ended = planner.GetPlanOperation(wanted, timeout=WAIT_SECONDS)
        assert ended.failure.reason == "SERVER_RESTARTED"
        held = planner.GetUpload(planner_pb2.GetUploadRequest(sha256=sha256(content)), timeout=WAIT_SECONDS)
        assert held.committed_bytes == 1000
        rest = upload_messages(content, 1000, len(content))
        assert planner.UploadBlob(iter(rest), timeout=WAIT_SECONDS).complete


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--plan-workers", "0"), "plan_workers"),
        (("--log-level", "loud"), "log_level"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], told: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert told in ended.stderr


def test_what_cannot_be_had(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder) as (_, address):
        same_port = run("--listen", address, "--data-dir", str(tmp_path / "other"))
        same_folder = run("--listen", "127.0.0.1:0", "--data-dir", str(folder))
    no_database = run("--listen", "127.0.0.1:0", "--data-dir", str(folder), "--database-url", "mysql://x/y")
    for ended, told in ((same_port, address), (same_folder, "--data-dir"), (no_database, "mysql")):
        assert ended.returncode == 1
        assert told in ended.stderr
        assert "Traceback" not in ended.stderr


def upload_messages(content: bytes, start: int, end: int) -> list[planner_pb2.UploadBlobRequest]:
    begin = planner_pb2.UploadBlobRequest.Begin(sha256=sha256(content), size_bytes=len(content), offset_bytes=start)
    return [planner_pb2.UploadBlobRequest(begin=begin), planner_pb2.UploadBlobRequest(chunk=content[start:end])]
