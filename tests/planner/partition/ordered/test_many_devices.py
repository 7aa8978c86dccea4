"""Walks through many devices: the least bottleneck of chains on clusters, against a plain programme."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import Infeasible
from planner.partition.evaluate import evaluate
from planner.partition.modes.balanced import balanced
from planner.partition.objective import Objective, PipelineSchedule, Training
from planner.partition.ordered import many_devices, program_pass
from planner.partition.ordered.device_walks import by_device, by_kind, by_runs, host_by_host
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.least_over_walks import WalkLoads, least_over_walks
from planner.partition.ordered.many_devices import over_many_devices
from planner.partition.ordered.positions import allowed_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.problem import PartitionProblem
from tests.nightly import nightly
from tests.planner.partition.exact import all_contiguous, fits, least
from tests.planner.partition.ordered.chains_on_hosts import chain_and_least, random_chain
from tests.planner.partition.problems import INFERENCE, chain, problems, trainings
from tests.random_examples import random_examples, random_seeds


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(60))
def test_a_chain_gets_its_least_bottleneck_and_the_proof(seed: int) -> None:
    problem, expected = chain_and_least(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_pass, "MAX_STATES", 1)
        if np.isinf(expected):
            with pytest.raises(Infeasible):
                balanced(problem)
            return
        assignment = balanced(problem)
    assert fits(problem, assignment)
    assert evaluate(problem, assignment).bottleneck_seconds == pytest.approx(expected)
    assert assignment.lower_bound_seconds == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(60))
def test_where_the_exact_walks_are_too_many_there_is_a_bound_and_plans(seed: int) -> None:
    problem, expected = chain_and_least(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_devices, "MAX_UNITS", 0)
        walks = over_many_devices(problem, allowed_positions(problem))
    assert walks is not None
    assert walks.value <= expected + 1e-9
    for boundaries, devices in walks.layouts:
        layout = evaluate_layout(problem, boundaries, devices)
        assert layout.bottleneck_seconds >= expected - 1e-9
        assert (np.array(layout.device_peak_bytes) <= problem.device_memory_bytes).all()


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(30))
def test_of_so_many_stages(seed: int) -> None:
    problem = random_chain(seed, max_nodes=6, max_devices=4)
    for num_stages in range(1, min(problem.num_nodes, problem.num_devices) + 1):
        try:
            expected = balanced(problem, num_stages)
        except Infeasible:
            expected = None
        walks = over_many_devices(problem, allowed_positions(problem), num_stages=num_stages)
        assert walks is not None
        if expected is None:
            assert not walks.layouts
            assert walks.value == np.inf
            continue
        assert walks.value == pytest.approx(expected.lower_bound_seconds)
        assert all(len(devices) == num_stages for _, devices in walks.layouts)


@random_examples(40)
@given(
    problem=problems(max_nodes=5, max_devices=3, training=INFERENCE | trainings, barred=True),
    num_stages=st.integers(1, 3),
)
def test_of_any_program_it_bounds_and_what_it_places_fits(problem: PartitionProblem, num_stages: int) -> None:
    expected = least(problem, Objective.THROUGHPUT, all_contiguous(problem, num_stages))
    walks = over_many_devices(problem, allowed_positions(problem), num_stages=num_stages)
    assert walks is not None
    assert walks.value <= expected * (1 + 1e-9)
    for boundaries, devices in walks.layouts:
        layout = evaluate_layout(problem, boundaries, devices)
        assert layout.bottleneck_seconds >= expected * (1 - 1e-9)
        assert (np.array(layout.device_peak_bytes) <= problem.device_memory_bytes).all()


@pytest.mark.slow
def test_a_stage_keeps_the_microbatches_of_its_own_place() -> None:
    """As memory grows, the bound is that of plans whose first stages keep more than later ones."""
    training = Training(schedule=PipelineSchedule.ONE_F_ONE_B, microbatches=3, backward_ratio=1.0)
    links = [[0.0, 0.01, 0.2], [0.01, 0.0, 0.2], [0.2, 0.2, 0.0]]
    values = set()
    for room in range(30, 100, 5):
        problem = chain(
            [[2.0, 1.0, 3.0, 1.0, 2.0]] * 3,
            value_bytes=[6] * 6,
            memory_bytes=[room] * 3,
            per_byte=links,
            training=training,
        )
        expected = least(problem, Objective.THROUGHPUT, all_contiguous(problem, 3))
        walks = over_many_devices(problem, allowed_positions(problem), num_stages=3)
        assert walks is not None
        assert walks.value == pytest.approx(expected)
        values.add(expected)
    assert len(values) > 2


def under_the_best_order(**more: object) -> PartitionProblem:
    """Three nodes on three unlike devices, four microbatches."""
    training = Training(schedule=PipelineSchedule.BEST, microbatches=4, backward_ratio=1.0)
    seconds = [[2.0, 1.0, 3.0], [1.0, 3.0, 2.0], [3.0, 2.0, 1.0]]
    return chain(seconds, value_bytes=[6, 2, 9, 1], training=training, **more)


@pytest.mark.parametrize("num_stages", [0, 2, 3])
@pytest.mark.parametrize("per_byte", [0.01, [[0.0, 0.01, 0.2], [0.01, 0.0, 0.2], [0.2, 0.2, 0.0]]])
@pytest.mark.parametrize("rooms", [range(10, 80, 10), *nightly([range(15, 80, 10)])])
def test_the_best_order_makes_do_with_one_microbatch_where_there_is_room_for_no_more(
    rooms: range, per_byte: float | list[list[float]], num_stages: int
) -> None:
    """For each room, plans are found where there are any, of the least bottleneck, and their bound holds."""
    values = set()
    for room in rooms:
        problem = under_the_best_order(memory_bytes=[room] * 3, per_byte=per_byte)
        expected = least(problem, Objective.THROUGHPUT, all_contiguous(problem, num_stages))
        walks = over_many_devices(problem, allowed_positions(problem), num_stages=num_stages)
        assert walks is not None
        assert walks.value == pytest.approx(expected)
        layouts = [evaluate_layout(problem, *layout) for layout in walks.layouts]
        if np.isinf(expected):
            assert not layouts
            with pytest.raises(Infeasible):
                balanced(problem, num_stages)
            continue
        assert min(layout.bottleneck_seconds for layout in layouts) == pytest.approx(expected)
        assert all(layout.fits(problem) for layout in layouts)
        assignment = balanced(problem, num_stages)
        assert evaluate(problem, assignment).bottleneck_seconds == pytest.approx(expected)
        assert assignment.lower_bound_seconds == pytest.approx(expected)
        values.add(expected)
    assert values


def on_hosts(sizes: list[int], kinds: list[int], *, num_nodes: int = 8) -> PartitionProblem:
    host_of_device = np.repeat(np.arange(len(sizes)), sizes)
    per_byte = np.where(host_of_device[:, None] == host_of_device, 0.01, 0.5)
    seconds = [[float(kind)] * num_nodes for kind in kinds]
    return chain(seconds, per_byte=per_byte.tolist(), latency=0.0)


def test_hosts_are_read_from_the_links() -> None:
    hosts = hosts_of(on_hosts([3, 3, 2], [1, 2, 1, 2, 1, 1, 1, 1]))
    assert hosts.host_of_device.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert hosts.members == (((0, 2), (1,)), ((4, 5), (3,)), ((6, 7), ()))
    assert hosts.groups == ((0, 1), (2,))
    assert hosts.counts() == (6, 2)


def can_change_places(links: tuple[np.ndarray, ...], one: int, other: int) -> bool:
    swapped = np.arange(len(links[0]))
    swapped[[one, other]] = other, one
    return all(np.array_equal(link, link[np.ix_(swapped, swapped)]) for link in links)


def hosts_by_definition(program: PartitionProblem) -> list[int]:
    """Of devices whose exchange leaves every link as it is."""
    links = (program.link_latency_seconds, program.link_seconds_per_byte, program.link_handover_seconds)
    firsts: list[int] = []
    hosts = list[int]()
    for device in range(program.num_devices):
        alike = [host for host, first in enumerate(firsts) if can_change_places(links, first, device)]
        hosts.append(alike[0] if alike else len(firsts))
        firsts += [] if alike else [device]
    return hosts


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(40))
def test_a_host_is_of_devices_that_can_change_places(seed: int) -> None:
    """Links by host and by pod, some of them unlike, the two ways too."""
    draw = np.random.default_rng(seed)
    devices = int(draw.integers(1, 12))
    host = draw.integers(0, max(1, devices // 2), devices)
    near = host[:, None] == host[None, :]
    per_byte = np.where(near, 1.0, np.where(host[:, None] % 2 == host[None, :] % 2, 2.0, 3.0))
    for _ in range(int(draw.integers(0, 3))):
        one, other = draw.integers(0, devices, 2)
        per_byte[one, other] = 5.0
        per_byte[other, one] = draw.choice([5.0, 6.0])
    program = chain(
        [[1.0, 1.0]] * devices, per_byte=per_byte.tolist(), latency=(per_byte * draw.choice([0, 1])).tolist()
    )
    hosts = hosts_of(program)
    assert hosts.host_of_device.tolist() == hosts_by_definition(program)
    for source, target in product(range(devices), range(devices)):
        ends = hosts.ends(int(hosts.link[hosts.host_of_device[source], hosts.host_of_device[target]]))
        if source != target:
            assert ends is not None
            assert program.link_seconds_per_byte[source, target] == program.link_seconds_per_byte[ends]
            assert program.link_seconds_per_byte[target, source] == program.link_seconds_per_byte[ends[::-1]]


def test_devices_over_equal_links_are_one_host() -> None:
    hosts = hosts_of(chain([[1.0] * 4] * 5, per_byte=0.1))
    assert hosts.count == 1
    assert by_kind(chain([[1.0] * 4] * 5, per_byte=0.1), hosts).capacity == (5,)


def test_equal_hosts_are_counted_and_not_told_apart() -> None:
    hosts = hosts_of(on_hosts([8, 8, 8, 8], [1] * 32))
    walks, halves = host_by_host(hosts), host_by_host(hosts, 2)
    assert walks is not None
    assert halves is not None
    assert walks.num_nodes == halves.num_nodes == 8
    assert (walks.capacity, halves.capacity) == ((4,), (8,))
    assert host_by_host(hosts, 3) is None
    runs = by_runs(hosts)
    assert runs is not None
    assert runs.capacity == (32,)


def test_hosts_with_unlike_links_have_no_runs() -> None:
    links = [[0.0, 0.1, 0.5, 0.5], [0.1, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 0.2], [0.5, 0.5, 0.2, 0.0]]
    hosts = hosts_of(chain([[1.0] * 4] * 4, per_byte=links))
    assert hosts.count == 2
    assert by_runs(hosts) is None
    assert by_device(hosts).capacity == (2, 2)


def test_runs_that_no_hosts_have_are_no_plan() -> None:
    hosts = hosts_of(on_hosts([3, 3], [1] * 6))
    runs = by_runs(hosts)
    assert runs is not None
    first = runs.starts[0][1]
    second = next(edge.next_node for edge in runs.edges if edge.node == first and edge.next_node not in (first, -1))
    assert runs.devices_of([(0, first), (0, second)] * 2) == (0, 1, 3, 4)
    assert runs.devices_of([(0, first), (0, second)] * 3) is None


def test_halves_of_a_host_are_taken_in_two_visits() -> None:
    hosts = hosts_of(on_hosts([4, 4], [1] * 4 + [2] * 4))
    halves = host_by_host(hosts, 2)
    assert halves is not None
    slow, fast = (dict(halves.starts)[unit] for unit in (0, 1))
    after = {edge.node: edge.next_node for edge in halves.edges if edge.unit == -1 and edge.next_node != -1}
    walk = [(0, slow), (-1, after[slow]), (1, fast), (0, slow), (-1, after[slow])]
    assert halves.devices_of(walk) == (0, 1, 4, 2, 3)


def test_a_walk_within_what_is_known_says_nothing_of_more() -> None:
    """On one device both nodes take 1 s; from elsewhere it is known that nothing is below 2 s; each alone would take
    3 s."""
    problem = chain([[1.0, 1.0]])
    walks = by_kind(problem, hosts_of(problem))
    table = WalkLoads(
        index_of_label={walks.edges[0].label: 0},
        num_positions=3,
        starts=np.array([0, 0, 1]),
        ends=np.array([1, 2, 2]),
        loads=np.array([[3.0, 1.0, 3.0]]),
        kind_of_label=np.zeros(1, dtype=np.int64),
        offset=np.zeros(1, dtype=np.int64),
    )
    assert least_over_walks(walks, table, least=2.0).value <= 2.0


def test_three_hosts_of_equal_devices_are_filled_one_after_the_other() -> None:
    problem = on_hosts([2, 2, 2], [1] * 6, num_nodes=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_pass, "MAX_STATES", 1)
        assignment = balanced(problem)
    hosts = [device // 2 for device in assignment.device_of_stage]
    assert hosts[0::2] == hosts[1::2]
    assert assignment.lower_bound_seconds == pytest.approx(evaluate(problem, assignment).bottleneck_seconds)
