"""The free problem as a mixed-integer programme for HiGHS: finds better, or proves how little there is to find.

Columns are the load v, x [cell, device] and y [net, device]: y is 1 where the device has some of the net's cells, not
all. Only solutions better than the one in hand are asked for, so that presolve can rule out slow cells on slow classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from planner.cost_graphs.placement.netlists.netlist import Netlist
from planner.partition.out_of_time import OutOfTime
from planner.partition.problem import Booleans, Floats, Integers

# Better by less than this share is not asked for; ten times what the solver takes for equal.
_SMALLEST_GAIN = 1e-6
_MAX_COLUMNS = 20_000
FREE, ELSEWHERE = -1, -2
# Told of each question whether the solver is branching by then, which asks far oftener than the root's relaxation.
OnQuestion = Callable[[bool], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`devices` [cells], if better ones were found. Nothing is below `lower_bound_seconds`.

    `is_complete`: nothing was cut short.
    """

    devices: Integers | None
    lower_bound_seconds: float
    is_complete: bool


class _Rows(NamedTuple):
    """Constraints with one pair of limits: [rows, entries] columns and values."""

    columns: Integers
    values: Floats
    lower: float
    upper: float


def num_columns(netlist: Netlist) -> int:
    """Of the programme, about; the load's own not counted."""
    return (netlist.num_cells + netlist.num_nets) * netlist.num_devices


def better_or_bound(
    netlist: Netlist,
    value_seconds: float,
    *,
    questions: int,
    out_of_time: OutOfTime,
    max_nodes: int | None = None,
    fixed: Integers | None = None,
    enough: float = 1.0,
    on_question: OnQuestion = lambda is_branching: None,
) -> Answer:
    """`questions`: how often the solver may ask whether to go on, 10 to 2000 times a second. Large graphs are left.

    `fixed` [cells]: a cell's device, FREE or ELSEWHERE, which is none of the devices. Ends with devices that gain
    `enough`, a share of the value.
    """
    if value_seconds <= 0 or num_columns(netlist) > _MAX_COLUMNS:
        return Answer(devices=None, lower_bound_seconds=0.0, is_complete=False)
    solver = _solver(netlist, value_seconds, np.full(netlist.num_cells, FREE) if fixed is None else fixed)
    if max_nodes is not None:
        solver.setOptionValue("mip_max_nodes", max_nodes)
    _stop_after(solver, questions, enough, out_of_time, on_question)
    _run(solver)
    bound = _bound(solver) * value_seconds
    info = solver.getInfo()
    if info.primal_solution_status != 2:
        return Answer(devices=None, lower_bound_seconds=bound, is_complete=_is_complete(solver))
    shares = np.asarray(solver.getSolution().col_value)[1 : 1 + netlist.num_cells * netlist.num_devices]
    devices = shares.reshape(netlist.num_cells, netlist.num_devices).argmax(axis=1)
    return Answer(devices=devices, lower_bound_seconds=bound, is_complete=_is_complete(solver))


def _run(solver: Any) -> None:
    """Again as it is where HiGHS cannot carry back what its presolve made of the programme."""
    import highspy

    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kSolveError:
        solver.setOptionValue("presolve", "off")
        solver.run()


def _is_complete(solver: Any) -> bool:
    import highspy

    status = solver.getModelStatus()
    return status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kOptimal)


def _bound(solver: Any) -> float:
    """As a share of the value in hand, and at most what was asked for."""
    import highspy

    cutoff = 1 - _SMALLEST_GAIN
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return cutoff
    bound = float(solver.getInfo().mip_dual_bound)
    return min(max(bound - _SMALLEST_GAIN, 0.0), cutoff) if np.isfinite(bound) else 0.0


def _stop_after(solver: Any, questions: int, enough: float, out_of_time: OutOfTime, on_question: OnQuestion) -> None:
    """Counted in the solver's own questions: the same on any machine, unless a clock is given."""
    num_questions = 0

    def ask(event: Any) -> None:
        nonlocal num_questions
        num_questions += 1
        on_question(event.data_out.mip_node_count > 1)
        event.interrupt(num_questions > questions or out_of_time())

    def ask_of_value(event: Any) -> None:
        ask(event)
        if event.data_out.mip_primal_bound < 1 - enough:
            event.interrupt(True)

    solver.cbMipInterrupt.subscribe(ask_of_value)
    solver.cbSimplexInterrupt.subscribe(ask)


def _solver(netlist: Netlist, value_seconds: float, fixed: Integers) -> Any:
    """Loads as shares of the value in hand, bytes as shares of the device's: the solver's tolerances are absolute."""
    import highspy

    cells, devices, classes = netlist.num_cells, netlist.num_devices, netlist.class_of_device
    seconds = netlist.seconds[classes].T / value_seconds
    allowed = (seconds <= 1.0) & (netlist.held_bytes[:, None] <= netlist.device_bytes)
    allowed &= _canonical(netlist, fixed)
    allowed[fixed >= 0] = fixed[fixed >= 0][:, None] == np.arange(devices)
    cut_net, cut_device = np.nonzero(netlist.net_seconds[classes].T > 0)
    num_cells_columns = cells * devices
    place_columns = 1 + np.arange(num_cells_columns).reshape(cells, devices)
    cut = 1 + num_cells_columns + np.arange(cut_net.size)
    placed = place_columns[fixed != ELSEWHERE]
    rows = [_Rows(placed, np.ones(placed.shape), 1.0, 1.0)]
    for device in range(devices):
        paid = cut_device == device
        cost = netlist.net_seconds[classes[device], cut_net[paid]] / value_seconds
        columns = np.concatenate([[0], place_columns[:, device], cut[paid]])
        values = np.concatenate([[-1.0], np.where(allowed[:, device], seconds[:, device], 0.0), cost])
        rows.append(_Rows(columns[None], values[None], -np.inf, 0.0))
        room = netlist.device_bytes[device]
        if room < netlist.held_bytes.sum():
            shares = netlist.held_bytes[None] / max(room, 1.0)
            rows.append(_Rows(place_columns[None, :, device], shares, -np.inf, min(room, 1.0)))
    for net, device, column in zip(cut_net.tolist(), cut_device.tolist(), cut.tolist(), strict=True):
        pins = place_columns[netlist.net_cell[netlist.net_begin[net] : netlist.net_begin[net + 1]], device]
        # Round the ring of its cells, some step goes from a cell on the device to one elsewhere if any does.
        ring = np.stack([np.full(pins.size, column), pins, np.roll(pins, -1)], axis=1)
        rows.append(_Rows(ring, np.tile([1.0, -1.0, 1.0], (pins.size, 1)), 0.0, np.inf))
    program = highspy.HighsLp()
    program.num_col_ = 1 + num_cells_columns + cut_net.size
    program.col_cost_ = np.eye(1, program.num_col_).ravel()
    program.col_lower_ = np.zeros(program.num_col_)
    program.col_upper_ = np.concatenate(
        [[1 - _SMALLEST_GAIN], allowed.ravel().astype(np.float64), np.ones(cut_net.size)]
    )
    integral, continuous = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    program.integrality_ = [continuous] + [integral] * num_cells_columns + [continuous] * int(cut_net.size)
    _set_rows(program, rows, highspy.MatrixFormat.kRowwise)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, setting in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0), ("random_seed", 0)):
        solver.setOptionValue(option, setting)
    solver.passModel(program)
    return solver


def _canonical(netlist: Netlist, fixed: Integers) -> Booleans:
    """[cells, devices] one of each set of placements that differ by the numbers of like devices only.

    Like devices take their numbers in the order of the heaviest cell that each has.
    """
    allowed = np.tile((fixed != ELSEWHERE)[:, None], netlist.num_devices)
    if (fixed >= 0).any():
        return allowed
    for kind in np.unique(netlist.class_of_device).tolist():
        alike = np.flatnonzero(netlist.class_of_device == kind)
        finite = np.where(np.isfinite(netlist.seconds[kind]) & (fixed == FREE), netlist.seconds[kind], 0.0)
        for rank, cell in enumerate(np.argsort(-finite, kind="stable")[: alike.size - 1].tolist()):
            allowed[cell, alike[rank + 1 :]] = False
    return allowed


def _set_rows(program: Any, blocks: Sequence[_Rows], layout: Any) -> None:
    counts = [block.columns.shape[0] for block in blocks]
    sizes = np.concatenate([np.full(*block.columns.shape) for block in blocks])
    program.num_row_ = int(sizes.size)
    program.row_lower_ = np.repeat([block.lower for block in blocks], counts)
    program.row_upper_ = np.repeat([block.upper for block in blocks], counts)
    program.a_matrix_.format_ = layout
    program.a_matrix_.start_ = np.concatenate([[0], np.cumsum(sizes)])
    program.a_matrix_.index_ = np.concatenate([block.columns.ravel() for block in blocks])
    program.a_matrix_.value_ = np.concatenate([block.values.ravel() for block in blocks])
