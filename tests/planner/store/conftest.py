"""An empty database of each kind, with all tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from planner.store.database import Database
from tests.contract.databases import KINDS, empty_database


@pytest_asyncio.fixture(params=KINDS)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    with empty_database(request.param, tmp_path) as url:
        database = Database(url)
        yield database
        await database.close()
