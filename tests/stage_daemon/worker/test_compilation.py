"""Compiled stages: what they give beside uncompiled ones, at sizes that come later, and what is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from planner.client.export import export
from planner.graph.ir import Graph
from planner.wire.graph import graph_to_bytes
from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import NotCompiled
from stage_daemon.randomness import drawing
from stage_daemon.runtime.stage import Stage
from stage_daemon.worker.compilation import CACHE_VARIABLE, compiling
from stage_daemon.worker.loading import load_stages
from tests.builders.weight_files import WeightFiles

# A compiler is another process.
pytestmark = pytest.mark.services

CPU = torch.device("cpu")
NUM_WORDS = 11
BATCH = torch.export.Dim("batch", min=1, max=64)

Responses = list[stage_daemon_pb2.LoadStagesResponse]


class Words(nn.Module):
    """Indices, autocast, dropout, and a buffer that a run writes."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, 16)
        self.linear = nn.Linear(16, 8)
        self.register_buffer("total", torch.zeros(16))

    def forward(self, words: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        summed = (self.words(words) * weights[:, :, None]).sum(1)
        self.total += summed.sum(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = self.linear(functional.dropout(summed, 0.5))
        return rounded, functional.gelu(summed) * words.shape[0]


class Shares(nn.Module):
    def forward(self, percent: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(percent + 1)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the worker reads from: one stage and its weights."""

    graph: Graph
    files: WeightFiles

    def read_whole(self, _: bytes) -> bytes:
        return graph_to_bytes(self.graph)

    def read_range(self, sha256: bytes, offset: int, length: int) -> Iterator[bytes]:
        return self.files.read_range(sha256, offset, length)

    def load(self, *, compiled: bool) -> tuple[Stage, Responses]:
        request = stage_daemon_pb2.LoadStagesRequest(compile=compiled)
        request.stages.add(stage=3, states=self.files.locations(self.graph))
        responses: Responses = []

        def on_progress(response: stage_daemon_pb2.LoadStagesResponse) -> None:
            copy = stage_daemon_pb2.LoadStagesResponse()
            copy.CopyFrom(response)
            responses.append(copy)

        return load_stages(request, self, CPU, on_progress)[3], responses


def stored(module: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Stored:
    exported = export(module, inputs, dynamic_shapes=tuple({0: BATCH} for _ in inputs))
    return Stored(exported.graph, WeightFiles.of(exported.save_weights(folder)))


def inputs_of(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(size)
    return torch.randint(NUM_WORDS, (size, 3), generator=random), torch.rand(size, 3, generator=random)


def totals(stage: Stage) -> torch.Tensor:
    assert stage.module is not None
    return stage.module.states()["total"]


@dataclass(slots=True)
class Backend:
    """Runs what torch.compile has traced as it is: C++ takes a minute, and is for tests/end_to_end/test_compiled.py."""

    num_compiled: int = 0
    num_runs: int = 0

    def __call__(self, traced: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        self.num_compiled += 1

        def run(*inputs: object) -> object:
            self.num_runs += 1
            return traced.forward(*inputs)

        return run


@pytest.fixture(autouse=True)
def backend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Backend]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "compiled"))
    counting = Backend()
    torch.compiler.set_stance("default", force_backend=counting)
    yield counting
    torch.compiler.set_stance("default")


@pytest.mark.slow
def test_it_gives_what_the_stage_does_at_any_size(tmp_path: Path, backend: Backend) -> None:
    torch.manual_seed(0)
    source = stored(Words().train(), inputs_of(4), tmp_path)
    plain, responses = source.load(compiled=False)
    assert not any(response.HasField("compiled_difference") for response in responses)
    assert backend.num_compiled == 0
    compiled, responses = source.load(compiled=True)
    assert [response.stage for response in responses if response.HasField("compiled_difference")] == [3]
    assert responses[-1].compiled_difference < 0.01
    assert not totals(compiled).any()
    num_compiled = backend.num_compiled
    for number, size in enumerate((4, 1, 33, 64)):
        # The second and the fourth are views of something larger, as what comes over an edge may be.
        inputs = inputs_of(size) if number % 2 == 0 else tuple(tensor[:size] for tensor in inputs_of(size + 1))
        num_runs = backend.num_runs
        with torch.no_grad(), drawing("one", number):
            expected = plain.run(*inputs)
        with torch.no_grad(), drawing("one", number):
            torch.testing.assert_close(compiled.run(*inputs), expected)
        torch.testing.assert_close(totals(compiled), totals(plain))
        # What was compiled as the stage was loaded has to do.
        assert backend.num_runs == num_runs + num_compiled
        assert backend.num_compiled == num_compiled


def test_what_raises_on_made_up_inputs_is_refused(tmp_path: Path) -> None:
    source = stored(Shares(), (torch.zeros(2, 3),), tmp_path)
    needed = r"cannot be tried on made-up inputs \(RuntimeError.*deploy without compile"
    with pytest.raises(NotCompiled, match=needed) as caught:
        source.load(compiled=True)
    assert caught.value.stage == 3


def test_without_a_compiler_it_is_refused_before_anything_is_loaded() -> None:
    from torch._inductor import config

    with (
        config.patch("cpp.cxx", (None, "no-such-compiler")),
        pytest.raises(NotCompiled, match=r"needs a C\+\+ compiler on the daemon's host.*deploy without compile"),
        compiling(),
    ):
        pytest.fail("nothing is to be loaded")


def test_what_is_compiled_lies_where_nobody_else_writes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE)
    with compiling():
        folder = Path(os.environ[CACHE_VARIABLE])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not folder.exists()
