from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.stage_daemon.runtime.modules import ThreeStages
from tests.stage_daemon.runtime.workers import Preparation


@pytest.fixture
def preparation(tmp_path: Path) -> Iterator[Preparation]:
    preparation = Preparation(tmp_path)
    yield preparation
    preparation.close()


@pytest.fixture
def module() -> ThreeStages:
    torch.manual_seed(0)
    return ThreeStages().eval()
