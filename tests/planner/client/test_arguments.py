"""Arguments that are no values of their declared types are refused by their names, before anything is sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from planner.client import PlannerClient, RecoveryPolicy
from planner.client.arguments import checks_arguments
from planner.errors import InvalidArgument, Unavailable

GRAPH = {"graph_id": "0" * 12}
PLANNED = {**GRAPH, "options": None}
PLAN = {"plan_id": "plan-000000"}
DEPLOYMENT = {"deployment_id": "dep-000000"}


@pytest.fixture(scope="module")
def client() -> Iterator[PlannerClient]:
    """Of a server that is not there."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        with PlannerClient(f"127.0.0.1:{reserved.getsockname()[1]}", restart_seconds=0) as client:
            yield client


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("get_graph", {"graph_id": 5}, "graph_id is a int, needs str"),
        ("get_graph", {"graph_id": None}, "graph_id is a NoneType, needs str"),
        ("get_graph", {"graph_id": "\udcff"}, r"graph_id is '\\udcff', needs text that UTF-8 can write"),
        ("list_graphs", {"name": b"gpt"}, "name is a bytes, needs str"),
        ("list_graphs", {"created_since": 5}, "created_since is 5, needs datetime"),
        ("list_graphs", {"created_since": datetime.min}, "created_since is 0001-.*, which UTC has no date for"),
        ("list_plans", {"page_size": -1}, "page_size is -1, needs int from 0 to 4294967295"),
        ("list_plans", {"page_size": 2**32}, "page_size is 4294967296, needs int from 0 to 4294967295"),
        ("list_plans", {"page_size": 1.0}, r"page_size is 1\.0, needs int from 0"),
        ("list_plans", {"page_size": True}, "page_size is True, needs int from 0"),
        ("list_deployments", {"state": "ready"}, r"state is 'ready', needs .*DeploymentState\.READY or "),
        ("list_deployments", {"active_only": "no"}, "active_only is 'no', needs True or False"),
        ("deploy", {**PLAN, "num_threads": 2**32}, "num_threads is 4294967296, needs int from 0"),
        (
            "deploy",
            {**PLAN, "recovery": "manual"},
            r"recovery is 'manual', needs RecoveryPolicy\.MANUAL or ",
        ),
        (
            "watch",
            {**DEPLOYMENT, "after_sequence": 2**63},
            "after_sequence is 92233.*, needs int from 0",
        ),
        ("read_blob", {"sha256": "00"}, "sha256 is '00', needs bytes"),
        ("read_blob", {"sha256": bytes(32), "offset_bytes": -1}, "offset_bytes is -1, needs int from 0 to 92233"),
        ("create_inventory", {"inventory": []}, r"inventory is \[\], needs Inventory"),
        (
            "create_plan",
            {**PLANNED, "device_ids": "gpu0"},
            r"device_ids is the text 'gpu0', .*",
        ),
        (
            "create_plan",
            {**PLANNED, "device_ids": 5},
            "device_ids is 5, needs a sequence of str",
        ),
        ("create_plan", {**PLANNED, "device_ids": ["a", 5]}, r"device_ids\[1\] is a int"),
        (
            "create_plan",
            {**PLANNED, "timeout_seconds": "1"},
            "timeout_seconds is '1', needs a n",
        ),
        ("profile_graph", {**GRAPH, "symbol_values": [8]}, r"symbol_values is \[8\], needs a dict"),
        (
            "profile_graph",
            {**GRAPH, "symbol_values": {8: 8}},
            "a name in symbol_values is a int, needs str",
        ),
        (
            "profile_graph",
            {**GRAPH, "symbol_values": {"x": 2**63}},
            r"symbol_values\['x'\] is 92233.*64 bits",
        ),
        (
            "pipeline",
            {**DEPLOYMENT, "outputs": "logits"},
            r"outputs is the text .*: write \['logits'\]",
        ),
        (
            "pipeline",
            {**DEPLOYMENT, "deadline_seconds": float("nan")},
            "deadline_seconds is nan, needs",
        ),
        (
            "pipeline",
            {**DEPLOYMENT, "deadline_seconds": 10**400},
            "deadline_seconds is 1000.*, needs a n",
        ),
        ("attach_weights", {**GRAPH, "files": 5}, "files is 5, needs a path"),
        ("attach_weights", {**GRAPH, "files": ["a", None]}, "files is None, needs a path"),
        ("download_checkpoint", {"name": "run", "directory": ["a"]}, r"directory is \['a'\], needs a path"),
    ],
)
def test_another_type_is_refused(client: PlannerClient, method: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{words}"):
        getattr(client, method)(**arguments)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("get_graph", GRAPH),
        ("deploy", {**PLAN, "num_threads": np.int64(2), "recovery": RecoveryPolicy.REPLAN}),
        ("deploy", {**PLAN, "num_threads": None, "request_id": None}),
        ("profile_graph", {**GRAPH, "symbol_values": {"batch": np.int32(8)}, "device_ids": iter(["a"])}),
        ("profile_graph", {**GRAPH, "device_ids": {"a", "b"}, "device_kinds": ("cpu",)}),
        ("pipeline", {**DEPLOYMENT, "deadline_seconds": 5}),
    ],
)
def test_what_fits_is_asked_of_the_server(client: PlannerClient, method: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        getattr(client, method)(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"timeout_seconds": 0}, "timeout_seconds is 0, needs seconds from 0.001 to 31536000"),
        ({"timeout_seconds": 1e30}, "needs seconds from"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds is nan, needs a number"),
        ({"timeout_seconds": "30"}, "timeout_seconds is '30', needs a number"),
        ({"restart_seconds": -1}, "restart_seconds is -1, needs seconds from 0 to"),
    ],
)
def test_times_that_a_client_cannot_keep_to_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        PlannerClient("127.0.0.1:1", **arguments)


def test_arguments_are_taken_by_position_too_and_defaults_are_not_looked_at() -> None:
    @checks_arguments
    class Calls:
        def ask(self, name: str, count: int = -1) -> tuple[str, int]:
            """Asks."""
            return name, count

        def _within(self, name: str) -> str:
            return name

    assert Calls().ask("a") == ("a", -1)
    with pytest.raises(InvalidArgument, match="count is 'b', needs int"):
        Calls().ask("a", "b")  # type: ignore[arg-type]
    assert Calls()._within(5) == 5  # type: ignore[arg-type, comparison-overlap]
    assert Calls.ask.__doc__ == "Asks."
