"""How many threads a worker uses for one operator on a CPU."""

from __future__ import annotations

import torch

from stage_daemon.errors import InvalidRequest
from stage_daemon.worker.shared_cores import most_cores, workers_share_cores

# As the planner takes it: torch takes no more than an int of C holds.
MOST_THREADS = 4096


def use_threads(device: torch.device, num_threads: int, workers_on_host: int) -> None:
    """Before any lane begins: threads that start later take over what is set here.

    Where nothing is asked for (0), workers of one host would each take all of its cores and wait for each other: each
    takes its share. So would those of a container with a quota, beyond which the kernel makes them wait.
    """
    if num_threads > MOST_THREADS:
        raise InvalidRequest(f"num_threads is {num_threads}, needs at most {MOST_THREADS}")
    if num_threads:
        torch.set_num_threads(num_threads)
    elif device.type == "cpu" and workers_share_cores():
        share = max(1, min(torch.get_num_threads(), most_cores()) // max(1, workers_on_host))
        if share < torch.get_num_threads():
            torch.set_num_threads(share)
