"""Measured node times: taken on a daemon or given, and what plans of a graph are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from planner.client.connection import Connection
from planner.client.messages import (
    profile_from_proto,
    profile_progress_from_proto,
    profile_record_from_proto,
)
from planner.client.records import Profile, ProfileProgress, ProfileRecord
from planner.cost.calibration import Calibration
from planner.cost.measured import MeasuredTimes
from planner.wire.profiles import import_to_proto
from protos.v1 import planner_pb2

# Checking times reads the whole graph, and fits rates to them.
IMPORT_SECONDS = 300.0


class ProfileCalls:
    _connection: Connection

    def profile_graph(
        self,
        graph_id: str,
        *,
        device_ids: Iterable[str] = (),
        device_kinds: Iterable[str] = (),
        symbol_values: Mapping[str, int] | None = None,
        repetitions: int = 0,
        warmup: int = 0,
        on_progress: Callable[[ProfileProgress], None] | None = None,
    ) -> tuple[ProfileRecord, ...]:
        """Times the graph's nodes, one device after the other, and stores the times; given up on, it ends there.

        On the devices named, else on a free one of each kind named, else of each kind that is there.
        """
        request = planner_pb2.ProfileGraphRequest(
            graph_id=graph_id,
            device_ids=device_ids,
            device_kinds=device_kinds,
            symbol_values=symbol_values or {},
            repetitions=repetitions,
            warmup=warmup,
        )
        stored: list[ProfileRecord] = []
        for response in self._connection.stream(self._connection.stub.ProfileGraph, request):
            if response.HasField("profile"):
                stored.append(profile_record_from_proto(response.profile))
            elif on_progress is not None:
                on_progress(profile_progress_from_proto(response))
        return tuple(stored)

    def import_times(self, times: MeasuredTimes, graph_id: str | None = None) -> ProfileRecord:
        """`graph_id` None means the one that the times name."""
        request = import_to_proto(times, graph_id or times.graph_id)
        stub = self._connection.stub
        return profile_record_from_proto(
            self._connection.call(stub.ImportTimes, request, timeout_seconds=IMPORT_SECONDS)
        )

    def get_profile(self, profile_id: str) -> Profile:
        request = planner_pb2.GetProfileRequest(profile_id=profile_id)
        return profile_from_proto(self._connection.call(self._connection.stub.GetProfile, request))

    def list_profiles(self, *, graph_id: str = "", device_kind: str = "") -> Iterator[ProfileRecord]:
        """Newest first, page by page. Empty filters let everything through."""
        request = planner_pb2.ListProfilesRequest(graph_id=graph_id, device_kind=device_kind)
        for page in self._connection.pages(self._connection.stub.ListProfiles, request):
            yield from map(profile_record_from_proto, page.profiles)

    def delete_profile(self, profile_id: str) -> None:
        request = planner_pb2.DeleteProfileRequest(profile_id=profile_id)
        self._connection.call(self._connection.stub.DeleteProfile, request)

    def stored_costs(
        self, graph_id: str, device_kinds: Iterable[str]
    ) -> tuple[tuple[MeasuredTimes, ...], tuple[Calibration, ...]]:
        """What the server plans this graph with on these kinds: (measured, calibrations) as make_plan takes them."""
        measured: list[MeasuredTimes] = []
        calibrations: list[Calibration] = []
        for kind in sorted({kind.lower() for kind in device_kinds}):
            records = list(self.list_profiles(device_kind=kind))
            own = sorted((one for one in records if one.graph_id == graph_id), key=lambda one: one.symbol_values)
            measured.extend(self.get_profile(record.id).times for record in own)
            fitted = [one.calibration for one in records if one.calibration is not None]
            calibrations.extend(sorted(fitted, key=lambda one: -one.num_nodes)[:1])
        return tuple(measured), tuple(calibrations)
