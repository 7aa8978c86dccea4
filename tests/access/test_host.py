"""Which host a process is on, and which clock it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from access import host

IDENTITIES = {"_NETWORK": host.host_identity, "_TIME": host.clock_identity}


@pytest.mark.parametrize("namespace", IDENTITIES)
def test_one_host_is_one_host(namespace: str) -> None:
    assert IDENTITIES[namespace]() == IDENTITIES[namespace]() != ""


@pytest.mark.parametrize("namespace", IDENTITIES)
@pytest.mark.parametrize("fact", ["_BOOT_ID", "its namespace"])
def test_another_boot_or_another_namespace_is_another_host(
    namespace: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, changed = IDENTITIES[namespace], "_BOOT_ID" if fact == "_BOOT_ID" else namespace
    ours = identity()
    (tmp_path / "theirs").write_text("another")
    monkeypatch.setattr(host, changed, tmp_path / "theirs")
    assert identity() not in (ours, "")
    monkeypatch.setattr(host, changed, tmp_path / "nowhere")
    assert identity() == ""
