"""What no placement can beat: the work shared out in fractions, and the slowest cell where it is fastest."""

from __future__ import annotations

import numpy as np

from planner.cost_graphs.placement.netlists.netlist import Netlist
from planner.partition.problem import Floats, Integers

_LARGEST_PROGRAM = 60_000


def lower_bound(netlist: Netlist) -> float:
    """Holds for every placement. One linear programme of at most 60 000 columns, then O(classes x cells)."""
    classes = np.unique(netlist.class_of_device)
    slowest = float(netlist.seconds[classes].min(axis=0).max())
    return max(slowest, _shared_out(netlist, classes))


def _shared_out(netlist: Netlist, classes: Integers) -> float:
    """Weak duality: the prices of a programme over some of the cells bound what all of them need."""
    devices = np.bincount(netlist.class_of_device)[classes].astype(np.float64)
    room = np.array([netlist.device_bytes[netlist.class_of_device == kind].sum() for kind in classes])
    stride = -(-netlist.num_cells * classes.size // _LARGEST_PROGRAM)
    some = np.arange(0, netlist.num_cells, stride)
    of_time, of_bytes = _prices(
        netlist.seconds[np.ix_(classes, some)], netlist.held_bytes[some], devices, room / stride
    )
    total = float(of_time @ devices)
    if total <= 0:
        return 0.0
    seconds = netlist.seconds[classes]
    priced = np.full(netlist.num_cells, np.inf)
    for row, time_price, bytes_price in zip(seconds, of_time, of_bytes, strict=True):
        cost = np.where(np.isfinite(row), row, 0.0) * time_price + netlist.held_bytes * bytes_price
        priced = np.minimum(priced, np.where(np.isfinite(row), cost, np.inf))
    bytes_cost = float((of_bytes * np.where(of_bytes > 0, room, 0.0)).sum())
    # A sum of many terms is rounded: what is claimed as proven stays below it.
    return max(0.0, (float(priced.sum()) - bytes_cost) / total * (1 - 1e-12))


def _prices(seconds: Floats, held_bytes: Floats, devices: Floats, room: Floats) -> tuple[Floats, Floats]:
    """[classes] of a second and of a byte: the duals of min v, each class's work in fractions within v and memory."""
    import highspy

    num, cells = seconds.shape
    unit = float(held_bytes.max(initial=0.0)) or 1.0
    runs = np.isfinite(seconds).ravel()
    column = np.arange(num * cells)
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = num * cells + 1, cells + 2 * num
    program.col_cost_ = np.append(np.zeros(num * cells), 1.0)
    program.col_lower_ = np.zeros(num * cells + 1)
    program.col_upper_ = np.append(np.where(runs, 1.0, 0.0), np.inf)
    program.row_lower_ = np.concatenate([np.ones(cells), np.full(2 * num, -np.inf)])
    program.row_upper_ = np.concatenate([np.ones(cells), np.zeros(num), room / unit])
    rows = np.stack([column % cells, cells + column // cells, cells + num + column // cells], axis=1)
    values = np.stack(
        [np.ones(column.size), np.where(runs, seconds.ravel(), 0.0), np.tile(held_bytes / unit, num)], axis=1
    )
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.append(np.arange(0, 3 * column.size + 1, 3), 3 * column.size + num)
    program.a_matrix_.index_ = np.append(rows.ravel(), cells + np.arange(num))
    program.a_matrix_.value_ = np.append(values.ravel(), -devices)
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.passModel(program)
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.zeros(num), np.zeros(num)
    duals = np.maximum(-np.asarray(model.getSolution().row_dual)[cells:], 0.0)
    return duals[:num], duals[num:] / unit
