"""A deployment that writes buffers serves one sequence at a time: what two pipelines send never mixes in silence."""

from __future__ import annotations

import pytest
import torch

from planner.client import PlannerClient, export
from planner.errors import BuffersInUse, StateLost
from planner.plan.options import BalancedMode, PlanOptions
from tests.builders.corners import Counter
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = pytest.mark.services

ONE = torch.ones(1)


@pytest.mark.slow
def test_two_pipelines_write_in_turn(client: PlannerClient) -> None:
    """The other one is let in once the first has been idle; that one is told, rather than go on in between."""
    graph = client.submit(export(Counter(), (ONE,)))
    deployment = client.deploy(client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=1))).id)
    with (
        client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as first,
        client.pipeline(deployment.id, deadline_seconds=WAIT_SECONDS) as other,
    ):
        run = first.run([ONE, ONE], window=1)
        assert next(run) == 1
        with pytest.raises(BuffersInUse, match="another pipeline's batches are writing them"):
            other(ONE)
        assert list(run) == [2]

        counted = list[torch.Tensor]()

        def is_let_in() -> bool:
            try:
                counted.append(other(ONE))
            except BuffersInUse:
                return False
            return True

        wait_for(is_let_in, "the first pipeline's session is idle and still open")
        assert counted == [3]
        other.close()
        with pytest.raises(StateLost, match="another pipeline has written the buffers"):
            first(ONE)
        assert first(ONE) == 4
    client.stop(deployment.id)
