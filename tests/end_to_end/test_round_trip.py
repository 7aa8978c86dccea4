"""Export, bytes, the daemon's loader: what is rebuilt gives what the eager module gives, bit for bit, whole and cut."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from planner.client.export import ExportedModel, export
from planner.wire.graph import graph_from_bytes, graph_to_bytes
from stage_daemon.loader.load import StageProgram
from tests.builders.case import Case
from tests.builders.corners import CORNERS
from tests.builders.cuts import even_cuts
from tests.builders.exported import exported_small, small
from tests.builders.plans import plan_of
from tests.builders.registry import FAMILIES
from tests.builders.staged import load_stages, load_whole, run_stages
from tests.builders.weight_files import WeightFiles
from tests.nightly import nightly

# Families whose operators and structures others have too: encoders, convolutions, and what test_recompute.py runs.
ALIKE = ("bert", "llama", "resnet50", "vit")
# What writes in place does not once it is exported for evaluation; the others come out as for training.
WRITING = ("counter", "in_place", "nested_regions")


# As deep as it takes for layers to differ; the others are as their builders make them.
@pytest.mark.slow
@pytest.mark.parametrize("family", [*sorted(FAMILIES.keys() - ALIKE), *nightly(ALIKE)])
def test_every_family_comes_through(family: str, tmp_path: Path) -> None:
    _assert_comes_through(small(family), exported_small(family), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corner", "train"),
    [
        *((corner, True) for corner in sorted(CORNERS)),
        *((corner, False) for corner in WRITING),
        *nightly((corner, False) for corner in sorted(CORNERS.keys() - WRITING)),
    ],
)
def test_what_is_easily_lost_comes_through(corner: str, train: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = CORNERS[corner](train)
    model = export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes)
    _assert_comes_through(case, model, tmp_path)


def _assert_comes_through(case: Case, exported: ExportedModel, folder: Path) -> None:
    """On the example's sizes and on others; the same random numbers are drawn where the same seed is set."""
    assert case.other_batches, "a module is tried on batches that it was not exported with"
    splits = _load_splits(exported, folder)
    with torch.no_grad():
        for number, batch in enumerate((case.example, *case.other_batches, case.example)):
            torch.manual_seed(number)
            expected = case.module(*copy.deepcopy(batch.args), **copy.deepcopy(dict(batch.kwargs)))
            for programs in splits:
                torch.manual_seed(number)
                _assert_same(run_stages(exported.graph, programs, batch), expected)
    for programs in splits:
        _assert_same_states(programs, case.module)
    whole = splits[0][0].module.states()
    assert {name for name, _ in case.module.named_parameters()} <= whole.keys()


def _load_splits(exported: ExportedModel, folder: Path) -> list[list[StageProgram]]:
    """The program in one piece, and cut in several."""
    graph = exported.graph
    assert graph_from_bytes(graph_to_bytes(graph)) == graph
    files = WeightFiles.of(exported.save_weights(folder))
    return [load_whole(graph, files), load_stages(graph, plan_of(graph, even_cuts(graph)), files)]


def _assert_same(outputs: Any, expected: Any) -> None:
    """Same containers, dtypes, strides and bits; not-a-number equals itself."""
    leaves, structure = pytree.tree_flatten(outputs)
    expected_leaves, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure
    for ours, theirs in zip(leaves, expected_leaves, strict=True):
        if isinstance(theirs, torch.Tensor):
            _assert_same_tensor(ours, theirs)
        else:
            assert ours == theirs


def _assert_same_tensor(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert (ours.dtype, ours.shape, ours.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert _bits(ours) == _bits(expected)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _assert_same_states(programs: Sequence[StageProgram], module: nn.Module) -> None:
    """Batch-norm statistics and the like have moved as in the eager module; the rest is as it was."""
    eager = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    loaded = {name: state for program in programs for name, state in program.module.states().items()}
    for name in eager.keys() & loaded.keys():
        _assert_same_tensor(loaded[name], eager[name])
