"""flex_attention comes back bitwise as torch runs it where nothing compiles it, and is trained as its scores say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from planner.client.export import export
from planner.client.export.passes.written_out_attention import flex_attention_anywhere
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program
from tests.models.trains import trains_as
from tests.nightly import nightly

# Of torch itself, which says that it compiles nothing.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Attention(nn.Module):
    """Four heads, two of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key_value = nn.Linear(8, 16), nn.Linear(8, 16)
        self.slopes, self.bias = nn.Buffer(torch.rand(4)), nn.Parameter(torch.randn(4))
        self.by_distance = nn.Buffer(torch.randn(16))

    def attend(self, x: torch.Tensor, **arguments: Any) -> Any:
        query = self.query(x).unflatten(-1, (4, 4)).transpose(1, 2)
        key, value = self.key_value(x).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, dim=1)
        return flex_attention(query, key, value, enable_gqa=True, **arguments)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attend(x).transpose(1, 2).flatten(2)


class WithSlopes(Attention):
    """A causal mask, which rows of the first two tokens are left without, and sums of exponentials beside."""

    def forward(self, x: torch.Tensor) -> Any:
        length = x.shape[1]
        mask = create_block_mask(lambda _, __, q, k: (q >= k) & (q > 1), None, None, length, length, device="cpu")
        return self.attend(
            x,
            score_mod=lambda score, _, head, q, k: score + self.slopes[head] * (k - q),
            block_mask=mask,
            return_lse=True,
        )


class WithTable(Attention):
    def forward(self, x: torch.Tensor) -> Any:
        return self.attend(x, score_mod=lambda score, _, __, q, k: score + self.by_distance[(q - k).abs()], scale=0.3)


class WithDocuments(Attention):
    """What belongs to one document, by the batch."""

    def forward(self, x: torch.Tensor) -> Any:
        documents = (x.sum(-1) > 0).long()
        batch, length = documents.shape
        mask = create_block_mask(
            lambda b, _, q, k: documents[b, q] == documents[b, k], batch, None, length, length, device="cpu"
        )
        return self.attend(x, block_mask=mask)


class WithWindow(Attention):
    """A mask that is built once."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = create_block_mask(lambda _, __, q, k: (q - k).abs() < 3, None, None, 6, 6, device="cpu")

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            return self.attend(x, block_mask=self.mask)


class UnderAutocast(Attention):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            heads = self.attend(x, score_mod=lambda score, _, head, q, k: 5 * torch.tanh(score / 5) + self.bias[head])
            return self.query(heads.transpose(1, 2).flatten(2)[..., :8])


LENGTHS = ({0: Dim("batch", min=2), 1: Dim("length", min=2, max=16)},)


BATCHES = ({0: Dim("batch", min=2)},)


# Whether it is trained; the other way round nightly.
CASES = [
    (Attention, LENGTHS, False),
    (WithSlopes, LENGTHS, True),
    (WithTable, LENGTHS, True),
    (WithDocuments, BATCHES, False),
    (WithWindow, None, True),
    (UnderAutocast, LENGTHS, False),
]


@pytest.mark.parametrize(
    ("attention", "dynamic", "training"),
    [*CASES, *nightly((attention, dynamic, not training) for attention, dynamic, training in CASES)],
)
def test_comes_back_bitwise(attention: type[Attention], dynamic: Any, training: bool, tmp_path: Path) -> None:
    module = attention().train(training)
    batches = [Batch(args=(torch.randn(rows, length, 8),)) for rows, length in ((2, 6), (3, 9))]
    sizes = len((dynamic or ({},))[0])
    if sizes < 2:
        batches[1] = Batch(args=(torch.randn(2 + sizes, 6, 8),))
    # What torch compiled for these sizes is not what an export with others is held to.
    expected = [run_module(module, batch) for batch in batches]

    exported = export(module, batches[0].args, dynamic_shapes=dynamic)
    program = reload(exported, tmp_path)

    for batch, result in zip(batches, expected, strict=True):
        assert_bitwise_equal(run_program(exported, program, batch), result)


def test_a_strict_export_comes_back_too(tmp_path: Path) -> None:
    batch = Batch(args=(torch.randn(2, 6, 8),))
    module = WithSlopes().eval()

    exported = export(module, batch.args, strict=True)

    assert_bitwise_equal(run_program(exported, reload(exported, tmp_path), batch), run_module(module, batch))


@pytest.mark.parametrize("attention", [WithTable, WithDocuments])
def test_is_trained_in_stages_as_torch_trains_it(attention: type[Attention]) -> None:
    """Which torch itself does on a GPU alone, for want of a compiled kernel; its formulas run here as well."""
    with flex_attention_anywhere():
        assert trains_as(attention(), {"x": torch.randn(4, 6, 8)}) == "eager"
