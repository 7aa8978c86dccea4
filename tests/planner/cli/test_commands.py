"""Commands against a real server: documents with stable keys, tables, exit statuses, messages on stderr."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli import exit_codes
from planner.cli.inventory_file import parse_inventory
from tests.models.architectures import find_architecture
from tests.planner.cli.conftest import RunCli

pytestmark = pytest.mark.services


@pytest.mark.slow
def test_a_checkpoint_of_hugging_face_can_be_deployed(cli: RunCli, tmp_path: Path, chain: Path) -> None:
    module: Any = find_architecture("causal/llama").module()
    module.save_pretrained(tmp_path / "checkpoint")

    graph = cli("submit", f"hf:{tmp_path / 'checkpoint'}", "-o", "json").document()

    assert (graph["name"], graph["deployable"]) == ("checkpoint", True)
    assert graph["state_bytes"] >= sum(parameter.nbytes for parameter in module.parameters())
    refused = cli("export", f"hf:{tmp_path / 'checkpoint'}", tmp_path / "folder")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "holds its weights; submit it" in refused.stderr

    cache = ("--cache-length", "32", "--batch-size", "2", "--beams", "--padding")
    cached = cli("submit", f"hf:{tmp_path / 'checkpoint'}", *cache, "-o", "json").document()
    heads, size = module.config.num_key_value_heads, module.config.head_dim
    of_cache = module.config.num_hidden_layers * 2 * (2 * heads * 32 * size) * 4
    assert cached["state_bytes"] - graph["state_bytes"] == of_cache
    refused = cli("submit", f"hf:{tmp_path / 'checkpoint'}", "--padding")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "--slots, --beams and --padding are of a cache: give its --cache-length" in refused.stderr
    refused = cli("submit", chain, *cache)
    assert refused.status == exit_codes.INVALID_INPUT
    assert "--cache-length is of hf:FOLDER" in refused.stderr


def test_from_a_folder_to_a_plan(cli: RunCli, chain: Path, two_devices: Path) -> None:
    graph = cli("submit", chain, "--name", "four", "-o", "json").document()
    assert graph["name"] == "four"
    assert graph["deployable"] is True
    assert graph in cli("graph", "list", "-o", "json").document()
    assert cli("graph", "get", graph["id"][:10], "-o", "json").document() == graph

    plan = cli(
        "plan", "create", "--graph", "four", "--cut", "layers.1", "--inventory", two_devices, "-o", "json"
    ).document()
    assert [stage["device_ids"] for stage in plan["stages"]] in ([["a"], ["b"]], [["b"], ["a"]])
    assert [stage["num_nodes"] for stage in plan["stages"]] == [2, 2]
    assert plan["options"]["mode"] == {"name": "cut", "module_paths": ["layers.1"]}
    assert all(stage["memory"]["peak_bytes"] > 0 for stage in plan["stages"])
    assert cli("plan", "get", plan["id"], "-o", "json").document() == plan
    assert yaml.safe_load(cli("plan", "get", plan["id"], "-o", "yaml").stdout) == plan

    table = cli("plan", "get", plan["id"])
    for text in (plan["id"], "chain", "layers.0 → layers.1", "cut, 2 stages", "bottleneck", "1 MiB", "░"):
        assert text in table.stdout
    explained = cli("plan", "explain", plan["id"])
    assert "layers.1" in explained.stdout
    assert cli("plan", "explain", plan["id"], "-o", "json").document()["lines"] == explained.stdout.rstrip().split("\n")

    listed = cli("plan", "list", "--graph", "four", "--mode", "cut", "-o", "json").document()
    assert [entry["id"] for entry in listed] == [plan["id"]]
    assert cli("plan", "delete", plan["id"], "-o", "json").document() == {"id": plan["id"], "deleted": True}
    assert cli("plan", "get", plan["id"]).status == exit_codes.NOT_FOUND


@pytest.mark.parametrize(
    ("arguments", "mode", "num_stages"),
    [
        (("--mode", "balanced", "--stages", "2"), "balanced", 2),
        (("--mode", "size_based"), "size_based", None),
        (("--routing", "relay", "--in-flight", "3"), "optimal", None),
    ],
)
def test_modes(
    cli: RunCli, chain: Path, two_devices: Path, arguments: tuple[str, ...], mode: str, num_stages: int | None
) -> None:
    graph = cli("submit", chain, "-o", "json").document()
    plan = cli("plan", "create", graph["id"], "--inventory", two_devices, *arguments, "-o", "json").document()
    assert plan["options"]["mode"]["name"] == mode
    assert num_stages is None or len(plan["stages"]) == num_stages
    if "relay" in arguments:
        assert (plan["options"]["routing"], plan["options"]["microbatches_in_flight"]) == ("relay", 3)


def test_inventories(cli: RunCli, chain: Path, tmp_path: Path) -> None:
    written = tmp_path / "inventory.json"
    written.write_text(
        '{"devices": [{"id": "a", "kind": "h200", "host": "n1", "memory": "1.5GiB"}, {"id": "b", "memory_bytes": 9}],'
        ' "links": [{"source": "a", "target": "b", "bytes_per_second": 1e9, "bidirectional": true}]}'
    )
    record = cli("inventory", "create", written, "--name", "lab", "-o", "json").document()
    assert [device["memory_bytes"] for device in record["inventory"]["devices"]] == [1536 << 20, 9]
    assert {(link["source"], link["target"]) for link in record["inventory"]["links"]} == {("a", "b"), ("b", "a")}
    assert "lab" in cli("inventory", "list").stdout
    # What it prints is what it reads.
    as_file = cli("inventory", "get", record["id"], "--as-file")
    assert parse_inventory(yaml.safe_load(as_file.stdout)) == parse_inventory(yaml.safe_load(written.read_text()))

    graph = cli("submit", chain, "-o", "json").document()
    plan = cli("plan", "create", "--graph", graph["id"], "--inventory", record["id"], "-o", "json").document()
    assert plan["inventory"] == record["inventory"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: [{id: a, memory: lots}]", "'lots' is no size"),
        ("devices: [{id: a}]", "has no memory"),
        ("devices: [{id: a, memory: 1GiB, speed: 3}]", "unknown key 'speed'"),
        ("devices: [{id: a, memory: 1GiB}, {id: a, memory: 1GiB}]", "share an id"),
        ("devices: [{id: a, memory: 1GiB}]\nlinks: [{source: a, target: x}]", "no device is called 'x'"),
        ("- a", "needs a mapping"),
        ("devices: 3", "needs a list"),
        ("devices: [", "is no YAML: expected the node content"),
    ],
)
def test_an_inventory_that_cannot_be_is_refused(cli: RunCli, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    finished = cli("inventory", "create", path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == ""


def test_exit_statuses(cli: RunCli, chain: Path, two_devices: Path, tmp_path: Path) -> None:
    graph = cli("submit", chain, "-o", "json").document()["id"]
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text("devices: [{id: a, memory: 16B}]")
    create = ("plan", "create", "--graph", graph)
    for status, arguments in (
        (exit_codes.USAGE, ("plan", "create")),
        (exit_codes.USAGE, ("nonsense",)),
        (exit_codes.USAGE, ("device", "list", "-o", "xml")),
        (exit_codes.NOT_FOUND, ("plan", "get", "plan-000000000000")),
        (exit_codes.NOT_FOUND, ("graph", "get", "no such name")),
        (exit_codes.NOT_FOUND, ("deploy", "plan-000000000000")),
        (exit_codes.NOT_FOUND, ("stop", "dep-000000000000")),
        (exit_codes.NOT_FOUND, ("deployment", "watch", "dep-000000000000")),
        (exit_codes.INVALID_INPUT, ("submit", "no_such_module:build")),
        (exit_codes.INVALID_INPUT, ("submit", "neither")),
        (exit_codes.INVALID_INPUT, (*create, "--cut", "layers.77", "--inventory", two_devices)),
        (exit_codes.INVALID_INPUT, (*create, "--mode", "balanced", "--cut", "layers.1")),
        (exit_codes.INVALID_INPUT, (*create, "--symbol", "batch")),
        (exit_codes.INFEASIBLE, (*create, "--inventory", tiny)),
    ):
        finished = cli(*arguments)
        assert finished.status == status, (arguments, finished)
        assert finished.stderr.strip()
        assert finished.stdout == ""
        assert "Traceback" not in finished.stderr


def test_an_empty_server_lists_nothing(cli: RunCli) -> None:
    assert cli("device", "list", "-o", "json").document() == []
    assert cli("deployment", "list", "--active", "-o", "json").document() == []
    assert yaml.safe_load(cli("inventory", "list", "-o", "yaml").stdout) is not None


def test_help_names_the_exit_codes_and_completion_prints_a_script(bare_cli: RunCli) -> None:
    help_text = bare_cli("--help")
    assert help_text.status == 0
    # Colours, which some CI services ask for, are left out.
    text = re.sub(r"\x1b\[[0-9;]*m", "", help_text.stdout)
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code}: {meaning[:30]}" in text
    for shell in ("bash", "zsh", "fish"):
        assert "planner-cli" in bare_cli("completion", shell).stdout
