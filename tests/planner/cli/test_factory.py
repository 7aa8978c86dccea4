"""Factories named on the command line, and what they may return."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from planner.cli import exit_codes
from planner.cli.factory import call_factory, export_from_factory
from planner.errors import InvalidArgument
from tests.planner.cli.conftest import RunCli

MODULE = """
import torch

class Double(torch.nn.Module):
    def forward(self, x, y=None):
        return x + (x if y is None else y)

class Asks(torch.nn.Module):
    def forward(self, x):
        return x * 2 if torch.compiler.is_exporting() else x

x = torch.ones(2, 3)
shapes = {"x": {0: torch.export.Dim("rows", min=1, max=9)}}

def plain(): return Double(), (x,)
def alone(): return Double(), x
def keywords(): return Double(), {"x": x, "y": x}
def both(): return Double(), (x,), {"y": x}
def dynamic(): return Double(), (x,), {}, shapes
def dynamic_keywords(): return Double(), {"x": x}, shapes
def asks(): return Asks(), x
def nothing(): return Double()
def strange(): return Double(), (x,), 3
def broken(): raise RuntimeError("no disk")
value = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factories_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("factory", "inputs", "num_symbols"),
    [
        ("plain", ["x"], 0),
        ("alone", ["x"], 0),
        ("keywords", ["x", "y"], 0),
        ("both", ["x", "y"], 0),
        ("dynamic", ["x"], 1),
        ("dynamic_keywords", ["x"], 1),
    ],
)
def test_what_a_factory_may_return(factories: str, factory: str, inputs: list[str], num_symbols: int) -> None:
    graph = export_from_factory(f"{factories}:{factory}", "named").graph
    assert [entry.name for entry in graph.inputs] == inputs
    assert len(graph.symbols) == num_symbols
    assert graph.name == "named"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nothing", "returned Double, needs"),
        ("strange", "returned 3 items, needs"),
        ("broken", "raised RuntimeError: no disk"),
        ("value", "no callable 'value'"),
        ("missing", "no callable 'missing'"),
    ],
)
def test_what_is_no_factory_is_refused(factories: str, factory: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        export_from_factory(f"{factories}:{factory}", None)


@pytest.mark.services
def test_exported_to_a_folder_and_submitted_from_it(cli: RunCli, factories: str, tmp_path: Path) -> None:
    exported = cli("export", f"{factories}:dynamic", tmp_path / "double.ppgraph", "-o", "json").document()
    assert exported["files"][0]["name"] == "graph.pb"
    graph = cli("submit", tmp_path / "double.ppgraph", "--name", "double", "-o", "json").document()
    assert graph["num_nodes"] == exported["num_nodes"] > 0
    assert cli("export", tmp_path / "double.ppgraph", tmp_path / "again").status == exit_codes.INVALID_INPUT
    # The same module straight away is the same graph.
    assert cli("submit", f"{factories}:dynamic", "--name", "dynamic", "-o", "json").document()["num_nodes"] > 0


def test_other_numbers_than_the_modules_are_told_in_a_line(bare_cli: RunCli, factories: str, tmp_path: Path) -> None:
    told = bare_cli("export", f"{factories}:asks", tmp_path / "folder")

    assert (told.status, told.stderr.count("\n")) == (0, 1)
    assert told.stderr.startswith("warning: Asks: on the example inputs")
    assert bare_cli("export", f"{factories}:asks", tmp_path / "folder", "--no-compare").stderr == ""


def test_nothing_looks_for_garbage_in_what_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"collected_{abs(hash(tmp_path))}"
    text = "import gc\nis_enabled, made = gc.isenabled(), [[]]\ndef state(): return is_enabled, gc.isenabled(), made\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert gc.isenabled()
    during, after, made = call_factory(f"{name}:state")
    assert (during, after) == (False, True)
    assert all(one is not made for one in gc.get_objects())
