"""A planner and daemons in processes of this host, each operator in one thread, as the peers beside them run theirs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planner.client import PlannerClient
from planner.client.local_cluster import LocalCluster


@contextmanager
def one_thread_daemons(num_daemons: int, memory_bytes: int) -> Iterator[tuple[LocalCluster, PlannerClient]]:
    """Each daemon offers so many bytes. All ends with the block, and so do the files."""
    with (
        tempfile.TemporaryDirectory(prefix="planner-") as folder,
        LocalCluster(
            data_dir=Path(folder), memory_bytes=(memory_bytes,) * num_daemons, environment={"OMP_NUM_THREADS": "1"}
        ) as cluster,
        PlannerClient(cluster.planner_address) as client,
    ):
        yield cluster, client
