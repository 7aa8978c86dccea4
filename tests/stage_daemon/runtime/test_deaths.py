"""Workers that die, and workers that cannot load: who was it, and no one is left behind."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from pathlib import Path

import pytest

from protos.v1 import stage_daemon_pb2
from stage_daemon.control.worker_process import WorkerProcess
from stage_daemon.errors import DaemonError, NotFound, StateMismatch, Unavailable, WorkerDied
from tests.stage_daemon.runtime.modules import SHAPES, STARTS, ThreeStages, batch_of
from tests.stage_daemon.runtime.workers import Preparation, Prepared, loaded, microbatch, running
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services


@pytest.fixture
def prepared(preparation: Preparation, module: ThreeStages) -> Prepared:
    return preparation.prepare(module, batch_of(2, 3), SHAPES, STARTS, (0, 1, 2))


async def test_the_peers_of_a_killed_worker_name_its_stage_and_the_edge(prepared: Prepared) -> None:
    async with running(prepared) as pipeline:
        await pipeline.run([batch_of(2, 3)])
        before, middle, after = (pipeline.workers[device_id] for device_id in prepared.device_ids)
        os.kill(middle.process_id, signal.SIGKILL)
        reason = await asyncio.wait_for(middle.exited, WAIT_SECONDS)
        assert "SIGKILL" in reason
        assert str(middle.process_id) in reason
        for peer in (before, after):
            reason = await asyncio.wait_for(peer.exited, WAIT_SECONDS)
            assert peer.failure is not None
            assert peer.failure.reason == Unavailable.reason
            # The other peer may have been the first to go.
            assert peer.failure.metadata["edge"]
            assert f"stage {peer.failure.stage}" in reason
            assert f"node{peer.failure.stage}/cpu" in reason
        named = {peer.failure.stage for peer in (before, after) if peer.failure}
        assert 1 in named
        with pytest.raises(Unavailable, match="edge"):
            await before.send_input(1, 1, microbatch(1, batch_of(2, 3)))


async def test_every_call_of_a_dead_worker_raises_and_outputs_end(prepared: Prepared) -> None:
    async with loaded(prepared) as workers:
        worker = workers[prepared.device_ids[0]]
        outputs = asyncio.create_task(anext(worker.outputs(), None))
        worker.kill()
        assert "SIGKILL" in await asyncio.wait_for(worker.exited, WAIT_SECONDS)
        assert await asyncio.wait_for(outputs, WAIT_SECONDS) is None
        for call in (worker.metrics(), worker.drain(), worker.connect(stage_daemon_pb2.ConnectStagesRequest())):
            with pytest.raises(WorkerDied):
                await asyncio.wait_for(call, WAIT_SECONDS)
        worker.kill()


async def load_one(prepared: Prepared, request: stage_daemon_pb2.LoadStagesRequest) -> DaemonError:
    worker = await WorkerProcess.start(
        deployment_id=request.deployment_id, generation=1, device="cpu", blob_address=prepared.blob_address
    )
    with pytest.raises(DaemonError) as raised:
        async for _ in worker.load(request):
            pass
    await asyncio.wait_for(worker.exited, WAIT_SECONDS)
    return raised.value


async def test_a_stage_that_cannot_be_loaded_is_named(prepared: Prepared, preparation: Preparation) -> None:
    [request] = [request for request in prepared.requests.load.values() if request.stages[0].stage == 1]
    onto_another = stage_daemon_pb2.LoadStagesRequest.FromString(request.SerializeToString())
    for state in onto_another.stages[0].states:
        state.offset_bytes += 4
    error = await load_one(prepared, onto_another)
    assert isinstance(error, StateMismatch)
    assert error.stage == 1
    missing = stage_daemon_pb2.LoadStagesRequest.FromString(request.SerializeToString())
    missing.stages[0].graph_sha256 = bytes(32)
    error = await load_one(prepared, missing)
    assert isinstance(error, NotFound)
    assert error.stage == 1


SUPERVISOR = """
import asyncio, sys
from stage_daemon.control.worker_process import WorkerProcess

async def main():
    worker = await WorkerProcess.start(deployment_id="dep-1", generation=1, device="cpu", blob_address="")
    await worker.metrics()
    print(worker.process_id, flush=True)
    await worker.exited

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_a_worker_does_not_outlive_its_supervisor(tmp_path: Path) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, script, stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert supervisor.stdout is not None
    line = await asyncio.wait_for(supervisor.stdout.readline(), WAIT_SECONDS)
    worker_id = int(line)
    worker = os.pidfd_open(worker_id)
    supervisor.kill()
    await supervisor.wait()
    ended, _, _ = await asyncio.to_thread(select.select, [worker], [], [], WAIT_SECONDS)
    os.close(worker)
    assert ended
