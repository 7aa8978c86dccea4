"""How often a supervisor asks whether its worker hangs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stage_daemon.control.hosted import HostedDeployment
from stage_daemon.control.lifecycle import Life, Phase

SILENCE_SECONDS = 0.08


class WorkerThatHangs:
    """From its sixth answer on."""

    process_id = 1

    def __init__(self) -> None:
        self.num_answers = 0

    async def metrics(self) -> list[object]:
        if self.num_answers == 5:
            await asyncio.Event().wait()
        self.num_answers += 1
        return []

    def kill(self) -> None:
        pass


async def test_little_is_added_to_the_silence_that_a_worker_may_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    hosted = HostedDeployment(
        life=Life(deployment_id="dep-1", generation=1, stages=(0,), phase=Phase.RUNNING),
        device_id="a",
        torch_device="cpu",
        worker_silence_seconds=SILENCE_SECONDS,
        loading=asyncio.Semaphore(1),
        on_change=lambda: None,
    )
    worker: Any = WorkerThatHangs()
    await hosted._watch_for_hang(worker)
    assert hosted.life.error is not None
    assert hosted.life.error.reason == "WORKER_HUNG"
    assert len(pauses) == 5
    assert max(pauses) <= SILENCE_SECONDS / 8
