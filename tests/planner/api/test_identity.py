"""Ids that differ, and fingerprints that are those of the request without its id."""

from __future__ import annotations

import re

from planner.api.identity import fingerprint, new_id
from protos.v1 import inventory_pb2, plan_pb2, planner_pb2


def test_ids_say_their_kind_and_differ() -> None:
    ids = {new_id("plan") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch("plan-[0-9a-f]{12}", one) for one in ids)


def request(**changes: object) -> planner_pb2.CreatePlanRequest:
    options = plan_pb2.PlanOptions(symbol_values={f"s{index}": index for index in range(20)})
    fields: dict[str, object] = {"graph_id": "ab", "request_id": "one", "options": options}
    return planner_pb2.CreatePlanRequest(**fields | changes)  # type: ignore[arg-type]


async def test_the_same_request_has_the_same_fingerprint_under_any_id() -> None:
    backwards = plan_pb2.PlanOptions(symbol_values={f"s{index}": index for index in reversed(range(20))})
    prints = {await fingerprint(one) for one in (request(), request(request_id=""), request(options=backwards))}
    assert len(prints) == 1
    assert re.fullmatch("[0-9a-f]{64}", prints.pop())


async def test_every_other_field_counts() -> None:
    others = [
        request(),
        request(graph_id="ac"),
        request(inventory_id="inv-1"),
        request(options=plan_pb2.PlanOptions()),
        request(inventory=inventory_pb2.Inventory()),
    ]
    assert len({await fingerprint(other) for other in others}) == len(others)


async def test_the_request_keeps_its_id() -> None:
    message = request()
    await fingerprint(message)
    assert message.request_id == "one"


async def test_of_a_request_with_many_entries_all_count_but_its_id() -> None:
    inventory = inventory_pb2.Inventory(devices=[inventory_pb2.Device(id=f"gpu{index}") for index in range(2000)])
    baseline = request(inventory=inventory)
    assert await fingerprint(baseline) == await fingerprint(request(inventory=inventory, request_id=""))
    assert baseline.request_id == "one"
    inventory.devices[1999].id = "another"
    assert await fingerprint(baseline) != await fingerprint(request(inventory=inventory))
    assert await fingerprint(baseline) != await fingerprint(request(inventory=baseline.inventory, graph_id="ac"))
