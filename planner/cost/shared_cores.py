"""CPUs of one host whose workers divide its cores among themselves: what each has of them, and which to plan over.

A worker computes with its share of the threads (stage_daemon.worker.threads), so what a kind's rates or a profile say,
which is of all cores, takes as many times as long as there are workers. How many there are is known once a plan is:
so a plan is sought for each number of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from math import prod

from planner.cost.inventory import Device, Inventory

# Beyond, hosts are given equally many workers, and nothing is proven: each choice is a search of its own.
MAX_CHOICES = 16


def workers_on_cores(devices: Sequence[Device], used: Collection[int] | None = None) -> tuple[int, ...]:
    """By device: the workers that would divide its cores, were it in use besides `used` (positions; None: all)."""
    in_use = range(len(devices)) if used is None else set(used)
    busy = Counter(devices[at].host for at in in_use if devices[at].shares_cores)
    return tuple(
        (busy[device.host] + (at not in in_use) if device.shares_cores else 1) for at, device in enumerate(devices)
    )


def divide_cores(devices: Sequence[Device]) -> bool:
    """Whether more workers on some host mean fewer cores for each."""
    return max(workers_on_cores(devices), default=1) > 1


def device_choices(inventory: Inventory, needed: Collection[str], least: int) -> Iterator[tuple[int, ...]]:
    """Positions of at least `least` devices to plan over, all devices last: of CPUs that divide a host's cores those
    that are `needed` (ids), then the largest.
    """
    devices = inventory.devices
    hosts = _hosts(devices, needed)
    counts = [range(max(1, sum(devices[at].id in needed for at in members)), len(members) + 1) for members in hosts]
    alone = [at for at, workers in enumerate(workers_on_cores(devices)) if workers == 1]
    for num_of_hosts in _counts(counts):
        of_hosts = [at for members, count in zip(hosts, num_of_hosts, strict=True) for at in members[:count]]
        if len(alone) + len(of_hosts) >= least or num_of_hosts == tuple(len(members) for members in hosts):
            yield tuple(sorted([*alone, *of_hosts]))


def choices_are_all(inventory: Inventory, needed: Collection[str]) -> bool:
    """Whether no plan is better than the best over each of `device_choices`: CPUs of a host differ in memory alone."""
    hosts = _hosts(inventory.devices, needed)
    named = {end for pair in inventory.links for end in pair}
    alike = all(
        len({(device.kind, device.flops_per_second, device.memory_bytes_per_second) for device in members}) == 1
        and named.isdisjoint(device.id for device in members)
        for members in ([inventory.devices[at] for at in positions] for positions in hosts)
    )
    return alike and prod(len(members) for members in hosts) <= MAX_CHOICES


def _hosts(devices: Sequence[Device], needed: Collection[str]) -> list[list[int]]:
    """Of each host whose cores are divided, the devices in the order in which they are taken."""
    hosts: dict[str, list[int]] = {}
    for at, workers in enumerate(workers_on_cores(devices)):
        if workers > 1:
            hosts.setdefault(devices[at].host, []).append(at)
    for members in hosts.values():
        members.sort(key=lambda at: (devices[at].id not in needed, -devices[at].memory_bytes, at))
    return list(hosts.values())


def _counts(counts: Sequence[range]) -> Iterator[tuple[int, ...]]:
    if prod(map(len, counts)) <= MAX_CHOICES:
        yield from product(*counts)
        return
    most = max(one.stop - 1 for one in counts)
    steps = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    for step in (*steps, most):
        yield tuple(min(max(step, one.start), one.stop - 1) for one in counts)
