"""Uploads: resumed after a broken connection, skipped where the server has the bytes, refused where they changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from planner.client import PlannerClient
from planner.client.connection import Connection
from planner.client.records import UploadProgress
from planner.client.uploads import blob_of_bytes, blob_of_file, upload_blob
from planner.errors import Corrupt
from tests.planner.client.cutting_proxy import cutting_proxy
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

MEBIBYTE = 1 << 20


@pytest.fixture
def connection(server_address: str) -> Iterator[Connection]:
    connected = Connection(server_address, timeout_seconds=WAIT_SECONDS)
    yield connected
    connected.close()


def test_an_upload_goes_on_from_where_it_broke(server_address: str, client: PlannerClient) -> None:
    content = os.urandom(12 * MEBIBYTE)
    seen: list[UploadProgress] = []
    with cutting_proxy(server_address, 4 * MEBIBYTE, 3 * MEBIBYTE, 2 * MEBIBYTE) as proxy:
        connection = Connection(proxy.address, timeout_seconds=WAIT_SECONDS)
        upload_blob(connection, blob_of_bytes("weights", content), seen.append)
        connection.close()
        assert proxy.num_cuts == 3
        # What had arrived was not sent again: far less than four times the whole.
        assert proxy.carried_bytes < 1.75 * len(content)
    assert b"".join(client.read_blob(hashlib.sha256(content).digest())) == content
    assert seen[-1].sent_bytes == seen[-1].total_bytes == len(content)


def test_what_the_server_has_is_not_sent_again(server_address: str, connection: Connection) -> None:
    blob = blob_of_bytes("weights", os.urandom(8 * MEBIBYTE))
    upload_blob(connection, blob)
    with cutting_proxy(server_address) as proxy:
        again = Connection(proxy.address, timeout_seconds=WAIT_SECONDS)
        upload_blob(again, blob)
        again.close()
        assert proxy.carried_bytes < MEBIBYTE


def test_bytes_that_changed_under_way_are_refused(connection: Connection, client: PlannerClient) -> None:
    blob = blob_of_bytes("weights", b"what was hashed" * 1000)
    changed = replace(blob, open=blob_of_bytes("weights", b"what is sentxxx" * 1000).open)
    with pytest.raises(Corrupt):
        upload_blob(connection, changed)
    # Nothing of it was kept: the right bytes still go through.
    upload_blob(connection, blob)
    assert b"".join(client.read_blob(blob.sha256)) == b"what was hashed" * 1000


def test_an_empty_file_and_a_file_on_disk(connection: Connection, client: PlannerClient, tmp_path: Path) -> None:
    for content in (b"", os.urandom(3 * MEBIBYTE + 17)):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(content)
        upload_blob(connection, blob_of_file(path))
        assert b"".join(client.read_blob(hashlib.sha256(content).digest())) == content
