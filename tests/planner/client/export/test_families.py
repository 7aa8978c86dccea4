"""What the export says of each model family; that it comes back bitwise is the round-trip tests' business."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from planner.client.export import export
from planner.graph.ir import OperatorKind, StateKind, TreeObject, ValueReference, values_read
from planner.wire.graph import graph_from_bytes, graph_to_bytes
from tests.builders.exported import exported
from tests.builders.registry import FAMILIES

# Each exports whole models.
pytestmark = pytest.mark.slow

# One of each structure; the round-trip tests export every family.
STRUCTURES = ("bert", "dlrm", "mixture", "t5", "unet")


class Residual(nn.Module):
    """A convolution that is activated, added to and activated again, each in place."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 2, 3, padding=1)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.activation(self.convolution(images))
        features += images
        return self.activation(features)


@pytest.mark.parametrize("family", STRUCTURES)
def test_survives_its_bytes(family: str) -> None:
    graph = exported(family).graph

    data = graph_to_bytes(graph)

    assert graph_from_bytes(data) == graph
    assert graph_to_bytes(graph_from_bytes(data)) == data


@pytest.mark.parametrize("family", STRUCTURES)
def test_states_are_the_modules(family: str) -> None:
    module = FAMILIES[family]().module
    graph = exported(family).graph

    states = {state.name for state in graph.states if state.kind is not StateKind.CONSTANT}

    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    assert states == names
    assert all(len(state.sha256) == 32 for state in graph.states)


@pytest.mark.parametrize("family", STRUCTURES)
def test_nothing_of_torch_export_is_left(family: str) -> None:
    module = FAMILIES[family]().module
    paths = {name for name, _ in module.named_modules()}

    for node in exported(family).graph.nodes:
        assert node.operator.kind is not OperatorKind.HIGHER_ORDER
        assert node.operator.name not in ("aten::view", "aten::_assert_tensor_metadata")
        assert node.module_path in paths


def test_eval_mode_writes_nothing_in_place() -> None:
    for family in STRUCTURES:
        assert not [node.name for node in exported(family).graph.nodes if node.operator.mutated_arguments], family


def test_dynamic_dimensions_keep_the_callers_names_bounds_and_hints() -> None:
    symbols = {symbol.name: symbol for symbol in exported("t5").graph.symbols}

    assert set(symbols) == {"batch", "sequence", "target"}
    sequence = symbols["sequence"]
    assert (sequence.lower, sequence.upper, sequence.hint, sequence.unbacked) == (2, 64, 8, False)


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("t5", {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}),
        ("bert", set()),
    ],
)
def test_tied_weights_are_one_group_whose_bytes_are_stored_once(family: str, tied: set[str]) -> None:
    model = exported(family)

    grouped = [state for state in model.graph.states if state.tie_group]

    assert {state.name for state in grouped} == tied
    assert len({(state.tie_group, state.sha256) for state in grouped}) <= 1
    assert len(tied & set(model.tensors)) == min(1, len(tied))


def test_module_paths_name_the_innermost_module() -> None:
    paths = {node.module_path for node in exported("t5").graph.nodes}

    assert {"encoder.block.1.layer.0.SelfAttention.q", "decoder.block.0.layer.1.EncDecAttention.v", "lm_head"} <= paths


def test_model_outputs_keep_their_type_and_names() -> None:
    graph = exported("bert").graph

    assert isinstance(graph.output_tree, TreeObject)
    assert graph.output_tree.type_name.endswith("BaseModelOutputWithPoolingAndCrossAttentions")
    assert [entry.name for entry in graph.outputs] == ["last_hidden_state", "pooler_output"]


def test_flags_and_none_are_constants_of_the_signature() -> None:
    graph = exported("t5").graph
    inputs = {entry.name: entry.content for entry in graph.inputs}

    assert inputs["use_cache"] is False
    assert isinstance(inputs["attention_mask"], ValueReference)
    assert exported("mixture").graph.outputs[-1].content is None


def test_training_batch_normalisation_is_known_to_write_its_statistics() -> None:
    case = FAMILIES["unet"](train=True)
    graph = export(case.module, case.args, dynamic_shapes=case.dynamic_shapes).graph

    norms = [node for node in graph.nodes if node.operator.name == "aten::batch_norm"]

    assert graph.training
    assert {node.operator.mutated_arguments for node in norms} == {(3, 4)}
    written = {value_id for node in norms for value_id in values_read(node)[3:5]}
    mutated = {state.name for state in graph.states if state.mutated}
    assert {state.name for state in graph.states if state.value_id in written} <= mutated
    assert {name.rpartition(".")[2] for name in mutated} == {"running_mean", "running_var", "num_batches_tracked"}


def test_in_place_activations_become_functional() -> None:
    operators = {node.operator.name for node in export(Residual(), (torch.ones(1, 2, 4, 4),)).graph.nodes}

    assert {"aten::relu", "aten::add"} <= operators
    assert not {"aten::relu_", "aten::add_"} & operators


def test_the_same_program_gives_the_same_bytes() -> None:
    case = FAMILIES["dlrm"]()
    again = export(case.module, case.args, case.kwargs, dynamic_shapes=case.dynamic_shapes, name="dlrm")

    assert graph_to_bytes(again.graph) == graph_to_bytes(exported("dlrm").graph)
