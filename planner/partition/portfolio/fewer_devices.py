"""Segments of the program order on the quickest half of the devices, on a quarter of them, and so on.

A training step of few microbatches fills and drains a pipeline for as long as it runs full: with fewer stages its
busiest device does more for each microbatch, and the step may be over sooner.
"""

from __future__ import annotations

import numpy as np

from planner.partition.assignment import contiguous, on_devices
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.least_bottleneck import least_bottleneck
from planner.partition.portfolio.portfolio import Portfolio
from planner.partition.problem import FREE


def offer_fewer_devices(portfolio: Portfolio) -> None:
    """Down to as many as microbatches: with those a pipeline is full for as long as it fills and drains. Quickest hosts
    first, then quickest devices whatever their hosts."""
    problem = portfolio.problem
    assert problem.training is not None
    host_of_device = hosts_of(problem).host_of_device
    speeds = 1 / np.maximum(problem.compute_before[:, -1], 1e-300)
    of_host = (np.bincount(host_of_device, speeds) / np.bincount(host_of_device))[host_of_device]
    fixed, tried = problem.fixed_device[problem.fixed_device != FREE], set[bytes]()
    for keys in ((host_of_device, -of_host), (host_of_device, -speeds)):
        order, count = np.lexsort(keys), int(problem.num_devices * 0.71)
        while count >= max(2, problem.training.microbatches // 2):
            devices = np.sort(order[:count])
            count = int(count * 0.71)
            if devices.tobytes() in tried or not np.isin(fixed, devices).all():
                continue
            if portfolio.request.out_of_time():
                return
            tried.add(devices.tobytes())
            fewer = problem.with_devices(devices)
            layout = least_bottleneck(fewer, prove=False)
            if layout is not None:
                portfolio.offer(on_devices(contiguous(fewer, layout.boundaries, layout.devices), devices.tolist()))
