"""What holds of every mode's answer, whatever the problem: it covers, fits, runs, keeps what it must, and is the same
again; the verifier takes every plan; no mode beats "optimal", and no bound stands above a value."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.errors import Infeasible, OptionsError
from planner.graph.ir import Graph
from planner.partition.assignment import Assignment
from planner.partition.evaluate import evaluate
from planner.partition.modes.table import MODES
from planner.partition.objective import NAMED_SCHEDULES, Objective, PipelineSchedule, Training
from planner.partition.problem import FREE, PartitionProblem
from planner.partition.registry import partition
from planner.partition.request import Request, request_for
from planner.partition.saturate_host import saturate_host
from planner.plan.options import (
    AotBasedMode,
    BalancedMode,
    CostAwareMode,
    CutMode,
    KlBasedMode,
    Mode,
    OptimalMode,
    PlanOptions,
    Routing,
    SingleMode,
    SizeBasedMode,
    SparseNnMode,
)
from planner.planning import make_plan
from tests.builders.random_graphs import random_graph, random_stages
from tests.planner.partition.exact import all_contiguous, least, value_of
from tests.planner.partition.problems import problem as problem_of
from tests.planner.partition.problems import problems, trainings
from tests.random_examples import random_examples, random_seeds

REFUSALS = (Infeasible, OptionsError)
MODULES = ("m0", "m1", "m2")
CUT = CutMode(module_paths=("m0",))
# Of the combinations of options, how many there are for each that a seed takes; prime to the number of each option.
EVERY = 47


@st.composite
def questions(draw: st.DrawFn, max_nodes: int = 8, max_devices: int = 4) -> tuple[PartitionProblem, Request]:
    """A problem whose nodes carry module paths and may be barred or fixed, and what to make least."""
    training = draw(st.none() | trainings)
    problem = draw(problems(max_nodes, max_devices, barred=draw(st.booleans()), training=st.just(training)))
    paths = tuple(MODULES[node * len(MODULES) // problem.num_nodes] for node in range(problem.num_nodes))
    embeddings = np.array(draw(st.lists(st.booleans(), min_size=problem.num_nodes, max_size=problem.num_nodes)))
    problem = replace(problem, labels=replace(problem.labels, module_paths=paths), is_embedding=embeddings)
    objectives = [one for one in Objective if training is not None or one is not Objective.STEP_TIME]
    objective, saturate_host = draw(st.sampled_from(objectives)), draw(st.booleans())
    return problem, Request(mode="", objective=objective, saturate_host=saturate_host, effort=0.2)


def answers(
    problem: PartitionProblem, request: Request, modes: Collection[str] = tuple(MODES)
) -> Iterator[tuple[str, Assignment]]:
    """Each mode's answer, or nothing where it refuses; "aot_based" is given what "optimal" found."""
    names = problem.labels.devices
    aot = AotBasedMode(partition_of_node=(0,) * problem.num_nodes, device_of_partition=names[:1])
    for mode in sorted(modes, key=lambda name: name == "aot_based"):
        options = {"cut": CUT, "aot_based": aot}.get(mode)
        try:
            assignment = partition(problem, replace(request, mode=mode, options=options))
        except REFUSALS:
            continue
        if mode == "optimal":
            devices = tuple(names[device] for device in assignment.device_of_stage)
            aot = AotBasedMode(partition_of_node=assignment.stage_of_node, device_of_partition=devices)
        yield mode, assignment


def check_holds(problem: PartitionProblem, assignment: Assignment) -> None:
    stages = np.array(assignment.stage_of_node)
    assert stages.size == problem.num_nodes
    assert sorted(set(assignment.stage_of_node)) == list(range(assignment.num_stages))
    made = problem.value_producer[problem.read_value]
    inside = made >= 0
    assert (stages[made[inside]] <= stages[problem.read_node[inside]]).all()
    for group in range(problem.node_group.max() + 1):
        assert np.unique(stages[problem.node_group == group]).size == 1
    for stage, devices in enumerate(assignment.devices_of_stage):
        assert len(set(devices)) == len(devices)
        assert np.isfinite(problem.compute_seconds[np.ix_(devices, stages == stage)]).all()
    fixed = np.flatnonzero(problem.fixed_device != FREE)
    assert all(assignment.devices_of_stage[stages[node]] == (problem.fixed_device[node],) for node in fixed)
    assert len(assignment.reasons) == assignment.num_stages
    assert (np.array(evaluate(problem, assignment).device_peak_bytes) <= problem.device_memory_bytes).all()


@pytest.mark.slow
@random_examples(12)
@given(question=questions())
def test_every_mode_keeps_what_must_hold(question: tuple[PartitionProblem, Request]) -> None:
    problem, request = question
    values: dict[str, float] = {}
    for mode, assignment in answers(problem, request):
        check_holds(problem, assignment)
        values[mode] = value_of(problem, assignment, request.objective)
        if assignment.lower_bound_seconds is not None:
            assert assignment.lower_bound_seconds <= values[mode] * (1 + 1e-9), mode
    for mode, value in values.items():
        assert values["optimal"] <= value * (1 + 1e-9), mode


@pytest.mark.slow
@random_examples(8)
@given(question=questions(max_nodes=6, max_devices=3))
def test_bounds_stand_below_every_contiguous_layout(question: tuple[PartitionProblem, Request]) -> None:
    problem, request = question
    request = replace(request, saturate_host=False)
    best = least(problem, request.objective, all_contiguous(problem))
    for mode, assignment in answers(problem, request, modes=("balanced", "optimal")):
        if assignment.lower_bound_seconds is not None:
            assert assignment.lower_bound_seconds <= best * (1 + 1e-9), mode


def test_a_layout_that_a_device_cannot_run_is_no_layout_for_memory_either() -> None:
    """Both nodes on one device would fill it least, and no device may run both."""
    problem = problem_of(
        compute_seconds=[[0.0] * 2] * 4,
        reads=[[], [0]],
        value_bytes=[1, 0],
        num_inputs=0,
        fixed={0: 0, 1: 1},
        microbatches_in_flight=1,
    )
    assignment = partition(problem, Request(mode="optimal", objective=Objective.MEMORY))
    assert assignment.lower_bound_seconds == pytest.approx(2 / 2**40)
    assert least(problem, Objective.MEMORY, all_contiguous(problem)) == pytest.approx(2 / 2**40)


@pytest.mark.slow
def test_a_layout_too_long_for_copies_may_be_the_best_one() -> None:
    """The whole program on one device gets a copy on the slow one; two stages leave that idle."""
    problem = problem_of(
        compute_seconds=[[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 2.0]],
        reads=[[], [], [0], [0, 1]],
        value_bytes=[0] * 4,
        num_inputs=0,
        latency=0.25,
        module_paths=["m0", "m0", "m1", "m2"],
    )
    for mode in (CUT, OptimalMode()):
        assignment = partition(problem, request_for(mode, Objective.LATENCY, saturate_host=True))
        assert value_of(problem, assignment, Objective.LATENCY) == pytest.approx(1.25), mode.name


@pytest.mark.slow
@random_examples(6)
@given(question=questions())
def test_host_saturation_only_adds_devices_that_hold_what_they_must(
    question: tuple[PartitionProblem, Request],
) -> None:
    problem, request = question
    for _, assignment in answers(problem, replace(request, saturate_host=False)):
        more = saturate_host(problem, assignment)
        assert more.stage_of_node == assignment.stage_of_node
        assert more.device_of_stage == assignment.device_of_stage
        used = {device for devices in assignment.devices_of_stage for device in devices}
        for before, after in zip(assignment.devices_of_stage, more.devices_of_stage, strict=True):
            assert after[: len(before)] == before
            assert used.isdisjoint(after[len(before) :])
        check_holds(problem, more)


INVENTORY = Inventory(
    devices=tuple(
        Device(id=f"d{index}", kind=kind, host="h", memory_bytes=size)
        for index, (kind, size) in enumerate([("cpu", 3000), ("l4", 1500), ("cpu", 1 << 40)])
    ),
    links={("d0", "d1"): LinkSpeed(bytes_per_second=1e6, latency_seconds=1e-6)},
    default_link=LinkSpeed(bytes_per_second=1e9, latency_seconds=1e-7),
)
PLAIN = (SingleMode(), SizeBasedMode(), SparseNnMode(), CostAwareMode(), KlBasedMode(), BalancedMode())
OPTIMAL = tuple(
    OptimalMode(effort=0.2, **more) for more in ({}, {"free": True}, {"replicate": True}, {"recompute": True})
)


def program(seed: int) -> Graph:
    """With module paths, and states that can be trained."""
    graph = random_graph(seed, 6 + seed % 9)
    count = len(graph.nodes)
    nodes = tuple(replace(node, module_path=MODULES[index * 3 // count]) for index, node in enumerate(graph.nodes))
    states = tuple(replace(state, requires_grad=index % 2 == 0) for index, state in enumerate(graph.states))
    return replace(graph, nodes=nodes, states=states)


def modes_for(graph: Graph) -> tuple[Mode, ...]:
    stages = random_stages(graph, len(graph.nodes), min(3, len(graph.nodes)))
    given_by_hand = AotBasedMode(
        partition_of_node=tuple(2 - stage for stage in stages), device_of_partition=("d2", "d0", "d2")
    )
    return (*PLAIN, *OPTIMAL, CutMode(module_paths=("m1",)), BalancedMode(num_stages=2), given_by_hand)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_verifier_takes_every_plan_of_every_mode(mode: str) -> None:
    """`make_plan` verifies what it made, and raises PlanInvariantError where that fails."""
    planned = 0
    for seed in sorted({0, 1, *random_seeds(1)}):
        for combination in combinations_for(mode, seed):
            try:
                plan = make_plan(program(seed), "id", INVENTORY, combination)
            except REFUSALS:
                continue
            assert plan.num_nodes == len(program(seed).nodes)
            planned += 1
    assert planned


def test_copies_hand_on_an_input_that_is_returned() -> None:
    """The program writes into its first input, and returns it."""
    options = PlanOptions(mode=SingleMode(), objective=Objective.THROUGHPUT, saturate_host=True)
    graph = program(2611273000007)
    [output] = graph.outputs
    assert output.content == graph.inputs[0].content
    [stage] = make_plan(graph, "id", INVENTORY, options).stages
    assert len(stage.device_ids) > 1


def combinations_for(mode: str, seed: int) -> list[PlanOptions]:
    """Some of what may be asked of a mode; all of it over so many seeds."""
    modes = [one for one in modes_for(program(seed)) if one.name == mode]
    schedules = [None, *NAMED_SCHEDULES, PipelineSchedule.BEST]
    return [
        PlanOptions(
            mode=one,
            objective=objective,
            routing=routing,
            training=None if schedule is None else Training(schedule=schedule, microbatches=3),
            saturate_host=seed % 2 == 1,
        )
        for one, objective, routing, schedule in product(modes, Objective, Routing, schedules)
        if schedule is not None or objective is not Objective.STEP_TIME
    ][seed % EVERY :: EVERY]


def fingerprints() -> str:
    """One line per plan, for a process of another hash seed to print too."""
    lines = []
    for seed in (1, 2):
        graph = program(seed)
        for mode in modes_for(graph):
            try:
                plan = repr(make_plan(graph, "id", INVENTORY, PlanOptions(mode=mode, saturate_host=seed == 2)))
            except REFUSALS as error:
                plan = str(error)
            lines.append(f"{mode.name} {hashlib.sha256(plan.encode()).hexdigest()}")
    return "\n".join(lines)


@pytest.mark.services
def test_another_process_makes_the_same_plans() -> None:
    """One with hashes of its own."""
    module = "tests.planner.partition.test_modes_agree"
    finished = subprocess.run(
        [sys.executable, "-c", f"from {module} import fingerprints\nprint(fingerprints())"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    prints = fingerprints()
    assert finished.stdout.strip() == prints
    assert len(prints.splitlines()) == 26
