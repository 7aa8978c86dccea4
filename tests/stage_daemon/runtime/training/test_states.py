"""What of a checkpoint a device takes."""

from __future__ import annotations

import torch

from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.states import DeviceStates, TensorKey


class TwoNames:
    """A stage's program that knows one tensor by two names."""

    written_names = frozenset[str]()

    def __init__(self) -> None:
        self.table = torch.zeros(2, 3)

    def states(self) -> dict[str, torch.Tensor]:
        return {"table": self.table, "head": self.table}


def test_a_tied_state_is_read_once_by_a_device_that_holds_both_names() -> None:
    stage = Stage(
        index=0,
        device_id="",
        run=lambda: (),
        input_ids=(),
        output_ids=(),
        module=TwoNames(),  # type: ignore[arg-type]
    )
    saved = {TensorKey(name): torch.ones(2, 3, device="meta") for name in ("other", "head", "table")}
    device = DeviceStates({0: stage})
    assert device.names == ("table", "head")
    assert device.check(saved, None) == [TensorKey("head")]
    assert [name for name, _ in device.read()] == ["table"]
