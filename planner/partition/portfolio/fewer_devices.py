"""Segments of the program order on the quickest of the devices alone: on half of them, on a quarter, and so on.

A training step of few microbatches fills and drains a pipeline for as long as it runs full: with fewer stages its
busiest device does more for each microbatch, and the step may be over sooner. These are where moved cuts begin from.
"""

from __future__ import annotations

import numpy as np

from planner.partition.assignment import contiguous, on_devices
from planner.partition.ordered.hosts import device_speeds, hosts_of
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.portfolio.portfolio import Portfolio


def offer_fewer_devices(portfolio: Portfolio) -> None:
    """Down to half as many as microbatches: a pipeline of those is full for most of the step. Devices of the quickest
    hosts first, of a host the quickest."""
    problem = portfolio.problem
    assert problem.training is not None
    host_of_device = hosts_of(problem).host_of_device
    speeds = device_speeds(problem)
    of_host = (np.bincount(host_of_device, speeds) / np.bincount(host_of_device))[host_of_device]
    order, runs = np.lexsort((-speeds, host_of_device, -of_host)), np.isfinite(problem.compute_seconds)
    count = problem.num_devices // 2
    while count >= max(2, problem.training.microbatches // 2) and not portfolio.request.out_of_time():
        devices = np.sort(order[:count])
        count //= 2
        if not runs[devices].any(axis=0).all():
            continue
        fewer = problem.with_devices(devices)
        layout = least_bottleneck(fewer, prove=False)
        if layout is not None:
            portfolio.offer(on_devices(contiguous(fewer, layout.boundaries, layout.devices), devices.tolist()))
