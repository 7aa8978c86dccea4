"""Logs go to standard error, one line per event, from a level on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from stage_daemon.control.logs import configure_logs


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning", "json")
    log = structlog.get_logger("any")
    log.info("left out")
    log.warning("kept", device_id="node0/cpu")
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    entry = json.loads(line)
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {"event": "kept", "level": "warning", "device_id": "node0/cpu"}


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("debug", "console")
    structlog.get_logger("any").debug("began", stage=2)
    [line] = capsys.readouterr().err.splitlines()
    assert "began" in line
    assert "stage=2" in line
    assert "\x1b" not in line
