"""Plans in which stages have copies: times that are said to be measured make the planner give so many to each."""

from __future__ import annotations

from collections.abc import Sequence

from planner.client import PlannerClient
from planner.client.records import GraphRecord, StoredPlan
from planner.cost.measured import MeasuredTimes
from planner.plan.options import OptimalMode, PlanOptions, Routing

# That of the node that fills a stage of one copy; all other nodes take next to nothing beside it.
SECONDS = 1.0
NEARLY_NOTHING = 1e-9
# The times leave little to search for.
EFFORT = 0.05


def plan_with_copies(
    client: PlannerClient,
    graph: GraphRecord,
    counts: Sequence[int],
    *,
    routing: Routing = Routing.DIRECT,
    device_kind: str = "cpu",
) -> StoredPlan:
    """As many stages as `counts`, and of each so many copies, on as many devices."""
    num_nodes = graph.num_nodes
    heavy = {num_nodes * (2 * at + 1) // (2 * len(counts)): SECONDS * count for at, count in enumerate(counts)}
    times = MeasuredTimes(
        graph_id=graph.id,
        device_kind=device_kind,
        seconds=tuple((node, heavy.get(node, NEARLY_NOTHING)) for node in range(num_nodes)),
    )
    client.import_times(times, graph.id)
    devices = sorted(client.list_devices(), key=lambda registered: registered.device.id)[: sum(counts)]
    plan = client.create_plan(
        graph.id,
        PlanOptions(mode=OptimalMode(num_stages=len(counts), replicate=True, effort=EFFORT), routing=routing),
        device_ids=[registered.device.id for registered in devices],
    )
    assert [len(stage.device_ids) for stage in plan.stages] == list(counts)
    return plan
