"""Which server the command line talks to, and what it says of its settings."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from planner.cli import exit_codes
from planner.client.config import (
    DEFAULT_SERVER,
)
from planner.settings import Settings
from tests.planner.cli.conftest import RunCli


@pytest.mark.services
def test_the_environment_and_the_option_name_a_server(
    cli: RunCli, tmp_path: Path, server_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text("server: 127.0.0.1:1\n")
    monkeypatch.setenv("PLANNER_RESTART_SECONDS", "0")
    refused = cli("device", "list")
    assert refused.status == exit_codes.UNAVAILABLE
    assert "127.0.0.1:1" in refused.stderr
    assert cli("device", "list", "--server", server_address).status == 0
    monkeypatch.setenv("PLANNER_SERVER", server_address)
    assert cli("device", "list").status == 0


def test_every_setting_of_the_environment_is_listed(bare_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_PLAN_WORKERS", "7")
    monkeypatch.setenv("PLANNER_DATABASE_URL", "postgresql://me:hidden@host/planner")

    listed = {setting["name"]: setting for setting in bare_cli("config", "-o", "json").document()}

    assert listed.keys() >= {f"PLANNER_{field.upper()}" for field in Settings.model_fields}
    assert listed.keys() >= {"PLANNER_SERVER", "PLANNER_CONFIG", "PLANNER_DEBUG"}
    workers = listed["PLANNER_PLAN_WORKERS"]
    assert (workers["value"], workers["default"], workers["is_given"]) == ("7", "2", True)
    assert listed["PLANNER_LISTEN"]["is_given"] is False
    assert listed["PLANNER_SERVER"]["value"] == DEFAULT_SERVER
    assert listed["PLANNER_DATABASE_URL"]["value"] == "postgresql://me:***@host/planner"
    assert all(setting["meaning"] for setting in listed.values())
    table = bare_cli("config").stdout
    assert "PLANNER_PLAN_WORKERS" in table
    assert "given" in table


def test_a_setting_that_is_none_is_named(bare_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_PLAN_WORKERS", "many")

    finished = bare_cli("config")

    assert finished.status == exit_codes.INVALID_INPUT
    assert "PLANNER_PLAN_WORKERS: Input should be a valid integer" in finished.stderr


def test_the_version_is_that_of_the_package(bare_cli: RunCli) -> None:
    finished = bare_cli("--version")

    assert finished.status == exit_codes.OK
    assert finished.stdout.split() == ["planner-cli", importlib.metadata.version("partition-planner")]
