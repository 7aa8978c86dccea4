"""Hosts and kinds of devices, read from the problem's numbers: what a search over many devices need not tell apart.

Devices whose exchange leaves every link as it is share a host: between any two of a host there is one link, and to
another host they all have the same. A kind is a memory and a speed for every node and what training does besides. With
equal links all devices are one host.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from planner.partition.lattice import Words
from planner.partition.problem import Floats, Integers, PartitionProblem

Composition = tuple[int, ...]
Classes = tuple[tuple[int, ...], ...]
NO_LINK = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Hosts:
    """`members[host][kind]` are devices in inventory order; `kind_of_device` and `host_of_device` [devices].

    `link` [hosts, hosts]: the link from a device of one host to one of another, on the diagonal within a host; links of
    the same number cost the same, both ways, and `ends_of_link` are two devices that have it. NO_LINK within a host of
    one device.
    """

    members: tuple[tuple[tuple[int, ...], ...], ...]
    kind_of_device: Integers
    host_of_device: Integers
    link: Integers
    ends_of_link: tuple[tuple[int, int], ...]

    @property
    def num_kinds(self) -> int:
        return len(self.members[0])

    @property
    def classes(self) -> Classes:
        """Devices that no plan can tell apart, as they are of one kind and host: choosing among them is choosing once.
        By their first."""
        return tuple(sorted(devices for of_kind in self.members for devices in of_kind if devices))

    @property
    def alike(self) -> dict[int, tuple[int, ...]]:
        """For each device those of its class, itself among them, class by class."""
        return {device: members for members in self.classes for device in members}

    def one_of_each(self, devices: Collection[int]) -> list[int]:
        """The first of these of each class, in the order of the classes."""
        firsts = (next((device for device in members if device in devices), None) for members in self.classes)
        return [device for device in firsts if device is not None]

    @property
    def count(self) -> int:
        return len(self.members)

    def composition(self, host: int) -> Composition:
        """How many devices of each kind it has."""
        return tuple(len(devices) for devices in self.members[host])

    def counts(self) -> Composition:
        """Devices of each kind, of all hosts."""
        return tuple(np.bincount(self.kind_of_device, minlength=self.num_kinds).tolist())

    @property
    def num_units(self) -> int:
        """Kinds on hosts."""
        return len(self.classes)

    @property
    def num_states(self) -> int:
        """Ways to have used some devices, those alike and on a host only counted; over unlike links with the kinds and
        hosts on either side of where a stage starts."""
        counts = [len(devices) for devices in self.classes]
        return math.prod(count + 1 for count in counts) * (1 if self.count == 1 else len(counts) ** 2)

    @property
    def num_states_by_host(self) -> int:
        """How many of each kind of a host can be used, of hosts that cannot change places."""
        whole = [np.array(self.composition(group[0])) + 1 for group in self.groups]
        return sum(int(np.prod(counts.astype(np.float64))) for counts in whole)

    @property
    def num_steps_by_host(self) -> int:
        """About so many edges have walks from such a state to the next, or to a device of another host."""
        of_groups = [sum(map(bool, self.composition(group[0]))) for group in self.groups]
        return self.num_states_by_host * sum(of_groups)

    def ends(self, link: int) -> tuple[int, int] | None:
        return None if link == NO_LINK else self.ends_of_link[link]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Hosts that can change places, all their devices at once: alike in composition and links."""
        groups: list[list[int]] = []
        for host in range(self.count):
            for group in groups:
                if self.composition(host) == self.composition(group[0]) and self._exchangeable(group[0], host):
                    group.append(host)
                    break
            else:
                groups.append([host])
        return tuple(map(tuple, groups))

    def apart(self) -> Hosts:
        """Of a single host, each device as a host of its own."""
        num_devices = self.kind_of_device.size
        link = np.full((num_devices, num_devices), self.link[0, 0])
        np.fill_diagonal(link, NO_LINK)
        return replace(
            self,
            members=tuple(
                tuple((device,) if kind == own else () for kind in range(self.num_kinds))
                for device, own in enumerate(self.kind_of_device.tolist())
            ),
            host_of_device=np.arange(num_devices),
            link=link,
        )

    def _exchangeable(self, one: int, other: int) -> bool:
        others = np.delete(np.arange(self.count), [one, other])
        link = self.link
        return bool(
            link[one, one] == link[other, other]
            and link[one, other] == link[other, one]
            and np.array_equal(link[one, others], link[other, others])
            and np.array_equal(link[others, one], link[others, other])
        )


def device_speeds(problem: PartitionProblem) -> Floats:
    """[devices] 1 where each node that a device can run takes the least seconds of any device, 0 if it can run none."""
    runs = np.isfinite(problem.work_seconds)
    least = np.where(runs, problem.work_seconds, np.inf).min(axis=0)
    seconds = np.where(runs, least, 0.0).sum(axis=1)
    return np.asarray(seconds / np.maximum(problem.compute_before[:, -1], np.finfo(np.float64).tiny), dtype=np.float64)


_hosts_of_problem = WeakKeyDictionary[PartitionProblem, Hosts]()


def hosts_of(problem: PartitionProblem) -> Hosts:
    """O(devices^2), once for each problem."""
    if problem not in _hosts_of_problem:
        _hosts_of_problem[problem] = _read_hosts(problem)
    return _hosts_of_problem[problem]


def _read_hosts(problem: PartitionProblem) -> Hosts:
    host_of_device = _hosts(problem)
    kind_of_device = distinct_rows(_described(problem)).kind_of_row
    num_kinds = int(kind_of_device.max()) + 1
    num_hosts = int(host_of_device.max()) + 1
    members: list[list[list[int]]] = [[[] for _ in range(num_kinds)] for _ in range(num_hosts)]
    for device, (host, kind) in enumerate(zip(host_of_device.tolist(), kind_of_device.tolist(), strict=True)):
        members[host][kind].append(device)
    link, ends = _links(problem, host_of_device, num_hosts)
    return Hosts(
        members=tuple(tuple(map(tuple, of_kind)) for of_kind in members),
        kind_of_device=kind_of_device,
        host_of_device=host_of_device,
        link=link,
        ends_of_link=ends,
    )


def _described(problem: PartitionProblem) -> Floats:
    """[devices, columns] a number for each thing that the problem says of a device, but for its links: the same where
    that is the same. Side by side, what is said of 64 devices and 100,000 nodes takes hundreds of MB."""
    columns = [
        problem.work_seconds,
        problem.device_memory_bytes.astype(np.float64),
        problem.compute_seconds,
        problem.delivery_seconds,
    ]
    if problem.training is not None:
        columns += [problem.node_backward_ratio, problem.node_split_ratio, problem.node_weight_share]
        columns += [problem.device_norm_rate, problem.device_update_rate]
    alike = [distinct_rows(column.reshape(problem.num_devices, -1)).kind_of_row for column in columns]
    return np.column_stack(alike).astype(np.float64)


def _hosts(problem: PartitionProblem) -> Integers:
    """[devices]: hosts in the order of their first devices.

    Two devices change places and leave every link as it is where their rows of links are alike but for the places of
    the two: told by sums of hashes, of which these places are taken out, and then by the links themselves.
    """
    links = np.zeros((problem.num_devices, problem.num_devices), dtype=np.uint64)
    for matrix in _link_matrices(problem):
        # Adding 0.0 makes one zero of two.
        links = _mixed(links + np.ascontiguousarray(matrix + 0.0).view(np.uint64))
    weight = _mixed(np.arange(1, problem.num_devices + 1, dtype=np.uint64))
    weighed = weight * (links + _mixed(links.T))
    others = weighed.sum(axis=1, dtype=np.uint64) - np.diagonal(weighed)
    but_for_two = others[:, None] - weighed
    firsts = ((but_for_two == but_for_two.T) & (links == links.T)).argmax(axis=1)
    for device in np.flatnonzero(firsts != np.arange(firsts.size)).tolist():
        if not _linked_alike(problem, int(firsts[device]), device):
            firsts[device] = device
    return np.unique(firsts, return_inverse=True)[1].astype(np.int64)


def _mixed(numbers: Words) -> Words:
    """As splitmix64 ends (Steele et al. 2014): a bit that differs makes half of all bits differ."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)), dtype=np.uint64)


def _link_matrices(problem: PartitionProblem) -> tuple[Floats, ...]:
    return problem.link_latency_seconds, problem.link_seconds_per_byte, problem.link_handover_seconds


def _linked_alike(problem: PartitionProblem, one: int, other: int) -> bool:
    """Whether every link stays as it is where the two devices change places: those of the one become the other's."""
    swapped = np.arange(problem.num_devices)
    swapped[[one, other]] = other, one
    return all(
        np.array_equal(matrix[one, swapped], matrix[other]) and np.array_equal(matrix[swapped, one], matrix[:, other])
        for matrix in _link_matrices(problem)
    )


def _links(
    problem: PartitionProblem, host_of_device: Integers, num_hosts: int
) -> tuple[Integers, tuple[tuple[int, int], ...]]:
    # Within a host, its first device and its last.
    first = np.unique(host_of_device, return_index=True)[1]
    last = host_of_device.size - 1 - np.unique(host_of_device[::-1], return_index=True)[1]
    source, target = np.repeat(first, num_hosts), np.tile(last, num_hosts)
    is_link = source != target
    source, target = source[is_link], target[is_link]
    costs = [
        matrix[ends]
        for matrix in (problem.link_latency_seconds, problem.link_seconds_per_byte)
        for ends in ((source, target), (target, source))
    ]
    distinct = distinct_rows(np.stack(costs, axis=1) + 0.0)
    link = np.full(num_hosts * num_hosts, NO_LINK, dtype=np.int64)
    link[is_link] = distinct.kind_of_row
    _, at = np.unique(distinct.kind_of_row, return_index=True)
    ends = tuple(zip(source[at].tolist(), target[at].tolist(), strict=True))
    return link.reshape(num_hosts, num_hosts), ends


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DistinctRows:
    """`rows` [kinds, columns] in order of their first, `kind_of_row` [rows], `counts` [kinds]."""

    rows: Floats
    kind_of_row: Integers
    counts: Integers


def distinct_rows(matrix: Floats) -> DistinctRows:
    """Linear, where np.unique sorts."""
    kinds: dict[bytes, int] = {}
    kind_of_row = np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in matrix], dtype=np.int64)
    _, first = np.unique(kind_of_row, return_index=True)
    return DistinctRows(rows=matrix[first], kind_of_row=kind_of_row, counts=np.bincount(kind_of_row))
