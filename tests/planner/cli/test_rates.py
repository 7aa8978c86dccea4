"""Where a plan's rates come from, as the command line asks for it and shows it; each test has its own device kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planner.cli import exit_codes
from planner.cli.plan_options import rates_source
from planner.errors import OptionsError
from planner.plan.options import RatesFrom
from tests.contract.graphs import chain_bytes, chain_weights
from tests.planner.cli.conftest import RunCli

NUM_LAYERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Graphs, times and plans over two devices of one kind."""

    cli: RunCli
    folder: Path
    kind: str

    def graph(self, name: str) -> str:
        folder = self.folder / f"{name}.ppgraph"
        folder.mkdir()
        (folder / "graph.pb").write_bytes(chain_bytes(NUM_LAYERS, name=f"{name} of {self.kind}"))
        (folder / "weights-00001.safetensors").write_bytes(chain_weights(NUM_LAYERS))
        return str(self.cli("submit", folder, "-o", "json").document()["id"])

    def times(self, seconds: float, kind: str = "") -> Path:
        path = self.folder / f"times-{seconds}.json"
        times = [{"nodes": list(range(NUM_LAYERS)), "seconds": seconds}]
        path.write_text(json.dumps({"device_kind": kind or self.kind, "times": times}))
        return path

    def profile(self, graph: str, seconds: float, kind: str = "") -> str:
        """Its id."""
        imported = self.cli("profile", "import", self.times(seconds, kind), "--graph", graph, "-o", "json").document()
        return str(imported[0]["id"])

    def inventory(self, kind: str = "") -> Path:
        path = self.folder / f"devices-{kind}.yaml"
        device_kind = kind or self.kind
        devices = (
            f"- {{id: {name}, kind: {device_kind}, memory: {size}}}\n" for name, size in (("a", "1MiB"), ("b", "2MiB"))
        )
        path.write_text("devices:\n" + "".join(devices))
        return path

    def plan(self, graph: str, *arguments: object) -> Any:
        asked = ("plan", "create", "--graph", graph, "--inventory", self.inventory(), "--stages", 2, *arguments)
        return self.cli(*asked, "-o", "json").document()

    def explained(self, plan: str) -> list[str]:
        return list(self.cli("plan", "explain", plan, "-o", "json").document()["lines"])


@pytest.fixture
def workshop(cli: RunCli, tmp_path: Path, request: pytest.FixtureRequest) -> Workshop:
    return Workshop(cli=cli, folder=tmp_path, kind=request.node.name)


def seconds_of(plan: Any) -> float:
    return float(sum(stage["compute_seconds"] for stage in plan["stages"]))


@pytest.mark.services
def test_rates_of_another_graph_are_asked_for_and_shown(workshop: Workshop) -> None:
    graph, other = workshop.graph("measured"), workshop.graph("other")
    profile = workshop.profile(graph, 0.25)
    silent, newest = workshop.plan(other), workshop.plan(other, "--rates-from", "newest")
    named = workshop.plan(other, "--rates-from", profile)
    assert silent["cost_sources"][0]["calibration_profile_ids"] == []
    assert named["cost_sources"] == newest["cost_sources"]
    assert newest["cost_sources"][0] == {
        "device_kind": workshop.kind,
        "num_measured": 0,
        "num_backward": 0,
        "num_nodes": NUM_LAYERS,
        "message_seconds": None,
        "norm_bytes_per_second": None,
        "optimizer_bytes_per_second": None,
        "rates": "calibrated",
        "scaled": False,
        "measured_profile_ids": [],
        "calibration_profile_ids": [profile],
    }
    assert (newest["options"]["rates_from"], named["options"]["rates_from_profiles"]) == ("newest", [profile])
    assert seconds_of(newest) == pytest.approx(0.25 * NUM_LAYERS, rel=1e-3)
    line = f"seconds of {workshop.kind}: calibrated ({profile})"
    assert line in workshop.explained(newest["id"])
    assert line in " ".join(workshop.cli("plan", "get", newest["id"]).stdout.split())
    document = workshop.cli("profile", "get", profile, "-o", "json").document()
    assert (document["record"]["id"], document["record"]["graph_id"]) == (profile, graph)
    assert document["times"]["seconds"] == [[node, 0.25] for node in range(NUM_LAYERS)]
    table = workshop.cli("profile", "get", profile).stdout
    assert profile in table
    assert f"{NUM_LAYERS} of {NUM_LAYERS}" in table


@pytest.mark.services
def test_a_plan_is_looked_into_with_the_profiles_that_it_was_made_with(workshop: Workshop) -> None:
    graph, other = workshop.graph("measured"), workshop.graph("other")
    workshop.profile(graph, 0.25)
    plan = workshop.plan(other, "--rates-from", "newest")
    before = workshop.explained(plan["id"])
    assert any("next best" in line for line in before)
    workshop.profile(workshop.graph("third"), 0.5)
    latest = workshop.profile(other, 0.75)
    assert workshop.explained(plan["id"]) == before
    again = workshop.cli("plan", "what-if", plan["id"], "-o", "json").document()
    assert again["plan"]["cost_sources"] == plan["cost_sources"]
    assert again["plan"]["stages"] == plan["stages"]
    own = workshop.cli("plan", "what-if", plan["id"], "--rates-from", "own", "-o", "json").document()["plan"]
    assert own["cost_sources"][0]["rates"] == "roofline"
    newest = workshop.cli("plan", "what-if", plan["id"], "--rates-from", "newest", "-o", "json").document()["plan"]
    assert newest["cost_sources"][0]["calibration_profile_ids"] == [latest]


@pytest.mark.services
def test_other_rates_and_other_kinds_are_those_of_today(workshop: Workshop) -> None:
    graph, other = workshop.graph("measured"), workshop.graph("other")
    first = workshop.profile(graph, 0.25)
    plan = workshop.plan(other, "--rates-from", first)
    second = workshop.profile(workshop.graph("third"), 0.5)

    def what_if(*arguments: object) -> Any:
        return workshop.cli("plan", "what-if", plan["id"], *arguments, "-o", "json").document()["plan"]

    renamed = what_if("--rates-from", second)
    assert renamed["cost_sources"][0]["calibration_profile_ids"] == [second]
    assert seconds_of(renamed) == pytest.approx(0.5 * NUM_LAYERS, rel=1e-3)
    kind = f"{workshop.kind}-2"
    measured = workshop.profile(other, 0.125, kind)
    moved = what_if("--inventory", workshop.inventory(kind))
    assert [source["measured_profile_ids"] for source in moved["cost_sources"]] == [[measured]]
    assert seconds_of(moved) == pytest.approx(0.125 * NUM_LAYERS)


@pytest.mark.services
def test_deleted_profile_is_told(workshop: Workshop) -> None:
    graph, other = workshop.graph("measured"), workshop.graph("other")
    profile = workshop.profile(graph, 0.25)
    plan = workshop.plan(other, "--rates-from", profile)
    lines = workshop.explained(plan["id"])
    simulated = workshop.cli("plan", "simulate", plan["id"], "-o", "json").document()
    workshop.cli("profile", "delete", profile)
    told = f"plan {plan['id']} was made with profile {profile}, which was deleted or replaced by newer times since"
    after = workshop.explained(plan["id"])
    assert after[-1] == f"other cuts were not weighed: {told}; make the plan again"
    assert after[:-1] == [line for line in lines if "next best" not in line and "no other place" not in line]
    finished = workshop.cli("plan", "what-if", plan["id"])
    assert finished.status == exit_codes.NOT_FOUND
    assert told in " ".join(finished.stderr.split())
    assert workshop.cli("plan", "simulate", plan["id"], "-o", "json").document() == simulated
    assert workshop.cli("plan", "diff", plan["id"], plan["id"], "-o", "json").document()["num_nodes_moved"] == 0
    refused = workshop.cli(
        "plan", "create", "--graph", other, "--inventory", workshop.inventory(), "--rates-from", profile
    )
    assert refused.status == exit_codes.NOT_FOUND
    assert f"no profile has the id '{profile}'" in " ".join(refused.stderr.split())


def test_rates_are_from_a_word_or_from_profiles() -> None:
    assert rates_source([]) == (None, ())
    assert rates_source(["own"]) == (RatesFrom.OWN, ())
    assert rates_source(["newest"]) == (RatesFrom.NEWEST, ())
    assert rates_source(["prof-1", "prof-2"]) == (None, ("prof-1", "prof-2"))
    with pytest.raises(OptionsError, match="--rates-from newest stands alone"):
        rates_source(["prof-1", "newest"])
