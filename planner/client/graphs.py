"""Submitting graphs and their weights, and asking about them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.export import ExportedCheckpoint, ExportedModel, read_exported
from planner.client.export.exported_model import DEFAULT_MAX_FILE_BYTES
from planner.client.messages import graph_record_from_proto
from planner.client.records import CollectedBlobs, GraphRecord
from planner.client.request_ids import new_request_id
from planner.client.uploads import Blob, OnProgress, blob_of_bytes, blob_of_file, upload_blob
from planner.client.weight_files import check_weights, weight_files
from planner.client.weight_layout import weight_blobs
from planner.errors import InvalidArgument, NotFound, Unavailable
from planner.graph.checkpoint import SavedTensor
from planner.graph.ir import Graph
from planner.graph.state_names import StateNames
from planner.store.weights import TensorLocation, index_safetensors
from planner.wire.graph import graph_from_bytes, graph_to_bytes
from protos.v1 import graph_pb2, planner_pb2

if TYPE_CHECKING:
    from planner.client.tensors import RawTensor

# A bucket is asked about one blob after the other.
COLLECT_SECONDS = 3600.0


@checks_arguments
class GraphCalls:
    _connection: Connection

    def submit(
        self,
        exported: ExportedModel | ExportedCheckpoint | Graph | str | Path,
        name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> GraphRecord:
        """Uploads a graph and its weights; what the server has already is not sent again.

        `exported` is what `export` or `export_checkpoint` gave, the path that a model was saved at, or a Graph without
        weights. Those of a checkpoint are streamed out of its files, one chunk at a time.
        """
        if isinstance(exported, (str, Path)):
            graph, files = read_exported(exported)
            if files:
                check_weights(graph, files, stacklevel=3)
            return self._submit(graph, map(blob_of_file, files), name, on_progress)
        if isinstance(exported, Graph):
            return self._submit(exported, (), name, on_progress)
        if isinstance(exported, ExportedCheckpoint):
            blobs = weight_blobs(exported.tensors, DEFAULT_MAX_FILE_BYTES)
            return self._submit(exported.graph, blobs, name, on_progress)
        if not hasattr(exported, "save_weights"):
            raise InvalidArgument(
                f"got a {type(exported).__name__}, needs what export(module, args) gives, or where that was saved"
            )
        with tempfile.TemporaryDirectory(prefix="partition-planner-") as folder:
            files = exported.save_weights(Path(folder))
            return self._submit(exported.graph, map(blob_of_file, files), name, on_progress)

    def attach_weights(
        self, graph_id: str, files: str | Path | Sequence[str | Path], on_progress: OnProgress | None = None
    ) -> GraphRecord:
        """Gives a graph that was submitted without weights its safetensors files, or folders of such.

        What does not fit is said before anything is sent, and what the graph has no use for is warned of.
        """
        paths = weight_files(files)
        check_weights(self.read_graph(graph_id), paths, stacklevel=3)
        weights = self._upload_weights(map(blob_of_file, paths), on_progress)
        request = planner_pb2.AttachWeightsRequest(graph_id=graph_id, weights=weights)
        return graph_record_from_proto(self._connection.call(self._connection.stub.AttachWeights, request))

    def get_graph(self, graph_id: str) -> GraphRecord:
        """What the server knows of it, without its nodes. Raises NotFound."""
        request = planner_pb2.GetGraphRequest(graph_id=graph_id)
        return graph_record_from_proto(self._connection.call(self._connection.stub.GetGraph, request))

    def list_graphs(
        self, *, name: str = "", owner: str = "", created_since: datetime | None = None
    ) -> Iterator[GraphRecord]:
        """Newest first, page by page; with `name`, those that were ever submitted under it.

        Empty filters let everything through; `owner` is the holder of a token.
        """
        request = planner_pb2.ListGraphsRequest(name=name)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListGraphs, request, owner=owner, created_since=created_since):
            yield from map(graph_record_from_proto, page.graphs)

    def delete_graph(self, graph_id: str) -> str:
        """The id of what is gone. Raises Conflict naming the plans, profiles and deployments that are of it."""
        request = planner_pb2.DeleteGraphRequest(graph_id=graph_id)
        return str(self._connection.call(self._connection.stub.DeleteGraph, request).id)

    def read_graph(self, graph_id: str) -> Graph:
        """The graph itself, as it was submitted."""
        sha256 = bytes.fromhex(self.get_graph(graph_id).id)
        return graph_from_bytes(b"".join(self.read_blob(sha256)))

    def read_blob(self, sha256: bytes, offset_bytes: int = 0, length_bytes: int = 0) -> Iterator[bytes]:
        """In pieces of at most 1 MiB, in order; a length of 0 means to the end. Raises NotFound.

        Where the connection is lost in the middle, the rest is asked for again.
        """
        end_bytes = offset_bytes + length_bytes
        while True:
            begun_at = offset_bytes
            request = planner_pb2.ReadBlobRequest(sha256=sha256, offset_bytes=offset_bytes, length_bytes=length_bytes)
            try:
                for response in self._connection.stream(self._connection.stub.ReadBlob, request):
                    offset_bytes += len(response.chunk)
                    yield response.chunk
                return
            except Unavailable:
                # Nobody has answered for as long as a restart may take.
                if offset_bytes == begun_at:
                    raise
            if length_bytes and offset_bytes == end_bytes:
                return
            length_bytes = end_bytes - offset_bytes if length_bytes else 0

    def read_weights(self, graph_id: str, names: StateNames, wanted: Iterable[str]) -> dict[str, RawTensor]:
        """States as they were uploaded with the graph, by the names `wanted`, of which tied ones may be under another.

        Raises NotFound for a graph without weights.
        """
        # It has numpy, whose import a command that shows a table would wait for.
        from planner.client.tensors import RawTensor

        return {
            name: RawTensor(dtype=place.dtype, dims=place.dims, data=b"".join(self._read_range(place)))
            for name, place in self._weight_places(graph_id, names, wanted).items()
        }

    def _weight_places(self, graph_id: str, names: StateNames, state_names: Iterable[str]) -> dict[str, TensorLocation]:
        """Of the weight files, their headers are read alone."""
        state_names = tuple(state_names)
        if not state_names:
            return {}
        tensors: dict[str, TensorLocation] = {}
        for file in self.get_graph(graph_id).weight_files:
            tensors |= index_safetensors(self.read_blob, file)
        locations = {}
        for name in state_names:
            under = next((one for one in names.tied(name) if one in tensors), None)
            if under is None:
                raise NotFound(f"state {name!r} is in none of the weight files of graph {graph_id}")
            locations[name] = tensors[under]
        return locations

    def _read_range(self, place: SavedTensor | TensorLocation) -> Iterator[bytes]:
        if place.length_bytes:
            yield from self.read_blob(place.file_sha256, place.offset_bytes, place.length_bytes)

    def collect_blobs(self, *, dry_run: bool = False) -> CollectedBlobs:
        """Frees the bytes of deleted graphs and of submissions that were given up; with `dry_run` only counts them.

        What was uploaded or asked for within the server's grace period stays.
        """
        request = planner_pb2.CollectBlobsRequest(dry_run=dry_run)
        stub = self._connection.stub
        response = self._connection.call(stub.CollectBlobs, request, timeout_seconds=COLLECT_SECONDS)
        return CollectedBlobs(
            num_blobs=response.num_blobs,
            size_bytes=response.size_bytes,
            num_referenced=response.num_referenced,
            num_young=response.num_young,
        )

    def _submit(
        self, graph: Graph, weights: Iterable[Blob], name: str | None, on_progress: OnProgress | None
    ) -> GraphRecord:
        blob = blob_of_bytes("graph", graph_to_bytes(graph))
        upload_blob(self._connection, blob, on_progress)
        uploaded = self._upload_weights(weights, on_progress)
        request = planner_pb2.CreateGraphRequest(
            request_id=new_request_id(),
            sha256=blob.sha256,
            weights=uploaded if uploaded.files else None,
            name=name or "",
        )
        return graph_record_from_proto(self._connection.call(self._connection.stub.CreateGraph, request))

    def _upload_weights(self, blobs: Iterable[Blob], on_progress: OnProgress | None) -> graph_pb2.Weights:
        files = []
        for blob in blobs:
            upload_blob(self._connection, blob, on_progress)
            files.append(graph_pb2.WeightFile(sha256=blob.sha256, size_bytes=blob.size_bytes))
        return graph_pb2.Weights(files=files)
