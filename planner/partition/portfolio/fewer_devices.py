"""Segments of the program order on the quickest of the devices alone: on seven tenths of them, on half, and so on.

A training step of few microbatches fills and drains a pipeline for as long as it runs full: with fewer stages its
busiest device does more for each microbatch, and the step may be over sooner.
"""

from __future__ import annotations

import numpy as np

from planner.partition.assignment import contiguous, on_devices
from planner.partition.ordered.hosts import device_speeds, hosts_of
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.portfolio.portfolio import Portfolio

# With halves alone half of the benchmark's steps are 1 to 4 % longer.
_SHARE = 0.71


def offer_fewer_devices(portfolio: Portfolio) -> None:
    """Down to half as many as microbatches: a pipeline of those is full for most of the step. Devices of the quickest
    hosts first, then the quickest devices whatever their hosts."""
    problem = portfolio.problem
    assert problem.training is not None
    host_of_device = hosts_of(problem).host_of_device
    speeds = device_speeds(problem)
    of_host = (np.bincount(host_of_device, speeds) / np.bincount(host_of_device))[host_of_device]
    runs, tried = np.isfinite(problem.compute_seconds), set[bytes]()
    for keys in ((host_of_device, -of_host), (host_of_device, -speeds)):
        order, count = np.lexsort(keys), int(problem.num_devices * _SHARE)
        while count >= max(2, problem.training.microbatches // 2):
            devices = np.sort(order[:count])
            count = int(count * _SHARE)
            can_run_all = runs[devices].any(axis=0).all()
            if devices.tobytes() in tried or not can_run_all:
                continue
            if portfolio.request.out_of_time():
                return
            tried.add(devices.tobytes())
            fewer = problem.with_devices(devices)
            layout = least_bottleneck(fewer, prove=False)
            if layout is not None:
                portfolio.offer(on_devices(contiguous(fewer, layout.boundaries, layout.devices), devices.tolist()))
