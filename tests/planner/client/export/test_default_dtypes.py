"""Another default dtype than torch's own, as numerical codes set it, is not left to daemons, which have torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.errors import UnsupportedModule
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program


@pytest.fixture(params=[torch.float64, torch.bfloat16])
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


class Masked(nn.Module):
    """As a decoder that makes its mask, and its places, where it needs them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.layer(x)
        mask = torch.full((len(x), len(x)), float("-inf")).triu_(1)
        places = torch.arange(0.0, 4.0, 0.5)
        counts = torch.full((2,), 3)
        return (hidden @ hidden.mT + mask).softmax(-1) @ hidden * places, torch.ones(2, dtype=torch.float32), counts


@pytest.mark.usefixtures("default")
def test_what_takes_the_default_dtype_keeps_it(tmp_path: Path) -> None:
    module, batch = Masked().eval(), Batch(args=(torch.randn(4, 8),))
    exported = export(module, batch.args)
    expected = run_module(module, batch)
    assert expected[0].dtype is torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert_bitwise_equal(run_program(exported, reload(exported, tmp_path), batch), expected)


@pytest.mark.usefixtures("default")
def test_what_cannot_be_given_a_dtype_is_refused() -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x // 2) / 2

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Half()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x) * 2.0

    with pytest.raises(UnsupportedModule, match=r"aten\.div\.Tensor in 'part' gives .* by torch's default dtype"):
        export(Around().eval(), (torch.arange(3),))
    assert export(Around().eval(), (torch.arange(3.0),)).graph.nodes
