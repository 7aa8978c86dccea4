"""What planner-server reads from its environment and its command line."""

from __future__ import annotations

import pytest

from planner.__main__ import OPTIONS, main
from planner.settings import Settings


def test_rates_of_other_graphs_are_not_taken_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANNER_RATES_FROM", raising=False)
    assert Settings().rates_from == "own"
    monkeypatch.setenv("PLANNER_RATES_FROM", "newest")
    assert Settings().rates_from == "newest"


def test_unknown_source_of_rates_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rates-from", "hearsay"]) == 2
    assert "planner-server: rates_from: Input should be 'own' or 'newest'" in capsys.readouterr().err


def test_every_option_of_the_command_line_is_a_setting() -> None:
    assert {name.replace("-", "_") for name in OPTIONS} <= set(Settings.model_fields)
