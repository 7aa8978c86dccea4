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
from tests.builders.torchao import quantised, torchao


@pytest.mark.slow
def test_quantised_weights_are_planned_by_their_bytes() -> None:
    case = CORNERS["quantised_weights"](False)
    graph = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes).graph
    values = graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in graph.states}
    assert (dtypes["eight"], dtypes["four"], dtypes["floating"]) == (Dtype.INT8, Dtype.UINT8, Dtype.FLOAT8_E4M3FN)
    plan = make_plan(graph, "id", inventory_of(1), PlanOptions(mode=SingleMode()))
    assert plan.stages[0].memory.state_bytes == sum(buffer.nbytes for buffer in case.module.buffers())


OF_TORCHAO = ("choose_qparams_affine", "quantize_affine", "dequantize_affine")


def config_of(name: str) -> Any:
    quantization = torchao("quantization")
    if name == "PrototypeInt4WeightOnlyConfig":
        return torchao("prototype.quantization.int4").PrototypeInt4WeightOnlyConfig(group_size=32)
    per_group = quantization.PerGroup(32)
    options = {
        "IntxWeightOnlyConfig": {"weight_dtype": torch.int4, "granularity": per_group},
        "Int8DynamicActivationIntxWeightConfig": {"weight_dtype": torch.int4, "weight_granularity": per_group},
    }
    return getattr(quantization, name)(**options.get(name, {}))


def assert_comes_through(module: nn.Module, dtype: torch.dtype, directory: Path) -> None:
    """A batch of another size than that of the example, too."""
    exported = export(module, (torch.randn(3, 64, dtype=dtype),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    program = reload(exported, directory)
    for rows in (3, 5):
        batch = Batch(args=(torch.randn(rows, 64, dtype=dtype),))
        assert_bitwise_equal(run_program(exported, program, batch), run_module(module, batch))


@pytest.mark.slow
def test_weights_that_torchao_quantised_are_the_tensors_that_they_hold() -> None:
    module = quantised(config_of("Int8WeightOnlyConfig"))
    exported = export(module, (torch.randn(3, 64),))
    values = exported.graph.values_by_id()
    dtypes = {state.name: values[state.value_id].dtype for state in exported.graph.states}
    held = [f"{layer}.parametrizations.weight.original" for layer in (0, 2)]
    assert [dtypes[f"{name}0"] for name in held] == [Dtype.INT8, Dtype.INT8]
    assert [dtypes[f"{name}1"] for name in held] == [Dtype.FLOAT32, Dtype.FLOAT32]
    assert exported.tensors[f"{held[0]}0"].data_ptr() == module[0].weight.qdata.data_ptr()
    assert type(module[0].weight) is torchao("quantization").Int8Tensor
    assert not any(part.training for part in with_plain_weights(module).modules())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "PrototypeInt4WeightOnlyConfig"])
def test_modules_that_torchao_quantised_run_without_it(config: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert_comes_through(quantised(config_of(config), dtype), dtype, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    ["Int8DynamicActivationInt8WeightConfig", "IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"],
)
def test_torchaos_own_operators_run_where_they_are_allowed(config: str, tmp_path: Path) -> None:
    names = ",".join(f"torchao::{name}" for name in OF_TORCHAO)
    module = quantised(config_of(config))
    allow_operators(parse_custom_operators(f"torchao.quantization.quant_primitives={names}"))
    assert_comes_through(module, torch.float32, tmp_path)


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
