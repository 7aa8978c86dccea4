"""The daemon as a process: it registers, tells where it listens, and ends in order when it is asked to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import grpc
import pytest
import structlog
from google.rpc import code_pb2

from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from stage_daemon.__main__ import main, read_settings, serve
from stage_daemon.control.device import host_name
from stage_daemon.control.worker_process import forkserver_is_warm
from stage_daemon.errors import Conflict, Unavailable
from stage_daemon.settings import Settings
from stage_daemon.worker.shared_cores import workers_share_cores
from tests.stage_daemon.control.daemons import Daemon, prepared, roll_out
from tests.stage_daemon.control.registry import registry_at
from tests.stage_daemon.runtime.workers import Preparation
from tests.waiting import WAIT_SECONDS

ENDING = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def signals() -> Iterator[None]:
    """The daemon takes this process's signals; one that it does not take ends nothing here."""
    before = {number: signal.signal(number, lambda *_: None) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def settings(planner: str, **more: object) -> Settings:
    return Settings(planner=planner, device="cpu", device_id="node0/cpu", memory=1 << 30, **more)


@pytest.mark.services
@pytest.mark.parametrize("number", ENDING)
async def test_registers_and_ends_when_it_is_asked_to(
    number: signal.Signals, signals: None, capfd: pytest.CaptureFixture[str]
) -> None:
    async with registry_at() as registry:
        running = asyncio.create_task(serve(settings(registry.address)))
        await registry.until_beats(1)
        [registration] = registry.registrations
        device = registration.device
        assert (device.id, device.kind, device.memory_bytes) == ("node0/cpu", "cpu", 1 << 30)
        assert device.host == host_name()
        assert device.shares_cores == workers_share_cores()
        assert registration.torch_version.startswith("2.")
        assert registration.incarnation_id == registry.beats[0].incarnation_id != ""
        async with grpc.aio.insecure_channel(registration.address) as channel:
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            status = await stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=WAIT_SECONDS)
            assert status.device_id == "node0/cpu"
        os.kill(os.getpid(), number)
        await asyncio.wait_for(running, WAIT_SECONDS)
    announced = f"stage-daemon of node0/cpu registered, listening on {registration.address}"
    assert announced in capfd.readouterr().out


@pytest.mark.services
async def test_it_registers_once_a_worker_can_be_forked(signals: None, monkeypatch: pytest.MonkeyPatch) -> None:
    registered_before: list[int] = []
    async with registry_at() as registry:

        async def warm() -> None:
            await forkserver_is_warm()
            registered_before.append(len(registry.registrations))

        monkeypatch.setattr("stage_daemon.__main__.forkserver_is_warm", warm)
        running = asyncio.create_task(serve(settings(registry.address)))
        await registry.until_beats(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, WAIT_SECONDS)
    assert registered_before == [0]


@pytest.mark.services
async def test_a_daemon_that_is_started_again_is_another_one(signals: None) -> None:
    async with registry_at() as registry:
        for count in (1, 2):
            running = asyncio.create_task(serve(settings(registry.address)))
            await registry.until_beats(count)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(running, WAIT_SECONDS)
        assert len({registration.incarnation_id for registration in registry.registrations}) == 2


@pytest.mark.services
async def test_asked_to_end_it_waits_for_its_deployments_to_be_stopped(signals: None, tmp_path: Path) -> None:
    preparation = Preparation(tmp_path)
    async with registry_at() as registry:
        running = asyncio.create_task(serve(settings(registry.address, drain_seconds=WAIT_SECONDS)))
        await registry.until_beats(1)
        async with grpc.aio.insecure_channel(registry.registrations[0].address) as channel:
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            daemon = Daemon(supervisor=None, address="", stub=stub)
            case = prepared(preparation, "dep-1", devices=(0, 0))
            case.requests.load["node0/cpu"].blob_address = preparation.address
            deployment = await roll_out({"node0/cpu": daemon}, case)
            os.kill(os.getpid(), signal.SIGTERM)
            while not registry.beats[-1].leaving:
                await registry.until_beats(len(registry.beats) + 1)
            assert not running.done()
            await deployment.release(drain=True)
            await asyncio.wait_for(running, WAIT_SECONDS)
    preparation.close()


@pytest.mark.services
async def test_without_a_planner_it_ends_all_the_same(signals: None) -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody_listens.getsockname()[1]}"
        running = asyncio.create_task(serve(settings(address, drain_seconds=0)))
        async with asyncio.timeout(WAIT_SECONDS):
            while not running.done():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
        await running


@pytest.mark.services
async def test_a_planner_that_never_takes_it_ends_it(signals: None) -> None:
    async with registry_at() as registry:
        registry.refusals = [(code_pb2.INVALID_ARGUMENT, "INVALID_INVENTORY")]
        with pytest.raises(Conflict, match="the planner refuses this daemon: no: INVALID_INVENTORY"):
            await asyncio.wait_for(serve(settings(registry.address)), WAIT_SECONDS)


@pytest.mark.services
async def test_an_address_that_is_taken_is_named(signals: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            Unavailable, match=f"cannot listen on {address}: it is in use or not of this machine; .*, or port 0"
        ):
            await serve(settings("127.0.0.1:1", listen=address))


@pytest.mark.services
def test_what_cannot_start_says_why_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    logs_before = structlog.get_config()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            main(["--device", "cpu", "--listen", address])
    structlog.configure(**logs_before)
    assert ended.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"stage-daemon: cannot listen on {address}")


def test_options_that_make_no_sense_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--planner", "here", "--listen", "x:65536", "--advertise", "a b", "--metrics-listen", "127.0.0.1"]
    assert main(["--device", "cpu", "--memory", "lots", "--drain-seconds", "-1", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    told = [line.removeprefix("stage-daemon: ").split(": ")[:2] for line in lines]
    assert sorted(option for option, _ in told) == sorted(["--memory", "--drain-seconds", *arguments[::2]])
    assert {option: text for option, text in told if text.startswith("address")} == {
        option: f"address {text!r}" for option, text in zip(arguments[::2], arguments[1::2], strict=True)
    }


def test_help_tells_every_setting_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_settings(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert f"{field.description} [STAGE_DAEMON_{name.upper()}]" in text
