"""Export, bytes, the daemon's loader: the rebuilt module gives what the eager one gives, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client.export import ExportedModel, export
from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.graph.ir import Graph
from planner.wire.graph import graph_from_bytes, graph_to_bytes
from stage_daemon.loader.load import StageProgram, load_stage
from tests.builders.case import Batch, Case
from tests.builders.corners import CORNERS
from tests.builders.registry import FAMILIES
from tests.builders.weight_files import WeightFiles

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A module, and what the loader rebuilt of it."""

    module: nn.Module
    graph: Graph
    program: StageProgram

    def run(self, batch: Batch) -> Any:
        leaves = flatten_inputs(self.graph, batch.args, batch.kwargs)
        return unflatten_outputs(self.graph, self.program.module(*leaves))


def round_trip(case: Case, folder: Path) -> RoundTrip:
    exported = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes)
    return RoundTrip(case.module, exported.graph, _load(exported, folder))


def _load(exported: ExportedModel, folder: Path) -> StageProgram:
    data = graph_to_bytes(exported.graph)
    assert graph_from_bytes(data) == exported.graph
    files = WeightFiles.of(exported.save_weights(folder))
    return load_stage(data, files.locations(exported.graph), files.read_range, CPU, lambda loaded, total: None)


def assert_same(found: Any, expected: Any) -> None:
    """Same containers, dtypes, strides and bits; not-a-number equals itself."""
    found_leaves, found_spec = pytree.tree_flatten(found)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert found_spec == expected_spec
    for ours, theirs in zip(found_leaves, expected_leaves, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert_same_tensor(ours, theirs)
        else:
            assert ours == theirs


def assert_same_tensor(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.shape, found.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert _bits(found) == _bits(expected)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(params=["eval", "train"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_family_gives_what_the_eager_module_gives(family: str, mode: str, tmp_path: Path) -> None:
    _assert_runs_alike(FAMILIES[family](train=mode == "train"), tmp_path)


@pytest.mark.parametrize("corner", sorted(CORNERS))
def test_what_is_easily_lost_comes_through(corner: str, mode: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = CORNERS[corner](mode == "train")
    _assert_runs_alike(case, tmp_path)


def _assert_runs_alike(case: Case, folder: Path) -> None:
    pair = round_trip(case, folder)
    assert case.other_batches, "a module is tried on batches that it was not exported with"
    with torch.no_grad():
        for number, batch in enumerate((case.example, *case.other_batches, case.example)):
            torch.manual_seed(number)
            expected = case.module(*copy.deepcopy(batch.args), **copy.deepcopy(dict(batch.kwargs)))
            torch.manual_seed(number)
            assert_same(pair.run(batch), expected)
    _assert_same_states(pair)


def _assert_same_states(pair: RoundTrip) -> None:
    """Batch-norm statistics have moved as in the eager module; everything else is as it was."""
    states = pair.program.module.states()
    eager = dict(pair.module.named_parameters(remove_duplicate=False)) | dict(
        pair.module.named_buffers(remove_duplicate=False)
    )
    for name in eager.keys() & states.keys():
        assert_same_tensor(states[name], eager[name])
    assert {name for name, _ in pair.module.named_parameters()} <= states.keys()
