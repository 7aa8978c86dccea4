"""A mode is added in three places, as CONTRIBUTING.md says, and is then everywhere that modes are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALGORITHM = '''
"""Mode "toy": a stage for every few nodes."""

from planner.partition.assignment import Assignment, contiguous
from planner.partition.problem import PartitionProblem


def toy(problem: PartitionProblem, every: int) -> Assignment:
    boundaries = (*range(0, problem.num_nodes, every), problem.num_nodes)
    num_stages = len(boundaries) - 1
    return contiguous(problem, boundaries, range(num_stages), ("",) * num_stages)
'''

ENTRY = '''
@dataclass(frozen=True, slots=True, kw_only=True)
class ToyMode(Mode):
    """A stage for every few nodes."""

    name: ClassVar[str] = "toy"
    every: int = field(metadata=input_as("--every", "nodes of a stage.", most=100))

    def partition(self, problem: PartitionProblem, request: Request) -> Assignment:
        from planner.partition.modes.toy import toy

        return toy(problem, self.every)


MODES: '''

MESSAGE = """
message ToyMode {
  uint32 every = 1;
}

message Plan {"""

PROGRAM = """
import os

import grpc_tools
from grpc_tools import protoc

known = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
assert protoc.main(["protoc", "-I.", f"-I{known}", "--python_out=.", "protos/v1/plan.proto"]) == 0

import planner
from planner.cli.app import load_command
from planner.cli.mode_options import mode_from_flags
from planner.errors import OptionsError
from planner.partition.modes.table import ToyMode
from planner.plan.options import PlanOptions
from planner.plan.options_document import options_document, options_from_document
from planner.planning import make_plan
from planner.wire.options import options_from_proto, options_to_proto
from protos.v1 import plan_pb2
from tests.builders.plans import inventory_of
from tests.contract.graphs import linear_chain

assert planner.__file__.startswith(os.getcwd()), planner.__file__
create = load_command("plan").get_command(None, "create")
given = create.make_context("create", ["--graph", "g", "--mode", "toy", "--every", "2"]).params
mode = mode_from_flags("toy", {flag: value for flag, value in given.items() if value})
assert mode == mode_from_flags(None, {"every": 2}) == ToyMode(every=2)
try:
    mode_from_flags("single", {"every": 2})
except OptionsError as error:
    assert error.message == "--every with --mode single: only --mode toy takes it"
try:
    mode_from_flags("toy", {})
except OptionsError as error:
    assert error.message == "--mode toy needs --every: nodes of a stage."

options = PlanOptions(mode=mode)
assert options_from_document(options_document(options)) == options
message = options_to_proto(options)
assert message.WhichOneof("mode") == "toy" and message.toy.every == 2
assert options_from_proto(plan_pb2.PlanOptions.FromString(message.SerializeToString())) == options
try:
    options_from_proto(plan_pb2.PlanOptions(toy=plan_pb2.ToyMode(every=101)))
except OptionsError as error:
    assert error.message == "options.toy.every is 101, needs 0 to 100"

plan = make_plan(linear_chain(6), "0" * 64, inventory_of(3), options)
print(plan.options.mode.name, [stage.num_nodes for stage in plan.stages])
"""


def insert(path: Path, before: str, text: str) -> None:
    content = path.read_text()
    assert content.count(before) == 1, f"{path}: {before!r}"
    path.write_text(content.replace(before, text))


@pytest.mark.services
@pytest.mark.slow
def test_a_mode_of_three_places_reaches_flags_wire_documents_and_plans(tmp_path: Path) -> None:
    compiled = shutil.ignore_patterns("__pycache__")
    for package in ("planner", "protos"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=compiled)
    modes = tmp_path / "planner" / "partition" / "modes"

    (modes / "toy.py").write_text(ALGORITHM.lstrip())
    insert(modes / "table.py", "\nMODES: ", ENTRY)
    insert(modes / "table.py", "        AotBasedMode,\n", "        AotBasedMode,\n        ToyMode,\n")
    proto = tmp_path / "protos" / "v1" / "plan.proto"
    insert(proto, "    AotBasedMode aot_based = 12;\n", "    AotBasedMode aot_based = 12;\n    ToyMode toy = 1000;\n")
    insert(proto, "\nmessage Plan {", MESSAGE)

    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "toy [2, 2, 2]"
