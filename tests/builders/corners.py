"""Small modules, each with one thing in it that is easily lost on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from tests.builders.case import Batch, Case


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: self.left(y).relu(), lambda y: self.right(y) - 1, (x,))


class NestedRegions(nn.Module):
    """Autocast with a region inside where it is off, and no_grad across."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.linear(x)
            with torch.autocast("cpu", enabled=False):
                high = self.linear(low.float())
            again = self.linear(high)
        with torch.no_grad():
            fixed = self.linear(x)
        return low, high, again, fixed, self.linear(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
        self.gru = nn.GRU(12, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        output, (hidden, cell) = self.lstm(x)
        last, state = self.gru(output)
        return {"output": last, "states": [hidden, cell, state], "none": None, "constant": 3}


class InPlace(nn.Module):
    """Writes through views, after and before they are read."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        window = y[:, 1:3]
        before = window.sum()
        window.add_(1)
        y[:, 0] = 5
        y.masked_fill_(y > 4, 0)
        return y, before, window


class Counter(nn.Module):
    """A buffer that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x * self.calls


class OddStates(nn.Module):
    """Expanded, permuted, empty, not finite, complex, tied under three names, and not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4).t())
        self.same = self.weight
        self.register_buffer("expanded", torch.randn(1, 3).expand(4, 3), persistent=False)
        self.register_buffer("odd", torch.tensor([float("nan"), float("inf"), -0.0]))
        self.register_buffer("turned", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.inner = nn.Module()
        self.inner.weight = self.weight

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = x @ self.weight + x @ self.inner.weight + x @ self.same
        rows = torch.cat([y, self.empty])
        return [rows + self.odd, torch.view_as_real(self.turned * y), x @ self.expanded, torch.where(self.flags, y, -y)]


class SizeArithmetic(nn.Module):
    """Integers made of sizes, as arguments of calls and as outputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        batch, length = x.shape
        half = (length + 1) // 2
        grid = torch.arange(2 * length * batch, dtype=torch.float32).reshape(batch, 2 * length)
        joined = torch.cat([x, y], dim=1)
        return grid, joined, torch.arange(half + 2), x.new_zeros(batch, joined.shape[1] % 3 + 2), half, x / length


class Containers(nn.Module):
    """Inputs in nested containers, one constant, and an output that is an input as it came."""

    def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, scale: float) -> dict[str, Any]:
        x, named = pair
        return {"sum": [x + named["a"], named["b"] * scale], "same": x, "twice": (x, x)}


class LowPrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU("tanh"), nn.Dropout(0.5)).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(x.bfloat16()).half()


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.convolution(x.to(memory_format=torch.channels_last)))


class Indexed(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, order = x.sort(dim=-1, descending=True)
        return x[rows, :2], x[:, None, ..., -1], values.topk(2).values, order.gather(1, rows[:, None]), x.unbind(1)[0]


class QuantisedWeights(nn.Module):
    """Weights of a byte, of half a byte packed for CPUs, and of eight floating bits, with their scales."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.register_buffer("eight", torch.randint(-128, 128, (32, 64), dtype=torch.int8, generator=random))
        self.register_buffer("eight_scales", torch.rand(32, generator=random).bfloat16())
        four = torch.randint(0, 16, (32, 32), dtype=torch.int32, generator=random)
        self.register_buffer("four", torch.ops.aten._convert_weight_to_int4pack_for_cpu(four, 1))
        self.register_buffer("four_scales", torch.rand(1, 32, 2, generator=random).bfloat16())
        self.register_buffer("floating", torch.randn(16, 32, generator=random).to(torch.float8_e4m3fn))
        self.register_buffer("floating_scales", torch.rand(16, 1, generator=random))
        self.register_buffer("one_scale", torch.rand((), generator=random))
        self.register_buffer("whole", torch.randint(-8, 8, (16, 16), dtype=torch.int8, generator=random))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self.eight, self.eight_scales)
        second = torch.ops.aten._weight_int4pack_mm_for_cpu(first, self.four, 32, self.four_scales)
        third = nn.functional.linear(second.float(), self.floating.float() * self.floating_scales)
        fourth = torch._scaled_mm(
            second.to(torch.float8_e4m3fn), self.floating.t(), self.one_scale, self.one_scale, out_dtype=torch.float32
        )
        rounded = third.clamp(-8, 7).to(torch.int8)
        return third, fourth, torch.ops.aten._int_mm(rounded, self.whole)


def _batch(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _case(module: nn.Module, *examples: tuple[Any, ...], shapes: Any = None, train: bool, **kwargs: Any) -> Case:
    return Case(
        module=module.train(train),
        args=examples[0],
        kwargs=kwargs,
        dynamic_shapes=shapes,
        other_batches=tuple(Batch(args=args, kwargs=kwargs) for args in examples[1:]),
    )


def _rows(name: str = "batch") -> dict[int, Any]:
    return {0: Dim(name, min=1, max=64)}


def _size_arithmetic(train: bool) -> Case:
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=4, max=64)
    return _case(
        SizeArithmetic(),
        (_batch(2, 5), _batch(2, 7)),
        (_batch(3, 8), _batch(3, 2)),
        shapes=({0: batch, 1: length}, {0: batch, 1: Dim("other", min=2, max=64)}),
        train=train,
    )


def _containers(train: bool) -> Case:
    def pair(rows: int) -> tuple[Any, ...]:
        return ((_batch(rows, 2), {"a": _batch(rows, 2), "b": _batch(3)}),)

    return _case(Containers(), pair(2), pair(5), shapes=None, train=train, scale=1.5)


def _indexed(train: bool) -> Case:
    def batch(rows: int) -> tuple[Any, ...]:
        return _batch(rows, 5), torch.arange(rows).flip(0) % 5

    return _case(Indexed(), batch(4), batch(2), shapes=(_rows(), _rows()), train=train)


CORNERS: Mapping[str, Callable[[bool], Case]] = {
    "branch": lambda train: _case(Branch(), (_batch(2, 4),), (-_batch(2, 4).abs(),), train=train),
    "nested_regions": lambda train: _case(
        NestedRegions(), (_batch(2, 8),), (_batch(5, 8),), shapes=(_rows(),), train=train
    ),
    "recurrent": lambda train: _case(Recurrent(), (_batch(2, 3, 4),), (_batch(2, 3, 4) * 2,), train=train),
    "in_place": lambda train: _case(InPlace(), (_batch(2, 4),), (_batch(6, 4),), shapes=(_rows(),), train=train),
    "counter": lambda train: _case(Counter(), (_batch(2, 4),), (_batch(6, 4),), shapes=(_rows(),), train=train),
    "odd_states": lambda train: _case(OddStates(), (_batch(2, 4),), (_batch(6, 4),), shapes=(_rows(),), train=train),
    "size_arithmetic": _size_arithmetic,
    "containers": _containers,
    "quantised_weights": lambda train: _case(
        QuantisedWeights(), (_batch(2, 64),), (_batch(6, 64),), shapes=(_rows(),), train=train
    ),
    "low_precision": lambda train: _case(
        LowPrecision(), (_batch(2, 8),), (_batch(6, 8),), shapes=(_rows(),), train=train
    ),
    "channels_last": lambda train: _case(
        ChannelsLast(), (_batch(2, 3, 8, 8),), (_batch(5, 3, 8, 8),), shapes=(_rows(),), train=train
    ),
    "indexed": _indexed,
}
