"""Variables that were meant for a setting."""

from __future__ import annotations

import pytest

from access.misspelt import misspelt

SETTINGS = ("listen", "lease_seconds", "database_url")
# As Kubernetes names them in each pod, for a service called `planner`.
OF_A_SERVICE = ("PLANNER_SERVICE_HOST", "PLANNER_SERVICE_PORT", "PLANNER_PORT", "PLANNER_PORT_50051_TCP_ADDR")


def test_what_is_nearly_a_setting_is_told_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_A_SERVICE, "PLANNER_LISTEN", "planner_database_url", "PLANNER_TOKEN_FILE", "OTHER_LEASE_SECOND"):
        monkeypatch.setenv(name, "1")
    assert misspelt("PLANNER_", SETTINGS) == {}
    monkeypatch.setenv("PLANNER_LEESE_SECONDS", "1")
    monkeypatch.setenv("PLANNER_DATABASEURL", "1")
    assert misspelt("PLANNER_", SETTINGS) == {
        "PLANNER_DATABASEURL": "PLANNER_DATABASE_URL",
        "PLANNER_LEESE_SECONDS": "PLANNER_LEASE_SECONDS",
    }
