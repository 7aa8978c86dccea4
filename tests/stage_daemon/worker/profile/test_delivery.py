"""What a client's microbatch costs is measured on whatever a client may send."""

from __future__ import annotations

import pytest
import torch

from stage_daemon.worker.profile.delivery import seconds_of_inputs, seconds_of_outputs


@pytest.mark.parametrize(("num_tensors", "elements"), [(1, 4), (1, 1 << 20), (4000, 16)])
def test_large_payloads_and_long_messages_are_delivered(num_tensors: int, elements: int) -> None:
    items = [torch.rand(elements) for _ in range(num_tensors)]
    for seconds_of in (seconds_of_inputs, seconds_of_outputs):
        assert seconds_of(items, torch.device("cpu"), 1) > 0
