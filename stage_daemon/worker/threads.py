"""How many threads a worker uses for one operator on a CPU."""

from __future__ import annotations

import torch

from stage_daemon.worker.shared_cores import workers_share_cores


def use_threads(device: torch.device, num_threads: int, workers_on_host: int) -> None:
    """Before any lane begins: threads that start later take over what is set here.

    Where nothing is asked for (0), workers of one host would each take all of its cores and wait for each other: each
    takes its share.
    """
    if num_threads:
        torch.set_num_threads(num_threads)
    elif device.type == "cpu" and workers_on_host > 1 and workers_share_cores():
        torch.set_num_threads(max(1, torch.get_num_threads() // workers_on_host))
