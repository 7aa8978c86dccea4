"""What cannot be carried is refused, and the message says why and what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.distributed import FileStore
from torch.export import Dim
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from planner.client.export import export
from planner.errors import GraphError, UnsupportedModule

OUTSIDE = torch.zeros(4)


class Inner(nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.body = body

    def forward(self, features: torch.Tensor) -> Any:
        return self.body(features)


class Outer(nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = Inner(body)

    def forward(self, features: torch.Tensor) -> Any:
        return self.inner(features)


def branches_on_data(features: torch.Tensor) -> torch.Tensor:
    return features if features.sum() > 0 else -features


def writes_a_constant(features: torch.Tensor) -> torch.Tensor:
    return features + OUTSIDE.add_(1)


def scans_for_long(features: torch.Tensor) -> Any:
    return scan(lambda carry, item: (carry + item, carry * item), torch.zeros(4), features.repeat(4000, 1))


def maps_for_long(features: torch.Tensor) -> Any:
    return map_rows(lambda item: item * 2, features.repeat(8000, 1))


def loops_on_data(features: torch.Tensor) -> Any:
    return while_loop(lambda item: item.sum() < 100, lambda item: (item * 2,), (features,))


def counts_from_what_is_written(features: torch.Tensor) -> Any:
    count = torch.zeros((), dtype=torch.int64)
    count.add_(features.long().sum())
    return while_loop(lambda step, _: step < 4, lambda step, item: (step + 1, item * 2), (count, features))


def counts_for_long(features: torch.Tensor) -> Any:
    return while_loop(lambda step, _: step < 30_000, lambda step, item: (step + 1, item * 2), (0, features))


def maps_beside_a_write(features: torch.Tensor) -> Any:
    features.add_(1)
    return torch.vmap(lambda row: row.sort().values)(features)


def writes_several_tensors(features: torch.Tensor) -> Any:
    rows = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    torch.unbind_copy(features, out=rows)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            branches_on_data,
            r"what a tensor holds at test_refusals\.py:\d+ in branches_on_data, 'return features if.*torch\.cond",
        ),
        (writes_a_constant, "forward writes this tensor, which is no buffer; register it with register_buffer"),
        (scans_for_long, "operator scan in module 'inner'.*a scan is carried over a fixed length"),
        (maps_for_long, "operator map_impl in module 'inner'.*a map is carried over a fixed length"),
        (loops_on_data, "operator while_loop in module 'inner'.*no loop whose end depends on data"),
        (counts_from_what_is_written, "operator while_loop in module 'inner'.*where constants alone decide its end"),
        (counts_for_long, "operator while_loop in module 'inner'.*up to some thousand steps"),
        (maps_beside_a_write, "operator _add_batch_dim in module 'inner'.*torch.vmap is carried where no input"),
        (lambda features: features.as_strided((2, 2), (1, 1)), r"operator aten::as_strided.default in module 'inner'"),
        (lambda features: features.as_strided((2,), (1,)), r"operator aten::as_strided.default in module 'inner'"),
        (writes_several_tensors, r"operator aten::unbind_copy.int_out in module 'inner'"),
        (lambda features: features.to_sparse(), r"aten::to_sparse"),
        (lambda features: {1: features}, "only string keys"),
        (lambda features: features.to(torch.uint16), "torch.uint16 cannot be carried; convert it"),
        (lambda features: torch.func.grad(lambda it: (it**2).sum())(features), "torch.func"),
    ],
)
def test_refused(body: Callable[[torch.Tensor], Any], why: str) -> None:
    with pytest.raises(UnsupportedModule, match=why):
        export(Outer(body), (torch.ones(3, 4),))


@pytest.mark.parametrize(
    ("features", "why"),
    [
        (torch.ones(3, 4).to_sparse(), "only dense tensors"),
        (torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.quint8), "quantised"),
        (torch.ones(3, 4).to(torch.uint16), "torch.uint16"),
    ],
    ids=["sparse", "quantised", "uint16"],
)
def test_inputs_refused(features: torch.Tensor, why: str) -> None:
    with pytest.raises(UnsupportedModule, match=why):
        export(Outer(lambda features: features.float()), (features,))


def test_a_parameter_of_another_class_is_refused() -> None:
    class Labelled(torch.Tensor):
        pass

    module = nn.Linear(4, 4)
    module.register_buffer("scale", torch.ones(4).as_subclass(Labelled))
    with pytest.raises(UnsupportedModule):
        export(module, (torch.ones(3, 4),))


def test_autocast_around_the_call_is_refused() -> None:
    with torch.autocast("cpu"), pytest.raises(UnsupportedModule, match="inside the module's forward"):
        export(nn.Linear(4, 4), (torch.ones(3, 4),))


def test_two_views_of_one_storage_of_which_one_is_written_are_refused() -> None:
    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.zeros(8)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[:4])

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            self.whole.add_(1)
            return features + self.part

    with pytest.raises(UnsupportedModule, match="different view of the same storage"):
        export(Overlapping(), (torch.ones(3, 4),))


def test_a_name_that_is_code_is_refused() -> None:
    module = nn.Module()
    module.register_parameter('__import__("os")', nn.Parameter(torch.ones(4)))
    module.forward = lambda features: features + 1  # type: ignore[method-assign]
    with pytest.raises(GraphError, match="import"):
        export(module, (torch.ones(3, 4),))


@pytest.mark.parametrize("inside", [False, True])
def test_vmap_beside_no_grad_is_refused_in_training(inside: bool) -> None:
    def without_gradient(row: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return row.sum()

    def body(features: torch.Tensor) -> torch.Tensor:
        if inside:
            return torch.vmap(lambda row: row * without_gradient(row))(features)
        return torch.vmap(lambda row: row * row.sum())(features) * without_gradient(features)

    trained = nn.Sequential(nn.Linear(4, 4), Outer(body))
    with pytest.raises(UnsupportedModule, match=r"torch.vmap and torch.no_grad in one module in training.*detach\(\)"):
        export(trained.train(), (torch.ones(3, 4),))
    export(trained.eval(), (torch.ones(3, 4),))
    # Nothing that the region reads has a gradient.
    export(nn.Sequential(Outer(body), nn.Linear(4, 4)).train(), (torch.ones(3, 4),))


def packed_weights() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8), (torch.ones(3, 4),)


def quantised_buffer() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    module = Outer(lambda features: features @ module.table.dequantize())
    module.register_buffer("table", torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8))
    return module, (torch.ones(3, 4),)


def fake_quantised() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Outer(lambda features: torch.fake_quantize_per_tensor_affine(features, 0.1, 0, -128, 127)), (
        torch.ones(3, 4),
    )


def nested_inside() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    rows = Outer(lambda features: torch.nested.nested_tensor([features, features[:1]]).to_padded_tensor(0.0))
    return rows, (torch.ones(3, 4),)


def jagged_inside() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    offsets = torch.tensor([0, 1, 3])
    return Outer(lambda values: torch.nested.nested_tensor_from_jagged(values, offsets).values()), (torch.ones(3, 4),)


def nested_input() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Linear(4, 4), (torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),)


def jagged_input() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    rows = [torch.ones(2, 4), torch.ones(3, 4)]
    return nn.Linear(4, 4), (torch.nested.nested_tensor(rows, layout=torch.jagged),)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (packed_weights, r"packed by quantize_dynamic.*torchao's quantize_.*int8 weights and their scales as buffers"),
        (quantised_buffer, r"a quantised tensor.*int_repr\(\) and its scales as buffers"),
        (fake_quantised, r"export the module before it is prepared, or with int8 weights and scales"),
        (nested_inside, r"padded tensors and a mask, or values and offsets"),
        (jagged_inside, r"padded tensors and a mask, or values and offsets"),
        (nested_input, r"input 0: is a nested tensor.*padded tensors and a mask"),
        (jagged_input, r"input 0: is a nested tensor.*padded tensors and a mask"),
    ],
)
def test_tensors_that_torch_does_not_capture_name_what_to_give_instead(
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]], remedy: str
) -> None:
    module, inputs = make()
    with pytest.raises(UnsupportedModule, match=f"(?s){remedy}"):
        export(module, inputs)


def test_a_norm_that_counts_its_batches_names_the_momentum() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))

    with pytest.raises(UnsupportedModule, match=r"'1' averages over all batches .*: give it a momentum"):
        export(module.train(), (torch.ones(3, 4),))
    export(module.eval(), (torch.ones(3, 4),))


class Packs(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, features: torch.Tensor, state: torch.Tensor | None = None) -> torch.Tensor:
        packed = pack_padded_sequence(features, torch.tensor([3, 1]), batch_first=True)
        out: torch.Tensor = pad_packed_sequence(self.layer(packed, state)[0], batch_first=True)[0]
        return out


@pytest.mark.parametrize(
    ("layer", "state"),
    [(nn.LSTM(4, 4, batch_first=True), None), (nn.GRU(4, 4, batch_first=True), torch.zeros(1, 2, 4))],
)
def test_packed_sequences_name_padded_batches(layer: nn.RNNBase, state: Any) -> None:
    with pytest.raises(UnsupportedModule, match="give recurrent layers padded batches, not packed sequences"):
        export(Packs(layer), (torch.ones(2, 3, 4), state))


GENERATOR = torch.Generator()


def test_a_generator_of_the_forwards_own_is_told_to_be_left_out() -> None:
    with pytest.raises(UnsupportedModule, match=r"draws from a torch.Generator, .* leave generator= out"):
        export(Outer(lambda features: features + torch.rand(4, generator=GENERATOR)), (torch.ones(3, 4),))


class Flexes(nn.Module):
    def forward(self, heads: torch.Tensor, block_mask: BlockMask) -> Any:
        return flex_attention(heads, heads, heads, block_mask=block_mask)


def test_a_block_mask_as_an_input_names_where_to_build_it() -> None:
    heads = torch.ones(1, 1, 3, 4)
    mask = create_block_mask(lambda _, __, query, key: query >= key, None, None, 3, 3, device="cpu")

    with pytest.raises(UnsupportedModule, match=r"create_block_mask in the forward, or before and keep it"):
        export(Flexes(), (heads, mask))


def test_rows_that_are_scaled_as_they_are_looked_up_name_max_norm() -> None:
    with pytest.raises(UnsupportedModule, match=r"embedding_renorm_.* build the embedding without max_norm"):
        export(nn.Embedding(5, 4, max_norm=1.0), (torch.tensor([1, 2]),))


class GrowingCache:
    """As transformers' caches: no container that torch knows."""


@pytest.mark.slow
def test_a_cache_among_the_results_names_the_setting() -> None:
    with pytest.raises(
        UnsupportedModule,
        match=r"returns a GrowingCache, .* set use_cache=False, in its config, in that of its decoder, or",
    ):
        export(Outer(lambda features: (features + 1, GrowingCache())), (torch.ones(3, 4),))


@pytest.mark.slow
def test_experts_that_run_one_by_one_name_the_setting() -> None:
    module = Outer(lambda features: torch.stack([features[int(row)] for row in features[:, 0].nonzero()]))
    module.config = SimpleNamespace(_experts_implementation="eager", num_experts=3)
    with pytest.raises(UnsupportedModule, match=r"experts_implementation='eager'\): build the model with experts_impl"):
        export(module, (torch.ones(3, 4),))


def for_each_row(features: torch.Tensor) -> torch.Tensor:
    total = features[0]
    for index in range(1, features.shape[0]):
        total = total * features[index]
    return total


@pytest.mark.slow
def test_a_size_that_the_forward_fixes_names_the_line() -> None:
    with pytest.raises(UnsupportedModule, match=r"to 3 because of .*test_refusals\.py:\d+ in for_each_row; leave that"):
        export(Outer(for_each_row), (torch.ones(3, 4),), dynamic_shapes={"features": {0: Dim("rows", max=64)}})


@pytest.mark.parametrize(
    ("module", "args", "why"),
    [
        (nn.Linear, (torch.ones(3, 4),), "got the class Linear, not one of it, needed a torch.nn.Module"),
        (lambda features: features, (torch.ones(3, 4),), "got a function, needed a torch.nn.Module: have a module's"),
        (nn.Linear(4, 4), torch.ones(3, 4), r"got a Tensor for args, needed a tuple: \(x,\)"),
        (nn.Linear(4, 4), [torch.ones(3, 4)], "got a list for args, needed a tuple"),
        (nn.LazyLinear(4), (torch.ones(3, 4),), "call it once on a batch"),
    ],
)
def test_what_is_given_in_place_of_a_module_and_its_inputs(module: Any, args: Any, why: str) -> None:
    with pytest.raises(UnsupportedModule, match=why):
        export(module, args)


def test_inputs_by_name_are_a_dict() -> None:
    with pytest.raises(UnsupportedModule, match="got a list for kwargs, needed a dict of example inputs by name"):
        export(nn.Linear(4, 4), (), [torch.ones(3, 4)])  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_made_of_a_module() -> None:
    inputs = (torch.ones(3, 4),)
    program = torch.export.export(nn.Linear(4, 4), inputs)
    with pytest.raises(UnsupportedModule, match=r"give what its .module\(\) returns"):
        export(program, inputs)  # type: ignore[arg-type]
    assert len(export(program.module(), inputs).graph.nodes) == 1
    for of_jit in (torch.jit.script(nn.Linear(4, 4)), torch.jit.trace(nn.Linear(4, 4), inputs)):
        with pytest.raises(UnsupportedModule, match="export the Python module that it was scripted or traced from"):
            export(of_jit, inputs)


def test_what_reaches_under_a_tensor_names_what_to_do_instead() -> None:
    with pytest.raises(
        UnsupportedModule, match=r"(?s)\.data, or asks for .*read its detach\(\), write under torch\.no_g"
    ):
        export(Outer(lambda features: features.data + 1), (torch.ones(3, 4),))


@pytest.mark.slow
def test_copies_for_other_processes_name_what_they_wrap(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        copy = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        with pytest.raises(UnsupportedModule, match=r"export what DistributedDataParallel wraps, its \.module"):
            export(copy, (torch.ones(3, 4),))
    finally:
        torch.distributed.destroy_process_group()
