"""Plans and options come back from the wire as they went, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.sources import CostSource, RateSource
from planner.errors import GraphError, InvalidArgument, OptionsError
from planner.graph.expression import ExpressionOperator, Operation, SymbolReference
from planner.graph.ir import Dtype, ValueKind
from planner.partition.objective import Training
from planner.partition.training.pipeline_order import Pass, Step
from planner.plan.options import BalancedMode, Mode, OptimalMode, PlanOptions, RatesFrom, Routing, ShapeBucket
from planner.plan.plan import LiveTensor, PassOrder, Plan, StageEdge, StageMemory, TieGroup
from planner.plan.verify import verify_plan
from planner.wire.plan import options_from_proto, options_to_proto, plan_from_proto, plan_to_proto
from protos.v1 import plan_pb2
from tests.builders.options import MODES, full_options
from tests.builders.plans import plan_of
from tests.builders.random_graphs import random_graph, random_stages
from tests.random_examples import random_examples

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)


@random_examples(50)
@given(seed=st.integers(0, 2**32), num_stages=st.integers(1, 5), routing=st.sampled_from(Routing))
def test_a_plan_comes_back_from_its_bytes(seed: int, num_stages: int, routing: Routing) -> None:
    graph = random_graph(seed, 20)
    plan = plan_of(graph, random_stages(graph, seed, num_stages), routing)
    message = plan_to_proto(plan, plan_id="plan-1", created_at=MOMENT)
    again = plan_from_proto(plan_pb2.Plan.FromString(message.SerializeToString()))
    assert again == plan
    verify_plan(again, graph)
    assert message.created_at.ToDatetime(UTC) == MOMENT
    assert message.mode == "balanced"
    assert [stage.memory.peak_bytes for stage in message.stages] == [stage.memory.peak_bytes for stage in plan.stages]


def sizes() -> Iterator[int]:
    """Bytes past 2^53, each another: a float would leave out every other of them."""
    yield from (2**53 + 2 * index + 1 for index in range(100))


def full_plan() -> Plan:
    """No field at its default, no two sizes alike."""
    size, seconds = sizes(), (1 / divisor for divisor in range(3, 100))
    graph = random_graph(1, 5)
    plan = plan_of(graph, random_stages(graph, 1, 2))
    tensors = tuple(
        LiveTensor(
            value_id=2**32 + index,
            name=f"v{index}",
            kind=kind,
            dtype=dtype,
            dims=(SymbolReference(3), Operation(ExpressionOperator.MULTIPLY, (2, SymbolReference(4)))),
            size_bytes=next(size),
            producer_stage=index - 1,
            consumed=index == 0,
            bypassing=index == 1,
        )
        for index, (kind, dtype) in enumerate([(ValueKind.TENSOR, Dtype.BFLOAT16), (ValueKind.SYM_INT, None)])
    )
    stage = replace(
        plan.stages[1],
        node_ranges=((0, 3), (2**40, 2**40 + 1)),
        device_ids=("b", "a"),
        states=("z", "a"),
        liveness=tensors,
        outputs=(2**40, 7),
        compute_seconds=next(seconds),
        communication_seconds=next(seconds),
        flops=next(seconds),
        memory=StageMemory(
            state_bytes=next(size),
            activation_bytes=next(size),
            buffer_bytes=next(size),
            gradient_bytes=next(size),
            optimizer_bytes=next(size),
            saved_bytes=next(size),
        ),
        reason="the module ends here",
        first_module="encoder",
        last_module="decoder",
        backward_seconds=next(seconds),
        recomputed_ranges=((3, 4), (12, 14)),
        recomputes_activations=True,
        weight_share=0.375,
    )
    return replace(
        plan,
        graph_name="t5",
        num_nodes=17,
        options=full_options(OptimalMode()),
        stages=(plan.stages[0], stage),
        edges=(
            StageEdge(source_stage=0, target_stage=1, value_ids=(9, 2), size_bytes=next(size), gradient_value_ids=(2,)),
        ),
        tie_groups=(TieGroup(id=4, members=(("wte", 0), ("head", 2)), size_bytes=next(size), requires_grad=True),),
        bottleneck_seconds=next(seconds),
        latency_seconds=next(seconds),
        lower_bound_seconds=next(seconds),
        symbol_values=(("batch", 2**53 + 1), ("sequence", 3)),
        step_seconds=next(seconds),
        pass_orders=(
            PassOrder(device_id="b", steps=tuple(Step(kind, stage, 2) for stage, kind in enumerate(Pass))),
            PassOrder(device_id="a", steps=()),
        ),
    )


def test_every_field_of_a_plan_comes_back_to_the_byte() -> None:
    plan = full_plan()
    message = plan_to_proto(plan, plan_id="plan-1", created_at=MOMENT)
    assert plan_from_proto(plan_pb2.Plan.FromString(message.SerializeToString())) == plan
    assert (message.id, message.mode, message.stages[1].num_nodes) == ("plan-1", "optimal", 4)
    assert message.stages[1].memory.peak_bytes == plan.stages[1].memory.peak_bytes


def test_absent_step_time_is_not_zero() -> None:
    message = plan_to_proto(replace(full_plan(), step_seconds=None), plan_id="plan-1", created_at=MOMENT)
    assert not message.HasField("step_seconds")
    assert plan_from_proto(message).step_seconds is None
    message.step_seconds = 0.0
    assert plan_from_proto(message).step_seconds == 0.0


def test_sources_of_seconds_come_back() -> None:
    graph = random_graph(1, 5)
    sources = tuple(
        CostSource(
            device_kind=rates.name,
            num_measured=index,
            num_nodes=5,
            rates=rates,
            scaled=index == 1,
            measured_profile_ids=("prof-b", "prof-a")[:index],
            calibration_profile_ids=("prof-c", "prof-b")[:index],
            message_seconds=(None, 0.0, 1e-4)[index],
            norm_bytes_per_second=(None, 1e9, 1e10)[index],
            optimizer_bytes_per_second=(None, 1.0, 3e10)[index],
        )
        for index, rates in enumerate(RateSource)
    )
    plan = replace(plan_of(graph, random_stages(graph, 1, 2)), cost_sources=sources)
    message = plan_to_proto(plan, plan_id="plan-1", created_at=MOMENT)
    assert plan_from_proto(message) == plan
    message.cost_sources[1].message_seconds = -1.0
    with pytest.raises(InvalidArgument, match=r"plan\.cost_sources\[1\]: message_seconds is -1"):
        plan_from_proto(message)
    message.cost_sources[1].message_seconds = 0.0
    message.cost_sources[1].norm_bytes_per_second = 0.0
    with pytest.raises(InvalidArgument, match=r"plan\.cost_sources\[1\]: norm_bytes_per_second is 0"):
        plan_from_proto(message)
    message.cost_sources[1].norm_bytes_per_second = 1.0
    message.cost_sources[2].rates = 0  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match=r"plan\.cost_sources\[2\]: rates is 0"):
        plan_from_proto(message)


def test_an_order_of_passes_has_as_many_of_everything() -> None:
    message = plan_to_proto(full_plan(), plan_id="plan-1", created_at=MOMENT)
    message.pass_orders[0].kinds[1] = 9  # type: ignore[call-overload]
    with pytest.raises(InvalidArgument, match=r"plan\.pass_orders\[0\]: kinds names pass 9"):
        plan_from_proto(message)
    del message.pass_orders[0].kinds[1]
    with pytest.raises(InvalidArgument, match=r"plan\.pass_orders\[0\]: .* 3, 4, 4 entries"):
        plan_from_proto(message)


def test_an_absent_lower_bound_is_not_zero() -> None:
    graph = random_graph(1, 5)
    plan = plan_of(graph, random_stages(graph, 1, 2))
    assert plan.lower_bound_seconds is None
    message = plan_to_proto(plan, plan_id="plan-1", created_at=MOMENT)
    assert not message.HasField("lower_bound_seconds")
    message.lower_bound_seconds = 0.0
    assert plan_from_proto(message).lower_bound_seconds == 0.0


def test_what_is_wrong_in_a_plan_is_named() -> None:
    graph = random_graph(3, 12)
    message = plan_to_proto(plan_of(graph, random_stages(graph, 3, 3)), plan_id="plan-1", created_at=MOMENT)
    message.stages[1].liveness[0].kind = 77  # type: ignore[assignment]
    with pytest.raises(GraphError, match=r"plan\.stages\[1\]: liveness\[0\]: value kind 77") as refused:
        plan_from_proto(message)
    assert refused.value.metadata["field"] == "plan.stages[1]"


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("routing", Routing)
def test_options_come_back(mode: Mode, routing: Routing) -> None:
    options = full_options(mode, routing)
    message = options_to_proto(options)
    assert options_from_proto(plan_pb2.PlanOptions.FromString(message.SerializeToString())) == options


def test_nothing_set_means_the_best_plan_for_throughput() -> None:
    assert options_from_proto(plan_pb2.PlanOptions()) == PlanOptions(mode=OptimalMode())


@pytest.mark.parametrize("rates_from", [None, *RatesFrom])
def test_where_rates_are_from_comes_back(rates_from: RatesFrom | None) -> None:
    options = PlanOptions(rates_from=rates_from)
    assert options_from_proto(options_to_proto(options)) == options


def test_rates_from_two_places_are_refused() -> None:
    message = plan_pb2.PlanOptions(rates_from=plan_pb2.RATES_FROM_OWN, rates_from_profiles=["prof-a"])
    with pytest.raises(OptionsError, match=r"rates_from is own and options\.rates_from_profiles names 'prof-a'"):
        options_from_proto(message)
    with pytest.raises(OptionsError, match="names a profile twice"):
        options_from_proto(plan_pb2.PlanOptions(rates_from_profiles=["prof-a", "prof-a"]))
    many = plan_pb2.PlanOptions(rates_from_profiles=[f"prof-{index}" for index in range(257)])
    with pytest.raises(OptionsError, match="rates_from_profiles has 257 entries, at most 256"):
        options_from_proto(many)


def test_as_many_stages_as_help_is_a_mode_that_is_set() -> None:
    options = PlanOptions(mode=BalancedMode())
    assert options_to_proto(options).WhichOneof("mode") == "balanced"
    assert options_from_proto(options_to_proto(options)) == options


def test_nothing_is_told_from_none_where_both_have_a_meaning() -> None:
    absent = options_from_proto(plan_pb2.PlanOptions(training=plan_pb2.Training()))
    assert absent.training == Training()
    zero = plan_pb2.Training(optimizer_bytes_per_parameter=0.0, backward_ratio=0.0)
    parsed = options_from_proto(plan_pb2.PlanOptions(training=zero)).training
    assert parsed == Training(optimizer_bytes_per_parameter=0.0, backward_ratio=0.0)
    assert options_from_proto(plan_pb2.PlanOptions()).training is None
    bucket = plan_pb2.ShapeBucket(symbol_values={"sequence": 2, "batch": 2**53 + 1})
    assert options_from_proto(plan_pb2.PlanOptions(buckets=[bucket])).buckets == (
        ShapeBucket(symbol_values=(("batch", 2**53 + 1), ("sequence", 2)), weight=1.0),
    )
    assert options_from_proto(plan_pb2.PlanOptions(optimal=plan_pb2.OptimalMode())).mode == OptimalMode(effort=1.0)


def test_no_routing_means_direct() -> None:
    assert options_from_proto(plan_pb2.PlanOptions(size_based=plan_pb2.SizeBasedMode())).routing is Routing.DIRECT


BALANCED = plan_pb2.BalancedMode()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (plan_pb2.PlanOptions(cut=plan_pb2.CutMode()), r"options\.cut\.module_paths is empty"),
        (plan_pb2.PlanOptions(balanced=BALANCED, routing=9), r"options\.routing is 9"),  # type: ignore[arg-type]
        (plan_pb2.PlanOptions(objective=9), r"options\.objective is 9"),  # type: ignore[arg-type]
        (plan_pb2.PlanOptions(balanced=BALANCED, microbatches_in_flight=5000), r"microbatches_in_flight is 5000"),
        (plan_pb2.PlanOptions(balanced=plan_pb2.BalancedMode(num_stages=2**31)), r"balanced\.num_stages is 2147483648"),
        (plan_pb2.PlanOptions(optimal=plan_pb2.OptimalMode(num_stages=100_001)), r"optimal\.num_stages is 100001"),
        (plan_pb2.PlanOptions(rates_from=3), r"options\.rates_from is 3, needs one of 0, 1, 2"),  # type: ignore[arg-type]
        (
            plan_pb2.PlanOptions(training=plan_pb2.Training(schedule=9)),  # type: ignore[arg-type]
            r"options\.training\.schedule is 9",
        ),
        (
            plan_pb2.PlanOptions(buckets=[plan_pb2.ShapeBucket()] * 65),
            r"options\.buckets has 65 entries, at most 64 are read",
        ),
        (plan_pb2.PlanOptions(fixed=[plan_pb2.FixedModule()] * 100_001), r"options\.fixed has 100001"),
        (
            plan_pb2.PlanOptions(together=[plan_pb2.ModuleGroup(module_paths=["a"] * 50_001)] * 2),
            r"options\.together has 100002",
        ),
        (plan_pb2.PlanOptions(cut=plan_pb2.CutMode(module_paths=["a"] * 100_001)), r"cut\.module_paths has 100001"),
        (
            plan_pb2.PlanOptions(aot_based=plan_pb2.AotBasedMode(device_of_partition=["a"] * 100_001)),
            r"aot_based\.device_of_partition has 100001",
        ),
    ],
)
def test_what_is_wrong_in_options_is_named(message: plan_pb2.PlanOptions, says: str) -> None:
    with pytest.raises(OptionsError, match=says) as refused:
        options_from_proto(message)
    assert refused.value.metadata["field"].startswith("options.")
