"""Settings from the environment and the command line."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from stage_daemon.__main__ import main, read_settings
from stage_daemon.settings import Settings, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("500MB", 500_000_000), ("1073741824", 1 << 30), ("64k", 64_000)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "lots", "2 apples", "-1GiB", "0"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Settings(device="cpu", memory=text)


def test_the_command_line_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_DAEMON_PLANNER", "planner:1")
    monkeypatch.setenv("STAGE_DAEMON_DEVICE_ID", "from/environment")
    settings = read_settings(["--device", "cpu", "--device-id", "from/arguments", "--memory", "2GiB"])
    assert (settings.planner, settings.device_id, settings.memory) == ("planner:1", "from/arguments", 2 << 30)
    assert settings.gpu_index is None


def test_a_daemon_has_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_settings(["--gpu", "3"]).gpu_index == 3
    assert read_settings(["--device", "gpu"]).gpu_index == 0
    for arguments in ([], ["--gpu", "1", "--device", "cpu"], ["--gpu", "-1"]):
        assert main(arguments) == 2
    assert "stage-daemon: no device is named; give --gpu N, or --device cpu" in capsys.readouterr().err
