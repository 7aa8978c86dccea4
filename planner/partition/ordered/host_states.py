"""The least bottleneck of one order over hosts, each of which may be left and entered again: a search by used devices.

A state says what each host has left, hosts that can change places counted together, and where the next stage stands: on
the host of the stage before, or on any that the value's link leads to. Within a limit the positions at which a state
can stand are a set of bits; states of as many stages make a layer. Left out are positions from which the unused devices
cannot run the rest, were it known of the hosts only what the one in use has left. A layer keeps so many states, those
that are furthest ahead: where all were kept, a limit without a plan is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.partition.ordered.device_walks import NOTHING
from planner.partition.ordered.hosts import NO_LINK, Composition, Hosts
from planner.partition.ordered.least_over_walks import UNBOUNDED, Backs, Walk, WalkLoads, Words
from planner.partition.ordered.segment_loads import StageLinks
from planner.partition.problem import Booleans, Integers

# What hosts may have left: listing more takes a second.
_MAX_REMAINDERS = 2_000
# Words of what the unused devices can do, for one limit: a tenth of a second.
_MAX_WORDS = 2_000_000
# States of a layer that are kept, from first to last; room for so many times more, of which they are the best.
_WIDTHS, _ROOM = (500, 4_000, 20_000), 8
# Words that are looked at, of all limits together: two seconds.
_MAX_STEPS = 12_000_000


class HostArrays(NamedTuple):
    """Units are devices of a kind: `capacity` and `stride` of each. `label` [kind, link into it, link out of it], the
    last of which is the program's end; `offset` [stages before it].

    Hosts stand by group, from one of `group_first` to the next, `whole` [host] is the remainder that each begins with;
    remainders of a group ascend. `fewer` [remainder, kind] has one device less. `row` [remainder] is what is known of
    it; of these rows `fewer_of_row`, the host's own link `row_link`, and `entered`, what hosts that are entered for a
    kind may have left, from one of `entered_first` to the next.

    A hub is a value on its way to another host: `hub_link`, and `hub_enters` [hub, group]. `leaves` [group, link]: the
    hub of a value of the group; `within` [group]: the link within its hosts."""

    capacity: Integers
    stride: Integers
    label: Integers
    offset: Integers
    group_first: Integers
    whole: Integers
    fewer: Integers
    row: Integers
    fewer_of_row: Integers
    row_link: Integers
    entered_first: Integers
    entered: Integers
    hub_link: Integers
    hub_enters: Booleans
    leaves: Integers
    within: Integers
    is_between: Booleans


class HostStates(NamedTuple):
    """By state: the remainder of each host, its `node` (a hub, or the remainder of the host in use, behind the hubs),
    kinds used, and positions."""

    rest: Integers
    node: Integers
    base: Integers
    bits: Words


class _Within(NamedTuple):
    """One limit: ends of stages, and what the unused devices can do (see the kernel)."""

    ends: Words
    entered: Words
    near: Words


class _Step(NamedTuple):
    """A stage on a kind of device of a host with that remainder."""

    start: int
    kind: int
    remainder: int
    is_near: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    boundaries: tuple[int, ...]
    devices: tuple[int, ...]
    value: float


def can_be_searched(hosts: Hosts, num_positions: int) -> bool:
    rows = {
        (int(hosts.link[host, host]), size)
        for host in range(hosts.count)
        for size in range(sum(hosts.composition(host)) + 1)
    }
    few = _num_words(hosts, len(rows), num_positions) <= _MAX_WORDS
    return hosts.count > 1 and hosts.num_states_by_host <= _MAX_REMAINDERS and few


def _num_words(hosts: Hosts, num_rows: int, num_positions: int) -> float:
    num_bases = float(np.prod(np.array(hosts.counts()) + 1.0))
    return num_bases * ((num_positions + 63) >> 6) * (num_rows + len(hosts.ends_of_link))


def labels_of_hosts(hosts: Hosts) -> dict[tuple[int, int, int], StageLinks]:
    """By kind, link into the stage and link out of it, NO_LINK at the program's end."""
    links = range(len(hosts.ends_of_link))
    # A device with company has the better links.
    devices = sorted(
        range(hosts.kind_of_device.size), key=lambda d: -sum(hosts.composition(int(hosts.host_of_device[d])))
    )
    kinds = [int(hosts.kind_of_device[device]) for device in devices]
    return {
        (kind, into, out): StageLinks(devices[kinds.index(kind)], hosts.ends(into), hosts.ends(out), 0)
        for kind in range(hosts.num_kinds)
        for into in links
        for out in (*links, NO_LINK)
    }


def least_over_hosts(
    hosts: Hosts, table: WalkLoads, *, least: float, limit: float, num_stages: int = 0, widths: Sequence[int] = _WIDTHS
) -> Walk:
    """Of values below `limit`; nothing below `least` is possible."""
    search = _Search(hosts, table, num_stages)
    candidates = np.unique(table.loads[search.labels])
    candidates = candidates[(candidates < limit) & (candidates >= least * (1 - 1e-12))]
    low, high = 0, int(candidates.size)
    best: _Plan | None = None
    for width in widths:
        # Below it, no plan is to be expected of this width.
        barren = low
        while barren < high and not search.is_spent:
            middle = (barren + high) // 2
            plan, are_all = search.plan(float(candidates[middle]), width)
            if plan:
                best, high = plan, min(middle, int(np.searchsorted(candidates, plan.value)))
            else:
                barren = middle + 1
                low = barren if are_all else low
    return Walk(
        value=float(candidates[low]) if low < candidates.size else limit,
        is_least=low == high,
        boundaries=best.boundaries if best else (),
        devices=best.devices if best else (),
    )


class _Search:
    def __init__(self, hosts: Hosts, table: WalkLoads, num_stages: int) -> None:
        self._hosts, self._table, self._num_stages = hosts, table, num_stages
        self._num_words = (table.num_positions + 63) >> 6
        self._remainders = [
            (group, rest)
            for group, members in enumerate(hosts.groups)
            for rest in product(*(range(count + 1) for count in hosts.composition(members[0])))
        ]
        self._arrays = _arrays(hosts, table, self._remainders)
        self._steps_left = np.array([_MAX_STEPS], dtype=np.int64)
        self.labels = np.unique(self._arrays.label[..., None] + table.offset)

    @property
    def is_spent(self) -> bool:
        return bool(self._steps_left[0] < 0)

    def plan(self, limit: float, width: int) -> tuple[_Plan | None, bool]:
        """One within the limit, if there is any among states of that width; and whether these are all."""
        from planner.partition.ordered.host_states_kernel import NONE, expand

        within = self._within(limit)
        if not within.entered[0, self._arrays.hub_link[0], 0] & np.uint64(1):
            return None, True
        start = self._blank(1)
        start.rest[0], start.bits[0, 0] = self._arrays.whole, 1
        layers, are_all = [start], True
        while layers[-1].node.size:
            used = len(layers) - 1
            may_end = self._num_stages in (0, used + 1)
            room = self._blank(_ROOM * width)
            count, kind, out, remainder = expand(
                self._arrays, *within, used, may_end, layers[-1], room, _blank_table(2 * _ROOM * width),
                self._steps_left, start.rest[0], np.full(2, NONE),
            )  # fmt: skip
            if kind != NONE:
                return self._as_plan(layers, (count, kind, out, remainder), within), are_all
            are_all = are_all and room.base[-1] != NONE and count <= width
            if self.is_spent:
                return None, False
            layers.append(self._best_of(_some(room, np.arange(count)), within, width))
        return None, are_all

    def _within(self, limit: float) -> _Within:
        from planner.partition.ordered.host_states_kernel import completions, furthest_of_used
        from planner.partition.ordered.reach_kernel import first_of_rest, stages_within

        table, arrays, size = self._table, self._arrays, self._table.num_positions
        ends, earliest = stages_within(table.loads, table.starts, table.ends, limit, size)
        back = np.array(Backs(table.kind_of_label, earliest).of_kind)
        first = first_of_rest(arrays.capacity, arrays.stride, back, size - 1)
        furthest = furthest_of_used(arrays.capacity, arrays.stride, self._forth(table.loads <= limit), first.size)
        entered = np.zeros((first.size, arrays.leaves.shape[1], self._num_words), dtype=np.uint64)
        near = np.zeros((first.size, arrays.row_link.size, self._num_words), dtype=np.uint64)
        completions(arrays, ends, first, furthest, self._num_stages, entered, near)
        return _Within(ends, entered, near)

    def _forth(self, is_within: Booleans) -> Integers:
        """[kind, position]: the furthest that one device may lead to from there or from before."""
        table = self._table
        forth = np.tile(np.arange(table.num_positions), (self._arrays.capacity.size, 1))
        for kind, furthest in enumerate(forth):
            some = is_within[table.kind_of_label == kind].any(axis=0)
            np.maximum.at(furthest, table.starts[some], table.ends[some])
        return np.maximum.accumulate(forth, axis=1)

    def _best_of(self, states: HostStates, within: _Within, width: int) -> HostStates:
        from planner.partition.ordered.host_states_kernel import ranks

        if states.node.size <= width:
            return states
        best = np.argsort(-ranks(self._arrays, states, within.entered, within.near), kind="stable")[:width]
        return _some(states, np.sort(best))

    def _as_plan(self, layers: list[HostStates], last: tuple[int, int, int, int], within: _Within) -> _Plan:
        """From its last stage back."""
        from planner.partition.ordered.host_states_kernel import expand

        arrays, num_hubs, unbounded = self._arrays, self._arrays.hub_link.size, np.array([UNBOUNDED])
        steps, position, value = list[_Step](), self._table.num_positions - 1, 0.0
        for used in reversed(range(len(layers))):
            state, kind, out, remainder = last
            rest, node, _, bits = (one[state] for one in layers[used])
            link = arrays.hub_link[node] if node < num_hubs else arrays.row_link[arrays.row[node - num_hubs]]
            label = int(arrays.label[kind, link, out] + arrays.offset[used])
            start = next(
                start for start in range(position) if _has(bits, start) and _has(within.ends[label, start], position)
            )
            steps.append(_Step(start, kind, remainder, bool(node >= num_hubs)))
            value = max(value, self._table.load(label, start, position))
            position = start
            if used:
                last = expand(
                    arrays, *within, used - 1, False, layers[used - 1], self._blank(1), _blank_table(1),
                    unbounded, rest, np.array([node, start]),
                )  # fmt: skip
        steps.reverse()
        boundaries = (*(step.start for step in steps), self._table.num_positions - 1)
        return _Plan(boundaries=boundaries, devices=self._devices(steps), value=value)

    def _devices(self, steps: list[_Step]) -> tuple[int, ...]:
        hosts, groups = self._hosts, self._hosts.groups
        rest = [hosts.composition(host) for host in range(hosts.count)]
        free = [[iter(members) for members in of_kind] for of_kind in hosts.members]
        devices, current = list[int](), NOTHING
        for step in steps:
            group, remainder = self._remainders[step.remainder]
            if not step.is_near:
                alike = [host for host in groups[group] if rest[host] == remainder]
                current = next((host for host in alike if host != current), alike[0])
            rest[current] = _without(remainder, step.kind)
            devices.append(next(free[current][step.kind]))
        return tuple(devices)

    def _blank(self, count: int) -> HostStates:
        node, base = np.zeros((2, count), dtype=np.int64)
        rest = np.zeros((count, self._hosts.count), dtype=np.int64)
        return HostStates(rest, node, base, np.zeros((count, self._num_words), dtype=np.uint64))


def _arrays(hosts: Hosts, table: WalkLoads, remainders: list[tuple[int, Composition]]) -> HostArrays:
    groups, capacity = hosts.groups, np.array(hosts.counts(), dtype=np.int64)
    num_links = len(hosts.ends_of_link)
    within = [int(hosts.link[group[0], group[0]]) for group in groups]
    index = {one: at for at, one in enumerate(remainders)}
    fewer = np.full((len(remainders), hosts.num_kinds), NOTHING, dtype=np.int64)
    for at, (group, rest) in enumerate(remainders):
        for kind in np.flatnonzero(rest).tolist():
            fewer[at, kind] = index[group, _without(rest, kind)]
    whole_of_group = [index[group, hosts.composition(members[0])] for group, members in enumerate(groups)]
    # Of a remainder all is known, or how many they are, where that is too much.
    known: list[tuple[int, Composition]] = [(within[group], rest) for group, rest in remainders]
    if _num_words(hosts, len(set(known)), table.num_positions) > _MAX_WORDS:
        known = [(within[group], (sum(rest),)) for group, rest in remainders]
    rows = {one: at for at, one in enumerate(dict.fromkeys(known))}
    row = np.array([rows[one] for one in known], dtype=np.int64)
    fewer_of_row = np.full((len(rows), hosts.num_kinds), NOTHING, dtype=np.int64)
    of_remainder, of_kind = np.nonzero(fewer >= 0)
    fewer_of_row[row[of_remainder], of_kind] = row[fewer[of_remainder, of_kind]]
    left = fewer[whole_of_group]
    entered = [np.unique(row[of_kind[of_kind >= 0]]) for of_kind in left.T]
    hub_link, hub_enters, leaves = _hubs(hosts, groups)
    label = np.zeros((hosts.num_kinds, num_links, num_links + 1), dtype=np.int64)
    for ends, links in labels_of_hosts(hosts).items():
        label[ends] = table.index_of_label[links]
    return HostArrays(
        capacity=capacity,
        stride=np.concatenate([np.ones(1, dtype=np.int64), np.cumprod(capacity + 1)[:-1]]),
        label=label,
        offset=table.offset,
        group_first=np.cumsum([0, *map(len, groups)]),
        whole=np.repeat(whole_of_group, [len(group) for group in groups]),
        fewer=fewer,
        row=row,
        fewer_of_row=fewer_of_row,
        row_link=np.array([link for link, _ in rows], dtype=np.int64),
        entered_first=np.cumsum([0, *(one.size for one in entered)]),
        entered=np.concatenate(entered),
        hub_link=hub_link,
        hub_enters=hub_enters,
        leaves=leaves,
        within=np.array(within, dtype=np.int64),
        is_between=np.logical_or.reduce(leaves >= 0),
    )


def _hubs(hosts: Hosts, groups: tuple[tuple[int, ...], ...]) -> tuple[Integers, Booleans, Integers]:
    """`hub_link`, `hub_enters` and `leaves`. The first hub is before the first stage, and leads everywhere.

    A host of its own group may be entered from itself: over a slower link than its own, that is worth nothing.
    """
    between = [[int(hosts.link[group[0], other[-1]]) for other in groups] for group in groups]
    leaves = np.full((len(groups), len(hosts.ends_of_link)), NOTHING, dtype=np.int64)
    hubs = {(int(hosts.link[0, -1]), (True,) * len(groups)): 0}
    for group, members in enumerate(groups):
        own = {int(hosts.link[members[0], members[-1]])} if len(members) > 1 else set()
        others = {link for other, link in enumerate(between[group]) if other != group}
        for link in sorted(others | own):
            enters = tuple(other == group or one == link for other, one in enumerate(between[group]))
            leaves[group, link] = hubs.setdefault((link, enters), len(hubs))
    links = np.array([link for link, _ in hubs], dtype=np.int64)
    return links, np.array([enters for _, enters in hubs], dtype=np.bool_), leaves


def _without(composition: Composition, kind: int) -> Composition:
    return (*composition[:kind], composition[kind] - 1, *composition[kind + 1 :])


def _some(states: HostStates, which: Integers) -> HostStates:
    return HostStates(states.rest[which], states.node[which], states.base[which], states.bits[which])


def _blank_table(count: int) -> Integers:
    return np.full(1 << count.bit_length(), NOTHING, dtype=np.int64)


def _has(bits: Words, position: int) -> bool:
    return bool(int(bits[position >> 6]) >> (position & 63) & 1)
