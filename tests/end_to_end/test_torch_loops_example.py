"""The example of loops written for torch: over daemons they have the losses of one process."""

from __future__ import annotations

import pytest

from examples import torch_loops
from planner.client.local_cluster import LocalCluster
from tests.nightly import nightly

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.mark.parametrize("options", [["--hugging-face"], *nightly([[]])])
def test_losses_are_those_of_one_process(
    options: list[str], cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.tiny_gpt.LAYERS", 1)
    losses, expected = torch_loops.main(["--server", cluster.planner_address, "--steps", "3", *options])
    assert len(losses) == 3
    # Hugging Face rounds what it logs.
    assert losses == pytest.approx(expected, abs=2e-4)
