"""Over how many copies of its weights a node is timed."""

import pytest

from stage_daemon.worker.profile.states import CACHE_BYTES, MAX_COPIES, num_copies


@pytest.mark.parametrize(
    ("node_bytes", "graph_bytes", "copies"),
    [
        (0, 1 << 30, 1),
        (1000, 1000, 1),
        (1000, 8000, 8),
        (1 << 20, 1 << 34, CACHE_BYTES >> 20),
        (1 << 30, 1 << 34, 1),
        (16, 1 << 34, MAX_COPIES),
    ],
)
def test_copies_stand_for_what_a_run_reads_between(node_bytes: int, graph_bytes: int, copies: int) -> None:
    assert num_copies(node_bytes, graph_bytes) == copies
