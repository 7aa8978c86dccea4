"""Flags as modes: each mode's own, and what does not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli.mode_options import mode_from_flags, read_assignment
from planner.errors import InvalidArgument, OptionsError
from planner.partition.modes.table import MODES
from planner.plan.options import (
    AotBasedMode,
    BalancedMode,
    CostAwareMode,
    CutMode,
    KlBasedMode,
    Mode,
    OptimalMode,
    SingleMode,
    SizeBasedMode,
    SparseNnMode,
)

FLAGS: dict[str, Any] = {
    "cut": ["a"],
    "stages": 3,
    "free": True,
    "replicate": True,
    "recompute": True,
    "effort": 2.0,
    "assignment": Path("a.json"),
}
TAKES = {
    "optimal": {"stages", "free", "replicate", "recompute", "effort"},
    "balanced": {"stages"},
    "cut": {"cut"},
    "aot_based": {"assignment"},
}


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, OptimalMode()),
        ({"stages": 3}, OptimalMode(num_stages=3)),
        ({"free": True}, OptimalMode(free=True)),
        ({"replicate": True}, OptimalMode(replicate=True)),
        ({"recompute": True}, OptimalMode(recompute=True)),
        ({"effort": 0.5}, OptimalMode(effort=0.5)),
        ({"cut": ["a", "b"]}, CutMode(module_paths=("a", "b"))),
        ({"name": "balanced"}, BalancedMode()),
        ({"name": "balanced", "stages": 4}, BalancedMode(num_stages=4)),
        ({"name": "single"}, SingleMode()),
        ({"name": "size_based"}, SizeBasedMode()),
        ({"name": "sparse_nn"}, SparseNnMode()),
        ({"name": "cost_aware"}, CostAwareMode()),
        ({"name": "kl_based"}, KlBasedMode()),
    ],
)
def test_each_mode_from_its_flags(flags: dict[str, Any], mode: Mode) -> None:
    name = flags.get("name")
    assert mode_from_flags(name, {flag: value for flag, value in flags.items() if flag != "name"}) == mode


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("name", MODES)
def test_a_flag_of_another_mode_is_refused(name: str, flag: str) -> None:
    takers = [mode for mode in MODES if flag in TAKES.get(mode, set())]
    if name in takers:
        return
    with pytest.raises(OptionsError) as raised:
        mode_from_flags(name, {flag: FLAGS[flag]})
    assert raised.value.message == f"--{flag} with --mode {name}: only --mode {' or '.join(takers)} takes it"


def test_a_flag_of_one_mode_names_it_and_one_of_two_does_not() -> None:
    with pytest.raises(OptionsError, match="--stages with --mode cut: only --mode optimal or balanced takes it"):
        mode_from_flags(None, {"cut": ["a"], "stages": 3})
    with pytest.raises(OptionsError, match="--assignment with --mode cut: only --mode aot_based takes it"):
        mode_from_flags(None, {"cut": ["a"], "assignment": Path("a.json")})


def test_modules_to_cut_after_have_to_be_named() -> None:
    with pytest.raises(OptionsError, match=r"options\.cut\.module_paths is empty"):
        mode_from_flags("cut", {})


def test_an_assignment_is_read(tmp_path: Path) -> None:
    path = tmp_path / "assignment.json"
    path.write_text(json.dumps({"partition_of_node": [1, 0], "device_of_partition": ["b", "a"]}))
    expected = AotBasedMode(partition_of_node=(1, 0), device_of_partition=("b", "a"))
    assert read_assignment(path) == mode_from_flags(None, {"assignment": path}) == expected


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "holds a list, needs a mapping with partition_of_node and device_of_partition"),
        ({"device_of_partition": []}, "has no partition_of_node"),
        ({"partition_of_node": []}, "has no device_of_partition"),
        ({"partition_of_node": [0, -1], "device_of_partition": ["a"]}, "needs a list of whole numbers from 0"),
        ({"partition_of_node": [True], "device_of_partition": ["a", "b"]}, "needs a list of whole numbers from 0"),
        ({"partition_of_node": {"0": 0}, "device_of_partition": ["a"]}, "needs a list of whole numbers from 0"),
        ({"partition_of_node": [0], "device_of_partition": [1]}, "device_of_partition needs a list of device ids"),
        ({"partition_of_node": [0, 1], "device_of_partition": ["a"]}, "partition 1 has no device; there are 1"),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(tmp_path: Path, document: object, says: str) -> None:
    path = tmp_path / "assignment.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgument) as raised:
        read_assignment(path)
    assert says in raised.value.message
    assert str(path) in raised.value.message


def test_an_assignment_has_to_be_named() -> None:
    with pytest.raises(OptionsError, match="--mode aot_based needs --assignment FILE"):
        mode_from_flags("aot_based", {})
