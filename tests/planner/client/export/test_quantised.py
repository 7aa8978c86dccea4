"""Weights in fewer bits are states of their own dtypes, and planned by the bytes that they take."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.client.export.plain_weights import with_plain_weights
from planner.graph.ir import Dtype
from planner.plan.options import PlanOptions, SingleMode
from planner.planning import make_plan
from stage_daemon.custom_operators import parse_custom_operators
from stage_daemon.loader.operators import allow_operators
from tests.builders.case import Batch
from tests.builders.corners import CORNERS
from tests.builders.plans import inventory_of
from tests.builders.reload import assert_bitwise_equal, reload, run_module, run_program


@pytest.mark.slow
def test_quantised_weights_are_planned_by_their_bytes() -> None:
    case = CORNERS["quantised_weights"](False)
    graph = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes).graph
    values = graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in graph.states}
    assert (dtypes["eight"], dtypes["four"], dtypes["floating"]) == (Dtype.INT8, Dtype.UINT8, Dtype.FLOAT8_E4M3FN)
    plan = make_plan(graph, "id", inventory_of(1), PlanOptions(mode=SingleMode()))
    assert plan.stages[0].memory.state_bytes == sum(buffer.nbytes for buffer in case.module.buffers())


class Bytes(torch.Tensor):
    """A weight in the form of torchao's: int8 rows and a scale for each, of which a product makes floating numbers."""

    rows: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, rows: torch.Tensor, scales: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, rows.shape, dtype=scales.dtype)  # type: ignore[attr-defined]
        made.rows, made.scales = rows, scales
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["rows", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], more: None, size: Any, stride: Any) -> Any:
        return Bytes(inner["rows"], inner["scales"])

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            features, weight, bias = args
            return nn.functional.linear(features, weight.rows.float() * weight.scales, bias)
        return super().__torch_function__(function, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is torch.ops.aten.detach.default, function
        return Bytes(args[0].rows, args[0].scales)


def test_weights_of_a_class_that_holds_tensors_are_those_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    rows, scales = torch.randint(-128, 128, (8, 8), dtype=torch.int8), torch.rand(8, 1)
    module[0].weight = nn.Parameter(Bytes(rows, scales), requires_grad=False)
    exported = export(module, (torch.randn(3, 8),))
    values = exported.graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in exported.graph.states}
    first = "0.parametrizations.weight.original"
    assert (dtypes[f"{first}0"], dtypes[f"{first}1"]) == (Dtype.INT8, Dtype.FLOAT32)
    assert set(dtypes) == {f"{first}0", f"{first}1", "0.bias", "2.weight", "2.bias"}
    assert exported.tensors[f"{first}0"].data_ptr() == rows.data_ptr()
    assert type(module[0].weight) is Bytes
    assert not any(part.training for part in with_plain_weights(module).modules())
    batch = Batch(args=(torch.randn(3, 8),))
    program = reload(exported, tmp_path)
    assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


DECOMPOSED = "torch.ao.quantization.fx._decomposed"
OF_QUANTISED_PROGRAMS = (
    "choose_qparams.tensor",
    "quantize_per_tensor.tensor",
    "dequantize_per_tensor.tensor",
    "dequantize_per_tensor",
)


class DynamicallyQuantised(nn.Module):
    """As torch's quantisation of exported programs leaves a linear layer whose activations are scaled by each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (16, 32), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        operators = torch.ops.quantized_decomposed
        scale, zero = operators.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
        rows = operators.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        rows = operators.dequantize_per_tensor.tensor(rows, scale, zero, -128, 127, torch.int8)
        weight = operators.dequantize_per_tensor.default(self.weight, 0.01, 0, -127, 127, torch.int8)
        return nn.functional.linear(rows, weight)


@pytest.mark.slow
def test_dynamic_quantisation_runs_where_its_operators_are_allowed(tmp_path: Path) -> None:
    import_module(DECOMPOSED)
    torch.manual_seed(0)
    module = DynamicallyQuantised().eval()
    batch = Batch(args=(torch.randn(4, 32),))
    exported = export(module, batch.args)
    names = ",".join(f"quantized_decomposed::{name}" for name in OF_QUANTISED_PROGRAMS)
    allow_operators(parse_custom_operators(f"{DECOMPOSED}={names}"))
    program = reload(exported, tmp_path)
    assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))
