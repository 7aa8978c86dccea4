"""What worker processes find out about graphs and times, called in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.api.tasks import GraphSource, examine_graph, examine_times
from planner.cost.measured import MeasuredTimes
from planner.errors import GraphError, InvalidArgument, NotFound
from planner.graph.ir import Dtype, Graph, WeightFile
from planner.store.blobs import BlobStore
from planner.wire.graph import graph_to_bytes
from tests.contract.graphs import chain_weights, linear_chain, relu_chain, sha256


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore((tmp_path / "blobs").as_uri(), tmp_path / "staging")


def source_of(blobs: BlobStore, tmp_path: Path, graph: Graph | bytes, **limits: int) -> GraphSource:
    content = graph if isinstance(graph, bytes) else graph_to_bytes(graph)
    fields = {"max_bytes": 1 << 20, "max_nodes": 1000, **limits}
    return GraphSource(
        blob_url=(tmp_path / "blobs").as_uri(), staging=tmp_path / "staging", sha256=blobs.put(content), **fields
    )


def file_of(content: bytes, size_bytes: int | None = None) -> WeightFile:
    return WeightFile(sha256=sha256(content), size_bytes=len(content) if size_bytes is None else size_bytes)


def test_what_is_kept_of_a_graph(blobs: BlobStore, tmp_path: Path) -> None:
    weights = chain_weights(num_layers=3, width=4)
    blobs.put(weights)
    facts = examine_graph(source_of(blobs, tmp_path, linear_chain(3, 4, "three")), (file_of(weights),))
    assert (facts.name, facts.torch_version, facts.num_nodes, facts.num_states) == ("three", "2.13.0", 3, 3)
    assert (facts.state_bytes, facts.not_deployable_reason) == (3 * 4 * 4 * 4, "")


def test_a_graph_with_states_but_no_weights_cannot_be_deployed_and_one_without_states_can(
    blobs: BlobStore, tmp_path: Path
) -> None:
    assert "weights" in examine_graph(source_of(blobs, tmp_path, linear_chain(1)), ()).not_deployable_reason
    assert examine_graph(source_of(blobs, tmp_path, relu_chain(1)), ()).not_deployable_reason == ""


def test_tied_states_count_once_and_dtypes_by_their_size(blobs: BlobStore, tmp_path: Path) -> None:
    graph = linear_chain(4, 8)
    groups = (7, 0, 7, 0)
    states = tuple(replace(state, tie_group=group) for state, group in zip(graph.states, groups, strict=True))
    lighter = {state.value_id for state in graph.states[1:2]}
    values = tuple(replace(one, dtype=Dtype.FLOAT16) if one.id in lighter else one for one in graph.values)
    tied = source_of(blobs, tmp_path, replace(graph, states=states, values=values))
    assert examine_graph(tied, ()).state_bytes == 8 * 8 * (4 + 2 + 4)


def test_weights_that_are_not_there_or_of_another_size(blobs: BlobStore, tmp_path: Path) -> None:
    source = source_of(blobs, tmp_path, linear_chain(2))
    weights = chain_weights(num_layers=2)
    with pytest.raises(NotFound, match=f"weight file {sha256(weights).hex()} is not complete here"):
        examine_graph(source, (file_of(weights),))
    blobs.put(weights)
    with pytest.raises(InvalidArgument, match=f"has {len(weights)} bytes, not {len(weights) - 1}"):
        examine_graph(source, (file_of(weights, len(weights) - 1),))
    short = chain_weights(num_layers=1)
    blobs.put(short)
    with pytest.raises(NotFound, match=r"layers\.1\.weight"):
        examine_graph(source, (file_of(short),))


def test_limits_of_nodes_and_bytes(blobs: BlobStore, tmp_path: Path) -> None:
    content = graph_to_bytes(relu_chain(5))
    assert len(source_of(blobs, tmp_path, content, max_nodes=5, max_bytes=len(content)).read().nodes) == 5
    with pytest.raises(GraphError, match="has 5 nodes, this server takes at most 4") as caught:
        source_of(blobs, tmp_path, content, max_nodes=4).read()
    assert caught.value.metadata == {"num_nodes": "5"}
    with pytest.raises(InvalidArgument, match=f"at most {len(content) - 1} are read"):
        source_of(blobs, tmp_path, content, max_bytes=len(content) - 1).read()


def times(*seconds: tuple[int, float], **changes: object) -> MeasuredTimes:
    return MeasuredTimes(graph_id="ab", device_kind="cpu", seconds=seconds, **changes)  # type: ignore[arg-type]


def test_few_times_fit_no_rates_and_many_do(blobs: BlobStore, tmp_path: Path) -> None:
    source = source_of(blobs, tmp_path, linear_chain(12, 8))
    few = examine_times(source, times(*((node, 1e-5) for node in range(7))))
    assert (few.num_nodes, few.symbol_values, few.calibration) == (12, (), None)
    many = examine_times(source, times(*((node, 1e-5) for node in range(8)))).calibration
    assert many is not None
    assert (many.device_kind, many.num_nodes) == ("cpu", 8)
    assert many.median_error < 1e-6


def test_times_of_a_node_or_a_dimension_that_the_graph_lacks(blobs: BlobStore, tmp_path: Path) -> None:
    source = source_of(blobs, tmp_path, linear_chain(2))
    assert examine_times(source, times((1, 1.0))).num_nodes == 2
    with pytest.raises(InvalidArgument, match="node 2, and the graph has 2 nodes"):
        examine_times(source, times((2, 1.0)))
    with pytest.raises(InvalidArgument, match="names 'batch'"):
        examine_times(source, times((1, 1.0), symbol_values=(("batch", 2),)))
