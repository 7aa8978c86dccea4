"""Windows on hosts: of plans that enter each host once the best, or with hosts around others where much skips the
middle; for programs whose values skip stages too."""

from collections.abc import Callable
from itertools import groupby

import numpy as np
import pytest

from planner.partition.assignment import Assignment, contiguous
from planner.partition.objective import Objective
from planner.partition.ordered import host_windows
from planner.partition.ordered import window_loads as window_loads_module
from planner.partition.ordered.host_windows import Layout, over_windows
from planner.partition.ordered.hosts import hosts_of
from planner.partition.ordered.positions import allowed_positions
from planner.partition.ordered.program_pass import evaluate_layout
from planner.partition.ordered.window_loads import NOT_A_BORDER, WindowLoads, much_skips_the_middle, window_loads
from planner.partition.problem import PartitionProblem
from tests.planner.partition.exact import all_contiguous, least
from tests.planner.partition.ordered.programs_on_hosts import random_mirrored_program, random_program
from tests.planner.partition.problems import problem
from tests.random_examples import random_seeds


def visits(plan: Assignment, host: list[int]) -> list[int]:
    return [own for own, _ in groupby(host[device] for device in plan.device_of_stage)]


def enters_once(entered: list[int]) -> bool:
    return len(entered) == len(set(entered))


def goes_around(entered: list[int]) -> bool:
    """Whether each host is entered once, or at both ends of what others run: 0 1 2 1 0."""
    if enters_once(entered):
        return True
    return entered[0] == entered[-1] and entered[0] not in entered[1:-1] and goes_around(entered[1:-1])


def plans_that_are_tried(program: PartitionProblem, host: list[int]) -> list[Assignment]:
    is_tried = goes_around if much_skips_the_middle(program, allowed_positions(program)) else enters_once
    return [plan for plan in all_contiguous(program) if is_tried(visits(plan, host))]


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("are_counted", [True, False])
@pytest.mark.parametrize("seed", random_seeds(20))
def test_no_plan_that_enters_each_host_once_is_better(
    seed: int, are_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beam over so few hosts keeps every choice of them."""
    if not are_counted:
        monkeypatch.setattr(host_windows, "_MAX_HOST_STATES", 0)
    program, host = random_program(seed)
    layouts = over_windows(program)
    for layout in layouts:
        evaluation = evaluate_layout(program, *layout)
        assert (np.array(evaluation.device_peak_bytes) <= program.device_memory_bytes).all()
    if program.training is not None or len(set(host)) == len(host):
        return
    plans = plans_that_are_tried(program, host)
    if not are_counted:
        plans = [plan for plan in plans if enters_once(visits(plan, host))]
    best = least(program, Objective.THROUGHPUT, plans)
    if np.isfinite(best):
        assert evaluate_layout(program, *layouts[-1]).bottleneck_seconds <= best * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(6))
def test_no_plan_of_hosts_around_others_is_better(seed: int) -> None:
    program, host = random_mirrored_program(seed)
    boundaries, devices = over_windows(program)[-1]
    best = least(program, Objective.THROUGHPUT, plans_that_are_tried(program, host))
    assert evaluate_layout(program, boundaries, devices).bottleneck_seconds == pytest.approx(best, rel=1e-3)


def test_a_value_that_skips_stages_keeps_them_on_one_host() -> None:
    """Two hosts of two; the first node's value is read at the end: what reads it stands beside what made it."""
    host = [0, 0, 1, 1]
    program = problem(
        compute_seconds=[[2.0, 2.0, 2.0]] * 4,
        reads=[[0], [1], [2, 1]],
        value_bytes=[1, 8, 1, 1],
        per_byte=[[0.01 if one == other else 1.0 for other in host] for one in host],
    )
    boundaries, devices = over_windows(program)[-1]
    assert len(boundaries) == 3
    assert len({host[device] for device in devices}) == 1


def test_what_skips_the_middle_stays_on_the_host_of_both_ends() -> None:
    """Two hosts of two: the first node's value is read by the last, and what is between exchanges little."""
    host = [0, 0, 1, 1]
    program = problem(
        compute_seconds=[[4.0, 2.0, 2.0, 2.0, 4.0]] * 4,
        reads=[[0], [0], [2], [3], [4, 1]],
        value_bytes=[1, 20, 1, 1, 1, 1],
        per_byte=[[0.01 if one == other else 0.05 for other in host] for one in host],
    )
    boundaries, devices = over_windows(program)[-1]
    plan = contiguous(program, boundaries, devices, [""] * len(devices))
    assert visits(plan, host) in ([0, 1, 0], [1, 0, 1])


@pytest.mark.parametrize("few_pairs", [300, 0])
def test_hosts_run_both_ends_around_one_another(monkeypatch: pytest.MonkeyPatch, few_pairs: int) -> None:
    """Three hosts of two: the first node's value is read by the last, the third's by the last but one. With
    `few_pairs` 0 each border has its best two pairs alone."""
    monkeypatch.setattr(window_loads_module, "_FEW_PAIRS", few_pairs)
    host = [0, 0, 1, 1, 2, 2]
    program = problem(
        compute_seconds=[[2.0, 0.0, 2.0, 0.0, 2.0, 2.0, 2.0]] * 6,
        reads=[[0], [0], [2], [2], [4], [5, 3], [6, 1]],
        value_bytes=[1, 20, 1, 20, 1, 1, 1, 1],
        per_byte=[[0.01 if one == other else 0.1 for other in host] for one in host],
    )
    boundaries, devices = over_windows(program)[-1]
    plan = contiguous(program, boundaries, devices, [""] * len(devices))
    entered = visits(plan, host)
    assert len(entered) == 5
    assert entered == entered[::-1]
    assert evaluate_layout(program, boundaries, devices).bottleneck_seconds < 3


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", random_seeds(20))
def test_layouts_are_within_the_limit_asked_for(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    program, _ = random_mirrored_program(seed)
    all_are_within_their_limits(monkeypatch, program)


def test_what_leaves_a_host_for_one_around_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hosts: the last node reads the first's value and the third's, which the last but one reads too."""
    host = [0, 0, 1, 1, 2, 2]
    program = problem(
        compute_seconds=[[2.0, 0.0, 2.0, 0.0, 2.0, 2.0, 0.0]] * 6,
        reads=[[0], [0], [2], [2], [4], [5, 3], [6, 1, 3]],
        value_bytes=[1, 20, 1, 15, 1, 1, 1, 1],
        per_byte=[[0.01 if one == other else 0.1 for other in host] for one in host],
    )
    all_are_within_their_limits(monkeypatch, program)


def all_are_within_their_limits(monkeypatch: pytest.MonkeyPatch, program: PartitionProblem) -> None:
    layouts: list[tuple[float, Layout]] = []

    def recorded(layout: Callable[[object, float], Layout | None]) -> Callable[[object, float], Layout | None]:
        def record(trials: object, limit: float) -> Layout | None:
            answer = layout(trials, limit)
            if answer is not None:
                layouts.append((limit, answer))
            return answer

        return record

    for trials in (host_windows._Windows, host_windows._WindowsAround):
        monkeypatch.setattr(trials, "layout", recorded(trials.layout))  # type: ignore[arg-type]
    over_windows(program)
    assert len(layouts) > 1
    for limit, layout in layouts:
        assert evaluate_layout(program, *layout).bottleneck_seconds <= limit * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_what_a_stage_exchanges_beyond_a_border_is_counted_once(seed: int) -> None:
    program, _ = random_program(seed)
    hosts, positions = hosts_of(program), np.arange(program.num_nodes + 1)
    borders = positions[[0, *range(seed % 2 + 1, program.num_nodes, 2), program.num_nodes]]
    table = window_loads(program, hosts, hosts.groups, positions, borders, np.inf)
    assert np.flatnonzero(table.border != NOT_A_BORDER).tolist() == borders.tolist()
    sizes = program.value_bytes + program.value_gradient_bytes
    made = np.maximum(program.value_producer, 0)
    returned = [(value, program.num_nodes - 1) for value in np.flatnonzero(program.value_returned)]
    reads = {*zip(program.read_value.tolist(), program.read_node.tolist(), strict=True), *returned}
    for border in borders:
        for first in range(program.num_nodes):
            for last in range(first + 1, program.num_nodes + 1):
                into = {value for value, node in reads if made[value] < min(border, first) and first <= node < last}
                out = {value for value, node in reads if first <= made[value] < last and node >= max(border, last)}
                at = table.border[border], first, last - first - 1
                if border <= first:
                    assert table.entering[at] == sum(sizes[value] for value in into)
                if border >= last:
                    assert table.leaving[at] == sum(sizes[value] for value in out)


@pytest.mark.parametrize(("num_free", "most", "every_cut"), [(0, 2**21, True), (290, 2**19, False)])
def test_tables_have_an_end_where_stages_are_long(
    monkeypatch: pytest.MonkeyPatch, num_free: int, most: int, *, every_cut: bool
) -> None:
    """Few devices, and operators that take no time: stages within any limit hold many of them."""
    host, num_nodes = [0, 0, 1, 1], 300
    program = problem(
        compute_seconds=[[0.0] * num_free + [1.0] * (num_nodes - num_free)] * len(host),
        reads=[[node, max(0, node - 7)] for node in range(num_nodes)],
        value_bytes=[1] * (num_nodes + 1),
        per_byte=[[0.01 if one == other else 0.05 for other in host] for one in host],
    )
    tables: list[WindowLoads] = []

    def kept(*given: object) -> WindowLoads:
        tables.append(window_loads(*given))  # type: ignore[arg-type]
        return tables[-1]

    monkeypatch.setattr(host_windows, "_MAX_NUMBERS", most)
    monkeypatch.setattr(host_windows, "window_loads", kept)
    unlimited = 3 * host_windows._MAX_POSITIONS**3
    assert over_windows(program)
    coarse, fine = tables
    assert (fine.positions.size == num_nodes + 1) is every_cut
    numbers = sum(table.size for table in (fine.entering, fine.leaving, fine.loads))
    assert numbers <= (1.1 * most if every_cut else unlimited)
    assert np.setdiff1d(fine.positions, coarse.positions).size
    assert (fine.border[[0, -1]] != NOT_A_BORDER).all()


def fleet(num_devices: int) -> PartitionProblem:
    """Hosts of 2 to 4 devices, each of another kind, run an even program whose values skip two nodes."""
    host = [index for index in range(num_devices) for _ in range(2 + index % 3)][:num_devices]
    n = 96
    return problem(
        compute_seconds=[[1.0 + own / 16] * n for own in host],
        reads=[sorted({node, max(0, node - 2)}) for node in range(n)],
        value_bytes=[1] * (n + 1),
        returned=(n,),
        per_byte=[[0.001 if one == other else 0.01 for other in host] for one in host],
    )


def test_of_a_fleet_of_unlike_hosts_all_devices_are_busy() -> None:
    program = fleet(36)
    hosts = hosts_of(program)
    assert hosts.count == len(hosts.groups) == 12
    (*_, (boundaries, devices)) = over_windows(program)
    evaluation = evaluate_layout(program, boundaries, devices)
    seconds = program.compute_seconds[:, 0]
    # The least in which whole nodes have room, without messages; these take a hundredth of a second each.
    least_seconds = min(time for time in np.outer(seconds, range(1, 8)).flat if (time // seconds).sum() >= 96)
    assert sorted(devices) == list(range(36))
    assert evaluation.bottleneck_seconds < least_seconds + 0.05


def uneven_fleet(seed: int) -> PartitionProblem:
    """A chain of uneven nodes and values, onto 30 devices in hosts of 2 to 4, each of another kind."""
    draw = np.random.default_rng(seed)
    host = [index for index in range(30) for _ in range(int(draw.integers(2, 5)))][:30]
    seconds, speeds = draw.uniform(0.5, 2.0, 60), draw.uniform(1.0, 3.0, 30)
    return problem(
        compute_seconds=[list(seconds * speeds[own]) for own in host],
        reads=[[node] for node in range(60)],
        value_bytes=draw.integers(1, 40, 61).tolist(),
        returned=(60,),
        per_byte=[[0.001 if one == other else 0.05 for other in host] for one in host],
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_of_one_choice_of_hosts_alone_that_with_the_busiest_is_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are worth a few percent; keeping the idlest costs up to a quarter."""
    program = uneven_fleet(seed)

    def value() -> float:
        return evaluate_layout(program, *over_windows(program)[-1]).bottleneck_seconds

    of_many = value()
    monkeypatch.setattr(host_windows, "_WIDTH", 1)
    assert value() <= 1.08 * of_many


def test_more_unlike_hosts_make_no_plan_worse() -> None:
    values = []
    for count in (10, 20, 30, 40):
        boundaries, devices = over_windows(fleet(count))[-1]
        values.append(evaluate_layout(fleet(count), boundaries, devices).bottleneck_seconds)
    assert values == sorted(values, reverse=True)


def test_of_hosts_around_others_the_quickest_serve_where_all_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on its two quick hosts alone, of which one runs both ends; a slow one of four devices stands before them."""
    host = [0, 0, 0, 0, 1, 1, 2, 2]

    def program(devices: list[int]) -> PartitionProblem:
        return problem(
            compute_seconds=[[6.0 if host[device] == 0 else 1.0 + host[device] / 100] * 8 for device in devices],
            reads=[[0], [1], [2], [3], [4], [5], [6, 2], [7, 1]],
            value_bytes=[1, 8, 8, 1, 1, 1, 1, 1, 1],
            returned=(8,),
            per_byte=[[0.01 if host[one] == host[other] else 0.5 for other in devices] for one in devices],
        )

    def value(program: PartitionProblem) -> float:
        return evaluate_layout(program, *over_windows(program)[-1]).bottleneck_seconds

    assert much_skips_the_middle(program([4, 5, 6, 7]), np.arange(9))
    alone = value(program([4, 5, 6, 7]))
    monkeypatch.setattr(host_windows, "_MAX_HOST_STATES", 4)
    monkeypatch.setattr(host_windows, "_MAX_AROUND_STATES", 4)
    assert value(program(list(range(8)))) == pytest.approx(alone)


def test_over_equal_links_each_device_is_a_host() -> None:
    """The least of few kinds is known by walks; windows of one device each come to it too."""
    program = problem(
        compute_seconds=[[speed * took for took in (1.0, 2.0, 1.5, 1.0, 3.0, 1.0)] for speed in (1.0, 1.5, 2.0)],
        reads=[[node, max(0, node - 2)] for node in range(6)],
        value_bytes=[1] * 7,
        returned=(6,),
        per_byte=0.1,
    )
    assert hosts_of(program).count == 1
    boundaries, devices = over_windows(program)[-1]
    best = least(program, Objective.THROUGHPUT, list(all_contiguous(program)))
    assert evaluate_layout(program, boundaries, devices).bottleneck_seconds == pytest.approx(best)


@pytest.mark.parametrize("numbers", [500, 20_000, 100_000])
def test_tables_of_devices_that_are_all_unlike_stay_within_their_size(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer positions are tried, or no windows where not even a few have room."""
    program = problem(
        compute_seconds=[[1.0 + device / 10] * 96 for device in range(12)],
        reads=[[node] for node in range(96)],
        value_bytes=[1] * 97,
        returned=(96,),
        per_byte=0.01,
    )
    sizes = []

    def noted(*arguments: object) -> WindowLoads:
        tables = window_loads(*arguments)
        sizes.extend([tables.loads.size, tables.entering.size, len(tables.groups) * tables.positions.size**2])
        return tables

    monkeypatch.setattr(host_windows, "_MAX_NUMBERS", numbers)
    monkeypatch.setattr(host_windows, "_MAX_POSITIONS", 48)
    monkeypatch.setattr(host_windows, "window_loads", noted)
    assert bool(over_windows(program)) == bool(sizes) == (numbers > 500)
    assert max(sizes, default=0) <= numbers


def test_of_work_that_takes_no_time_nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_windows, "_MAX_HOST_STATES", 0)
    host = [0, 0, 1, 1, 2, 2]
    program = problem(
        compute_seconds=[[0.0] * 4] * 6,
        reads=[[node] for node in range(4)],
        value_bytes=[0] * 5,
        per_byte=[[0.1 if one == other else 1.0 for other in host] for one in host],
    )
    assert evaluate_layout(program, *over_windows(program)[-1]).bottleneck_seconds == 0
    assert over_windows(program, 0.0) == []
