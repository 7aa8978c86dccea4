"""An exported model brought back to life by the daemon's own loader, its weights read from files as byte ranges."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from planner.client.export import ExportedModel
from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.graph.ir import WeightFile
from planner.store.weights import locate_states
from planner.wire.graph import graph_to_bytes
from protos.v1 import stage_daemon_pb2
from stage_daemon.loader.load import StageProgram, load_stage
from tests.builders.case import Batch


def reload(exported: ExportedModel, directory: Path, max_file_bytes: int = 2**30) -> StageProgram:
    """Writes the weights under `directory` and loads the whole graph as one stage on the CPU."""
    contents = [path.read_bytes() for path in exported.save_weights(directory, max_file_bytes)]
    by_digest = {hashlib.sha256(content).digest(): content for content in contents}

    def read_range(sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        yield by_digest[sha256][offset : offset + length]

    files = [WeightFile(sha256=digest, size_bytes=len(content)) for digest, content in by_digest.items()]
    locations = [
        stage_daemon_pb2.StateLocation(
            name=name,
            file_sha256=location.file_sha256,
            offset_bytes=location.offset_bytes,
            length_bytes=location.length_bytes,
        )
        for name, location in locate_states(exported.graph, files, read_range).items()
    ]
    data = graph_to_bytes(exported.graph)
    return load_stage(data, locations, read_range, torch.device("cpu"), lambda loaded, total: None)


def run_module(module: nn.Module, batch: Batch, seed: int = 7) -> Any:
    """The eager result; the batch stays as it is."""
    args, kwargs = copy.deepcopy((batch.args, dict(batch.kwargs)))
    torch.manual_seed(seed)
    with torch.no_grad():
        return module(*args, **kwargs)


def run_program(exported: ExportedModel, program: StageProgram, batch: Batch, seed: int = 7) -> Any:
    """The reloaded program's result, in the module's own containers; the batch stays as it is."""
    args, kwargs = copy.deepcopy((batch.args, dict(batch.kwargs)))
    leaves = flatten_inputs(exported.graph, args, kwargs)
    torch.manual_seed(seed)
    with torch.no_grad():
        return unflatten_outputs(exported.graph, program.module(*leaves))


def assert_bitwise_equal(actual: Any, needed: Any) -> None:
    """Same containers, same dtypes, same shapes, same bits."""
    assert type(actual) is type(needed)
    for one, other in zip(tree_leaves(actual), tree_leaves(needed), strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
