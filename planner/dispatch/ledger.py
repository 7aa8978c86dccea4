"""A deployment's events: written as rows, and told to whoever watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from sqlalchemy.ext.asyncio import AsyncSession

from planner.dispatch.leadership import Leadership
from planner.store.database import Database
from planner.store.deployment_records import Deployment, DeploymentEvent, LoadedStage
from planner.store.deployments import (
    append_event,
    begin_generation,
    get_deployment,
    is_last_event,
    list_events,
    set_loaded,
)

POLL_SECONDS = 0.5


class Ledger:
    """Watchers read what was written: they miss nothing, and a slow one holds nobody up."""

    def __init__(self, database: Database, leadership: Leadership) -> None:
        self._database = database
        self._leadership = leadership
        self._watchers: dict[str, set[asyncio.Event]] = {}

    async def append(self, deployment_id: str, event: DeploymentEvent, begun: Deployment | None = None) -> None:
        """Returns once it is written, however long the database is away. `begun`: with it a generation begins.

        Raises NotLeading, and nothing is written, where another planner rolls out by now.
        """
        num_tries = 0

        async def write(session: AsyncSession) -> None:
            nonlocal num_tries
            num_tries += 1
            await self._leadership.check(session)
            if num_tries > 1 and await is_last_event(session, deployment_id, event):
                return
            if begun is not None:
                await begin_generation(session, begun)
            await append_event(session, deployment_id, event)

        await self._database.persist(write)
        for wake in self._watchers.get(deployment_id, ()):
            wake.set()

    async def tell_loaded(self, deployment_id: str, device_id: str, stages: Sequence[LoadedStage]) -> None:
        """As `append`, what the worker that has loaded them says of the device's stages."""

        async def write(session: AsyncSession) -> None:
            await self._leadership.check(session)
            await set_loaded(session, deployment_id, device_id, stages)

        await self._database.persist(write)

    async def watch(self, deployment_id: str, after_sequence: int) -> AsyncIterator[DeploymentEvent]:
        """History, then each new event; ends after the one that ends the deployment. Raises NotFound."""
        wake = asyncio.Event()
        watchers = self._watchers.setdefault(deployment_id, set())
        watchers.add(wake)
        try:
            while True:
                wake.clear()
                events, ended = await self._read(deployment_id, after_sequence)
                for event in events:
                    yield event
                    after_sequence = event.sequence
                if ended:
                    return
                await self._news(wake)
        finally:
            watchers.discard(wake)
            if not watchers:
                self._watchers.pop(deployment_id, None)

    async def _news(self, wake: asyncio.Event) -> None:
        """Of what another planner writes nobody is told here: it is looked for."""
        if not self._database.is_shared:
            await wake.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await wake.wait()

    async def _read(self, deployment_id: str, after_sequence: int) -> tuple[tuple[DeploymentEvent, ...], bool]:
        async with self._database.reading() as session:
            deployment = await get_deployment(session, deployment_id)
            return await list_events(session, deployment_id, after_sequence), deployment.state.ended
