"""In which order stages may take devices, as walks through a small graph whose edges use up counted units.

A node says on what device a stage runs and over which link it is given its inputs; an edge says what comes next. Units,
devices of a kind or hosts of a group, are counted beside the walk: a search stands at a node with so many of each used.

| walks | units | nodes | are |
|---|---|---|---|
| `by_kind` | devices of a kind and its best links | one, between stages | exact over equal links, else a bound |
| `by_device` | devices of a kind on a host | unit, link into it | exact; for few devices that are not alike |
| `in_orders` | nothing | place in one of some orders | plans: devices one after the other |
| `by_runs` | devices of a kind | kind, how many in a row | a bound: no more in a row than a host has |
| `by_visits` | devices of a kind in a group | used of a host, kind, link into it | a bound: the host is unknown |
| `host_by_host` | parts of hosts of a group | used of a host, kind, link into it | plans that take each part at once |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from planner.partition.ordered.hosts import NO_LINK, Composition, Hosts
from planner.partition.ordered.segment_loads import StageLinks
from planner.partition.problem import PartitionProblem
from planner.partition.traffic import UNKNOWN

NOTHING = -1
# Of runs, how many hosts are tried in all before giving up; the benchmark's walks need under a hundred.
_MAX_PACKING_STEPS = 20_000


@dataclass(frozen=True, slots=True)
class Behind:
    """What stands behind the start of a stage at a node: the stage's own kind, and what is left of its host."""

    kind: int
    rest: Composition


@dataclass(frozen=True, slots=True)
class Edge:
    """From the end of a stage with the links of `label` to the next stage. NOTHING: no unit is used up, no node is
    next. Between stages (see DeviceWalks), the stage is on the edge."""

    node: int
    unit: int
    next_node: int
    label: StageLinks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceWalks:
    """`behind` [nodes] is empty where nodes are between stages. `starts`: (unit, node). `edges` ascend by node.

    `unit_devices`: of each kind, in one unit. `counts_devices`: units are single devices. `devices_of` a walk, which is
    the unit used for each stage and its node, NOTHING for a stage aside: None where these devices are nowhere together,
    and, where nodes say which stages share a host, for walks with stages aside. `row` [nodes], if any: of
    nodes of one row, the earlier can do what the later can. `are_plans`: every walk has its devices.
    """

    behind: tuple[Behind, ...]
    capacity: tuple[int, ...]
    unit_devices: tuple[Composition, ...]
    starts: tuple[tuple[int, int], ...]
    edges: tuple[Edge, ...]
    counts_devices: bool
    devices_of: Callable[[Sequence[tuple[int, int]]], tuple[int, ...] | None]
    row: tuple[int, ...] = ()
    are_plans: bool = False

    @property
    def num_nodes(self) -> int:
        return max(1, len(self.behind))

    def with_stages_aside(self) -> DeviceWalks:
        """With walks in which other stages run before a node's own: each uses up a unit, exchanges over the best links
        of that unit's device, and leaves the node as it is but for where its own stage begins."""
        own_of_node = {edge.node: edge.label.own for edge in self.edges}
        aside = [
            Edge(node, unit, node, StageLinks(own_of_node[first], None, None, 0, is_aside=True))
            for node in own_of_node
            for unit, first in self.starts
        ]
        return replace(self, edges=tuple(sorted([*self.edges, *aside], key=lambda edge: edge.node)))

    @property
    def num_states(self) -> float:
        return float(np.prod(np.array(self.capacity) + 1.0)) * self.num_nodes


def by_kind(problem: PartitionProblem, hosts: Hosts) -> DeviceWalks:
    members: dict[tuple[float, ...], list[int]] = {}
    for device, kind in enumerate(hosts.kind_of_device.tolist()):
        best = [
            float(matrix[ends])
            for matrix in (problem.best_latency_seconds, problem.best_seconds_per_byte)
            for ends in ((UNKNOWN, device), (device, UNKNOWN))
        ]
        members.setdefault((kind, *best), []).append(device)
    devices = list(members.values())

    def devices_of(walk: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        left = [iter(own) for own in devices]
        return tuple(next(left[unit]) for unit, _ in walk)

    return DeviceWalks(
        behind=(),
        capacity=tuple(map(len, devices)),
        unit_devices=tuple(_one(hosts, int(hosts.kind_of_device[own[0]])) for own in devices),
        starts=((NOTHING, 0),),
        edges=tuple(Edge(0, unit, 0, StageLinks(own[0], None, None, 0)) for unit, own in enumerate(devices)),
        counts_devices=True,
        devices_of=devices_of,
    )


def by_device(hosts: Hosts) -> DeviceWalks:
    units = [
        (host, kind) for host in range(hosts.count) for kind in range(hosts.num_kinds) if hosts.members[host][kind]
    ]
    nodes = [(unit, link) for unit, (host, _) in enumerate(units) for link in np.unique(hosts.link[:, host]).tolist()]
    index = {node: at for at, node in enumerate(nodes)}

    def edges() -> Iterator[Edge]:
        for at, (unit, link) in enumerate(nodes):
            host, kind = units[unit]
            own = hosts.members[host][kind][0]
            yield Edge(at, NOTHING, NOTHING, StageLinks(own, hosts.ends(link), None, 0))
            for out in np.unique(hosts.link[host]).tolist():
                label = StageLinks(own, hosts.ends(link), hosts.ends(out), 0)
                for after, (other, _) in enumerate(units):
                    if hosts.link[host, other] == out != NO_LINK:
                        yield Edge(at, after, index[after, out], label)

    def devices_of(walk: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        left = [iter(hosts.members[host][kind]) for host, kind in units]
        return tuple(next(left[unit]) for unit, _ in walk)

    none = (0,) * hosts.num_kinds
    first = {unit: at for at, (unit, _) in reversed(list(enumerate(nodes)))}
    return DeviceWalks(
        behind=tuple(Behind(units[unit][1], none) for unit, _ in nodes),
        capacity=tuple(len(hosts.members[host][kind]) for host, kind in units),
        unit_devices=tuple(_one(hosts, kind) for _, kind in units),
        starts=tuple((unit, first[unit]) for unit in range(len(units))),
        edges=tuple(edges()),
        counts_devices=True,
        devices_of=devices_of,
        are_plans=True,
    )


def in_orders(hosts: Hosts, orders: Sequence[Sequence[int]]) -> DeviceWalks:
    places = [(order, place) for order in orders for place in range(len(order))]

    def ends(source: int, target: int) -> tuple[int, int] | None:
        """Of their link, None where all are alike."""
        link = int(hosts.link[hosts.host_of_device[source], hosts.host_of_device[target]])
        return hosts.ends(link) if hosts.count > 1 else None

    def edges() -> Iterator[Edge]:
        for at, (order, place) in enumerate(places):
            device = order[place]
            own = int(hosts.members[hosts.host_of_device[device]][hosts.kind_of_device[device]][0])
            last = StageLinks(own, ends(order[place - 1], device) if place else None, None, 0)
            yield Edge(at, NOTHING, NOTHING, last)
            for after in order[place + 1 : place + 2]:
                yield Edge(at, NOTHING, at + 1, last._replace(out=ends(device, after)))

    def devices_of(walk: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(places[node][0][places[node][1]] for _, node in walk)

    none = (0,) * hosts.num_kinds
    return DeviceWalks(
        behind=tuple(Behind(int(hosts.kind_of_device[order[place]]), none) for order, place in places),
        capacity=(),
        unit_devices=(),
        starts=tuple((NOTHING, at) for at, (_, place) in enumerate(places) if place == 0),
        edges=tuple(edges()),
        counts_devices=False,
        devices_of=devices_of,
    )


def by_runs(hosts: Hosts) -> DeviceWalks | None:
    """None where hosts have unlike links."""
    apart = ~np.eye(hosts.count, dtype=np.bool_)
    between = np.unique(hosts.link[apart])
    within = np.setdiff1d(np.diag(hosts.link), [NO_LINK])
    if between.size != 1 or within.size > 1:
        return None
    links = [hosts.ends(int(between[0])), hosts.ends(int(within[0])) if within.size else None]
    sizes = [sum(hosts.composition(host)) for host in range(hosts.count)]

    def longest(*kinds: int) -> int:
        """The most in a row on a host that has these."""
        needed = Counter(kinds)
        return max(
            (
                size
                for host, size in enumerate(sizes)
                if all(len(hosts.members[host][kind]) >= count for kind, count in needed.items())
            ),
            default=0,
        )

    nodes = [(kind, run) for kind in range(hosts.num_kinds) for run in range(1, longest(kind) + 1)]
    index = {node: at for at, node in enumerate(nodes)}

    def edges() -> Iterator[Edge]:
        for at, (kind, run) in enumerate(nodes):
            # A device with company has the better links.
            own = max(np.flatnonzero(hosts.kind_of_device == kind), key=lambda d: sizes[hosts.host_of_device[d]])
            into = links[run > 1]
            yield Edge(at, NOTHING, NOTHING, StageLinks(int(own), into, None, 0))
            for after in range(hosts.num_kinds):
                yield Edge(at, after, index[after, 1], StageLinks(int(own), into, links[0], 0))
            for after in range(hosts.num_kinds):
                if run < longest(kind, after):
                    yield Edge(at, after, index[after, run + 1], StageLinks(int(own), into, links[1], 0))

    def devices_of(walk: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
        if any(node == NOTHING for _, node in walk):
            return None
        kinds = [unit for unit, _ in walk]
        starts = [at for at, (_, node) in enumerate(walk) if nodes[node][1] == 1]
        runs = [kinds[start:end] for start, end in pairwise([*starts, len(kinds)])]
        return _packed(hosts, runs, [range(hosts.count)] * len(runs))

    none = (0,) * hosts.num_kinds
    return DeviceWalks(
        behind=tuple(Behind(kind, none) for kind, _ in nodes),
        capacity=hosts.counts(),
        unit_devices=tuple(_one(hosts, kind) for kind in range(hosts.num_kinds)),
        starts=tuple((kind, index[kind, 1]) for kind in range(hosts.num_kinds)),
        edges=tuple(edges()),
        counts_devices=True,
        devices_of=devices_of,
        row=tuple(kind if run > 1 else NOTHING for kind, run in nodes),
    )


def host_by_host(hosts: Hosts, parts: int = 1) -> DeviceWalks | None:
    """Units are so many equal parts of hosts: a run takes as many as it has need of, and leaves its host for good once
    all are taken. None where a host does not have so many equal parts."""
    visits = _visits(hosts)
    if any(count % parts for whole in visits.composition for count in whole):
        return None
    part = [tuple(count // parts for count in whole) for whole in visits.composition]

    def taken(group: int, used: Composition) -> int:
        return max(-(-count // own) for count, own in zip(used, part[group], strict=True) if own)

    def edges() -> Iterator[Edge]:
        for at, after, label in visits.steps:
            group, used, _, _ = visits.nodes[at]
            unit = NOTHING
            if after != NOTHING:
                other, more, _, _ = visits.nodes[after]
                unit = other if sum(more) == 1 or taken(group, more) > taken(group, used) else NOTHING
            yield Edge(at, unit, after, label)

    def rest(group: int, used: Composition) -> Composition:
        return tuple(taken(group, used) * own - count for own, count in zip(part[group], used, strict=True))

    return DeviceWalks(
        behind=tuple(Behind(kind, rest(group, used)) for group, used, kind, _ in visits.nodes),
        capacity=tuple(len(group) * parts for group in visits.groups),
        unit_devices=tuple(part),
        starts=tuple((group, at) for (group, _), at in visits.starts.items()),
        edges=tuple(edges()),
        counts_devices=False,
        devices_of=visits.devices_of,
    )


def by_visits(hosts: Hosts) -> DeviceWalks:
    """Units are devices of a kind in a group. A bound: a host may be visited again, and which of a group is unknown."""
    visits = _visits(hosts)
    units = [(group, kind) for group, whole in enumerate(visits.composition) for kind, own in enumerate(whole) if own]
    unit_of_node = [units.index((group, kind)) for group, _, kind, _ in visits.nodes]
    none = (0,) * hosts.num_kinds
    return DeviceWalks(
        behind=tuple(Behind(kind, none) for _, _, kind, _ in visits.nodes),
        capacity=tuple(len(visits.groups[group]) * visits.composition[group][kind] for group, kind in units),
        unit_devices=tuple(_one(hosts, kind) for _, kind in units),
        starts=tuple((units.index(start), at) for start, at in visits.starts.items()),
        edges=tuple(
            Edge(at, NOTHING if after == NOTHING else unit_of_node[after], after, label)
            for at, after, label in visits.steps
        ),
        counts_devices=True,
        devices_of=visits.devices_of,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Visits:
    """Hosts visited one after the other. A node is (group of the host, devices used in this visit, kind of the last of
    them, link into it); `starts` are nodes by (group, kind); `steps`, ascending, are (node, next node or NOTHING, label
    of the stage at the node)."""

    groups: tuple[tuple[int, ...], ...]
    composition: tuple[Composition, ...]
    nodes: tuple[tuple[int, Composition, int, int], ...]
    starts: dict[tuple[int, int], int]
    steps: tuple[tuple[int, int, StageLinks], ...]
    devices_of: Callable[[Sequence[tuple[int, int]]], tuple[int, ...] | None]


def _visits(hosts: Hosts) -> _Visits:
    groups = hosts.groups
    composition = [hosts.composition(group[0]) for group in groups]
    link = [[int(hosts.link[one[0], other[-1]]) for other in groups] for one in groups]
    within = [int(hosts.link[group[0], group[0]]) for group in groups]
    nodes = sorted(
        (
            (group, used, kind, into)
            for group, whole in enumerate(composition)
            for used in product(*(range(count + 1) for count in whole))
            for kind, count in enumerate(used)
            if count
            for into in (sorted({row[group] for row in link}) if sum(used) == 1 else [within[group]])
        ),
        key=lambda node: (sum(node[1]), node),
    )
    index = {node: at for at, node in enumerate(nodes)}

    def steps() -> Iterator[tuple[int, int, StageLinks]]:
        for at, (group, used, kind, into) in enumerate(nodes):
            own = hosts.members[groups[group][0]][kind][0]
            yield at, NOTHING, StageLinks(own, hosts.ends(into), None, 0)
            label = StageLinks(own, hosts.ends(into), hosts.ends(within[group]), 0)
            for after, count in enumerate(composition[group]):
                if used[after] < count:
                    yield at, index[group, _with(used, after), after, within[group]], label
            for other, whole in enumerate(composition):
                if other == group and len(groups[group]) == 1:
                    continue
                out = link[group][other]
                label = StageLinks(own, hosts.ends(into), hosts.ends(out), 0)
                for after, count in enumerate(whole):
                    if count:
                        yield at, index[other, _one(hosts, after), after, out], label

    def devices_of(walk: Sequence[tuple[int, int]]) -> tuple[int, ...] | None:
        if any(node == NOTHING for _, node in walk):
            return None
        nodes_of_walk = [nodes[node] for _, node in walk]
        starts = [at for at, (_, used, _, _) in enumerate(nodes_of_walk) if sum(used) == 1]
        runs = [nodes_of_walk[start:end] for start, end in pairwise([*starts, len(nodes_of_walk)])]
        kinds = [[kind for _, _, kind, _ in run] for run in runs]
        return _packed(hosts, kinds, [groups[run[0][0]] for run in runs])

    return _Visits(
        groups=groups,
        composition=tuple(composition),
        nodes=tuple(nodes),
        starts={(group, kind): at for at, (group, used, kind, _) in reversed(list(enumerate(nodes))) if sum(used) == 1},
        steps=tuple(steps()),
        devices_of=devices_of,
    )


def _one(hosts: Hosts, kind: int) -> Composition:
    return _with((0,) * hosts.num_kinds, kind)


def _with(composition: Composition, kind: int) -> Composition:
    return (*composition[:kind], composition[kind] + 1, *composition[kind + 1 :])


def _packed(hosts: Hosts, runs: Sequence[Sequence[int]], allowed: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Devices for runs of kinds, each on one of the hosts allowed to it, or None: by trying, the longest first."""
    order = sorted(range(len(runs)), key=lambda run: (-len(runs[run]), run))
    left = [list(hosts.composition(host)) for host in range(hosts.count)]
    host_of_run = [NOTHING] * len(runs)
    steps = 0

    def place(at: int) -> bool:
        nonlocal steps
        if at == len(order):
            return True
        run = order[at]
        needed = np.bincount(runs[run], minlength=hosts.num_kinds)
        tried_rests = set[tuple[int, ...]]()
        for host in allowed[run]:
            rest = tuple(left[host])
            if rest in tried_rests or (needed > left[host]).any() or steps >= _MAX_PACKING_STEPS:
                continue
            steps += 1
            tried_rests.add(rest)
            left[host] = (left[host] - needed).tolist()
            host_of_run[run] = host
            if place(at + 1):
                return True
            left[host] = list(rest)
        return False

    if not place(0):
        return None
    free = [[iter(members) for members in of_kind] for of_kind in hosts.members]
    return tuple(next(free[host][kind]) for host, run in zip(host_of_run, runs, strict=True) for kind in run)
