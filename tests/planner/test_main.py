"""The planner-server as a process: ready line, SIGTERM, kill -9 and what the next one makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from planner.__main__ import _serve, main
from planner.settings import Settings
from planner.store.blobs import BlobStore
from protos.v1 import planner_pb2, planner_pb2_grpc
from tests.contract.calls import balanced, inventory_message
from tests.contract.graphs import many_nodes, sha256
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
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


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    with running(tmp_path, "--log-format", "json") as (process, address):
        stub(address).ListPlans(planner_pb2.ListPlansRequest(), timeout=WAIT_SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    assert (tmp_path / "planner.db").exists()


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    yield
    for name, handler in handlers.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("signals_as_before")
@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_even_where_it_was_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: signal.Signals
) -> None:
    signal.signal(name, signal.SIG_IGN)
    serving = asyncio.create_task(_serve(Settings(listen="127.0.0.1:0", data_dir=tmp_path, stop_grace_seconds=0)))
    async with asyncio.timeout(WAIT_SECONDS):
        while not (line := capsys.readouterr().out):
            assert not serving.done(), serving.exception()
            await asyncio.sleep(0.01)
        assert line.startswith(READY)
        async with grpc.aio.insecure_channel(line.removeprefix(READY).strip()) as channel:
            await planner_pb2_grpc.PlannerServiceStub(channel).ListPlans(planner_pb2.ListPlansRequest())
        os.kill(os.getpid(), name)
        await serving
    with (tmp_path / "uploads" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--database-url", "mysql://x/y"], 1, "mysql"),
        (["--database-url", "sqlite://"], 1, "'sqlite://' names no file"),
        (["--database-url", "sqlite:///{folder}/text"], 1, "database sqlite:///{folder}/text: file is not a database"),
        (["--database-url", "sqlite:///{folder}"], 1, "database sqlite:///{folder}: unable to open database file"),
        (["--data-dir", "{folder}/text"], 1, "data folder {folder}/text cannot be made: File exists"),
        (["--blob-url", "file://{folder}/text/in"], 1, "blob URL 'file://{folder}/text/in' cannot be used: "),
        (["--listen", "127.0.0.1:none"], 2, "--listen: address '127.0.0.1:none': needs host:port"),
        (["--listen", "127.0.0.1:65536"], 2, "with a port up to 65535"),
        (["--listen", "127.0.0.1"], 2, "--listen: address '127.0.0.1': needs host:port"),
        (["--listen", ""], 2, "--listen: address '': needs host:port"),
        (["--metrics-listen", "127.0.0.1:none"], 2, "--metrics-listen: address '127.0.0.1:none': needs host:port"),
        (["--listen", "0.0.0.0:0"], 1, "--insecure-plaintext-beyond-loopback"),
    ],
)
def test_what_keeps_it_from_starting_ends_with_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program_in_this_process: None,
    arguments: list[str],
    status: int,
    told: str,
) -> None:
    (tmp_path / "text").write_text("no database, and no folder")
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    assert main(["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"), *arguments]) == status
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("planner-server: ")
    assert told.format(folder=tmp_path) in line


def test_a_setting_of_the_environment_alone_is_called_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANNER_CLAIM_SECONDS", "soon")
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("planner-server: PLANNER_CLAIM_SECONDS: ")


def test_a_database_of_a_newer_planner_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program_in_this_process: None
) -> None:
    path = tmp_path / "planner.db"
    with contextlib.closing(sqlite3.connect(path)) as newer:
        newer.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        newer.execute("INSERT INTO alembic_version VALUES ('9999')")
        newer.commit()
    assert main(["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"planner-server: a newer planner-server has migrated the database sqlite:///{path} (")
    assert "'9999'" in line
    with contextlib.closing(sqlite3.connect(path)) as newer:
        assert newer.execute("SELECT name FROM sqlite_master").fetchall() == [("alembic_version",)]
        assert newer.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_a_misspelt_variable_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_LEESE_SECONDS", "1")
    with running(tmp_path, "--log-format", "json") as (process, _):
        assert process.stderr is not None
        logged = json.loads(process.stderr.readline())
    assert (logged["variable"], logged["meant"]) == ("PLANNER_LEESE_SECONDS", "PLANNER_LEASE_SECONDS")


def test_a_killed_server_leaves_a_plan_and_an_upload_that_the_next_one_goes_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next one waits for the end of what the killed one had claimed.
    monkeypatch.setenv("PLANNER_CLAIM_SECONDS", "2")
    content = many_nodes(100)
    with running(tmp_path) as (process, address):
        planner = stub(address)
        planner.UploadBlob(iter(upload_messages(content, 0, 1000)), timeout=WAIT_SECONDS)
        graph = many_nodes(5_000)
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
        wait_request = planner_pb2.WaitPlanOperationRequest(operation_id=operation.id, timeout_seconds=60)
        assert (
            planner.WaitPlanOperation(wait_request, timeout=WAIT_SECONDS).state == planner_pb2.OPERATION_STATE_SUCCEEDED
        )
        upload = planner.GetUpload(planner_pb2.GetUploadRequest(sha256=sha256(content)), timeout=WAIT_SECONDS)
        assert upload.committed_bytes == 1000
        rest = upload_messages(content, 1000, len(content))
        assert planner.UploadBlob(iter(rest), timeout=WAIT_SECONDS).complete


def test_a_port_or_a_folder_that_another_server_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program_in_this_process: None
) -> None:
    folder = tmp_path / "data"
    with running(folder) as (_, address):
        same_port = ["--listen", address, "--data-dir", str(tmp_path / "other")]
        same_folder = ["--listen", "127.0.0.1:0", "--data-dir", str(folder)]
        for arguments, says in ((same_port, address), (same_folder, "--data-dir")):
            assert main(arguments) == 1
            [line] = capsys.readouterr().err.splitlines()
            assert line.startswith("planner-server: ")
            assert says in line


def upload_messages(content: bytes, start: int, end: int) -> list[planner_pb2.UploadBlobRequest]:
    begin = planner_pb2.UploadBlobRequest.Begin(sha256=sha256(content), size_bytes=len(content), offset_bytes=start)
    return [planner_pb2.UploadBlobRequest(begin=begin), planner_pb2.UploadBlobRequest(chunk=content[start:end])]


def test_scrubbing_ends_with_3_where_a_blob_was_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(data_dir=tmp_path)
    blobs = BlobStore(settings.blobs, settings.staging_dir)
    assert main(["--scrub", "--data-dir", str(tmp_path)]) == 0
    damaged, _ = blobs.put(b"one"), blobs.put(b"two")
    Path(blobs._path(damaged)).write_bytes(b"One")
    assert main(["--scrub", "--data-dir", str(tmp_path)]) == 3
    assert main(["--scrub", "--data-dir", str(tmp_path)]) == 0
    empty, report, *_ = lines = capsys.readouterr().out.splitlines()
    assert empty == "0 blobs read, 0 damaged"
    assert report.startswith(f"{damaged.hex()} is damaged")
    assert lines[2:] == ["2 blobs read, 1 damaged", "1 blobs read, 0 damaged"]
    assert main(["--scrub", "--data-dir", str(tmp_path), "--blob-url", "nonsense://me:hunter2@host/x"]) == 1
    assert "hunter2" not in capsys.readouterr().err
