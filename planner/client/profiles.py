"""Measured node times: taken on a daemon or given, and what plans of a graph are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.messages import (
    profile_from_proto,
    profile_progress_from_proto,
    profile_record_from_proto,
    threads_to_proto,
)
from planner.client.records import Profile, ProfileProgress, ProfileRecord, StoredPlan
from planner.cost.borrowed import named_rates, newest_rates
from planner.cost.calibration import Calibration
from planner.cost.measured import MeasuredTimes
from planner.errors import NotFound
from planner.plan.options import RatesFrom
from planner.wire.profiles import import_to_proto
from protos.v1 import planner_pb2

# Checking times reads the whole graph, and fits rates to them.
IMPORT_SECONDS = 300.0

# (measured, calibrations) as make_plan takes them.
Costs = tuple[tuple[MeasuredTimes, ...], tuple[Calibration, ...]]


@checks_arguments
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
        backward: bool = False,
        num_threads: int | None = None,
        num_neighbours: int | None = None,
        on_progress: Callable[[ProfileProgress], None] | None = None,
    ) -> tuple[ProfileRecord, ...]:
        """Times the graph's nodes, one device after the other, and stores the times; given up on, it ends there.

        On the devices named, else on a free one of each kind named, else of each kind that is there. With `backward`
        the backward passes through its nodes too, which plans for training are made with. `num_threads` is how many an
        operator uses on a CPU, as deployments of the plans will; without it as many as torch takes.

        On a CPU the graph runs beside `num_neighbours` others, as far as there are cores for them; without it beside
        one for each other daemon of the host. For plans of one device: 0.
        """
        request = planner_pb2.ProfileGraphRequest(
            graph_id=graph_id,
            device_ids=device_ids,
            device_kinds=device_kinds,
            symbol_values=symbol_values or {},
            repetitions=repetitions,
            warmup=warmup,
            backward=backward,
            num_threads=threads_to_proto(num_threads),
            num_neighbours=num_neighbours,
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
        """With each node's seconds. Raises NotFound."""
        request = planner_pb2.GetProfileRequest(profile_id=profile_id)
        return profile_from_proto(self._connection.call(self._connection.stub.GetProfile, request))

    def list_profiles(
        self, *, graph_id: str = "", device_kind: str = "", owner: str = "", created_since: datetime | None = None
    ) -> Iterator[ProfileRecord]:
        """Newest first, page by page. Empty filters let everything through; `owner` is the holder of a token."""
        request = planner_pb2.ListProfilesRequest(graph_id=graph_id, device_kind=device_kind)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListProfiles, request, owner=owner, created_since=created_since):
            yield from map(profile_record_from_proto, page.profiles)

    def delete_profile(self, profile_id: str) -> str:
        """The id of what is gone; plans that were made with it stay."""
        request = planner_pb2.DeleteProfileRequest(profile_id=profile_id)
        return str(self._connection.call(self._connection.stub.DeleteProfile, request).id)

    def recorded_costs(self, plan: StoredPlan) -> Costs:
        """What the plan was made with, by the ids that it records: whatever was measured since plays no part.

        Raises NotFound where one of those profiles was deleted since, or replaced by a newer one.
        """
        ids = dict.fromkeys(profile_id for source in plan.cost_sources for profile_id in source.profile_ids)
        profiles = {profile_id: self._recorded(plan, profile_id) for profile_id in ids}
        measured = dict.fromkeys(one for source in plan.cost_sources for one in source.measured_profile_ids)
        rates = dict.fromkeys(one for source in plan.cost_sources for one in source.calibration_profile_ids)
        fitted = [profiles[profile_id].record.calibration for profile_id in rates]
        return tuple(profiles[profile_id].times for profile_id in measured), tuple(one for one in fitted if one)

    def measured_times(self, graph_id: str, device_kinds: Iterable[str]) -> tuple[MeasuredTimes, ...]:
        """All that is stored of the graph on these kinds, newest first."""
        kinds = sorted({kind.lower() for kind in device_kinds})
        records = [one for kind in kinds for one in self.list_profiles(graph_id=graph_id, device_kind=kind)]
        return tuple(self.get_profile(record.id).times for record in records)

    def fitted_rates(
        self, device_kinds: Iterable[str], rates_from: RatesFrom, profile_ids: Iterable[str] = ()
    ) -> tuple[Calibration, ...]:
        """Rates of the profiles named, else as `rates_from` says, as a plan over these kinds would take them now."""
        kinds = sorted({kind.lower() for kind in device_kinds})
        named = [self.get_profile(profile_id).record for profile_id in profile_ids]
        if named:
            return named_rates(named, kinds)
        if rates_from is RatesFrom.OWN:
            return ()
        return newest_rates(record for kind in kinds for record in self._newest_with_rates(kind))

    def _newest_with_rates(self, device_kind: str) -> Iterator[ProfileRecord]:
        """At most one; pages past it are not asked for."""
        records = self.list_profiles(device_kind=device_kind)
        return islice((record for record in records if record.calibration is not None), 1)

    def _recorded(self, plan: StoredPlan, profile_id: str) -> Profile:
        try:
            return self.get_profile(profile_id)
        except NotFound:
            raise NotFound(
                f"plan {plan.id} was made with profile {profile_id}, which was deleted or replaced by newer times "
                f"since; make the plan again",
                plan_id=plan.id,
                profile_id=profile_id,
            ) from None
