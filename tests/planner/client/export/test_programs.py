"""Small programs, each with one trait that is easy to get wrong: what comes back must be bitwise what eager gives."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from planner.client.export import export
from tests.builders.case import Batch
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program
from tests.nightly import nightly

Pair = namedtuple("Pair", ["first", "rest"])


class Program(nn.Module):
    """A forward written as a plain function of (module, inputs)."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.register_buffer("count", torch.zeros(4))
        self.body = body

    def forward(self, features: torch.Tensor) -> Any:
        return self.body(self, features)


def write_through_a_view(module: Program, features: torch.Tensor) -> Any:
    whole = module.linear(features)
    view = whole[:, 1:3]
    view.mul_(2)
    whole.add_(1)
    return whole, view


def dimensions_turned_in_place(module: Program, features: torch.Tensor) -> Any:
    turned = module.linear(features)
    flat = turned.view(-1)
    turned.unsqueeze_(0).transpose_(1, 2)
    turned.add_(1)
    return turned.squeeze_(0).contiguous(), flat


def powers_in_place(module: Program, features: torch.Tensor) -> Any:
    """Of `pow_` and `pow` the overloads of one name take other arguments."""
    hidden = module.linear(features)
    return (hidden + 1).pow_(2), hidden.abs().pow_(features.abs()), hidden.double().abs_().float_power_(1.5)


def cells_of_recurrent_layers(module: Program, features: torch.Tensor) -> Any:
    weights = [module.linear.weight.repeat(gates, 1) for gates in (1, 3, 4)]
    hidden = torch.rnn_tanh_cell(features, features, weights[0], weights[0])
    hidden = torch.gru_cell(features, hidden, weights[1], weights[1])
    return torch.lstm_cell(features, (hidden, features), weights[2], weights[2])


def linear_algebra(module: Program, features: torch.Tensor) -> Any:
    matrix = features[:2].T @ features[:2] + torch.eye(4)
    solved = torch.linalg.solve(matrix, module.linear.weight)
    return torch.linalg.inv(matrix), torch.linalg.cholesky(matrix), torch.linalg.eigh(matrix).eigenvalues, solved


def spectrum_and_back(module: Program, features: torch.Tensor) -> Any:
    window = torch.hann_window(8)
    spectrum = torch.stft(features.repeat(1, 8), 8, 2, window=window, return_complex=True)
    return spectrum.abs(), torch.istft(spectrum, 8, 2, window=window)


def write_after_a_read(module: Program, features: torch.Tensor) -> Any:
    whole = module.linear(features)
    before = whole.sigmoid()
    whole.relu_()
    whole.view(-1).neg_()
    return whole, before


def write_that_keeps_half_precision(module: Program, features: torch.Tensor) -> Any:
    half = module.linear(features).half()
    half.add_(features)
    return half


def one_tensor_listed_again_and_again(module: Program, features: torch.Tensor) -> Any:
    total = torch.zeros_like(features)
    seen = []
    for scale in range(3):
        total += module.linear(features) * scale
        seen.append(total)
    return seen


def assignments_by_index(module: Program, features: torch.Tensor) -> Any:
    filled = torch.zeros(features.shape[0], 4)
    filled[:, 1:] = features[:, 1:]
    filled[features > 0] = 1
    filled.masked_fill_(features > 1, 7)
    return filled


def written_input(module: Program, features: torch.Tensor) -> Any:
    features.add_(1)
    return features * 2


def written_buffers(module: Program, features: torch.Tensor) -> Any:
    module.count[0] += 1
    module.count.view(2, 2)[1].fill_(3)
    before = module.count + 1
    module.count.mul_(features.mean(0))
    return module.norm(features), before


def dropout_in_place(module: Program, features: torch.Tensor) -> Any:
    whole = module.linear(features)
    dropped = module.drop(whole)
    return whole, dropped


def nested_regions(module: Program, features: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = module.linear(features)
        with torch.autocast("cpu", enabled=False):
            full = module.linear(features)
        low_again = module.linear(full)
    with torch.no_grad():
        fixed = module.linear(features)
    return low, full, low_again, fixed


def region_of_a_size(module: Program, features: torch.Tensor) -> Any:
    """As rotary embeddings do: of what they are given they ask for its size alone."""
    hidden = module.linear(features)
    rest = hidden[:, 1:]
    with torch.autocast("cpu", enabled=False):
        positions = torch.arange(rest.shape[1], dtype=torch.float32)
    return hidden[:, 1:] * positions


def containers(module: Program, features: torch.Tensor) -> Any:
    return Pair(module.linear(features), [features, None, {"flag": True, "number": 3.5, "text": "t"}])


def ordered_dict(module: Program, features: torch.Tensor) -> Any:
    return OrderedDict(second=features + 1, first=module.linear(features))


class RoundedWithAGradient(torch.autograd.Function):
    """Its backward, which a graph does not hold, is no part of what evaluation computes."""

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = features * steps
        ctx.save_for_backward(scaled)
        return scaled.round_().div_(steps), features - 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def custom_function(module: Program, features: torch.Tensor) -> Any:
    return RoundedWithAGradient.apply(module.linear(features), 8)


class Difference(nn.Module):
    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor]) -> torch.Tensor:
        return x - 2 * pair["y"]


def test_one_example_tensor_for_two_inputs_is_two_inputs(tmp_path: Path) -> None:
    """torch.export gives a program that reads the second input wherever the module reads the first."""
    x, y = torch.randn(3), torch.randn(3)
    exported = export(Difference(), (x,), {"pair": {"y": x}})
    batch = Batch(args=(x,), kwargs={"pair": {"y": y}})
    assert_bitwise_equal(run_program(exported, reload(exported, tmp_path), batch), x - 2 * y)


def test_the_graph_remembers_functions_whose_backward_it_lacks() -> None:
    module = Program(custom_function).eval()
    graph = export(module, (torch.ones(3, 4),)).graph
    assert graph.custom_backwards == (f"{__name__}.RoundedWithAGradient",)
    assert not export(Program(constants).eval(), (torch.ones(3, 4),)).graph.custom_backwards


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        frozen, trained = self.frozen(features), self.trained(features)
        with torch.no_grad():
            beside = trained * 2
        most = trained.max(1)
        return frozen, trained, beside, trained.detach(), *trained.chunk(2), most.values, most.indices


def test_values_say_whether_gradients_go_through_them() -> None:
    graph = export(Halves().train(), (torch.ones(4, 4),)).graph
    values = graph.values_by_id()
    given = [values[output.content.value_id] for output in graph.outputs]  # type: ignore[union-attr]
    assert [value.requires_grad for value in given] == [False, True, False, False, True, True, True, False]


def results_in_several_pieces(module: Program, features: torch.Tensor) -> Any:
    left, right = features.chunk(2, 1)
    return torch.stack(features.unbind(1)), left, right, features.topk(2), features.max(1)


def sizes_as_numbers(module: Program, features: torch.Tensor) -> Any:
    rows = features.shape[0]
    return features.reshape(rows * 2, 2).sum(1), torch.arange(rows * 4) // 2, torch.full((rows,), rows), rows * 2


def expanded(module: Program, features: torch.Tensor) -> Any:
    wide = features[:, None].expand(-1, 3, -1)
    return wide, wide.transpose(1, 2), wide.reshape(features.shape[0], -1)


def constants(module: Program, features: torch.Tensor) -> Any:
    return features + torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(5), 7


def complex_rotation(module: Program, features: torch.Tensor) -> Any:
    rotation = torch.polar(torch.ones(2), torch.ones(2))
    return torch.view_as_real(torch.view_as_complex(features.reshape(-1, 2, 2)) * rotation).flatten(1)


def branch_on_a_tensor(module: Program, features: torch.Tensor) -> Any:
    return torch.cond(features.sum() > 0, lambda it: it.sin() + 1, lambda it: it.cos(), (features,))


def branch_on_a_size(module: Program, features: torch.Tensor) -> Any:
    return torch.cond(features.shape[0] > 4, lambda it: module.linear(it), lambda it: it.cos(), (features,))


def normed_weight(module: Program, features: torch.Tensor) -> Any:
    """As in the convolutions of speech models."""
    return features @ torch._weight_norm(module.linear.weight, module.linear.bias[:, None], 0).t()


def random_numbers_nobody_reads(module: Program, features: torch.Tensor) -> Any:
    torch.rand(2)
    return torch.rand_like(features)


def results_written_elsewhere(module: Program, features: torch.Tensor) -> Any:
    """Into a buffer, as spectral norms do while they train, into a tensor of the forward's own, and into its part."""
    with torch.no_grad():
        torch.mv(module.linear.weight, torch.ones(4), out=module.count)
        torch.div(module.count, module.count.norm(), out=module.count)
        whole = torch.zeros(4, 4)
        first = torch.cumsum(module.linear.weight, 0, out=whole)
        row = torch.sum(module.linear.weight, 0, out=whole[2])
    return module.linear(features) * module.count.clone(), first, row, whole


def inputs_and_states_as_results(module: Program, features: torch.Tensor) -> Any:
    return features, module.linear.weight


def scanned(module: Program, features: torch.Tensor) -> Any:
    def step(carried: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        carried = torch.tanh(module.linear(carried) + item * features)
        return carried, carried * item

    def add(carried: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner, _ = scan(lambda total, one: (total + one, total * one), carried.sum(), item)
        return carried + item * inner, carried - item

    rows = torch.arange(12.0).reshape(3, 4) / 12
    return scan(step, torch.zeros_like(features), rows), scan(add, rows[0] + 1, rows, reverse=True)


def mapped_row_by_row(module: Program, features: torch.Tensor) -> Any:
    def of_row(rows: dict[str, torch.Tensor], shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inner = map_rows(lambda one: one * 2, rows["squared"])
        return torch.tanh(module.linear(rows["plain"])) + shift, inner.sum()

    rows = torch.arange(12.0).reshape(3, 4) / 12
    return map_rows(of_row, {"plain": rows, "squared": rows * rows}, features.mean(0))


def mapped(module: Program, features: torch.Tensor) -> Any:
    def of_row(row: torch.Tensor) -> torch.Tensor:
        return module.linear(row.sort().values) * row.mean()

    def of_pair(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return row.softmax(0) @ column

    return torch.vmap(of_row)(features), torch.vmap(torch.vmap(of_pair, (None, 1)), (0, None))(features, features.T)


def counted_by_a_tensor(module: Program, features: torch.Tensor) -> Any:
    def add(step: torch.Tensor, item: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, twice = while_loop(lambda at, _: at < 2, lambda at, one: (at + 1, one * 2 + step), (torch.tensor(0), item))
        total, products = scan(lambda carried, row: (carried + row, carried * row), twice.sum(0), torch.ones(3, 4))
        return step + 1, twice + total + products.sum(0)

    return while_loop(lambda step, _: step < 2, add, (torch.tensor(0), features))


def counted_by_a_number(module: Program, features: torch.Tensor) -> Any:
    return while_loop(lambda step, _: 2 * step < 5, lambda step, item: (step + 1, item * step), (0, features))


def not_run_at_all(module: Program, features: torch.Tensor) -> Any:
    return while_loop(lambda step, _: step < 0, lambda step, item: (step + 1, item * 2), (torch.tensor(0), features))


PROGRAMS = (
    write_through_a_view,
    dimensions_turned_in_place,
    powers_in_place,
    cells_of_recurrent_layers,
    linear_algebra,
    spectrum_and_back,
    write_after_a_read,
    write_that_keeps_half_precision,
    one_tensor_listed_again_and_again,
    assignments_by_index,
    written_input,
    written_buffers,
    dropout_in_place,
    nested_regions,
    region_of_a_size,
    containers,
    ordered_dict,
    results_in_several_pieces,
    sizes_as_numbers,
    expanded,
    constants,
    complex_rotation,
    branch_on_a_tensor,
    branch_on_a_size,
    normed_weight,
    random_numbers_nobody_reads,
    results_written_elsewhere,
    inputs_and_states_as_results,
    scanned,
    mapped_row_by_row,
)


# Neither written in place, nor drawn, nor of regions: exported for training as for evaluation.
ALIKE = (
    cells_of_recurrent_layers,
    linear_algebra,
    spectrum_and_back,
    containers,
    ordered_dict,
    results_in_several_pieces,
    sizes_as_numbers,
    expanded,
    constants,
    complex_rotation,
    branch_on_a_size,
    normed_weight,
    inputs_and_states_as_results,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "train"),
    [
        *itertools.product(PROGRAMS, [False]),
        *((body, True) for body in PROGRAMS if body not in ALIKE),
        *nightly((body, True) for body in ALIKE),
    ],
    ids=lambda value: value.__name__ if callable(value) else f"train={value}",
)
def test_comes_back_bitwise(body: Callable[..., Any], train: bool, tmp_path: Path) -> None:
    _assert_comes_back(body, train, tmp_path)


class PassesOn(nn.Module):
    """As adapters around a model do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, scale: torch.Tensor, *shifts: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        return self.linear(others["features"]) * scale + others["bias"] + sum(shifts)


class TakesAnything(nn.Module):
    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return inputs["inputs"] * 2


def test_an_input_may_have_the_name_of_the_keyword_arguments(tmp_path: Path) -> None:
    batches = [Batch(kwargs={"inputs": torch.randn(rows, 4)}) for rows in (3, 7)]

    exported = export(TakesAnything(), (), batches[0].kwargs, dynamic_shapes={"inputs": {0: Dim("rows")}})
    program = reload(exported, tmp_path)

    for batch in batches:
        assert_bitwise_equal(run_program(exported, program, batch), batch.kwargs["inputs"] * 2)


@pytest.mark.parametrize("nested", [False, True])
def test_dynamic_shapes_of_keyword_arguments_go_by_their_names(nested: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = PassesOn()
    batches = [
        Batch(args=(torch.ones(4), torch.ones(4)), kwargs={"bias": torch.ones(4), "features": torch.randn(rows, 4)})
        for rows in (3, 7)
    ]
    of_others = {"bias": None, "features": {0: Dim("rows")}}
    shapes = {"scale": None, "shifts": (None,), **({"others": of_others} if nested else of_others)}

    exported = export(module, batches[0].args, batches[0].kwargs, dynamic_shapes=shapes)
    program = reload(exported, tmp_path)

    assert [symbol.name for symbol in exported.graph.symbols] == ["rows"]
    for batch in batches:
        assert_bitwise_equal(run_program(exported, program, batch), module(*batch.args, **batch.kwargs))


@pytest.mark.slow
def test_a_custom_function_comes_back_from_evaluation(tmp_path: Path) -> None:
    _assert_comes_back(custom_function, False, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [counted_by_a_tensor, counted_by_a_number, not_run_at_all], ids=lambda body: body.__name__
)
def test_loops_whose_end_constants_decide_come_back_from_evaluation(body: Callable[..., Any], tmp_path: Path) -> None:
    _assert_comes_back(body, False, tmp_path)


@pytest.mark.slow
def test_what_vmap_maps_comes_back_from_evaluation(tmp_path: Path) -> None:
    _assert_comes_back(mapped, False, tmp_path)


def _assert_comes_back(body: Callable[..., Any], train: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    batches = [Batch(args=(torch.randn(rows, 4),)) for rows in (3, 7)]
    module = Program(body).train(train)

    exported = export(module, batches[0].args, dynamic_shapes={"features": {0: Dim("batch", min=2, max=64)}})
    program = reload(exported, tmp_path)
    eager = copy.deepcopy(module)

    for batch in batches:
        assert_bitwise_equal(run_program(exported, program, batch), run_module(eager, batch))
    states = program.module.states()
    for name, tensor in eager.state_dict().items():
        assert torch.equal(states[name], tensor), name
