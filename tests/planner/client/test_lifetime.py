"""What holds connections, in a process that was forked from the one that opened it, and where it would be copied."""

from __future__ import annotations

import copy
import os
import pickle
import select
import signal
from collections.abc import Callable

import pytest

from planner.client import AsyncPlannerClient, PlannerClient
from tests.planner.client.loopback_daemon import LoopbackDaemon, loopback_pipeline
from tests.planner.client.scripted_planner import scripted_planner
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services


def told_in_a_fork(ask: Callable[[], object]) -> str:
    """What `ask` raises there; nothing where it raises nothing, or does not come back."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            ask()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as told:
        if not select.select([told], [], [], WAIT_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
        message = told.read().decode()
    os.waitpid(child, 0)
    return message


def test_a_forked_process_is_told_that_a_client_is_its_parents() -> None:
    with scripted_planner() as (script, address):
        with PlannerClient(address) as client:
            assert "open one here, after the fork" in told_in_a_fork(lambda: next(iter(client.list_graphs())))
        assert script.calls == []


async def test_a_forked_process_is_told_that_an_awaited_client_is_its_parents() -> None:
    async with AsyncPlannerClient("127.0.0.1:1") as client:
        assert "open one here, after the fork" in told_in_a_fork(lambda: client.list_devices().send(None))


async def test_no_copy_is_made_of_what_holds_connections() -> None:
    async with AsyncPlannerClient("127.0.0.1:1") as awaited:
        with loopback_pipeline(LoopbackDaemon()) as pipeline, PlannerClient("127.0.0.1:1") as client:
            for holds in (pipeline, client, awaited):
                for make in (copy.copy, copy.deepcopy, pickle.dumps):
                    with pytest.raises(TypeError, match="share it between threads, and open one in each process"):
                        make(holds)
