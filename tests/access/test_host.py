"""Which host a process is on."""

from __future__ import annotations

from pathlib import Path

import pytest

from access import host


def test_one_host_is_one_host() -> None:
    assert host.host_identity() == host.host_identity() != ""


@pytest.mark.parametrize("fact", ["_BOOT_ID", "_NETWORK"])
def test_another_boot_or_another_network_is_another_host(
    fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = host.host_identity()
    (tmp_path / "theirs").write_text("another")
    monkeypatch.setattr(host, fact, tmp_path / "theirs")
    assert host.host_identity() not in (ours, "")
    monkeypatch.setattr(host, fact, tmp_path / "nowhere")
    assert host.host_identity() == ""
