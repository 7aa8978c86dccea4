"""What a planner-server can be told, in the environment and in arguments, and where things are if nothing is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from planner.__main__ import OPTIONS, main
from planner.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("PLANNER_"):
            monkeypatch.delenv(name)


def test_what_has_no_url_of_its_own_is_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(data_dir=Path("da ta"))
    folder = tmp_path / "da ta"
    assert settings.database == f"sqlite+aiosqlite:///{folder / 'planner.db'}"
    assert settings.blobs == (folder / "blobs").as_uri()
    assert settings.staging_dir == folder / "uploads"


def test_what_has_a_url_is_there() -> None:
    settings = Settings(database_url="postgresql://host/name", blob_url="s3://bucket/blobs")
    assert (settings.database, settings.blobs) == ("postgresql://host/name", "s3://bucket/blobs")


def test_the_environment_counts_and_the_command_line_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_PLAN_WORKERS", "7")
    monkeypatch.setenv("PLANNER_LISTEN", "0.0.0.0:1")
    monkeypatch.setenv("PLANNER_SOMETHING_ELSE", "x")
    settings = Settings(listen="127.0.0.1:2")
    assert (settings.plan_workers, settings.listen) == (7, "127.0.0.1:2")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().plan_workers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "least", "too_little"),
    [
        ("lease_seconds", 0.001, 0),
        ("plan_workers", 1, 0),
        ("plan_timeout_seconds", 0.001, 0),
        ("max_pending_plans", 1, 0),
        ("max_pending_plans_per_caller", 1, 0),
        ("max_deployments_per_caller", 1, 0),
        ("max_uploads_per_caller", 1, 0),
        ("max_uploaded_bytes_per_caller", 1, 0),
        ("max_blob_bytes", 1, 0),
        ("max_graph_bytes", 1, 0),
        ("max_graph_nodes", 1, 0),
        ("max_message_bytes", 1, 0),
        ("check_timeout_seconds", 0.001, 0),
        ("stop_grace_seconds", 0, -1),
    ],
)
def test_the_least_that_makes_sense(name: str, least: float, too_little: float) -> None:
    assert getattr(Settings(**{name: least}), name) == least
    with pytest.raises(ValidationError, match=name):
        Settings(**{name: too_little})


def test_the_most_workers() -> None:
    assert Settings(plan_workers=64).plan_workers == 64
    with pytest.raises(ValidationError, match="plan_workers"):
        Settings(plan_workers=65)


def test_the_defaults_that_the_command_line_tells_are_those_of_the_settings() -> None:
    settings = Settings()
    for option, text in OPTIONS.items():
        default = str(getattr(settings, option.replace("-", "_"))).removesuffix(".0")
        if default not in ("", "None"):
            assert f"(default {default})" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plan-workers", "many"], "--plan-workers"),
        (["--lease-seconds", "0"], "--lease-seconds"),
        (["--log-format", "xml"], "--log-format"),
    ],
)
def test_settings_that_cannot_be_end_with_two_and_say_which(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"planner-server: {told}: ")


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--plan-worker", "3"], ["stray"]])
def test_arguments_that_are_not_known_end_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_help_names_every_option_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{option}" in text for option in OPTIONS)
    assert "PLANNER_LISTEN" in text


def test_rates_of_other_graphs_are_not_taken_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().rates_from == "own"
    monkeypatch.setenv("PLANNER_RATES_FROM", "newest")
    assert Settings().rates_from == "newest"


def test_an_unknown_source_of_rates_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rates-from", "hearsay"]) == 2
    assert "planner-server: --rates-from: Input should be 'own' or 'newest'" in capsys.readouterr().err


def test_every_option_of_the_command_line_is_a_setting() -> None:
    assert {name.replace("-", "_") for name in OPTIONS} <= set(Settings.model_fields)
