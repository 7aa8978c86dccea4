"""What must not be written down is not, and the rest is."""

from __future__ import annotations

import pytest

from planner.redaction import without_secrets


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("postgresql://me:hunter2@db:5432/planner", "postgresql://me:***@db:5432/planner"),
        ("at 'postgresql+psycopg://me:p@ss:w@rd@db/planner' now", "at 'postgresql+psycopg://me:***@db/planner' now"),
        ("host=db password=hunter2 user=me", "host=db password=*** user=me"),
        ('{"db_password": "hunter2", "user": "me"}', '{"db_password": "***", "user": "me"}'),
        ("AWS_SECRET='hunter2', API_KEY=hunter2", "AWS_SECRET='***', API_KEY=***"),
        ("?sslmode=require&password=hunter2&x=1", "?sslmode=require&password=***&x=1"),
        ("postgresql://db:5432/planner", "postgresql://db:5432/planner"),
        ("edge 0: nothing came from 127.0.0.1:50051", "edge 0: nothing came from 127.0.0.1:50051"),
    ],
)
def test_secrets_are_hidden_and_nothing_else(text: str, written: str) -> None:
    assert without_secrets(text) == written
    assert without_secrets(written) == written
