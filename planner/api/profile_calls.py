"""Measured times over gRPC: profiled on a daemon or given, stored, listed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

from access.files import WatchedCredentials
from planner.api.computing import Computing
from planner.api.graph_calls import graph_source
from planner.api.identity import new_id
from planner.api.pages import page_of
from planner.api.records import profile_record_to_proto, profile_to_proto
from planner.api.tasks import examine_times
from planner.api.threads import in_thread
from planner.cost.measured import MAX_THREADS, MeasuredTimes
from planner.dispatch.daemon_client import CallDeadlines
from planner.dispatch.profiler import Measured, choose_daemons, profile, usual_neighbours
from planner.errors import InvalidArgument
from planner.settings import Settings
from planner.store.claims import database_now
from planner.store.daemons import list_usable_daemons
from planner.store.database import Database
from planner.store.deployment_records import Daemon
from planner.store.deployments import list_active_deployments
from planner.store.graphs import GraphRecord, get_graph
from planner.store.profiles import (
    Profile,
    ProfileRecord,
    delete_profile,
    get_profile,
    list_profiles,
    save_profile,
)
from planner.wire.profiles import times_from_import
from protos.v1 import planner_pb2, stage_daemon_pb2

MOST = {"repetitions": 10_000, "warmup": 10_000, "num_threads": MAX_THREADS, "num_neighbours": MAX_THREADS}


class ProfileCalls:
    _settings: Settings
    _database: Database
    _checks: Computing
    _credentials: WatchedCredentials | None

    async def ProfileGraph(
        self, request: planner_pb2.ProfileGraphRequest, context: Any
    ) -> AsyncIterator[planner_pb2.ProfileGraphResponse]:
        for name, most in MOST.items():
            if getattr(request, name) > most:
                raise InvalidArgument(f"{name} is {getattr(request, name)}, needs 0 to {most}")
        async with self._database.reading() as session:
            graph = await get_graph(session, request.graph_id)
            live = await list_usable_daemons(session, await database_now(session))
            active = await list_active_deployments(session)
        profile_request = stage_daemon_pb2.ProfileRequest(
            graph_sha256=graph.sha256,
            symbol_values=dict(request.symbol_values),
            repetitions=request.repetitions,
            warmup=request.warmup,
            backward=request.backward,
            num_threads=request.num_threads,
            num_neighbours=request.num_neighbours,
        )
        for daemon in choose_daemons(live, active, request.device_ids, request.device_kinds):
            remaining_seconds = context.time_remaining()
            if not request.HasField("num_neighbours"):
                profile_request.num_neighbours = usual_neighbours(daemon, live)
            async with aclosing(self._profile(graph, daemon, profile_request, remaining_seconds)) as responses:
                async for response in responses:
                    yield response

    async def ImportTimes(self, request: planner_pb2.ImportTimesRequest, _: Any) -> planner_pb2.ProfileRecord:
        async with self._database.reading() as session:
            graph = await get_graph(session, request.graph_id)
        times = await in_thread(times_from_import, request, graph.id)
        return profile_record_to_proto(await self._store(graph, times, ()))

    async def GetProfile(self, request: planner_pb2.GetProfileRequest, _: Any) -> planner_pb2.Profile:
        async with self._database.reading() as session:
            profile = await get_profile(session, request.profile_id)
        return await in_thread(profile_to_proto, profile)

    async def ListProfiles(self, request: planner_pb2.ListProfilesRequest, _: Any) -> planner_pb2.ListProfilesResponse:
        page = page_of(request, "profile", graph=request.graph_id, device_kind=request.device_kind)
        async with self._database.reading() as session:
            records, token = await list_profiles(
                session, page, graph_id=request.graph_id, device_kind=request.device_kind
            )
        return planner_pb2.ListProfilesResponse(
            profiles=[profile_record_to_proto(record) for record in records], next_page_token=token
        )

    async def DeleteProfile(
        self, request: planner_pb2.DeleteProfileRequest, _: Any
    ) -> planner_pb2.DeleteProfileResponse:
        async with self._database.session() as session:
            await delete_profile(session, request.profile_id)
        return planner_pb2.DeleteProfileResponse(id=request.profile_id)

    async def _profile(
        self,
        graph: GraphRecord,
        daemon: Daemon,
        profile_request: stage_daemon_pb2.ProfileRequest,
        remaining_seconds: float | None,
    ) -> AsyncGenerator[planner_pb2.ProfileGraphResponse, None]:
        """Progress, then what is stored."""
        answer = planner_pb2.ProfileGraphResponse(device_id=daemon.device.id, device_kind=daemon.device.kind)
        asking = profile(daemon, graph.id, profile_request, CallDeadlines(), self._credentials, remaining_seconds)
        async with aclosing(asking) as steps:
            async for step in steps:
                if isinstance(step, Measured):
                    record = await self._store(graph, step.times, step.unmeasured)
                    answer.profile.CopyFrom(profile_record_to_proto(record))
                else:
                    answer.num_done, answer.num_distinct = step.num_done, step.num_distinct
                yield answer

    async def _store(
        self, graph: GraphRecord, times: MeasuredTimes, unmeasured: tuple[tuple[int, str], ...]
    ) -> ProfileRecord:
        source = graph_source(self._settings, graph.sha256)
        async with self._checks.turn():
            facts = await self._checks.run(self._settings.check_timeout_seconds, examine_times, source, times)
        record = ProfileRecord(
            id=new_id("prof"),
            graph_id=graph.id,
            device_kind=times.device_kind,
            symbol_values=facts.symbol_values,
            source=times.source,
            num_nodes=facts.num_nodes,
            num_measured=len(times.seconds),
            total_seconds=sum(seconds for _, seconds in times.seconds),
            calibration=facts.calibration,
            created_at=datetime.now(UTC),
            delivery=times.delivery,
            update=times.update,
            num_threads=times.num_threads,
        )
        async with self._database.session() as session:
            await save_profile(session, Profile(record=record, times=times, unmeasured=unmeasured))
        return record
