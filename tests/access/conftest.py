"""One authority per test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.access.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.of(tmp_path / "authority")
