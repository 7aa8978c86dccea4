"""Devices and links as a bound sees them that knows hosts: how quick at best, and what a message takes at least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.partition.ordered.hosts import hosts_of
from planner.partition.problem import Floats, Integers, PartitionProblem

# Classes of devices that are told apart; with more, hosts are not, and devices are as fast as the next faster of eight.
_MAX_CLASSES, _MAX_KINDS = 16, 8
# Seconds, of which one may be taken from another.
NEVER = 1e300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """By host, `latency_seconds` and `seconds_per_byte` [hosts]: each the least of some links, NEVER where there are
    none."""

    latency_seconds: Floats
    seconds_per_byte: Floats

    def seconds(self, size_bytes: Floats) -> Floats:
        """[hosts, *sizes]; infinite where the size is."""
        shape, is_sent = (-1, *[1] * size_bytes.ndim), np.isfinite(size_bytes)
        taken = self.seconds_per_byte.reshape(shape) * np.where(is_sent, size_bytes, 0.0)
        return np.where(is_sent, self.latency_seconds.reshape(shape) + taken, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sites:
    """Classes of devices, each of one speed on one host, host by host: `speeds`, 1 of the fastest, `counts` and `host`
    [classes], and the first of each host, `firsts` [hosts]. Links from anywhere `into` a host, from other hosts
    `across` into it, and `out` of it to others."""

    speeds: Floats
    counts: Integers
    host: Integers
    firsts: Integers
    into: Links
    across: Links
    out: Links

    @property
    def num_hosts(self) -> int:
        return self.firsts.size


def sites_of(problem: PartitionProblem, slowness: Floats, most_devices: int) -> Sites:
    """`slowness` [devices]: how many times the fastest device's seconds one takes at least. Where fewer than all may be
    used, the fastest of them, as if all were on one host."""
    host, slowness = _told_apart(hosts_of(problem).host_of_device, slowness, most_devices)
    classes, counts = np.unique(np.stack([host, 1 / slowness], axis=1), axis=0, return_counts=True)
    host_of_class = classes[:, 0].astype(np.int64)
    num_hosts = int(host_of_class[-1]) + 1
    if num_hosts == 1:
        host = np.zeros(problem.num_devices, dtype=np.int64)
    latency, per_byte = (
        _between_hosts(cost, host) for cost in (problem.link_latency_seconds, problem.link_seconds_per_byte)
    )
    apart = ~np.eye(num_hosts, dtype=np.bool_)
    others_latency, others_per_byte = (np.where(apart, cost, NEVER) for cost in (latency, per_byte))
    return Sites(
        speeds=classes[:, 1],
        counts=counts,
        host=host_of_class,
        firsts=np.searchsorted(host_of_class, np.arange(num_hosts)),
        into=_links(latency.min(axis=0), per_byte.min(axis=0)),
        across=_links(others_latency.min(axis=0), others_per_byte.min(axis=0)),
        out=_links(others_latency.min(axis=1), others_per_byte.min(axis=1)),
    )


def _told_apart(host: Integers, slowness: Floats, most_devices: int) -> tuple[Integers, Floats]:
    """By device, of those that may be used."""
    num_classes = np.unique(np.stack([host, slowness], axis=1), axis=0).shape[0]
    if most_devices == slowness.size and num_classes <= _MAX_CLASSES:
        return host, slowness
    slowness = np.sort(slowness)[:most_devices]
    kinds, kind = np.unique(slowness, return_inverse=True)
    if kinds.size > _MAX_KINDS:
        tier = kind * _MAX_KINDS // kinds.size
        slowness = slowness[np.searchsorted(tier, tier)]
    return np.zeros(slowness.size, dtype=np.int64), slowness


def _between_hosts(cost: Floats, host: Integers) -> Floats:
    """[hosts, hosts] the least of any two different devices, NEVER within a host of one. `host` [devices]."""
    order = np.argsort(host, kind="stable")
    firsts = np.searchsorted(host[order], np.arange(int(host.max()) + 1))
    apart = np.where(np.eye(host.size, dtype=np.bool_), NEVER, cost)[order][:, order]
    least: Floats = np.minimum.reduceat(np.minimum.reduceat(apart, firsts, axis=0), firsts, axis=1)
    return least


def _links(latency_seconds: Floats, seconds_per_byte: Floats) -> Links:
    return Links(
        latency_seconds=latency_seconds, seconds_per_byte=np.where(seconds_per_byte < NEVER, seconds_per_byte, 0.0)
    )
