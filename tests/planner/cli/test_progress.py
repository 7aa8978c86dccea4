"""What is said while something goes on: events in words, bars on stderr, nothing on stdout."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from planner.cli import progress
from planner.cli.progress import event_text
from planner.client.records import DeploymentEvent, DeploymentState, Failure, ProfileProgress, UploadProgress


def event(**changes: Any) -> DeploymentEvent:
    usual: dict[str, Any] = {
        "sequence": 1,
        "occurred_at": datetime(2026, 1, 2, tzinfo=UTC),
        "state": DeploymentState.LOADING,
        "message": "",
        "stage": None,
        "device_id": "",
        "loaded_bytes": 0,
        "total_bytes": 0,
        "failure": None,
    }
    return DeploymentEvent(**{**usual, **changes})


FAILURE = Failure(reason="R", message="out of memory", stage=0, device_id="a")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "loading"),
        ({"message": "loading"}, "loading"),
        ({"message": "two daemons"}, "loading: two daemons"),
        ({"stage": 0, "device_id": "a"}, "loading stage 0 on a"),
        ({"stage": 1, "device_id": "a", "loaded_bytes": 5, "total_bytes": 9}, "loading stage 1 on a 5/9 bytes"),
        (
            {"state": DeploymentState.FAILED, "stage": 0, "device_id": "a", "failure": FAILURE},
            "failed stage 0 on a: out of memory",
        ),
        ({"state": DeploymentState.FAILED, "message": "said", "failure": FAILURE}, "failed: said"),
    ],
)
def test_an_event_in_words(changes: dict[str, Any], text: str) -> None:
    assert event_text(event(**changes)) == text


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars as a file gets them, whatever terminal this is."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")


def test_a_bar_for_each_file(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.upload_bars() as show:
        for num_bytes in (0, 512, 1024):
            show(UploadProgress(name="[b]weights", sent_bytes=num_bytes, total_bytes=1024))
        show(UploadProgress(name="graph", sent_bytes=100, total_bytes=400))
    out, err = capsys.readouterr()
    assert out == ""
    weights, graph = (next(line for line in err.splitlines() if name in line) for name in ("[b]weights", "graph"))
    assert "1.0/1.0 kB" in weights
    assert "100/400 bytes" in graph
    assert err.count("[b]weights") == 1


def test_a_bar_for_each_stage_and_a_line_for_each_other_event(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.rollout_bars() as show:
        show(event(message="[b]begun"))
        for stage, loaded in ((0, 100), (1, 50), (0, 200)):
            show(event(stage=stage, device_id=f"d{stage}", loaded_bytes=loaded, total_bytes=200))
        show(event(stage=1, device_id="d1", message="it waits"))
    out, err = capsys.readouterr()
    assert out == ""
    assert "loading: [b]begun" in err
    assert "loading stage 1 on d1: it waits" in err
    bars = {line.split(" ━")[0].strip(): line for line in err.splitlines() if "━" in line}
    assert set(bars) == {"stage 0 on d0", "stage 1 on d1"}
    assert "200/200 bytes" in bars["stage 0 on d0"]
    assert "50/200 bytes" in bars["stage 1 on d1"]


def test_a_bar_for_each_device_that_profiles(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.profile_bars() as show:
        for device, done in (("a", 1), ("a", 3), ("b", 2)):
            show(ProfileProgress(device_id=device, device_kind="cpu", num_done=done, num_distinct=4))
    err = capsys.readouterr().err
    assert [("3/4" in line, "2/4" in line) for line in err.splitlines() if "━" in line] == [
        (True, False),
        (False, True),
    ]


def test_a_bar_of_batches(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.batch_bar(3) as advance:
        advance()
        advance()
    assert "2/3" in capsys.readouterr().err


def test_a_spinner_is_for_terminals(wide: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.spinner("planning"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_spinner_turns_where_it_can_be_seen(
    wide: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.spinner("planning [b]chain"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "planning [b]chain" in err
