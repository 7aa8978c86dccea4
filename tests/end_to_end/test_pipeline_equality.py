"""Real models through the whole system: what comes out of the daemons is bitwise what the unsplit module gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from planner.client import PlannerClient, export
from planner.client.batches import Batch
from planner.client.export import ExportedModel
from planner.client.pipeline import Pipeline
from planner.client.records import StoredPlan
from planner.errors import InvalidArgument, MicrobatchFailed
from planner.plan.options import BalancedMode, CutMode, Mode, PlanOptions, Routing, SizeBasedMode
from tests.builders.exported import exported
from tests.builders.registry import FAMILIES
from tests.models.architectures import find_architecture
from tests.nightly import nightly

pytestmark = pytest.mark.services

BATCH = torch.export.Dim("batch", min=1, max=64)
SEQUENCE = torch.export.Dim("sequence", min=2, max=64)


def deployed(
    client: PlannerClient,
    module: torch.nn.Module,
    example: Batch,
    mode: Mode,
    *,
    dynamic_shapes: object = None,
    routing: Routing = Routing.DIRECT,
) -> AbstractContextManager[tuple[StoredPlan, Pipeline]]:
    model = export(module, example.args, dict(example.kwargs), dynamic_shapes=dynamic_shapes)
    return running(client, model, mode, routing=routing)


@contextmanager
def running(
    client: PlannerClient, model: ExportedModel, mode: Mode, *, routing: Routing = Routing.DIRECT
) -> Iterator[tuple[StoredPlan, Pipeline]]:
    graph = client.submit(model)
    plan = client.create_plan(graph.id, PlanOptions(mode=mode, routing=routing))
    deployment = client.deploy(plan.id)
    try:
        with client.pipeline(deployment.id) as pipeline:
            yield plan, pipeline
    finally:
        client.stop(deployment.id)


def assert_same(module: torch.nn.Module, pipeline: Pipeline, batches: Sequence[Batch]) -> None:
    results = list(pipeline.run(batches, window=4))
    assert len(results) == len(batches)
    for batch, result in zip(batches, results, strict=True):
        with torch.no_grad():
            expected = module(*batch.args, **batch.kwargs)
        assert_tree_equal(result, expected)


def assert_tree_equal(outputs: Any, expected: Any) -> None:
    leaves, tree = pytree.tree_flatten(outputs)
    expected_leaves, expected_tree = pytree.tree_flatten(expected)
    assert tree == expected_tree
    for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
        if isinstance(expected_leaf, torch.Tensor):
            assert leaf.dtype == expected_leaf.dtype
            assert torch.equal(leaf, expected_leaf)
        else:
            assert leaf == expected_leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A family at a small size, and how it is cut; `module_paths` begin new stages, balanced into two where empty."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    module_paths: tuple[str, ...] = ()
    routing: Routing = Routing.DIRECT

    @property
    def mode(self) -> Mode:
        return CutMode(module_paths=self.module_paths) if self.module_paths else BalancedMode(num_stages=2)


CUTS: Mapping[str, Cut] = {
    "bert": Cut(module_paths=("encoder.layer.0", "encoder.layer.1")),
    "dlrm": Cut(),
    "gpt2": Cut(sizes={"layers": 1}, module_paths=("transformer.h.0", "transformer.ln_f")),
    "llama": Cut(sizes={"layers": 1}),
    "mixture": Cut(),
    "resnet50": Cut(),
    # The encoder's result and its mask are read by every block of the decoder.
    "t5": Cut(module_paths=("encoder.block.0", "decoder.block.0"), routing=Routing.RELAY),
    "unet": Cut(),
    "vit": Cut(),
}
# With a tie over two stages, values that go by a stage, bags of indices, and skips over what is written in place.
OF_EACH_KIND = ("gpt2", "t5", "dlrm", "unet")


@pytest.mark.parametrize("family", [*OF_EACH_KIND, *nightly(sorted(FAMILIES.keys() - OF_EACH_KIND))])
def test_every_family_runs_in_stages(client: PlannerClient, family: str) -> None:
    cut = CUTS[family]
    case = FAMILIES[family](**cut.sizes)
    with running(client, exported(family, **cut.sizes), cut.mode, routing=cut.routing) as (plan, pipeline):
        example = Batch(case.args, case.kwargs)
        assert len(plan.stages) == (len(cut.module_paths) or 1) + 1
        others = [Batch(batch.args, batch.kwargs) for batch in case.other_batches]
        assert_same(case.module, pipeline, [example, *others, example])
        if family == "t5":
            assert any(tensor.bypassing for stage in plan.stages[1:-1] for tensor in stage.liveness)
        if family == "gpt2":
            [group] = plan.tie_groups
            assert {stage for _, stage in group.members} == {0, 2}


def test_a_mixture_of_experts_as_transformers_configures_it(client: PlannerClient) -> None:
    """Experts are chosen per token: how many rows each gets depends on the data, no tensor's size does."""
    architecture = find_architecture("causal/mixtral")
    module, mode = architecture.module(), BalancedMode(num_stages=2)
    batches = [Batch(kwargs=dict(architecture.kind.batch(scale))) for scale in (1, 2, 1)]
    shapes = {"input_ids": {0: BATCH, 1: SEQUENCE}}
    with deployed(client, module, batches[0], mode, dynamic_shapes=shapes) as (plan, pipeline):
        assert len(plan.stages) == 2
        assert_same(module, pipeline, batches)


class WritesInPlace(torch.nn.Module):
    """`first` is written through a view after the place where the cut is asked for, and read before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.second = torch.nn.Linear(8, 8)
        self.third = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
        hidden = self.first(x)
        window = hidden[:, 2:5]
        early = self.second(hidden)
        window.mul_(3.0)
        hidden.add_(early)
        return {"window": window + 1, "late": self.third(hidden), "nothing": None}


def test_cut_between_a_write_in_place_and_its_reader(client: PlannerClient) -> None:
    torch.manual_seed(3)
    module = WritesInPlace().eval()
    shapes = {"x": {0: BATCH}}
    mode = CutMode(module_paths=("second",))
    with deployed(client, module, Batch((torch.randn(4, 8),)), mode, dynamic_shapes=shapes) as (plan, pipeline):
        assert len(plan.stages) == 2
        assert_same(module, pipeline, [Batch((torch.randn(size, 8),)) for size in (4, 1, 9)])


class ManyShapes(torch.nn.Module):
    """Every kind of tensor crosses the cut: transposed, expanded, boolean, half-precision, empty; and an int."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(6, 6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, flags: torch.Tensor) -> tuple[Any, ...]:
        hidden = self.mix(x)
        turned = hidden.transpose(1, 2)
        spread = hidden[:, :1].expand(-1, x.shape[1], -1)
        half = hidden.to(torch.bfloat16)
        empty = hidden[:, :0]
        positive = hidden > 0
        length = x.shape[1]
        logits = self.head(hidden) * length
        return (
            logits + turned.sum(),
            {"spread": spread * 2, "half": half + 1, "empty": empty, "kept": torch.where(positive, hidden, 0.0)},
            [None, flags, (turned @ hidden,)],
        )


@pytest.mark.parametrize("routing", list(Routing))
def test_every_kind_of_tensor_crosses(client: PlannerClient, routing: Routing) -> None:
    torch.manual_seed(4)
    module = ManyShapes().eval()

    def batch(size: int, length: int) -> Batch:
        return Batch((torch.randn(size, length, 6), torch.rand(size) > 0.5))

    shapes = {"x": {0: BATCH, 1: SEQUENCE}, "flags": {0: BATCH}}
    mode = CutMode(module_paths=("mix",))
    with deployed(client, module, batch(3, 5), mode, dynamic_shapes=shapes, routing=routing) as (_, pipeline):
        assert_same(module, pipeline, [batch(3, 5), batch(1, 2), batch(6, 40), batch(3, 5)])


def test_a_mode_may_take_one_stage(client: PlannerClient) -> None:
    torch.manual_seed(3)
    module = WritesInPlace().eval()
    example = Batch((torch.randn(4, 8),))
    with deployed(client, module, example, SizeBasedMode(), dynamic_shapes={"x": {0: BATCH}}) as (plan, pipeline):
        assert len(plan.stages) == 1
        assert_same(module, pipeline, [example, Batch((torch.randn(1, 8),))])


def test_a_bad_microbatch_fails_alone(client: PlannerClient) -> None:
    torch.manual_seed(5)
    embedding = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).eval()
    example = Batch((torch.randint(0, 10, (3,)),))
    with deployed(client, embedding, example, CutMode(module_paths=("1",)), dynamic_shapes=({0: BATCH},)) as (
        _,
        pipeline,
    ):
        good = torch.tensor([1, 2, 3])
        results = list(pipeline.run([good, torch.tensor([99]), good], raise_failures=False))
        with pytest.raises(InvalidArgument, match="float32 found, int64 needed"):
            pipeline(torch.ones(3))
        with pytest.raises(InvalidArgument, match="input"):
            pipeline(torch.ones((2, 2), dtype=torch.int64))
        after = pipeline(good)
    assert [isinstance(result, MicrobatchFailed) for result in results] == [False, True, False]
    assert results[1].metadata["stage"] == "0"
    with torch.no_grad():
        assert torch.equal(results[2], embedding(good))
        assert torch.equal(after, embedding(good))


def test_sessions_do_not_mix(client: PlannerClient) -> None:
    torch.manual_seed(6)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()
    example = Batch((torch.randn(2, 4),))
    with deployed(client, module, example, CutMode(module_paths=("1",)), dynamic_shapes=({0: BATCH},)) as (_, pipeline):
        lefts = [torch.full((2, 4), float(index)) for index in range(12)]
        rights = [torch.full((5, 4), -float(index)) for index in range(12)]
        left_results, right_results = [], []
        for left, right in zip(pipeline.run(lefts), pipeline.run(rights), strict=True):
            left_results.append(left)
            right_results.append(right)
    with torch.no_grad():
        for inputs, results in ((lefts, left_results), (rights, right_results)):
            assert all(torch.equal(module(x), y) for x, y in zip(inputs, results, strict=True))


class LooksUpAndScales(torch.nn.Module):
    """Integers that index, floats that are multiplied, and floats whose order decides."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 256)
        self.scale = torch.nn.Linear(256, 256)

    def forward(self, index: torch.Tensor, x: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = self.scale(self.table(index) + x)
        return scaled, scaled[keys.argsort()]


def test_large_microbatches_cross_in_memory_that_outlives_session_and_deployment(client: PlannerClient) -> None:
    torch.manual_seed(7)
    module = LooksUpAndScales().eval()
    rows = torch.export.Dim("rows", min=2, max=4096)

    def batch(num_rows: int) -> Batch:
        return Batch((torch.randint(0, 100, (num_rows,)), torch.randn(num_rows, 256), torch.randn(num_rows)))

    with deployed(
        client, module, batch(8), CutMode(module_paths=("scale",)), dynamic_shapes=({0: rows}, {0: rows}, {0: rows})
    ) as (plan, pipeline):
        assert len(plan.stages) == 2
        batches = [batch(num_rows) for num_rows in (2, 300, 40, 300, 1200, 3, 300)] + [batch(257)] * 20
        kept = [list(pipeline.run(batches)) for _ in range(2)]
        kept.append([pipeline(*each.args) for each in batches])
    with torch.no_grad():
        for results in kept:
            for each, (scaled, ordered) in zip(batches, results, strict=True):
                expected = module(*each.args)
                assert torch.equal(scaled, expected[0])
                assert torch.equal(ordered, expected[1])
