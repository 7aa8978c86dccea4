"""The planner's service without a network: its calls on a database, blobs and a computing of the test's choice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from planner.api.blob_collection import BlobCollection
from planner.api.computing import Computing
from planner.api.plan_runner import PlanRunner
from planner.api.service import PlannerService
from planner.dispatch.dispatcher import Dispatcher
from planner.settings import Settings
from planner.store.blobs import BlobStore
from planner.store.database import Database
from tests.contract.databases import empty_database


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    settings: Settings
    database: Database
    blobs: BlobStore
    dispatcher: Dispatcher

    def service(self, runner: PlanRunner) -> PlannerService:
        collection = BlobCollection(self.database, self.blobs, timedelta(hours=self.settings.blob_grace_hours))
        return PlannerService(
            self.settings, self.database, self.blobs, Computing(1), runner, self.dispatcher, collection
        )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", max_pending_plans=3)


@pytest_asyncio.fixture
async def planner(settings: Settings, tmp_path: Path) -> AsyncIterator[Planner]:
    async with open_planner("sqlite", settings, tmp_path) as planner:
        yield planner


@asynccontextmanager
async def open_planner(kind: str, settings: Settings, folder: Path) -> AsyncIterator[Planner]:
    with empty_database(kind, folder) as url:
        database = Database(url)
        blobs = BlobStore(settings.blobs, settings.staging_dir)
        dispatcher = Dispatcher(database, blobs, settings)
        yield Planner(settings=settings, database=database, blobs=blobs, dispatcher=dispatcher)
        await dispatcher.close()
        await database.close()
