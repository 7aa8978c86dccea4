"""One pipeline's sessions at a time write a deployment's buffers, and none goes on with what another has written."""

from __future__ import annotations

import asyncio

import pytest

from protos.v1 import stage_daemon_pb2
from stage_daemon.control import sequences
from stage_daemon.control.sequences import Sequences
from stage_daemon.errors import BuffersInUse, StateLost
from tests.waiting import WAIT_SECONDS


def of(pipeline_id: int, *, goes_on: bool = False) -> stage_daemon_pb2.OpenSession:
    return stage_daemon_pb2.OpenSession(deployment_id="dep-1", pipeline_id=pipeline_id, goes_on=goes_on)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "PATIENCE_SECONDS", 0.01)


@pytest.mark.parametrize("other", [2, 0])
async def test_another_pipeline_s_session_is_refused_while_one_is_open(other: int) -> None:
    held = Sequences("dep-1")
    async with held.hold(of(1)):
        async with held.hold(of(1)):
            pass
        with pytest.raises(BuffersInUse, match="dep-1 writes buffers, and another pipeline"):
            async with held.hold(of(other)):
                pass
    async with held.hold(of(other)):
        pass


async def test_without_an_id_each_session_is_a_pipeline_of_its_own() -> None:
    held = Sequences("dep-1")
    async with held.hold(of(0)):
        with pytest.raises(BuffersInUse):
            async with held.hold(of(0)):
                pass


async def test_one_that_leaves_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "PATIENCE_SECONDS", WAIT_SECONDS)
    held, order = Sequences("dep-1"), list[int]()

    async def enter(pipeline_id: int) -> None:
        async with held.hold(of(pipeline_id)):
            order.append(pipeline_id)
            await asyncio.sleep(0)

    async with held.hold(of(1)):
        others = [asyncio.create_task(enter(pipeline_id)) for pipeline_id in (2, 3)]
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*others)
    assert order == [2, 3]


async def test_what_another_has_written_over_is_told() -> None:
    held = Sequences("dep-1")
    async with held.hold(of(1)):
        pass
    async with held.hold(of(1, goes_on=True)):
        pass
    async with held.hold(of(2)):
        pass
    with pytest.raises(StateLost, match="another pipeline has written the buffers of dep-1"):
        async with held.hold(of(1, goes_on=True)):
            pass
    async with held.hold(of(1)):
        pass


async def test_a_session_that_fails_lets_go() -> None:
    held = Sequences("dep-1")
    with pytest.raises(ZeroDivisionError):
        async with held.hold(of(1)):
            raise ZeroDivisionError
    async with held.hold(of(2)):
        pass
