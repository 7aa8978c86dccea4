"""`train`: what is refused before anything is exported, and how its figures are read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from planner.cli import exit_codes
from planner.cli.commands.train import _endless, _num_tokens, _table
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype, Graph, Input, Value, ValueKind, ValueReference
from tests.planner.cli.conftest import RunCli

LOADERS = """
def number(): return 3
def broken(): raise RuntimeError("no disk")
def none(): return []
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--data", "loaders:number", "--optimizer", "lion:lr=1"), "'lion' is not known"),
        (("--data", "loaders:number"), "loaders:number returned int, needs batches"),
        (("--data", "loaders:broken"), "loaders:broken raised RuntimeError: no disk"),
        (
            ("--data", "loaders:none", "--reduction", "tokens"),
            "tokens is not known, needs mean, sum or package",
        ),
        (("--data", "loaders:none", "--reduction", "loaders:tokens"), "loaders has no callable 'tokens'"),
        (("--data", "loaders:number", "--resume"), "name their run by --run NAME"),
        (("--data", "loaders:number", "--recovery", "restart"), "name their run by --run NAME"),
        (("--data", "loaders:number", "--run", "a b"), "run 'a b': needs"),
        (("--data", "loaders:number", "--out", "weights.pt"), "ends with .npz or .safetensors"),
    ],
)
def test_what_cannot_be_trained_is_refused_first(
    bare_cli: RunCli, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    (tmp_path / "loaders.py").write_text(LOADERS)
    finished = bare_cli("train", "nowhere:build", "--steps", "1", *options)
    assert finished.status == exit_codes.INVALID_INPUT
    assert words in " ".join(finished.stderr.split())


def test_batches_begin_anew_also_those_of_an_iterator() -> None:
    endless = _endless(iter([1, 2, 3]))
    assert [next(endless) for _ in range(8)] == [1, 2, 3, 1, 2, 3, 1, 2]
    with pytest.raises(InvalidArgument, match="there is no batch"):
        next(_endless([]))


class Shaped:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_tokens_are_elements_of_the_first_table_of_integers() -> None:
    def graph(*dtypes: Dtype) -> Graph:
        values = tuple(
            Value(id=index + 1, name="v", kind=ValueKind.TENSOR, dtype=dtype) for index, dtype in enumerate(dtypes)
        )
        inputs = tuple(Input(name="v", content=ValueReference(value.id)) for value in values)
        return Graph(torch_version="", name="", values=values, inputs=inputs)

    assert _num_tokens(graph(Dtype.FLOAT32, Dtype.INT64), (Shaped(4, 9), Shaped(4, 7))) == 28
    assert _num_tokens(graph(Dtype.FLOAT32, Dtype.INT64), (Shaped(4, 9), Shaped(4))) == 4
    assert _num_tokens(graph(), (1.0,)) == 1


def test_the_bubble_is_shown_as_measured_beside_as_predicted() -> None:
    console = Console(width=100, file=io.StringIO())
    document = {
        "steps": 5,
        "first_loss": 2.0,
        "last_loss": 1.5,
        "tokens_per_second": 1234.4,
        "seconds_per_step": 0.25,
        "bubble_share": 0.125,
        "predicted_bubble_share": 0.1,
        "path": None,
    }
    with console.capture() as captured:
        console.print(_table(document))
    assert "12.5% measured, 10.0% predicted" in captured.get()
    assert "2.0000 to 1.5000 in 5 steps" in captured.get()
