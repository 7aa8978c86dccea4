"""Small random partition problems."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from planner.partition.objective import NAMED_SCHEDULES, UNSPLIT_SCHEDULES, Activations, PipelineSchedule, Training
from planner.partition.problem import FREE, Labels, PartitionProblem


def problem(
    *,
    compute_seconds: list[list[float]],
    reads: list[list[int]],
    value_bytes: list[int],
    num_inputs: int = 1,
    returned: tuple[int, ...] = (),
    views: dict[int, int] | None = None,
    states: list[tuple[int, tuple[int, ...]]] = (),
    memory_bytes: list[int] | None = None,
    latency: list[list[float]] | float = 0.0,
    per_byte: list[list[float]] | float = 0.0,
    groups: list[tuple[int, int]] = (),
    embeddings: tuple[int, ...] = (),
    relay: bool = False,
    microbatches_in_flight: int = 2,
    kinds: list[str] | None = None,
    module_paths: list[str] | None = None,
    fixed: dict[int, int] | None = None,
    training: Training | None = None,
    frozen: tuple[int, ...] = (),
    spares_inputs: tuple[int, ...] = (),
    spares_outputs: tuple[int, ...] = (),
    kept_bytes: dict[int, int] | None = None,
) -> PartitionProblem:
    """Values 0 to num_inputs - 1 are inputs; node k makes value num_inputs + k. `reads[k]`: values that node k reads.

    `views`: value to the value whose storage it shows. `states`: (bytes, the nodes that use it). `fixed`: node to
    device. In training every state is trained, and every node but the `frozen` has a gradient; an optimizer byte counts
    as one per byte of state. `spares_inputs`, `spares_outputs`: nodes whose backward pass does without what they read,
    or make. `kept_bytes`: of a node, what it keeps besides.
    """
    n, devices = len(reads), len(compute_seconds)
    num_values = num_inputs + n
    roots = list(range(num_values))
    for view, source in sorted((views or {}).items()):
        roots[view] = roots[source]
    producer = np.array([-1] * num_inputs + list(range(n)), dtype=np.int64)
    pairs = sorted({(value, node) for node, read in enumerate(reads) for value in read})
    uses = sorted({(index, node) for index, (_, nodes) in enumerate(states) for node in nodes})
    cut_allowed = np.ones(n + 1, dtype=np.bool_)
    node_group = np.full(n, -1, dtype=np.int64)
    for index, (first, last) in enumerate(groups):
        cut_allowed[first + 1 : last + 1] = False
        node_group[[first, last]] = index
    names = [f"d{index}" for index in range(devices)]
    trained = training is not None
    differentiated = np.array([trained and node not in frozen for node in range(n)], dtype=np.bool_)
    with_gradient = np.concatenate([np.zeros(num_inputs, dtype=np.bool_), differentiated])
    state_sizes = np.array([size for size, _ in states], dtype=np.int64)
    return PartitionProblem(
        compute_seconds=np.array(compute_seconds, dtype=np.float64).reshape(devices, n),
        flops=np.ones(n),
        value_bytes=np.array(value_bytes, dtype=np.int64),
        value_producer=producer,
        value_root=np.array(roots, dtype=np.int64),
        value_returned=np.array([value in returned for value in range(num_values)], dtype=np.bool_),
        root_bytes=np.array([size if roots[v] == v else 0 for v, size in enumerate(value_bytes)], dtype=np.int64),
        root_producer=np.array([made if roots[v] == v else -1 for v, made in enumerate(producer)], dtype=np.int64),
        read_value=np.array([value for value, _ in pairs], dtype=np.int64),
        read_node=np.array([node for _, node in pairs], dtype=np.int64),
        state_bytes=np.array([size for size, _ in states], dtype=np.int64),
        use_state=np.array([state for state, _ in uses], dtype=np.int64),
        use_node=np.array([node for _, node in uses], dtype=np.int64),
        use_is_return=np.zeros(len(uses), dtype=np.bool_),
        returned_state=np.zeros(0, dtype=np.int64),
        shown_root=np.array([], dtype=np.int64),
        shown_node=np.array([], dtype=np.int64),
        cut_allowed=cut_allowed,
        node_group=node_group,
        is_embedding=np.array([node in embeddings for node in range(n)], dtype=np.bool_),
        device_memory_bytes=np.array(memory_bytes or [1 << 40] * devices, dtype=np.int64),
        link_latency_seconds=_matrix(latency, devices),
        link_seconds_per_byte=_matrix(per_byte, devices),
        relay=relay,
        microbatches_in_flight=microbatches_in_flight,
        labels=Labels(
            nodes=tuple(f"node{index}" for index in range(n)),
            module_paths=tuple(module_paths or [""] * n),
            devices=tuple(names),
            device_kinds=tuple(kinds or ["cpu"] * devices),
        ),
        fixed_device=np.array([(fixed or {}).get(node, FREE) for node in range(n)], dtype=np.int64),
        training=training,
        node_has_gradient=differentiated,
        node_spares_inputs=np.array([node in spares_inputs for node in range(n)], dtype=np.bool_),
        node_spares_outputs=np.array([node in spares_outputs for node in range(n)], dtype=np.bool_),
        node_kept_bytes=np.array([(kept_bytes or {}).get(node, 0) for node in range(n)], dtype=np.int64),
        value_gradient_bytes=np.where(with_gradient, np.array(value_bytes, dtype=np.int64), 0),
        state_gradient_bytes=state_sizes * trained,
        state_optimizer_bytes=state_sizes * trained,
    )


def _matrix(links: list[list[float]] | float, size: int) -> np.ndarray:
    matrix = np.array(links if isinstance(links, list) else np.full((size, size), links), dtype=np.float64)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def chain(seconds: list[list[float]], **more: object) -> PartitionProblem:
    """Each node reads what the one before it made."""
    n = len(seconds[0])
    arguments = {"value_bytes": [1] * (n + 1), "reads": [[k] for k in range(n)], "returned": (n,), **more}
    return problem(compute_seconds=seconds, **arguments)


trainings = st.builds(
    Training,
    schedule=st.sampled_from([*NAMED_SCHEDULES, PipelineSchedule.BEST]),
    microbatches=st.integers(1, 4),
    backward_ratio=st.sampled_from([0.0, 1.0, 2.0]),
) | st.builds(
    Training,
    schedule=st.sampled_from(UNSPLIT_SCHEDULES),
    microbatches=st.integers(1, 4),
    backward_ratio=st.just(2.0),
    activations=st.just(Activations.RECOMPUTED),
)


INFERENCE: st.SearchStrategy[Training | None] = st.none()


@st.composite
def problems(
    draw: st.DrawFn,
    max_nodes: int = 7,
    max_devices: int = 3,
    equal_links: bool | None = None,
    relay: bool | None = None,
    training: st.SearchStrategy[Training | None] = INFERENCE,
    barred: bool = False,
) -> PartitionProblem:
    """None: either. `barred`: some nodes are fixed, or cannot run on some device."""
    n = draw(st.integers(1, max_nodes))
    devices = draw(st.integers(1, max_devices))
    num_inputs = draw(st.integers(0, 2))
    sizes = st.integers(0, 20)
    few = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 8.0])
    reads = [
        sorted(draw(st.sets(st.integers(0, num_inputs + k - 1), max_size=3))) if num_inputs + k else []
        for k in range(n)
    ]
    views = {}
    for k in range(n):
        if reads[k] and draw(st.integers(0, 4)) == 0:
            views[num_inputs + k] = draw(st.sampled_from(reads[k]))
    speeds = [draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])) for _ in range(devices)]
    seconds = [draw(few) for _ in range(n)]
    uniform = draw(st.booleans()) if equal_links is None else equal_links
    matrix = [[draw(st.sampled_from([0.0, 0.1, 0.5])) for _ in range(devices)] for _ in range(devices)]
    states = draw(
        st.lists(st.tuples(sizes, st.sets(st.integers(0, n - 1), min_size=1, max_size=3).map(tuple)), max_size=4)
    )
    groups = []
    if n > 2 and draw(st.booleans()):
        first = draw(st.integers(0, n - 2))
        groups = [(first, draw(st.integers(first + 1, n - 1)))]
    tight = draw(st.booleans())
    table = [[speed * one for one in seconds] for speed in speeds]
    fixed = {}
    if barred:
        for node in draw(st.sets(st.integers(0, n - 1), max_size=2)):
            fixed[node] = draw(st.integers(0, devices - 1))
        for node in draw(st.sets(st.integers(0, n - 1), max_size=2)) - fixed.keys():
            table[draw(st.integers(0, devices - 1))][node] = np.inf if devices > 1 else seconds[node]
    trained = draw(training)
    some_nodes = st.sets(st.integers(0, n - 1), max_size=n) if trained else st.just(set())
    return problem(
        fixed=fixed,
        training=trained,
        frozen=tuple(draw(st.sets(st.integers(0, n - 1), max_size=2))) if trained else (),
        spares_inputs=tuple(draw(some_nodes)),
        spares_outputs=tuple(draw(some_nodes)),
        kept_bytes={node: draw(sizes) for node in sorted(draw(some_nodes))},
        compute_seconds=table,
        reads=reads,
        value_bytes=[draw(sizes) for _ in range(num_inputs + n)],
        num_inputs=num_inputs,
        returned=tuple(draw(st.sets(st.integers(0, num_inputs + n - 1), max_size=2))),
        views=views,
        states=states,
        memory_bytes=[draw(st.integers(20, 250)) for _ in range(devices)] if tight else None,
        latency=0.25 if uniform else matrix,
        per_byte=0.0625 if uniform else [[one / 4 for one in row] for row in matrix],
        groups=groups,
        relay=draw(st.booleans()) if relay is None else relay,
        microbatches_in_flight=draw(st.integers(1, 2)),
    )
